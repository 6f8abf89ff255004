"""Memory beside the step: communicators, captured graphs, evaluations, checkpoints, and hosts."""

from dataclasses import replace

import pytest

from traincast.catalog import cluster, plain_stack, stack, workload
from traincast.catalog._stacks import read_stack
from traincast.errors import InvalidInput
from traincast.forecast import Engine, outside_bytes
from traincast.forecast._memory import PROCESS, communicator_bytes, list_outside
from traincast.spec import Cluster, HostMemory, Job, LogErrors, MemoryProfile, Moment, Parallelism, Stack

NODE = cluster(device="a100-80g", devices_per_node=8)
GRAPH = workload("gpt2-medium", batch=4)


def remember(plan: Parallelism, *, on: Cluster = NODE, **settings: object) -> MemoryProfile:
    job = Job(graph=GRAPH, **{"stack": plain_stack(), **settings})  # type: ignore[arg-type]
    engine = Engine()
    return engine.memory(engine.lower(job, on, plan), job, on)


def test_communicators_follow_links_groups_and_peers() -> None:
    habits = Stack().memory
    inside = communicator_bytes(NODE, Parallelism(data=8), habits)
    slow = cluster(device="rtx-3090", devices_per_node=8)
    assert communicator_bytes(NODE, Parallelism(), habits) == 0.0
    assert 0 < communicator_bytes(slow, Parallelism(data=8), habits) < inside / 3
    assert communicator_bytes(NODE, Parallelism(data=8), replace(habits, communicators=2.0)) == pytest.approx(
        2 * inside
    )
    few, many = (communicator_bytes(NODE, Parallelism(data=8, expert=degree), habits) - inside for degree in (2, 8))
    assert many - few == pytest.approx(6 * PROCESS.peer_bytes)


def test_a_compiler_that_plans_memory_has_no_holes_and_no_buffers_outside_the_plan() -> None:
    assert set(list_outside(NODE, Parallelism(data=8), stack("maxtext"))) == {"driver and libraries"}


def test_parts_outside_the_allocator_add_up() -> None:
    for settings in ({}, {"cuda_graphs": True}):
        memory = remember(Parallelism(data=4, tensor=2), **settings)
        assert sum(memory.outside_parts.values()) == pytest.approx(memory.outside_bytes)
    assert memory.outside_bytes >= outside_bytes(NODE, Parallelism(data=4, tensor=2), plain_stack())


def test_captured_graphs_take_memory_for_each_kernel_of_each_pass() -> None:
    one, two = (
        remember(Parallelism(data=8, micro_batches=number), cuda_graphs=True).outside_parts["captured graphs"]
        for number in (1, 2)
    )
    assert 0 < one < two < 2 * one
    assert "captured graphs" not in remember(Parallelism(data=8)).outside_parts


def test_an_evaluation_needs_less_than_a_step_unless_a_captured_graph_keeps_its_pool() -> None:
    plain = remember(Parallelism(data=8), evaluation_every_steps=10)
    captured = remember(Parallelism(data=8), evaluation_every_steps=10, cuda_graphs=True)
    assert [one.name for one in plain.moments] == ["evaluation"]
    for memory in (plain, captured):
        moment = memory.moments[0]
        assert sum(moment.by_role.values()) == pytest.approx(moment.peak_bytes)
    assert plain.moments[0].peak_bytes < plain.peak_bytes
    pool = captured.moments[0].by_role["pool of captured graphs"]
    assert pool == pytest.approx(captured.by_role["activation"])
    assert captured.moments[0].peak_bytes > plain.moments[0].peak_bytes + pool
    assert remember(Parallelism(data=8)).moments == ()


