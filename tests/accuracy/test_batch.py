import math
from dataclasses import replace
from typing import Any

import pytest

from traincast.accuracy import batch
from traincast.accuracy.anchor import Learned
from traincast.accuracy.batch import answer_rows
from traincast.accuracy.cases import parse_case
from traincast.accuracy.grant import CHOICES, IGNORE, Grant, Verdict, read_scope
from traincast.accuracy.retune import Tuned
from traincast.spec import Stack

ROW: dict[str, Any] = {
    "case_id": "x", "gpu": "a100-sxm4-40g", "family": "transformer-lm", "arch": "llama", "model": "small", "n_layers": 24,
    "hidden": 1024, "n_heads": 8, "n_kv_heads": 8, "head_dim": 128, "ffn": 4096, "vocab": 8192, "seq_len": 2048,
    "mode": "training_step", "dtype": "bf16", "attention": "flash", "optimizer": "adam", "n_gpus": 1, "n_nodes": 1,
    "micro_batch": 32.0, "grad_accum": 1, "framework": "pytorch-2.1",
}  # fmt: skip


def test_a_job_that_may_run_its_layers_again_is_not_said_to_fail_for_want_of_it() -> None:
    stated, open_, huge = answer_rows(
        [
            {**ROW, "act_ckpt": "none"},
            {**ROW, "act_ckpt": "unknown"},
            {**ROW, "act_ckpt": "unknown", "micro_batch": 512.0},
        ]
    )
    assert (stated.fits, open_.fits, huge.fits) == (False, True, False)
    assert open_.step_s == stated.step_s
    assert "left open" in open_.reason


def test_the_memory_of_a_source_that_read_the_meter_is_what_the_meter_shows() -> None:
    row = {**ROW, "micro_batch": 2.0}
    tensors, metered = answer_rows([row, {**row, "framework": "nvidia-dle-pytorch(lambda)", "case_id": "y"}])
    assert tensors.memory_bytes is not None
    assert metered.memory_bytes is not None
    assert tensors.memory_bytes + 0.5e9 < metered.memory_bytes < 42e9


def test_answers_that_the_given_rows_cannot_tell_apart_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {**ROW, "micro_batch": 2.0}
    case = parse_case(row)
    measured = {**row, "case_id": "y", "measured_step_s": 1.0, "measured_status": "ok", "quality": "clean"}

    def answered(verdict: Verdict) -> float:
        scope = read_scope([case])
        grant = Grant(
            plain=Learned(tuned=Tuned(start=Stack())),
            moved=Learned(tuned=Tuned(start=Stack(product_factor=3.0))),
            scopes={case.framework: scope},
            verdicts={(case.framework, scope.novelty_of(case)): verdict},
        )
        monkeypatch.setattr(batch, "weigh", lambda *_, **__: grant)
        step_s = answer_rows([row], given=[measured])[0].step_s
        assert step_s is not None
        return step_s

    plain, moved = answered(IGNORE), answered(CHOICES[2])
    assert moved > 1.5 * plain
    assert answered(replace(IGNORE, also=(CHOICES[2],))) == pytest.approx(math.sqrt(plain * moved))
