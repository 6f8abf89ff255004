"""How far given measurements may move a forecast: never further than they prove themselves on each other.

For every asked row there are three answers: ignore what is given; move the constants of its stack; also correct it by the errors
of near rows. Which one is used is decided by the given rows alone, before any asked row is answered:

1. What is new about the asked row beside the given rows of its framework: the device, the model, a larger model, more devices.
2. The given rows are left out in the same way (one device, one model, the largest models, the largest scales; blocks of rows
   where nothing is new or there is too little to leave out) and each answer is scored by its mean absolute log error on them.
3. Another answer than "ignore" must be better by GAIN of the error and by one standard error of the paired difference; of those
   the best is taken, a simpler one where it is nearly as good. For a new device or model "ignore" must also be off by more
   than repeats of one step are (NOISE_FLOOR).
4. A new device or model that the given rows could not rehearse, or that is new in scale too, is not corrected by near rows,
   because there are none; nor do rows of a single device move the constants for another.

A row of a framework that is not among the given rows is answered as if nothing were given. With fewer than MIN_LESSONS rows
nothing can be rehearsed: the constants stay, and only rows of a known device and model are corrected.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from traincast.accuracy.cases import Case
from traincast.accuracy.given import Known, correct
from traincast.accuracy.predictions import Prediction
from traincast.accuracy.retune import Lesson, Tuned, retune
from traincast.cost.stack import Stack

MIN_LESSONS = 6
MIN_GROUP = 2
"""Rows that make a device, model or scale worth leaving out."""
MAX_FOLDS = 3
FOLD_LESSONS, FOLD_ASKED = 100, 30
FOLD_STEPS, FOLD_ROUNDS = 32, 3
"""A rehearsal moves constants on fewer rows and in fewer rounds than the real fit."""
GAIN = 0.1
NOISE_FLOOR = 0.06
"""Repeats of one step differ by 2 to 6%: an error below that leaves nothing to carry over to a strange device or model."""
SIMPLER = 0.03
LARGER = 1.5
"""A scale or a model's size is new beyond this multiple of the largest given."""

