"""The reuse predictor: workload vector and machines to step time, fitted once, asked for architectures that never ran.

A sum of physical terms at fitted rates carries the answer; a Gaussian process per type of data set learns the logarithm of what
it misses from the traits and the vector of the workload and from the machines. Far from all known workloads it fades to the sum.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincast.embed._features import Array
from traincast.embed._summary import Ranks, Summary, physical_columns, place
from traincast.errors import InvalidInput
from traincast.spec import Estimate

MIN_SIGMA = 0.02
Z90 = 1.6449


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One measured step of a known workload."""

    summary: Summary
    ranks: Ranks
    seconds: float
    architecture: str = ""
    """Rows of one architecture are one workload, whatever their batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far a measured residual speaks for others; lengths are in standard deviations per square root of a column.

    Chosen by leave-family-out over a small grid, see docs/adr/0013-embedding.md.
    """

    traits: float = 0.5
    vector: float = 0.5
    place: float = 0.5
    common: float = 0.15
    """Standard deviation of what a workload misses in all settings alike."""
    single: float = 0.10
    """And of what it misses in one place only."""
    noise: float = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A Gaussian process over (traits, vector, place), as far as a mean needs it."""

    center: Array
    scale: Array
    workloads: Array
    """Standardised traits and vector of each known workload, already divided by their reach."""
    index: NDArray[np.intp]
    """Which workload each known row is of."""
    places: Array
    weights: Array

    def correct(self, point: Array, where: Array, reach: Reach) -> float:
        """The expected logarithm of measured over physical."""
        near = np.exp(-0.5 * _squares(_scaled(point[None], self.center, self.scale, reach), self.workloads))[0]
        here = np.exp(-0.5 * _squares(where[None] / reach.place, self.places))[0]
        kernel = near[self.index] * (reach.common**2 + reach.single**2 * here)
        return float(kernel @ self.weights)

    def distance(self, point: Array, reach: Reach) -> float:
        """To the nearest known workload, in reaches."""
        return float(np.sqrt(_squares(_scaled(point[None], self.center, self.scale, reach), self.workloads).min()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """The machines and sizes of the measured steps: inside of them a predictor has been checked, outside it is a guess."""

    most_ranks: int
    least_bits_per_s: float
    most_bits_per_s: float
    least_share: float
    most_share: float
    least_flop: float
    most_flop: float
    """Of a step, in logarithms of GFLOP as in the traits."""

    def find_gap(self, summary: Summary, ranks: Ranks) -> str:
        """What of a question lies outside, in words; empty where nothing does."""
        if ranks.num_ranks > self.most_ranks:
            return f"{ranks.num_ranks} ranks; steps of 1 to {self.most_ranks} were measured"
        if not (self.least_share / MARGIN <= ranks.share <= self.most_share * MARGIN):
            return f"{ranks.share:g} of a core for each rank; {self.least_share:g} to {self.most_share:g} were measured"
        slow, fast = self.least_bits_per_s / MARGIN, self.most_bits_per_s * MARGIN
        if ranks.num_ranks > 1 and not (slow <= ranks.bits_per_s <= fast):
            return (
                f"links of {ranks.bits_per_s / 1e9:g} Gbit/s; {self.least_bits_per_s / 1e9:g} to "
                f"{self.most_bits_per_s / 1e9:g} were measured"
            )
        flop = float(summary.traits[0])
        if not (self.least_flop - math.log(MARGIN) <= flop <= self.most_flop + math.log(MARGIN)):
            return (
                f"{math.exp(flop):.3g} GFLOP a step; {math.exp(self.least_flop):.3g} to {math.exp(self.most_flop):.3g} "
                "were measured"
            )
        return ""


MARGIN = 1.25
"""How far beyond the measured range a question may lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Mean relative errors of the reuse predictor and of its rival on the same measured steps."""

    architecture_error: float
    """Of architectures that were left out."""
    family_error: float
    """Of families that were left out."""
    rival_error: float | None = None
    """Of the forecast without it, physics and layers as shipped; None: never compared."""
    rival_sigma: float | None = None
    """The same as a standard deviation of the logarithm that holds 90% of them."""
    num_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """Step times of data-parallel training on one sort of machine."""

    rates: Array
    residuals: dict[str, Residual]
    reach: Reach
    sigma: float
    """Of the logarithm on architectures that were left out."""
    family_sigma: float
    """And on whole families that were left out: what an architecture unlike all others must expect."""
    typical_distance: float
    """Of an architecture to the nearest other one."""
    tested: Tested
    proof: Proof
    most_apart: float = math.inf
    """How far, in logarithms, its answer lies from that of layers on nine of ten left-out architectures: see `meet`."""

    def predict(self, summary: Summary, ranks: Ranks, *, layers_s: float | None = None) -> Estimate:
        """`layers_s`: what layers fitted to the same machines say; the two answers meet."""
        physical_s = float(physical_columns(summary, ranks) @ self.rates)
        if not physical_s > 0:
            raise InvalidInput(f"workload {summary.name!r} has no work that the reuse predictor knows a rate for")
        residual = self.residuals.get(summary.dataset_type)
        shift = (
            0.0 if residual is None else residual.correct(workload_point(summary), place(summary, ranks), self.reach)
        )
        seconds = physical_s * math.exp(shift)
        if layers_s is not None:
            seconds = float(meet(np.array(seconds), np.array(layers_s), most_apart=self.most_apart))
        width = math.exp(Z90 * max(self.sigma_at(self.farness(summary)), MIN_SIGMA))
        return Estimate(seconds=seconds, low_s=seconds / width, high_s=seconds * width, ground="transfer")

    def farness(self, summary: Summary) -> float:
        """The distance to the nearest measured workload of its type of data, over an ordinary one: above 1, a stranger."""
        residual = self.residuals.get(summary.dataset_type)
        if residual is None:
            return math.inf
        return residual.distance(workload_point(summary), self.reach) / max(self.typical_distance, 1e-9)

    def sigma_at(self, farness: float) -> float:
        """Between an ordinary neighbour and a stranger it grows from the one left-out error to the other, then on."""
        grown = self.sigma + (self.family_sigma - self.sigma) * max(0.0, farness - 1)
        return min(grown, (3 if math.isfinite(farness) else 2) * self.family_sigma)

    def epoch_s(self, summary: Summary, ranks: Ranks, *, num_samples: float, layers_s: float | None = None) -> Estimate:
        return self.predict(summary, ranks, layers_s=layers_s).scaled(count_steps(summary, ranks, num_samples))


def count_steps(summary: Summary, ranks: Ranks, num_samples: float) -> int:
    """Of an epoch: every rank takes a batch, and a last part of one counts whole."""
    if not num_samples > 0:
        raise InvalidInput(f"an epoch of {num_samples:g} samples; give more than 0")
    return math.ceil(num_samples / (summary.batch_size * ranks.num_ranks))


def meet(reuse_s: Array, layers_s: Array, *, most_apart: float) -> Array:
    """The geometric mean of both answers, which err apart from each other, but no farther from the layers than half of
    `most_apart`: where the two differ by more than they do on left-out architectures, the workload has operators whose like was
    never measured, and layers tell operators apart. Without layers the other stands alone."""
    with np.errstate(invalid="ignore"):
        apart = np.clip(np.log(reuse_s / layers_s), -most_apart, most_apart)
    return np.asarray(np.where(np.isfinite(layers_s), layers_s * np.exp(apart / 2), reuse_s))


def measure_apart(reuse_s: Array, layers_s: Array) -> float:
    """What nine of ten rows differ by at most; no bound where no row has both."""
    both = np.isfinite(reuse_s) & np.isfinite(layers_s)
    return float(np.quantile(np.abs(np.log(reuse_s[both] / layers_s[both])), 0.9)) if both.any() else math.inf


def workload_point(summary: Summary) -> Array:
    return np.concatenate([summary.traits, summary.vector])


def fit_predictor(
    rows: Sequence[Known],
    *,
    reach: Reach | None = None,
    rival_s: Sequence[float | None] | None = None,
    layers_s: tuple[Array, Array] | None = None,
) -> Predictor:
    """Rates, residuals and the widths that leave-architecture-out and leave-family-out errors ask for.

    `rival_s`: what a forecast without the predictor says of each row, None where it was not asked. `layers_s`: what layers that
    will answer beside it say of each row, its architecture and then its family left out.
    """
    reach = reach or Reach()
    table = _Table.of(rows, reach)
    everything = np.ones(len(rows), dtype=bool)
    rates = table.rates(everything)
    logs = np.log(table.seconds / (table.columns @ rates))
    residuals = {kind: part.fit(logs[part.rows]) for kind, part in table.parts.items()}
    architectures = [row.architecture or row.summary.name for row in rows]
    spreads, errors, most_apart = [], [], math.inf
    families = [name.split("(")[0] for name in architectures]
    for groups, beside_s in zip((architectures, families), layers_s or (None, None), strict=True):
        answers = cross_validate(rows, groups, reach=reach)
        if beside_s is not None:
            most_apart = measure_apart(answers, beside_s) if groups is architectures else most_apart
            answers = meet(answers, beside_s, most_apart=most_apart)
        missed = np.log(answers / table.seconds)
        spreads.append(_spread(missed))
        errors.append(float(np.abs(np.expm1(missed)).mean()))
    distances = []
    for part in table.parts.values():
        squares = _squares(part.workloads, part.workloads)
        names = np.array([architectures[place] for place in part.first])
        squares[names[:, None] == names[None]] = np.inf
        distances += np.sqrt(squares.min(axis=1)[np.isfinite(squares.min(axis=1))]).tolist()
    return Predictor(
        rates=rates, residuals=residuals, reach=reach, sigma=spreads[0], family_sigma=max(spreads),
        typical_distance=float(np.quantile(distances, 0.75)) if distances else 1.0, tested=_range_of(rows),
        proof=_compare(table.seconds, rival_s, architecture_error=errors[0], family_error=errors[1]),
        most_apart=most_apart,
    )  # fmt: skip


def _spread(missed: Array) -> float:
    """The standard deviation of a normal error that is as often as large as these at 90%."""
    return float(np.quantile(np.abs(missed), 0.9) / Z90)


def _range_of(rows: Sequence[Known]) -> Tested:
    joined = [row.ranks.bits_per_s for row in rows if row.ranks.num_ranks > 1] or [row.ranks.bits_per_s for row in rows]
    shares = [row.ranks.share for row in rows]
    flop = [float(row.summary.traits[0]) for row in rows]
    return Tested(
        most_ranks=max(row.ranks.num_ranks for row in rows), least_bits_per_s=min(joined), most_bits_per_s=max(joined),
        least_share=min(shares), most_share=max(shares), least_flop=min(flop), most_flop=max(flop),
    )  # fmt: skip


def _compare(seconds: Array, rival_s: Sequence[float | None] | None, *, architecture_error: float,
             family_error: float) -> Proof:  # fmt: skip
    answered = [
        (guess, took) for guess, took in zip(rival_s or (), seconds.tolist(), strict=False) if guess is not None
    ]
    missed = np.log([guess / took for guess, took in answered])
    return Proof(
        architecture_error=architecture_error, family_error=family_error, num_steps=len(seconds),
        rival_error=float(np.abs(np.expm1(missed)).mean()) if answered else None,
        rival_sigma=_spread(missed) if answered else None,
    )  # fmt: skip


def leave_out_rates(rows: Sequence[Known], groups: Sequence[Any]) -> dict[str, Array]:
    """For each group the rates fitted to all other rows."""
    columns = np.array([physical_columns(row.summary, row.ranks) for row in rows])
    relative = columns / np.array([row.seconds for row in rows])[:, None]
    labels = np.array([str(group) for group in groups])
    return {label: fit_nonnegative(relative[labels != label]) for label in sorted(set(labels.tolist()))}


def cross_validate(
    rows: Sequence[Known],
    groups: Sequence[Any],
    *,
    reach: Reach | None = None,
    rates: Mapping[str, Array] | None = None,
) -> Array:
    """Seconds of every row by a predictor that saw no row of its group; rates and residuals are fitted anew for each group.

    `rates` are those of `leave_out_rates`, for who asks more than once.
    """
    reach = reach or Reach()
    table = _Table.of(rows, reach)
    labels = np.array([str(group) for group in groups])
    answers = np.zeros(len(rows))
    for label in sorted(set(labels.tolist())):
        asked = labels == label
        if asked.all():
            raise InvalidInput(f"all rows are of the group {label!r}; leaving it out leaves nothing to learn from")
        physical_s = table.columns @ (table.rates(~asked) if rates is None else rates[label])
        logs = np.log(table.seconds / physical_s)
        for part in table.parts.values():
            mine = asked[part.rows]
            if mine.any():
                shift = part.leave_out(logs[part.rows], mine)
                answers[part.rows[mine]] = physical_s[part.rows[mine]] * np.exp(shift)
    return answers


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of one type of data set."""

    rows: NDArray[np.intp]
    first: list[int]
    """A row of each workload."""
    center: Array
    scale: Array
    workloads: Array
    index: NDArray[np.intp]
    places: Array
    inverse: Array
    reach: Reach

    def fit(self, logs: Array) -> Residual:
        return Residual(
            center=self.center, scale=self.scale, workloads=self.workloads, index=self.index, places=self.places,
            weights=self.inverse @ logs,
        )  # fmt: skip

    def leave_out(self, logs: Array, asked: NDArray[np.bool_]) -> Array:
        """What the process fitted to the other rows says of these: by blocks of the inverse, without another fit."""
        if asked.all():
            return np.zeros(int(asked.sum()))
        block = self.inverse[np.ix_(asked, asked)]
        return np.asarray(logs[asked] - np.linalg.solve(block, self.inverse[asked] @ logs))


