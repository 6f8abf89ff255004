"""Learns one machine from a few minutes on it: design -> measure -> store -> fit -> report, and a calibration to keep."""

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincast.cost import CostModel
from traincast.cost.interaction import WEIGHTS, Interacting, load_network
from traincast.cost.sync import num_hops, price_collectives, slowest_speed, wire_bytes
from traincast.design import a_optimal, d_optimal
from traincast.errors import InvalidInput, UnknownName
from traincast.files import decode, encode, read_json, write_json
from traincast.profile.protocol import Progress, Protocol, Subject, Visit, measure
from traincast.spec.graph import Graph, Op
from traincast.spec.hardware import Cluster
from traincast.spec.measurement import (
    Calibration,
    CollectiveRates,
    Environment,
    Experiment,
    Measurement,
    Rates,
    calls_of,
    groups_of,
)
from traincast.spec.program import Stage
from traincast.spec.result import Estimate
from traincast.store import Store

FORMAT = "traincast-calibration"
VERSION = 1
NORMAL_90 = 1.645

Array = NDArray[np.float64]
Others = Callable[[Stage, Cluster], tuple[Estimate, ...]]
"""What prices the tasks a calibration does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is believed of a kind before any measurement, as shares of the machine's peaks."""

    compute: float
    memory: float
    overhead_s: float = 6e-6


PRIORS: dict[str, Prior] = {
    "matmul": Prior(compute=0.5, memory=1.0),
    "attention": Prior(compute=0.2, memory=1.0, overhead_s=2e-5),
    "conv": Prior(compute=0.3, memory=0.7, overhead_s=2e-5),
    "rnn": Prior(compute=0.2, memory=0.7, overhead_s=2e-5),
    "optimizer": Prior(compute=1.0, memory=0.8, overhead_s=2e-5),
}
DEFAULT_PRIOR = Prior(compute=0.2, memory=0.6)
RATE_SPREAD, OVERHEAD_SPREAD, COMPUTE_SCALE_SPREAD, MEMORY_SCALE_SPREAD = 1.0, 1.0, 0.1, 0.5
"""Standard deviations of the priors in log space: shares of the peak are known within a factor of about three."""
OPERATOR_SPREAD, STEP_SPREAD = 0.25, 0.06
"""What a rates model misses of single operators and of whole steps in log space: the weights of their residuals."""
PRIOR_CALL_S = 2e-6
UNKNOWN_INFLATION = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The machine at its best."""

    flop_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One thing to measure, fit or forecast: operators and how often each runs. A step has many, an operator one."""

    experiment: Experiment
    ops: tuple[Op, ...]
    counts: tuple[int, ...]

    @property
    def is_step(self) -> bool:
        return self.experiment.subject == "step"

    @property
    def spread(self) -> float:
        return STEP_SPREAD if self.is_step else OPERATOR_SPREAD


def operator_load(experiment: Experiment) -> Load:
    from traincast.profile.operators import op_of

    return Load(experiment=experiment, ops=(op_of(experiment),), counts=(1,))


def step_load(experiment: Experiment, graph: Graph) -> Load:
    return Load(experiment=experiment, ops=graph.ops, counts=tuple(graph.counts()))


def observed_seconds(measurement: Measurement) -> float:
    """What is fitted: CPU time where one thread of a CPU computed, because it is several times more repeatable."""
    single = (
        measurement.environment.settings.get("threads") == 1 and measurement.experiment.attrs.get("num_ranks", 1) == 1
    )
    cpu_s = measurement.cpu_seconds
    return cpu_s if single and cpu_s is not None and cpu_s > 0 else measurement.seconds


# Measuring into the store


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


