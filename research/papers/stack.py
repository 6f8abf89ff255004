"""Our model of the test-bed, layer by layer: operators, synchronisation, interaction, and what is known of the workload itself.

Every part can be switched off, which is the ablation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from research.corpus import Corpus, CorpusStep
from research.fits.interaction.network import Example, Training, fit_network
from traincast.cost import Interacting, Network, Synced, SyncedStep, fit_sync
from traincast.cost._interaction.features import Neighbourhood, describe
from traincast.errors import InvalidInput
from traincast.learn import (
    Amounts,
    Calibrated,
    Fit,
    Load,
    Peaks,
    gradients_of,
    operator_load,
    refit,
    start_fit,
    step_load,
    to_machine_rates,
)
from traincast.lower import lower
from traincast.profile import Setting
from traincast.simulate import simulate_step
from traincast.spec import (
    Cluster,
    CollectiveRates,
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
Result = TypeVar("Result")

PEAKS = Peaks(flop_per_s=2e10, bytes_per_s=5e9)
CORE = Device(name="test-bed core", memory_bytes=24e9, memory_bytes_per_s=PEAKS.bytes_per_s,
              vector_flop_per_s={"fp32": PEAKS.flop_per_s})  # fmt: skip
OWN_SPREAD, SETTING_SPREAD, LABEL_SPREAD = 0.1, 0.07, 0.1
"""How far a workload's compute may be from what layers say, a step of one setting from what its workload's others say, and one
worker's CPU time from that of a quiet machine, in log space."""
ONE_BLOCK = 0.1
"""Noise of a step that was visited once, in log space; of others their label says it."""


MIN_SINGLE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Which ideas are used."""

    layers: bool = True
    """Rates for each group of operators; off: one rate of computing and one of moving data for all."""
    operators: bool = True
    """Operators measured alone teach the rates too; off: whole steps only."""
    sync: bool = True
    """CPU time and latency of gradient synchronisation; off: bytes over the link's nominal rate."""
    steps: bool = True
    """Whole steps teach the rates; off: operators measured alone do, and nobody has seen them together."""
    interaction: bool = False
    """Off by default: it did not prove better on families left out (ADR 14)."""
    own: bool = True
    """Known steps of the same workload scale its compute time; off: a workload is only its graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A graph with what every forecast of it needs."""

    graph: Graph
    load: Load
    gradient_bytes: float
    num_gradients: int


def cluster_of(setting: Setting) -> Cluster:
    """Every node its own group: links and shares may differ."""
    groups = []
    for node in setting.nodes:
        link = Link(name="shaped", bytes_per_s=node.bits_per_s / 8, latency_s=node.latency_s, kind="ethernet")
        groups.append(
            NodeGroup(device=CORE, num_nodes=1, devices_per_node=1, intra=link, inter=link, speed=node.cpu_share)
        )
    return Cluster(name=setting.name, groups=tuple(groups))


def plan_of(graph: Graph, num_ranks: int) -> Parallelism:
    """DDP sends a bucket when it is full: gradients that fit into one leave when the backward pass is over."""
    plan = Parallelism(data=num_ranks)
    return replace(plan, overlap=graph.role_bytes("parameter") > plan.bucket_bytes)


def study_graph(key: Key, graph: Graph) -> Workload:
    gradient_bytes, num_gradients = gradients_of(graph)
    experiment = Experiment(subject="step", name=key[0], attrs={"batch": key[1]})
    return Workload(
        graph=graph,
        load=step_load(experiment, graph),
        gradient_bytes=gradient_bytes,
        num_gradients=num_gradients,
    )


