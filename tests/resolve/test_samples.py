"""Data as it is: padded and packed samples, losses in parts, averages of weights, checkpoints, logs and input pipelines."""

from typing import Any

import pytest

from traincast.errors import InvalidInput
from traincast.lower import lower
from traincast.plan import decide
from traincast.plan._ask import ask
from traincast.spec import Collective, Forecast, Graph, Op, Parallelism, Question, WorkloadOptions


def question(
    model: str = "llama-3.2-1b", *, job: dict[str, Any] | None = None, plan: dict[str, Any] | None = None, nodes: int = 1,
    **options: Any,
) -> Question:  # fmt: skip
    workload = WorkloadOptions(**{"precision": "bf16", "batch": 2, "seq": 4096, **options})
    cluster = {"device": "a100-80g", "nodes": nodes, "devices_per_node": 8}
    return Question(source=model, workload=workload, cluster=cluster, parallelism=plan or {"zero": 3}, job=job or {})


def answer(model: str = "llama-3.2-1b", **values: Any) -> Forecast:
    return ask(question(model, **values))


def attention_flop(graph: Graph) -> float:
    return sum(
        (op.flop or 0) * count for op, count in zip(graph.ops, graph.counts(), strict=True) if op.kind == "attention"
    )


def test_packed_samples_of_equal_length_attend_to_themselves_alone() -> None:
    """Eight documents of 512 in a sequence of 4,096 have an eighth of its pairs, and everything else stays."""
    whole = decide(question()).job.graph
    packed = decide(question(sample_tokens=512, sample_p95=512, packing=True)).job.graph
    assert attention_flop(packed) == pytest.approx(attention_flop(whole) / 8)
    assert packed.flop - attention_flop(packed) == pytest.approx(whole.flop - attention_flop(whole))


def test_uneven_samples_have_more_pairs_than_even_ones() -> None:
    """E[l^2] / E[l] of a log-normal is its mean times exp(s^2); p95 twice the mean is s = 0.497."""
    even = decide(question(sample_tokens=512, sample_p95=512, packing=True)).job.graph
    uneven = decide(question(sample_tokens=512, sample_p95=1024, packing=True)).job.graph
    assert attention_flop(uneven) / attention_flop(even) == pytest.approx(1.28, rel=0.01)


def test_samples_that_are_not_packed_are_padded_to_the_longest_of_their_batch() -> None:
    one = decide(question(batch=1, sample_tokens=1000)).job.graph
    many = decide(question(batch=16, sample_tokens=1000)).job.graph
    assert one.tokens_per_sample < 1000 < many.tokens_per_sample <= 4096
    found = answer(batch=16, sample_tokens=1000)
    assert any("is padding" in text for text in found.assumptions)


def test_packing_computes_less_than_padding() -> None:
    packed = answer(batch=4, sample_tokens=1000, packing=True)
    padded = answer(batch=16, sample_tokens=1000)
    assert packed.samples_per_s * 4096 / 1000 > padded.samples_per_s


def test_a_loss_in_parts_holds_the_scores_of_one_part() -> None:
    """Scores of 2 x 4,096 tokens for 128,256 words: what lives of them in fp32 and in bf16 shrinks to a quarter."""
    whole, parts = answer(), answer(loss_chunks=4)
    scores = 2 * 4096 * 128_256
    assert 3 * scores < whole.memory.peak_bytes - parts.memory.peak_bytes < 12 * scores
    assert parts.step.seconds == pytest.approx(whole.step.seconds, rel=0.01)


def test_an_average_of_weights_is_held_and_updated() -> None:
    plain, averaged = answer(plan={"zero": 0}), answer(plan={"zero": 0}, ema=True)
    held = averaged.memory.peak_bytes - plain.memory.peak_bytes
    assert held == pytest.approx(4 * 1.236e9, rel=0.06)
    moved_s = 12 * 1.236e9 / 2.039e12
    assert moved_s < averaged.step.seconds - plain.step.seconds < 1.6 * moved_s
    sharded = answer(ema=True).memory.peak_bytes - answer().memory.peak_bytes
    assert sharded == pytest.approx(held / 8, rel=0.1)


def test_a_slow_part_of_the_input_pipeline_is_named() -> None:
    loading = {
        "loader_cores": 48,
        "decode_samples_per_s": 100.0,
        "sample_bytes": 1.1e5,
        "storage_bytes_per_s": 1e10,
        "steps": 100,
    }
    image = {"batch": 128, "seq": None, "precision": "fp16-amp", "plan": {"zero": 0}}
    found = answer("resnet50", job=loading, **image)
    wanted_s = 128 * 8 / 4800
    assert found.job.loading_stall_s == pytest.approx(100 * (wanted_s - found.step.seconds))
    assert any("the bottleneck is decoding on 48 CPU cores" in note for note in found.notes)
    stored = answer("resnet50", job={**loading, "decode_samples_per_s": 1e4, "storage_bytes_per_s": 1e8}, **image)
    assert any("the bottleneck is reading from storage" in note for note in stored.notes)
    quick = answer("resnet50", job={**loading, "decode_samples_per_s": 1e4}, **image)
    assert quick.job.loading_stall_s == 0
    with pytest.raises(InvalidInput, match="go together"):
        answer("resnet50", job={"loader_cores": 8}, **image)


