"""The uncertainty of a forecast: what is new about a question, beside everything that our parts have seen, to an interval.

The log error of a forecast has a scale on either side. Under a new stack its square is a sum: a base, and how far the answer
moves if one of its parts is off: the operators by their own error, the host, the communication or what moves through memory by a
factor, activations by their share of memory. A stack whose runs were measured has the scale of their errors, which rises and
falls from run to run as the sum does. Each thing that is new (device, model, scale ...) adds to the square of the scale. What it
adds, and gains, are fitted to forecasts of runs whose source, device, family or scale was left out of what counts as known. The
quantiles of error over scale come from the same rows (cross-conformal prediction, Vovk 2015), apart for known and new stacks.
Those of a known stack are mixed with its own, where runs count by how near they are to the question (weighted conformal
prediction, Tibshirani 2019). Where the stack is new, the errors of a publisher go together, so a random effect of publishers is
part of the quantiles. Steps and memory have a table each in one document, which `research/fits/intervals.py` makes.
"""

import bisect
import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from statistics import NormalDist
from typing import Any

from traincast.catalog import read_constants, usual_threads
from traincast.memo import Remember, compute
from traincast.noun import noun
from traincast.simulate import UPDATE
from traincast.spec import Cluster, Graph, Job, LogErrors, MemoryProfile, Parallelism, Stack
from traincast.units import NORMAL_90

DOCUMENT = Path(__file__).parent / "weights" / "certainty.json"
FEATURES = (
    "new stack", "new device", "new architecture", "new vendor", "device new to the stack", "new model family",
    "family new to the stack", "model new to the stack", "doublings of scale", "network new to the stack",
    "precision new to the stack", "compiled", "version new to the stack", "axis new to the stack",
)  # fmt: skip
"""What may be new, each as a number of at least 0."""
WIDEST, LEAST = 3.0, 1e-3
"""Log factors on either side of a forecast: a factor of twenty says already that nothing is known."""
HOST_BOUND = 0.5
"""A host, or late steps of rings, that need this share of the devices' time are worth a word."""


@noun
class Beliefs:
    """The constants of the document `uncertainty`, which says what each is and where it is from."""

    host_least_s: float
    host_most_s: float
    host_cpu_factor: float
    late_ring_step_s: float
    core_values_per_s: float
    core_samples_per_s: float
    sound_values_per_s: float
    few_workers: int
    most_workers: int
    link_factor: float
    fusion_factor: float
    data_factor: float
    most_operators: float
    most_doublings: float
    family_distance: float
    place_distance: float
    octave_distance: float
    pooled_models: float
    small_sample: float
    same_model: float
    unseen_device: float


@functools.cache
def beliefs() -> Beliefs:
    return read_constants(Beliefs, "uncertainty")


Sides = tuple[float, float]
"""(below the forecast, above it)."""
Sensitivity = Mapping[str, Sides]
"""How far an answer moves, as a log factor on either side, if one of its parts is off."""


def call_seconds(stack: Stack) -> float:
    """That an operator costs the host in the forward and the backward pass together."""
    return stack.forward_call_s + stack.backward_call_s + 2 * stack.launch_s


def feature_seconds(job: Job, plan: Parallelism, setting: "Setting") -> float:
    """That a loop takes for the features of the sound of one device's step, which it makes by itself (recurrent networks); 0 for
    other networks, whose loaders are taken to keep up."""
    if setting.family != "recurrent" or _keeps_up(job):
        return 0.0
    graph, fixed = job.graph, beliefs()
    core_s = count_read(graph) / fixed.sound_values_per_s + graph.batch_size / fixed.core_samples_per_s
    return plan.micro_batches * core_s


def loader_seconds(job: Job, plan: Parallelism, setting: "Setting") -> float:
    """That a usual loader takes for the inputs of a step of one device; 0 where the user or the stack says that it keeps up.
    Labels, which nothing reads before the loss, are not decoded."""
    if setting.family == "recurrent" or _keeps_up(job):
        return 0.0
    graph, fixed = job.graph, beliefs()
    core_s = count_read(graph) / fixed.core_values_per_s + graph.batch_size / fixed.core_samples_per_s
    return plan.micro_batches * core_s / count_workers(setting.device)


