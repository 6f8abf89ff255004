"""Measured runs to a calibration: constants of stacks, profiles of jobs, errors of near runs, and what may be used for what."""

from collections.abc import Sequence
from dataclasses import replace

from traincast.catalog import stack_names
from traincast.cost import Cached, default_ops
from traincast.errors import InvalidInput
from traincast.learn._numbers import measure_numbers
from traincast.learn._profile_ratio import LearnedRatio, fit_all, fit_ratios
from traincast.learn._select import forecast_all, read_scope, select
from traincast.learn._stack_fit import FittedStacks, MeasuredStep, describe_stack, measure_steps
from traincast.spec import (
    Calibration,
    LearnedStacks,
    MeasuredNumbers,
    MeasuredRun,
    RunCorrections,
    RunLabels,
    Stack,
    StackConstants,
)


def learn(
    runs: Sequence[MeasuredRun],
    *,
    name: str = "given runs",
    asked: Sequence[RunLabels] | None = None,
    prior: Stack | None = None,
    sources: tuple[str, ...] = (),
) -> Calibration:
    """What the runs teach. `asked`: only about such questions, which saves the cross-validation of others. `prior`: the constants
    to start from; by default what ships for each stack."""
    if not runs:
        raise InvalidInput("there is no measured run to learn from; a run needs a step time that may be trusted")
    steps = measure_steps(runs, ops=Cached(base=default_ops()), prior=prior)
    if not steps:
        raise InvalidInput(f"none of the {len(runs)} runs can be forecast, so nothing can be learned from them")
    found = keep_steps(steps, name=name, asked=asked, prior=prior, numbers=measure_numbers(runs))
    taught = f"{len(steps)} of {len(runs)} runs taught something"
    return replace(found, sources=sources, notes=(taught,) if len(steps) < len(runs) else ())


def keep_steps(
    steps: Sequence[MeasuredStep],
    *,
    name: str,
    asked: Sequence[RunLabels] | None = None,
    prior: Stack | None = None,
    numbers: tuple[MeasuredNumbers, ...] = (),
) -> Calibration:
    """Everything that measured steps teach, fitted and cross-validated."""
    selections = select(steps, asked)
    moving = {one.stack for one in selections if any(choice.constants for choice in (one.choice, *one.choice.also))}
    start = FittedStacks(prior=prior)
    shipped = LearnedRatio(fitted=start, ratios=fit_ratios(steps, start))
    own = [step for step in steps if step.labels.stack in moving]
    fitted = fit_all(own, prior=prior) if own else LearnedRatio(fitted=start)
    stacks = dict.fromkeys(step.labels.stack for step in steps)
    return Calibration(
        name=name,
        runs=RunCorrections(
            shipped=_keep(shipped, steps, prior=prior),
            fitted=_keep(fitted, own, prior=prior),
            pooled=tuple(forecast_all(steps, LearnedRatio(fitted=start), profile=False)),
            numbers=numbers,
            scopes=tuple(read_scope([one.labels for one in steps if one.labels.stack == stack]) for stack in stacks),
            selections=selections,
        ),
    )


def _keep(learned: LearnedRatio, steps: Sequence[MeasuredStep], *, prior: Stack | None) -> LearnedStacks:
    own = learned.fitted.constants()
    fitted = {one.stack for one in own}
    others = [one for one in _everywhere(prior) if one.stack not in fitted] if prior else []
    return LearnedStacks(
        constants=(*own, *others),
        ratios=tuple(learned.ratios.profiles.values()),
        forecasts=tuple(forecast_all(steps, learned)),
    )


def _everywhere(prior: Stack) -> tuple[StackConstants, ...]:
    return tuple(describe_stack(prior, name) for name in stack_names())
