"""Any row that a table may hold: an answer that can be true, or a reason that names what is wrong."""

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.accuracy._batch import answer_rows
from traincast.accuracy._cases import parse_case
from traincast.accuracy._translate import translate
from traincast.cost._bounds import product_flop_per_s

DEVICES = (
    "a100-sxm4-80g", "h100-sxm-80g", "h200-sxm-141g", "b200-sxm-180g", "gb300-279g", "mi300x", "l40s", "rtx-5090", "t4",
    "v100-sxm2-16g", "k80-1die", "p40", "rtx-2070-maxq", "tpu-v5e",
)  # fmt: skip
DEGREES = st.sampled_from([None, None, 1, 1, 1, 1, 2, 2, 3, 8, 64])
ROWS = st.fixed_dictionaries(
    {
        "case_id": st.just("row"),
        "gpu": st.sampled_from(DEVICES),
        "model": st.sampled_from(
            [
                "llama3.1-405b",
                "mixtral_8x7b",
                "kimi_k2",
                "gpt-h4096-l32",
                "mpt-13b",
                "mystery-7b",
                "opt_13",
                "bert_large",
            ]
        ),
        "arch": st.sampled_from([None, "llama", "gpt", "mixtral", "switch", "t5", "bert", "new"]),
        "family": st.sampled_from([None, "transformer-lm", "transformer-moe", "transformer-enc"]),
        "framework": st.sampled_from(
            [None, "Megatron-Core", "torchtitan", "nanotron", "Composer-FSDP", "LitGPT", "MaxText"]
        ),
        "dtype": st.sampled_from([None, "fp32", "tf32", "fp16_amp", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"]),
        "mode": st.sampled_from([None, "training_step", "forward_backward", "inference"]),
        "act_ckpt": st.sampled_from([None, "none", "selective", "full", "unknown"]),
        "attention": st.sampled_from([None, "eager", "flash", "sdpa-flash"]),
        "strategy": st.sampled_from([None, "3d", "fsdp-full", "fsdp-gradop", "hsdp", "lora", "qlora", "adapter"]),
        "extra": st.sampled_from([None, "async_tp", "interleaved_1f1b", "zero_bubble", "sequence_parallel;sft;26.04"]),
        "n_gpus": st.sampled_from([None, 1, 8, 12, 64, 64, 512, 4096]),
        "n_nodes": st.sampled_from([None, 1, 2, 8, 64]),
        "gpus_per_node": st.sampled_from([None, 1, 4, 8]),
        "placement": st.sampled_from([None, "", "44", "1234", "64@8", "nvlink"]),
        "inter_bw_Gbps": st.sampled_from([None, 10.0, 100.0, 3200.0]),
        "tp": DEGREES,
        "pp": DEGREES,
        "cp": DEGREES,
        "ep": DEGREES,
        "vp": st.sampled_from([None, 1, 2, 5]),
        "zero": st.sampled_from([None, 0, 1, 2, 3]),
        "micro_batch": st.sampled_from([None, 0.5, 1, 2, 16]),
        "grad_accum": st.sampled_from([None, 1, 3, 16]),
        "global_batch": st.sampled_from([None, 1, 64, 4096]),
        "seq_len": st.sampled_from([None, 128, 2048, 32_768]),
        "n_layers": st.sampled_from([None, None, 2, 30]),
        "hidden": st.sampled_from([None, 1024, 6144]),
        "n_heads": st.sampled_from([None, 16, 48]),
        "n_kv_heads": st.sampled_from([None, None, 8]),
        "vocab": st.sampled_from([None, 32_000, 50_257]),
        "n_experts": st.sampled_from([None, None, 8]),
        "experts_per_token": st.sampled_from([None, 2]),
        "moe_ffn": st.sampled_from([None, 1024]),
    }
)


@settings(max_examples=60, deadline=None)
@given(row=ROWS)
def test_a_row_is_answered_within_what_silicon_can_do_or_refused_with_a_reason(row: dict[str, Any]) -> None:
    prediction = answer_rows([row])[0]
    assert "internal error" not in prediction.reason
    if not prediction.answered:
        assert len(prediction.reason) > 10
        return
    assert prediction.step_s is not None
    assert prediction.step_low_s is not None
    assert prediction.step_high_s is not None
    assert 0 < prediction.step_low_s <= prediction.step_s <= prediction.step_high_s < math.inf
    question = translate(parse_case(row))
    graph, plan = question.job.graph, question.parallelism
    pairs = zip(graph.ops, graph.counts(), strict=True)
    flop = sum((op.flop or 0.0) * count for op, count in pairs if op.kind in ("matmul", "attention"))
    device = question.cluster.groups[0].device
    peak, _ = product_flop_per_s(device, "fp4")
    fastest = max(peak, *(product_flop_per_s(device, dtype)[0] for dtype in ("fp8", "bf16", "fp16", "tf32", "fp32")))
    work = flop * plan.micro_batches * plan.data / plan.num_devices
    assert work / prediction.step_s < fastest
