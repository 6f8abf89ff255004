"""What people type is what is measured: the command of a row answers as `batch` does, to the last digit."""

import json
import shlex
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run
from traincast.accuracy._batch import answer_rows
from traincast.accuracy._cases import hide_results, parse_case, read_rows
from traincast.accuracy._translate import translate
from traincast.cli.questions import write_command

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
PER_FRAMEWORK = 8
FRAMEWORKS = (
    "Composer-FSDP", "LitGPT", "Megatron-Core", "Megatron-DeepSpeed", "Megatron-LM", "megatron-core(nemo)",
    "megatron-lm(accelerate)", "mxnet(mlperf)", "nanotron", "nemo(mlperf)", "nvidia-dle-pytorch(lambda)",
    "nvidia-dle-tensorflow", "nvidia-dle-tensorflow2", "pytorch(mlperf)", "pytorch-2.1", "pytorch-2.4-rocm", "pytorch-ddp",
    "pytorch-ddp(adaptdl)", "torchtitan", "hugectr(mlperf)", "dgl(mlperf)",
)  # fmt: skip
"""Those of the tables with more than two rows."""


@cache
def rows_by_framework() -> Mapping[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(CASES.glob("*.parquet")):
        for row in read_rows(path):
            found[row["framework"]].append(row)
    return found


def test_every_framework_of_the_tables_is_asked_about() -> None:
    if not CASES.is_dir():
        pytest.skip("no ../shared/cases")
    assert {name for name, rows in rows_by_framework().items() if len(rows) > 2} <= set(FRAMEWORKS)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_command_of_a_row_prints_what_batch_says(framework: str, run: Run) -> None:
    if not CASES.is_dir():
        pytest.skip("no ../shared/cases")
    rows = sorted(rows_by_framework()[framework], key=lambda row: str(row["case_id"]))
    # Some rows are refused, with a reason, by both.
    picked = hide_results(rows[:: max(1, len(rows) // PER_FRAMEWORK)])[: PER_FRAMEWORK + 6]
    answers = [(row, answer) for row, answer in zip(picked, answer_rows(picked), strict=True) if answer.answered]
    assert len(answers) >= min(PER_FRAMEWORK, len(rows)) - 2
    for row, answer in answers[:PER_FRAMEWORK]:
        words = shlex.split(shlex.join(write_command(translate(parse_case(row)).question)))
        ran = run(*words[1:], "--json")
        assert ran.code == 0, ran.err
        document = json.loads(ran.out)
        step, memory = document["step"], document["memory"]
        printed = (step["seconds"], step["low_s"], step["high_s"], memory["peak_bytes"], memory["fits"])
        asked = (answer.step_s, answer.step_low_s, answer.step_high_s, answer.peak_bytes, answer.fits)
        assert printed == asked, shlex.join(words)
