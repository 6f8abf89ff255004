"""A captured graph and its place to the factors between what physics derives of the twelve numbers and what is measured.

A graph network: operators hear those they read from and those that read them and are pooled by the share of the step that
each takes; a perceptron that also sees the setting turns the pool into corrections. They are bounded and fade to none outside of
the runs that taught them. Trained by `resources.train`; here only its exported weights run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.files import read_json, write_json
from traincast.resources._learned import (
    KIND_GROUPS,
    OUTPUTS,
    TIMED,
    WINDOW_S,
    Expected,
    Place,
    Rates,
    Work,
    compose,
    count_work,
    expect,
)
from traincast.spec import PHASES, RESOURCES, Graph, calls_of

Array = NDArray[np.float64]
Places = NDArray[np.intp]

WEIGHTS = Path(__file__).parent / "weights" / "twelve.json.gz"
FORMAT, VERSION = "traincast-resource-correction", 2
NUM_ROUNDS = 2
BOUNDS: Mapping[str, float] = {
    name: 1.0 if name == "step" else 3.0 if name.removesuffix("_share") in TIMED else 1.2 if name.endswith("_share") else 2.0
    for name in OUTPUTS
}  # fmt: skip
"""The largest correction: of logarithms, but for the shares of GPU and memory, which are corrected by a sum."""
FADE = 3.0
"""So many standard deviations outside of the training runs a correction is down to a third. Of 1, 2 and 3 the best on families
left out; what physics says alone of bursts is so poor that 1 was worse by three points."""
FLOOR = 0.1
"""An idle or burst time is judged against itself or, where shorter, against this share of the step."""
TWELVE = tuple(f"{resource}_{name}" for resource in RESOURCES for name in ("idle_s", "burst_s", "peak"))
NUM_NODE_FEATURES = len(KIND_GROUPS) + len(PHASES) + 7
NUM_PLACE_FEATURES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The operators of one step: what each is, what it amounts to, and who hands it a tensor."""

    features: Array
    amounts: Array
    """FLOP, bytes and calls of each kind of operator, one row for each operator: what rates are multiplied with."""
    writers: Places
    readers: Places
    """One pair for each tensor that is handed over."""
    work: Work


def read_nodes(graph: Graph, work: Work) -> Nodes:
    if not graph.ops:
        raise InvalidInput("a graph without operations has no resource numbers; capture a step that does something")
    features, amounts, pairs = [], np.zeros((len(graph.ops), 3, len(KIND_GROUPS))), set()
    totals = np.maximum([sum(work.flop), sum(work.num_bytes), sum(work.calls)], 1.0)
    wrote: dict[int, int] = {}
    for place, (op, count) in enumerate(zip(graph.ops, graph.counts(), strict=True)):
        group = KIND_GROUPS.index(op.kind if op.kind in KIND_GROUPS else "other")
        own = np.array([op.flop or 0.0, op.num_bytes, calls_of(op)]) * count
        amounts[place, :, group] = own
        pairs |= {(wrote[tensor], place) for tensor in op.reads if tensor in wrote}
        wrote.update(dict.fromkeys(op.writes, place))
        sort = [float(group == each) for each in range(len(KIND_GROUPS))] + [float(op.phase == each) for each in PHASES]
        features.append([*sort, *(np.log1p(own) / 10), math.log1p(count), *np.sqrt(own / totals)])
    ordered = np.array(sorted(pairs), dtype=np.intp).reshape(-1, 2)
    return Nodes(
        features=np.array(features), amounts=amounts.reshape(len(graph.ops), -1), writers=ordered[:, 0],
        readers=ordered[:, 1], work=work,
    )  # fmt: skip


def node_shares(nodes: Nodes, rates: Rates) -> Array:
    """The share of the computing that each operator takes at the rates."""
    seconds = nodes.amounts @ np.array(rates.values[: nodes.amounts.shape[1]]) + 1e-12
    return np.asarray(seconds / seconds.sum())


