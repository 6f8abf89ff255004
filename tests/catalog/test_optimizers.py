"""What an optimizer keeps and computes, beside AdamW."""

import pytest

from traincast import catalog
from traincast.catalog._models.recipe import OPTIMIZERS
from traincast.catalog._workloads import workload
from traincast.forecast import forecast
from traincast.spec import Graph, Job, Parallelism


def _graph(optimizer: str) -> Graph:
    return workload("gpt2", batch=1, seq=128, precision="bf16", optimizer=optimizer)


def _state_per_weight(optimizer: str) -> float:
    graph = _graph(optimizer)
    weights = sum(t.numel * t.copies for t in graph.tensors if t.role == "parameter")
    return graph.role_bytes("optimizer_state") / weights


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_weight"),
    [("adamw", 12.0), ("momentum", 8.0), ("lars", 8.0), ("lion", 8.0), ("muon", 8.0), ("sgd", 4.0), ("adamax", 12.0)],
)
def test_the_state_is_a_master_weight_and_its_moments(optimizer: str, bytes_per_weight: float) -> None:
    assert _state_per_weight(optimizer) == pytest.approx(bytes_per_weight)


def test_states_in_eight_bits_have_a_scale_for_each_block_of_256() -> None:
    assert _state_per_weight("adamw-8bit") == pytest.approx(4 + 2 + 2 * 4 / 256, rel=0.01)


@pytest.mark.parametrize("spelling", ["paged_adamw_8bit", "adamw_bnb_8bit", "AdamW8bit"])
def test_spellings_of_one_optimizer_mean_the_same(spelling: str) -> None:
    assert _graph(spelling).ops == _graph("adamw-8bit").ops


def test_muon_multiplies_matrices_for_every_weight_inside_the_layers() -> None:
    graph = _graph("muon")
    products = [op for op in graph.ops if op.name == "muon.newton_schulz"]
    # One layer of GPT-2 has four matrices; each takes three products of five iterations in each of twelve layers.
    assert sum(op.num_kernels for op in products) == 4 * 3 * 5 * 12
    assert all(op.dtype == "bf16" and op.phase == "optimizer" for op in products)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize(
    "plan", [Parallelism(data=8), Parallelism(data=8, zero=3), Parallelism(data=4, tensor=2, zero=1)]
)
def test_every_optimizer_goes_with_every_plan(optimizer: str, plan: Parallelism) -> None:
    cluster = catalog.cluster(device="a100-80g", nodes=1, devices_per_node=8)
    answer = forecast(Job(graph=_graph(optimizer)), cluster, plan)
    assert 0 < answer.step.low_s < answer.step.seconds < answer.step.high_s


def test_states_of_eight_bits_are_updated_in_place_one_weight_after_the_other() -> None:
    made = {name: _graph(name).role_bytes("temporary") for name in ("adamw", "adamw-8bit", "sgd")}
    assert made["adamw-8bit"] == made["sgd"] < made["adamw"]