@dataclass(frozen=True, slots=True)
class _Table:
    columns: Array
    seconds: Array
    parts: dict[str, _Part]

    @classmethod
    def of(cls, rows: Sequence[Known], reach: Reach) -> "_Table":
        if not rows:
            raise InvalidInput("no measured steps to fit the reuse predictor to; give at least one")
        columns = np.array([physical_columns(row.summary, row.ranks) for row in rows])
        parts = {}
        for kind in sorted({row.summary.dataset_type for row in rows}):
            chosen = [place for place, row in enumerate(rows) if row.summary.dataset_type == kind]
            parts[kind] = _part(rows, chosen, reach)
        return cls(columns, np.array([row.seconds for row in rows]), parts)

    def rates(self, known: NDArray[np.bool_]) -> Array:
        """Rates that are not negative, by relative errors."""
        return fit_nonnegative(self.columns[known] / self.seconds[known, None])


def _part(rows: Sequence[Known], chosen: list[int], reach: Reach) -> _Part:
    first: dict[tuple[str, int], int] = {}
    index = []
    for row in chosen:
        key = (rows[row].architecture or rows[row].summary.name, rows[row].summary.batch_size)
        first.setdefault(key, row)
        index.append(list(first).index(key))
    points = np.array([workload_point(rows[row].summary) for row in first.values()])
    center, scale = points.mean(axis=0), points.std(axis=0) + 1e-3
    workloads = _scaled(points, center, scale, reach)
    places = np.array([place(rows[row].summary, rows[row].ranks) for row in chosen]) / reach.place
    numbers = np.array(index, dtype=np.intp)
    near = np.exp(-0.5 * _squares(workloads, workloads))[np.ix_(numbers, numbers)]
    kernel = near * (reach.common**2 + reach.single**2 * np.exp(-0.5 * _squares(places, places)))
    kernel[np.diag_indices_from(kernel)] += reach.noise**2
    return _Part(
        np.array(chosen, dtype=np.intp), list(first.values()), center, scale, workloads, numbers, places,
        np.asarray(np.linalg.inv(kernel), dtype=np.float64), reach,
    )  # fmt: skip


