"""Remembers the answers of pure functions on everything they read of the nouns they were given.

A key that is written by hand forgets the field that is added next year. Here nobody writes keys. A noun of a tracked type is
handed to the function as a stand-in that notes which fields are looked at; the answer is kept under exactly these fields and
their values. Every other argument counts as a whole: numbers and words by value, a tuple by the identity of its members,
anything else by its own. Arguments are held as long as the answer, so that an identity stays its owner's. A function that
reads the same values takes the same way, so what is remembered is what would be computed.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast

from traincast.errors import TraincastError

Answer = TypeVar("Answer")
_BY_VALUE = frozenset({int, float, str, bool, type(None)})


class Remember(Protocol):
    """Calls a step with its arguments, or gives back what it gave before."""

    def __call__(self, step: Callable[..., Answer], /, *arguments: Any) -> Answer: ...


def compute(step: Callable[..., Answer], /, *arguments: Any) -> Answer:
    """Remembers nothing."""
    return step(*arguments)


class Memo:
    """Remembers the answers of steps, the refusals among them."""

    def __init__(self, *, tracks: tuple[type, ...] = (), most: int = 100_000) -> None:
        """`most`: answers after which everything is forgotten."""
        self._tracks = frozenset(tracks)
        self._most = most
        self._known: dict[Hashable, _Answers] = {}
        self._num_answers = 0

    def __call__(self, step: Callable[..., Answer], /, *arguments: Any) -> Answer:
        """The step's answer for these arguments. Where a remembered step hands on a noun that it was given, what the inner step
        reads of it the outer one has read too."""
        tracked: list[Any] = []
        outer: list[tuple[int, Any]] = []
        names: list[Hashable] = [step]
        for argument in arguments:
            kind = type(argument)
            if kind in self._tracks:
                tracked.append(argument)
            elif kind in _STAND_INS:
                outer.append((len(tracked), argument))
                tracked.append(_noun_of(argument))
            else:
                names.append(_name(argument))
        whole = tuple(names)
        known = self._known.get(whole)
        outcome = known.find(tracked) if known is not None else None
        if outcome is None:
            plain = (
                tuple([_noun_of(one) if type(one) in _STAND_INS else one for one in arguments]) if outer else arguments
            )
            outcome = self._compute(step, plain, tracked, whole)
        for place, stand_in in outer:
            _reads_of(stand_in).update(outcome.reads[place])
        return cast(Answer, outcome.tell())

    def _compute(
        self, step: Callable[..., Any], arguments: tuple[Any, ...], tracked: list[Any], whole: Hashable
    ) -> "_Outcome":
        given = [_stand_in(argument) if type(argument) in self._tracks else argument for argument in arguments]
        answer, refusal = None, None
        try:
            answer = step(*given)
        except TraincastError as error:
            refusal = error
        reads = tuple([tuple(sorted(_reads_of(one))) for one in given if type(one) in _STAND_INS])
        outcome = _Outcome(answer, refusal, reads)
        if self._num_answers >= self._most:
            self.forget()
        known = self._known.get(whole)
        if known is None:
            known = self._known[whole] = _Answers(arguments)
        known.add(tracked, outcome)
        self._num_answers += 1
        return outcome

    def forget(self) -> None:
        """Let go of everything."""
        self._known = {}
        self._num_answers = 0

    def __len__(self) -> int:
        return self._num_answers


class _Outcome:
    """What a step gave, an answer or a refusal, and the fields that it read of each tracked noun."""

    __slots__ = ("answer", "reads", "refusal")

    def __init__(self, answer: Any, refusal: TraincastError | None, reads: tuple[tuple[str, ...], ...]) -> None:
        self.answer, self.refusal, self.reads = answer, refusal, reads

    def tell(self) -> Any:
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        return self.answer


class _Answers:
    """All answers of one step for the same whole arguments, by what was read of the tracked ones."""

    __slots__ = ("_held", "_tables")

    def __init__(self, held: tuple[Any, ...]) -> None:
        self._held: list[Any] = [held]
        self._tables: dict[
            tuple[tuple[str, ...], ...], tuple[list[Callable[[Any], Any]], dict[Hashable, _Outcome]]
        ] = {}

    def find(self, tracked: list[Any]) -> _Outcome | None:
        for readers, answers in self._tables.values():
            found = answers.get(_values(readers, tracked))
            if found is not None:
                return found
        return None

    def add(self, tracked: list[Any], outcome: _Outcome) -> None:
        reads = outcome.reads
        if reads not in self._tables:
            self._tables[reads] = [_reader(fields) for fields in reads], {}
        readers, answers = self._tables[reads]
        answers[_values(readers, tracked)] = outcome
        self._held.append(tracked)


def _values(readers: list[Callable[[Any], Any]], tracked: list[Any]) -> Hashable:
    return tuple([reader(noun) for reader, noun in zip(readers, tracked, strict=True)])


def _reader(fields: tuple[str, ...]) -> Callable[[Any], Any]:
    """Of a noun, the values of some fields as one key."""
    if not fields:
        return lambda noun: ()
    take = attrgetter(*fields)
    if len(fields) == 1:
        return lambda noun: _name(take(noun))

    def read(noun: Any) -> Hashable:
        values = take(noun)
        kinds = tuple(map(type, values))
        if _BY_VALUE.issuperset(kinds):
            return values, kinds
        return tuple([_name(value) for value in values])

    return read


def _name(value: Any) -> Hashable:
    """By value where it is a number or a word (1, 1.0 and True are three), a tuple by its members, all else by identity."""
    kind = type(value)
    if kind is tuple:
        return tuple(map(id, value))
    return (kind, value) if kind in _BY_VALUE else id(value)


_STAND_INS: set[type] = set()


@functools.cache
def _stand_in_class(kind: Any) -> type:
    """A subclass of a noun's type that notes which fields are read. To anyone who asks, it is the type itself: what is made
    from it by `dataclasses.replace` is an ordinary noun."""
    names = frozenset(item.name for item in dataclasses.fields(kind))
    own = object.__getattribute__

    def look(self: Any, name: str) -> Any:
        if name in names:
            own(self, "_reads").add(name)
        elif name == "__class__":
            return kind
        return own(self, name)

    made = type(f"StandIn{kind.__name__}", (kind,), {"__slots__": ("_noun", "_reads"), "__getattribute__": look})
    _STAND_INS.add(made)
    return made


def _stand_in(noun: Any) -> Any:
    kind: Any = type(noun)
    made: Any = object.__new__(_stand_in_class(kind))
    for item in dataclasses.fields(noun):
        object.__setattr__(made, item.name, getattr(noun, item.name))
    object.__setattr__(made, "_reads", set())
    object.__setattr__(made, "_noun", noun)
    return made


def _noun_of(stand_in: Any) -> Any:
    return object.__getattribute__(stand_in, "_noun")


def _reads_of(stand_in: Any) -> set[str]:
    found: set[str] = object.__getattribute__(stand_in, "_reads")
    return found
