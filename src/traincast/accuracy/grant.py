"""How far given measurements may move a forecast: never further than they prove themselves on each other.

For every asked row there are four answers, from the simplest: ignore what is given; let the job's own one-device steps say how
slow its computation is; also move the constants of its stack; also correct it by the errors of near rows. Which one is used
is decided by the given rows alone, before any asked row is answered:

1. What is new about the asked row beside the given rows of its framework: the device, the model, a larger model, more
   devices or nodes than any row, than any row of its device, or than any row of its model.
2. The given rows are left out in the same way (one device, one model, the largest models, the largest scales, the larger scales
   of one device or model) and each answer is scored by its absolute log error on them.
3. An answer is preferred to a simpler one where its gain is larger than one standard error, between rows and between what was
   left out together. Answers that cannot be told from the preferred one in this way are averaged with it: a choice between
   them would be a draw, and the error of their mean is never larger than the mean of their errors. To a strange device or
   model nothing is carried over where the simplest is already within the noise of one measurement.
4. What could not be rehearsed for want of a second device teaches nothing about another one; for want of a second model, only
   constants, by their errors on blocks of rows. Near rows of a strange model at a strange scale do not exist.

A row of a framework that is not among the given rows is answered as if nothing were given. With fewer than MIN_LESSONS rows
nothing can be rehearsed: the constants stay, and only rows of a known device and model are corrected.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from traincast.accuracy.anchor import Learned, anchor, choose_telling, learn
from traincast.accuracy.cases import Case
from traincast.accuracy.given import NOISE, Z90, Array, Known, correct
from traincast.accuracy.predictions import Prediction
from traincast.accuracy.retune import Lesson, Tuned
from traincast.spec.stack import Stack

MIN_LESSONS = 6
MIN_GROUP = 2
"""Rows that make a device, model or scale worth leaving out."""
MAX_FOLDS = 3
FOLD_LESSONS, FOLD_ASKED = 100, 30
FOLD_STEPS, FOLD_ROUNDS = 32, 3
"""A rehearsal moves constants on fewer rows and in fewer rounds than the real fit."""
MAX_STRETCH = 3.0
LARGER = 1.5
"""A scale or a model's size is new beyond this multiple of the largest given."""

KINDS = ("device", "size", "model", "scale", "device scale", "model scale")
"""What can be new about a case, the strangest first."""
Scale = tuple[int, int]
"""Devices and nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Novelty:
    """What is new about a case."""

    kinds: frozenset[str] = frozenset()
    reach: Scale | None = None
    """The largest given scale of its device or model, where only that is new."""

    @property
    def strange(self) -> frozenset[str]:
        return self.kinds & {"device", "model", "size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What may be used for an asked row."""

    profile: bool = False
    constants: bool = False
    near: bool = False
    spread: float = 0.0
    """Of the log errors of rows that were left out in the same way and answered so; 0: there were none."""
    stretch: float = 1.0
    """How many times larger than expected the errors of such rows were after they were corrected by near rows."""
    also: tuple["Verdict", ...] = ()
    """Answers that could not be told from this one: the mean of all of them is given."""

    def doubt(self, prediction: Prediction) -> Prediction:
        """The prediction with an interval that would have held nine of ten rows that were left out in the same way."""
        if prediction.step_s is None or not self.spread:
            return prediction
        spread = self.stretch * _spread(prediction) if self.near and not self.also else self.spread
        return replace(
            prediction,
            step_low_s=prediction.step_s * math.exp(-Z90 * spread),
            step_high_s=prediction.step_s * math.exp(Z90 * spread),
        )


