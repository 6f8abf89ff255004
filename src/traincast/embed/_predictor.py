"""The vector of a graph and the numbers of a setting to how much longer than physics a step takes: one regressor for each type
of data, trained once (PredictDDL). A Gaussian process: far from every measured step it falls back to the mean of its type."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from traincast.embed._encoder import FOLDER
from traincast.embed._features import Array
from traincast.embed._summary import Summary
from traincast.files import read_safetensors
from traincast.noun import noun

PREDICTOR = FOLDER / "predictor.safetensors"
ANY = "any"
"""Stands for types of data of which too few steps were measured: its regressor saw all of them."""
CLIP = 3.0


@noun
class TypeRegressor:
    """What the steps of one type of data taught."""

    centre: Array
    scale: Array
    """Of each feature; features that count little have a large one."""
    points: Array
    weights: Array
    mean: float
    log_sigma: float
    """Of what was missed where families or publishers were left out."""
    num_steps: int
    error: float
    """Mean relative error, left out alike."""

    def answer(self, features: Array) -> float:
        """The logarithm of measured over physical time."""
        squares = ((self.points - self.place(features)) ** 2).sum(axis=1)
        return self.mean + float(np.exp(-0.5 * squares) @ self.weights)

    def place(self, features: Array) -> Array:
        return np.clip((features - self.centre) / self.scale, -CLIP, CLIP)


@noun
class StepPredictor:
    types: Mapping[str, TypeRegressor]

    def find(self, data_type: str) -> tuple[str, TypeRegressor]:
        name = data_type if data_type in self.types else ANY
        return name, self.types[name]


def describe_step(summary: Summary, setting: Array) -> Array:
    """What the regressor sees of a step: sizes and shares of its work, its vector, and where it runs."""
    return np.concatenate([summary.traits, summary.vector, setting])


_ARRAYS = ("centre", "scale", "points", "weights")


@cache
def load_predictor(path: Path = PREDICTOR) -> StepPredictor:
    arrays, notes = read_safetensors(path)
    types = {
        name: TypeRegressor(
            **{part: arrays[f"{name}.{part}"] for part in _ARRAYS}, mean=facts["mean"], log_sigma=facts["log_sigma"],
            num_steps=int(facts["num_steps"]), error=facts["error"],
        )
        for name, facts in json.loads(notes["types"]).items()
    }  # fmt: skip
    return StepPredictor(types=types)
