"""How sure a forecast is: what is new about a question, beside everything that our parts have seen, to an interval.

The log error of a forecast has a scale of its own, `log_sigma`: a base, times a factor for each thing that is new (stack,
device, model family, scale ...), times how unsure the operators are. The factors are fitted to forecasts of runs whose source,
device, family or scale was left out of what counts as known. The quantiles of error over scale come from the same rows
(cross-conformal prediction, Vovk 2015), apart for each sort of novelty. Where the stack is new, the errors of a publisher go
together, so a random effect of publishers is part of the quantiles. The lower and the upper quantile differ. Steps and memory
have a table each in one document, which `research/fits/intervals.py` makes.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincast.memo import Remember, compute
from traincast.spec import Cluster, Graph, Job, LogErrors, Parallelism

DOCUMENT = Path(__file__).parent / "weights" / "certainty.json"
MOST_DOUBLINGS = 6.0
"""Beyond this many doublings of the largest measured scale the interval grows no further."""
FEATURES = (
    "new stack", "new device", "new architecture", "new vendor", "device new to the stack", "new model family",
    "family new to the stack", "doublings of scale", "several nodes", "network new to the stack", "precision new to the stack",
    "compiled", "unsure operators", "host-bound",
)  # fmt: skip
"""What may be new, each as a number of at least 0. The last two are of every step: the log of the operators' own error over an
ordinary one, and the host's time to issue the work as a share of the devices' to do it, whose constants no other stack tells."""
WIDEST, LEAST = 3.0, 1e-3
"""Log factors on either side of a forecast: a factor of twenty says already that nothing is known."""
MOST_UNSURE = 1.5
"""The operators' own error counts up to this log ratio: beyond it their intervals say only that nothing is known."""
HOST_BOUND = 0.5
"""A host that needs this share of the devices' time is worth a word."""
ORDINARY_OPERATORS = 0.08
"""The operators' share of the log error of an ordinary step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What was measured of one stack, or of all of them together."""

    devices: frozenset[str] = frozenset()
    architectures: frozenset[str] = frozenset()
    vendors: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()
    precisions: frozenset[str] = frozenset()
    networks: frozenset[str] = frozenset()
    most_devices: int = 1
    compiled: bool = False
    log_sigma: float = 0.0
    """The scale of the log errors of its own runs; 0: too few to tell."""
    unsure: float = 0.0
    """How unsure the operators of those runs were, as `FEATURES` counts it."""
    host: float = 0.0
    """How host-bound those runs were."""

    def joined(self, other: "Experience") -> "Experience":
        return Experience(
            devices=self.devices | other.devices,
            architectures=self.architectures | other.architectures,
            vendors=self.vendors | other.vendors,
            families=self.families | other.families,
            precisions=self.precisions | other.precisions,
            networks=self.networks | other.networks,
            most_devices=max(self.most_devices, other.most_devices),
            compiled=self.compiled or other.compiled,
        )


_SEEN = ("devices", "architectures", "vendors", "families", "precisions", "networks")


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def as_experience(self) -> Experience:
        return Experience(
            devices=frozenset({self.device}),
            architectures=frozenset({self.architecture}),
            vendors=frozenset({self.vendor}),
            families=frozenset({self.family}),
            precisions=frozenset({self.precision}),
            networks=frozenset({self.network} - {""}),
            most_devices=self.num_devices,
            compiled=self.compiled,
        )


def describe_setting(job: Job, cluster: Cluster, plan: Parallelism, *, remember: Remember = compute) -> Setting:
    """A job, a cluster and a plan to what may be new about them."""
    slowest = min(cluster.groups, key=lambda group: group.device.memory_bytes_per_s)
    num_nodes = sum(group.num_nodes for group in cluster.groups)
    return Setting(
        stack=job.stack.name,
        device=slowest.device.name,
        architecture=slowest.device.architecture,
        vendor=slowest.device.vendor,
        family=remember(find_family, job.graph),
        precision=remember(find_precision, job.graph),
        network=slowest.inter.transport or slowest.inter.kind or "unknown" if num_nodes > 1 else "",
        num_devices=plan.num_devices,
        num_nodes=num_nodes,
        compiled=job.compiled,
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


def list_novelty(
    setting: Setting, known: Mapping[str, Experience], *, operators: float, host: float = 0.0
) -> tuple[float, ...]:
    """The numbers of `FEATURES`. `operators`: the log error that the operators' own intervals give the step. `host`: the host's
    time to issue a step over the devices' to do it."""
    everything = functools.reduce(Experience.joined, known.values(), Experience())
    own = known.get(setting.stack)
    if own is not None and not own.log_sigma:
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
        min(max(0.0, scale), MOST_DOUBLINGS),
        float(setting.num_nodes > 1),
        float(bool(setting.network) and setting.network not in beside.networks),
        float(setting.precision not in beside.precisions),
        float(setting.compiled and not beside.compiled),
        min(max(0.0, math.log(max(operators, 1e-3) / ORDINARY_OPERATORS)), MOST_UNSURE),
        min(max(0.0, host), 1.0),
    )


