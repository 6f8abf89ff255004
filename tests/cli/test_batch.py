import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
COLUMNS = ("case_id", "step_s", "step_low_s", "step_high_s", "memory_bytes", "fits", "status", "reason", "compute_share",
           "memory_share", "communication_share", "host_share")  # fmt: skip


def make_row(case_id: str, **values: object) -> dict[str, object]:
    usual: dict[str, object] = {
        "case_id": case_id, "gpu": "a100-sxm4-40g", "family": "transformer-lm", "arch": "gpt2", "model": "tiny", "n_layers": 2,
        "hidden": 128, "n_heads": 4, "n_kv_heads": 4, "head_dim": 32, "ffn": 512, "vocab": 1000, "seq_len": 64,
        "mode": "training_step", "dtype": "fp32", "attention": "eager", "act_ckpt": "none", "optimizer": "adam",
        "n_gpus": 1, "n_nodes": 1, "placement": "", "intra_bw_GBps": 300, "inter_bw_Gbps": 100, "dp": 1, "tp": 1,
        "micro_batch": 2, "grad_accum": 1, "global_batch": 2, "framework": "pytorch-2.1",
        "measured_step_s": 0.1, "measured_memory_bytes": 1e9, "measured_status": "ok", "quality": "clean",
    }  # fmt: skip
    return {**usual, **values}