# The model: seconds = overhead x calls + flop / rate + bytes / rate, summed over operators. An operator measured alone finds
# its data in cache, in a step it often does not: steps have their own factors for computing and for moving data, and a
# cost per call. All factors are fitted as logarithms.


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Groups of operators and the logarithms of their overhead, seconds per FLOP and seconds per byte."""

    groups: tuple[str, ...]
    theta: Array
    prior: Array
    prior_spread: Array
    information: Array
    step_inflation: float = UNKNOWN_INFLATION
    """How many times wider than assumed steps scatter when each is forecast without its own measurement; until a few
    steps are measured it is not known, and two is a cautious guess."""

    def predict(self, loads: "Sequence[Load] | Amounts") -> Array:
        return _evaluate(_amounts(loads, self.groups), self.theta)[0]

    def sensitivities(self, loads: Sequence[Load]) -> Array:
        """d ln(seconds) / d theta in units of the residual and of the prior: the features of the design."""
        amounts = Amounts.of(loads, self.groups)
        return _evaluate(amounts, self.theta)[1] / amounts.spread[:, None] * self.prior_spread[None, :]

    def log_spread(self, loads: Sequence[Load]) -> Array:
        """Of each prediction: what the parameters leave open and what the model misses."""
        amounts = Amounts.of(loads, self.groups)
        gradient = _evaluate(amounts, self.theta)[1]
        open_part = np.einsum("ij,ij->i", gradient, np.linalg.solve(self.information, gradient.T).T)
        inflation = np.where(amounts.is_step, self.step_inflation, 1.0)
        return np.asarray(inflation * np.sqrt(open_part + amounts.spread**2), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Loads as a matrix: calls, FLOP and bytes in each group of operators."""

    matrix: Array
    calls: Array
    is_step: NDArray[np.bool_]
    spread: Array

    def __len__(self) -> int:
        return len(self.calls)

    def pick(self, places: Sequence[int]) -> "Amounts":
        """Some of the loads, in this order: counting operators takes longer than fitting them."""
        chosen = list(places)
        return Amounts(
            matrix=self.matrix[chosen],
            calls=self.calls[chosen],
            is_step=self.is_step[chosen],
            spread=self.spread[chosen],
        )

    @staticmethod
    def of(loads: Sequence[Load], groups: tuple[str, ...]) -> "Amounts":
        position = {group: 3 * index for index, group in enumerate(groups)}
        matrix = np.zeros((len(loads), 3 * len(groups)))
        calls = np.zeros(len(loads))
        for row, load in enumerate(loads):
            for op, count in zip(load.ops, load.counts, strict=True):
                first = position.get(groups_of(op)[0])
                if first is None:
                    raise InvalidInput(f"operator group {groups_of(op)[0]!r} is not part of this fit")
                num_calls = count * calls_of(op)
                matrix[row, first : first + 3] += (num_calls, count * (op.flop or 0.0), count * op.num_bytes)
                calls[row] += num_calls
        return Amounts(
            matrix=matrix, calls=calls, is_step=np.array([load.is_step for load in loads], dtype=bool),
            spread=np.array([load.spread for load in loads]),
        )  # fmt: skip


def _amounts(loads: Sequence[Load] | Amounts, groups: tuple[str, ...]) -> Amounts:
    return loads if isinstance(loads, Amounts) else Amounts.of(loads, groups)


def start_fit(loads: Sequence[Load], peaks: Peaks) -> Fit:
    """Before any measurement: every group as its kind's prior says."""
    groups = tuple(sorted({groups_of(op)[0] for load in loads for op in load.ops}))
    theta: list[float] = []
    spread: list[float] = []
    for group in groups:
        prior = PRIORS.get(group.split(":")[0], DEFAULT_PRIOR)
        theta += [
            math.log(prior.overhead_s),
            -math.log(peaks.flop_per_s * prior.compute),
            -math.log(peaks.bytes_per_s * prior.memory),
        ]
        spread += [OVERHEAD_SPREAD, RATE_SPREAD, RATE_SPREAD]
    theta += [0.0, 0.0, math.log(PRIOR_CALL_S)]
    spread += [COMPUTE_SCALE_SPREAD, MEMORY_SCALE_SPREAD, OVERHEAD_SPREAD]
    start, spreads = np.array(theta), np.array(spread)
    return Fit(groups=groups, theta=start, prior=start, prior_spread=spreads, information=np.diag(1 / spreads**2))


