"""A graph hyper-network's vector and a support vector machine (Knyazev et al. 2021), as PredictDDL most likely combines them.

The nodes know what GHN-2's know: the sort of operation and the channels and kernel of its weights. No batch, no spatial size, no
cost. The encoder is ours in form and was trained on the same graphs; GHN-2's own weights predict parameters, not times. The
support vector machine is solved here by accelerated proximal steps on its dual: no library is needed for a few hundred rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincast.embed import COLUMNS, Nodes, describe
from traincast.errors import InvalidInput
from traincast.spec import KINDS, Graph, Op

Array = NDArray[np.float64]

CHANNEL_STEPS = (1, 3, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
"""Channels are rounded down to one of these, as GHN-2 looks shapes up in a table."""
COSTS, WIDTHS = (1.0, 10.0, 100.0), (0.3, 1.0, 3.0)
MARGIN = 0.05


def describe_plainly(graph: Graph) -> Nodes:
    """The forward pass without what it costs."""
    ops = tuple(op for op in graph.ops if op.phase == "forward")
    whole = describe(replace(graph, ops=ops, repeats=()))
    features = np.zeros((len(ops), len(COLUMNS)))
    features[:, : len(KINDS)] = whole.features[:, : len(KINDS)]
    start = len(COLUMNS) - 4
    for row, op in enumerate(ops):
        features[row, start:] = [_step(size) for size in weight_shape(op)]
    return replace(whole, features=features)


def weight_shape(op: Op) -> tuple[int, int, int, int]:
    """(out, in, kernel height, kernel width) of its weights; zeros where it has none."""
    if op.kind == "conv":
        sides = [int(part) for part in str(op.attrs["kernel"]).split("x")]
        return int(op.attrs["out_channels"]), int(op.attrs["in_channels"]), sides[0], sides[-1]
    if op.kind == "matmul":
        return int(op.attrs["n"]), int(op.attrs["k"]), 1, 1
    return 0, 0, 0, 0


def _step(size: int) -> float:
    """The place of a size in the table, between 0 (none) and 1."""
    return sum(size >= step for step in CHANNEL_STEPS) / len(CHANNEL_STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportVectors:
    """values = sum of coefficients x exp(-gamma |row - known|^2) + offset, on standardised rows."""

    center: Array
    scale: Array
    known: Array
    coefficients: Array
    offset: float
    gamma: float

    def predict(self, rows: Array) -> Array:
        kernel = rbf((rows - self.center) / self.scale, self.known, gamma=self.gamma)
        return np.asarray(kernel @ self.coefficients + self.offset)


def rbf(left: Array, right: Array, *, gamma: float) -> Array:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None] - 2 * left @ right.T
    return np.asarray(np.exp(-gamma * np.maximum(squares, 0.0)))


def fit_svr(rows: Array, values: Array, *, cost: float, gamma: float, margin: float = MARGIN) -> SupportVectors:
    """Epsilon-insensitive regression; the offset is the mean of the values, which keeps the dual free of an equation."""
    if not len(rows):
        raise InvalidInput("no rows to fit a support vector machine to")
    center, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-9
    known = (rows - center) / scale
    offset = float(values.mean())
    coefficients = solve_dual(rbf(known, known, gamma=gamma), values - offset, cost=cost, margin=margin)
    used = np.abs(coefficients) > 1e-9
    return SupportVectors(
        center=center, scale=scale, known=known[used], coefficients=coefficients[used], offset=offset, gamma=gamma
    )


def solve_dual(kernel: Array, values: Array, *, cost: float, margin: float, num_steps: int = 300) -> Array:
    """min 1/2 b'Kb - y'b + margin |b|, |b| <= cost, by accelerated proximal gradient (Beck and Teboulle 2009)."""
    rate = 1 / max(float(np.abs(kernel).sum(axis=1).max()), 1e-12)
    found = np.zeros(len(values))
    ahead, momentum = found, 1.0
    for _ in range(num_steps):
        moved = ahead - rate * (kernel @ ahead - values)
        new = (np.sign(moved) * np.maximum(np.abs(moved) - rate * margin, 0.0)).clip(-cost, cost)
        grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / grown * (new - found)
        if float(np.abs(new - found).max()) < 1e-7 * max(cost, 1.0):
            return new
        found, momentum = new, grown
    return found


def fit_svr_by_grid(
    rows: Array, values: Array, groups: Sequence[str], *, num_folds: int = 5, seed: int = 0
) -> SupportVectors:
    """Cost and width by 5-fold search over whole groups (architectures): rows of one are never in two folds."""
    names = sorted(set(groups))
    shuffled = np.random.default_rng(seed).permutation(len(names))
    fold_of = {names[place]: number % num_folds for number, place in enumerate(shuffled.tolist())}
    folds = np.array([fold_of[name] for name in groups])
    best, least = (COSTS[0], WIDTHS[0]), np.inf
    for cost in COSTS:
        for width in WIDTHS:
            gamma = width / rows.shape[1]
            missed = [
                np.abs(fit_svr(rows[folds != fold], values[folds != fold], cost=cost, gamma=gamma).predict(rows[folds == fold])
                       - values[folds == fold])
                for fold in sorted(set(folds.tolist())) if (folds != fold).any()
            ]  # fmt: skip
            error = float(np.concatenate(missed).mean()) if missed else np.inf
            if error < least:
                best, least = (cost, width), error
    return fit_svr(rows, values, cost=best[0], gamma=best[1] / rows.shape[1])
