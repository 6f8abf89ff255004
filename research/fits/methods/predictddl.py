"""Measured steps to the regressors above the embedding, one for each type of data."""

import itertools

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.data import Data
from research.fits.methods.__main__ import FOLDS, Array, describe_errors, fold_rows, tell
from research.fits.weights import save_predictor
from traincast.embed._predictor import ANY, CLIP, StepPredictor, TypeRegressor
from traincast.embed._summary import SORT_NAMES
from traincast.forecast._setting import SETTING

LEAST_STEPS = 60
REACHES, SPREADS, NOISES = (0.7, 1.2, 2.0, 4.0), (0.3, 0.6), (0.08, 0.15)
MOST_POINTS = 260
NUM_TRAITS = 7 + 2 * len(SORT_NAMES) + 1


def read_features(data: Data) -> Array:
    return np.array([np.concatenate([data.programs[row.program].embedding, row.of("setting")]) for row in data.rows])


def _scale(features: Array, reach: float, *, without_vector: bool = False) -> tuple[Array, Array]:
    """Traits, vector and setting count alike, however many numbers each has."""
    sizes = (NUM_TRAITS, features.shape[1] - NUM_TRAITS - len(SETTING), len(SETTING))
    groups = np.concatenate([np.full(size, np.sqrt(size)) for size in sizes])
    scale = (features.std(axis=0) + 0.05) * groups * reach
    if without_vector:
        scale[NUM_TRAITS : NUM_TRAITS + sizes[1]] = 1e9
    return features.mean(axis=0), scale


def fit_type(
    features: Array, logs: Array, how: tuple[float, float, float], *, without_vector: bool = False
) -> TypeRegressor:
    reach, spread, noise = how
    centre, scale = _scale(features, reach, without_vector=without_vector)
    # Of many steps those farthest from each other are kept.
    kept = np.arange(len(logs))
    placed = np.clip((features - centre) / scale, -CLIP, CLIP)
    if len(kept) > MOST_POINTS:
        chosen, apart = [0], ((placed - placed[0]) ** 2).sum(axis=1)
        while len(chosen) < MOST_POINTS:
            chosen.append(int(apart.argmax()))
            apart = np.minimum(apart, ((placed - placed[chosen[-1]]) ** 2).sum(axis=1))
        kept = np.array(chosen)
    points = placed[kept]
    mean = float(np.median(logs))
    cross = _kernel(placed, points)
    # All steps teach the weights of the points that are kept (subset of regressors, Smola and Bartlett 2001).
    inner = _kernel(points, points)
    solved = np.linalg.solve(
        cross.T @ cross + noise**2 / spread**2 * inner + 1e-6 * np.eye(len(points)), cross.T @ (logs - mean)
    )
    return TypeRegressor(
        centre=centre, scale=scale, points=points, mean=mean, log_sigma=0.0, num_steps=len(logs), error=0.0,
        weights=np.asarray(solved, dtype=np.float64),
    )  # fmt: skip


def _kernel(one: Array, other: Array) -> Array:
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * one @ other.T
    return np.asarray(np.exp(-0.5 * np.maximum(squares, 0.0)))


def leave_out(
    features: Array, logs: Array, fold: NDArray[np.intp], how: tuple[float, float, float], **said: bool
) -> Array:
    told = np.full(len(logs), np.median(logs))
    for one in range(FOLDS):
        asked = fold == one
        if asked.any() and (~asked).sum() >= LEAST_STEPS // 2:
            model = fit_type(features[~asked], logs[~asked], how, **said)
            told[asked] = [model.answer(row) for row in features[asked]]
    return told


def train(data: Data, *, write: bool) -> None:
    features, fold = read_features(data), fold_rows(data)
    types = np.array([data.programs[row.program].data_type for row in data.rows])
    logs = np.log([row.measured_s / float(row.of("roofline_s")[0]) for row in data.rows])
    layers = np.log([float(row.of("layers_s")[0]) / float(row.of("roofline_s")[0]) for row in data.rows])
    found: dict[str, TypeRegressor] = {}
    for name in (*sorted(set(types.tolist())), ANY):
        mine = np.ones(len(types), dtype=bool) if name == ANY else types == name
        mine &= np.abs(logs) < 2.5
        if mine.sum() < LEAST_STEPS:
            continue
        own: Array = features[mine]
        clipped: Array = np.clip(logs[mine], -1.5, 1.5)
        folds = fold[mine]
        best = min(
            itertools.product(REACHES, SPREADS, NOISES),
            key=lambda how: float(np.abs(np.expm1(leave_out(own, clipped, folds, how) - logs[mine])).clip(0, 1).mean()),
        )
        told = leave_out(own, clipped, folds, best)
        zeroed = leave_out(own, clipped, folds, best, without_vector=True)
        missed = told - logs[mine]
        errors = {
            "predictor": missed, "without the vector": zeroed - logs[mine], "physics alone": -logs[mine],
            "operators": layers[mine] - logs[mine],
        }  # fmt: skip
        cells = "; ".join(f"{label} {describe_errors(np.abs(np.expm1(each)))}" for label, each in errors.items())
        tell(f"{name} n {int(mine.sum())}, reach {best[0]} spread {best[1]} noise {best[2]}: {cells}")
        model = fit_type(own, clipped, best)
        wide = float(np.quantile(np.abs(missed), 0.9)) / 1.645
        found[name] = TypeRegressor(
            centre=model.centre, scale=model.scale, points=model.points, weights=model.weights, mean=model.mean,
            log_sigma=wide, num_steps=model.num_steps, error=float(np.abs(np.expm1(missed)).mean()),
        )  # fmt: skip
    if write:
        save_predictor(StepPredictor(types=found))