IGNORE = Verdict()
CHOICES = (
    IGNORE,
    Verdict(profile=True),
    Verdict(profile=True, constants=True),
    Verdict(profile=True, constants=True, near=True),
)
"""From the simplest. Near rows without moved constants are no choice: errors of one node that are really the host's would be
carried to many nodes as if they were the device's, and no row of one node could tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Lessons left out together."""

    errors: tuple[Array, ...]
    """Log errors, for each of CHOICES."""
    spreads: Array
    """What the last of them expects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the given rows of one framework hold."""

    models: Mapping[str | None, Scale]
    """The largest scale of each."""
    devices: Mapping[str, Scale]
    most_params: float = math.inf

    def novelty_of(self, case: Case) -> Novelty:
        kinds = set()
        if case.gpu not in self.devices:
            kinds.add("device")
        if case.model not in self.models:
            kinds.add("size" if (case.params or 0.0) > LARGER * self.most_params else "model")
        everything = _largest(self.devices.values())
        if _beyond(case, everything):
            kinds.add("scale")
        if kinds:
            return Novelty(kinds=frozenset(kinds))
        for kind, reach in (("device scale", self.devices[case.gpu]), ("model scale", self.models[case.model])):
            if _beyond(case, reach):
                return Novelty(kinds=frozenset({kind}), reach=reach)
        return Novelty()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What was learnt from given rows, and for which rows it may be used."""

    plain: Learned = field(default_factory=Learned)
    """With the constants left where they were."""
    moved: Learned = field(default_factory=Learned)
    scopes: Mapping[str | None, Scope] = field(default_factory=dict)
    verdicts: Mapping[tuple[str | None, Novelty], Verdict] = field(default_factory=dict)

    def verdict_of(self, case: Case) -> Verdict:
        scope = self.scopes.get(case.framework)
        return self.verdicts.get((case.framework, scope.novelty_of(case)), IGNORE) if scope else IGNORE

    def stack_of(self, case: Case, name: str) -> Stack:
        """The constants that an asked row is answered with."""
        return self.stack_for(self.verdict_of(case), case, name)

    def stack_for(self, verdict: Verdict, case: Case, name: str) -> Stack:
        return (self.moved if verdict.constants else self.plain).stack_of(case, name, profile=verdict.profile)

    def teach(self, lessons: Sequence[Lesson], *, constants: bool) -> list[Known]:
        """The lessons beside what would have been answered, with or without moved constants."""
        if not constants:
            return _teach(lessons, self.plain)
        groups = self.moved.tuned.groups
        return _teach([one for one in lessons if (one.case.framework, None) in groups], self.moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneAnswer:
    """A grant of which the same answer is used for every row."""

    grant: Grant
    verdict: Verdict

    def stack_of(self, case: Case, name: str) -> Stack:
        return self.grant.stack_for(self.verdict, case, name)


def weigh(lessons: Sequence[Lesson], asked: Sequence[Case], *, prior: Stack | None = None) -> Grant:
    """Learn from the lessons, and decide for every sort of asked row what of it is used."""
    scopes: dict[str | None, Scope] = {}
    verdicts: dict[tuple[str | None, Novelty], Verdict] = {}
    for framework in dict.fromkeys(lesson.case.framework for lesson in lessons):
        own = [lesson for lesson in lessons if lesson.case.framework == framework]
        scope = scopes[framework] = read_scope([lesson.case for lesson in own])
        rehearsals: dict[object, list[Fold]] = {}
        for novelty in dict.fromkeys(scope.novelty_of(case) for case in asked if case.framework == framework):
            verdicts[framework, novelty] = _judge(own, novelty, rehearsals)
    moving = {
        framework
        for (framework, _), verdict in verdicts.items()
        if any(one.constants for one in (verdict, *verdict.also))
    }
    start = Tuned(start=prior)
    return Grant(
        plain=Learned(tuned=start, anchors=anchor(lessons, start)),
        moved=learn([lesson for lesson in lessons if lesson.case.framework in moving], prior=prior),
        scopes=scopes,
        verdicts=verdicts,
    )


def read_scope(cases: Sequence[Case]) -> Scope:
    models: dict[str | None, list[Scale]] = {}
    devices: dict[str, list[Scale]] = {}
    for case in cases:
        models.setdefault(case.model, []).append(_scale(case))
        devices.setdefault(case.gpu, []).append(_scale(case))
    return Scope(
        models={name: _largest(scales) for name, scales in models.items()},
        devices={name: _largest(scales) for name, scales in devices.items()},
        most_params=max(case.params or math.inf for case in cases),
    )


def _judge(lessons: Sequence[Lesson], novelty: Novelty, rehearsals: dict[object, list[Fold]]) -> Verdict:
    if len(lessons) < MIN_LESSONS:
        return Verdict(profile=True, near=not novelty.strange)
    rehearsed = [kind for kind in KINDS if kind in novelty.kinds and len(_groups(lessons, kind, novelty.reach)) > 1]
    if "device" in novelty.kinds and "device" not in rehearsed:
        # Rows of one device cannot tell which of its constants are its own.
        return IGNORE
    how = rehearsed[0] if rehearsed else "block"
    key = how, novelty.reach
    if key not in rehearsals:
        rehearsals[key] = _rehearse(lessons, how, novelty.reach)
    may_correct = novelty.strange <= set(rehearsed[:1]) and not (novelty.strange and "scale" in novelty.kinds)
    # Blocks of rows take a job's profile away with the job, and so say nothing against it.
    floor = NOISE if novelty.strange else 0.0
    verdict = choose(rehearsals[key], first=0 if rehearsed else 1, may_correct=may_correct, floor=floor)
    return calibrate(verdict, rehearsals[key]) if rehearsed else verdict


def choose(folds: Sequence[Fold], *, first: int = 0, may_correct: bool = True, floor: float = 0.0) -> Verdict:
    """The most elaborate of CHOICES from the first that is surely better than the simpler ones; the first where its errors are
    on average below the floor."""
    best = first
    if folds and float(np.abs(np.concatenate([fold.errors[first] for fold in folds])).mean()) < floor:
        return CHOICES[first]
    allowed = [place for place in range(first, len(CHOICES)) if may_correct or not CHOICES[place].near]
    for place in allowed[1:]:
        if _surely_better(folds, place, best):
            best = place
    return replace(CHOICES[best], also=tuple(CHOICES[place] for place in _alike(folds, allowed, best)))


def _alike(folds: Sequence[Fold], places: Sequence[int], best: int) -> list[int]:
    """The answers that are neither surely better nor surely worse than the best one, each once: without a profile, or without
    anything learnt, several are one and the same."""
    found: list[int] = []
    if len(folds) < 2:
        return found
    for place in places:
        same = (all(np.allclose(fold.errors[place], fold.errors[one]) for fold in folds) for one in (best, *found))
        if not any(same) and not _surely_better(folds, place, best) and not _surely_better(folds, best, place):
            found.append(place)
    return found


def _surely_better(folds: Sequence[Fold], place: int, than: int) -> bool:
    """By more than one standard error, between rows as between folds: the errors of one device or model are alike."""
    gains = [
        np.subtract(np.abs(fold.errors[than]), np.abs(fold.errors[place])) for fold in folds if len(fold.errors[place])
    ]
    if not gains:
        return False

    def surely_positive(values: Array) -> bool:
        return len(values) > 1 and float(values.mean()) > float(values.std(ddof=1)) / math.sqrt(len(values))

    return surely_positive(np.concatenate(gains)) and surely_positive(np.array([gain.mean() for gain in gains]))


def calibrate(verdict: Verdict, folds: Sequence[Fold]) -> Verdict:
    team = [CHOICES.index(replace(one, also=())) for one in (verdict, *verdict.also)]
    errors = np.abs(np.concatenate([np.mean([fold.errors[place] for place in team], axis=0) for fold in folds]))
    if verdict == IGNORE or len(errors) < MIN_LESSONS:
        return verdict
    expected = np.concatenate([fold.spreads for fold in folds])
    return replace(
        verdict,
        spread=max(NOISE, float(np.quantile(errors, 0.9)) / Z90),
        stretch=min(MAX_STRETCH, max(1.0, float(np.quantile(errors / expected, 0.9)) / Z90)),
    )


def _spread(prediction: Prediction) -> float:
    return math.log((prediction.step_high_s or math.nan) / (prediction.step_low_s or math.nan)) / (2 * Z90)


def _scale(case: Case) -> Scale:
    return case.n_gpus or 1, case.n_nodes or 1


def _largest(scales: Iterable[Scale]) -> Scale:
    found = list(scales)
    return max(devices for devices, _ in found), max(nodes for _, nodes in found)


def _beyond(case: Case, reach: Scale) -> bool:
    devices, nodes = _scale(case)
    return devices > LARGER * reach[0] or nodes > LARGER * reach[1]


def _groups(lessons: Sequence[Lesson], kind: str, reach: Scale | None) -> list[list[int]]:
    """The places of the lessons to leave out together, one list for each fold; none where there is too little."""
    if kind == "block":
        order = sorted(range(len(lessons)), key=lambda place: (_layout(lessons[place].case), place))
        return [part.tolist() for part in np.array_split(np.array(order), MAX_FOLDS)]
    values: dict[object, list[int]] = {}
    for place, lesson in enumerate(lessons):
        case = lesson.case
        if reach is not None and not _beyond(case, reach):
            # What is known of the asked device or model at its own small scale stays known of the others, too.
            continue
        name = kind.removesuffix(" scale")
        value = {"device": case.gpu, "model": case.model, "scale": case.n_gpus or 1, "size": case.params or 0.0}[name]
        values.setdefault(value, []).append(place)
    if kind in ("scale", "size"):
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


def _rehearse(lessons: Sequence[Lesson], how: str, reach: Scale | None) -> list[Fold]:
    """What each answer would have been worth on lessons left out."""
    found: list[Fold] = []
    start = Tuned(start=lessons[0].start)
    for known, asked in _folds(lessons, how, reach):
        plain = Learned(tuned=start, anchors=anchor(known, start))
        moved = learn(known, rounds=FOLD_ROUNDS, max_steps=FOLD_STEPS)
        better = [_answer(one, moved) for one in asked]
        near = correct([one.case for one in asked], better, _teach(known, moved))
        answers = (
            [_answer(one, plain, profile=False) for one in asked],
            [_answer(one, plain) for one in asked],
            better,
            near,
        )
        found.append(
            Fold(
                errors=tuple(
                    np.array(
                        [
                            math.log((answer.step_s or math.nan) / one.step.seconds)
                            for answer, one in zip(row, asked, strict=True)
                        ]
                    )
                    for row in answers
                ),
                spreads=np.array([_spread(answer) for answer in near]),
            )
        )
    return found


def _folds(lessons: Sequence[Lesson], how: str, reach: Scale | None) -> Iterator[tuple[list[Lesson], list[Lesson]]]:
    for places in _groups(lessons, how, reach):
        out = set(places)
        asked = _thin([lessons[place] for place in places], FOLD_ASKED)
        known = [lesson for place, lesson in enumerate(lessons) if place not in out]
        if known:
            cases = [one.case for one in known], [one.case for one in asked]
            yield [known[place] for place in choose_telling(*cases, FOLD_LESSONS)], asked


def _thin(lessons: Sequence[Lesson], most: int) -> list[Lesson]:
    if len(lessons) <= most:
        return list(lessons)
    return [lessons[place] for place in np.linspace(0, len(lessons) - 1, most).round().astype(int)]


def _teach(lessons: Sequence[Lesson], learned: Learned) -> list[Known]:
    """The lessons beside what would have been answered."""
    return [Known(case=one.case, prediction=_answer(one, learned), step_s=one.step.seconds) for one in lessons]


def _answer(lesson: Lesson, learned: Learned, *, profile: bool = True) -> Prediction:
    timeline = lesson.step.simulate(learned.stack_of(lesson.case, lesson.start.name, profile=profile))
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
