"""Learns one machine from a few minutes on it: design -> measure -> store -> fit -> report."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.learn._calibrations import to_machine_rates
from traincast.learn._choose import choose_loads, expected_cost_s
from traincast.learn._fit import Peaks, RatesFit, refit, start_fit
from traincast.learn._loads import CalibrationCandidates, CalibrationLoad, operator_load
from traincast.noun import noun
from traincast.profile import Progress, Protocol, Subject, Visit, measure, steady_seconds
from traincast.spec import Environment, MachineRates, Op
from traincast.store import Store
from traincast.units import NORMAL_90

Array = NDArray[np.float64]
LARGE_COPY_BYTES = 2**24
"""More than the caches of one core hold."""


def keep(
    visits: Iterable[Visit], store: Store, environment: Environment, *, budget_s: float = math.inf
) -> Iterator[Visit]:
    """Write each finished block down before the next begins, until the budget is spent: a run killed later loses nothing
    finished."""
    started = time.monotonic()
    for visit in visits:
        if visit.block is not None:
            store.append(visit.experiment, environment, visit.block)
        yield visit
        if time.monotonic() - started > budget_s:
            return


def run_subjects(
    subjects: Sequence[Subject], *, store: Store, environment: Environment, protocol: Protocol,
    canary: Callable[[], float] | None = None, progress: Progress | None = None, budget_s: float = math.inf,
) -> Iterator[Visit]:  # fmt: skip
    """Measure into the store, leaving out what it already holds, until all is done or the budget is spent."""
    visits = measure(
        subjects, protocol=protocol, canary=canary, progress=progress,
        num_done=lambda experiment: store.num_blocks(experiment, environment),
    )  # fmt: skip
    yield from keep(visits, store, environment, budget_s=budget_s)


@noun
class CheckScore:
    """Relative errors on measurements that were not fitted, and the share of them that the 90% interval holds."""

    num_cases: int
    mean: float
    median: float
    worst: float
    coverage: float | None = None

    @staticmethod
    def of(predicted: Array, measured: Sequence[float], log_spread: Array | None = None) -> "CheckScore":
        errors = np.abs(predicted / np.asarray(measured) - 1)
        off = np.abs(np.log(predicted / np.asarray(measured)))
        held = None if log_spread is None else float(np.mean(off <= NORMAL_90 * log_spread))
        return CheckScore(
            num_cases=len(errors), mean=float(errors.mean()), median=float(np.median(errors)), worst=float(errors.max()),
            coverage=held,
        )  # fmt: skip


@noun
class Outcome:
    """What a calibration brought, and on what it was checked."""

    calibration: MachineRates
    before: CheckScore
    after: CheckScore
    num_operators: int
    num_steps: int
    measuring_s: float
    unmeasured: tuple[str, ...] = ()
    width: float = 0.0
    """Typical half-width of the 90% interval of a held-out step, relative."""


def find_peaks(loads: Sequence[CalibrationLoad], seconds_of: Mapping[str, float]) -> Peaks:
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


def anchors() -> list[CalibrationLoad]:
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


@noun
class MeasuringSetup:
    """Where experiments run, how they are repeated, and where their results are kept."""

    store: Store
    environment: Environment
    prepare: Callable[[Sequence[CalibrationLoad]], Sequence[Subject]]
    protocol: Protocol
    canary: Callable[[], float] | None = None
    progress: Progress | None = None

    def seconds_by_key(self) -> dict[str, float]:
        return seconds_by_key(self.store, self.environment)


@dataclass(slots=True, kw_only=True)
class _Campaign:
    """A calibration under way: what could not be measured, what it has taken, and how wrong its prices were."""

    setup: MeasuringSetup
    budget_s: float
    num_plans: int
    method: str
    say: Callable[[str], None]
    failures: dict[str, str] = field(default_factory=dict)
    spent_s: float = 0.0
    price_ratio: float = 1.0

    def visit(self, loads: Sequence[CalibrationLoad], *, limit_s: float, protocol: Protocol | None = None) -> float:
        started = time.monotonic()
        setup = self.setup
        for done in run_subjects(
            setup.prepare(loads), store=setup.store, environment=setup.environment, protocol=protocol or setup.protocol,
            canary=setup.canary, progress=setup.progress, budget_s=limit_s,
        ):  # fmt: skip
            if done.failure:
                self.failures[done.experiment.key] = done.failure
        return time.monotonic() - started

    def take_turn(self, turn: int, fit: RatesFit, loads: Sequence[CalibrationLoad]) -> bool:
        """Measure what is worth most by the fit so far; False where no budget or nothing of use is left."""
        seconds_of = self.setup.seconds_by_key()
        left_s = self.budget_s - self.spent_s
        if left_s <= 0:
            return False
        costs = [self.price_ratio * expected_cost_s(load, fit, self.setup.protocol) for load in loads]
        chosen = choose_loads(
            fit, loads, costs=costs, budget_s=left_s / (self.num_plans - turn), method=self.method,
            measured=[index for index, load in enumerate(loads) if load.experiment.key in seconds_of],
            forbidden=[index for index, load in enumerate(loads) if load.experiment.key in self.failures],
        )  # fmt: skip
        if not chosen:
            return False
        expected_s = sum(costs[index] for index in chosen)
        self.say(f"plan {turn + 1} of {self.num_plans}: {len(chosen)} experiments, about {expected_s:.0f} s")
        took_s = self.visit([loads[index] for index in chosen], limit_s=left_s)
        self.spent_s += took_s
        self.price_ratio *= min(4.0, max(0.25, took_s / expected_s))
        return True


def calibrate_machine(
    candidates: CalibrationCandidates,
    setup: MeasuringSetup,
    *,
    name: str,
    budget_s: float,
    target_width: float = 0.0,
    num_plans: int = 3,
    method: str = "d-optimal",
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Plan, measure and fit in turns until the budget is spent or the intervals are narrow enough; then check.

    The budget pays for what is fitted. The steps kept for the check are visited between the turns, on time of their own.
    """
    campaign = _Campaign(setup=setup, budget_s=budget_s, num_plans=num_plans, method=method, say=say)
    marks = anchors()
    say("measuring the peaks of the machine")
    campaign.spent_s += campaign.visit(marks, limit_s=budget_s)
    peaks = find_peaks(marks, setup.seconds_by_key())
    loads = [*candidates.loads, *marks]
    first = start_fit([*loads, *candidates.held_out], peaks)
    fit, measured, seconds = first, list[CalibrationLoad](), list[float]()
    for turn in range(num_plans):
        if not campaign.take_turn(turn, fit, loads):
            break
        say(f"visiting {len(candidates.held_out)} steps that are kept for the check")
        # In every turn, not at the end: else a machine that slows down meanwhile looks like an error of the fit.
        rounds = replace(setup.protocol, num_rounds=2 * (turn + 1))
        campaign.visit(candidates.held_out, limit_s=math.inf, protocol=rounds)
        seconds_of = setup.seconds_by_key()
        measured = [load for load in loads if seconds_of.get(load.experiment.key, 0.0) > 0]
        seconds = [seconds_of[load.experiment.key] for load in measured]
        fit = refit(first, measured, seconds)
        if target_width and _width(fit, candidates.held_out) <= target_width:
            say("the intervals are narrow enough")
            break
    checked, before, after = _check(candidates.held_out, setup, first=first, last=fit)
    calibration = to_machine_rates(
        fit, name=name, environment=setup.environment, loads=measured, seconds=seconds, measuring_s=campaign.spent_s,
        errors={"steps_before": before.mean, "steps_after": after.mean},
    )  # fmt: skip
    return Outcome(
        calibration=calibration, before=before, after=after, measuring_s=campaign.spent_s,
        num_operators=sum(not load.is_step for load in measured), num_steps=sum(load.is_step for load in measured),
        unmeasured=tuple(f"{key}: {reason}" for key, reason in campaign.failures.items()), width=_width(fit, checked),
    )  # fmt: skip


def _check(
    held_out: Sequence[CalibrationLoad], setup: MeasuringSetup, *, first: RatesFit, last: RatesFit
) -> tuple[list[CalibrationLoad], CheckScore, CheckScore]:
    """The held-out steps that were measured, with the error of the first and of the last fit on them."""
    seconds_of = setup.seconds_by_key()
    checked = [load for load in held_out if load.experiment.key in seconds_of]
    if not checked:
        raise InvalidInput("no held-out step could be measured, so nothing can be said about the error")
    truth = [seconds_of[load.experiment.key] for load in checked]
    before, after = (CheckScore.of(fit.predict(checked), truth, fit.log_spread(checked)) for fit in (first, last))
    return checked, before, after


def _width(fit: RatesFit, loads: Sequence[CalibrationLoad]) -> float:
    return float(np.median(np.expm1(NORMAL_90 * fit.log_spread(loads)))) if loads else math.inf