def refit(
    fit: Fit, loads: Sequence[Load] | Amounts, seconds: Sequence[float] | Array, *, num_iterations: int = 60
) -> Fit:
    """The most probable factors given prior and measurements: damped Gauss-Newton on robust log residuals."""
    if not len(loads):
        return fit
    target = np.log(np.asarray(seconds, dtype=np.float64))
    amounts = _amounts(loads, fit.groups)
    theta = fit.theta.copy()
    damping = 1e-2
    cost = _cost(fit, amounts, target, theta)
    for _ in range(num_iterations):
        residual, jacobian = _residuals(amounts, target, theta)
        weight = _huber_weight(residual)
        normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(1 / fit.prior_spread**2)
        slope = jacobian.T @ (weight * residual) + (theta - fit.prior) / fit.prior_spread**2
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), slope)
        trial = theta - np.clip(step, -2.0, 2.0)
        trial_cost = _cost(fit, amounts, target, trial)
        if trial_cost < cost:
            improvement = cost - trial_cost
            theta, cost, damping = trial, trial_cost, max(damping / 3, 1e-6)
            if improvement < 1e-6 * max(cost, 1.0):
                break
        else:
            damping *= 5
            if damping > 1e8:
                break
    residual, jacobian = _residuals(amounts, target, theta)
    weight = _huber_weight(residual)
    information = jacobian.T @ (weight[:, None] * jacobian) + np.diag(1 / fit.prior_spread**2)
    inflation = _step_inflation(residual, jacobian, information, amounts.is_step)
    return replace(fit, theta=theta, information=information, step_inflation=inflation)


def _step_inflation(residual: Array, jacobian: Array, information: Array, is_step: NDArray[np.bool_]) -> float:
    """From leave-one-out residuals (Allen 1974) of the steps, never below one; unknown with fewer than five."""
    if is_step.sum() < 5:
        return UNKNOWN_INFLATION
    rows = jacobian[is_step]
    leverage = np.einsum("ij,ij->i", rows, np.linalg.solve(information, rows.T).T)
    left_out = residual[is_step] / np.maximum(1 - leverage, 0.05)
    return max(1.0, float(np.sqrt(np.mean(np.minimum(np.abs(left_out), 10.0) ** 2))))


def _evaluate(amounts: Amounts, theta: Array) -> tuple[Array, Array]:
    """Seconds of each load and the gradient of their logarithm."""
    compute, memory, call_s = (np.where(amounts.is_step, math.exp(value), 1.0) for value in theta[-3:])
    parts = amounts.matrix * np.exp(theta[:-3])[None, :]
    parts[:, 1::3] *= compute[:, None]
    parts[:, 2::3] *= memory[:, None]
    calls = np.where(amounts.is_step, amounts.calls * call_s, 0.0)
    total = parts.sum(axis=1) + calls
    gradient = np.zeros((len(total), len(theta)))
    gradient[:, :-3] = parts / total[:, None]
    gradient[:, -3] = np.where(amounts.is_step, parts[:, 1::3].sum(axis=1) / total, 0.0)
    gradient[:, -2] = np.where(amounts.is_step, parts[:, 2::3].sum(axis=1) / total, 0.0)
    gradient[:, -1] = calls / total
    return total, gradient


def _residuals(amounts: Amounts, target: Array, theta: Array) -> tuple[Array, Array]:
    seconds, gradient = _evaluate(amounts, theta)
    return (np.log(seconds) - target) / amounts.spread, gradient / amounts.spread[:, None]


def _cost(fit: Fit, amounts: Amounts, target: Array, theta: Array) -> float:
    size = np.abs(_residuals(amounts, target, theta)[0])
    huber = np.where(size <= 2.0, 0.5 * size**2, 2.0 * size - 2.0)
    return float(huber.sum() + 0.5 * (((theta - fit.prior) / fit.prior_spread) ** 2).sum())


def _huber_weight(residual: Array) -> Array:
    return np.asarray(np.minimum(1.0, 2.0 / np.maximum(np.abs(residual), 1e-9)), dtype=np.float64)


# Design, and the calibration that results


