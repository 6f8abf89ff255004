"""The papers' comparisons on GPUs: choices, scalings and bounds on small data of known truth."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from research.baselines.driple import Grouped
from research.baselines.operators import scale_by_intensity
from research.fits.interaction_gpu.blend import LeftOut, candidates, cross_fit
from research.fits.interaction_gpu.data import Data, Program, Row
from research.fits.interaction_gpu.members import Table
from research.papers import limits, on_gpus
from research.papers.ablation import ablate, list_variants
from research.papers.carried import METHODS, Asked, correct, errors_of
from research.papers.driple_gpus import predict_left_out
from research.papers.limits import tabulate, take_tokens
from research.papers.search import CHECKED, CHERRYPICK, FORECAST
from research.papers.search_gpus import Config, choose, compare_searches
from traincast import catalog
from traincast.cost import AROUND, MEMBERS, OWN

CLASSES = ("conv 1x1 forward", "matmul single forward")
NUM = 40


def make_data(
    *, factor: float = 1.3, behaviour: str = "inference on images", sources: tuple[str, ...] = ("timm",)
) -> Data:
    """Rows of which half the operators take longer than physics says, in five families."""
    random = np.random.default_rng(0)
    programs, rows = [], []
    for place in range(NUM):
        seconds = random.dirichlet(np.ones(2))
        programs.append(
            Program(
                name=f"net{place} eager", family=f"family{place % 5}", source=sources[place % len(sources)],
                behaviour=behaviour, classes=CLASSES,
                own=np.zeros((2, len(OWN))), around=np.zeros((2, len(AROUND))), reference_s=seconds,
                shares=dict(zip(CLASSES, seconds.tolist(), strict=True)), totals={"conv": (1e9, 1e6, 1.0)}, batch=1,
            )
        )  # fmt: skip
        rows.append(
            Row(program=place, condition="here", seconds=seconds, rest_s=0.1,
                measured_s=float(seconds @ np.array([factor, 1.0])) + 0.2)
        )  # fmt: skip
    return Data(programs=tuple(programs), rows=tuple(rows))


def leave_out(table: Table, log: float) -> LeftOut:
    """Every member knows the truth about the first class; the host's part is unknown to all."""
    logs = np.where(np.arange(len(table.node_class)) % 2 == 0, log, 0.0)
    return LeftOut(
        logs=dict.fromkeys(MEMBERS, logs), distance=np.zeros(NUM), group=np.full(NUM, "here"), fold=np.arange(NUM) % 5,
        behaviour=np.full(NUM, "inference on images"),
    )  # fmt: skip


def test_a_part_that_is_taken_out_costs_what_it_was_worth_and_a_host_factor_finds_what_the_host_adds() -> None:
    data = make_data()
    table = Table.of(data)
    found = ablate(data, table, leave_out(table, np.log(1.3)))
    assert found["ensemble"].mean() < 0.7 * found["layers"].mean()
    # The other members know as much, so any one of them may go.
    assert found["without graph"].mean() == pytest.approx(found["ensemble"].mean(), abs=1e-9)
    # The host adds 0.2 s where physics says 0.1 s: twice, which the grid holds but for a thousandth.
    assert found["with a host factor"].mean() < 0.2 * found["ensemble"].mean()


def test_only_the_candidates_of_a_variant_are_chosen() -> None:
    table = Table.of(make_data())
    rows = np.ones(NUM, dtype=bool)
    for variant in list_variants():
        chosen, _ = cross_fit(table, leave_out(table, np.log(1.3)), rows, variant.among)
        allowed = candidates() if variant.among is None else variant.among
        assert any(chosen == one for one in allowed), variant.name


def test_limits_say_what_known_factors_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"model": "net", "measured_step_s": seconds} for seconds in (1.0, 1.0, 1.2)]
    monkeypatch.setattr(limits, "read_rows", lambda _: rows)
    data = make_data(behaviour="training on tokens", sources=("one", "other"))
    assert len(take_tokens(data).rows) == NUM
    assert not take_tokens(make_data()).rows
    images = make_data()
    both = Data(
        programs=(*images.programs, *data.programs),
        rows=(*images.rows, *(Row(program=NUM + row.program, condition="cases somebody", seconds=row.seconds,
                                  rest_s=row.rest_s, measured_s=row.measured_s) for row in data.rows)),
    )  # fmt: skip
    text = tabulate_both(both)
    assert "| here | 40 |" in text
    assert "| other | 20 |" in text
    assert "3 steps of 1 configurations" in text
    assert "20% at most" in text


