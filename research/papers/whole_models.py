"""Which whole models to run first in a new setting.

A setting is one condition of ../shared/data/timm (GPU, layout, software). Some of its models are run, chosen by each rule from
all that may be; `learn` pools what their forecasts miss; the error is that of other models: families left out (the five folds of
`research.fits.interaction_gpu`) or models left out (five draws of a third). *As it is*: forecasts by the
layers, which are hardly off on average. *Off by a third*: all forecasts of the setting taken 1.35 times too long, as on a GPU
or a stack that nobody knows. Random choice is the mean of ten draws. The rule was chosen on these very settings.

| rule | what it is |
|---|---|
| medoids | the models that most others lie near (k-medoids): what `learn --suggest` does |
| medoids of classes | the same over shares of operator classes instead of the atlas' coordinates |
| D-optimal | largest determinant of the information of a linear model of the coordinates |
| farthest point | each time the model that is farthest from all chosen |
| least variance | each time the model after which the process of errors is surest of all others (A-optimal for it) |
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.__main__ import fold_programs, share_table
from research.fits.interaction_gpu.data import TIMM, Data, Program, image_models, read_everything
from research.fits.interaction_gpu.members import Table
from traincast.certainty._gaussian_process import condition
from traincast.design import a_optimal, d_optimal, k_medoids
from traincast.embed import load_atlas, summarize
from traincast.spec import MIX_KINDS, MeasuredForecast, RunLabels

Array = NDArray[np.float64]
Places = NDArray[np.intp]
CONDITIONS = ("train NCHW", "train NHWC", "3090 eager 2.4", "4090 eager 2.4", "4090 compiled 2.9.1")
COUNTS = (5, 10, 20, 40)
FOLDS = 5
OFF = 1.35
NUM_WAVES, WAVE_REACH, SPREAD, NOISE = 200, 0.25, 0.2, 0.06
"""Random Fourier features of the process that `least variance` asks, and its deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The models of one condition, one measured run each."""

    runs: tuple[MeasuredForecast, ...]
    shares: Array
    points: Array
    fold: Places

    def error(self, chosen: Sequence[int], asked: Places) -> float:
        process = condition([self.runs[place] for place in chosen], shrink=True)
        found = process.predict([(self.runs[place].labels, self.runs[place].shares) for place in asked])
        said = [self.runs[place].forecast_s * np.exp(one.log_ratio) for place, one in zip(asked, found, strict=True)]
        return float(np.mean(np.abs(np.array(said) / [self.runs[place].measured_s for place in asked] - 1)))


Rule = Callable[[Setting, Places, int], list[int]]


def _farthest(setting: Setting, among: Places, count: int) -> list[int]:
    points = setting.points[among]
    first = int(((points - points.mean(axis=0)) ** 2).sum(axis=1).argmin())
    chosen, apart = [first], ((points - points[first]) ** 2).sum(axis=1)
    while len(chosen) < count:
        chosen.append(int(apart.argmax()))
        apart = np.minimum(apart, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
    return chosen


def _least_variance(setting: Setting, among: Places, count: int) -> list[int]:
    random = np.random.default_rng(0)
    shares = setting.shares[among]
    waves = random.normal(0, 1 / WAVE_REACH, (shares.shape[1], NUM_WAVES))
    features = np.column_stack([np.ones(len(among)), shares, np.cos(shares @ waves + random.uniform(0, 2 * np.pi, NUM_WAVES))
                                * (2 / NUM_WAVES) ** 0.5]) * SPREAD / NOISE  # fmt: skip
    return a_optimal(features, budget=count, ridge=1.0, targets=features, scaled=False)


RULES: Mapping[str, Rule] = {
    "medoids": lambda setting, among, count: k_medoids(setting.points[among], budget=count),
    "medoids of classes": lambda setting, among, count: k_medoids(setting.shares[among], budget=count),
    "D-optimal": lambda setting, among, count: d_optimal(
        np.column_stack([np.ones(len(among)), setting.points[among]]), budget=count, ridge=1.0, exchange=False
    ),
    "farthest point": _farthest,
    "least variance": _least_variance,
}


def read_setting(data: Data, table: Table, points: Array, name: str) -> Setting:
    rows = [row for row in data.rows if row.condition == name]
    places = np.array([row.program for row in rows])
    shares = share_table(data, table)[places]
    return Setting(
        runs=tuple(
            MeasuredForecast(
                labels=label_program(data.programs[row.program]), shares=(0.5, 0.5, 0.0, 0.0, 0.0),
                forecast_s=float(row.seconds.sum() + row.rest_s), measured_s=row.measured_s,
            )
            for row in rows
        ),
        shares=shares[:, shares.max(axis=0) > 1e-3], points=points[places], fold=fold_programs(data)[places],
    )  # fmt: skip


def label_program(program: Program) -> RunLabels:
    """As `learn` labels a run; device and stack are those of the condition."""
    mix = dict.fromkeys(MIX_KINDS, 0.0)
    for name, share in program.shares.items():
        kind = name.split()[0]
        mix[kind if kind in mix else "other"] += share
    return RunLabels(
        model=program.name.split()[0], family=program.family, mode="step", precision="fp16", device="here", stack="here",
        pass_tokens=float(program.batch), mix=tuple(mix.values()),
    )  # fmt: skip


def lay_out(data: Data) -> Array:
    """Coordinates of every image model in the atlas that `learn --suggest` chooses from; kept in the temporary folder."""
    from pyarrow import parquet

    path = Path(tempfile.gettempdir()) / "traincast-coordinates.npz"
    kept: dict[str, Array] = dict(np.load(path)) if path.is_file() else {}
    atlas = load_atlas()
    for index in ("train_index", "infer_index"):
        for row in parquet.read_table(TIMM / "graphs" / f"{index}.parquet").to_pylist():
            key = f"{index} {row['model']}"
            if key not in kept:
                graph = image_models.read_graph(TIMM / "graphs" / row["graph"])
                kept[key] = atlas.features([summarize(graph)])[0, 1:]
    with path.open("wb") as stream:
        np.savez(stream, **kept)  # type: ignore[arg-type]
    nothing = np.zeros(len(next(iter(kept.values()))))
    names = [("train_index" if " train" in one.name else "infer_index", one.name.split()[0]) for one in data.programs]
    return np.array([kept.get(f"{index} {name}", nothing) for index, name in names])


def splits(setting: Setting, by: str) -> list[tuple[Places, Places]]:
    """Models that may be run, and models that are asked."""
    if by == "families":
        return [(np.flatnonzero(setting.fold != one), np.flatnonzero(setting.fold == one)) for one in range(FOLDS)]
    found = []
    for seed in range(FOLDS):
        order = np.random.default_rng(seed).permutation(len(setting.runs))
        found.append((order[len(order) // 3 :], order[: len(order) // 3]))
    return found


def compare(setting: Setting, by: str, num_seeds: int) -> list[dict[tuple[str, int], float]]:
    """Of each split the error of every rule and count."""
    found = []
    for among, asked in splits(setting, by):
        cells: dict[tuple[str, int], float] = {}
        for count in COUNTS:
            draws = [np.random.default_rng(100 + seed).permutation(among)[:count] for seed in range(num_seeds)]
            cells["random", count] = float(np.mean([setting.error(one.tolist(), asked) for one in draws]))
            for name, rule in RULES.items():
                cells[name, count] = setting.error([int(among[one]) for one in rule(setting, among, count)], asked)
        found.append(cells)
    return found


def tabulate(num_seeds: int) -> str:
    """Markdown: mean errors in %, and in how many splits each rule beats the mean of random draws."""
    data = read_everything()
    table = Table.of(data)
    points = lay_out(data)
    settings = [read_setting(data, table, points, name) for name in CONDITIONS]
    lines = [
        f"| left out, forecasts | choice | {' | '.join(f'{count} runs' for count in COUNTS)} |",
        f"|---|---|{'--:|' * len(COUNTS)}",
    ]
    for by in ("families", "models"):
        for title, factor in (("as it is", 1.0), ("off by a third", OFF)):
            found = [
                cells
                for one in settings
                for cells in compare(
                    replace(one, runs=tuple([replace(run, forecast_s=factor * run.forecast_s) for run in one.runs])),
                    by, num_seeds,
                )
            ]  # fmt: skip
            for name in ("random", *RULES):
                words = []
                for count in COUNTS:
                    better = sum(cells[name, count] < cells["random", count] for cells in found)
                    mean = 100 * float(np.mean([cells[name, count] for cells in found]))
                    words.append(f"{mean:.1f}" + (f" ({better} of {len(found)})" if name != "random" else ""))
                lines.append(f"| {by}, {title} | {name} | {' | '.join(words)} |")
    return "\n".join(lines)
