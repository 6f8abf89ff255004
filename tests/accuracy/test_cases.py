import csv
import math
from pathlib import Path
from typing import Any

import pytest

from traincast.accuracy._cases import hide_results, parse_case, parse_observation, read_rows
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


@pytest.mark.parametrize("empty", [None, "", math.nan, "nan", "None", "null", "NA", "<NA>", " ", "#N/A"])
def test_empty_cells_are_unknown_and_never_zero(empty: Any) -> None:
    case = parse_case({**ROW, "micro_batch": empty, "compiled": empty, "input_shape": empty, "n_gpus": empty})
    assert (case.micro_batch, case.compiled, case.input_shape, case.n_gpus) == (None, None, None, None)


def test_the_word_none_is_an_answer_and_not_an_empty_cell() -> None:
    assert parse_case({**ROW, "act_ckpt": "none"}).act_ckpt == "none"


def test_spaces_around_cells_and_headings_do_not_matter(tmp_path: Path) -> None:
    spaced = {f" {name} ": f" {value} " for name, value in ROW.items()}
    shouted = {name.upper(): value for name, value in ROW.items() if not name.startswith(("measured", "peer"))}
    plain = parse_case(ROW)
    assert parse_case(read_rows(write_csv(tmp_path / "spaced.csv", [spaced]))[0]) == plain
    assert parse_case(read_rows(write_csv(tmp_path / "shouted.CSV", [shouted]))[0]) == plain


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_tables_of_spreadsheets_are_read(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "cases.csv"
    path.write_text("\n".join(delimiter.join(map(str, line)) for line in (ROW, ROW.values())) + "\n")
    assert parse_case(read_rows(path)[0]) == parse_case(ROW)


def test_columns_that_nobody_knows_are_ignored_and_missing_ones_are_unknown() -> None:
    case = parse_case({"case_id": "a", "gpu": "t4", "weather": "rain"})
    assert (case.gpu, case.model, case.dp) == ("t4", None, None)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Nanotron 0.4", "nanotron@0.4"), ("torchtitan-v0.2.0", "torchtitan@0.2"), ("Megatron-Core", "megatron-core"),
        ("pytorch-2.1", "pytorch-2.1"), ("megatron-lm(accelerate)", "megatron-lm"),
        ("nvidia-dle-tensorflow2", "nvidia-dle-tensorflow2"),
    ],
)  # fmt: skip
def test_a_framework_is_known_in_any_version_and_capitals(spelling: str, name: str) -> None:
    assert parse_case({**ROW, "framework": spelling}).framework == name


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


def test_a_run_without_a_single_step_shows_neither_a_peak_nor_that_it_fits() -> None:
    row = {**ROW, "quality": "memory_only", "measured_memory_bytes": 1e9, "measured_status": "ok"}
    started = parse_observation({**row, "quality_reason": "no throughput in the log"})
    assert not started.scores_memory
    assert not started.scores_fit
    failed = {**row, "measured_status": "oom", "quality_reason": "no throughput in the log: out of memory"}
    assert parse_observation(failed).scores_fit
    assert parse_observation({**row, "quality_reason": "step time not given"}).scores_memory


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
