"""What we know already: workloads of the catalogue and of our corpus as points, the nearest of them, and how far away one is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from traincast.embed._encoder import FOLDER, Encoder
from traincast.embed._features import Array
from traincast.embed._reuse import Predictor, Proof, Reach, Residual, Tested
from traincast.embed._summary import Summary, summarize
from traincast.errors import InvalidInput
from traincast.files import read_json, write_json
from traincast.spec import Graph

KNOWN, PREDICTOR = FOLDER / "known.json.gz", FOLDER / "predictor.json.gz"
UNFAMILIAR = 0.95
"""Farther from its nearest neighbour than this share of the known workloads are from theirs: measure before you trust."""
WIDEST = 2.0
NUM_AMOUNTS, BATCH = 7, 5
PARAMETERS = 2
"""The coordinate that tells the number of parameters (`kinship`)."""
"""The traits begin with logarithms of FLOP, bytes, calls, parameters, activations and batch, and FLOP per byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorkload:
    """One workload that was measured or can be built by name."""

    name: str
    source: str
    """corpus or catalogue."""
    dataset_type: str
    batch_size: int
    measured_s: Mapping[str, float]
    """Step times by setting (4x1gbit: four workers on 1 Gbit/s); empty where nothing was measured."""

    @property
    def architecture(self) -> str:
        return f"{self.source} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    workload: KnownWorkload
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Atlas:
    """Known workloads as points; coordinates are in standard deviations over the known ones."""

    workloads: tuple[KnownWorkload, ...]
    center: Array
    scale: Array
    points: Array
    spacing: Array
    """Sorted distances of each known workload to the nearest of another name."""

    def nearest(
        self, summary: Summary, *, count: int = 5, others: bool = False, measured: bool = False
    ) -> list[Neighbour]:
        """The closest first, one batch of each workload; `others` leaves out its own name, `measured` what never ran."""
        if count < 1:
            raise InvalidInput(f"{count} neighbours; ask for at least 1")
        distances = self._distances(summary)
        found: dict[str, Neighbour] = {}
        for place in np.argsort(distances, kind="stable").tolist():
            workload = self.workloads[place]
            if measured and not workload.measured_s:
                continue
            if workload.architecture not in found and not (others and workload.name == summary.name):
                found[workload.architecture] = Neighbour(workload=workload, distance=float(distances[place]))
            if len(found) == count:
                break
        return list(found.values())

    def relatives(self, summary: Summary, *, count: int) -> list[Neighbour]:
        """The nearest others, and the nearest that was measured if none of them was: forecasts of relatives repeat what a
        forecast of this one says; a measured one is worth a line wherever it stands."""
        near = self.nearest(summary, count=count, others=True)
        if not any(each.workload.measured_s for each in near):
            near += self.nearest(summary, count=1, others=True, measured=True)
        return near

    def distance(self, summary: Summary) -> float:
        """The share of known workloads that lie closer to their nearest neighbour than this one to its own."""
        nearest = float(self._distances(summary).min())
        return float(np.searchsorted(self.spacing, nearest, side="right") / len(self.spacing))

    def farness(self, summary: Summary) -> float:
        """The distance to the nearest known workload over the largest that is ordinary among them: above 1, unfamiliar."""
        return float(self._distances(summary).min() / max(np.quantile(self.spacing, UNFAMILIAR), 1e-9))

    def features(self, summaries: Sequence[Summary]) -> Array:
        """A row for each workload, for a design over whole workloads: a constant and the coordinates."""
        rows = (np.array([kinship(summary) for summary in summaries]) - self.center) / self.scale
        return np.column_stack([np.ones(len(rows)), rows])

    def num_parameters(self) -> Array:
        """Of each workload, as its coordinates tell."""
        return np.asarray(1e6 * np.exp(self.points[:, PARAMETERS] * self.scale[PARAMETERS] + self.center[PARAMETERS]))

    def lay_out(self, summaries: Sequence[Summary]) -> tuple[Array, int]:
        """Rows of candidates for a design, then a row for each workload that was measured, and how many those are."""
        measured = [place for place, workload in enumerate(self.workloads) if workload.measured_s]
        points = np.column_stack([np.ones(len(measured)), self.points[measured]])
        return np.concatenate([self.features(summaries), points]), len(measured)

    def _distances(self, summary: Summary) -> Array:
        point = (kinship(summary) - self.center) / self.scale
        return np.asarray(np.sqrt(((self.points - point) ** 2).mean(axis=1)))


def kinship(summary: Summary) -> Array:
    """What makes workloads alike whatever their batch: sizes of one sample, shares of the work, and the vector."""
    flop, _, calls, parameters, activations, batch, _ = summary.traits[:NUM_AMOUNTS]
    sizes = [flop - batch, calls, parameters, activations - batch]
    return np.concatenate([sizes, summary.traits[NUM_AMOUNTS:], summary.vector])