def write(path: Path, *rows: dict[str, object]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


GOOD = (make_row("a"), make_row("b", n_gpus=7, n_nodes=2, placement="34", dp=7, global_batch=14))


def test_every_case_gets_one_row_in_order_with_every_column(run: Run, tmp_path: Path) -> None:
    ran = run("batch", write(tmp_path / "c.csv", *GOOD), "-o", tmp_path / "p.csv")
    rows = read(tmp_path / "p.csv")
    assert ran.code == 0
    assert [row["case_id"] for row in rows] == ["a", "b"]
    assert set(COLUMNS) <= set(rows[0])
    for row in rows:
        assert row["status"] == "ok"
        assert 0 < float(row["step_low_s"]) < float(row["step_s"]) < float(row["step_high_s"])
        assert float(row["memory_bytes"]) > 0
        assert row["fits"] == "true"
    assert float(rows[1]["communication_share"]) > 0


def test_what_was_measured_changes_nothing(run: Run, tmp_path: Path) -> None:
    lies = [
        {**row, "measured_step_s": 77, "measured_memory_bytes": 1, "measured_status": "oom", "quality": "suspect"}
        for row in GOOD
    ]
    run("batch", write(tmp_path / "true.csv", *GOOD), "-o", tmp_path / "1.csv")
    run("batch", write(tmp_path / "lies.csv", *lies), "-o", tmp_path / "2.csv")
    blind = [{key: value for key, value in row.items() if not key.startswith(("measured_", "quality"))} for row in GOOD]
    run("batch", write(tmp_path / "blind.csv", *blind), "-o", tmp_path / "3.csv")
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes() == (tmp_path / "3.csv").read_bytes()


def test_bad_rows_say_why_and_stop_no_other(run: Run, tmp_path: Path) -> None:
    bad = (
        make_row("device", gpu="warp-9"),
        make_row("number", n_layers="many"),
        make_row("plan", n_gpus=3, dp="", tp=2),
        make_row("model", arch="perpetuum", model="mobile", n_layers=""),
        make_row("batch", micro_batch=0),
        make_row("infinite", intra_bw_GBps="inf"),
        make_row(""),
    )
    ran = run("batch", write(tmp_path / "c.csv", *bad, *GOOD), "-o", tmp_path / "p.csv")
    rows = read(tmp_path / "p.csv")
    assert ran.code == 0
    assert [row["status"] for row in rows] == ["unsupported"] * len(bad) + ["ok"] * len(GOOD)
    for row in rows[: len(bad)]:
        assert row["reason"]
        assert "internal error" not in row["reason"]
        assert row["step_s"] == row["memory_bytes"] == row["fits"] == ""


def test_parquet_in_and_out(run: Run, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_pylist([{**row, "case_id": str(row["case_id"])} for row in GOOD])
    parquet.write_table(table, tmp_path / "c.parquet")
    assert run("batch", tmp_path / "c.parquet", "-o", tmp_path / "p.parquet").code == 0
    rows = parquet.read_table(tmp_path / "p.parquet").to_pylist()
    assert [row["case_id"] for row in rows] == ["a", "b"]
    assert all(isinstance(row["step_s"], float) and row["fits"] is True for row in rows)


def test_a_given_measurement_moves_its_case_and_its_relatives(run: Run, tmp_path: Path) -> None:
    cases = write(tmp_path / "c.csv", *GOOD)
    run("batch", cases, "-o", tmp_path / "alone.csv")
    alone = [float(row["step_s"]) for row in read(tmp_path / "alone.csv")]
    given = write(tmp_path / "g.csv", make_row("g", measured_step_s=alone[0] * 1.5))
    assert run("batch", cases, "-o", tmp_path / "told.csv", "--given", given).code == 0
    told = [float(row["step_s"]) for row in read(tmp_path / "told.csv")]
    assert told[0] == pytest.approx(alone[0] * 1.5, rel=0.05)
    assert told[1] > alone[1]


def test_rows_of_strangers_are_answered_as_if_nothing_were_given(run: Run, tmp_path: Path) -> None:
    cases = write(tmp_path / "c.csv", *GOOD)
    strangers = [
        make_row(f"g{batch}", measured_step_s=9.0, framework="torchtitan", micro_batch=batch, global_batch=batch)
        for batch in range(1, 9)
    ]
    run("batch", cases, "-o", tmp_path / "alone.csv")
    run("batch", cases, "-o", tmp_path / "told.csv", "--given", write(tmp_path / "g.csv", *strangers))
    alone, told = ([{**row, "reason": ""} for row in read(tmp_path / name)] for name in ("alone.csv", "told.csv"))
    assert alone == told


def test_json_counts_what_was_answered_and_why_not(run: Run, tmp_path: Path) -> None:
    ran = run(
        "batch", write(tmp_path / "c.csv", make_row("x", gpu="warp-9"), *GOOD), "-o", tmp_path / "p.csv", "--json"
    )
    document = json.loads(ran.out)
    assert (document["rows"], document["ok"], document["unsupported"]) == (3, 2, 1)
    assert "warp-9" in next(iter(document["reasons"]))


@pytest.mark.parametrize("target", ["p.txt", "no/such/p.csv"])
def test_a_target_that_cannot_be_written_is_refused_before_any_work(run: Run, tmp_path: Path, target: str) -> None:
    ran = run("batch", tmp_path / "not even there.csv", "-o", tmp_path / target)
    assert ran.code == 2
    assert "not even there" not in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_fails_leaves_the_old_predictions_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("precious")
    (tmp_path / "c.csv").write_text("case,gpu\n1,t4\n")
    ran = run("batch", tmp_path / "c.csv", "-o", tmp_path / "p.csv")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert (tmp_path / "p.csv").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.csv", "p.csv"]


def test_more_workers_give_the_same_answers(run: Run, tmp_path: Path) -> None:
    cases = write(tmp_path / "c.csv", *GOOD, make_row("c", gpu="warp-9"), make_row("d", micro_batch=4, global_batch=4))
    given = write(tmp_path / "g.csv", make_row("g", measured_step_s=0.5))
    run("batch", cases, "-o", tmp_path / "one.csv", "--given", given, "--workers", 1)
    run("batch", cases, "-o", tmp_path / "two.csv", "--given", given, "--workers", 2)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_an_unknown_engine_is_refused_before_any_work(run: Run, tmp_path: Path) -> None:
    ran = run("batch", write(tmp_path / "c.csv", *GOOD), "-o", tmp_path / "p.csv", "--engine", "slurm")
    assert ran.code == 2
    assert "unknown engine 'slurm'; known engines: none, processes" in ran.err


def test_only_the_rows_of_a_source_are_answered(run: Run, tmp_path: Path) -> None:
    cases = write(tmp_path / "c.csv", make_row("a", source="ours"), make_row("b", source="theirs"))
    ran = run("batch", cases, "-o", tmp_path / "p.csv", "--source", "ours")
    assert ran.code == 0
    assert [row["case_id"] for row in read(tmp_path / "p.csv")] == ["a"]
    lost = run("batch", cases, "-o", tmp_path / "p.csv", "--source", "their")
    assert lost.code == 2
    assert "theirs" in lost.err