def _keeps_up(job: Job) -> bool:
    says = (job.loading_samples_per_s, job.decode_samples_per_s, job.storage_bytes_per_s)
    return job.stack.recipe.keeps_fed or any(one is not None for one in says)


def count_workers(device: str) -> float:
    """Cores that make a device's inputs."""
    threads, fixed = usual_threads(device), beliefs()
    cores = fixed.most_workers if threads is None else threads / 2
    return float(min(max(cores, fixed.few_workers), fixed.most_workers))


def count_read(graph: Graph) -> int:
    """Values of the inputs that the first half of the forward pass reads."""
    forward = [op for op in graph.ops if op.phase == "forward"]
    early = {index for op in forward[: (len(forward) + 1) // 2] for index in op.reads}
    return sum(graph.tensors[index].numel for index in early if graph.tensors[index].role == "input")


def step_sensitivity(
    *,
    operators: float,
    host: float,
    exposed: float,
    bandwidth: float,
    call_s: float | None = None,
    inputs: float = 0.0,
    ring_steps_per_s: float = 0.0,
    by_data: bool = False,
) -> dict[str, Sides]:
    """`operators`: the log error that the operators' own intervals give the step. `host`: the host's time to issue a step over
    the devices' to do it; `call_s`: what a call was taken to cost for that. `exposed`: the share of the step in communication
    that nothing hides. `bandwidth`: that in kernels that memory limits, which a stack may fuse. `inputs`: the time in which
    the loop makes the features of a step, over the step's: one host in twenty is slower, which is 1.6 standard deviations.
    `ring_steps_per_s`: steps of rings between nodes that kernels wait for, in a second of the devices' time. `by_data`: what
    some operators do depends on the data."""
    fixed = beliefs()
    call_s = fixed.host_least_s if call_s is None else call_s
    unsure = min(max(0.0, operators), fixed.most_operators)
    share, fused = min(max(0.0, exposed), 1.0), min(max(0.0, bandwidth), 1.0)
    slower, faster = (
        max(fixed.host_cpu_factor, fixed.host_most_s / call_s),
        max(fixed.host_cpu_factor, call_s / fixed.host_least_s),
    )
    return {
        "operators": (unsure, unsure),
        "host": (_log_wait(host) - _log_wait(host / faster), _log_wait(host * slower) - _log_wait(host)),
        "fusion": (-math.log(1 - fused * (1 - 1 / fixed.fusion_factor)), 0.0),
        "communication": (
            -math.log(1 - share * (1 - 1 / fixed.link_factor)),
            math.log(1 + share * (fixed.link_factor - 1)),
        ),
        "latency": (0.0, math.log1p(ring_steps_per_s * fixed.late_ring_step_s)),
        "inputs": (0.0, _log_wait(inputs) / NORMAL_90),
        "data": (0.0, math.log(fixed.data_factor) if by_data else 0.0),
    }


def _log_wait(beside: float) -> float:
    """The log of how much longer a step is beside which something else takes so many times as long. Neither is even over the
    step, so what is half as long already holds parts of it up: squares add up."""
    return math.log(math.hypot(1.0, max(0.0, beside)))


def memory_sensitivity(*, activations: float, beside: float) -> dict[str, Sides]:
    """By their shares of the peak."""
    return {"activations": (activations, activations), "beside": (beside, beside)}


@noun
class Cell:
    """Errors of runs of one stack that are alike."""

    family: str
    architecture: str
    precision: str
    octave: int
    """Of the number of devices."""
    num_rows: int
    values: tuple[float, ...]
    """Quantiles of their errors over their scales, evenly spaced."""

    def nearness(self, setting: "Setting") -> float:
        """1 for runs like the question's; smaller for each thing that differs."""
        fixed = beliefs()
        distance = (
            fixed.family_distance * (self.family != setting.family)
            + fixed.place_distance * (self.architecture != setting.architecture)
            + fixed.place_distance * (self.precision != setting.precision)
            + fixed.octave_distance * abs(self.octave - octave_of(setting))
        )
        return math.exp(-distance)


NUM_POOLED = 40


def octave_of(setting: "Setting") -> int:
    return round(math.log2(max(1, setting.num_devices)))


@noun
class Experience:
    """What was measured of one stack, or of all of them together."""

    devices: frozenset[str] = frozenset()
    architectures: frozenset[str] = frozenset()
    vendors: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()
    precisions: frozenset[str] = frozenset()
    networks: frozenset[str] = frozenset()
    versions: frozenset[str] = frozenset()
    """Of the software, where tables say them."""
    axes: frozenset[str] = frozenset()
    """Of parallelism, beside plain replicas."""
    models: frozenset[tuple[str, int]] = frozenset()
    """Sort of network and number of parameters."""
    most_devices: int = 1
    compiled: bool = False
    """Compiled steps were measured."""
    eager: bool = False
    """Steps that run op by op were measured."""
    log_sigma: Sides = (0.0, 0.0)
    """The scale of the log errors of its own runs; 0: too few to tell."""
    usual: Sides = (1.0, 1.0)
    """The scale that runs like its own would have under a new stack, by their parts."""
    num_models: int = 0
    num_publishers: int = 1
    """That ran it."""
    cells: tuple[Cell, ...] = ()
    """Its own errors, alike ones together."""

    @property
    def has_scale(self) -> bool:
        return self.log_sigma[1] > 0

    def joined(self, other: "Experience") -> "Experience":
        return Experience(
            devices=self.devices | other.devices,
            architectures=self.architectures | other.architectures,
            vendors=self.vendors | other.vendors,
            families=self.families | other.families,
            precisions=self.precisions | other.precisions,
            networks=self.networks | other.networks,
            versions=self.versions | other.versions,
            axes=self.axes | other.axes,
            models=self.models | other.models,
            most_devices=max(self.most_devices, other.most_devices),
            compiled=self.compiled or other.compiled,
            eager=self.eager or other.eager,
        )


_SEEN = ("devices", "architectures", "vendors", "families", "precisions", "networks", "versions", "axes")


@noun
class Setting:
    """What of a question decides how new it is."""

    stack: str
    device: str
    architecture: str
    vendor: str
    family: str
    precision: str
    network: str
    """Kind of the network between nodes; empty on one node."""
    num_devices: int
    num_nodes: int
    compiled: bool
    version: str = ""
    """Of the stack, where the question says it."""
    parameters: int = 0
    """Of the model; 0: not told."""
    axes: tuple[str, ...] = ()
    """Of parallelism that the plan uses, beside plain replicas."""

    def as_experience(self) -> Experience:
        return Experience(
            devices=frozenset({self.device}),
            architectures=frozenset({self.architecture}),
            vendors=frozenset({self.vendor}),
            families=frozenset({self.family}),
            precisions=frozenset({self.precision}),
            networks=frozenset({self.network} - {""}),
            versions=frozenset({self.version} - {""}),
            axes=frozenset(self.axes),
            models=frozenset({(self.family, self.parameters)}),
            most_devices=self.num_devices,
            compiled=self.compiled,
            eager=not self.compiled,
        )


def describe_setting(job: Job, cluster: Cluster, plan: Parallelism, *, remember: Remember = compute) -> Setting:
    """A job, a cluster and a plan to what may be new about them."""
    axes = tuple([name for name in AXES if getattr(plan, name) > 1])
    return remember(_describe, job.graph, job.stack, job.compiled, cluster, plan.num_devices, axes)


AXES = ("tensor", "pipeline", "context", "expert")


def _describe(
    graph: Graph, stack: Stack, compiled: bool, cluster: Cluster, num_devices: int, axes: tuple[str, ...]
) -> Setting:
    slowest = min(cluster.groups, key=lambda group: group.device.memory_bytes_per_s)
    num_nodes = sum(group.num_nodes for group in cluster.groups)
    return Setting(
        stack=stack.name,
        device=slowest.device.name,
        architecture=slowest.device.architecture,
        vendor=slowest.device.vendor,
        family=find_family(graph),
        precision=find_precision(graph),
        network=slowest.inter.transport or slowest.inter.kind or "unknown" if num_nodes > 1 else "",
        num_devices=num_devices,
        num_nodes=num_nodes,
        compiled=compiled,
        version=stack.version,
        parameters=graph.num_parameters,
        axes=axes,
    )


def find_family(graph: Graph) -> str:
    """What sort of network a graph is, by where its FLOP are: no name is looked at."""
    flop: dict[str, float] = {}
    moved: dict[str, float] = {}
    has_experts = False
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        flop[op.kind] = flop.get(op.kind, 0.0) + (op.flop or 0.0) * count
        moved[op.kind] = moved.get(op.kind, 0.0) + op.num_bytes * count
        has_experts = has_experts or "experts" in op.layer.split(".")
    whole = sum(flop.values()) or 1.0
    attends = "attention" in flop or "softmax" in flop
    if has_experts:
        return "mixture of experts"
    if flop.get("conv", 0.0) > 0.3 * whole:
        return "convolution and attention" if attends and flop.get("matmul", 0.0) > 0.2 * whole else "convolution"
    if flop.get("rnn", 0.0) > 0.1 * whole:
        return "recurrent"
    if moved.get("embedding", 0.0) > 0.1 * sum(moved.values()) or moved.get("index", 0.0) > 0.2 * sum(moved.values()):
        return "tables"
    return "transformer" if attends else "dense"


def find_precision(graph: Graph) -> str:
    """The arithmetic of most of the products' FLOP."""
    flop: dict[str, float] = {}
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        if op.kind in ("matmul", "conv", "attention", "rnn"):
            flop[op.dtype] = flop.get(op.dtype, 0.0) + (op.flop or 0.0) * count
    return max(flop, key=lambda dtype: flop[dtype], default="fp32")


def join_all(known: Mapping[str, Experience]) -> Experience:
    """Of all stacks together."""
    return functools.reduce(Experience.joined, known.values(), Experience())


def has_model(models: frozenset[tuple[str, int]], setting: Setting) -> bool:
    """Whether a network of the question's sort and size is among these."""
    if not setting.parameters:
        return True
    low, high = setting.parameters / beliefs().same_model, setting.parameters * beliefs().same_model
    return any(low <= size <= high for family, size in models if family == setting.family)


def list_novelty(
    setting: Setting, known: Mapping[str, Experience], *, everything: Experience | None = None
) -> tuple[float, ...]:
    """The numbers of `FEATURES`. `everything`: all that is known together, where it was joined before."""
    everything = join_all(known) if everything is None else everything
    own = known.get(setting.stack)
    if own is not None and not own.has_scale:
        # A handful of runs says what was seen, not how far off forecasts for the stack are.
        own = None
    beside = own or everything
    scale = math.log2(setting.num_devices / max(1, beside.most_devices)) if setting.num_devices else 0.0
    return (
        float(own is None),
        float(setting.device not in everything.devices),
        float(setting.architecture not in everything.architectures),
        float(setting.vendor not in everything.vendors),
        float(setting.device in everything.devices and setting.device not in beside.devices),
        float(setting.family not in everything.families),
        float(setting.family in everything.families and setting.family not in beside.families),
        float(not has_model(beside.models, setting)),
        min(max(0.0, scale), beliefs().most_doublings),
        float(bool(setting.network) and setting.network not in beside.networks),
        float(setting.precision not in beside.precisions),
        float(not (beside.compiled if setting.compiled else beside.eager)),
        float(own is not None and bool(setting.version) and bool(own.versions) and setting.version not in own.versions),
        float(len(set(setting.axes) - beside.axes)),
    )


LEVELS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995)
STEP, MEMORY = "step", "memory"
"""The quantities that were measured often enough to have a table."""


@noun
class Quantiles:
    """Of error over scale, at the levels of `LEVELS`: measured over forecast, in logs."""

    values: tuple[float, ...]
    num_rows: int

    def errors(self, low: float = 1.0, high: float = 1.0, *, apart: float = 0.0) -> LogErrors:
        """With the scales of either side, of which how often a measurement is below the forecast depends on neither; and with a
        normal effect of that deviation which all errors of a publisher share."""
        points = list(zip(LEVELS, self.values, strict=True))
        for (level, value), (above, larger) in itertools.pairwise(points):
            if value < 0 < larger:
                points.append((level + (above - level) * value / (value - larger), 0.0))
                break
        points.sort()
        scaled = [_join(level, (low if x < 0 else high) * x, apart) for level, x in points]
        return LogErrors(levels=tuple([level for level, _ in points]), values=tuple(scaled))


def _join(level: float, error: float, apart: float) -> float:
    """The quantile of an error and of a normal effect of a publisher together: on one side their squares add up."""
    effect = apart * NORMAL.inv_cdf(level)
    joined = math.copysign(math.hypot(error, effect), error) if error * effect > 0 else error
    return max(-WIDEST, min(WIDEST, joined))


NORMAL = NormalDist()
NEW_STACK, KNOWN_STACK = "new stack", "known stack"
Factors = tuple[Sides, ...]
NO_FACTORS: Factors = ((0.0, 0.0),) * len(FEATURES)


def add_novelty(factors: Factors, novelty: Sequence[float]) -> Sides:
    """What is new adds to the square of the scale on either side, as a share of it: squares of things that are apart add up, and
    so do those of several doublings."""
    new = [(one, amount) for one, amount in zip(factors, novelty, strict=True) if amount]
    return (
        sum(amount * math.expm1(2 * one[0]) for one, amount in new),
        sum(amount * math.expm1(2 * one[1]) for one, amount in new),
    )


def mix_quantiles(pooled: Quantiles, own: Experience, setting: Setting) -> Quantiles:
    """Of a stack's own errors, the near ones first, mixed with those of all stacks together."""
    nearness = [cell.nearness(setting) for cell in own.cells]
    num_rows = sum(cell.num_rows for cell in own.cells)
    # A stack whose runs are all far from the question says less than all stacks together.
    points = [
        (value, own.num_models * near * cell.num_rows / num_rows / len(cell.values))
        for cell, near in zip(own.cells, nearness, strict=True)
        for value in cell.values
    ]
    middles = [(place + 0.5) / NUM_POOLED for place in range(NUM_POOLED)]
    points += [(interpolate(level, LEVELS, pooled.values), beliefs().pooled_models / NUM_POOLED) for level in middles]
    points.sort()
    places, whole = [], 0.0
    for _, weight in points:
        places.append(whole + weight / 2)
        whole += weight
    values = [value for value, _ in points]
    wider = 1 + beliefs().small_sample / count_near(own, setting)
    mixed = tuple([wider * interpolate(level * whole, places, values) for level in LEVELS])
    return Quantiles(values=mixed, num_rows=num_rows)


def count_near(own: Experience, setting: Setting) -> float:
    """As how many runs those of a stack count, the near ones most (the effective size of a weighted sample, Kish 1965)."""
    pairs = [(cell.nearness(setting), cell.num_rows) for cell in own.cells]
    return sum(near * number for near, number in pairs) ** 2 / sum(near**2 * number for near, number in pairs)


def interpolate(at: float, places: Sequence[float], values: Sequence[float]) -> float:
    """Between rising places; beyond them the first or last value."""
    above = bisect.bisect_left(places, at)
    if above == 0:
        return values[0]
    if above == len(places):
        return values[-1]
    low, high = places[above - 1], places[above]
    return values[above - 1] + (values[above] - values[above - 1]) * (at - low) / (high - low)


@noun
class Certainty:
    """The fitted table of one quantity."""

    known: Mapping[str, Experience] = field(default_factory=dict)
    base: Sides = (0.1, 0.1)
    """The scale of the log error of a new stack about which nothing else is new and no part is off."""
    factors: Mapping[str, Factors] = field(default_factory=lambda: dict.fromkeys((NEW_STACK, KNOWN_STACK), NO_FACTORS))
    """By sort of stack: the log of what one unit of each feature, alone, multiplies the scale of either side by."""
    gains: Sensitivity = field(default_factory=dict)
    """What one unit of each sensitivity adds to the scale of a new stack, in quadrature."""
    share: Sides = (0.0, 0.0)
    """How far the scale of a stack whose runs were measured follows that of a new one from run to run, as a power."""
    quantiles: Mapping[str, Quantiles] = field(default_factory=dict)
    """By sort of novelty (`sort_of`), with "" for all rows."""
    apart: float = 0.0
    """Standard deviation of what log errors of a publisher have in common under a stack that others measured: whoever asks is
    a publisher that was never seen."""
    given: Mapping[str, Quantiles] = field(default_factory=dict)
    """Of error over scale that remained once something was measured, by what that was."""
    _mixed: dict[tuple[str, Setting], Quantiles] = field(default_factory=dict, compare=False, repr=False)
    _joined: list[Experience] = field(default_factory=list, compare=False, repr=False)

    def novelty_of(self, setting: Setting) -> tuple[float, ...]:
        """What is new about a question beside all that is known."""
        if not self._joined:
            self._joined.append(join_all(self.known))
        return list_novelty(setting, self.known, everything=self._joined[0])

    def parts(self, sensitivity: Sensitivity, *, without: str = "") -> Sides:
        """The scale under a new stack about which nothing else is new. `without`: a part that is not off."""
        found = [
            math.hypot(
                self.base[side],
                *(gain[side] * sensitivity[name][side] for name, gain in self.gains.items() if name != without),
            )
            for side in (0, 1)
        ]
        return found[0], found[1]

    def scales(self, novelty: Sequence[float], sensitivity: Sensitivity, stack: str = "") -> Sides:
        """Of the log error below and above a forecast. A stack whose runs were measured has its own."""
        own = self.known.get(stack)
        parts = self.parts(sensitivity)
        if own is None or not own.has_scale:
            more = [1 + added for added in add_novelty(self.factors[NEW_STACK], novelty)]
            return math.sqrt(more[0]) * parts[0], math.sqrt(more[1]) * parts[1]
        found = [own.log_sigma[i] * (parts[i] / own.usual[i]) ** self.share[i] for i in (0, 1)]
        # That a stack's measured runs err to one side says nothing about what is new, so its factors multiply what both sides
        # have in common. The geometric mean, because what may be late (inputs) lengthens steps and shortens none.
        added = add_novelty(self.factors[KNOWN_STACK], novelty)
        low, high = (math.sqrt(one**2 + more * found[0] * found[1]) for one, more in zip(found, added, strict=True))
        return low, high

    def errors(self, novelty: Sequence[float], sensitivity: Sensitivity, setting: Setting | None = None) -> LogErrors:
        """How measurements lie about such a forecast; `setting`: of the question, None: under a stack that nobody knows."""
        sort = sort_of(novelty)
        table = self.quantiles.get(sort) or self.quantiles[""]
        own = self.known.get(setting.stack) if setting else None
        # Errors about what a stack's own publishers have in common, and about what the next one has: with one publisher both
        # effects count, with many the stack's own errors hold them.
        apart = self.apart * math.sqrt(2 / own.num_publishers) if own is not None and own.has_scale else 0.0
        if setting is not None and own is not None and own.has_scale and own.cells:
            # A table lives as long as its answers, and a question differs in little from the next.
            mixed = self._mixed.get((sort, setting))
            if mixed is None:
                mixed = self._mixed[sort, setting] = mix_quantiles(table, own, setting)
            table = mixed
        return table.errors(*self.scales(novelty, sensitivity, setting.stack if setting else ""), apart=apart)

    def interval(
        self,
        novelty: Sequence[float],
        sensitivity: Sensitivity,
        setting: Setting | None = None,
        *,
        coverage: float = 0.9,
    ) -> Sides:
        """Factors on a forecast that hold the measurement as often as `coverage` says; the forecast itself lies inside."""
        return clip_interval(self.errors(novelty, sensitivity, setting).interval(coverage))


def clip_interval(ends: Sides) -> Sides:
    """With the forecast inside, and no wider than says that nothing is known."""
    low, high = ends
    return max(math.exp(-WIDEST), min(low, math.exp(-LEAST))), min(math.exp(WIDEST), max(high, math.exp(LEAST)))


def sort_of(novelty: Sequence[float]) -> str:
    """The group whose quantiles are used: whether the stack that runs the job was measured."""
    return NEW_STACK if novelty[FEATURES.index("new stack")] else KNOWN_STACK


_SORTS = {
    "mixture of experts": "experts", "convolution": "convolutions", "convolution and attention": "convolutions and attention",
    "recurrent": "recurrent layers", "tables": "large embedding tables", "transformer": "attention", "dense": "plain layers only",
}  # fmt: skip
"""Sorts of models (`find_family`) by what they have, in a reader's words."""
_NETWORKS = {
    "infiniband": "InfiniBand",
    "roce": "RoCE",
    "efa": "EFA",
    "sockets": "plain Ethernet (TCP)",
    "slingshot": "Slingshot",
}


def _say_network(transport: str) -> str:
    if transport in ("", "unknown"):
        return "no such network"
    return f"no {_NETWORKS.get(transport, transport)} network"


def describe_novelty(
    novelty: Sequence[float],
    setting: Setting,
    *,
    host: float = 0.0,
    loader: float = 0.0,
    ring_steps_per_s: float = 0.0,
    by_data: bool = False,
) -> tuple[str, ...]:
    """What is new, in words, the most telling first. `loader`: the time of a usual loader over the step's, which no interval
    holds. The rest: as in `step_sensitivity`."""
    says = {
        "new stack": f"no run of the stack {setting.stack} was measured",
        "version new to the stack": f"version {setting.version} of {setting.stack} was not measured",
        "new vendor": f"no device of {setting.vendor or 'this vendor'} was measured",
        "new architecture": f"no device of the architecture {setting.architecture or 'unknown'} was measured",
        "new device": f"{setting.device} was not measured",
        "device new to the stack": f"{setting.device} was not measured with {setting.stack}",
        "new model family": f"no model with {_SORTS.get(setting.family, setting.family)} was measured",
        "family new to the stack": (
            f"no model with {_SORTS.get(setting.family, setting.family)} was measured with {setting.stack}"
        ),
        "model new to the stack": f"no model of this kind with {_say_size(setting.parameters)} was measured with {setting.stack}",
        "doublings of scale": f"{setting.num_devices:,} devices are more than were measured with {setting.stack}",
        "network new to the stack": f"{_say_network(setting.network)} was measured with {setting.stack}",
        "precision new to the stack": f"{setting.precision} was not measured with {setting.stack}",
        "axis new to the stack": f"{_say_axes(setting.axes)} parallelism was not measured with {setting.stack}",
        "compiled": f"{'no' if setting.compiled else 'nothing but'} compiled steps were measured with {setting.stack}",
    }
    values = dict(zip(FEATURES, novelty, strict=True))
    if any(values[name] > 0 for name in ("new stack", "new model family", "family new to the stack")):
        del says["model new to the stack"]
    found = [text for name, text in says.items() if values[name] > 0]
    if values["new stack"] and by_data:
        found.insert(1, f"what the host does by the data (boxes, regions) was not measured with {setting.stack}")
    if values["new stack"] and host > HOST_BOUND:
        found.insert(1, f"what a call costs the host was not measured with {setting.stack}")
    if values["new stack"] and ring_steps_per_s * beliefs().late_ring_step_s > HOST_BOUND:
        found.insert(1, f"what rings between nodes cost that kernels wait for was not measured with {setting.stack}")
    if loader > 1:
        found.insert(
            1, f"the loader is taken to keep up; a usual one takes {loader:.1f} times as long as the step (--loading)"
        )
    return tuple(found)


def _say_axes(axes: Sequence[str]) -> str:
    return " and ".join([", ".join(axes[:-1]), axes[-1]] if len(axes) > 1 else axes)


def _say_size(parameters: int) -> str:
    name, unit = ("billion", 1e9) if parameters >= 1e9 else ("million", 1e6)
    return f"{parameters / unit:.3g} {name} parameters"


@functools.cache
def load_certainty(quantity: str = STEP, path: Path = DOCUMENT) -> Certainty:
    """A table of the shipped document."""
    return read_certainty(json.loads(path.read_text())[quantity])


STATE_ROLES = ("parameter", "optimizer_state", "gradient", "buffer", "input", "cache", UPDATE)
"""What of a peak follows from the weights and the plan alone."""


def activation_share(profile: MemoryProfile) -> float:
    """Of the peak."""
    return profile.by_role.get("activation", 0.0) / profile.peak_bytes if profile.peak_bytes else 0.0


def beside_share(profile: MemoryProfile) -> float:
    """Of what is neither state nor activation: buckets, gathered inputs and weights, workspaces, the allocator's own."""
    known = sum(amount for role, amount in profile.by_role.items() if role in (*STATE_ROLES, "activation"))
    return max(0.0, 1 - known / profile.peak_bytes) if profile.peak_bytes else 0.0


def memory_errors(setting: Setting, profile: MemoryProfile) -> LogErrors:
    """How the needs of such runs lie about their forecasts."""
    return _memory_errors(setting, round(activation_share(profile), 2), round(beside_share(profile), 2))


def hopeful_memory_errors(setting: Setting, profile: MemoryProfile) -> LogErrors:
    """Errors under which a need that is only a bound is no less likely to fit than whatever it bounds: the narrowest where it is
    below the device, the widest where it is above."""
    share = float(profile.needed_bytes > profile.capacity_bytes)
    return _memory_errors(setting, share, share)


@functools.lru_cache(maxsize=16384)
def _memory_errors(setting: Setting, activations: float, beside: float) -> LogErrors:
    certainty = load_certainty(MEMORY)
    novelty = certainty.novelty_of(setting)
    return certainty.errors(novelty, memory_sensitivity(activations=activations, beside=beside), setting)


def read_certainty(data: Mapping[str, Any]) -> Certainty:
    known = {
        name: Experience(
            **{key: frozenset(entry.get(key, ())) for key in _SEEN},
            models=frozenset((family, size) for family, size in entry.get("models", ())),
            most_devices=entry["most_devices"],
            compiled=entry["compiled"],
            eager=entry.get("eager", True),
            log_sigma=_read_sides(entry["log_sigma"]),
            usual=_read_sides(entry["usual"]),
            num_models=entry.get("num_models", 0),
            num_publishers=entry.get("num_publishers", 1),
            cells=tuple([Cell(**{**cell, "values": tuple(cell["values"])}) for cell in entry.get("cells", ())]),
        )
        for name, entry in data["known"].items()
    }
    factors = {
        sort: tuple(_read_sides(table.get(name, (0.0, 0.0))) for name in FEATURES)
        for sort, table in data["factors"].items()
    }
    return Certainty(
        known=known,
        base=_read_sides(data["base"]),
        factors=factors,
        gains={name: _read_sides(ends) for name, ends in data["gains"].items()},
        share=_read_sides(data["share"]),
        quantiles=_read_quantiles(data["quantiles"]),
        given=_read_quantiles(data["given"]),
        apart=data.get("apart", 0.0),
    )


def _read_sides(values: Sequence[float]) -> Sides:
    low, high = values
    return low, high


def _read_quantiles(data: Mapping[str, Any]) -> dict[str, Quantiles]:
    return {name: Quantiles(values=tuple(entry["values"]), num_rows=entry["num_rows"]) for name, entry in data.items()}
