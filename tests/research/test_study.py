from typing import Any

import pytest

from research.splits.study import (
    OURS,
    OURS_GIVEN,
    OURS_IGNORING,
    SHIPPED_GIVEN,
    SHIPPED_IGNORING,
    compare,
)
from traincast.accuracy._study import score_rows

SPLIT = "vTrain, many nodes: 64 -> 256 GPUs"
ROW: dict[str, Any] = {
    "gpu": "a100-sxm4", "family": "transformer-lm", "arch": "gpt", "model": "tiny", "n_layers": 2, "hidden": 256,
    "n_heads": 8, "n_kv_heads": 8, "head_dim": 32, "ffn": 1024, "vocab": 1024, "seq_len": 128, "mode": "training_step",
    "dtype": "fp16", "attention": "eager", "act_ckpt": "none", "optimizer": "adam", "framework": "Megatron-DeepSpeed",
    "micro_batch": 4.0, "tp": 1, "pp": 1, "inter_bw_Gbps": 800.0, "intra_bw_GBps": 300.0, "gpus_per_node": 8,
    "source": "vtrain_multi", "quality": "clean", "measured_status": "ok", "measured_step_s": 0.05,
}  # fmt: skip


def rows_of(devices: int, *, count: int) -> list[dict[str, Any]]:
    return [
        {
            **ROW, "case_id": f"{devices}-{passes}", "n_gpus": devices, "n_nodes": devices // 8, "dp": devices,
            "grad_accum": passes, "global_batch": 4.0 * passes * devices,
        }
        for passes in range(1, count + 1)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def scores() -> dict[str, Any]:
    rows = [*rows_of(64, count=4), *rows_of(256, count=3)]
    study = compare(score_rows(rows), granted=rows)
    return {one.method: one.score for one in study.baselines if one.split == SPLIT}


def test_a_split_is_asked_with_and_without_its_known_rows_from_untouched_and_from_shipped_constants(
    scores: dict[str, Any],
) -> None:
    assert {scores[method].num_answered for method in (OURS_GIVEN, OURS_IGNORING, SHIPPED_GIVEN, SHIPPED_IGNORING)} == {
        3
    }


def test_without_them_shipped_constants_say_what_they_say_when_nothing_is_granted(scores: dict[str, Any]) -> None:
    assert scores[SHIPPED_IGNORING] == scores[OURS]
    assert scores[SHIPPED_IGNORING] != scores[OURS_IGNORING]
