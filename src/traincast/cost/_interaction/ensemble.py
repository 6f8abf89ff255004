"""The ensemble above the layers on GPUs: members that saw whole steps correct the classes of operators of a program.

Every member is a ratio to physics that depends on the program alone. The logarithms of the members are weighed, and fade to
physics with the distance of the program from those that were learned from. `research/fits/interaction_gpu` fits it.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from traincast.cost._interaction.nodes import AROUND, OWN, Array, Nodes, classes_of, describe_nodes
from traincast.files import read_json
from traincast.spec import Device, Estimate, Stage, Task

ENSEMBLE = Path(__file__).resolve().parents[1] / "weights" / "ensemble.json.gz"
MEMBERS = ("kinds", "operators", "graph")
"""Beside the layer sum, which says 1 for everything: one factor for each class and behaviour, a network on each operator alone,
and a network that also hears its neighbours."""
NUM_NEAREST = 3
LEAST_LANES = 64
NEGLIGIBLE = 1e-3
"""A correction that would change less than this is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindTable:
    """The logarithm of one factor for each behaviour and class; a class that was never seen has none."""

    logs: Mapping[tuple[str, str], float]

    def correct(self, nodes: Nodes) -> Array:
        return np.array([self.logs.get((nodes.behaviour, name), 0.0) for name in nodes.classes])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeNetwork:
    """Two hidden layers on the numbers of an operator, with a row of weights for its class; the answer is bounded."""

    classes: Mapping[str, int]
    centre: Array
    scale: Array
    enter: Array
    enter_class: Array
    """One row for each class, and a last one for classes that were never seen."""
    middle: Array
    middle_bias: Array
    leave: Array
    bound: float
    hears: bool
    """Whether the neighbours' messages are among its numbers."""

    def correct(self, nodes: Nodes) -> Array:
        numbers = np.concatenate([nodes.own, nodes.around], axis=1) if self.hears else nodes.own
        scaled = np.clip((numbers - self.centre) / self.scale, -3.0, 3.0)
        places = np.array([self.classes.get(name, len(self.classes)) for name in nodes.classes], dtype=np.intp)
        state = np.tanh(scaled @ self.enter + self.enter_class[places])
        state = np.tanh(state @ self.middle + self.middle_bias)
        return np.asarray(self.bound * np.tanh(state @ self.leave / self.bound))


