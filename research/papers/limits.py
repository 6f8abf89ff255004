"""What is left for a perfect method of each form on these labels: python -m research.papers.limits.

*Twins*: programs with equal operators under two names, whose measured times differ by the noise of the labels and nothing else.
*Neighbours*: what the error of the layers differs by between a program and the nearest one of another family, which no method
that only sees what a program is made of can foretell. *One factor for each family*, known beforehand: what is left inside
families. Programs on tokens: *factors by class that saw every source*, and *one factor for each table*, known beforehand: a
correction that was fitted to other sources cannot be expected to do better than these, which saw the answers.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.__main__ import recall_left_out, share_table, teaching_rows
from research.fits.interaction_gpu.blend import LeftOut
from research.fits.interaction_gpu.data import SHARED, Data, read_everything
from research.fits.interaction_gpu.members import Table, apply_kinds, fit_kinds
from research.output import say
from traincast.accuracy import read_rows

Array = NDArray[np.float64]
SAME = ("model", "gpu", "n_gpus", "micro_batch", "global_batch", "dtype")
"""Columns that equal configurations share."""
EQUAL = 1e-3
"""Distance of shares below which two programs are twins."""


def tabulate(data: Data, table: Table, left_out: LeftOut) -> str:
    """Markdown: images by condition, then tokens by publisher."""
    missed = table.log_measured - table.log_step(np.zeros(len(table.node_class)))
    lines = [
        "| condition | n | layers | one factor for each family, known | neighbours of other families | twins (pairs) |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    shares = share_table(data, table)
    families = np.array([data.programs[row.program].family for row in data.rows])
    teaches = teaching_rows(data)
    for condition in sorted(set(left_out.group[teaches].tolist())):
        rows = np.flatnonzero(left_out.group == condition)
        own = missed[rows] - _middle(missed[rows], families[rows])
        near, twins = _compare_near(
            shares[table.row_program[rows]], missed[rows], families[rows], table.log_measured[rows]
        )
        told = f"{_mean(twins):.1f} ({len(twins)})" if len(twins) else "none"
        lines.append(
            f"| {condition} | {len(rows)} | {_mean(missed[rows]):.1f} | {_mean(own):.1f} | {_mean(near):.1f} | {told} |"
        )
    return "\n".join([*lines, "", tabulate_tokens(data), "", tabulate_repeats()])


def tabulate_tokens(data: Data) -> str:
    part = take_tokens(data)
    table = Table.of(part, cases_weight=1.0)
    missed = table.log_measured - table.log_step(np.zeros(len(table.node_class)))
    sources = np.array([part.programs[row.program].source for row in part.rows])
    conditions = np.array([row.condition for row in part.rows])
    every = np.ones(len(sources), dtype=bool)
    seen = missed - (table.log_step(apply_kinds(table, fit_kinds(table, every))) - (table.log_measured - missed))
    unseen = np.zeros(len(sources))
    for name in sorted(set(sources.tolist())):
        asked = sources == name
        moved = table.log_step(apply_kinds(table, fit_kinds(table, ~asked)))
        unseen[asked] = (table.log_measured - moved)[asked]
    own = missed - _middle(missed, conditions)
    lines = [
        "| programs on tokens | n | layers | factors by class, source left out | that saw every source "
        "| one factor for each table, known |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, rows in [*((one, sources == one) for one in sorted(set(sources.tolist()))), ("all", every)]:
        cells = [f"{_mean(each[rows]):.1f}" for each in (missed, unseen, seen, own)]
        lines.append(f"| {name} | {int(rows.sum())} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tabulate_repeats() -> str:
    """Equal configurations that several submitters of MLPerf measured: how far each is from their median."""
    groups: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for row in read_rows(str(SHARED / "cases" / "mlperf.parquet")):
        if row.get("measured_step_s") and row.get("quality") in (None, "clean"):
            groups[tuple(row.get(name) for name in SAME)].append(float(row["measured_step_s"]))
    apart = np.array([abs(one / np.median(each) - 1) for each in groups.values() if len(each) > 1 for one in each])
    return (
        f"MLPerf, {len(apart)} steps of {sum(len(each) > 1 for each in groups.values())} configurations that were submitted more "
        f"than once: {100 * apart.mean():.1f}% from their median on average, {100 * np.quantile(apart, 0.9):.1f}% at p90, "
        f"{100 * apart.max():.0f}% at most."
    )


def take_tokens(data: Data) -> Data:
    """The rows of the cases whose programs look up tokens."""
    kept = [
        place for place, one in enumerate(data.programs) if one.behaviour.endswith("tokens") and one.source != "timm"
    ]
    place_of = {place: number for number, place in enumerate(kept)}
    rows = [replace(row, program=place_of[row.program]) for row in data.rows if row.program in place_of]
    return Data(programs=tuple([data.programs[place] for place in kept]), rows=tuple(rows))


def _mean(logs: Array) -> float:
    """Mean error in % of forecasts that miss by these logarithms of measured over said."""
    return 100 * float(np.abs(np.expm1(-logs)).mean())


def _middle(missed: Array, groups: NDArray[np.str_]) -> Array:
    found = np.zeros(len(missed))
    for name in sorted(set(groups.tolist())):
        found[groups == name] = np.median(missed[groups == name])
    return found


def _compare_near(shares: Array, missed: Array, families: NDArray[np.str_], log_measured: Array) -> tuple[Array, Array]:
    """Differences of what is missed to the nearest program of another family, and of the measured times of twins."""
    squares = (shares**2).sum(axis=1)
    apart = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2 * shares @ shares.T, 0.0))
    other = families[:, None] != families[None]
    nearest = np.where(other, apart, np.inf).argmin(axis=1)
    one, two = np.nonzero(np.triu(apart < EQUAL, k=1))
    said = log_measured - missed
    same = np.abs(said[one] - said[two]) < EQUAL
    return missed - missed[nearest], (log_measured[one] - log_measured[two])[same]


def main() -> None:
    data = read_everything()
    table = Table.of(data)
    say(tabulate(data, table, recall_left_out(data, table, seed=0)))


if __name__ == "__main__":
    main()
