"""Whether it is said rightly that a run fits: `benchmarks/memory.py cases` prints this for sweeps that say what failed."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from memory import Seen, profile_of


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of one row: how sure it fits, and whether any moment of its step comes near the device."""

    case: Seen
    probability: float
    needed_share: float
    """Of the device, of the fullest stage."""


def judge(cases: Sequence[Seen], overheads: Any) -> list[Verdict]:
    verdicts = []
    for case in cases:
        profiles = [profile_of(case, overheads, stage) for stage in range(len(case.stages))]
        worst = max(profiles, key=lambda profile: profile.needed_bytes, default=None)
        share = worst.needed_bytes / case.capacity_bytes if worst else math.inf
        verdicts.append(Verdict(case, worst.fit_probability if worst else 0.0, share))
    return verdicts


IMPOSSIBLE_SHARE = 0.5
"""A run predicted to need less than half of its device did not fail for lack of memory: no measured peak was twice what was
predicted but for a handful of runs."""


def score_fits(cases: Sequence[Seen], thresholds: Sequence[float] = (0.5, 0.75, 0.9, 0.95, 0.99)) -> None:
    from traincast.simulate import Overheads
    from traincast.spec import FIT_CONFIDENCE

    verdicts = judge(cases, Overheads.usual())
    failed = [verdict for verdict in verdicts if not verdict.case.ran]
    can_be = [verdict for verdict in failed if verdict.needed_share >= IMPOSSIBLE_SHARE]
    short = [verdict for verdict in failed if not verdict.case.excused]
    print(f"fits or fails: {len(verdicts)} rows, {len(failed)} failed, of which {len(failed) - len(can_be)} need less than "
          f"{IMPOSSIBLE_SHARE:.0%} of the device by prediction")  # fmt: skip
    print(f"  {len(failed) - len(short)} that failed are excused: a run that needs no less by construction ran")
    print(f"  {'said to fit from':<18}{'right':>8}{'false-safe':>12}{'of those that can be OOM':>26}"
          f"{'not excused':>15}{'false alarm':>13}")  # fmt: skip
    for threshold in thresholds:
        fits = [verdict.probability >= threshold for verdict in verdicts]
        right = sum(fit == verdict.case.ran for fit, verdict in zip(fits, verdicts, strict=True)) / len(verdicts)
        safe = sum(fit and not verdict.case.ran for fit, verdict in zip(fits, verdicts, strict=True))
        truly = sum(verdict.probability >= threshold for verdict in can_be)
        alone = sum(verdict.probability >= threshold for verdict in short)
        alarms = sum(not fit and verdict.case.ran for fit, verdict in zip(fits, verdicts, strict=True))
        print(f"  {threshold:<18}{right:>8.1%}{safe / len(failed):>12.1%}{truly / max(1, len(can_be)):>26.1%}"
              f"{alone / max(1, len(short)):>15.1%}{alarms / (len(verdicts) - len(failed)):>13.1%}")  # fmt: skip
    score_left_out_fits(verdicts)
    disputed = [v for v in verdicts if v.case.disputed]
    agreed = sum(v.probability < FIT_CONFIDENCE for v in disputed)
    print(
        f"  of {len(disputed)} rows that have numbers but are flagged as failed by their authors, {agreed} are said to fail"
    )
    counts = {
        (ran, fit): sum(v.case.ran == ran and (v.probability >= FIT_CONFIDENCE) == fit for v in verdicts)
        for ran in (True, False)
        for fit in (True, False)
    }
    print(f"  {'confusion':<18}{'said to fit':>12}{'said to fail':>14}")
    for ran, name in ((True, "ran"), (False, "failed")):
        print(f"  {name:<18}{counts[ran, True]:>12}{counts[ran, False]:>14}")
    print("  reliability: probability said, rows, share that ran")
    edges = [0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0000001]
    for low, high in itertools.pairwise(edges):
        inside = [v for v in verdicts if low <= v.probability < high and v.case.stages]
        if inside:
            print(
                f"    {low:.2f} to {min(high, 1):.2f}  {len(inside):>5}  {sum(v.case.ran for v in inside) / len(inside):.1%}"
            )


WEIGHT = 3.0
"""A run that is said to fit and fails costs as much as this many that are said to fail and would have run."""
GROUPINGS: dict[str, Callable[[Seen], Any]] = {
    "model": lambda case: case.model,
    "number of nodes": lambda case: case.num_nodes,
}


def choose_confidence(verdicts: Sequence[Verdict]) -> float:
    """The probability from which saying that a run fits is cheapest, on runs that can have failed for lack of memory."""

    def cost(threshold: float) -> float:
        own = [v for v in verdicts if v.case.ran or v.needed_share >= IMPOSSIBLE_SHARE]
        return sum((WEIGHT if not v.case.ran else 1.0) for v in own if (v.probability >= threshold) != v.case.ran)

    return min((step / 100 for step in range(50, 99)), key=lambda threshold: (cost(threshold), abs(threshold - 0.75)))


def score_left_out_fits(verdicts: Sequence[Verdict]) -> None:
    """Each group judged by the threshold that the others chose."""
    for name, group_of in GROUPINGS.items():
        right = safe = alarms = 0
        chosen = []
        for group in sorted({group_of(v.case) for v in verdicts}):
            threshold = choose_confidence([v for v in verdicts if group_of(v.case) != group])
            chosen.append(threshold)
            for v in verdicts:
                if group_of(v.case) == group:
                    fit = v.probability >= threshold
                    right += fit == v.case.ran
                    safe += fit and not v.case.ran
                    alarms += not fit and v.case.ran
        print(f"  threshold chosen without each {name}: {min(chosen):.2f} to {max(chosen):.2f}, "
              f"right {right / len(verdicts):.1%}, false-safe {safe}, false alarms {alarms}")  # fmt: skip
