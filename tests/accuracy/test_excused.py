"""Failures that lack of memory cannot explain, told by other runs."""

from typing import Any

import pytest

from traincast.accuracy._excused import find_excused

RUN: dict[str, Any] = {
    "case_id": "a", "group": "g", "model": "llama-7b", "gpu": "h100-sxm-80g", "framework": "nanotron", "dtype": "bf16",
    "dp": 4, "tp": 2, "pp": 2, "zero": 1, "micro_batch": 4, "grad_accum": 8, "measured_status": "ok",
}  # fmt: skip


def _excused(**changes: Any) -> bool:
    """Whether a failed run that differs from one that ran in these columns is excused."""
    return 1 in find_excused([RUN, {**RUN, "case_id": "b", "measured_status": "failed", **changes}])


@pytest.mark.parametrize(
    "changes",
    [{}, {"micro_batch": 2}, {"tp": 4}, {"pp": 4}, {"dp": 16}, {"zero": 2}, {"grad_accum": 1}],
)
def test_a_run_that_holds_no_more_than_one_that_ran_did_not_fail_for_lack_of_memory(changes: dict[str, Any]) -> None:
    assert _excused(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch": 8},
        {"tp": 1},
        {"pp": 1},
        {"dp": 2},
        {"zero": 0},
        {"gpu": "a100-sxm4-40g"},
        {"model": "llama-13b"},
    ],
)
def test_a_run_that_holds_more_of_anything_may_have(changes: dict[str, Any]) -> None:
    assert not _excused(**changes)


def test_a_source_that_says_out_of_memory_is_believed() -> None:
    assert not _excused(measured_status="oom")
