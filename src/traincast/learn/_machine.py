"""Learns one machine from a few minutes on it: design -> measure -> store -> fit -> report."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.learn._calibrations import to_machine_rates
from traincast.learn._choose import choose_loads, expected_cost_s
from traincast.learn._fit import Fit, Peaks, refit, start_fit
from traincast.learn._loads import Candidates, Load, operator_load
from traincast.profile import Progress, Protocol, Subject, Visit, measure, steady_seconds
from traincast.spec import Environment, MachineRates, Op
from traincast.store import Store
from traincast.units import NORMAL_90

Array = NDArray[np.float64]
LARGE_COPY_BYTES = 2**24
"""More than the caches of one core hold."""


def keep(visits: Iterable[Visit], store: Store, environment: Environment) -> Iterator[Visit]:
    """Write each finished block down before the next begins: a run killed later loses nothing finished."""
    for visit in visits:
        if visit.block is not None:
            store.append(visit.experiment, environment, visit.block)
        yield visit


def run_subjects(
    subjects: Sequence[Subject],
    *,
    store: Store,
    environment: Environment,
    protocol: Protocol,
    canary: Callable[[], float] | None = None,
    progress: Progress | None = None,
    budget_s: float = math.inf,
) -> Iterator[Visit]:
    """Measure into the store, leaving out what it already holds, until all is done or the budget is spent."""
    started = time.monotonic()
    visits = measure(
        subjects,
        protocol=protocol,
        canary=canary,
        progress=progress,
        num_done=lambda experiment: store.num_blocks(experiment, environment),
    )
    for visit in keep(visits, store, environment):
        yield visit
        if time.monotonic() - started > budget_s:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Relative errors on measurements that were not fitted, and the share of them that the 90% interval holds."""

    num_cases: int
    mean: float
    median: float
    worst: float
    coverage: float | None = None

    @staticmethod
    def of(predicted: Array, measured: Sequence[float], log_spread: Array | None = None) -> "Score":
        errors = np.abs(predicted / np.asarray(measured) - 1)
        off = np.abs(np.log(predicted / np.asarray(measured)))
        held = None if log_spread is None else float(np.mean(off <= NORMAL_90 * log_spread))
        return Score(
            num_cases=len(errors), mean=float(errors.mean()), median=float(np.median(errors)), worst=float(errors.max()),
            coverage=held,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a calibration brought, and on what it was checked."""

    calibration: MachineRates
    before: Score
    after: Score
    num_operators: int
    num_steps: int
    measuring_s: float
    unmeasured: tuple[str, ...] = ()
    width: float = 0.0
    """Typical half-width of the 90% interval of a held-out step, relative."""


def find_peaks(loads: Sequence[Load], seconds_of: Mapping[str, float]) -> Peaks:
    """The best rates any measured operator reached; without any, those of a plain core."""
    flop_rates, byte_rates, large_copies = [], [], []
    for load in loads:
        took = seconds_of.get(load.experiment.key)
        if took and not load.is_step:
            flop_rates.append((load.ops[0].flop or 0.0) / took)
            byte_rates.append(load.ops[0].num_bytes / took)
            if load.ops[0].kind == "copy" and load.ops[0].num_bytes >= LARGE_COPY_BYTES:
                large_copies.append(took / load.ops[0].num_bytes)
    best = max(byte_rates, default=5e9)
    # Never nothing: a copy that ran from memory at the best rate of all says that caches were not seen, not that there are none.
    cold = max(max(large_copies) - 1 / best, 0.05 / best) if large_copies else None
    return Peaks(flop_per_s=max(flop_rates, default=2e10), bytes_per_s=best, cold_s_per_byte=cold)


def anchors() -> list[Load]:
    """The few operators that show the peaks of a machine."""
    from traincast.profile import experiment_of

    ops = [
        Op(
            name="mm", kind="matmul", flop=2.0 * size**3, bytes_read=8.0 * size**2, bytes_written=4.0 * size**2,
            attrs={"batch": 1, "m": size, "n": size, "k": size, "layout": "tn"},
        )
        for size in (256, 384, 512)
    ]  # fmt: skip
    ops += [
        Op(
            name="copy", kind="copy", flop=0.0, bytes_read=4.0 * numel, bytes_written=4.0 * numel,
            attrs={"function": "copy", "numel": numel},
        )
        for numel in (2**16, 2**20, 2**22)
    ]  # fmt: skip
    return [operator_load(experiment_of(op)) for op in ops]


def seconds_by_key(store: Store, environment: Environment) -> dict[str, float]:
    """What this machine, with this software and these settings, took for everything measured so far, its drift taken out."""
    found = store.measurements(device=environment.device, machine=environment.machine)
    steadied = steady_seconds([each for each in found if each.environment == environment])
    return {key: each.seconds for key, each in steadied.items()}


def calibrate_machine(
    candidates: Candidates,
    *,
    name: str,
    store: Store,
    environment: Environment,
    prepare: Callable[[Sequence[Load]], Sequence[Subject]],
    budget_s: float,
    target_width: float = 0.0,
    protocol: Protocol,
    canary: Callable[[], float] | None = None,
    progress: Progress | None = None,
    num_plans: int = 3,
    method: str = "d-optimal",
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Plan, measure and fit in turns until the budget is spent or the intervals are narrow enough; then check.

    The budget pays for what is fitted. The steps kept for the check are visited between the turns, on time of their own.
    """
    failures: dict[str, str] = {}
    spent_s = 0.0

    def visit(loads: Sequence[Load], *, limit_s: float, protocol: Protocol = protocol) -> float:
        started = time.monotonic()
        for done in run_subjects(
            prepare(loads), store=store, environment=environment, protocol=protocol, canary=canary, progress=progress,
            budget_s=limit_s,
        ):  # fmt: skip
            if done.failure:
                failures[done.experiment.key] = done.failure
        return time.monotonic() - started

    marks = anchors()
    say("measuring the peaks of the machine")
    spent_s += visit(marks, limit_s=budget_s)
    peaks = find_peaks(marks, seconds_by_key(store, environment))
    loads = [*candidates.loads, *marks]
    first = start_fit([*loads, *candidates.held_out], peaks)
    fit, measured, seconds = first, list[Load](), list[float]()
    ratio = 1.0
    for turn in range(num_plans):
        seconds_of = seconds_by_key(store, environment)
        known = [index for index, load in enumerate(loads) if load.experiment.key in seconds_of]
        closed = [index for index, load in enumerate(loads) if load.experiment.key in failures]
        left_s = budget_s - spent_s
        if left_s <= 0:
            break
        share_s = left_s / (num_plans - turn)
        costs = [ratio * expected_cost_s(load, fit, protocol) for load in loads]
        chosen = choose_loads(
            fit, loads, costs=costs, budget_s=share_s, measured=known, forbidden=closed, method=method
        )
        if not chosen:
            break
        expected_s = sum(costs[index] for index in chosen)
        say(f"plan {turn + 1} of {num_plans}: {len(chosen)} experiments, about {expected_s:.0f} s")
        took_s = visit([loads[index] for index in chosen], limit_s=left_s)
        spent_s += took_s
        ratio *= min(4.0, max(0.25, took_s / expected_s))
        say(f"visiting {len(candidates.held_out)} steps that are kept for the check")
        # In every turn, not at the end: else a machine that slows down meanwhile looks like an error of the fit.
        visit(candidates.held_out, limit_s=math.inf, protocol=replace(protocol, num_rounds=2 * (turn + 1)))
        seconds_of = seconds_by_key(store, environment)
        measured = [load for load in loads if seconds_of.get(load.experiment.key, 0.0) > 0]
        seconds = [seconds_of[load.experiment.key] for load in measured]
        fit = refit(first, measured, seconds)
        if target_width and _width(fit, candidates.held_out) <= target_width:
            say("the intervals are narrow enough")
            break
    seconds_of = seconds_by_key(store, environment)
    checked = [load for load in candidates.held_out if load.experiment.key in seconds_of]
    if not checked:
        raise InvalidInput("no held-out step could be measured, so nothing can be said about the error")
    truth = [seconds_of[load.experiment.key] for load in checked]
    before = Score.of(first.predict(checked), truth, first.log_spread(checked))
    after = Score.of(fit.predict(checked), truth, fit.log_spread(checked))
    calibration = to_machine_rates(
        fit, name=name, environment=environment, loads=measured, seconds=seconds, measuring_s=spent_s,
        errors={"steps_before": before.mean, "steps_after": after.mean},
    )  # fmt: skip
    return Outcome(
        calibration=calibration, before=before, after=after, measuring_s=spent_s,
        num_operators=sum(not load.is_step for load in measured), num_steps=sum(load.is_step for load in measured),
        unmeasured=tuple(f"{key}: {reason}" for key, reason in failures.items()), width=_width(fit, checked),
    )  # fmt: skip


def _width(fit: Fit, loads: Sequence[Load]) -> float:
    return float(np.median(np.expm1(NORMAL_90 * fit.log_spread(loads)))) if loads else math.inf
