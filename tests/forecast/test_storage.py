"""Weights stored in fewer bits, and layers of each stage that run again."""

from typing import Any

import pytest

from traincast.errors import InvalidInput
from traincast.plan import decide
from traincast.plan._ask import ask
from traincast.spec import Forecast, Graph, Question, WorkloadOptions


def answer(
    model: str = "llama-3.2-1b", *, job: dict[str, Any] | None = None, plan: dict[str, Any], **options: Any
) -> Forecast:
    return ask(question(model, job=job, plan=plan, **options))


def question(model: str, *, plan: dict[str, Any], job: dict[str, Any] | None = None, **options: Any) -> Question:
    workload = WorkloadOptions(**{"precision": "bf16", "batch": 1, "seq": 2048, **options})
    return Question(
        source=model,
        workload=workload,
        cluster={"device": "h100", "devices_per_node": 8},
        parallelism=plan,
        job=job or {},
    )


def layers_bytes(graph: Graph) -> float:
    return sum(t.num_bytes * t.copies for t in graph.tensors if t.role == "parameter" and ".weight" in t.name)


def test_weights_stored_in_fp8_take_half_and_are_read_by_fp8_products_as_they_are() -> None:
    plan = {"data": 8, "zero": 1, "recompute": "none"}
    half = answer(precision="fp8", plan=plan)
    small = answer(precision="fp8", weight_dtype="fp8", plan=plan)
    in_layers = 0.973e9  # parameters of the layers' products
    assert half.memory.peak_bytes - small.memory.peak_bytes == pytest.approx(in_layers, rel=0.1)
    assert small.step.seconds < half.step.seconds


def test_products_in_bf16_write_fp8_weights_out_first() -> None:
    plan = {"data": 8, "zero": 1, "recompute": "none"}
    assert answer(weight_dtype="fp8", plan=plan).step.seconds > answer(plan=plan).step.seconds


def test_frozen_weights_may_lie_in_fp8_and_experts_are_frozen_too() -> None:
    plan = {"data": 8, "recompute": "full"}
    sizes = [
        decide(question("mixtral-8x7b", job={"regime": "lora"}, plan=plan, frozen_dtype=dtype)).job.graph.role_bytes(
            "parameter"
        )
        for dtype in (None, "fp8", "fp4")
    ]
    assert sizes[1] / sizes[0] == pytest.approx(0.5, abs=0.02)
    assert sizes[2] / sizes[0] == pytest.approx(0.25, abs=0.02)


def test_frozen_experts_have_no_gradients_of_their_weights() -> None:
    plan = {"data": 8, "recompute": "none"}
    graph = decide(question("mixtral-8x7b", job={"regime": "lora"}, plan=plan)).job.graph
    grouped = [op for op in graph.ops if op.name == "aten._grouped_mm" and op.phase == "backward"]
    assert len(grouped) == 2


def test_weights_of_an_unknown_format_or_in_fp32_are_refused() -> None:
    with pytest.raises(InvalidInput, match="weight_dtype"):
        decide(question("llama-3.2-1b", plan={}, weight_dtype="fp3"))
    with pytest.raises(InvalidInput, match="fp32"):
        decide(question("llama-3.2-1b", plan={}, weight_dtype="fp8", precision="bf16-amp"))


@pytest.mark.parametrize("virtual", [1, 2])
def test_with_a_pipeline_so_many_layers_of_every_stage_run_again(virtual: int) -> None:
    """Time rises and memory falls with every layer more; all layers are what leaving the number out means."""
    order = {"order": "interleaved", "virtual_stages": virtual} if virtual > 1 else {}
    plan = {"pipeline": 4, "data": 2, "micro_batches": 8, "recompute": "full", **order}
    most = 8 // virtual
    found = [answer("llama-3.1-8b", plan=plan, recompute_layers=count) for count in (1, 2, most // 2 + 1, most)]
    steps, peaks = [one.step.seconds for one in found], [one.memory.peak_bytes for one in found]
    assert steps == sorted(steps)
    assert peaks == sorted(peaks, reverse=True)
    whole = answer("llama-3.1-8b", plan=plan)
    none = answer("llama-3.1-8b", plan={**plan, "recompute": "none"})
    assert steps[-1] == pytest.approx(whole.step.seconds, rel=1e-6)
    assert none.step.seconds < steps[0]
    assert none.memory.peak_bytes > peaks[0]


def test_experts_may_be_shared_and_first_layers_dense() -> None:
    sizes: dict[str, Any] = {"arch": "mixtral", "n_layers": 4, "hidden": 1024, "heads": 8, "vocab": 32000, "experts": 8,
                                 "experts_per_token": 2, "moe_ffn": 512}  # fmt: skip
    plain = decide(question("", plan={}, **sizes)).job.graph.num_parameters
    shared = decide(question("", plan={}, **sizes, shared_experts=2)).job.graph.num_parameters
    assert shared - plain == 4 * 3 * 1024 * 2 * 512
    dense = decide(question("", plan={}, **sizes, ffn=4096, first_dense=1)).job.graph.num_parameters
    assert dense - plain == 3 * 1024 * 4096 - 8 * 3 * 1024 * 512 - 8 * 1024
