"""Systems that give a whole step, asked by name: an embedding with a regressor, or a graph network for twelve numbers."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from traincast.certainty import SURE
from traincast.cost import describe_nodes, is_gpu
from traincast.errors import InvalidInput
from traincast.forecast._activity import as_sure_as
from traincast.forecast._corrections import restep
from traincast.forecast._setting import read_setting
from traincast.lower import split_model
from traincast.noun import noun
from traincast.spec import Cluster, Estimate, Forecast, Job, Parallelism
from traincast.units import NORMAL_90

if TYPE_CHECKING:
    from traincast.forecast._engine import Engine, Shown
    from traincast.resources import Rank, TwelveNetwork
    from traincast.spec import MeasuredRun

ANCHOR = "physics"


def forecast_whole_step(engine: "Engine", job: Job, cluster: Cluster, plan: Parallelism, shown: "Shown") -> Forecast:
    """Memory, money and energy as of every forecast; the step is the system's."""
    other = next((group.device.name for group in cluster.groups if not is_gpu(group.device)), None)
    if other is not None:
        raise InvalidInput(f"method = {job.method!r} was trained on GPUs and {other} is none; ask for the method best")
    anchored = engine.forecast(replace(job, method=ANCHOR), cluster, plan, shown=shown)
    if job.method == "predictddl":
        return _regress(anchored, job, cluster, plan)
    return _ask_twelve(anchored, job, cluster, plan, shown.activity)


def _regress(anchored: Forecast, job: Job, cluster: Cluster, plan: Parallelism) -> Forecast:
    from traincast.embed import data_type, describe_step, load_predictor, summarize

    sort, found = load_predictor().find(data_type(job.graph))
    features = describe_step(summarize(job.graph), read_setting(job, cluster, plan).numbers)
    seconds = anchored.step.seconds * math.exp(found.answer(features))
    says = (
        f"predictddl: the embedding of the graph and a regressor for {sort} data, {found.num_steps:,} measured steps; "
        f"{found.error:.0%} off on average where families and publishers were left out"
    )
    return _answer(anchored, job, cluster, plan, _around(anchored.step, seconds, found.log_sigma), says)


def _ask_twelve(
    anchored: Forecast, job: Job, cluster: Cluster, plan: Parallelism, adapted: "TwelveNetwork | None"
) -> Forecast:
    from traincast.resources import load_twelve

    network = adapted or load_twelve()
    found = network.predict(describe_rank(job, cluster, plan, guess_s=anchored.step.seconds))
    says = (
        f"driple: a graph network for the twelve resource numbers, {network.num_steps:,} steps; the step is the GPU's idle and "
        "burst time"
    )
    if plan.tensor * plan.pipeline * plan.context > 1:
        says += "; it saw replicas and parameter servers only, so what splits a model is outside of what it knows"
    step = _around(anchored.step, found.step_s, found.log_sigma)
    answer = _answer(anchored, job, cluster, plan, step, says)
    return replace(answer, resources=as_sure_as(tuple([found.apply(one) for one in answer.resources]), step))


def describe_rank(job: Job, cluster: Cluster, plan: Parallelism, *, guess_s: float) -> "Rank":
    """What the network for the twelve numbers is told. `guess_s`: of a step, by physics."""
    from traincast.resources import Rank

    nodes = describe_nodes(split_model(job.graph, Parallelism(), compiled=job.compiled))
    setting = read_setting(job, cluster, plan)
    spent = np.maximum(nodes.reference_s, 1e-15)
    first = cluster.groups[0]
    link = first.inter.bytes_per_s if cluster.num_nodes > 1 else first.intra.bytes_per_s
    wire = link if cluster.num_devices > 1 else 0.0
    return Rank(
        numbers=np.concatenate([nodes.own, nodes.hear()], axis=1), classes=nodes.classes, shares=spent / spent.sum(),
        setting=setting.numbers, guess_s=guess_s,
        caps={"gpu": 1.0, "memory": 1.0, "received": wire, "sent": wire},
    )  # fmt: skip


@noun
class Adapted:
    """A network for the twelve numbers that runs of a setting moved; as it ships where they say nothing of each other."""

    network: "TwelveNetwork"
    before: float
    """Mean relative error of the steps of these runs by the network that ships."""
    after: float
    """The same with the others of them, each left out in turn."""
    seconds: float
    """Of CPU time, to adapt it once."""


def adapt_twelve(runs: "Sequence[MeasuredRun]") -> Adapted:
    """The layers above the graph's moved by runs: step, utilisation, and those of the twelve numbers that were measured."""
    from traincast.forecast._engine import Engine
    from traincast.resources import load_twelve, measure_outputs

    engine, network = Engine(), load_twelve()
    ranks, targets = [], []
    for run in runs:
        job = replace(run.job, method=ANCHOR, cost_model=None)
        guess_s = engine.forecast(job, run.cluster, run.parallelism).step.seconds
        ranks.append(describe_rank(run.job, run.cluster, run.parallelism, guess_s=guess_s))
        seen = {name: value for name, value in run.numbers.items() if name != "gpu_mean"}
        if "gpu_mean" in run.numbers and "gpu_burst_s" not in seen:
            seen["gpu_burst_s"] = run.numbers["gpu_mean"] * run.step_s
        targets.append(measure_outputs(run.step_s, seen, ranks[-1]))
    began = time.process_time()
    found = network.adapted(ranks, targets)
    adapting_s = time.process_time() - began

    def error(place: int, others: "TwelveNetwork") -> float:
        return abs(others.predict(ranks[place]).step_s / runs[place].step_s - 1)

    places = range(len(runs))
    left_out = [
        network.adapted([ranks[k] for k in places if k != j], [targets[k] for k in places if k != j])
        if len(runs) > 1
        else found
        for j in places
    ]
    before = float(np.mean([error(place, network) for place in places]))
    after = float(np.mean([error(place, one) for place, one in zip(places, left_out, strict=True)]))
    # Runs that mislead about each other would mislead about others too.
    return Adapted(network=found if after < before else network, before=before, after=after, seconds=adapting_s)


def _around(step: Estimate, seconds: float, log_sigma: float) -> Estimate:
    factor = math.exp(NORMAL_90 * log_sigma)
    return replace(step, seconds=seconds, low_s=seconds / factor, high_s=seconds * factor)


def _answer(anchored: Forecast, job: Job, cluster: Cluster, plan: Parallelism, step: Estimate, says: str) -> Forecast:
    found = restep(anchored, job, cluster, plan, step)
    low, high = step.low_s / step.seconds - 1, step.high_s / step.seconds - 1
    notes = (*(note for note in found.notes if "the cost model" not in note), says)
    return replace(found, notes=notes, narrowing=()).saying(
        uncertainty=f"{SURE} {low:+.0%} to {high:+.0%}: by what was left out of {job.method}'s training"
    )
