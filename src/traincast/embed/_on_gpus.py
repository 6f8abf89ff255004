"""The reuse predictor on GPUs: what the priced operators of a workload miss, from its vector, fitted once for a type of data.

A Gaussian process over the vectors of the graph hyper-network's encoder gives the logarithm of measured over priced time. It is
anchored on the priced operators, so device, batch and precision enter through them. `research/fits/interaction_gpu` fits it.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from traincast.embed._encoder import FOLDER
from traincast.embed._features import Array
from traincast.files import read_json

ON_GPUS = FOLDER / "on_gpus.json.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPrograms:
    """Programs that are run in one way, such as training on images."""

    names: tuple[str, ...]
    vectors: Array
    """Standardised, over the reach."""
    weights: Array
    ordinary: float
    """The distance of a program of another family to its nearest, at the median."""
    error: float
    """Mean relative error on families that were left out."""
    rival_error: float
    """Of the ensemble above the layers on the same steps, left out alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAnswer:
    """What the vector of a program says of its step."""

    factor: float
    """On the priced operators."""
    nearest: str
    farness: float
    """The distance to the nearest known program over an ordinary one."""
    error: float
    rival_error: float

    @property
    def is_better(self) -> bool:
        return self.error < self.rival_error


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReuse:
    center: Array
    scale: Array
    reach: float
    spread: float
    known: Mapping[str, KnownPrograms]
    """By how they are run and on what data."""

    def answer(self, vector: Array, behaviour: str) -> GpuAnswer | None:
        """None where no such program was measured."""
        known = self.known.get(behaviour)
        if known is None:
            return None
        point = (vector - self.center) / self.scale / (self.reach * math.sqrt(len(vector)))
        squares = ((known.vectors - point) ** 2).sum(axis=1)
        near = int(squares.argmin())
        log = float(self.spread**2 * np.exp(-0.5 * squares) @ known.weights)
        return GpuAnswer(
            factor=math.exp(log), nearest=known.names[near], error=known.error, rival_error=known.rival_error,
            farness=math.sqrt(float(squares[near])) / max(known.ordinary, 1e-9),
        )  # fmt: skip


@functools.cache
def load_gpu_reuse(path: Path = ON_GPUS) -> GpuReuse:
    return read_gpu_reuse(read_json(path))


def read_gpu_reuse(data: Mapping[str, Any]) -> GpuReuse:
    return GpuReuse(
        center=np.array(data["center"]), scale=np.array(data["scale"]), reach=data["reach"], spread=data["spread"],
        known={
            behaviour: KnownPrograms(
                names=tuple(entry["names"]), vectors=np.array(entry["vectors"]), weights=np.array(entry["weights"]),
                ordinary=entry["ordinary"], error=entry["error"], rival_error=entry["rival_error"],
            )
            for behaviour, entry in data["known"].items()
        },
    )  # fmt: skip
