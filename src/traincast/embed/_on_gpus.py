"""The reuse predictor on GPUs: what the priced operators of a workload miss, from its vector, fitted once for a type of data.

A Gaussian process over what a program is made of gives the logarithm of measured over priced time. For images that is the shares
of operator classes, for other types of data the vector of the graph hyper-network's encoder. It is anchored on the priced
operators, so device, cluster, batch and precision enter through them. There is one for each way to run
(training, inference, compiled) and each type of data that was measured (`DATA_TYPES`). How much of it is blended into the answer
was chosen on families, or publishers, that were left out; 0 where it did not help them. `research/fits/interaction_gpu` fits it.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from traincast.embed._encoder import FOLDER
from traincast.embed._features import Array
from traincast.files import read_json
from traincast.noun import noun

ON_GPUS = FOLDER / "on_gpus.json.gz"
SHARE_SCALE, SHARE_REACH, SHARE_HALF = 0.2, 0.4, 0.2
"""Shares of classes over the first are compared; programs speak for each other over the second, and half of their weight is left
at the third. The best on architectures left out of three scales of each that do no harm on families left out."""
LEAST_LEFT = 0.02


@noun
class KnownPrograms:
    """Programs that are run in one way, such as training on images."""

    names: tuple[str, ...]
    vectors: Array
    """Standardised vectors of the encoder, or shares of `classes`; over the reach."""
    weights: Array
    ordinary: float
    """The distance of a program of another family to its nearest, at the median."""
    error: float
    """Mean relative error on families that were left out."""
    rival_error: float
    """Of the ensemble above the layers on the same steps, left out alike."""
    weight: float = 0.0
    """The part of its logarithm that is blended in near what it knows, chosen on what was left out."""
    blended_error: float | None = None
    """Of the blend on what was left out."""
    left_out: str = "families"
    """What was left out together: families of architectures, or publishers."""
    num_steps: int = 0
    on_layers: bool = True
    """Whether it says what the layers alone miss; else what the whole forecast misses."""
    classes: Mapping[str, int] = field(default_factory=dict)
    """Columns of the shares of operator classes; empty: points are vectors of the encoder."""
    half_at: float | None = None
    """The distance at which half of the weight is left; None: the ordinary one."""


@noun
class GpuAnswer:
    """What the vector of a program says of its step."""

    factor: float
    """On the priced operators."""
    nearest: str
    farness: float
    """The distance to the nearest known program over an ordinary one."""
    error: float
    rival_error: float
    weight: float = 0.0
    """How much of the logarithm of the factor is blended in, at this distance."""
    left_out: str = "families"
    num_steps: int = 0
    on_layers: bool = True

    @property
    def is_better(self) -> bool:
        return self.weight > 0


@noun
class GpuReuse:
    center: Array
    scale: Array
    reach: float
    spread: float
    known: Mapping[str, KnownPrograms]
    """By how they are run and on what data."""

    def answer(
        self, run: str, *, vector: Callable[[], Array], shares: Mapping[str, float] | None = None
    ) -> GpuAnswer | None:
        """None where no program that is run so was measured. `vector`: is asked for only where it is needed; `shares`: of the
        classes of its operators in the time of the reference device."""
        known = self.known.get(run)
        if known is None or (known.classes and shares is None):
            return None
        if known.classes:
            point, strange = np.zeros(len(known.classes)), 0.0
            for name, share in (shares or {}).items():
                if name in known.classes:
                    point[known.classes[name]] = share / (SHARE_SCALE * SHARE_REACH)
                else:
                    strange += (share / (SHARE_SCALE * SHARE_REACH)) ** 2
            squares = ((known.vectors - point) ** 2).sum(axis=1) + strange
        else:
            found = vector()
            point = (found - self.center) / self.scale / (self.reach * math.sqrt(len(found)))
            squares = ((known.vectors - point) ** 2).sum(axis=1)
        near = int(squares.argmin())
        distance = math.sqrt(float(squares[near]))
        log = float(self.spread**2 * np.exp(-0.5 * squares) @ known.weights)
        return GpuAnswer(
            factor=math.exp(log), nearest=known.names[near], error=known.error, rival_error=known.rival_error,
            farness=distance / max(known.ordinary, 1e-9),
            weight=known.weight * fade(distance / max(known.half_at or known.ordinary, 1e-9)),
            left_out=known.left_out, num_steps=known.num_steps, on_layers=known.on_layers,
        )  # fmt: skip


def fade(farness: float) -> float:
    """The part of a weight that is left so far from what is known; what is less than a fiftieth is nothing."""
    left = 1.0 / (1.0 + farness**2)
    return left if left >= LEAST_LEFT else 0.0


@functools.cache
def load_gpu_reuse(path: Path = ON_GPUS) -> GpuReuse:
    return read_gpu_reuse(read_json(path))


def read_gpu_reuse(data: Mapping[str, Any]) -> GpuReuse:
    return GpuReuse(
        center=np.array(data["center"]), scale=np.array(data["scale"]), reach=data["reach"], spread=data["spread"],
        known={
            behaviour: KnownPrograms(
                names=tuple(entry["names"]), vectors=_read_points(entry), weights=np.array(entry["weights"]),
                ordinary=entry["ordinary"], error=entry["error"], rival_error=entry["rival_error"],
                weight=entry.get("weight", 0.0), blended_error=entry.get("blended_error"),
                left_out=entry.get("left_out", "families"), num_steps=entry.get("num_steps", 0),
                on_layers=entry.get("on_layers", True), half_at=entry.get("half_at"),
                classes={name: place for place, name in enumerate(entry.get("classes", ()))},
            )
            for behaviour, entry in data["known"].items()
        },
    )  # fmt: skip


def _read_points(entry: Mapping[str, Any]) -> Array:
    """Vectors, or shares of classes as pairs of column and thousandths."""
    if "classes" not in entry:
        return np.array(entry["vectors"])
    found = np.zeros((len(entry["shares"]), len(entry["classes"])))
    for row, pairs in enumerate(entry["shares"]):
        found[row, pairs[0::2]] = np.array(pairs[1::2]) / 1000
    return found / (SHARE_SCALE * SHARE_REACH)
