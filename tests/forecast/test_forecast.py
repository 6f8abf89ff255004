from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_device, make_mlp
from traincast.catalog import cluster as find_cluster
from traincast.catalog._stacks import stack
from traincast.catalog._workloads import from_shape
from traincast.cost._pricing import Pricing, default_ops
from traincast.cost._roofline import Roofline
from traincast.errors import IllegalPlan
from traincast.forecast import forecast, outside_bytes
from traincast.forecast._memory import PROCESS
from traincast.spec import Cluster, Forecast, Job, Link, NodeGroup, Parallelism

ROOFLINE = Pricing(ops=Roofline())


def ask(*, layers: int = 6, width: int = 1024, batch: int = 64, plan: Parallelism | None = None, cluster: Cluster | None = None,
        **job: object) -> Forecast:  # fmt: skip
    graph = make_mlp(layers=layers, width=width, batch=batch)
    return forecast(Job(graph=graph, **job), cluster or make_cluster(), plan, costs=ROOFLINE)  # type: ignore[arg-type]


def test_a_step_lies_inside_its_interval() -> None:
    step = ask().step
    assert 0 < step.low_s < step.seconds < step.high_s


@settings(deadline=None, max_examples=25)
@given(factor=st.floats(1.1, 16.0), nodes=st.integers(1, 4))
def test_more_bandwidth_is_never_slower(factor: float, nodes: int) -> None:
    def run(scale: float) -> float:
        cluster = make_cluster(
            nodes=nodes,
            devices_per_node=2,
            intra=Link(name="i", bytes_per_s=1e10 * scale, latency_s=1e-6),
            inter=Link(name="e", bytes_per_s=1e9 * scale, latency_s=1e-5),
        )
        return ask(cluster=cluster).step.seconds

    assert run(factor) <= run(1.0) * (1 + 1e-9)


@settings(deadline=None, max_examples=15)
@given(degree=st.integers(2, 16))
def test_a_synchronous_step_is_never_faster_with_more_replicas_at_fixed_local_batch(degree: int) -> None:
    one = ask().step.seconds
    many = ask(cluster=make_cluster(nodes=degree)).step.seconds
    assert many >= one * (1 - 1e-9)


def test_a_slow_node_holds_up_all_the_others() -> None:
    link = Link(name="l", bytes_per_s=1e11, latency_s=1e-6)
    common = {"device": make_device(), "num_nodes": 1, "devices_per_node": 1, "intra": link, "inter": link}
    even = Cluster(name="even", groups=(NodeGroup(**common), NodeGroup(**common)))  # type: ignore[arg-type]
    mixed = Cluster(name="mixed", groups=(NodeGroup(**common), NodeGroup(**common, speed=0.5)))  # type: ignore[arg-type]
    assert ask(cluster=mixed, batch=1024).step.seconds > 1.5 * ask(cluster=even, batch=1024).step.seconds


def test_a_plan_of_the_wrong_size_is_refused_with_the_right_one() -> None:
    with pytest.raises(IllegalPlan, match=r"needs 3 devices.*cluster has 4.*data = 4 would use them all"):
        ask(plan=Parallelism(data=3), cluster=make_cluster(nodes=4))
    with pytest.raises(IllegalPlan, match="must divide 3"):
        ask(plan=Parallelism(tensor=2), cluster=make_cluster(nodes=3))


def test_a_job_costs_its_hours() -> None:
    answer = ask(cluster=make_cluster(nodes=2, usd_per_hour=36.0), steps=1000, startup_s=0.0)
    assert answer.usd is not None
    assert answer.usd.value == pytest.approx(72.0 * answer.job.total.seconds / 3600)
    assert answer.usd.low < answer.usd.value < answer.usd.high


def test_without_a_price_there_is_no_cost() -> None:
    assert ask().usd is None


def test_the_parts_of_a_job_add_up() -> None:
    answer = ask(
        samples=1e6,
        evaluation_every_steps=100,
        evaluation_samples=5000,
        checkpoint_every_steps=500,
        loading_samples_per_s=1e5,
        startup_s=30.0,
    )
    job = answer.job
    parts = job.startup_s + job.training_s + job.evaluation_s + job.checkpoint_s + job.loading_stall_s
    assert parts == pytest.approx(job.total.seconds)
    assert min(job.evaluation_s, job.checkpoint_s) > 0


def test_a_loader_that_cannot_keep_up_stalls_every_step() -> None:
    fast, slow = ask(steps=100), ask(steps=100, loading_samples_per_s=10.0)
    assert fast.job.loading_stall_s == 0
    assert slow.job.total.seconds == pytest.approx(100 * 6.4 + 60, rel=0.05)


def test_the_same_question_has_the_same_answer() -> None:
    assert ask() == ask()


def test_utilisation_never_exceeds_the_peak() -> None:
    assert 0 < ask(width=4096, batch=4096).utilization <= 1


