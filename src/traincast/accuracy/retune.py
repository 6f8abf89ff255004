"""Measured cases to the constants of the stacks that ran them: first per framework, then per framework and device."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traincast.accuracy.cases import Case, Measured
from traincast.accuracy.translate import translate
from traincast.catalog.stacks import stack
from traincast.cost import OpModel
from traincast.cost.pricing import Pricing
from traincast.cost.stack import TUNABLE, read_constants, with_constants
from traincast.errors import TraincastError
from traincast.forecast.tune import COMMUNICATING, MAX_STEPS, KnownStep, know_step, tune
from traincast.spec import Stack

Group = tuple[str | None, str | None]

MIN_ROWS = 3
"""Fewer rows of one device say more about their jobs than about the device."""
OWN_SHARE = 0.5
"""How far a device's constants may leave its framework's, beside how far those may leave the prior."""
NETWORK_SHARE = 2.0
"""How far the constants of communication may leave theirs where computation is held: nothing else can take the blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A measured case, lowered and priced once."""

    case: Case
    step: KnownStep
    start: Stack
    """The constants that it is answered with where nothing is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The constants to use for a case; where a framework has none, `start`, or what ships for its stack."""

    groups: Mapping[Group, Stack] = field(default_factory=dict)
    start: Stack | None = None

    def stack_of(self, case: Case, name: str) -> Stack:
        for group in ((case.framework, case.gpu), (case.framework, None)):
            if group in self.groups:
                return self.groups[group]
        return self.start or stack(name)


def prepare(known: Sequence[Measured], *, ops: OpModel, prior: Stack | None = None) -> list[Lesson]:
    """The rows that can be answered at all. `prior`: the constants to start from; by default what ships for each stack."""
    lessons: list[Lesson] = []
    for row in known:
        try:
            question = translate(row.case)
            step = know_step(question.job, question.cluster, question.parallelism, row.step_s, costs=Pricing(ops=ops))
        except TraincastError as error:
            logging.getLogger(__name__).info("%s teaches nothing: %s", row.case.case_id, error)
            continue
        lessons.append(Lesson(case=row.case, step=step, start=prior or question.job.stack))
    return lessons


def retune(
    lessons: Sequence[Lesson], *, prior: Stack | None = None, rounds: int = 8, max_steps: int = MAX_STEPS
) -> Tuned:
    """Constants moved from where the lessons start towards what was measured."""
    steps: dict[Group, list[KnownStep]] = {}
    starts: dict[str | None, Stack] = {}
    for lesson in lessons:
        steps.setdefault((lesson.case.framework, lesson.case.gpu), []).append(lesson.step)
        starts[lesson.case.framework] = lesson.start
    groups: dict[Group, Stack] = {}
    narrow = {name: OWN_SHARE * width for name, width in TUNABLE.items()}
    for framework, start in starts.items():
        own = {group: rows for group, rows in steps.items() if group[0] == framework}
        together = [step for rows in own.values() for step in rows]
        groups[framework, None] = tune(start, together, rounds=rounds, max_steps=max_steps)
        for group, rows in own.items():
            if len(own) > 1 and len(rows) >= MIN_ROWS:
                common = groups[framework, None]
                groups[group] = tune(common, rows, spreads=narrow, rounds=min(5, rounds), max_steps=max_steps)
    return Tuned(groups=groups, start=prior)


def retune_network(tuned: Tuned, lessons: Sequence[Lesson], *, rounds: int = 8, max_steps: int = MAX_STEPS) -> Tuned:
    """The constants of communication again and alone, for each device from where they started: the links of one machine say
    nothing about those of another. `lessons`: steps of many devices, their computation held to what was measured of it."""
    spreads = {name: NETWORK_SHARE * TUNABLE[name] for name in COMMUNICATING}
    starts = {one.case.framework: one.start for one in lessons}
    groups = dict(tuned.groups)
    for group, found in tuned.groups.items():
        framework, device = group
        own = [
            one.step for one in lessons if one.case.framework == framework and one.case.gpu == (device or one.case.gpu)
        ]
        if framework not in starts or (device is None and any(other[0] == framework and other[1] for other in groups)):
            continue
        network = {name: value for name, value in read_constants(starts[framework]).items() if name in COMMUNICATING}
        groups[group] = tune(with_constants(found, network), own, spreads=spreads, rounds=rounds, max_steps=max_steps)
    return Tuned(groups=groups, start=tuned.start)
