import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

Run = Callable[..., Any]
HEADER = (
    "case_id,gpu,group,family,source,arch,model,n_layers,hidden,n_heads,vocab,seq_len,mode,dtype,attention,act_ckpt,optimizer,"
    "n_gpus,n_nodes,dp,micro_batch,grad_accum,global_batch,measured_step_s,measured_memory_bytes,measured_status,quality\n"
)
ROW = "transformer-lm,mine,gpt2,tiny,2,128,4,1000,64,training_step,fp32,eager,none,adam,1,1,1,2,1,2"


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    file = tmp_path / "cases.csv"
    file.write_text(
        HEADER
        + f"a,a100-sxm4-40g,first,{ROW},0.01,2e9,ok,clean\n"
        + f"b,t4,second,{ROW},0.02,2e9,ok,clean\n"
        + f"c,t4,second,{ROW},0.02,,oom,memory_only\n"
        + f"d,warp-9,second,{ROW},0.02,,ok,clean\n"
    )
    return file


def test_the_tables_break_down_by_every_grouping(run: Run, cases: Path) -> None:
    ran = run("accuracy", cases)
    assert ran.code == 0
    for title in (
        "step time by case",
        "step time by group",
        "step time by gpu",
        "by family",
        "by source",
        "by scale",
        "not answered",
    ):
        assert title in ran.out
    assert "warp-9" in ran.out


def test_json_has_answered_share_coverage_and_the_confusion(run: Run, cases: Path) -> None:
    document = json.loads(run("accuracy", cases, "--json").out)
    time, fit = document["whole"]["time"], document["whole"]["fit"]
    assert (time["num_cases"], time["num_answered"]) == (3, 2)
    assert 0 <= time["coverage"] <= 1
    assert fit["false_safe"] == 1
    assert set(document["parts"]) == {"group", "gpu", "model", "dtype", "family", "source", "scale"}


def test_markdown_replaces_only_its_own_part(run: Run, cases: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n\nhand-written before\n")
    assert run("accuracy", cases, "--markdown", page).code == 0
    first = page.read_text()
    page.write_text(f"{first}\nhand-written after\n")
    assert run("accuracy", cases, "--markdown", page).code == 0
    again = page.read_text()
    assert again == f"{first}\nhand-written after\n"
    assert again.startswith("# Mine\n\nhand-written before")
    assert "| all | 3 |" in again


def test_a_drawing_shows_every_scored_answer(run: Run, cases: Path, tmp_path: Path) -> None:
    assert run("accuracy", cases, "--svg", tmp_path / "a.svg").code == 0
    dots = [dot for dot in ElementTree.parse(tmp_path / "a.svg").iter() if dot.get("r") == "2.5"]
    assert len(dots) == 2


def test_two_tables_are_studied_together(run: Run, cases: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text(HEADER + f"e,t4,third,{ROW},0.02,,ok,clean\n")
    document = json.loads(run("accuracy", cases, other, "--json").out)
    assert document["num_rows"] == 5


@pytest.mark.parametrize("name", ["missing.parquet", "missing.csv"])
def test_a_missing_table_is_one_line_and_code_2(run: Run, tmp_path: Path, name: str) -> None:
    ran = run("accuracy", tmp_path / name)
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
