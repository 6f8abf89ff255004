"""All-to-alls of experts beside another micro-batch: hidden as far as there is computation, and no further."""

from dataclasses import replace
from functools import cache

import pytest

from builders import make_cluster
from traincast.catalog._workloads import from_shape
from traincast.errors import IllegalPlan
from traincast.forecast import forecast
from traincast.plan._ask import ask
from traincast.spec import Forecast, Graph, Job, Link, Parallelism, Question, WorkloadOptions

PLAN = Parallelism(data=8, expert=8, micro_batches=4)


@cache
def mixture() -> Graph:
    return from_shape(
        arch="mixtral", n_layers=4, hidden=2048, heads=16, vocab=1000, seq=1024, batch=2, precision="bf16", optimizer="adamw",
        experts=8, experts_per_token=2, moe_ffn=4096,
    )  # fmt: skip


def answer(plan: Parallelism, bytes_per_s: float) -> Forecast:
    cluster = make_cluster(devices_per_node=8)
    link = Link(name="link", bytes_per_s=bytes_per_s, latency_s=1e-6, transport="nvswitch")
    cluster = replace(cluster, groups=tuple(replace(group, intra=link) for group in cluster.groups))
    return forecast(Job(graph=mixture()), cluster, plan)


def test_a_quick_exchange_is_hidden_and_a_slow_one_as_far_as_there_is_computation() -> None:
    beside = replace(PLAN, overlap_experts=True)
    for rate in (1e11, 1e9):
        waits, hides = answer(PLAN, rate), answer(beside, rate)
        exchanged_s = waits.timeline.exposed_by_axis["expert"]
        left_s = hides.timeline.exposed_by_axis.get("expert", 0.0)
        computed_s = waits.timeline.busy_s
        assert left_s == pytest.approx(max(0.0, exchanged_s - computed_s), abs=0.5 * computed_s)
        assert hides.step.seconds < waits.step.seconds
    assert answer(beside, 1e11).timeline.exposed_by_axis.get("expert", 0.0) < 0.01 * exchanged_s


def test_one_micro_batch_has_nothing_to_run_beside() -> None:
    with pytest.raises(IllegalPlan, match="another micro-batch"):
        Parallelism(data=8, expert=8, overlap_experts=True)


def test_a_trillion_tokens_of_deepseek_v3_take_the_published_time() -> None:
    """DeepSeek-AI (2024), DeepSeek-V3 Technical Report: 180K H800 hours, 3.7 days on 2,048 H800, for a trillion tokens with
    pipeline 16, experts over 64 ranks, ZeRO 1, sequences of 4,096 in batches of 15,360; within 25%."""
    found = ask(
        Question(
            source="deepseek-v3", workload=WorkloadOptions(precision="fp8", batch=1, seq=4096),
            cluster={"device": "h800", "nodes": 256, "devices_per_node": 8},
            parallelism={"pipeline": 16, "expert": 64, "zero": 1, "recompute": "selective", "overlap_experts": True,
                         "dispatch_once": True, "order": "zero-bubble"},
            job={"global_batch": 15_360, "stack": "megatron-core"},
        )
    )  # fmt: skip
    days = found.step.seconds * 1e12 / (15_360 * 4096) / 86_400
    assert days == pytest.approx(3.7, rel=0.25)
