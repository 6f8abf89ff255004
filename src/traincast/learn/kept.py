"""A fit as a calibration to keep, and the cost model a forecast makes of it."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from traincast.cost import CostModel
from traincast.cost.interaction import WEIGHTS, Interacting, load_network
from traincast.cost.sync import clock_scale, price_collectives
from traincast.errors import InvalidInput
from traincast.files import decode, encode, read_json, write_json
from traincast.learn.fit import NUM_STEP_FACTORS, Fit
from traincast.learn.loads import OPERATOR_SPREAD, STEP_SPREAD, Load
from traincast.spec.graph import Op
from traincast.spec.hardware import Cluster
from traincast.spec.measurement import Calibration, CollectiveRates, Environment, Rates, groups_of
from traincast.spec.program import Stage
from traincast.spec.result import Estimate

FORMAT = "traincast-calibration"
VERSION = 1
NORMAL_90 = 1.645

Others = Callable[[Stage, Cluster], tuple[Estimate, ...]]
"""What prices the tasks a calibration does not know."""


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
    fitted = dict(rates)
    middle = _middle(list(fitted.values()))
    fallback = replace(middle, log_spread=max(middle.log_spread, 3 * OPERATOR_SPREAD))
    for wider in sorted({name for chain in fit.chains for name in chain[1:]} - set(fitted)):
        rates[wider] = _middle([fitted[chain[0]] for chain in fit.chains if wider in chain])
    compute, overhead_scale, call_s, cold, cold_update = (math.exp(value) for value in fit.theta[-NUM_STEP_FACTORS:])
    return Calibration(
        name=name, environment=environment, rates=rates, fallback=fallback,
        step_compute_scale=compute, step_overhead_scale=overhead_scale, step_call_s=call_s, step_s_per_byte=cold,
        step_optimizer_s_per_byte=cold_update,
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
        scale = clock_scale(self.calibration.step_wall_scale, cluster)
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
                        f"calibration {self.calibration.name!r} holds no {task.kind}; calibrate with --testbed, or "
                        "give another model for what it does not know"
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
    """The cost model a forecast should use: the interaction network corrects layers that never saw a whole step. It proved better
    there on families left out, and not above layers that steps have taught already (ADR 14)."""
    base = Calibrated(calibration=calibration, others=others)
    scales = (calibration.step_compute_scale, calibration.step_memory_scale, calibration.step_overhead_scale)
    if any(scale != 1.0 for scale in scales) or not WEIGHTS.is_file():
        return base
    return Interacting(base=base, network=load_network())


def _with_interval(seconds: float, log_spread: float, *, limit: str, ground: str) -> Estimate:
    factor = math.exp(NORMAL_90 * log_spread)
    return Estimate(seconds=seconds, low_s=seconds / factor, high_s=seconds * factor, limit=limit, ground=ground)
