"""Traffic: bytes on the wire per axis and rank are the closed form of the plan."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster
from laws.draws import DECODERS, LAYERS, Draw, build, degrees, draws
from traincast.cost._collectives import Pipelined
from traincast.lower import lower
from traincast.lower._rewrite import is_expert
from traincast.resources._traffic import count_traffic
from traincast.spec import Collective, Link, Parallelism, Program, Tensor
from traincast.spec._hardware import NETWORKS
from traincast.units import DTYPE_BYTES

BATCH, SEQ, HIDDEN, HEADS, HEAD_DIM = 2, 256, 512, 8, 64


def collectives(program: Program, axis: str, *kinds: str) -> Iterator[tuple[Collective, int]]:
    for stage in program.stages:
        for task, count in zip(stage.tasks, stage.counts(), strict=True):
            if isinstance(task, Collective) and task.axis == axis and (not kinds or task.kind in kinds):
                yield task, count


def wire_bytes(task: Collective) -> float:
    """What one rank sends: rings and pairwise exchanges (Patarasuk and Yuan 2009)."""
    ranks = task.num_ranks
    if task.kind in ("send_recv", "push", "pull"):
        return task.num_bytes
    return (2 if task.kind == "all_reduce" else 1) * task.num_bytes * (ranks - 1) / ranks


def sent(program: Program, axis: str, *kinds: str) -> float:
    return sum(count * wire_bytes(task) for task, count in collectives(program, axis, *kinds))


def gradients_of_ranks(draw: Draw) -> Iterator[tuple[Tensor, int]]:
    """The whole gradients of one rank of each stage, before ZeRO shards them, and among how many ranks they are reduced."""
    plan = draw.plan
    whole = lower(draw.graph, Parallelism(**{
        name: getattr(plan, name)
        for name in ("data", "tensor", "pipeline", "context", "expert", "expert_tensor", "sequence_parallel", "recompute",
                     "micro_batches")
    }))  # fmt: skip
    for stage in whole.stages:
        for tensor in stage.tensors:
            if tensor.role == "gradient" and tensor.numel:
                spread = plan.expert > 1 and is_expert(tensor.name)
                yield tensor, plan.expert_ranks // plan.expert if spread else plan.data * plan.context


@settings(max_examples=200)
@given(draw=draws(families=(*DECODERS, "vision", "encoder-decoder"), servers=0, shard=None))
def test_each_gradient_is_reduced_once_among_the_replicas_of_its_weight(draw: Draw) -> None:
    """Dense ones over dp x cp, experts over dp x cp / ep; a reduce-scatter sends half of an all-reduce."""
    plan = draw.plan
    rounds = 2 if plan.zero == 0 else 1
    width = DTYPE_BYTES[plan.reduce_dtype] if plan.reduce_dtype else None
    expected = sum(
        rounds * tensor.numel * tensor.copies * (width or DTYPE_BYTES[tensor.dtype]) * (ranks - 1) / ranks
        for tensor, ranks in gradients_of_ranks(draw)
    )
    assert sent(draw.program, "data", "all_reduce", "reduce_scatter") == pytest.approx(expected, rel=1e-6), str(draw)


@settings(max_examples=150)
@given(draw=draws(families=("dense", "grouped", "adapters"), zero=3, shard=None, servers=0))
def test_fully_sharded_weights_are_gathered_for_every_pass_that_reads_them(draw: Draw) -> None:
    """ZeRO 3: once before the forward and once before the backward pass; a table is not read by its backward pass."""
    plan = draw.plan
    replicas = plan.data * plan.context
    kept = ("tensor", "pipeline", "context", "sequence_parallel", "micro_batches")
    whole = lower(draw.graph, Parallelism(**{name: getattr(plan, name) for name in kept}))
    weights = [t for stage in whole.stages for t in stage.tensors if t.role == "parameter" and t.numel]
    once = sum(t.num_bytes * t.copies for t in weights)
    gathered = sent(draw.program, "data", "all_gather") / max(1, replicas - 1) * replicas if replicas > 1 else 0.0
    if replicas > 1:
        assert 1.3 * once <= gathered <= 2 * once * (1 + 1e-9), str(draw)


@settings(max_examples=150)
@given(
    draw=draws(
        families=("dense", "grouped", "tied"),
        recompute="none",
        servers=0,
        tensor=degrees(8, least=2),
        precision=("bf16", "bf16-pure"),
    )
)
def test_the_tensor_axis_reduces_the_activations_of_a_layer_twice_in_each_direction(draw: Draw) -> None:
    """Four times b s h / cp in each layer, an all-reduce or a reduce-scatter and an all-gather: the same bytes."""
    plan = draw.plan
    layers = [
        count * wire_bytes(task)
        for task, count in collectives(draw.program, "tensor")
        if task.layer.startswith("layers")
    ]
    one = 2 * BATCH * SEQ * HIDDEN * 2 / plan.context * (plan.tensor - 1) / plan.tensor
    assert sum(layers) == pytest.approx(4 * LAYERS * one, rel=1e-6), str(draw)


@settings(max_examples=100)
@given(
    draw=draws(
        families=("dense", "grouped", "tied"),
        recompute="none",
        servers=0,
        context=degrees(4, least=2),
        context_method="ring",
    )
)
def test_context_parallelism_sends_keys_and_values_of_a_rank_of_heads(draw: Draw) -> None:
    """Forward: keys and values. Backward: both again, and their gradients. Each divided by tp, down to one head."""
    plan = draw.plan
    heads = max(1.0, (2 if draw.family == "grouped" else HEADS) / plan.tensor)
    width = 4 if draw.precision == "fp32" else 2
    one = 2 * BATCH * SEQ * heads * HEAD_DIM * width * (plan.context - 1) / plan.context
    assert sent(draw.program, "context") == pytest.approx(3 * LAYERS * one, rel=1e-6), str(draw)


@settings(max_examples=100)
@given(
    draw=draws(
        families=("dense", "grouped", "tied"),
        recompute="none",
        servers=0,
        context=degrees(4, least=2),
        context_method="ulysses",
    )
)
def test_ulysses_swaps_queries_keys_values_and_results_for_heads_in_both_directions(draw: Draw) -> None:
    """b s / cp tokens of q + 2 kv + q heads, forward and backward; keys and values down to one head of each context rank."""
    plan = draw.plan
    kv_heads = max((2 if draw.family == "grouped" else HEADS) / plan.tensor, plan.context)
    heads = 2 * HEADS / plan.tensor + 2 * kv_heads
    width = 4 if draw.precision == "fp32" else 2
    one = BATCH * SEQ / plan.context * heads * HEAD_DIM * width * (plan.context - 1) / plan.context
    assert sent(draw.program, "context") == pytest.approx(2 * LAYERS * one, rel=1e-6), str(draw)


@settings(max_examples=100)
@given(draw=draws(families=DECODERS, servers=0, pipeline=degrees(LAYERS, least=2)))
def test_a_pipeline_sends_one_boundary_of_a_micro_batch_split_over_tensor_and_context(draw: Draw) -> None:
    plan = draw.plan
    width = 4 if draw.precision in ("fp32", "bf16-amp") else 2
    for task, _ in collectives(draw.program, "pipeline"):
        assert task.num_bytes == pytest.approx(BATCH * SEQ * HIDDEN * width / plan.context / plan.tensor), str(draw)


@settings(max_examples=60)
@given(draw=draws(families=("moe",), recompute="none", expert=degrees(8, least=2), precision=("bf16", "bf16-pure")))
def test_tokens_go_to_their_experts_and_back_in_both_directions(draw: Draw) -> None:
    """Dispatch and combine, forward and backward: four times b s k h of the tokens a rank has."""
    plan = draw.plan
    own = BATCH * SEQ * 2 * HIDDEN * 2 / plan.context / (plan.tensor if plan.sequence_parallel else 1)
    expected = 4 * LAYERS * own * (plan.expert - 1) / plan.expert
    assert sent(draw.program, "expert") == pytest.approx(expected, rel=1e-6), str(draw)


@settings(max_examples=50)
@given(draw=draws(families=("dense", "vision"), servers=2, data=degrees(16, least=2), asynchronous=False))
def test_workers_push_their_gradients_and_pull_the_weights(draw: Draw) -> None:
    gradients = draw.graph.role_bytes("gradient")
    weights = draw.graph.role_bytes("parameter")
    assert sent(draw.program, "data", "push") == pytest.approx(gradients), str(draw)
    assert sent(draw.program, "data", "pull") == pytest.approx(weights), str(draw)


@settings(max_examples=100)
@given(draw=draws())
def test_resource_numbers_report_the_same_bytes(draw: Draw) -> None:
    cluster = make_cluster(nodes=16, devices_per_node=8)
    for axis in ("tensor", "context", "expert", "data", "pipeline"):
        for task, _ in collectives(draw.program, axis):
            if task.num_ranks > 1:
                assert count_traffic(task, cluster).link_bytes == pytest.approx(wire_bytes(task)), (task, str(draw))


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_more_servers_change_no_byte_of_a_worker(servers: int) -> None:
    program = lower(build("dense"), Parallelism(data=4, servers=servers))
    one = lower(build("dense"), Parallelism(data=4, servers=1))
    assert sent(program, "data") == sent(one, "data")


@settings(max_examples=300)
@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    nodes=st.integers(2, 256),
    per_node=st.sampled_from([1, 2, 4, 8]),
    size=st.floats(1e3, 1e11),
    rate=st.floats(1e8, 1e12),
    ports=st.sampled_from([1, 2, 8]),
    transport=st.sampled_from(NETWORKS),
)
def test_no_collective_is_faster_than_the_adapters_of_a_node_send_its_bytes(
    kind: str, nodes: int, per_node: int, size: float, rate: float, ports: int, transport: str
) -> None:
    """However it is done, each of n nodes sends 2 (n - 1) / n of a sum, and (n - 1) / n of what is gathered or scattered; in an
    exchange each of its ranks sends that of its own."""
    network = Link(name="network", bytes_per_s=rate, latency_s=0.0, num_ports=ports, transport=transport)
    cluster = make_cluster(nodes=nodes, devices_per_node=per_node, inter=network)
    task = Collective(kind=kind, num_bytes=size, axis="data", num_ranks=nodes * per_node, stride=1, phase="backward")
    least = {"all_reduce": 2, "all_to_all": per_node}.get(kind, 1) * (nodes - 1) / nodes * size
    assert Pipelined().estimate(task, cluster).seconds >= least / rate
