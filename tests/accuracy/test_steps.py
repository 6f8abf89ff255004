"""Raw tables of steps, and MaxText's runs among them."""

import csv
from pathlib import Path
from typing import Any

import pytest

from traincast.accuracy._cases import keep_sources, parse_case, parse_observation, read_rows
from traincast.errors import UnknownName

STEPS = Path(__file__).resolve().parents[3] / "shared" / "data" / "dist_steps" / "steps.parquet"

ROW: dict[str, Any] = {
    "source": "maxtext", "source_row": "v5e#1", "trust": "B", "model": "maxtext-16b", "family": "transformer-lm",
    "gpu": "TPU-v5e", "n_gpus": "512", "n_nodes": "2", "gpus_per_node": "256", "framework": "MaxText", "strategy": "fsdp",
    "dtype": "", "step_time_s": "", "sync_time_s": "", "tflops_per_gpu": "117", "mfu": "0.59", "mem_gb_per_gpu": "",
    "status": "ok", "note": "",
}  # fmt: skip


def read_table(tmp_path: Path, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    path = tmp_path / "steps.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return read_rows(path)


def test_steps_and_memory_of_other_sources_keep_their_units(tmp_path: Path) -> None:
    row = read_table(
        tmp_path, {**ROW, "source": "torchtitan", "step_time_s": "1.5", "mem_gb_per_gpu": "40", "dtype": "amp"}
    )[0]
    seen = parse_observation(row)
    assert (seen.step_s, seen.memory_bytes, parse_case(row).dtype) == (1.5, 40e9, "fp16_amp")


def test_known_problems_are_not_scored(tmp_path: Path) -> None:
    row = read_table(tmp_path, {**ROW, "trust": "A-mem/C-time"})[0]
    assert not parse_observation(row).scores_time


def test_only_the_rows_of_a_source_are_kept(tmp_path: Path) -> None:
    rows = read_table(tmp_path, ROW, {**ROW, "source": "torchtitan"})
    assert [row["source"] for row in keep_sources(rows, ["maxtext"])] == ["maxtext"]
    assert len(keep_sources(rows, [])) == 2
    with pytest.raises(UnknownName, match="maxtext"):
        keep_sources(rows, ["maxtex"])