Member = KindTable | NodeNetwork


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Atlas:
    """The programs that were learned from, as shares of classes in the time of the reference device."""

    names: tuple[str, ...]
    behaviours: tuple[str, ...]
    classes: Mapping[str, int]
    shares: Array

    def nearest(self, nodes: Nodes, count: int = NUM_NEAREST) -> tuple[tuple[str, float], ...]:
        """Names and distances of the nearest programs that are run in the same way."""
        there = np.array([one == nodes.behaviour for one in self.behaviours])
        if not there.any():
            return ()
        point, strange = np.zeros(len(self.classes)), 0.0
        for name, share in nodes.shares().items():
            if name in self.classes:
                point[self.classes[name]] = share
            else:
                strange += share**2
        apart = np.sqrt(((self.shares - point) ** 2).sum(axis=1) + strange)
        apart[~there] = np.inf
        order = np.argsort(apart, kind="stable")[: min(count, int(there.sum()))]
        return tuple((self.names[place], float(apart[place])) for place in order.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """How the members are weighed for programs of one behaviour."""

    weights: tuple[float, ...]
    """Of MEMBERS; what is missing to 1 is the layer sum's."""
    reach: float
    """The distance at which half of a correction is left."""

    def fade(self, distance: float) -> float:
        return 1.0 / (1.0 + (distance / self.reach) ** 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """What the ensemble says of one program: a factor for each class of operators."""

    factors: Mapping[str, float]
    members: Mapping[str, Mapping[str, float]]
    """Of each member the factors that it alone would give."""
    weights: Mapping[str, float]
    fade: float
    distance: float
    nearest: tuple[tuple[str, float], ...]
    shares: Mapping[str, float]
    """Of each class in the time of the reference device."""

    def apply(self, tasks: Sequence[Task], estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
        return scale_estimates(self.factors, tasks, estimates)


def scale_estimates(
    factors: Mapping[str, float], tasks: Sequence[Task], estimates: Sequence[Estimate]
) -> tuple[Estimate, ...]:
    """Estimates with the device's time of each class scaled; what the host spends stays."""
    return tuple(
        [
            estimate if name is None or (factor := factors.get(name, 1.0)) == 1.0 else _scale(estimate, factor)
            for name, estimate in zip(classes_of(tasks), estimates, strict=True)
        ]
    )


def _scale(estimate: Estimate, factor: float) -> Estimate:
    return replace(
        estimate, seconds=estimate.seconds * factor, low_s=estimate.low_s * factor, high_s=estimate.high_s * factor
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ensemble:
    """Members, how they are weighed, and what they learned from."""

    members: Mapping[str, Member]
    blends: Mapping[str, Blend]
    """By behaviour."""
    atlas: Atlas

    def correct(self, stage: Stage) -> Correction | None:
        """Of a whole program before any rank shares it; None where nothing is left of a correction."""
        nodes = describe_nodes(stage)
        blend = self.blends.get(nodes.behaviour)
        if blend is None or not nodes.classes or not any(blend.weights):
            return None
        nearest = self.atlas.nearest(nodes)
        distance = float(np.mean([apart for _, apart in nearest])) if nearest else float("inf")
        fade = blend.fade(distance)
        logs = {name: self.members[name].correct(nodes) for name in MEMBERS}
        total = sum((weight * logs[name] for name, weight in zip(MEMBERS, blend.weights, strict=True)), np.zeros(1))
        if fade * float(np.abs(total).max()) < NEGLIGIBLE:
            return None
        return Correction(
            factors=mean_factors(nodes, fade * total),
            members={name: mean_factors(nodes, one) for name, one in logs.items()},
            weights={"layers": 1.0 - sum(blend.weights), **dict(zip(MEMBERS, blend.weights, strict=True))},
            fade=fade, distance=distance, nearest=nearest, shares=nodes.shares(),
        )  # fmt: skip


def mean_factors(nodes: Nodes, logs: Array) -> dict[str, float]:
    """Of each class, the mean factor of its operators, weighed by the time of the reference device."""
    spent: dict[str, float] = {}
    scaled: dict[str, float] = {}
    seconds = np.maximum(nodes.reference_s, 1e-15)
    for name, each, after in zip(nodes.classes, seconds.tolist(), (seconds * np.exp(logs)).tolist(), strict=True):
        spent[name] = spent.get(name, 0.0) + each
        scaled[name] = scaled.get(name, 0.0) + after
    return {name: scaled[name] / spent[name] for name in spent}


def is_gpu(device: Device) -> bool:
    """Whether its multiprocessors have the lanes of a GPU. Processors have fewer, systolic machines have none."""
    return (device.lanes_per_sm or 0) >= LEAST_LANES


def default_ensemble() -> Ensemble | None:
    return load_ensemble() if ENSEMBLE.is_file() else None


@functools.cache
def load_ensemble(path: Path = ENSEMBLE) -> Ensemble:
    return read_ensemble(read_json(path))


def read_ensemble(data: Mapping[str, Any]) -> Ensemble:
    classes = {name: place for place, name in enumerate(data["classes"])}
    names, behaviours, rows = zip(*data["atlas"], strict=True) if data["atlas"] else ((), (), ())
    shares = np.zeros((len(rows), len(classes)))
    for place, row in enumerate(rows):
        # Pairs of a class and its share in thousandths.
        shares[place, row[0::2]] = np.array(row[1::2]) / 1000.0
    kinds = KindTable(logs={(behaviour, name): log for behaviour, name, log in data["kinds"]})
    return Ensemble(
        members={"kinds": kinds, **{name: _read_network(data[name], classes) for name in MEMBERS[1:]}},
        blends={
            name: Blend(weights=tuple(entry["weights"]), reach=entry["reach"]) for name, entry in data["blends"].items()
        },
        atlas=Atlas(names=names, behaviours=behaviours, classes=classes, shares=shares),
    )


_ARRAYS = ("centre", "scale", "enter", "enter_class", "middle", "middle_bias", "leave")


def _read_network(entry: Mapping[str, Any], classes: Mapping[str, int]) -> NodeNetwork:
    arrays = {name: np.array(entry[name], dtype=np.float64) for name in _ARRAYS}
    hears = len(arrays["centre"]) == len(OWN) + len(AROUND)
    return NodeNetwork(classes=classes, bound=entry["bound"], hears=hears, **arrays)
