"""Measured memory, GPU utilisation and network numbers of runs, laid beside their forecasts."""

import logging
import math
from collections.abc import Sequence

from traincast.errors import TraincastError
from traincast.forecast import Engine, Shown
from traincast.spec import MeasuredNumbers, MeasuredRun

MOST_RUNS = 200
"""Of one call, evenly: each is forecast once more."""
FARTHEST = math.log(3.0)
"""A ratio beyond this is of another quantity (a whole card, a nothing), and teaches nothing."""
OF_NETWORK = ("received_burst_s", "received_peak", "sent_burst_s", "sent_peak")


def measure_numbers(runs: Sequence[MeasuredRun]) -> tuple[MeasuredNumbers, ...]:
    """Of the runs that tell more than their step."""
    telling = [run for run in runs if run.memory_bytes or run.numbers]
    if len(telling) > MOST_RUNS:
        telling = [telling[round(place * (len(telling) - 1) / (MOST_RUNS - 1))] for place in range(MOST_RUNS)]
    engine = Engine(most=500)
    found = []
    for run in telling:
        try:
            gaps = _gaps_of(run, engine)
        except TraincastError as error:
            logging.getLogger(__name__).info("no number is learned from %s: %s", run.name, error)
            continue
        if gaps:
            found.append(MeasuredNumbers(labels=run.labels, gaps=gaps))
    return tuple(found)


def _gaps_of(run: MeasuredRun, engine: Engine) -> dict[str, float]:
    drawn = any(name in run.numbers for name in OF_NETWORK)
    answer = engine.forecast(run.job, run.cluster, run.parallelism, shown=Shown(spans=drawn))
    gaps: dict[str, float] = {}
    if run.memory_bytes and answer.memory.peak_bytes > 0:
        gaps["memory"] = math.log(run.memory_bytes / answer.memory.peak_bytes)
    if "gpu_mean" in run.numbers and answer.run_utilization is not None:
        gaps["gpu_mean"] = run.numbers["gpu_mean"] - answer.run_utilization
    if answer.resources:
        twelve = answer.resources[0].twelve()
        for name in OF_NETWORK:
            measured, forecast = run.numbers.get(name, 0.0), twelve[name]
            if measured > 0 and forecast > 0:
                gaps[name] = math.log(measured / forecast)
    return {name: gap for name, gap in gaps.items() if abs(gap) <= FARTHEST}
