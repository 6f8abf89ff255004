"""Remembers the answers of pure functions on everything they were given.

Nobody writes keys. Numbers, words and small nouns count by value, a tuple by the identity of its members, anything else by its
own; arguments are held as long as the answer, so that an identity stays its owner's. A step that needs only some fields of a
plan is given a plan that has only these (`Parallelism.only`), so what it can see is what it is remembered by.
"""

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar, cast

from traincast.errors import TraincastError

Answer = TypeVar("Answer")


class Remember(Protocol):
    """Calls a step with its arguments, or gives back what it gave before."""

    def __call__(self, step: Callable[..., Answer], /, *arguments: Any) -> Answer: ...


def compute(step: Callable[..., Answer], /, *arguments: Any) -> Answer:
    """Remembers nothing."""
    return step(*arguments)


class Memo:
    """Remembers the answers of steps, the refusals among them."""

    def __init__(self, *, by_value: tuple[type, ...] = (), most: int = 100_000) -> None:
        """`by_value`: nouns that count by value. `most`: answers after which everything is forgotten."""
        self._by_value = frozenset(by_value)
        self._most = most
        self._known: dict[Hashable, tuple[Any, TraincastError | None, tuple[Any, ...]]] = {}

    def __call__(self, step: Callable[..., Answer], /, *arguments: Any) -> Answer:
        key = (step, *map(self._name, arguments))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self._most:
                self.forget()
            try:
                found = step(*arguments), None, arguments
            except TraincastError as refusal:
                found = None, refusal, arguments
            self._known[key] = found
        answer, refused, _ = found
        if refused is not None:
            raise refused.with_traceback(None)
        return cast(Answer, answer)

    def _name(self, value: Any) -> Hashable:
        """1, 1.0 and True are three."""
        kind = type(value)
        if kind is tuple:
            return tuple(map(id, value))
        if kind in _NUMBERS_AND_WORDS:
            return kind, value
        return value if kind in self._by_value else id(value)

    def forget(self) -> None:
        """Let go of everything."""
        self._known = {}

    def __len__(self) -> int:
        return len(self._known)


_NUMBERS_AND_WORDS = frozenset({int, float, str, bool, type(None)})