def choose_loads(
    fit: Fit,
    loads: Sequence[Load],
    *,
    costs: Sequence[float],
    budget_s: float,
    measured: Iterable[int] = (),
    forbidden: Iterable[int] = (),
    method: str = "targeted",
) -> list[int]:
    """The loads that tell most within the budget; the prior of the fit is the ridge of the design.

    "targeted" minimises the variance of the forecasts of all candidate steps (A-optimal for them), because steps are what
    will be asked for; "d-optimal" that of all factors jointly.
    """
    features = fit.sensitivities(loads)
    known, closed = list(measured), list(forbidden)
    steps = [index for index, load in enumerate(loads) if load.is_step]
    if method == "d-optimal" or not steps:
        return d_optimal(
            features, budget=budget_s, costs=costs, ridge=1.0, measured=known, forbidden=closed, scaled=False
        )
    if method != "targeted":
        raise UnknownName("design method", method, ("targeted", "d-optimal"))
    return a_optimal(
        features, budget=budget_s, costs=costs, ridge=1.0, measured=known, forbidden=closed, scaled=False,
        targets=features[steps],
    )  # fmt: skip


def expected_cost_s(load: Load, fit: Fit, protocol: Protocol) -> float:
    """Of measuring it: preparing, warming up and timing, in every round."""
    run_s = float(fit.predict([load])[0])
    warm_up_s = max(protocol.warm_up_s, protocol.warm_up_runs * run_s)
    timed_s = max(protocol.block_s, protocol.min_repeats * run_s)
    prepare_s = 0.03 + 3 * run_s if load.is_step else 0.003
    return protocol.num_rounds * (prepare_s + warm_up_s + timed_s)


def to_calibration(
    fit: Fit,
    *,
    name: str,
    environment: Environment,
    loads: Sequence[Load],
    seconds: Sequence[float],
    measuring_s: float,
    errors: Mapping[str, float] | None = None,
    collectives: Mapping[str, CollectiveRates] | None = None,
    notes: tuple[str, ...] = (),
) -> Calibration:
    """The fit as a noun: rates by group, a fallback from their medians, and the spread of what was fitted."""
    log_ratio = np.log(np.asarray(seconds)) - np.log(fit.predict(loads)) if loads else np.zeros(0)
    by_group: dict[str, list[float]] = {}
    for load, ratio in zip(loads, log_ratio, strict=True):
        if not load.is_step:
            by_group.setdefault(groups_of(load.ops[0])[0], []).append(float(ratio))
    rates = {}
    for index, group in enumerate(fit.groups):
        overhead, per_flop, per_byte = fit.theta[3 * index : 3 * index + 3]
        ratios = by_group.get(group, [])
        rates[group] = Rates(
            overhead_s=math.exp(overhead),
            flop_per_s=math.exp(-per_flop),
            bytes_per_s=math.exp(-per_byte),
            log_spread=max(OPERATOR_SPREAD, _deviation(ratios)) if ratios else 3 * OPERATOR_SPREAD,
            num_measurements=len(ratios),
        )
    kinds = sorted({group.split(":")[0] for group in fit.groups})
    for kind in kinds:
        members = [rate for group, rate in rates.items() if group.split(":")[0] == kind]
        rates.setdefault(kind, _middle(members))
    return Calibration(
        name=name, environment=environment, rates=rates, fallback=_middle(list(rates.values())),
        step_compute_scale=math.exp(fit.theta[-3]),
        step_memory_scale=math.exp(fit.theta[-2]), step_call_s=math.exp(fit.theta[-1]),
        step_log_spread=fit.step_inflation * STEP_SPREAD, num_measurements=len(loads), measuring_s=measuring_s,
        errors=dict(errors or {}), collectives=dict(collectives or {}), notes=notes,
    )  # fmt: skip


def _middle(rates: Sequence[Rates]) -> Rates:
    return Rates(
        overhead_s=statistics.median(rate.overhead_s for rate in rates),
        flop_per_s=statistics.median(rate.flop_per_s for rate in rates),
        bytes_per_s=statistics.median(rate.bytes_per_s for rate in rates),
        log_spread=max(rate.log_spread for rate in rates),
    )


def _deviation(values: Sequence[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values)) if values else 0.0


