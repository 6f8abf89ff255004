"""A policy to the rules by which the event loop serves it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from traincast.noun import noun
from traincast.schedule._estimators import Beliefs, Fixed
from traincast.schedule._jobs import Floats, JobTable
from traincast.schedule._lines import Key
from traincast.schedule._loop import ASKED, BY_KEY, BY_LEVEL, BY_REMAINING, BY_SERVICE, EASY, HEAD, PREEMPT, SKIP
from traincast.schedule._policies import (
    ByKey,
    ByScore,
    LeastAttained,
    by_deadline,
    by_estimate,
    by_expected_service,
    by_priority,
    by_remaining,
    by_remaining_service,
    by_submission,
)
from traincast.schedule._protocols import RoundPolicy

_MOVING = {by_remaining: BY_REMAINING, by_remaining_service: BY_SERVICE}
_FITS = {"head": HEAD, "skip": SKIP, "easy": EASY}
_COLUMNS: dict[Key, Callable[[JobTable, Floats], Floats]] = {
    by_submission: lambda jobs, estimate: jobs.submit_s,
    by_priority: lambda jobs, estimate: -jobs.priority,
    by_deadline: lambda jobs, estimate: np.where(np.isnan(jobs.deadline_s), np.inf, jobs.deadline_s),
    by_estimate: lambda jobs, estimate: estimate,
    by_expected_service: lambda jobs, estimate: estimate * jobs.num_gpus,
}
"""Keys that do not change while a job waits, as columns; the last two only where estimates are known before the run."""
_LEARNED = (by_estimate, by_expected_service)


@noun
class Rule:
    """`fit` and `order` as the loop knows them. A job's number in line stands in `column` or is asked for by `key` when it
    joins. Where the policy `asks` to be asked, the loop looks at the line through it."""

    policy: Any
    fit: int
    order: int = BY_KEY
    by_gpu: int = 0
    limits: tuple[float, ...] = ()
    column: Floats | None = None
    key: Key | None = None
    asks: bool = False


def find_rule(policy: Any, jobs: JobTable, estimate: Floats, beliefs: Beliefs) -> Rule:
    if isinstance(policy, RoundPolicy) or policy.fit not in _FITS:
        return Rule(policy=policy, fit=ASKED, asks=True)
    if isinstance(policy, LeastAttained):
        return Rule(policy=policy, fit=PREEMPT, order=BY_LEVEL, by_gpu=int(policy.by_gpu), limits=policy.limits)
    fixed = isinstance(beliefs, Fixed)
    if isinstance(policy, ByScore) and fixed:
        return Rule(policy=policy, fit=_FITS[policy.fit], column=policy.column(jobs, estimate))
    if isinstance(policy, ByKey):
        known = policy.key in _COLUMNS and (fixed or policy.key not in _LEARNED)
        column = _COLUMNS[policy.key](jobs, estimate) if known else None
        if policy.preemptive:
            if policy.key in _MOVING:
                return Rule(policy=policy, fit=PREEMPT, order=_MOVING[policy.key])
            if known and policy.key not in _LEARNED:
                return Rule(policy=policy, fit=PREEMPT, column=column)
        elif known or policy.fit != "easy":
            return Rule(policy=policy, fit=_FITS[policy.fit], column=column, key=None if known else policy.key)
    fit = PREEMPT if policy.preemptive else _FITS[policy.fit]
    return Rule(policy=policy, fit=fit, asks=True)
