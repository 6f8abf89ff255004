"""`traincast design`: says which few measurements are worth their price, what they cost and what they would gain."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli.groups import takes_groups
from traincast.cli.options import Json
from traincast.noun import noun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from traincast.design import DesignChoice

METHODS = ("d-optimal", "a-optimal", "medoids", "random")


@noun
class Columns:
    """Which columns of a table of candidates are used, and how."""

    features: Annotated[
        str | None,
        typer.Option("--features", help="Columns of the table, by commas; default: all numbers but the cost."),
    ] = None
    cost: Annotated[str | None, typer.Option("--cost", help="Column with the seconds each candidate takes.")] = None
    logarithms: Annotated[bool, typer.Option("--log", help="Use the logarithm of every feature, and a constant.")] = (
        False
    )


@noun
class Candidates:
    """Experiments by name, with their features, their costs and those that are known already."""

    names: Sequence[str]
    matrix: "NDArray[np.float64]"
    costs: "NDArray[np.float64] | None"
    measured: Sequence[int]
    ridge: float


@noun
class Designed:
    """What was chosen among which candidates, and what measuring it would bring."""

    method: str
    names: Sequence[str]
    num_measured: int
    choices: "Sequence[DesignChoice]"
    in_seconds: bool
    """Whether costs are durations; else they are counts."""
    cost_of_all: float
    uncertainty_before: float
    uncertainty_after: float

    @property
    def cost(self) -> float:
        return sum(choice.cost for choice in self.choices)


@takes_groups
def design(
    table: Annotated[
        Path | None,
        typer.Argument(
            help="Candidates as CSV, one per line; without it the operators that profile knows.", show_default=False
        ),
    ] = None,
    *,
    budget: Annotated[
        str, typer.Option("--budget", help="Time to spend, such as 3min; without costs a number of rows.")
    ] = "1min",
    columns: Columns,
    method: Annotated[str, typer.Option("--method", help=f"{', '.join(METHODS)}.")] = "d-optimal",
    store: Annotated[
        Path | None,
        typer.Option("--store", "-s", help="Operators measured there already count as known.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Lines to print.")] = 30,
    json: Json = False,
) -> None:
    """Choose the few measurements that are worth their price.

    The gain of a row is how much it shrinks the joint uncertainty of the model, in nats; the first rows bring most.

    Example: traincast design --budget 3min
    """
    from traincast.cli.output import lead_to
    from traincast.errors import UnknownName
    from traincast.units import parse_seconds

    if method not in METHODS:
        raise UnknownName("method", method, METHODS)
    candidates = _operators(store) if table is None else _read(table, columns)
    designed = _choose(candidates, method=method, budget=parse_seconds(budget))
    _show(designed, limit=limit, as_json=json)
    if not json:
        lead_to(*(("calibrate",) if table is None else ("learn", "runs.csv", "-o", "mine.json")))


def _choose(candidates: Candidates, *, method: str, budget: float) -> Designed:
    import numpy as np

    from traincast.design import a_optimal, d_optimal, explain, k_medoids, prediction_spread, random_design

    names, matrix, costs = candidates.names, candidates.matrix, candidates.costs
    measured, ridge = candidates.measured, candidates.ridge
    if method == "d-optimal":
        rows = d_optimal(matrix, budget=budget, costs=costs, ridge=ridge, measured=measured)
    elif method == "a-optimal":
        rows = a_optimal(matrix, budget=budget, costs=costs, ridge=ridge, measured=measured)
    elif method == "medoids":
        rows = k_medoids(matrix, budget=budget, costs=costs, measured=measured)
    else:
        rows = random_design(len(matrix), budget=budget, costs=costs, measured=measured)
    choices = explain(matrix, rows, costs=costs, ridge=ridge, measured=measured)
    before = float(np.median(prediction_spread(matrix, measured, ridge=ridge)[: len(names)]))
    after = float(np.median(prediction_spread(matrix, [*measured, *rows], ridge=ridge)[: len(names)]))
    return Designed(
        method=method, names=names, num_measured=len(measured), choices=choices, in_seconds=costs is not None,
        cost_of_all=float(np.sum(costs)) if costs is not None else len(names), uncertainty_before=before,
        uncertainty_after=after,
    )  # fmt: skip


def _show(designed: Designed, *, limit: int, as_json: bool) -> None:
    from traincast.cli.output import say
    from traincast.report import Table, format_json, format_table
    from traincast.units import show_seconds

    names, choices = designed.names, designed.choices
    before, after = designed.uncertainty_before, designed.uncertainty_after
    if as_json:
        answer = {
            "method": designed.method, "num_candidates": len(names), "num_measured": designed.num_measured,
            "rows": [{"row": each.row, "name": names[each.row], "cost": each.cost, "gain": each.gain} for each in choices],
            "cost": designed.cost, "cost_of_all": designed.cost_of_all, "spread_before": before, "spread_after": after,
        }  # fmt: skip
        say(format_json(answer))
        return
    show = show_seconds if designed.in_seconds else (lambda value: f"{value:.0f}")
    lines = tuple((names[each.row][:90], show(each.cost), f"{each.gain:.2f}") for each in choices[:limit])
    headings = ("measure", "cost", "gain")
    say(format_table(Table(headings=headings, rows=lines, left=frozenset({"measure"}))))
    if len(choices) > limit:
        say(f"... and {len(choices) - limit} more")
    say(
        f"{len(choices)} of {len(names)} candidates, {show(designed.cost)} instead of {show(designed.cost_of_all)} for all; "
        f"typical uncertainty of a prediction falls from {before:.2g} to {after:.2g} (in units of one measurement's error)"
    )


def _read(path: Path, used: Columns) -> Candidates:
    import csv

    import numpy as np

    from traincast.errors import InvalidInput, UnknownName

    try:
        with path.open(newline="", encoding="utf-8") as stream:
            lines: list[dict[str, Any]] = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from error
    if not lines:
        raise InvalidInput(f"{path} holds no candidates")
    columns, cost = list(lines[0]), used.cost
    if cost is not None and cost not in columns:
        raise UnknownName("column", cost, columns)
    wanted = [word.strip() for word in used.features.split(",")] if used.features else _numeric(lines, columns, cost)
    for name in wanted:
        if name not in columns:
            raise UnknownName("column", name, columns)
    try:
        matrix = np.array([[float(line[name]) for name in wanted] for line in lines])
        costs = np.array([float(line[cost]) for line in lines]) if cost is not None else None
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{path} has a cell that is not a number: {error}") from error
    if not wanted:
        raise InvalidInput(f"{path} has no column of numbers to use as a feature; name some with --features")
    if used.logarithms:
        if not (matrix > 0).all():
            raise InvalidInput("--log needs features above 0")
        matrix = np.concatenate([np.ones((len(matrix), 1)), np.log(matrix)], axis=1)
    names = [", ".join(f"{name}={line[name]}" for name in columns if name != cost) for line in lines]
    return Candidates(names=names, matrix=matrix, costs=costs, measured=(), ridge=1e-3)


def _numeric(lines: list[dict[str, Any]], columns: list[str], cost: str | None) -> list[str]:
    def is_number(text: Any) -> bool:
        try:
            float(text)
        except (TypeError, ValueError):
            return False
        return True

    return [name for name in columns if name != cost and all(is_number(line[name]) for line in lines)]


def _operators(store: Path | None) -> Candidates:
    import numpy as np

    from traincast.learn import expected_cost_s, find_peaks, operator_load, start_fit
    from traincast.profile import Protocol, grid
    from traincast.store import Store

    loads = [operator_load(experiment) for experiment in grid()]
    fit = start_fit(loads, find_peaks([], {}))
    protocol = Protocol(num_rounds=3, block_s=0.03, warm_up_s=0.005)
    costs = np.array([expected_cost_s(load, fit, protocol) for load in loads])
    measured: list[int] = []
    if store is not None:
        with Store(store, create=False) as kept:
            known = {experiment.key for experiment, _, _ in kept.rows(subject="operator")}
        measured = [index for index, load in enumerate(loads) if load.experiment.key in known]
    names = [load.experiment.key for load in loads]
    return Candidates(names=names, matrix=fit.sensitivities(loads), costs=costs, measured=measured, ridge=1.0)
