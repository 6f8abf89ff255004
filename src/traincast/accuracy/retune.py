"""Measured cases to the constants of the stacks that ran them: first per framework, then per framework and device."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traincast.accuracy.cases import Case, Measured
from traincast.accuracy.translate import Question, translate
from traincast.cost import OpModel
from traincast.cost.pricing import Pricing
from traincast.cost.stack import TUNABLE, Stack, stack
from traincast.errors import TraincastError
from traincast.forecast.tune import KnownStep, know_step, tune

Group = tuple[str | None, str | None]

MIN_ROWS = 3
"""Fewer rows of one device say more about their jobs than about the device."""
OWN_SHARE = 0.5
"""How far a device's constants may leave its framework's, beside how far those may leave the prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The constants to use for a case."""

    groups: Mapping[Group, Stack] = field(default_factory=dict)

    def stack_of(self, case: Case, question: Question) -> Stack:
        for group in ((case.framework, case.gpu), (case.framework, None)):
            if group in self.groups:
                return self.groups[group]
        return stack(question.job.stack)


def retune(known: Sequence[Measured], *, ops: OpModel, prior: Stack | None = None) -> Tuned:
    """Constants moved to the known cases. `prior`: where they start; by default at what ships for each stack."""
    steps: dict[Group, list[KnownStep]] = {}
    starts: dict[str | None, Stack] = {}
    for row in known:
        try:
            question = translate(row.case)
            step = know_step(question.job, question.cluster, question.parallelism, row.step_s, costs=Pricing(ops=ops))
        except TraincastError as error:
            logging.getLogger(__name__).info("%s teaches nothing: %s", row.case.case_id, error)
            continue
        steps.setdefault((row.case.framework, row.case.gpu), []).append(step)
        starts[row.case.framework] = prior or stack(question.job.stack)
    groups: dict[Group, Stack] = {}
    for framework, start in starts.items():
        own = {group: rows for group, rows in steps.items() if group[0] == framework}
        together = [step for rows in own.values() for step in rows]
        groups[framework, None] = tune(start, together)
        narrow = {name: OWN_SHARE * width for name, width in TUNABLE.items()}
        for group, rows in own.items():
            if len(own) > 1 and len(rows) >= MIN_ROWS:
                groups[group] = tune(groups[framework, None], rows, spreads=narrow, rounds=5)
    return Tuned(groups=groups)