def describe_place(work: Work, place: Place, expected: Expected) -> Array:
    """What the perceptron sees beside the graph. How much slower other nodes are is not among it: physics says what that does
    to the step and to the share of it that a rank works, and settings with unequal nodes are too few to learn more from."""
    wire_s, step_s = expected.wire_s, expected.step_s
    sizes = (sum(work.flop), sum(work.num_bytes), sum(work.calls), work.gradient_bytes, work.batch_size)
    return np.array([
        *(math.log1p(size) for size in sizes),
        place.num_ranks, float(place.num_ranks > 1), math.log10(place.bytes_per_s),
        math.log10(place.narrowest_bytes_per_s),
        wire_s / step_s, math.log(step_s / WINDOW_S), math.log1p(wire_s / WINDOW_S), expected.shares["gpu"],
        expected.shares["sent"],
        # A gap of less than two windows is not seen: what is left beside the wire decides whether there is one.
        math.log(max(step_s - wire_s, 0.1 * step_s) / (2 * WINDOW_S)),
    ])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCorrection:
    """Everything that was fitted: the rates of physics, the networks whose answers are averaged, and where they hold."""

    rates: Rates
    centre: Array = field(default_factory=lambda: np.zeros(NUM_PLACE_FEATURES))
    scale: Array = field(default_factory=lambda: np.ones(NUM_PLACE_FEATURES))
    low: Array = field(default_factory=lambda: np.zeros(NUM_PLACE_FEATURES))
    high: Array = field(default_factory=lambda: np.zeros(NUM_PLACE_FEATURES))
    """Of the features of places in the training runs, 1st and 99th percentile."""
    members: tuple[Mapping[str, Array], ...] = field(default=(), repr=False)
    """None: nothing is corrected."""
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """For each of the twelve: 5th and 95th percentile of measured less predicted, over what it is judged against."""
    about: Mapping[str, str] = field(default_factory=dict)
    known_groups: tuple[bool, ...] = (True,) * len(KIND_GROUPS)

    def nearness(self, point: Array, work: Work) -> float:
        """1 where training runs lie, and down to 0 outside of them or for operators of a kind that none of them had."""
        beyond = np.maximum(self.low - point, 0.0) + np.maximum(point - self.high, 0.0)
        unknown = sum(
            share for share, known in zip(_shares(work.num_bytes), self.known_groups, strict=True) if not known
        )
        return float(np.exp(-((beyond / (FADE * self.scale)) ** 2).sum()) * (1 - unknown))

    def answer(self, nodes: Nodes, place: Place, expected: Expected) -> tuple[dict[str, float], float]:
        """The corrections by output, and how near to the training runs this is."""
        if not self.members:
            return dict.fromkeys(OUTPUTS, 0.0), 0.0
        point = describe_place(nodes.work, place, expected)
        flat = (point - self.centre) / self.scale
        near = self.nearness(point, nodes.work)
        share = node_shares(nodes, self.rates)
        raw = np.mean([_run(member, nodes, share, flat) for member in self.members], axis=0)
        return {name: near * BOUNDS[name] * float(value) for name, value in zip(OUTPUTS, raw, strict=True)}, near

    def predict(self, graph: Graph | Nodes, place: Place, *, step_s: float | None = None) -> "Corrected":
        """`step_s`: of a cost model that knows better; its duration is kept and the rest is corrected."""
        if isinstance(graph, Graph):
            graph = read_nodes(graph, count_work(graph))
        expected = expect(self.rates, graph.work, place)
        if step_s is not None:
            expected = in_step(expected, step_s)
        answers, near = self.answer(graph, place, expected)
        if step_s is not None:
            answers["step"] = 0.0
        found_s, twelve = compose(answers, expected, place)
        return Corrected(step_s=found_s, twelve=twelve, ranges=self.ranges_of(found_s, twelve, near), nearness=near)

    def ranges_of(self, step_s: float, twelve: Mapping[str, float], near: float) -> dict[str, tuple[float, float]]:
        """Of 90%; far from every run they are three times as wide."""
        ranges = {}
        for name, (below, above) in self.errors.items():
            value = twelve[name]
            unit = max(value, FLOOR * step_s) if name.endswith("_s") else value
            wide = 3 - 2 * near
            highest = step_s * 2 if name.endswith("_s") else math.inf
            ranges[name] = (
                max(0.0, value + wide * min(0.0, below) * unit),
                min(highest, value + wide * max(0.0, above) * unit),
            )
        return ranges  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    step_s: float
    twelve: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]
    nearness: float