def test_sharded_and_asynchronous_checkpoints_wait_less() -> None:
    job = {"steps": 100, "checkpoint_every_steps": 10, "checkpoint_bytes_per_s": 1e9}
    whole = answer(job=job, nodes=2)
    graph = decide(question()).job.graph
    saved = graph.role_bytes("parameter") + graph.role_bytes("optimizer_state")
    assert whole.job.checkpoint_s == pytest.approx(10 * saved / 1e9)
    sharded = answer(job={**job, "checkpoint_sharded": True}, nodes=2)
    assert sharded.job.checkpoint_s == pytest.approx(whole.job.checkpoint_s / 2)
    both = answer(job={**job, "checkpoint_sharded": True, "checkpoint_async": True}, nodes=2)
    # A write of 9 s does not end within ten steps: what is left of it is waited for.
    left_s = saved / 2e9 - 10 * both.step.seconds
    assert both.job.checkpoint_s == pytest.approx(10 * max(left_s, 0.0), rel=0.1, abs=1.0)
    rare = answer(job={**job, "checkpoint_every_steps": 100, "checkpoint_async": True}, nodes=2)
    assert rare.job.checkpoint_s < 0.2


def test_logs_take_their_time() -> None:
    found = answer(job={"steps": 1000, "logging_every_steps": 10, "logging_s": 0.1})
    assert found.job.logging_s == pytest.approx(10)


def test_lengths_without_a_mean_are_refused() -> None:
    with pytest.raises(InvalidInput, match="sample-tokens"):
        answer(packing=True)


def test_negatives_of_all_replicas_are_gathered_and_compared() -> None:
    """Scores of b x (b x replicas) cost 2 b^2 w FLOP a replica and pass; embeddings of both towers travel once, and their
    gradients back."""
    graph = decide(question("clip-vit-b-32", seq=None, batch=64, plan={"zero": 0}, gather_negatives=True)).job.graph
    tasks = lower(graph, Parallelism(data=8)).stages[0].tasks
    ops = [task for task in tasks if isinstance(task, Op)]
    added = sum((op.flop or 0) for op in ops) - sum((op.flop or 0) for op in graph.ops)
    products = 3 * 2 * 64 * 64 * 512
    # What softmax and scaling do to the scores comes on top.
    assert 7 * products < added < 1.3 * 7 * products
    found = [task for task in tasks if isinstance(task, Collective) and task.kind in ("all_gather", "reduce_scatter")]
    assert [task.kind for task in found] == ["all_gather", "reduce_scatter"]
    assert all(task.num_bytes == 2 * 64 * 8 * 512 * 2 for task in found)
    with pytest.raises(InvalidInput, match="no contrastive loss"):
        answer("gpt2", seq=512, gather_negatives=True)


def test_frozen_encoders_run_first_and_are_held() -> None:
    image = {"seq": None, "batch": 4, "precision": "bf16", "plan": {"zero": 0}}
    plain = answer("stable-diffusion-1.5", **image)
    encoded = answer("stable-diffusion-1.5", job={"frozen_models": "clip-vit-l-14"}, **image)
    assert encoded.memory.peak_bytes - plain.memory.peak_bytes == pytest.approx(2 * 428e6, rel=0.03)
    assert encoded.phases[0].name == "scoring"
    assert encoded.step.seconds > plain.step.seconds


def test_layers_that_run_again_are_counted() -> None:
    """Time and memory lie as far between none and all as the layers do."""
    none, half, all_again = (
        answer(plan={"zero": 3, "recompute": how}, **layers)
        for how, layers in (("none", {}), ("full", {"recompute_layers": 8}), ("full", {}))
    )
    assert half.step.seconds == pytest.approx((none.step.seconds + all_again.step.seconds) / 2, rel=0.02)
    assert all_again.memory.peak_bytes < half.memory.peak_bytes < none.memory.peak_bytes
    every = answer(plan={"zero": 3, "recompute": "full"}, recompute_layers=16)
    assert every.step.seconds == all_again.step.seconds
    with pytest.raises(InvalidInput, match="goes with --recompute full"):
        answer(plan={"zero": 3}, recompute_layers=8)