def _scaled(points: Array, center: Array, scale: Array, reach: Reach) -> Array:
    from traincast.embed._encoder import SIZE

    num_traits = points.shape[1] - SIZE
    lengths = np.concatenate([
        np.full(num_traits, reach.traits * math.sqrt(num_traits)), np.full(SIZE, reach.vector * math.sqrt(SIZE))
    ])  # fmt: skip
    return np.asarray((points - center) / scale / lengths)


def _squares(left: Array, right: Array) -> Array:
    """Squared distances between rows."""
    found = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None] - 2 * left @ right.T
    return np.asarray(np.maximum(found, 0.0))


def fit_nonnegative(design: Array) -> Array:
    """x >= 0 that brings design @ x nearest to 1 in squares (Lawson and Hanson 1974), by the normal equations."""
    scale = np.sqrt((design**2).mean(axis=0))
    scale[scale == 0] = 1
    scaled = design / scale
    gram, moment = scaled.T @ scaled / len(design), scaled.mean(axis=0)
    gram[np.diag_indices_from(gram)] += 1e-9
    solution, active = np.zeros(len(gram)), np.zeros(len(gram), dtype=bool)
    for _ in range(10 * len(gram)):
        slope = np.where(active, -np.inf, moment - gram @ solution)
        entering = int(np.argmax(slope))
        if slope[entering] <= 1e-10:
            break
        active[entering] = True
        while True:
            trial = np.zeros(len(gram))
            trial[active] = np.linalg.solve(gram[np.ix_(active, active)], moment[active])
            negative = active & (trial <= 0)
            if not negative.any():
                solution = trial
                break
            step = (solution[negative] / np.maximum(solution[negative] - trial[negative], 1e-300)).min()
            solution = solution + step * (trial - solution)
            active &= solution > 1e-14
            solution[~active] = 0
            if not active.any():
                break
    return np.asarray(solution / scale)