def save_calibration(calibration: Calibration, path: str | Path) -> None:
    data = {"format": FORMAT, "version": VERSION, "calibration": encode(calibration)}
    write_json(path, data, indent=None if str(path).endswith(".gz") else 1)


def load_calibration(path: str | Path) -> Calibration:
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InvalidInput(f"{path} is not a calibration; make one with: traincast calibrate --out FILE")
    if data.get("version") != VERSION:
        raise InvalidInput(f"{path} has calibration version {data.get('version')!r}; this traincast reads {VERSION}")
    return decode(Calibration, data.get("calibration"), where=f"{path}: calibration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A cost model for the machine of a calibration; collectives it does not know are left to another model."""

    calibration: Calibration
    others: Others | None = None

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]:
        scale = self.calibration.step_wall_scale / slowest_speed(cluster)
        known = price_collectives(stage, cluster, self.calibration.collectives)
        others: tuple[Estimate, ...] | None = None
        estimates = []
        for index, task in enumerate(stage.tasks):
            if isinstance(task, Op):
                estimates.append(self._estimate_op(task).scaled(scale))
            elif index in known:
                spread = max(self.calibration.collectives[task.kind].log_spread, 0.05)
                estimates.append(_with_interval(known[index], spread, limit="communication", ground="measured"))
            else:
                if self.others is None:
                    raise InvalidInput(
                        f"calibration {self.calibration.name!r} holds no {task.kind}; calibrate with --ranks"
                    )
                others = others or self.others(stage, cluster)
                estimates.append(others[index])
        return tuple(estimates)

    def _estimate_op(self, op: Op) -> Estimate:
        rates = self.calibration.rates_of(op)
        seconds = self.calibration.op_seconds_in_step(op)
        compute_s = (op.flop or 0.0) / rates.flop_per_s
        limit = "compute" if compute_s >= op.num_bytes / rates.bytes_per_s else "memory"
        ground = "measured" if rates.num_measurements else "transfer"
        return _with_interval(seconds, rates.log_spread, limit=limit, ground=ground)


def choose_costs(calibration: Calibration, *, others: Others | None = None) -> CostModel:
    """The cost model a forecast should use: the interaction network corrects layers that never saw a whole step. It proved
    better there on families left out, and not above layers that steps have taught already (ADR 14)."""
    base = Calibrated(calibration=calibration, others=others)
    taught = calibration.step_compute_scale != 1.0 or calibration.step_memory_scale != 1.0
    if taught or not WEIGHTS.is_file():
        return base
    return Interacting(base=base, network=load_network())


def _with_interval(seconds: float, log_spread: float, *, limit: str, ground: str) -> Estimate:
    factor = math.exp(NORMAL_90 * log_spread)
    return Estimate(seconds=seconds, low_s=seconds / factor, high_s=seconds * factor, limit=limit, ground=ground)


# Collectives


def fit_collectives(measurements: Sequence[Measurement]) -> dict[str, CollectiveRates]:
    """Latency per hop and payload rate of each kind, by least squares on relative errors, neither below zero."""
    by_kind: dict[str, list[tuple[float, float, float]]] = {}
    for found in measurements:
        if found.experiment.subject != "collective":
            continue
        kind, attrs = found.experiment.name, found.experiment.attrs
        ranks, amount = int(attrs["num_ranks"]), float(attrs["num_bytes"])
        hops, wire = num_hops(kind, num_ranks=ranks), wire_bytes(kind, num_ranks=ranks, num_bytes=amount)
        by_kind.setdefault(kind, []).append((hops, wire, found.seconds))
    return {kind: _fit_line(rows) for kind, rows in by_kind.items() if len({wire for _, wire, _ in rows}) >= 2}


def _fit_line(rows: Sequence[tuple[float, float, float]]) -> CollectiveRates:
    hops, wire, seconds = (np.array(column) for column in zip(*rows, strict=True))
    matrix = np.stack([hops / seconds, wire / seconds], axis=1)
    both = np.linalg.lstsq(matrix, np.ones(len(seconds)), rcond=None)[0]
    if both[0] < 0:
        both = np.array([0.0, float((matrix[:, 1]).sum() / (matrix[:, 1] ** 2).sum())])
    elif both[1] <= 0:
        both = np.array([float(matrix[:, 0].sum() / (matrix[:, 0] ** 2).sum()), 1e-15])
    ratio = np.log(matrix @ both)
    return CollectiveRates(
        hop_s=float(both[0]), bytes_per_s=float(1 / both[1]), log_spread=float(np.sqrt((ratio**2).mean())),
        num_measurements=len(rows),
    )  # fmt: skip


