"""Memory: what all devices together cannot hold is never likely to fit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_device
from laws.draws import FAMILIES, Draw, draws
from traincast.forecast import forecast
from traincast.plan import forecast as ask
from traincast.plan import plan as search
from traincast.spec import Job, Parallelism

FAMILIES_WITHOUT_TABLES = tuple(family for family in FAMILIES if family != "recommender")


def state_of_all_devices(draw: Draw) -> int:
    """Where weights are sharded, the optimizer's fp32 copies may be all that is kept of them."""
    ranks = draw.plan.data * draw.plan.context * draw.plan.tensor
    kept = ("parameter", "optimizer_state") if draw.plan.zero < 3 else ("optimizer_state",)
    return ranks * sum(
        tensor.num_bytes * tensor.copies
        for stage in draw.program.stages
        for tensor in stage.tensors
        if tensor.role in kept
    )


@settings(max_examples=60)
@given(
    draw=draws(families=FAMILIES_WITHOUT_TABLES, offload_optimizer=False, offload_weights=False),
    share=st.floats(0.2, 0.999),
)
def test_state_that_exceeds_the_sum_of_all_memories_is_never_likely_to_fit(draw: Draw, share: float) -> None:
    devices = draw.plan.num_devices
    memory_bytes = share * state_of_all_devices(draw) / devices
    cluster = make_cluster(nodes=devices, device=make_device(memory_bytes=memory_bytes))
    memory = forecast(Job(graph=draw.graph), cluster, draw.plan).memory
    assert memory.fit_probability == 0.0, str(draw)
    assert not memory.fits


@pytest.mark.parametrize("model", ["gpt-oss-120b", "llama-3-70b", "mixtral-8x7b"])
def test_full_training_of_a_model_larger_than_a_node_does_not_fit(model: str) -> None:
    assert ask(model, "8xh100", precision="bf16", optimizer="adamw").memory.fit_probability < 0.01


def test_a_search_finds_no_plan_for_state_larger_than_all_memories() -> None:
    draw = Draw(family="moe", precision="bf16", plan=Parallelism())
    memory_bytes = 0.9 * state_of_all_devices(draw) / 8
    cluster = make_cluster(devices_per_node=8, device=make_device(memory_bytes=memory_bytes))
    assert search(Job(graph=draw.graph), cluster) == []