def study_graphs(corpus: Corpus) -> dict[Key, Workload]:
    return {key: study_graph(key, graph) for key, graph in corpus.graphs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Everything fitted to the known steps."""

    calibration: MachineRates
    parts: Parts
    network: Network | None = None
    layers: "Layers | None" = None
    own: Mapping[Key, float] = field(default_factory=dict)
    """Factor on the compute time of a workload that has known steps."""

    def compute_s(self, workload: Workload) -> float:
        """CPU time of a step on a whole core, before anything is known of the workload itself."""
        seen = see(workload.graph, self.calibration)
        factors = self.network.factors(seen) if self.network is not None else 1.0
        return float((seen.seconds * seen.counts * factors).sum())

    def seconds(self, key: Key, workload: Workload, setting: Setting, *, compute_s: float | None = None) -> float:
        """The step in closed form: on the test-bed nothing overlaps, so it is what the simulator adds up."""
        compute_s = self.compute_s(workload) if compute_s is None else compute_s
        compute_s *= self.own.get(key, 1.0)
        synced = Synced(wall_scale=self.calibration.step_wall_scale, rates=self.calibration.collectives["all_reduce"])
        return step_seconds(_step(workload, setting, seconds=1.0, compute_s=compute_s), synced)

    def forecast(self, workload: Workload, setting: Setting) -> float:
        """The same by the way every forecast goes: lower, price, simulate."""
        program = lower(workload.graph, plan_of(workload.graph, setting.num_ranks))
        base = Calibrated(rates=self.calibration)
        costs = base if self.network is None else Interacting(base=base, network=self.network)
        cluster = cluster_of(setting)
        return simulate_step(program, [costs.estimate(stage, cluster) for stage in program.stages]).duration_s


def see(graph: Graph, calibration: MachineRates) -> Neighbourhood:
    """The operators of a step on one whole core, priced by the calibration."""
    stage = Stage(tasks=graph.ops, repeats=graph.repeats, tensors=graph.tensors)
    whole = replace(calibration, step_wall_scale=1.0)
    cluster = Cluster(name="core", groups=(_CORE_GROUP,))
    return describe(stage, Calibrated(rates=whole).estimate(stage, cluster))


_LINK = Link(name="none", bytes_per_s=1e9, latency_s=0.0)
_CORE_GROUP = NodeGroup(device=CORE, num_nodes=1, devices_per_node=1, intra=_LINK, inter=_LINK)


def _step(workload: Workload, setting: Setting, *, seconds: float, compute_s: float) -> SyncedStep:
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


def step_seconds(step: SyncedStep, synced: Synced) -> float:
    return synced.seconds(step)


NOMINAL = CollectiveRates(hop_s=0.0, bytes_per_s=1e15, link_efficiency=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Rates of the operators, and what they say of every workload: CPU seconds of its step."""

    calibration: MachineRates
    compute_s: Mapping[Key, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """What all fits share: the operators of every workload, and the measured ones, counted by group."""

    places: Mapping[Key, int]
    start: Fit
    amounts: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """Fits models to known steps of one corpus; fits that two questions share are done once."""

    corpus: Corpus
    workloads: Mapping[Key, Workload]
    training: Training = field(default_factory=Training)
    operators: tuple[tuple[Load, float], ...] = ()
    _cache: dict[object, object] = field(default_factory=dict)

    @staticmethod
    def of(corpus: Corpus, training: Training | None = None) -> "Learner":
        operators = [
            (operator_load(found.experiment), found.cpu_seconds or found.seconds)
            for found in corpus.operators
            if found.cpu_seconds or found.seconds
        ]
        return Learner(
            corpus=corpus, workloads=study_graphs(corpus), training=training or Training(), operators=tuple(operators)
        )

    def learn(self, known: Sequence[CorpusStep], parts: Parts | None = None, *, seed: int = 0) -> Model:
        chosen = parts or Parts()
        usable = [step for step in known if step.key in self.workloads]
        name = hash(tuple((step.key, step.setting.name) for step in usable))
        labels = self.once(("labels", name), lambda: self._clean(usable))
        layers = self.once(("layers", name, replace(chosen, sync=True, own=True, interaction=True)),
                           lambda: self._fit_layers(labels, chosen))  # fmt: skip
        network = None
        if chosen.interaction:
            network = self.once(
                ("network", name, replace(chosen, sync=True, own=True), seed),
                lambda: self._fit_network(labels, layers.calibration, seed),
            )
        synced = self.once(("sync", name), lambda: self._fit_sync(usable, dict(labels)))
        if not chosen.sync:
            synced = replace(synced, rates=NOMINAL)
        rates = {"all_reduce": synced.rates}
        model = Model(
            calibration=replace(layers.calibration, step_wall_scale=synced.wall_scale, collectives=rates),
            layers=layers,
            parts=chosen,
            network=network,
        )
        if not chosen.own:
            return model
        computed = {step.key: self.compute_s(model, step.key) for step in usable}
        return replace(model, own=_own_factors(usable, self.workloads, computed, synced, spread=OWN_SPREAD))

    def _clean(self, known: Sequence[CorpusStep]) -> tuple[tuple[Key, float], ...]:
        """CPU time of each known workload's step. One worker's was read directly, but once and on a shared machine; its other
        settings, less their synchronisation, were read at other times, and all of them together are steadier."""
        single = {step.key: step.cpu_seconds for step in known if step.setting.num_ranks == 1 and step.cpu_seconds}
        if len(single) < MIN_SINGLE:
            raise InvalidInput(
                f"{len(single)} known steps of one worker; at least {MIN_SINGLE} are needed to fit layers"
            )
        synced = self._fit_sync([step for step in known if step.key in single], single)
        layers = self._fit_layers(tuple(single.items()), Parts(operators=False))
        compute_s = {key: single.get(key) or layers.compute_s[key] for key in dict.fromkeys(s.key for s in known)}
        factors = _own_factors(known, self.workloads, compute_s, synced, spread=LABEL_SPREAD)
        return tuple((key, seconds * factors[key]) for key, seconds in compute_s.items())

    def compute_s(self, model: Model, key: Key) -> float:
        """Kept: the same graph is asked in a dozen settings."""
        if model.layers is not None and model.network is None:
            return model.layers.compute_s[key]
        # Layers and network live in the cache as long as this does, so their identities name them.
        name = ("compute", id(model.layers), id(model.network), key)
        return self.once(name, lambda: model.compute_s(self.workloads[key]))

    def answer(self, model: Model, step: CorpusStep) -> float:
        workload = self.workloads[step.key]
        return model.seconds(step.key, workload, step.setting, compute_s=self.compute_s(model, step.key))

    def once(self, name: object, make: Callable[[], Result]) -> Result:
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]  # type: ignore[return-value]

    def _frame(self) -> _Frame:
        def make() -> _Frame:
            keys = list(self.workloads)
            loads = [*(self.workloads[key].load for key in keys), *(load for load, _ in self.operators)]
            start = start_fit(loads, PEAKS)
            places = {key: place for place, key in enumerate(keys)}
            return _Frame(places=places, start=start, amounts=Amounts.of(loads, start.groups))

        return self.once("frame", make)

    def _fit_layers(self, labels: Sequence[tuple[Key, float]], parts: Parts) -> Layers:
        frame = self._frame()
        known = labels if parts.steps else ()
        rows = [frame.places[key] for key, _ in known]
        seconds = [took for _, took in known]
        if not parts.layers:
            fit = _fit_two_rates(frame, rows, seconds)
        else:
            if parts.operators:
                rows += range(len(frame.places), len(frame.amounts))
                seconds += [took for _, took in self.operators]
            fit = refit(frame.start, frame.amounts.pick(rows), seconds)
        computed = fit.predict(frame.amounts.pick(list(frame.places.values())))
        return Layers(calibration=_calibration(fit), compute_s=dict(zip(frame.places, computed.tolist(), strict=True)))

    def _fit_network(self, labels: Sequence[tuple[Key, float]], calibration: MachineRates, seed: int) -> Network:
        # One batch size of each architecture, small and large in turn: the other teaches little and costs as much.
        chosen = [pair for place, pair in enumerate(sorted(labels)) if (place // 2 + place) % 2 == 0]
        examples = [Example(seen=see(self.workloads[key].graph, calibration), seconds=took) for key, took in chosen]
        return fit_network(examples, replace(self.training, seed=seed))

    def _fit_sync(self, known: Sequence[CorpusStep], compute_s: Mapping[Key, float]) -> Synced:
        return fit_sync([
            _step(self.workloads[step.key], step.setting, seconds=step.seconds, compute_s=compute_s[step.key])
            for step in known
        ])  # fmt: skip


def _own_factors(known: Sequence[CorpusStep], workloads: Mapping[Key, Workload], compute_s: Mapping[Key, float],
                 synced: Synced, *, spread: float) -> dict[Key, float]:  # fmt: skip
    """The most probable factor on the compute time of each workload, by trying many: the prior holds it near 1."""
    tried = np.linspace(-0.7, 0.7, 141)
    costs: dict[Key, Array] = {}
    for step in known:
        base = _step(workloads[step.key], step.setting, seconds=1.0, compute_s=0.0)
        moving_s = synced.wall_scale * compute_s[step.key] / base.speed
        fixed_s = step_seconds(base, synced)
        noise = step.noise if step.noise is not None and len(step.blocks) > 1 else ONE_BLOCK
        off = (np.log(fixed_s + moving_s * np.exp(tried)) - np.log(step.seconds)) / math.hypot(SETTING_SPREAD, noise)
        cost = np.where(np.abs(off) <= 2, 0.5 * off**2, 2 * np.abs(off) - 2)
        costs[step.key] = costs.get(step.key, 0.5 * (tried / spread) ** 2) + cost
    return {key: float(np.exp(tried[int(np.argmin(cost))])) for key, cost in costs.items()}


def _calibration(fit: Fit) -> MachineRates:
    return to_machine_rates(
        fit, name="corpus", environment=Environment(device=CORE.name), loads=[], seconds=[], measuring_s=0.0
    )


def _fit_two_rates(frame: _Frame, rows: Sequence[int], seconds: Sequence[float]) -> Fit:
    """One rate of computing, one of moving data and one cost of a call for all kinds: the roofline's idea, fitted."""
    from research.baselines.ernest import nonnegative_least_squares

    matrix = frame.amounts.matrix[list(rows)]
    design = np.stack([matrix[:, 0::3].sum(axis=1), matrix[:, 1::3].sum(axis=1), matrix[:, 2::3].sum(axis=1)], axis=1)
    scale = design.max(axis=0)
    found = nonnegative_least_squares(design / scale / np.array(seconds)[:, None], np.ones(len(rows))) / scale
    overhead_s, s_per_flop, s_per_byte = (float(value) for value in found)
    return frame.start.with_one_rate(overhead_s=overhead_s, s_per_flop=s_per_flop, s_per_byte=s_per_byte)