def in_step(expected: Expected, step_s: float) -> Expected:
    """The same work in a step of another length: the wire takes as long as before, or all of the step; so does what is neither
    computed nor sent, and computing takes the rest."""
    idle_s = (1 - expected.shares["gpu"]) * expected.step_s
    shares = {name: min(1.0, share * expected.step_s / step_s) for name, share in expected.shares.items()}
    shares |= {
        "memory": expected.shares["memory"],
        "gpu": max(1 - idle_s / step_s, LEAST_BUSY * expected.shares["gpu"]),
    }
    return replace(expected, step_s=step_s, wire_s=min(expected.wire_s, step_s), shares=shares)


LEAST_BUSY = 0.2
"""Of the share of the step that computing was expected to take."""


def _run(weights: Mapping[str, Array], nodes: Nodes, share: Array, flat: Array) -> Array:
    states = np.tanh(nodes.features @ weights["in"] + weights["in_bias"])
    for number in range(NUM_ROUNDS):
        said, heard = _gather(states, nodes.writers, nodes.readers), _gather(states, nodes.readers, nodes.writers)
        total = states @ weights[f"own{number}"] + said @ weights[f"from{number}"] + heard @ weights[f"to{number}"]
        states = states + np.tanh(total + weights[f"round{number}_bias"])
    whole = np.concatenate([share @ states, states.mean(axis=0), flat])
    hidden = np.tanh(whole @ weights["hidden"] + weights["hidden_bias"])
    hidden = np.tanh(hidden @ weights["second"] + weights["second_bias"])
    return np.asarray(np.tanh(hidden @ weights["out"] + weights["out_bias"]))


def _gather(states: Array, sources: Places, targets: Places) -> Array:
    """For each operator the mean state of those it hears."""
    total = np.zeros_like(states)
    np.add.at(total, targets, states[sources])
    counts = np.bincount(targets, minlength=len(states))
    return np.asarray(total / np.maximum(counts, 1)[:, None])


def _shares(amounts: Sequence[float]) -> list[float]:
    whole = sum(amounts)
    return [amount / whole if whole else 0.0 for amount in amounts]


def save_graph_correction(correction: GraphCorrection, path: Path = WEIGHTS) -> None:
    def rounded(values: Array) -> dict[str, Any]:
        return {"shape": list(values.shape), "values": [float(f"{value:.6g}") for value in values.ravel()]}

    write_json(path, {
        "format": FORMAT, "version": VERSION, "about": dict(correction.about), "rates": list(correction.rates.values),
        "places": {name: rounded(getattr(correction, name)) for name in ("centre", "scale", "low", "high")},
        "known_groups": list(correction.known_groups),
        "errors": {name: list(pair) for name, pair in correction.errors.items()},
        "members": [{name: rounded(values) for name, values in sorted(member.items())} for member in correction.members],
    })  # fmt: skip


@cache
def load_graph_correction(path: Path = WEIGHTS) -> GraphCorrection:
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise InvalidInput(
            f"{path} holds no resource correction of version {VERSION}; make one with: "
            "python -m research.fits.resources -o FILE"
        )

    def array(entry: Mapping[str, Any]) -> Array:
        return np.array(entry["values"], dtype=np.float64).reshape(entry["shape"])

    return GraphCorrection(
        rates=Rates(values=tuple(float(value) for value in data["rates"])),
        **{name: array(entry) for name, entry in data["places"].items()},
        members=tuple({name: array(entry) for name, entry in member.items()} for member in data["members"]),
        errors={name: (float(pair[0]), float(pair[1])) for name, pair in data["errors"].items()},
        about=data["about"],
        known_groups=tuple(bool(known) for known in data["known_groups"]),
    )
