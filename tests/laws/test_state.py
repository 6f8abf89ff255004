"""State: what all devices hold together is what the plan says, to the byte."""

from collections import defaultdict

from hypothesis import given, settings

from laws.draws import Draw, draws
from traincast.lower._rewrite import as_stage, is_expert
from traincast.lower._tensor import _choose_cuts
from traincast.spec import Parallelism, Tensor

SHARDED_FROM = {"optimizer_state": 1, "gradient": 2, "parameter": 3}
"""The stage of ZeRO that shards each of them over the replicas."""


def owner_name(tensor: Tensor) -> str:
    return tensor.name if tensor.role == "parameter" else tensor.name.rpartition(".")[0]


def held_bytes(draw: Draw) -> dict[tuple[str, str], int]:
    """By role and weight: of all ranks together."""
    ranks = draw.plan.data * draw.plan.context * draw.plan.tensor
    total: dict[tuple[str, str], int] = defaultdict(int)
    for stage in draw.program.stages:
        for tensor in stage.tensors:
            if tensor.role in SHARDED_FROM:
                total[tensor.role, owner_name(tensor)] += ranks * tensor.num_bytes * tensor.copies
    return total


def closed_form(tensor: Tensor, plan: Parallelism, *, split: bool, stages: int) -> int:
    """Of one weight, or of what is kept for it: each of tp and pp once, dense state once or dp times, expert state once or
    dp/ep times. Padding: every shard of every layer is a whole number of elements."""
    replicas = plan.data * plan.context
    expert = plan.expert > 1 and is_expert(tensor.name)
    parts = plan.tensor if split and not (plan.folds_experts and is_expert(tensor.name)) else 1
    copies = plan.tensor // parts
    numel = -(-tensor.numel // parts)
    if expert:
        numel = -(-numel // plan.expert)
    # Ranks that hold the same part; ZeRO cuts it once more among them.
    alike = plan.expert_ranks // plan.expert if expert else replicas
    if expert and plan.folds_experts:
        copies = 1
    shards = (alike if plan.shard is None else plan.shard) if plan.zero >= SHARDED_FROM[tensor.role] else 1
    numel = -(-numel // shards)
    holders = alike * copies * parts * (plan.expert if expert else 1)
    if expert and plan.folds_experts:
        holders = alike * plan.expert
    return holders * numel * tensor.num_bytes // tensor.numel * tensor.copies * stages


def kept_elsewhere(plan: Parallelism) -> set[str]:
    """What lies on servers or on the host: no state of an update there, sums of gradients and all but a few layers' weights."""
    roles = {"optimizer_state"} if plan.servers or plan.offload_optimizer else set()
    roles |= {"gradient"} if plan.offload_optimizer and plan.sums_on_host else set()
    return roles | ({"parameter"} if plan.offload_weights else set())


@settings(max_examples=60)
@given(draw=draws(families=("dense", "moe", "qlora", "vision"), offload_optimizer=True))
def test_what_leaves_the_device_is_not_there(draw: Draw) -> None:
    away = kept_elsewhere(draw.plan) - {"parameter"}
    assert all(num_bytes == 0 for (role, _), num_bytes in held_bytes(draw).items() if role in away), str(draw)


@settings(max_examples=200)
@given(draw=draws())
def test_state_over_all_devices_is_the_closed_form_of_the_plan(draw: Draw) -> None:
    held = held_bytes(draw)
    plan = draw.plan
    cuts = _choose_cuts(as_stage(draw.graph), plan.tensor) if plan.tensor > 1 else {}
    names = {draw.graph.tensors[place].name for place in cuts}
    expected: dict[tuple[str, str], int] = defaultdict(int)
    for tensor in draw.graph.tensors:
        if tensor.role not in SHARDED_FROM or "tables" in tensor.name:
            continue
        if tensor.role in kept_elsewhere(plan):
            continue
        weight = owner_name(tensor)
        # A weight that layers of several stages share (a head tied to its embedding) lies in each of them.
        stages = (
            sum(
                any(t.role == tensor.role and t.name == tensor.name and t.numel for t in stage.tensors)
                for stage in draw.program.stages
            )
            if tensor.copies == 1 and plan.pipeline > 1
            else 1
        )
        expected[tensor.role, weight] += closed_form(tensor, plan, split=weight in names, stages=stages)
    for key, amount in expected.items():
        assert held[key] == amount, f"{key}: {held[key]} bytes, not {amount}; {draw}"


@settings(max_examples=100)
@given(draw=draws())
def test_frozen_weights_have_neither_gradients_nor_state(draw: Draw) -> None:
    trained = {
        draw.graph.tensors[t].name for op in draw.graph.ops if op.kind == "optimizer" for t in op.writes
        if draw.graph.tensors[t].role == "parameter"
    }  # fmt: skip
    for stage in draw.program.stages:
        for tensor in stage.tensors:
            if tensor.role in ("gradient", "optimizer_state") and tensor.numel:
                assert owner_name(tensor) in trained, f"{tensor}; {draw}"
