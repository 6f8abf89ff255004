"""Which operators and steps are worth measuring next, and what measuring them will cost."""

from collections.abc import Iterable, Sequence

from traincast.design import a_optimal, d_optimal
from traincast.errors import UnknownName
from traincast.learn._fit import Fit
from traincast.learn._loads import Load
from traincast.profile import Protocol


def choose_loads(
    fit: Fit,
    loads: Sequence[Load],
    *,
    costs: Sequence[float],
    budget_s: float,
    measured: Iterable[int] = (),
    forbidden: Iterable[int] = (),
    method: str = "d-optimal",
) -> list[int]:
    """The loads that tell most within the budget; the prior of the fit is the ridge of the design.

    "d-optimal" shrinks the uncertainty of all factors jointly; "targeted" the variance of the forecasts of all candidate steps
    (A-optimal for them).
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
    return measuring_cost_s(float(fit.predict([load])[0]), is_step=load.is_step, protocol=protocol)


def measuring_cost_s(run_s: float, *, is_step: bool, protocol: Protocol) -> float:
    warm_up_s = max(protocol.warm_up_s, protocol.warm_up_runs * run_s)
    timed_s = max(protocol.block_s, protocol.min_repeats * run_s)
    prepare_s = 0.03 + 3 * run_s if is_step else 0.003
    return protocol.num_rounds * (prepare_s + warm_up_s + timed_s)
