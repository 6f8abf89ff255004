"""Which operators and steps are worth measuring next, and what measuring them will cost."""

from collections.abc import Collection, Iterable, Sequence

from traincast.design import a_optimal, d_optimal, random_design
from traincast.errors import UnknownName
from traincast.learn._fit import RatesFit
from traincast.learn._loads import CalibrationLoad
from traincast.profile import Protocol

DESIGNS = ("d-optimal", "targeted", "random", "grid")


def choose_loads(
    fit: RatesFit,
    loads: Sequence[CalibrationLoad],
    *,
    costs: Sequence[float],
    budget_s: float,
    measured: Iterable[int] = (),
    forbidden: Iterable[int] = (),
    method: str = "d-optimal",
) -> list[int]:
    """The loads that tell most within the budget; the prior of the fit is the ridge of the design.

    "d-optimal" shrinks the uncertainty of all factors jointly; "targeted" the variance of the forecasts of all candidate steps
    (A-optimal for them). For comparison: "random" draws, and a "grid" over kinds and sizes.
    """
    known, closed = list(measured), list(forbidden)
    if method == "random":
        return random_design(len(loads), budget=budget_s, costs=costs, measured=known, forbidden=closed)
    if method == "grid":
        return _spread_evenly(loads, costs, budget_s, {*known, *closed})
    features = fit.sensitivities(loads)
    steps = [index for index, load in enumerate(loads) if load.is_step]
    if method == "d-optimal" or not steps:
        return d_optimal(
            features, budget=budget_s, costs=costs, ridge=1.0, measured=known, forbidden=closed, scaled=False
        )
    if method != "targeted":
        raise UnknownName("design", method, DESIGNS)
    return a_optimal(
        features, budget=budget_s, costs=costs, ridge=1.0, measured=known, forbidden=closed, scaled=False,
        targets=features[steps],
    )  # fmt: skip


def _spread_evenly(
    loads: Sequence[CalibrationLoad], costs: Sequence[float], budget_s: float, taken: Collection[int]
) -> list[int]:
    """Of loads in the order of kind and size, every second half of what is left between those chosen (van der Corput 1935)."""
    order = sorted(range(len(loads)), key=lambda index: (loads[index].ops[0].kind, loads[index].ops[0].num_bytes))
    bits = max(1, (len(order) - 1).bit_length())
    chosen: list[int] = []
    for number in range(2**bits):
        place = int(f"{number:0{bits}b}"[::-1], 2)
        if place < len(order) and order[place] not in taken and costs[order[place]] <= budget_s:
            chosen.append(order[place])
            budget_s -= costs[order[place]]
    return chosen


def expected_cost_s(load: CalibrationLoad, fit: RatesFit, protocol: Protocol) -> float:
    """Of measuring it: preparing, warming up and timing, in every round."""
    return measuring_cost_s(float(fit.predict([load])[0]), is_step=load.is_step, protocol=protocol)


def measuring_cost_s(run_s: float, *, is_step: bool, protocol: Protocol) -> float:
    warm_up_s = max(protocol.warm_up_s, protocol.warm_up_runs * run_s)
    timed_s = max(protocol.block_s, protocol.min_repeats * run_s)
    prepare_s = 0.03 + 3 * run_s if is_step else 0.003
    return protocol.num_rounds * (prepare_s + warm_up_s + timed_s)
