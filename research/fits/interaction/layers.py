"""What the interaction network learns from: CPU time of each step of the corpus, and the rates of operators below it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from research.corpus import Corpus, CorpusStep
from research.corpus.testbed import TestbedSetting
from research.fits.interaction.network import Example, Training, fit_network
from research.fits.interaction.sync import Synced, SyncedStep, fit_sync
from traincast.cost import Calibrated, Network
from traincast.cost._interaction.features import Neighbourhood, describe
from traincast.errors import InvalidInput
from traincast.learn import CalibrationLoad, operator_load, refit, start_fit, step_load, to_machine_rates
from traincast.learn._fit import Amounts, Peaks
from traincast.lower import lower
from traincast.spec import (
    Cluster,
    Collective,
    Device,
    Environment,
    Experiment,
    Graph,
    Link,
    MachineRates,
    NodeGroup,
    Parallelism,
    Stage,
)

Array = NDArray[np.float64]
Key = tuple[str, int]
Operators = Sequence[tuple[CalibrationLoad, float]]

PEAKS = Peaks(flop_per_s=2e10, bytes_per_s=5e9)
CORE = Device(name="test-bed core", memory_bytes=24e9, memory_bytes_per_s=PEAKS.bytes_per_s,
              vector_flop_per_s={"fp32": PEAKS.flop_per_s})  # fmt: skip
SETTING_SPREAD, LABEL_SPREAD = 0.07, 0.1
"""How far a step of one setting may be from what its workload's others say, and one worker's CPU time from that of a quiet
machine, in log space."""
ONE_BLOCK = 0.1
"""Noise of a step that was visited once, in log space; of others their label says it."""
MIN_SINGLE = 5
_LINK = Link(name="none", bytes_per_s=1e9, latency_s=0.0)
_CORE_GROUP = NodeGroup(device=CORE, num_nodes=1, devices_per_node=1, intra=_LINK, inter=_LINK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A graph with what every forecast of it needs."""

    graph: Graph
    load: CalibrationLoad
    gradient_bytes: float
    num_gradients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Rates of the operators, and what they say of every workload: CPU seconds of its step."""

    calibration: MachineRates
    compute_s: Mapping[Key, float]


def study_graph(key: Key, graph: Graph) -> Workload:
    stage = lower(graph, Parallelism(data=2)).stages[0]
    messages = [
        (task.num_bytes, count)
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Collective)
    ]
    return Workload(
        graph=graph,
        load=step_load(Experiment(subject="step", name=key[0], attrs={"batch": key[1]}), graph),
        gradient_bytes=sum(num_bytes * count for num_bytes, count in messages),
        num_gradients=sum(count for _, count in messages),
    )


def see(graph: Graph, calibration: MachineRates) -> Neighbourhood:
    """The operators of a step on one whole core, priced by the calibration."""
    stage = Stage(tasks=graph.ops, repeats=graph.repeats, tensors=graph.tensors)
    whole = replace(calibration, step_wall_scale=1.0)
    return describe(stage, Calibrated(rates=whole).estimate(stage, Cluster(name="core", groups=(_CORE_GROUP,))))


def _step(workload: Workload, setting: TestbedSetting, *, seconds: float, compute_s: float) -> SyncedStep:
    return SyncedStep(
        seconds=seconds,
        compute_s=compute_s,
        num_ranks=setting.num_ranks,
        speed=min(node.cpu_share for node in setting.nodes),
        link_bytes_per_s=min(node.bits_per_s for node in setting.nodes) / 8,
        gradient_bytes=workload.gradient_bytes,
        num_tensors=workload.num_gradients,
        num_buckets=max(1.0, workload.gradient_bytes / Parallelism().bucket_bytes),
    )


def learn_network(corpus: Corpus, training: Training | None = None) -> Network:
    """Layers of single operators, and above them the network that every step taught."""
    workloads = {key: study_graph(key, graph) for key, graph in corpus.graphs.items()}
    operators = [
        (operator_load(found.experiment), took)
        for found in corpus.operators
        if (took := found.cpu_seconds or found.seconds)
    ]
    labels = clean_labels([step for step in corpus.steps if step.key in workloads], workloads, operators)
    calibration = fit_layers(workloads, operators, steps=None).calibration
    # One batch size of each architecture, small and large in turn: the other teaches little and costs as much.
    chosen = [pair for place, pair in enumerate(sorted(labels.items())) if (place // 2 + place) % 2 == 0]
    examples = [Example(seen=see(workloads[key].graph, calibration), seconds=took) for key, took in chosen]
    return fit_network(examples, training or Training())


def clean_labels(
    known: Sequence[CorpusStep], workloads: Mapping[Key, Workload], operators: Operators
) -> dict[Key, float]:
    """CPU time of each known workload's step. One worker's was read directly, but once and on a shared machine; its other
    settings, less their synchronisation, were read at other times, and all of them together are steadier."""
    single = {step.key: step.cpu_seconds for step in known if step.setting.num_ranks == 1 and step.cpu_seconds}
    if len(single) < MIN_SINGLE:
        raise InvalidInput(f"{len(single)} known steps of one worker; at least {MIN_SINGLE} are needed to fit layers")
    synced = fit_sync([
        _step(workloads[step.key], step.setting, seconds=step.seconds, compute_s=single[step.key])
        for step in known if step.key in single
    ])  # fmt: skip
    layers = fit_layers(workloads, operators, steps=single)
    compute_s = {key: single.get(key) or layers.compute_s[key] for key in dict.fromkeys(step.key for step in known)}
    factors = _own_factors(known, workloads, compute_s, synced)
    return {key: seconds * factors[key] for key, seconds in compute_s.items()}


def fit_layers(workloads: Mapping[Key, Workload], operators: Operators, *, steps: Mapping[Key, float] | None) -> Layers:
    """Rates by the CPU times of whole steps, or, where there are none, by those of operators alone."""
    places = {key: place for place, key in enumerate(workloads)}
    loads = [*(workload.load for workload in workloads.values()), *(load for load, _ in operators)]
    start = start_fit(loads, PEAKS)
    amounts = Amounts.of(loads, start.groups)
    if steps is None:
        fit = refit(start, amounts.pick(list(range(len(places), len(loads)))), [took for _, took in operators])
    else:
        fit = refit(start, amounts.pick([places[key] for key in steps]), list(steps.values()))
    computed = fit.predict(amounts.pick(list(places.values())))
    calibration = to_machine_rates(
        fit, name="corpus", environment=Environment(device=CORE.name), loads=[], seconds=[], measuring_s=0.0
    )
    return Layers(calibration=calibration, compute_s=dict(zip(places, computed.tolist(), strict=True)))


def _own_factors(known: Sequence[CorpusStep], workloads: Mapping[Key, Workload], compute_s: Mapping[Key, float],
                 synced: Synced) -> dict[Key, float]:  # fmt: skip
    """The most probable factor on the compute time of each workload, by trying many: the prior holds it near 1."""
    tried = np.linspace(-0.7, 0.7, 141)
    costs: dict[Key, Array] = {}
    for step in known:
        base = _step(workloads[step.key], step.setting, seconds=1.0, compute_s=0.0)
        moving_s = synced.wall_scale * compute_s[step.key] / base.speed
        fixed_s = synced.seconds(base)
        noise = step.noise if step.noise is not None and len(step.blocks) > 1 else ONE_BLOCK
        off = (np.log(fixed_s + moving_s * np.exp(tried)) - np.log(step.seconds)) / math.hypot(SETTING_SPREAD, noise)
        cost = np.where(np.abs(off) <= 2, 0.5 * off**2, 2 * np.abs(off) - 2)
        costs[step.key] = costs.get(step.key, 0.5 * (tried / LABEL_SPREAD) ** 2) + cost
    return {key: float(np.exp(tried[int(np.argmin(cost))])) for key, cost in costs.items()}
