"""`traincast store` and `traincast design` as their user runs them."""

import json
from pathlib import Path

import pytest

from traincast.cli import run
from traincast.errors import InvalidInput
from traincast.spec import Block, Environment, Experiment
from traincast.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "m.db"
    with Store(found) as store:
        for size in (8, 16):
            experiment = Experiment(subject="operator", name="matmul", attrs={"m": size})
            store.append(experiment, Environment(device="cpu"), Block(started_at="now", wall_s=(0.5, 0.7)))
    return found


def test_list_export_import_and_merge_agree(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["store", "list", str(path), "--json"])
    assert len(json.loads(capsys.readouterr().out)["measurements"]) == 2
    run(["store", "list", str(path), "--name", "mat*"])
    assert "2 measurements" in capsys.readouterr().out
    run(["store", "export", str(path), str(tmp_path / "t.csv")])
    run(["store", "import", str(tmp_path / "new.db"), str(tmp_path / "t.csv"), "--json"])
    assert '"added": 2' in capsys.readouterr().out
    run(["store", "merge", str(tmp_path / "new.db"), str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["added"] == 0
    run(["store", "check", str(tmp_path / "new.db"), "--json"])
    assert json.loads(capsys.readouterr().out)["repeats"] == 4


def test_what_cannot_be_done_is_said(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="needs a second file"):
        run(["store", "export", str(path)])
    with pytest.raises(InvalidInput, match="did you mean 'list'"):
        run(["store", "lst", str(path)])
    with pytest.raises(InvalidInput, match="there is no measurement store"):
        run(["store", "list", str(tmp_path / "absent.db")])


def test_design_prints_what_it_would_measure_what_it_costs_and_gains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "c.csv"
    table.write_text("ranks,bytes,seconds\n2,1000,1\n4,1000,2\n8,1000,4\n2,1e8,3\n8,1e8,9\n")
    run(["design", str(table), "--cost", "seconds", "--budget", "8", "--log", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert 0 < answer["cost"] <= 8
    assert answer["cost_of_all"] == 19
    assert answer["spread_after"] < answer["spread_before"]
    assert all(row["gain"] > 0 for row in answer["rows"])
    with pytest.raises(InvalidInput, match="unknown column 'secs'"):
        run(["design", str(table), "--cost", "secs"])
    with pytest.raises(InvalidInput, match="unknown method"):
        run(["design", str(table), "--method", "best"])


def test_design_of_operators_counts_what_is_measured_as_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from traincast.profile._operators import grid

    with Store(tmp_path / "m.db") as store:
        for experiment in grid()[:50]:
            store.append(experiment, Environment(device="cpu"), Block(started_at="now", wall_s=(0.5,)))
    run(["design", "--budget", "1", "--store", str(tmp_path / "m.db"), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["num_measured"] == 50
    known = {experiment.key for experiment in grid()[:50]}
    assert not known & {row["name"] for row in answer["rows"]}