def tabulate_both(data: Data) -> str:
    table = Table.of(data)
    size = len(data.rows)
    left_out = LeftOut(
        logs=dict.fromkeys(MEMBERS, np.zeros(len(table.node_class))), distance=np.zeros(len(data.programs)),
        group=np.array([row.condition for row in data.rows]), fold=np.arange(size) % 5,
        behaviour=np.array([one.behaviour for one in data.programs]),
    )  # fmt: skip
    return tabulate(data, table, left_out)


def test_wave_scaling_follows_bandwidth_for_traffic_and_multiprocessors_for_arithmetic() -> None:
    old, new = catalog.device("rtx-3090"), catalog.device("rtx-4090")
    traffic, arithmetic = scale_by_intensity(np.ones(2), np.array([0.0, 1e9]), origin=old, target=new)
    assert traffic == pytest.approx(old.memory_bytes_per_s / new.memory_bytes_per_s)
    waves = (old.num_sm or 1) / (new.num_sm or 1) * (old.clock_hz or 1) / (new.clock_hz or 1)
    assert arithmetic == pytest.approx(waves, rel=1e-6)


def make_configs() -> list[Config]:
    """The time falls with the number of machines up to eight."""
    return [
        Config(features=(1.0, 1.0, np.log(machines), np.log(batch)), samples=float(batch * machines), machines=float(machines),
               measured_s=0.1 + 0.001 * batch + 0.004 * machines**1.5, forecast_s=0.11 + 0.0011 * batch + 0.004 * machines**1.5)
        for machines in (1, 2, 4, 8, 16) for batch in (8, 16, 32)
    ]  # fmt: skip


def test_a_search_by_forecasts_runs_nothing_and_finds_as_good_a_setting_as_one_by_runs() -> None:
    configs = make_configs()
    truth = np.array([one.measured_s / one.samples for one in configs])
    guess = np.array([one.forecast_s / one.samples for one in configs])
    found = {name: (place, runs) for name, place, runs in choose(configs, truth, guess, seed=0)}
    assert found[FORECAST][1] == ()
    assert truth[found[FORECAST][0]] <= 1.05 * truth.min()
    assert len(found[CHECKED][1]) == 3
    assert len(found[CHERRYPICK][1]) >= 6
    assert compare_searches({"a": configs}, seeds=(0, 1)).count("\n") == 1 + 2 * 4


def test_what_the_graph_network_says_of_a_fold_does_not_depend_on_the_labels_of_that_fold() -> None:
    sizes = np.exp(np.random.default_rng(0).uniform(0, 4, 9))
    graphs = [Grouped(nodes=((float(size), 1.0, 0.1), (1.0, 2.0, 0.1)), edges=((0, 1),)) for size in sizes]
    fold = np.arange(9) % 3
    said = predict_left_out(graphs, sizes, fold, seed=0, epochs=20)
    changed = np.where(fold == 1, 7.0 * sizes, sizes)
    again = predict_left_out(graphs, changed, fold, seed=0, epochs=20)
    assert again[fold == 1] == pytest.approx(said[fold == 1])
    assert again[fold == 0] != pytest.approx(said[fold == 0])


def test_what_publishers_share_is_carried_and_what_each_has_alone_is_not() -> None:
    random = np.random.default_rng(0)
    publisher = np.repeat(np.array(["a", "b", "c", "d"]), 30)
    parts = random.normal(size=(len(publisher), 3))
    facts, relation = np.hstack([parts, random.normal(size=(len(publisher), 2))]), np.ones((120, 120))
    shared, alone = 0.2 * parts[:, 0], np.repeat(random.normal(0, 0.2, 4), 30)
    for missed, most in ((shared, 0.5), (alone, 1.6)):
        runs = Asked(publisher=publisher, missed=missed, parts=parts, facts=facts, relation=relation)
        plain = errors_of(runs, np.zeros(len(publisher)))
        found = errors_of(runs, correct(runs, METHODS["parts of the step"](runs), 0.2, left_out=True))
        assert sum(found.values()) < most * sum(plain.values())
        assert list(found) == ["a", "b", "c", "d"]
    seen = errors_of(runs, correct(runs, METHODS["near runs"](runs), 0.2, left_out=False))
    assert sum(seen.values()) < sum(plain.values())


def test_a_table_that_is_done_is_not_made_again_by_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert on_gpus.recall("a title", "code", lambda: "first") == "first"
    assert on_gpus.recall("a title", "code", lambda: "second") == "first"
    assert on_gpus.recall("a title", "other code", lambda: "second") == "second"
    assert on_gpus.name_code() == on_gpus.name_code()