def draw_atlas(workloads: Sequence[KnownWorkload], summaries: Sequence[Summary]) -> Atlas:
    points = np.array([kinship(summary) for summary in summaries])
    center, scale = points.mean(axis=0), points.std(axis=0) + 1e-3
    points = (points - center) / scale
    names = np.array([workload.architecture for workload in workloads])
    squares = ((points[:, None] - points[None]) ** 2).mean(axis=2) if len(points) < 50 else _mean_squares(points)
    squares[names[:, None] == names[None]] = np.inf
    nearest = squares.min(axis=1)
    return Atlas(
        workloads=tuple(workloads), center=center, scale=scale, points=points,
        spacing=np.sort(np.sqrt(nearest[np.isfinite(nearest)])),
    )  # fmt: skip


def _mean_squares(points: Array) -> Array:
    lengths = (points**2).sum(axis=1)
    return np.asarray(np.maximum(lengths[:, None] + lengths[None] - 2 * points @ points.T, 0.0) / points.shape[1])


def distance(graph: Graph, *, encoder: Encoder | None = None) -> float:
    """From what we know, between 0 (an old acquaintance) and 1; above `UNFAMILIAR` intervals widen and measuring is advised."""
    return load_atlas().distance(summarize(graph, encoder=encoder))


def widen(farness: float) -> float:
    """The factor on the logarithm of an interval: 1 where workloads like it are known, growing with the distance up to 2."""
    return min(max(farness, 1.0), WIDEST)


def save_atlas(atlas: Atlas, path: Path = KNOWN) -> None:
    write_json(path, {
        "workloads": [
            {"name": each.name, "source": each.source, "dataset_type": each.dataset_type, "batch_size": each.batch_size,
             "measured_s": {setting: _short(seconds) for setting, seconds in sorted(each.measured_s.items())}}
            for each in atlas.workloads
        ],
        "center": _shorten(atlas.center), "scale": _shorten(atlas.scale), "points": _shorten(atlas.points),
        "spacing": _shorten(atlas.spacing),
    })  # fmt: skip


@cache
def load_atlas(path: Path = KNOWN) -> Atlas:
    data = read_json(path)
    return Atlas(
        workloads=tuple(KnownWorkload(**entry) for entry in data["workloads"]),
        center=np.array(data["center"]), scale=np.array(data["scale"]), points=np.array(data["points"]),
        spacing=np.array(data["spacing"]),
    )  # fmt: skip


def save_predictor(predictor: Predictor, path: Path = PREDICTOR) -> None:
    write_json(path, {
        "rates": _shorten(predictor.rates), "sigma": predictor.sigma, "family_sigma": predictor.family_sigma,
        "typical_distance": predictor.typical_distance,
        "most_apart": predictor.most_apart if math.isfinite(predictor.most_apart) else None,
        "tested": _plain(predictor.tested), "proof": _plain(predictor.proof),
        "reach": {name: getattr(predictor.reach, name) for name in Reach.__slots__},
        "residuals": {
            kind: {"center": _shorten(each.center), "scale": _shorten(each.scale), "workloads": _shorten(each.workloads),
                   "index": each.index.tolist(), "places": _shorten(each.places), "weights": _shorten(each.weights)}
            for kind, each in predictor.residuals.items()
        },
    })  # fmt: skip


@cache
def load_predictor(path: Path = PREDICTOR) -> Predictor:
    data = read_json(path)
    return Predictor(
        rates=np.array(data["rates"]), sigma=data["sigma"], family_sigma=data["family_sigma"],
        typical_distance=data["typical_distance"], reach=Reach(**data["reach"]), tested=Tested(**data["tested"]),
        proof=Proof(**data["proof"]), most_apart=math.inf if data.get("most_apart") is None else data["most_apart"],
        residuals={
            kind: Residual(
                center=np.array(entry["center"]), scale=np.array(entry["scale"]), workloads=np.array(entry["workloads"]),
                index=np.array(entry["index"], dtype=np.intp), places=np.array(entry["places"]),
                weights=np.array(entry["weights"]),
            )
            for kind, entry in data["residuals"].items()
        },
    )  # fmt: skip


def _plain(noun: Tested | Proof) -> dict[str, Any]:
    return {name: getattr(noun, name) for name in type(noun).__slots__}


def _shorten(values: Array) -> Any:
    """Nested lists with six digits, more than any of these numbers knows."""
    if values.ndim > 1:
        return [_shorten(row) for row in values]
    return [_short(value) for value in values.tolist()]


def _short(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else value
