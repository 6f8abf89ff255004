"""The fit of the ensemble on GPUs: factors are found again, guards forbid, and averages keep the step."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from research.fits.interaction_gpu import data as data_module
from research.fits.interaction_gpu.__main__ import (
    _as_left_out,
    apply_members,
    fit_members,
    mean_nearest,
    share_table,
    spread_out,
)
from research.fits.interaction_gpu.blend import NOTHING, choose, correct
from research.fits.interaction_gpu.data import TIMM, Data, Program, Row, image_models
from research.fits.interaction_gpu.members import Table, apply_kinds, fit_kinds
from traincast.cost._interaction.ensemble import Blend
from traincast.cost._interaction.nodes import AROUND, OWN

CLASSES = ("conv 1x1 forward", "matmul single forward", "norm layer_norm forward")


def make_data(factors: tuple[float, ...], num_rows: int = 60) -> Data:
    """Programs of three operators whose measured times are those of physics times a factor for each class."""
    random = np.random.default_rng(0)
    programs, rows = [], []
    for place in range(num_rows):
        seconds = random.dirichlet(np.ones(len(CLASSES)))
        programs.append(
            Program(
                name=f"net{place}", family=f"family{place % 6}", source="timm", behaviour="inference on images", classes=CLASSES,
                own=np.zeros((len(CLASSES), len(OWN))), around=np.zeros((len(CLASSES), len(AROUND))), reference_s=seconds,
                shares=dict(zip(CLASSES, seconds.tolist(), strict=True)), totals={}, batch=1,
            )
        )  # fmt: skip
        measured_s = float(seconds @ np.array(factors)) + 0.05
        rows.append(Row(program=place, condition="here", seconds=seconds, rest_s=0.05, measured_s=measured_s))
    return Data(programs=tuple(programs), rows=tuple(rows))


def test_factors_by_class_are_found_again() -> None:
    table = Table.of(make_data((1.4, 0.7, 1.0)))
    logs = apply_kinds(table, fit_kinds(table, np.ones(60, dtype=bool)))
    before, after = (np.abs(table.log_step(each) - table.log_measured).mean() for each in (np.zeros(180), logs))
    assert after < 0.2 * before


def test_one_factor_for_each_class_keeps_the_step_of_one_operator_each() -> None:
    table = Table.of(make_data((1.0, 1.0, 1.0)))
    logs = np.random.default_rng(1).normal(0, 0.2, 180)
    assert table.log_step(table.average(logs)) == pytest.approx(table.log_step(logs))


def test_a_blend_that_makes_a_guard_worse_is_not_chosen() -> None:
    blends = [NOTHING, Blend(weights=(1.0, 0.0, 0.0), reach=0.1), Blend(weights=(0.0, 1.0, 0.0), reach=0.1)]
    groups = np.array(["images"] * 20 + ["others"] * 10)
    guards = groups == "others"
    errors = np.stack([np.full(30, 0.2), np.where(guards, 0.3, 0.05), np.where(guards, 0.21, 0.1)])
    assert choose(blends, errors, groups, guards) is blends[2]
    assert choose(blends, errors, groups, np.zeros(30, dtype=bool)) is blends[1]
    worse = np.stack([np.full(30, 0.2), np.full(30, 0.3), np.full(30, 0.3)])
    assert choose(blends, worse, groups, guards) is NOTHING


def test_points_that_are_kept_lie_apart() -> None:
    points = np.array([[0.0, 0.0], [0.001, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert sorted(spread_out(points, 10)) == [0, 2, 3]
    assert len(spread_out(points, 2)) == 2


@pytest.mark.skipif(not TIMM.is_dir(), reason="needs the measured image models in ../shared")
def test_weights_taught_by_some_families_make_forecasts_of_others_better_and_zeroed_weights_take_it_away() -> None:
    """Out of sample: no family that is asked has taught anything, and no weight of a member was chosen by results."""
    data = read_compiled(64)
    table = Table.of(data)
    families = [program.family for program in data.programs]
    names = sorted(set(families))
    known = np.array([names.index(families[row.program]) % 2 == 0 for row in data.rows])
    left_out = _as_left_out(data, table, apply_members(table, fit_members(table, known)), distances(data, table, known))
    zeroed = replace(left_out, logs={name: np.zeros_like(logs) for name, logs in left_out.logs.items()})
    alike = Blend(weights=(1 / 3, 1 / 3, 1 / 3), reach=0.4)
    errors = {
        name: np.abs(np.expm1(table.log_step(table.average(correct(table, each, alike))) - table.log_measured))
        for name, each in (("taught", left_out), ("zeroed", zeroed))
    }
    asked = {name: float(each[~known].mean()) for name, each in errors.items()}
    assert (~known).sum() >= 20
    assert asked["taught"] < 0.95 * asked["zeroed"], asked


def distances(data: Data, table: Table, known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Of every program from those that taught."""
    shares = share_table(data, table)
    taught = shares[sorted(set(table.row_program[known].tolist()))]
    return np.array([mean_nearest(taught, one) for one in shares])


def read_compiled(count: int) -> Data:
    """So many image models, compiled, on one GPU, evenly over the table."""
    from pyarrow import parquet

    label = "4090_c_2.9.1"
    table = [row for row in parquet.read_table(TIMM / "graphs" / "infer_index.parquet").to_pylist() if row[label]]
    table = [row for row in table if not row["model"].startswith(image_models.REPARAMETERISED)]
    programs: list[Program] = []
    rows: list[Row] = []
    for place in np.linspace(0, len(table) - 1, count).round().astype(int).tolist():
        row = table[place]
        graph = image_models.without_norm_casts(image_models.read_graph(TIMM / "graphs" / row["graph"]))
        asked = {("rtx-4090", "compiled"): row[label]}
        program, found = data_module._timm_program(row, "compiled", graph, asked, compiled=True)
        rows += [replace(one, program=len(programs)) for one in found]
        programs.append(program)
    return Data(programs=tuple(programs), rows=tuple(rows))