# The whole of it, for one machine


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

    calibration: Calibration
    before: Score
    after: Score
    num_operators: int
    num_steps: int
    measuring_s: float
    unmeasured: tuple[str, ...] = ()
    width: float = 0.0
    """Typical half-width of the 90% interval of a held-out step, relative."""


def is_held_out(name: str, *, share: float = 0.2) -> bool:
    """Whether a workload is kept for the check; its name alone decides, so no run can move it over."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32 < share


def find_peaks(loads: Sequence[Load], seconds_of: Mapping[str, float]) -> Peaks:
    """The best rates any measured operator reached; without any, those of a plain core."""
    flop_rates, byte_rates = [], []
    for load in loads:
        took = seconds_of.get(load.experiment.key)
        if took and not load.is_step:
            flop_rates.append((load.ops[0].flop or 0.0) / took)
            byte_rates.append(load.ops[0].num_bytes / took)
    return Peaks(flop_per_s=max(flop_rates, default=2e10), bytes_per_s=max(byte_rates, default=5e9))


def anchors() -> list[Load]:
    """The few operators that show the peaks of a machine."""
    from traincast.profile.operators import experiment_of

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
    """What this machine, with this software and these settings, took for everything measured so far."""
    found = store.measurements(device=environment.device, machine=environment.machine)
    return {each.experiment.key: observed_seconds(each) for each in found if each.environment == environment}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What may be measured, and what is kept for the check."""

    loads: tuple[Load, ...]
    held_out: tuple[Load, ...]


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
    method: str = "targeted",
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
        share_s = left_s / (num_plans - turn)
        costs = [ratio * expected_cost_s(load, fit, protocol) for load in loads]
        chosen = choose_loads(
            fit, loads, costs=costs, budget_s=share_s, measured=known, forbidden=closed, method=method
        )
        if not chosen or left_s <= 0:
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
    calibration = to_calibration(
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


def corpus_candidates(
    *, num_models: int = 48, num_held_out: int = 20, batches: Sequence[int] = (2, 4, 8, 16), optimizer: str = "adamw"
) -> Candidates:
    """Operators and steps of our own architectures; whole architectures are kept back for the check."""
    from traincast.profile.architectures import corpus_names

    ordered = sorted(corpus_names(), key=lambda name: hashlib.sha256(f"order {name}".encode()).hexdigest())
    fitted = [name for name in ordered if not is_held_out(name)][:num_models]
    checked = [name for name in ordered if is_held_out(name)][:num_held_out]
    steps = [capture_step(name, batches[index % len(batches)], optimizer) for index, name in enumerate(fitted)]
    held_out = [capture_step(name, batches[index % len(batches)], optimizer) for index, name in enumerate(checked)]
    return Candidates(loads=(*operators_of(steps), *steps), held_out=tuple(held_out))


def operators_of(steps: Sequence[Load]) -> list[Load]:
    """Every different operator of these steps that can be run alone."""
    from traincast.profile.operators import experiment_of, is_runnable

    found: dict[str, Load] = {}
    for step in steps:
        for op in step.ops:
            if is_runnable(op):
                experiment = experiment_of(op)
                found.setdefault(experiment.key, Load(experiment=experiment, ops=(op,), counts=(1,)))
    return list(found.values())


def capture_step(name: str, batch: int, optimizer: str) -> Load:
    """The step of one of our architectures with the operators it is made of."""
    from traincast.capture.trace import capture
    from traincast.profile.architectures import build_architecture
    from traincast.profile.steps import step_experiment

    model, inputs = build_architecture(name)
    graph = capture(model, inputs(batch), optimizer=optimizer, name=name)
    return step_load(step_experiment(name, batch=batch, optimizer=optimizer), graph)
