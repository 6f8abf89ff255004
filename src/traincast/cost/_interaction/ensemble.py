"""The ensemble above the layers on GPUs: members that saw whole steps correct the classes of operators of a program.

Every member is a ratio to physics that depends on the program alone. The logarithms of the members are weighed, and fade to
physics with the distance of the program from those that were learned from. `research/fits/interaction_gpu` fits it.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from traincast.cost._interaction.nodes import AROUND, CONSTANTS, OWN, Array, Nodes, classes_of, describe_nodes
from traincast.files import read_json
from traincast.noun import noun
from traincast.spec import Device, Estimate, Stage, Task

ENSEMBLE = Path(__file__).resolve().parents[1] / "weights" / "ensemble.json.gz"
MEMBERS = ("kinds", "operators", "graph")
"""Beside the layer sum, which says 1 for everything: one factor for each class and behaviour, a network on each operator alone,
and a network that also hears its neighbours."""
LEAST_LANES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindTable:
    """The logarithm of one factor for each behaviour and class; a class that was never seen has none."""

    logs: Mapping[tuple[str, str], float]

    def correct(self, nodes: Nodes) -> Array:
        return np.array([self.logs.get((nodes.behaviour, name), 0.0) for name in nodes.names])[nodes.codes]


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

    def correct(self, nodes: Nodes, conditions: Array | None = None) -> Array:
        """`conditions`: of device and framework, where it was trained with them."""
        numbers = np.concatenate([nodes.own, nodes.hear()], axis=1) if self.hears else nodes.own
        if conditions is not None:
            numbers = np.concatenate([numbers, np.tile(conditions, (len(numbers), 1))], axis=1)
        scaled = np.clip((numbers - self.centre) / self.scale, -CONSTANTS.ensemble_clip, CONSTANTS.ensemble_clip)
        rows = np.array([self.classes.get(name, len(self.classes)) for name in nodes.names], dtype=np.intp)
        places = rows[nodes.codes]
        state = np.tanh(scaled @ self.enter + self.enter_class[places])
        state = np.tanh(state @ self.middle + self.middle_bias)
        return np.asarray(self.bound * np.tanh(state @ self.leave / self.bound))


Member = KindTable | NodeNetwork


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Atlas:
    """The programs that were learned from, as shares of classes in the time of the reference device."""

    classes: Mapping[str, int]
    names: Mapping[str, tuple[str, ...]]
    """By behaviour."""
    shares: Mapping[str, Array]

    def nearest(self, nodes: Nodes, count: int = CONSTANTS.nearest) -> tuple[tuple[str, float], ...]:
        """Names and distances of the nearest programs that are run in the same way."""
        if nodes.behaviour not in self.names:
            return ()
        point, strange = np.zeros(len(self.classes)), 0.0
        for name, share in nodes.shares().items():
            if name in self.classes:
                point[self.classes[name]] = share
            else:
                strange += share**2
        apart = np.sqrt(((self.shares[nodes.behaviour] - point) ** 2).sum(axis=1) + strange)
        order = np.argsort(apart, kind="stable")[:count]
        return tuple((self.names[nodes.behaviour][place], float(apart[place])) for place in order.tolist())


@noun
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
    weights: Mapping[str, float]
    """Of the members, and what is left for the layer sum."""
    fade: float
    distance: float
    nearest: tuple[tuple[str, float], ...]
    nodes: Nodes
    members: Mapping[str, Member]

    def factors_of(self, member: str) -> dict[str, float]:
        """What one member alone would give."""
        return mean_factors(self.nodes, self.members[member].correct(self.nodes))

    def apply(self, tasks: Sequence[Task], estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
        return scale_estimates(self.factors, tasks, estimates)


def scale_estimates(
    factors: Mapping[str, float], tasks: Sequence[Task], estimates: Sequence[Estimate]
) -> tuple[Estimate, ...]:
    """Estimates with the device's time of each class scaled; what the host spends stays."""
    return tuple(
        [
            estimate if name is None or (factor := factors.get(name, 1.0)) == 1.0 else scale_estimate(estimate, factor)
            for name, estimate in zip(classes_of(tasks), estimates, strict=True)
        ]
    )


def scale_estimate(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(
        seconds=estimate.seconds * factor, low_s=estimate.low_s * factor, high_s=estimate.high_s * factor,
        host_s=estimate.host_s, limit=estimate.limit, ground=estimate.ground, slowdown=estimate.slowdown,
    )  # fmt: skip


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
        weighed = [(name, weight) for name, weight in zip(MEMBERS, blend.weights, strict=True) if weight]
        total = sum((weight * self.members[name].correct(nodes) for name, weight in weighed), np.zeros(1))
        if fade * float(np.abs(total).max()) < CONSTANTS.ensemble_negligible:
            return None
        return Correction(
            factors=mean_factors(nodes, fade * total),
            weights={"layers": 1.0 - sum(blend.weights), **dict(zip(MEMBERS, blend.weights, strict=True))},
            fade=fade, distance=distance, nearest=nearest, nodes=nodes, members=self.members,
        )  # fmt: skip


def mean_factors(nodes: Nodes, logs: Array) -> dict[str, float]:
    """Of each class, the mean factor of its operators, weighed by the time of the reference device."""
    seconds = np.maximum(nodes.reference_s, 1e-15)
    means = nodes.sum_up(seconds * np.exp(logs)) / nodes.sum_up(seconds)
    return dict(zip(nodes.names, means.tolist(), strict=True))


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
    names: dict[str, list[str]] = {}
    shares: dict[str, list[Array]] = {}
    for name, behaviour, row in data["atlas"]:
        # Pairs of a class and its share in thousandths.
        point = np.zeros(len(classes))
        point[row[0::2]] = np.array(row[1::2]) / 1000.0
        names.setdefault(behaviour, []).append(name)
        shares.setdefault(behaviour, []).append(point)
    kinds = KindTable(logs={(behaviour, name): log for behaviour, name, log in data["kinds"]})
    return Ensemble(
        members={"kinds": kinds, **{name: _read_network(data[name], classes) for name in MEMBERS[1:]}},
        blends={
            name: Blend(weights=tuple(entry["weights"]), reach=entry["reach"]) for name, entry in data["blends"].items()
        },
        atlas=Atlas(
            classes=classes,
            names={behaviour: tuple(each) for behaviour, each in names.items()},
            shares={behaviour: np.array(each) for behaviour, each in shares.items()},
        ),
    )


_ARRAYS = ("centre", "scale", "enter", "enter_class", "middle", "middle_bias", "leave")


def _read_network(entry: Mapping[str, Any], classes: Mapping[str, int]) -> NodeNetwork:
    arrays = {name: np.array(entry[name], dtype=np.float64) for name in _ARRAYS}
    hears = len(arrays["centre"]) == len(OWN) + len(AROUND)
    return NodeNetwork(classes=classes, bound=entry["bound"], hears=hears, **arrays)
