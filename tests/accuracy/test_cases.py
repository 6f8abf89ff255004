import csv
import math
from pathlib import Path
from typing import Any

import pytest

from traincast.accuracy.cases import hide_results, parse_case, parse_observation, read_rows
from traincast.errors import InvalidInput

ROW: dict[str, Any] = {
    "case_id": "a-1", "gpu": "t4", "model": "resnet50", "n_gpus": "7", "placement": "34", "compiled": "False",
    "micro_batch": "32.0", "measured_step_s": "0.5", "measured_status": "ok", "quality": "clean", "peer_li_s": "0.4",
}  # fmt: skip


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_csv_and_parquet_read_alike(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    typed = {**ROW, "n_gpus": 7, "compiled": False, "micro_batch": 32.0, "measured_step_s": 0.5, "peer_li_s": 0.4}
    parquet.write_table(pyarrow.Table.from_pylist([typed]), tmp_path / "c.parquet")
    from_parquet = read_rows(tmp_path / "c.parquet")[0]
    from_csv = read_rows(write_csv(tmp_path / "c.csv", [ROW]))[0]
    assert parse_case(from_parquet) == parse_case(from_csv)
    assert parse_observation(from_parquet) == parse_observation(from_csv)


def test_a_placement_stays_text_even_where_a_reader_made_it_a_number() -> None:
    assert parse_case({**ROW, "placement": 34.0}).placement == "34"


@pytest.mark.parametrize("empty", [None, "", math.nan, "nan"])
def test_empty_cells_are_unknown_and_never_zero(empty: Any) -> None:
    assert parse_case({**ROW, "micro_batch": empty}).micro_batch is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_gpus", "many"),
        ("n_gpus", "1.5"),
        ("micro_batch", "inf"),
        ("compiled", "perhaps"),
        ("gpu", ""),
        ("case_id", None),
    ],
)
def test_a_cell_that_does_not_fit_its_column_names_the_column(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        parse_case({**ROW, name: value})


def test_hidden_rows_hold_nothing_measured_judged_or_predicted() -> None:
    hidden = hide_results([ROW])[0]
    assert set(hidden) == {"case_id", "gpu", "model", "n_gpus", "placement", "compiled", "micro_batch"}


def test_an_observation_knows_what_it_may_be_scored_for() -> None:
    assert parse_observation(ROW).scores_time
    assert not parse_observation({**ROW, "quality": "suspect"}).scores_time
    memory_only = parse_observation({**ROW, "quality": "memory_only", "measured_memory_bytes": 1e9})
    assert memory_only.scores_memory
    assert not memory_only.scores_time
    assert not parse_observation({**ROW, "measured_memory_bytes": 1e9, "measured_status": "oom"}).scores_memory
    assert parse_observation(ROW).peers_s == {"li": 0.4}


def test_a_ragged_line_breaks_its_own_row_only(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("case_id,gpu\na,t4,surplus\nb,t4\n")
    rows = read_rows(tmp_path / "c.csv")
    with pytest.raises(InvalidInput, match="more cells"):
        parse_case(rows[0])
    assert parse_case(rows[1]).case_id == "b"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("c.csv", "case,gpu\na,t4\n", "no column 'case_id'"),
        ("c.csv", "case_id,gpu\n", "no rows"),
        ("c.txt", "case_id,gpu\na,t4\n", "end in .parquet or .csv"),
        ("c.parquet", "this is not parquet", "not a readable parquet"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, name: str, content: str, complaint: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInput, match=complaint):
        read_rows(tmp_path / name)


def test_every_shared_row_is_a_case(shared_cases: Path) -> None:
    for name in ("single_gpu", "dp", "llm", "memory"):
        for row in read_rows(shared_cases / f"{name}.parquet"):
            parse_case(row)
            parse_observation(row)
