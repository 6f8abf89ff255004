"""What we know already: workloads of the catalogue and of our corpus as points, the nearest of them, and how far away one is."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from traincast.embed._encoder import FOLDER
from traincast.embed._features import Array
from traincast.embed._summary import Summary
from traincast.errors import InvalidInput
from traincast.files import read_json, write_json
from traincast.noun import noun

KNOWN = FOLDER / "known.json.gz"
UNFAMILIAR = 0.95
"""Farther from its nearest neighbour than this share of the known workloads are from theirs: measure before you trust."""
WIDEST = 2.0
WEIGHTS = (1.0, 0.5, 0.5)
"""Of shares of calls, FLOP and bytes; the next two of the logarithms of parameters and of FLOP of a sample."""
OF_PARAMETERS, OF_FLOP = 0.12, 0.06


@noun
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


@noun
class Neighbour:
    workload: KnownWorkload
    distance: float


@noun
class WorkloadAtlas:
    """Known workloads as points: sizes, and roots of the shares of sorts of operators, whose distance is Hellinger's (1909)."""

    workloads: tuple[KnownWorkload, ...]
    sorts: Mapping[str, int]
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
        rows = np.array([place(summary, self.sorts) for summary in summaries])
        return np.column_stack([np.ones(len(rows)), rows])

    def num_parameters(self) -> Array:
        """Of each workload, as its coordinates tell."""
        return np.asarray(np.exp(self.points[:, 0] / OF_PARAMETERS))

    def _distances(self, summary: Summary) -> Array:
        return np.asarray(np.sqrt(((self.points - place(summary, self.sorts)) ** 2).sum(axis=1)))


def place(summary: Summary, sorts: Mapping[str, int]) -> Array:
    """Where a workload lies whatever its batch; sorts of operators that no known workload has share the last places."""
    found = np.zeros((len(sorts) + 1, len(WEIGHTS)))
    for name, shares in summary.mix.items():
        found[sorts.get(name, len(sorts))] += shares
    sizes = [
        OF_PARAMETERS * math.log(max(summary.num_parameters, 1)),
        OF_FLOP * math.log(max(summary.sample_flop, 1.0)),
    ]
    return np.concatenate([sizes, (np.array(WEIGHTS) * np.sqrt(found)).ravel()])


def draw_atlas(workloads: Sequence[KnownWorkload], summaries: Sequence[Summary]) -> WorkloadAtlas:
    sorts = {name: number for number, name in enumerate(sorted({name for each in summaries for name in each.mix}))}
    points = np.array([place(summary, sorts) for summary in summaries])
    names = np.array([workload.architecture for workload in workloads])
    lengths = (points**2).sum(axis=1)
    squares = np.maximum(lengths[:, None] + lengths[None] - 2 * points @ points.T, 0.0)
    squares[names[:, None] == names[None]] = np.inf
    nearest = squares.min(axis=1)
    return WorkloadAtlas(
        workloads=tuple(workloads), sorts=sorts, points=points,
        spacing=np.sort(np.sqrt(nearest[np.isfinite(nearest)])),
    )  # fmt: skip


def widen(farness: float) -> float:
    """The factor on the logarithm of an interval: 1 where workloads like it are known, growing with the distance up to 2."""
    return min(max(farness, 1.0), WIDEST)


def save_atlas(atlas: WorkloadAtlas, path: Path = KNOWN) -> None:
    write_json(path, {
        "workloads": [
            {"name": each.name, "source": each.source, "dataset_type": each.dataset_type, "batch_size": each.batch_size,
             "measured_s": {setting: _short(seconds) for setting, seconds in sorted(each.measured_s.items())}}
            for each in atlas.workloads
        ],
        "sorts": list(atlas.sorts), "points": [_pairs(point) for point in atlas.points],
        "spacing": [_short(value) for value in atlas.spacing.tolist()],
    })  # fmt: skip


@cache
def load_atlas(path: Path = KNOWN) -> WorkloadAtlas:
    data = read_json(path)
    return WorkloadAtlas(
        workloads=tuple(KnownWorkload(**entry) for entry in data["workloads"]),
        sorts={name: number for number, name in enumerate(data["sorts"])}, spacing=np.array(data["spacing"]),
        points=np.array([_unfold(pairs, 2 + len(WEIGHTS) * (len(data["sorts"]) + 1)) for pairs in data["points"]]),
    )  # fmt: skip


def _pairs(point: Array) -> list[float]:
    """Places and values of what is not nothing."""
    return [value for number in np.flatnonzero(point).tolist() for value in (number, _short(float(point[number])))]


def _unfold(pairs: Sequence[float], size: int) -> Array:
    found = np.zeros(size)
    found[np.array(pairs[0::2], dtype=np.intp)] = pairs[1::2]
    return found


def _short(value: float) -> float:
    return float(f"{value:.5g}") if math.isfinite(value) else value