Novelty = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What may be used for an asked row."""

    constants: bool = False
    near: bool = False


IGNORE = Verdict()
CHOICES = (IGNORE, Verdict(constants=True), Verdict(constants=True, near=True))
"""From the simplest. Near rows without moved constants are no choice: errors of one node that are really the host's would be
carried to many nodes as if they were the device's, and no row of one node could tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the given rows of one framework hold."""

    models: frozenset[str | None]
    devices: frozenset[str]
    most_devices: int
    most_params: float = math.inf

    def novelty_of(self, case: Case) -> Novelty:
        found = set()
        if case.gpu not in self.devices:
            found.add("device")
        if case.model not in self.models:
            found.add("size" if (case.params or 0.0) > LARGER * self.most_params else "model")
        if (case.n_gpus or 1) > LARGER * self.most_devices:
            found.add("scale")
        return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What was learnt from given rows, and for which rows it may be used."""

    tuned: Tuned = field(default_factory=Tuned)
    scopes: Mapping[str | None, Scope] = field(default_factory=dict)
    verdicts: Mapping[tuple[str | None, Novelty], Verdict] = field(default_factory=dict)

    def verdict_of(self, case: Case) -> Verdict:
        scope = self.scopes.get(case.framework)
        return self.verdicts.get((case.framework, scope.novelty_of(case)), IGNORE) if scope else IGNORE

    def stack_of(self, case: Case, name: str) -> Stack:
        """The constants that an asked row is answered with."""
        return (self.tuned if self.verdict_of(case).constants else self.ignoring).stack_of(case, name)

    @property
    def ignoring(self) -> Tuned:
        return Tuned(start=self.tuned.start)

    def teach(self, lessons: Sequence[Lesson], *, constants: bool) -> list[Known]:
        """The lessons beside what would have been answered, with or without moved constants."""
        moved = self.tuned if constants else None
        return [
            Known(case=one.case, prediction=_answer(one, moved), step_s=one.step.seconds)
            for one in lessons
            if not constants or (one.case.framework, None) in self.tuned.groups
        ]


def weigh(lessons: Sequence[Lesson], asked: Sequence[Case], *, prior: Stack | None = None) -> Grant:
    """Learn from the lessons, and decide for every sort of asked row what of it is used."""
    scopes: dict[str | None, Scope] = {}
    verdicts: dict[tuple[str | None, Novelty], Verdict] = {}
    for framework in dict.fromkeys(lesson.case.framework for lesson in lessons):
        own = [lesson for lesson in lessons if lesson.case.framework == framework]
        scope = scopes[framework] = Scope(
            models=frozenset(lesson.case.model for lesson in own),
            devices=frozenset(lesson.case.gpu for lesson in own),
            most_devices=max(lesson.case.n_gpus or 1 for lesson in own),
            most_params=max(lesson.case.params or math.inf for lesson in own),
        )
        scores: dict[str, list[list[float]]] = {}
        for novelty in dict.fromkeys(scope.novelty_of(case) for case in asked if case.framework == framework):
            verdicts[framework, novelty] = _judge(own, novelty, scores)
    moving = {framework for (framework, _), verdict in verdicts.items() if verdict.constants}
    tuned = retune([lesson for lesson in lessons if lesson.case.framework in moving], prior=prior)
    return Grant(tuned=tuned, scopes=scopes, verdicts=verdicts)


def _judge(lessons: Sequence[Lesson], novelty: Novelty, scores: dict[str, list[list[float]]]) -> Verdict:
    strange = novelty & {"device", "model", "size"}
    if len(lessons) < MIN_LESSONS:
        return Verdict(near=not strange)
    rehearsed = [name for name in ("device", "size", "model", "scale") if name in novelty and _groups(lessons, name)]
    if "device" in novelty and "device" not in rehearsed:
        # Rows of one device cannot tell which of its constants are its own.
        return IGNORE
    how = rehearsed[0] if rehearsed else "block"
    if how not in scores:
        scores[how] = _rehearse(lessons, how)
    may_correct = strange <= set(rehearsed[:1]) and not (strange and "scale" in novelty)
    return choose(scores[how], may_correct=may_correct, floor=NOISE_FLOOR if strange else 0.0)


def choose(errors: Sequence[Sequence[float]], *, may_correct: bool, floor: float = 0.0) -> Verdict:
    """The verdict with the least of the absolute log errors (one list for each of CHOICES), if it is surely less. Errors that
    are on average below `floor` without anything given are left alone."""
    ignored = np.asarray(errors[0])
    if not len(ignored) or float(ignored.mean()) < floor:
        return IGNORE
    best, best_error = IGNORE, float(ignored.mean()) * (1 - GAIN)
    for verdict, found in zip(CHOICES[1:], errors[1:], strict=True):
        if verdict.near and not may_correct:
            continue
        gains = ignored - np.asarray(found)
        doubt = float(gains.std(ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
        error = float(np.mean(found))
        better = error < best_error * (1 - SIMPLER) if best is not IGNORE else error <= best_error
        if better and float(gains.mean()) > doubt:
            best, best_error = verdict, error
    return best


def _groups(lessons: Sequence[Lesson], name: str) -> list[list[int]]:
    """The places of the lessons to leave out together, one list for each fold; none where there is too little."""
    if name == "block":
        order = sorted(range(len(lessons)), key=lambda place: (_layout(lessons[place].case), place))
        return [part.tolist() for part in np.array_split(np.array(order), MAX_FOLDS)]
    values: dict[object, list[int]] = {}
    for place, lesson in enumerate(lessons):
        case = lesson.case
        value = {"device": case.gpu, "model": case.model, "scale": case.n_gpus or 1, "size": case.params or 0.0}[name]
        values.setdefault(value, []).append(place)
    if name in ("scale", "size"):
        # The larger is asked of the smaller, never the reverse.
        sizes = sorted(size for size in values if isinstance(size, (int, float)))
        large = [size for size in sizes[1:] if len(values[size]) >= MIN_GROUP][-2:]
        return [[place for size in sizes if size >= first for place in values[size]] for first in large]
    own = [places for places in values.values() if len(places) >= MIN_GROUP]
    if len(own) < 2:
        return []
    return [own[place] for place in np.linspace(0, len(own) - 1, min(MAX_FOLDS, len(own))).round().astype(int)]


def _layout(case: Case) -> tuple[str, ...]:
    return tuple(str(value) for value in (case.model, case.gpu, case.tp, case.pp, case.n_nodes, case.n_gpus))


def _rehearse(lessons: Sequence[Lesson], how: str) -> list[list[float]]:
    """Absolute log errors on left-out lessons, one list for each of CHOICES."""
    errors: list[list[float]] = [[] for _ in CHOICES]
    for known, asked in _folds(lessons, how):
        moved = retune(known, rounds=FOLD_ROUNDS, max_steps=FOLD_STEPS)
        plain = [_answer(one, moved) for one in asked]
        teachers = [Known(case=one.case, prediction=_answer(one, moved), step_s=one.step.seconds) for one in known]
        near = correct([one.case for one in asked], plain, teachers)
        for place, answers in enumerate(([_answer(one, None) for one in asked], plain, near)):
            errors[place] += [
                abs(math.log((answer.step_s or math.nan) / one.step.seconds))
                for answer, one in zip(answers, asked, strict=True)
            ]
    return errors


def _folds(lessons: Sequence[Lesson], how: str) -> Iterator[tuple[list[Lesson], list[Lesson]]]:
    for places in _groups(lessons, how):
        out = set(places)
        known = [lesson for place, lesson in enumerate(lessons) if place not in out]
        if known:
            yield _thin(known, FOLD_LESSONS), _thin([lessons[place] for place in places], FOLD_ASKED)


def _thin(lessons: Sequence[Lesson], most: int) -> list[Lesson]:
    if len(lessons) <= most:
        return list(lessons)
    return [lessons[place] for place in np.linspace(0, len(lessons) - 1, most).round().astype(int)]


def _answer(lesson: Lesson, moved: Tuned | None) -> Prediction:
    software = moved.stack_of(lesson.case, lesson.start.name) if moved else lesson.start
    timeline = lesson.step.simulate(software)
    shares = timeline.shares
    return Prediction(
        case_id=lesson.case.case_id,
        step_s=timeline.duration_s,
        compute_share=shares["compute"],
        memory_share=shares["memory"],
        communication_share=shares["communication"],
        host_share=shares["host"],
        bubble_share=shares["bubble"],
    )