def servers(num_servers: int, *, asynchronous: bool = False, inter_bytes_per_s: float = 1e9) -> float:
    link = Link(name="e", bytes_per_s=inter_bytes_per_s, latency_s=1e-5, kind="infiniband")
    cluster = make_cluster(nodes=8, inter=link)
    plan = Parallelism(data=8, servers=num_servers, asynchronous=asynchronous)
    return ask(cluster=cluster, plan=plan).step.seconds


def test_more_parameter_servers_are_never_slower() -> None:
    steps = [servers(count) for count in (1, 2, 4, 8)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < 0.5 * steps[0]


def test_asynchronous_workers_are_never_slower_than_synchronous_ones_nor_faster_than_the_servers() -> None:
    assert servers(1, asynchronous=True) <= servers(1) * (1 + 1e-9)
    weights = 6 * 1024 * 1024 * 4
    # Links run both ways at once: one worker pulls while another pushes.
    assert servers(1, asynchronous=True) >= 8 * weights / 1e9


def test_asynchronous_workers_of_unequal_nodes_go_at_their_own_pace() -> None:
    fast, slow = (make_cluster(nodes=2, speed=speed).groups[0] for speed in (1.0, 0.1))
    plan = Parallelism(data=4, servers=4, asynchronous=True)

    def step_s(*groups: NodeGroup) -> float:
        return ask(batch=4096, cluster=Cluster(name="mixed", groups=groups), plan=plan).step.seconds

    all_fast, all_slow, mixed = (
        step_s(replace(fast, num_nodes=4)),
        step_s(replace(slow, num_nodes=4)),
        step_s(fast, slow),
    )
    assert all_fast < mixed < all_slow
    assert mixed == pytest.approx(4 / (2 / all_fast + 2 / all_slow), rel=0.01)


def test_servers_go_with_data_parallelism_alone() -> None:
    with pytest.raises(IllegalPlan, match="zero = 0"):
        ask(cluster=make_cluster(nodes=4), plan=Parallelism(data=4, servers=1, zero=1))
    with pytest.raises(IllegalPlan, match="needs parameter servers"):
        ask(cluster=make_cluster(nodes=4), plan=Parallelism(data=4, asynchronous=True))


def test_failures_cost_more_on_more_devices_and_less_with_checkpoints() -> None:
    def restarts(nodes: int, **job: object) -> float:
        return ask(cluster=make_cluster(nodes=nodes), steps=10_000_000, device_mtbf_s=1e6, **job).job.restarts_s

    assert restarts(8) > restarts(1) > 0
    assert restarts(8, checkpoint_every_steps=1000) < restarts(8)


def test_mixed_devices_get_the_split_that_balances_them() -> None:
    link = Link(name="l", bytes_per_s=1e12, latency_s=1e-6)
    slow = make_device(
        name="slowium", memory_bytes_per_s=5e11, vector_flop_per_s={"fp32": 5e12}, matrix_flop_per_s={"fp16": 5e13}
    )
    groups = tuple(
        NodeGroup(device=device, num_nodes=1, devices_per_node=1, intra=link, inter=link)
        for device in (make_device(), slow)
    )
    notes = ask(cluster=Cluster(name="mixed", groups=groups), batch=512, width=2048).notes
    assert any("would save about" in note and "slowium" in note for note in notes)
    equal = ask(cluster=make_cluster(nodes=2)).notes
    assert not any("would save about" in note for note in equal)


def test_what_rests_on_the_bound_alone_widens_the_interval_of_a_measured_stack_too() -> None:
    def width(ops: object) -> float:
        graph = make_mlp(layers=6, width=1024, batch=64)
        costs = Pricing(ops=ops)  # type: ignore[arg-type]
        step = forecast(Job(graph=graph, stack=stack("composer")), make_cluster(), costs=costs).step
        return step.high_s / step.low_s

    assert width(Roofline()) > 1.2 * width(default_ops())


def test_every_axis_takes_its_part_of_the_device() -> None:
    node = find_cluster(device="h100", devices_per_node=8)
    alone = outside_bytes(node, Parallelism())
    one = outside_bytes(node, Parallelism(data=8))
    three = outside_bytes(node, Parallelism(data=2, tensor=2, pipeline=2))
    assert 0 < alone < one < three < 0.15 * 80e9
    peers = PROCESS.peer_bytes
    assert three - alone == pytest.approx(3 * (one - alone) + peers)


def test_stacks_that_gather_into_one_buffer_hold_no_gathers() -> None:
    graph = from_shape(
        arch="llama", n_layers=8, hidden=512, heads=8, vocab=4096, seq=512, batch=2, precision="bf16", fused=True,
        accumulate=True, name="small",
    )  # fmt: skip
    plan = Parallelism(tensor=2, sequence_parallel=True, micro_batches=4)
    cluster = make_cluster(devices_per_node=2, device=make_device(memory_bytes=80e9))

    def held(name: str) -> float:
        memory = forecast(Job(graph=graph, stack=stack(name)), cluster, plan, costs=ROOFLINE).memory
        return memory.by_role.get("gathered inputs", 0.0)

    assert held("megatron-lm") == held("torchtitan") == 0.0
    assert held("nanotron") > 0