LEVELS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995)
STEP, MEMORY = "step", "memory"
"""The quantities that were measured often enough to have a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Of error over scale, at the levels of `LEVELS`: measured over forecast, in logs."""

    values: tuple[float, ...]
    num_rows: int

    def errors(self, scale: float = 1.0) -> LogErrors:
        return LogErrors(levels=LEVELS, values=tuple([max(-WIDEST, min(WIDEST, scale * x)) for x in self.values]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty:
    """The fitted table of one quantity."""

    known: Mapping[str, Experience] = field(default_factory=dict)
    base: float = 0.12
    """The scale of the log error of a question about which nothing is new."""
    factors: tuple[float, ...] = (0.0,) * len(FEATURES)
    """What each feature adds to the log of the scale."""
    quantiles: Mapping[str, Quantiles] = field(default_factory=dict)
    """By sort of novelty (`sort_of`), with "" for all rows."""
    given: Mapping[str, Quantiles] = field(default_factory=dict)
    """Of the log errors themselves that remained once something was measured, by what that was."""

    def log_sigma(self, novelty: Sequence[float], stack: str = "") -> float:
        """The scale of the log error. A stack whose runs were measured has its own, which holds what is usual for them; anything
        else starts from that of all."""
        own = self.known.get(stack)
        if own is None or not own.log_sigma:
            return self.base * math.exp(sum(a * b for a, b in zip(self.factors, novelty, strict=True)))
        beyond = beyond_usual(novelty, own)
        return own.log_sigma * math.exp(sum(a * b for a, b in zip(self.factors, beyond, strict=True)))

    def errors(self, novelty: Sequence[float], stack: str = "") -> LogErrors:
        """How measurements lie about such a forecast."""
        table = self.quantiles.get(sort_of(novelty)) or self.quantiles[""]
        return table.errors(self.log_sigma(novelty, stack))

    def interval(self, novelty: Sequence[float], stack: str = "", *, coverage: float = 0.9) -> tuple[float, float]:
        """Factors on a forecast that hold the measurement as often as `coverage` says; the forecast itself lies inside."""
        low, high = self.errors(novelty, stack).interval(coverage)
        return (
            max(math.exp(-WIDEST), min(low, math.exp(-LEAST))),
            min(math.exp(WIDEST), max(high, math.exp(LEAST))),
        )


def beyond_usual(novelty: Sequence[float], own: Experience) -> tuple[float, ...]:
    """What is new beyond what runs of the stack were usually like, which its own scale holds already."""
    usual = {
        "several nodes": min(1.0, float(len(own.networks))),
        "unsure operators": own.unsure,
        "host-bound": own.host,
    }
    return tuple([max(0.0, amount - usual.get(name, 0.0)) for name, amount in zip(FEATURES, novelty, strict=True)])


def sort_of(novelty: Sequence[float]) -> str:
    """The group whose quantiles are used: whether the stack that runs the job was measured."""
    return "new stack" if novelty[FEATURES.index("new stack")] else "known stack"


def describe_novelty(novelty: Sequence[float], setting: Setting) -> tuple[str, ...]:
    """What is new, in words, the most telling first."""
    says = {
        "new stack": f"no run of the stack {setting.stack} was measured",
        "new vendor": f"no device of {setting.vendor or 'this vendor'} was measured",
        "new architecture": f"no device of the architecture {setting.architecture or 'unknown'} was measured",
        "new device": f"{setting.device} was not measured",
        "device new to the stack": f"{setting.device} was not measured with {setting.stack}",
        "new model family": f"no network of the sort '{setting.family}' was measured",
        "family new to the stack": f"no network of the sort '{setting.family}' was measured with {setting.stack}",
        "doublings of scale": f"{setting.num_devices:,} devices are more than were measured with {setting.stack}",
        "network new to the stack": f"no {setting.network or 'such'} network was measured with {setting.stack}",
        "precision new to the stack": f"{setting.precision} was not measured with {setting.stack}",
        "compiled": f"no compiled step was measured with {setting.stack}",
    }
    values = dict(zip(FEATURES, novelty, strict=True))
    found = [text for name, text in says.items() if values[name] > 0]
    if values["new stack"] and values["host-bound"] > HOST_BOUND:
        found.insert(1, f"the host's share of the time is that of plain PyTorch, not of {setting.stack}")
    return tuple(found)


@functools.cache
def load_certainty(quantity: str = STEP, path: Path = DOCUMENT) -> Certainty:
    """A table of the shipped document."""
    return read_certainty(json.loads(path.read_text())[quantity])


@functools.lru_cache(maxsize=4096)
def memory_errors(setting: Setting) -> LogErrors:
    """How the needs of such runs lie about their forecasts."""
    certainty = load_certainty(MEMORY)
    novelty = list_novelty(setting, certainty.known, operators=ORDINARY_OPERATORS)
    return certainty.errors(novelty, setting.stack)


def read_certainty(data: Mapping[str, Any]) -> Certainty:
    known = {
        name: Experience(
            **{key: frozenset(entry[key]) for key in _SEEN},
            most_devices=entry["most_devices"],
            compiled=entry["compiled"],
            log_sigma=entry["log_sigma"],
            unsure=entry["unsure"],
            host=entry["host"],
        )
        for name, entry in data["known"].items()
    }
    factors = tuple(data["factors"].get(name, 0.0) for name in FEATURES)
    return Certainty(
        known=known,
        base=data["base"],
        factors=factors,
        quantiles=_read_quantiles(data["quantiles"]),
        given=_read_quantiles(data["given"]),
    )


def _read_quantiles(data: Mapping[str, Any]) -> dict[str, Quantiles]:
    return {name: Quantiles(values=tuple(entry["values"]), num_rows=entry["num_rows"]) for name, entry in data.items()}
