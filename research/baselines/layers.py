"""Whole steps from their layers or from totals alone: additive linear, additive non-linear, and a black box.

All three see the same rows, the same cluster terms and no graph: what an operator does is summed up by kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.baselines.operators import peak_flop_per_s
from traincast.errors import InvalidInput
from traincast.spec import KINDS, Device, Graph

Array = NDArray[np.float64]
_KINDS = tuple(KINDS)
_PLACE = {kind: place for place, kind in enumerate(_KINDS)}
POWERS = (0.5, 0.75)
"""Beside 1: how the cost of one operator may grow with its FLOP and bytes in the non-linear model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Where a step ran."""

    num_ranks: int
    bytes_per_s: float
    """Of the narrowest link."""
    share: float
    """Of a core, on the slowest node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A graph without its edges."""

    linear: Array
    """Calls, FLOP and bytes of each kind."""
    powers: Array
    """FLOP and bytes of each operator raised to each of POWERS, summed over the operators of each kind."""
    parameter_bytes: float
    num_ops: int
    batch: int


def total(graph: Graph, *, device: Device | None = None) -> Totals:
    """With a device, every operator's FLOP over the peak of its precision and its bytes over the bandwidth: seconds at best."""
    linear = np.zeros((len(_KINDS), 3))
    powers = np.zeros((len(_KINDS), 2 * len(POWERS)))
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        flop, moved = op.flop or 0.0, op.num_bytes
        if device is not None:
            flop, moved = flop / peak_flop_per_s(device, op.dtype), moved / device.memory_bytes_per_s
        linear[_PLACE[op.kind]] += (count, count * flop, count * moved)
        powers[_PLACE[op.kind]] += [count * amount**power for power in POWERS for amount in (flop, moved)]
    return Totals(
        linear=linear.ravel(), powers=powers.ravel(), parameter_bytes=graph.role_bytes("parameter"),
        num_ops=sum(graph.counts()), batch=graph.batch_size,
    )  # fmt: skip


def cluster_terms(totals: Totals, ran: Ran) -> Array:
    """A constant, one more for each rank, and the bytes of a ring over the link."""
    if ran.num_ranks == 1:
        return np.array([1.0, 0.0, 0.0])
    ring = 2 * (ran.num_ranks - 1) / ran.num_ranks * totals.parameter_bytes
    return np.array([1.0, ran.num_ranks - 1.0, ring / ran.bytes_per_s])


@dataclass(frozen=True, slots=True, kw_only=True)
class Additive:
    """Seconds as a weighted sum; no weight is below zero."""

    weights: Array
    nonlinear: bool

    def seconds(self, totals: Totals, ran: Ran) -> float:
        return float(additive_terms(totals, ran, nonlinear=self.nonlinear) @ self.weights)


def additive_terms(totals: Totals, ran: Ran, *, nonlinear: bool) -> Array:
    work = np.concatenate([totals.linear, totals.powers]) if nonlinear else totals.linear
    return np.concatenate([work / ran.share, cluster_terms(totals, ran)])


def fit_additive_steps(rows: Sequence[tuple[Totals, Ran]], seconds: Sequence[float], *, nonlinear: bool) -> Additive:
    """Least squares on relative errors, by coordinate descent; a small ridge keeps what the data cannot tell near zero."""
    if not rows:
        raise InvalidInput("no measured step to fit layers to; give at least one")
    design = np.array([additive_terms(totals, ran, nonlinear=nonlinear) for totals, ran in rows])
    scale = np.where(design.max(axis=0) > 0, design.max(axis=0), 1.0)
    matrix = design / scale / np.asarray(seconds)[:, None]
    normal, target = matrix.T @ matrix, matrix.sum(axis=0)
    normal[np.diag_indices_from(normal)] += 1e-6 * np.trace(normal) / len(normal)
    weights = np.zeros(len(normal))
    for _ in range(400):
        before = weights.copy()
        for place in range(len(weights)):
            slope = target[place] - normal[place] @ weights + normal[place, place] * weights[place]
            weights[place] = max(0.0, slope / normal[place, place])
        if np.abs(weights - before).max() <= 1e-9 * max(1.0, np.abs(weights).max()):
            break
    return Additive(weights=weights / scale, nonlinear=nonlinear)


def box_features(totals: Totals, ran: Ran) -> Array:
    """What a black box is told: sizes of the model and of the cluster."""
    calls, flop, moved = totals.linear.reshape(-1, 3).sum(axis=0)
    link = np.log10(ran.bytes_per_s) if ran.num_ranks > 1 else 10.0
    sizes = [np.log10(1 + amount) for amount in (calls, flop, moved, totals.parameter_bytes)]
    return np.array([*sizes, np.log10(totals.batch), float(ran.num_ranks), link, np.log10(ran.share)])


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackBox:
    """Kernel ridge regression of log seconds with a Gaussian kernel (Saunders et al. 1998)."""

    points: Array
    weights: Array
    centre: Array
    scale: Array
    mean: float
    width: float

    def seconds(self, features: Array) -> Array:
        kernel = _kernel((features - self.centre) / self.scale, self.points, self.width)
        return np.asarray(np.exp(self.mean + kernel @ self.weights), dtype=np.float64)


def fit_black_box(
    features: Array,
    seconds: Sequence[float],
    *,
    width: float = 3.0,
    ridge: float = 0.03,
    limit: int = 1200,
    seed: int = 0,
) -> BlackBox:
    """Above `limit` rows a random part of them is used."""
    logs = np.log(np.asarray(seconds, dtype=np.float64))
    if len(logs) > limit:
        chosen = np.random.default_rng(seed).permutation(len(logs))[:limit]
        features, logs = features[chosen], logs[chosen]
    centre, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-9)
    points = (features - centre) / scale
    kernel = _kernel(points, points, width)
    weights = np.linalg.solve(kernel + ridge * np.eye(len(points)), logs - logs.mean())
    return BlackBox(
        points=points, weights=weights, centre=centre, scale=scale, mean=float(logs.mean()), width=width
    )  # fmt: skip


def _kernel(left: Array, right: Array, width: float) -> Array:
    apart = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * left @ right.T
    return np.asarray(np.exp(-np.maximum(apart, 0.0) / (2 * width**2)), dtype=np.float64)
