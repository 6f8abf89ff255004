"""An engine that has answered before says to the bit what a new one says, whichever field of the question changes."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_device
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.catalog._stacks import stack
from traincast.catalog._workloads import workload
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.errors import IllegalPlan, InvalidInput, TraincastError
from traincast.forecast import forecast
from traincast.forecast._engine import Engine
from traincast.spec import Cluster, Device, Forecast, Graph, Job, Link, NodeGroup, Parallelism, Region, Stage
from traincast.spec._hardware import Domain
from traincast.spec._parallel import TABLE_SHARDINGS
from traincast.spec._regime import Pass, Regime

WARM = Engine()
"""One for all tests of this file, so that each finds what the others left."""

PLANS = (
    Parallelism(data=8),
    Parallelism(data=8, zero=1, micro_batches=2),
    Parallelism(data=8, zero=3, overlap=False),
    Parallelism(data=2, tensor=4, sequence_parallel=True, zero=2),
    Parallelism(data=2, pipeline=4, micro_batches=4, zero=1),
    Parallelism(data=4, expert=2, context=2),
)
TABLES = ("table_sharding", "table_cache", "table_hits")
"""Of a plan for models with embedding tables, which have a test of their own."""
CHANGES: dict[str, list[dict[str, Any]]] = {
    "data": [{"data": 4, "tensor": 2}, {"data": 2, "pipeline": 4, "micro_batches": 4}],
    "tensor": [{"tensor": 2, "data": 4, "context": 1, "pipeline": 1}],
    "pipeline": [{"pipeline": 2, "data": 4, "tensor": 1, "context": 1}],
    "context": [{"context": 2, "data": 4, "tensor": 1, "pipeline": 1}],
    "expert": [{"expert": 2}, {"expert": 4}],
    "expert_tensor": [{"expert_tensor": 1, "tensor": 4, "data": 2, "sequence_parallel": True}],
    "expert_capacity": [{"expert_capacity": 1.5}],
    "expert_imbalance": [{"expert": 2, "expert_imbalance": 1.5}],
    "overlap_experts": [{"expert": 8, "micro_batches": 2, "overlap_experts": True}],
    "dispatch_once": [{"expert": 8, "dispatch_once": True}],
    "virtual_stages": [{"pipeline": 4, "data": 2, "micro_batches": 4, "virtual_stages": 2, "order": "interleaved"}],
    "micro_batches": [{"micro_batches": 3}, {"micro_batches": 8}],
    "zero": [{"zero": stage} for stage in range(4)],
    "shard": [{"zero": 3, "shard": 2}, {"zero": 1, "shard": 4}],
    "regather": [{"zero": 3, "regather": 2}],
    "sequence_parallel": [{"tensor": 4, "data": 2, "sequence_parallel": False}],
    "recompute": [{"recompute": how} for how in ("none", "selective", "selective-op", "full")],
    "order": [{"order": order} for order in ("gpipe", "zero-bubble", "1f1b")],
    "balance": [{"pipeline": 4, "data": 2, "micro_batches": 4, "balance": "matmuls"}],
    "bucket_bytes": [{"bucket_bytes": 1e6}, {"bucket_bytes": 1e9}],
    "bucket_copies": [{"bucket_copies": False}],
    "overlap": [{"overlap": False}, {"overlap": True}],
    "reduce_dtype": [{"reduce_dtype": "bf16"}],
    "async_tensor": [{"tensor": 4, "data": 2, "sequence_parallel": True, "async_tensor": True}],
    "gather_ahead": [{"data": 8, "zero": 1, "gather_ahead": True}],
    "async_context": [{"context": 2, "data": 4, "async_context": True}],
    "context_method": [{"context": 2, "data": 4, "context_method": "ulysses"}],
    "servers": [{"servers": 2, "zero": 0}],
    "asynchronous": [{"servers": 2, "zero": 0, "asynchronous": True}],
    "offload_optimizer": [{"offload_optimizer": True}],
    "offload_weights": [{"offload_weights": True}, {"offload_weights": True, "offload_optimizer": True}],
    "offload_activations": [{"offload_activations": True}],
    "offload_to": [{"offload_to": "nvme", "offload_optimizer": True}],
    "gather_dtype": [{"gather_dtype": "fp8", "zero": 3}],
    **{name: [] for name in TABLES},
}  # fmt: skip
"""For each field of a plan, changes that move it; other fields follow where they must."""
FROZEN = build_transformer(
    TransformerShape(n_layers=2, hidden=256, heads=8, vocab=4096, seq=128),
    Recipe(precision="bf16", mode="inference"), batch=2,
)  # fmt: skip
JOBS: dict[str, list[Any]] = {
    "steps": [100], "samples": [1e6], "samples_spread": [0.2], "epoch_samples": [5e4], "loading_samples_per_s": [10.0],
    "evaluation_every_steps": [10], "evaluation_samples": [1e3], "checkpoint_every_steps": [7],
    "checkpoint_bytes_per_s": [1e8], "startup_s": [5.0], "device_mtbf_s": [1e6],
    "stack": [stack("megatron-lm"), stack("torchtitan")],
    "loader_cores": [4], "decode_samples_per_s": [3.0], "sample_bytes": [1e5], "storage_bytes_per_s": [1e3],
    "logging_every_steps": [3], "logging_s": [2.0], "rampup_batch": [], "rampup_samples": [],
    "rampup_increment": [], "checkpoint_sharded": [True], "checkpoint_async": [True],
    "compile_s": [12.0], "compiled": [True], "cuda_graphs": [True], "cost_model": ["roofline"],
    "max_autotune": [True], "method": ["physics", "predictddl"],
    "regime": [Regime(name="distillation", passes=(Pass(name="teacher", graph=FROZEN),)), Regime(name="ppo", num_updates=4)],
}  # fmt: skip
GROUPS: dict[str, list[Any]] = {
    "device": [make_device(memory_bytes=4e9), make_device(memory_bytes_per_s=3e12), make_device(l2_bytes=5e7)],
    "num_nodes": [4], "devices_per_node": [8],
    "intra": [Link(name="fast", bytes_per_s=4e11, latency_s=2e-6)],
    "inter": [Link(name="slow", bytes_per_s=1e9, latency_s=1e-5), Link(name="slow", bytes_per_s=1e10, latency_s=1e-3)],
    "usd_per_hour": [3.5], "speed": [0.5], "power_limit_watts": [120.0],
    "nvme_bytes_per_s": [5e9], "host_memory_bytes": [1e9, 5e13],
    "domains": [(Domain(num_devices=2, link=Link(name="bridge", bytes_per_s=5e11, latency_s=1e-6)),)],
}  # fmt: skip


@cache
def make_graph(batch: int = 2, experts: int = 4) -> Graph:
    shape = TransformerShape(
        n_layers=8, hidden=256, heads=8, vocab=4096, seq=128, experts=experts, experts_per_token=2, moe_ffn=512
    )
    return build_transformer(shape, Recipe(precision="bf16", attention="flash", implementation="fused"), batch=batch)


def ask_both(job: Job, cluster: Cluster, plan: Parallelism) -> bool:
    """Whether there is an answer; a refusal must be the same too."""
    fresh, warm, default = (answer(ask, job, cluster, plan) for ask in (Engine().forecast, WARM.forecast, forecast))
    assert warm == fresh
    assert default == fresh
    return not isinstance(fresh, str)


def answer(
    ask: Callable[[Job, Cluster, Parallelism], Forecast], job: Job, cluster: Cluster, plan: Parallelism
) -> Forecast | str:
    """The forecast, or why there is none."""
    try:
        return ask(job, cluster, plan)
    except TraincastError as error:
        return f"{type(error).__name__}: {error}"


def names_of(kind: type) -> set[str]:
    return {item.name for item in dataclasses.fields(kind)}


def test_every_field_of_the_question_has_a_change_to_try() -> None:
    """Whoever adds a field adds a change of it here, and so finds out that no cache forgets it."""
    assert set(CHANGES) == names_of(Parallelism)
    assert set(JOBS) == names_of(Job) - {"graph"}
    assert set(GROUPS) == names_of(NodeGroup)
    assert names_of(Cluster) == {"name", "groups", "price_date", "price_source", "region"}


@pytest.mark.parametrize("name", sorted(set(CHANGES) - {*TABLES}))
@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_a_changed_plan_is_answered_as_if_it_were_the_first(name: str, data: st.DataObject) -> None:
    job, cluster = Job(graph=make_graph()), make_cluster(nodes=2, devices_per_node=4)
    first = data.draw(st.sampled_from(PLANS))
    change = data.draw(st.sampled_from(CHANGES[name]))
    ask_both(job, cluster, first)
    try:
        second = replace(first, **change)
    except IllegalPlan:
        second = replace(Parallelism(data=8), **change)
    ask_both(job, cluster, second)


@pytest.mark.parametrize("name", sorted(set(CHANGES) - {"order", "async_tensor", "async_context", *TABLES}))
def test_every_field_of_a_plan_can_change_its_answer(name: str) -> None:
    """Else the test above could not fail."""
    job, cluster = Job(graph=make_graph()), make_cluster(nodes=2, devices_per_node=4)
    change = CHANGES[name][-1]
    with_it = replace(Parallelism(data=8), **change)
    default = next(item.default for item in dataclasses.fields(Parallelism) if item.name == name)
    without = replace(with_it, **{name: default}) if change.get(name) != default else None
    if (
        name in ("data", "tensor", "pipeline", "context", "virtual_stages", "recompute", "zero", "overlap")
        or without is None
    ):
        without = Parallelism(data=8, overlap=name != "overlap")
    first, second = WARM.forecast(job, cluster, without), WARM.forecast(job, cluster, with_it)
    assert (first.step, first.memory) != (second.step, second.memory)


def test_plans_of_tables_and_growing_batches_are_answered_as_if_they_were_the_first() -> None:
    cluster = make_cluster(nodes=2, devices_per_node=4)
    job = Job(graph=workload("dlrm", batch=64, precision="bf16"))
    plans = [Parallelism(data=8), *(Parallelism(data=8, table_sharding=how) for how in TABLE_SHARDINGS),
             Parallelism(data=8, table_cache=0.1), Parallelism(data=8, table_cache=0.1, table_hits=0.5)]  # fmt: skip
    for plan in plans:
        assert ask_both(job, cluster, plan)
    assert len({WARM.forecast(job, cluster, plan).step.seconds for plan in plans}) == len(plans)
    for increment in (None, 32):
        growing = Job(graph=make_graph(), samples=1e6, rampup_batch=16, rampup_samples=1e4, rampup_increment=increment)
        assert ask_both(growing, cluster, Parallelism(data=8, micro_batches=8))


@pytest.mark.parametrize("name", JOBS)
@given(data=st.data())
@settings(max_examples=2, deadline=None)
def test_a_changed_job_is_answered_as_if_it_were_the_first(name: str, data: st.DataObject) -> None:
    plan, cluster = data.draw(st.sampled_from(PLANS)), make_cluster(nodes=2, devices_per_node=4)
    ask_both(Job(graph=make_graph()), cluster, plan)
    for value in JOBS[name]:
        assert ask_both(Job(graph=make_graph(), **{name: value}), cluster, plan)


@pytest.mark.parametrize("batch", [1, 3])
def test_another_graph_is_answered_as_if_it_were_the_first(batch: int) -> None:
    for plan in PLANS:
        assert ask_both(Job(graph=make_graph(batch)), make_cluster(nodes=2, devices_per_node=4), plan)


@pytest.mark.parametrize("name", GROUPS)
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_a_changed_cluster_is_answered_as_if_it_were_the_first(name: str, data: st.DataObject) -> None:
    job, cluster = Job(graph=make_graph()), make_cluster(nodes=2, devices_per_node=4)
    plan = data.draw(st.sampled_from(PLANS))
    ask_both(job, cluster, plan)
    value = data.draw(st.sampled_from(GROUPS[name]))
    changed = replace(cluster, groups=(replace(cluster.groups[0], **{name: value}),))
    if changed.num_devices != cluster.num_devices:
        plan = replace(plan, data=plan.data * 2)
    assert ask_both(job, changed, plan)
    mixed = replace(cluster, groups=(cluster.groups[0], changed.groups[0]))
    ask_both(job, mixed, Parallelism(data=mixed.num_devices))


def test_another_region_is_answered_as_if_it_were_the_first() -> None:
    job, cluster, plan = (
        Job(graph=make_graph(), steps=100),
        make_cluster(nodes=2, devices_per_node=4),
        Parallelism(data=8),
    )
    for region in (None, Region(name="here", grams_co2_per_kwh=50.0), Region(name="there", grams_co2_per_kwh=700.0)):
        assert ask_both(job, replace(cluster, region=region), plan)


@pytest.mark.parametrize(
    "name", ["memory_bytes", "memory_bytes_per_s", "l2_bytes", "num_sm", "clock_hz", "power_watts"]
)
def test_devices_of_one_name_are_told_apart(name: str) -> None:
    job, plan = Job(graph=make_graph()), Parallelism(data=8)
    for device in (make_device(), make_device(**{name: 2 * (getattr(make_device(), name) or 1)})):
        assert isinstance(device, Device)
        assert ask_both(job, make_cluster(nodes=2, devices_per_node=4, device=device), plan)


def test_costs_of_ones_own_answer_and_a_calibration_beside_them_is_refused() -> None:
    job, cluster, plan = Job(graph=make_graph()), make_cluster(nodes=2, devices_per_node=4), PLANS[3]
    own = Pricing(ops=Roofline())
    assert Engine(costs=own).forecast(job, cluster, plan) == forecast(job, cluster, plan, costs=own)
    assert Engine(costs=own).forecast(job, cluster, plan).step != WARM.forecast(job, cluster, plan).step


def test_a_cost_model_that_sees_whole_stages_is_asked_once_for_each_sort_of_them() -> None:
    asked: list[Stage] = []

    class Counting:
        def estimate(self, stage: Stage, cluster: Cluster):  # type: ignore[no-untyped-def]
            asked.append(stage)
            return Pricing(ops=Roofline()).estimate(stage, cluster)

    engine = Engine(costs=Counting())
    job, cluster = Job(graph=make_graph()), make_cluster(nodes=2, devices_per_node=4)
    plan = Parallelism(pipeline=8, micro_batches=8)
    first = engine.forecast(job, cluster, plan)
    assert len(asked) == 3
    assert engine.forecast(job, cluster, replace(plan, order="gpipe")).step != first.step
    assert len(asked) == 3


def test_an_engine_that_forgets_answers_alike() -> None:
    small = Engine(most=20)
    job, cluster = Job(graph=make_graph()), make_cluster(nodes=2, devices_per_node=4)
    for plan in (*PLANS, *PLANS):
        assert small.forecast(job, cluster, plan) == WARM.forecast(job, cluster, plan)


def test_a_plan_for_another_number_of_devices_is_refused() -> None:
    with pytest.raises((IllegalPlan, InvalidInput), match="needs 8 devices"):
        WARM.forecast(Job(graph=make_graph()), make_cluster(), PLANS[0])
