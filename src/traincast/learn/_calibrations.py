"""A fit as rates of a machine, and calibrations to files and back."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from traincast.errors import InvalidInput
from traincast.files import calibrations_folder, load_calibration, save_calibration
from traincast.learn._fit import NUM_STEP_FACTORS, RatesFit
from traincast.learn._loads import OPERATOR_SPREAD, STEP_SPREAD, CalibrationLoad
from traincast.spec import Calibration, Environment, MachineRates, Rates, groups_of

__all__ = ["calibrations_folder", "load_calibration", "rates_of", "save_calibration", "to_machine_rates"]


def to_machine_rates(
    fit: RatesFit,
    *,
    name: str,
    environment: Environment,
    loads: Sequence[CalibrationLoad],
    seconds: Sequence[float],
    measuring_s: float,
    errors: Mapping[str, float] | None = None,
    notes: tuple[str, ...] = (),
) -> MachineRates:
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
    return MachineRates(
        name=name, environment=environment, rates=rates, fallback=fallback,
        step_compute_scale=compute, step_overhead_scale=overhead_scale, step_call_s=call_s, step_s_per_byte=cold,
        step_optimizer_s_per_byte=cold_update,
        step_log_spread=fit.step_inflation * STEP_SPREAD, num_measurements=len(loads), measuring_s=measuring_s,
        errors=dict(errors or {}), notes=notes,
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


def rates_of(source: str | Path | Calibration | MachineRates) -> MachineRates:
    """The rates of a machine, from wherever they are."""
    if isinstance(source, MachineRates):
        return source
    calibration = source if isinstance(source, Calibration) else load_calibration(source)
    if calibration.machine is None:
        raise InvalidInput(
            f"calibration {calibration.name!r} was learned from runs and holds no rates of a machine; measure one: "
            "traincast calibrate --out FILE"
        )
    return calibration.machine