def test_a_checkpoint_gathers_as_the_stack_does() -> None:
    sharded = Parallelism(data=8, zero=3)

    def gathered(how: str, **settings: object) -> float:
        software = replace(plain_stack(), memory=replace(plain_stack().memory, checkpoint=how))
        memory = remember(sharded, stack=software, checkpoint_every_steps=5, **settings)
        return memory.moments[0].by_role.get("gathered state", 0.0)

    weights = GRAPH.role_bytes("parameter")
    assert gathered("shards") == gathered("whole", checkpoint_sharded=True) == 0.0
    assert 0 < gathered("layers") < gathered("whole")
    assert gathered("whole") >= weights


def test_a_moment_outside_the_step_decides_what_must_fit() -> None:
    moment = Moment(name="checkpoint", peak_bytes=90.0, by_role={"gathered state": 90.0})
    memory = MemoryProfile(peak_bytes=50.0, by_role={}, peak_at="", capacity_bytes=80.0, moments=(moment,))
    assert memory.needed_bytes == 90.0
    assert not memory.fits
    assert replace(memory, moments=()).fits


def test_offloaded_state_lies_on_the_host_byte_for_byte() -> None:
    plan = Parallelism(data=8, zero=2)
    state = remember(plan).by_role["optimizer_state"]
    host = remember(replace(plan, offload_optimizer=True)).host
    assert host is not None
    assert host.capacity_bytes is None
    assert host.by_part["optimizer state"] == pytest.approx(8 * state)
    assert sum(host.by_part.values()) == pytest.approx(host.needed_bytes)
    assert remember(plan).host is None
    more = remember(replace(plan, offload_optimizer=True), stack=stack("deepspeed")).host
    assert more is not None
    assert more.by_part["optimizer state"] == pytest.approx(1.5 * host.by_part["optimizer state"])


def test_weights_activations_and_checkpoints_are_counted_on_the_host_and_drives_hold_only_buffers() -> None:
    plan = Parallelism(data=8, zero=3, offload_optimizer=True, offload_weights=True, offload_activations=True)
    host = remember(plan, checkpoint_every_steps=3, checkpoint_async=True).host
    assert host is not None
    assert {"weights", "activations", "gathered checkpoint", "copy for a checkpoint", "processes"} <= set(host.by_part)
    drives = remember(replace(plan, offload_to="nvme")).host
    assert drives is not None
    assert set(drives.by_part) == {"buffers of drives", "processes"}


def test_a_host_that_is_too_small_makes_the_job_not_fit() -> None:
    plan = Parallelism(data=8, zero=2, offload_optimizer=True)

    def on(num_bytes: float) -> MemoryProfile:
        group = replace(NODE.groups[0], host_memory_bytes=num_bytes)
        return remember(plan, on=replace(NODE, groups=(group,)))

    assert on(1e12).fits
    assert not on(2e10).fits
    assert on(2e10).fit_probability < 0.01


def test_hosts_of_known_machines_are_known_and_shared_by_their_devices() -> None:
    whole, half = cluster("aws-p4d.24xlarge"), cluster("aws-p4d.24xlarge", devices_per_node=4)
    assert whole.groups[0].host_memory_bytes == pytest.approx(2 * (half.groups[0].host_memory_bytes or 0.0))
    assert NODE.groups[0].host_memory_bytes is None


def test_the_host_is_judged_by_the_same_errors_as_the_device() -> None:
    errors = LogErrors(levels=(0.05, 0.5, 0.95), values=(-0.2, 0.0, 0.2))
    host = HostMemory(needed_bytes=100.0, by_part={}, capacity_bytes=100.0)
    memory = MemoryProfile(peak_bytes=1.0, by_role={}, peak_at="", capacity_bytes=100.0, errors=errors, host=host)
    assert memory.fit_probability == pytest.approx(0.5)


def test_a_document_with_an_unknown_way_of_checkpoints_is_refused(tmp_path: object) -> None:
    path = tmp_path / "mine.toml"  # type: ignore[operator]
    path.write_text('title = "Mine"\nlike = "pytorch"\n[memory]\ncheckpoint = "everything"\n')
    with pytest.raises(InvalidInput, match="checkpoint = 'everything'; allowed: shards, layers, whole"):
        read_stack(path)
