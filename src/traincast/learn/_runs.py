"""Measured runs to a calibration: how far each was from what ships, which corrects other questions as far as runs agree."""

import logging
from collections.abc import Sequence

from traincast.certainty import prove
from traincast.errors import InvalidInput, TraincastError
from traincast.forecast import Engine, shares_of
from traincast.learn._numbers import measure_numbers
from traincast.noun import noun
from traincast.spec import Calibration, MeasuredForecast, MeasuredRun, RunCorrections


def learn(runs: Sequence[MeasuredRun], *, name: str = "given runs", sources: tuple[str, ...] = ()) -> Calibration:
    """What the runs teach about the jobs of their frameworks."""
    if not runs:
        raise InvalidInput("there is no measured run to learn from; a run needs a step time that may be trusted")
    known = forecast_runs(runs)
    if not known:
        raise InvalidInput(f"none of the {len(runs)} runs can be forecast, so nothing can be learned from them")
    taught = f"{len(known)} of {len(runs)} runs taught something"
    return Calibration(
        name=name, runs=RunCorrections(runs=known, numbers=measure_numbers(runs)), sources=sources,
        notes=(taught,) if len(known) < len(runs) else (),
    )  # fmt: skip


@noun
class LearnedStack:
    """What the runs of one framework hold, and what they are worth."""

    stack: str
    num_runs: int
    models: tuple[str, ...]
    devices: tuple[str, ...]
    most_devices: int
    error_without: float
    """Mean error of the forecasts of its runs."""
    error_with: float
    """The same where the others are given, each run left out in turn."""


def describe_stacks(calibration: Calibration) -> tuple[LearnedStack, ...]:
    """By framework, in the order of the runs."""
    stacks: dict[str, list[MeasuredForecast]] = {}
    for run in calibration.runs.runs if calibration.runs else ():
        stacks.setdefault(run.labels.stack, []).append(run)
    found = []
    for stack, own in stacks.items():
        without, with_others = prove(own)
        found.append(
            LearnedStack(
                stack=stack, num_runs=len(own), models=tuple(dict.fromkeys(run.labels.model for run in own)),
                devices=tuple(dict.fromkeys(run.labels.device for run in own)),
                most_devices=max(run.labels.num_devices for run in own), error_without=without, error_with=with_others,
            )
        )  # fmt: skip
    return tuple(found)


def forecast_runs(runs: Sequence[MeasuredRun]) -> tuple[MeasuredForecast, ...]:
    """Those that can be forecast at all, beside what is forecast for them without any run."""
    engine = Engine(most=500)
    found = []
    for run in runs:
        try:
            program = engine.lower(run.job, run.cluster, run.parallelism)
            estimates = engine.cost(program, run.job, run.cluster)
            timeline = engine.simulate(program, estimates, run.job, run.cluster)
        except TraincastError as error:
            logging.getLogger(__name__).info("nothing is learnt from %s: %s", run.name, error)
            continue
        found.append(
            MeasuredForecast(
                labels=run.labels, shares=shares_of(timeline), forecast_s=timeline.duration_s, measured_s=run.step_s
            )
        )
    return tuple(found)
