"""The fit of factors by class and of the graph network on GPUs: factors are found again, and other families get better."""

from dataclasses import replace

import numpy as np
import pytest

from research.fits.interaction_gpu import __main__ as fit
from research.fits.interaction_gpu import data as data_module
from research.fits.interaction_gpu.data import TIMM, Data, Program, Row, image_models
from research.fits.interaction_gpu.members import Table, fit_classes, fit_network
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


def test_factors_by_class_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.fits.interaction_gpu.members.WIDE", 0.35)
    table = Table.of(make_data((1.4, 0.7, 1.0)))
    logs = fit_classes(table, np.ones(60, dtype=bool))[table.node_class]
    before, after = (np.abs(table.log_step(each) - table.log_measured).mean() for each in (np.zeros(180), logs))
    assert after < 0.2 * before


def test_what_is_said_of_a_family_does_not_depend_on_its_steps() -> None:
    data = make_data((1.4, 0.7, 1.0))
    rows = np.ones(60, dtype=bool)
    said = fit.leave_out(data, Table.of(data), rows)
    own = [data.programs[row.program].family == "family1" for row in data.rows]
    slower = tuple(
        replace(row, measured_s=3 * row.measured_s) if mine else row for row, mine in zip(data.rows, own, strict=True)
    )
    again = fit.leave_out(replace(data, rows=slower), Table.of(replace(data, rows=slower)), rows)
    assert again[own] == pytest.approx(said[own])
    assert again[~np.array(own)] != pytest.approx(said[~np.array(own)])


@pytest.mark.skipif(not TIMM.is_dir(), reason="needs the measured image models in ../shared")
def test_factors_and_graph_network_taught_by_some_families_make_forecasts_of_others_better() -> None:
    data = read_inference(64)
    table = Table.of(data)
    families = [program.family for program in data.programs]
    names = sorted(set(families))
    known = np.array([names.index(families[row.program]) % 2 == 0 for row in data.rows])
    told = {
        "layers": np.zeros(len(table.node_class)), "classes": fit_classes(table, known)[table.node_class],
        "graph": fit_network(table, known).apply(table),
    }  # fmt: skip
    errors = {
        name: float(np.abs(np.expm1(table.log_step(logs) - table.log_measured))[~known].mean())
        for name, logs in told.items()
    }
    assert (~known).sum() >= 20
    assert errors["classes"] < 0.97 * errors["layers"], errors
    assert errors["graph"] < 0.97 * errors["layers"], errors


def read_inference(count: int) -> Data:
    """So many image models with channels last on one GPU, evenly over the table."""
    from pyarrow import parquet

    last = data_module._channels_last_steps()
    listed = [
        (row, seconds)
        for row in parquet.read_table(TIMM / "graphs" / "infer_index.parquet").to_pylist()
        if (seconds := last.get((row["model"], row["image"], row["batch"], "rtx-3090", "2.4")))
    ]
    programs: list[Program] = []
    rows: list[Row] = []
    for place in np.linspace(0, len(listed) - 1, count).round().astype(int).tolist():
        row, seconds = listed[place]
        graph = image_models.with_layout(image_models.read_graph(TIMM / "graphs" / row["graph"]))
        program, found = data_module._timm_program(row, "NHWC", graph, {("rtx-3090", "3090 NHWC 2.4"): seconds})
        rows += [replace(one, program=len(programs)) for one in found]
        programs.append(program)
    return Data(programs=tuple(programs), rows=tuple(rows))
