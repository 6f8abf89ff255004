from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_device, make_mlp
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.errors import IllegalPlan
from traincast.forecast import forecast
from traincast.lower import lower
from traincast.spec import HOST, Collective, Graph, Job, Parallelism, Program


@cache
def gpt() -> Graph:
    shape = TransformerShape(n_layers=8, hidden=512, heads=8, vocab=32_000, seq=256)
    return build_transformer(shape, Recipe(precision="bf16", attention="flash", implementation="fused"), batch=2)


def host_bytes(program: Program, kind: str) -> float:
    return sum(
        task.num_bytes * count
        for stage in program.stages
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Collective) and task.axis == HOST and task.kind == kind
    )


def role_bytes(program: Program, role: str) -> float:
    return sum(t.num_bytes * t.copies for stage in program.stages for t in stage.tensors if t.role == role)


def test_gradients_leave_and_weights_return_byte_for_byte() -> None:
    program = lower(gpt(), Parallelism(offload_optimizer=True))
    assert host_bytes(program, "copy_out") == gpt().role_bytes("gradient")
    assert host_bytes(program, "copy_in") == gpt().role_bytes("parameter")
    update = next(op for op in gpt().ops if op.kind == "optimizer")
    assert host_bytes(program, "host_update") == update.num_bytes


def test_no_optimizer_state_stays_on_the_device() -> None:
    assert role_bytes(lower(gpt(), Parallelism(offload_optimizer=True)), "optimizer_state") == 0.0


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_each_replica_exchanges_its_own_shard(zero: int) -> None:
    program = lower(gpt(), Parallelism(data=8, zero=zero, offload_optimizer=True))
    assert host_bytes(program, "copy_out") == pytest.approx(gpt().role_bytes("gradient") / 8, rel=0.01)
    assert host_bytes(program, "copy_in") == pytest.approx(gpt().role_bytes("parameter") / 8, rel=0.01)


def test_stages_of_a_pipeline_together_update_every_weight_once() -> None:
    program = lower(gpt(), Parallelism(pipeline=4, micro_batches=8, offload_optimizer=True))
    assert host_bytes(program, "copy_out") == pytest.approx(gpt().role_bytes("gradient"), rel=0.01)


def test_servers_and_graphs_without_an_optimizer_are_refused() -> None:
    with pytest.raises(IllegalPlan, match="servers"):
        lower(make_mlp(), Parallelism(data=2, servers=1, offload_optimizer=True))


@settings(max_examples=20, deadline=None)
@given(rate=st.floats(1e9, 1e12), data=st.sampled_from([1, 4]), zero=st.sampled_from([0, 1, 2, 3]))
def test_a_faster_link_to_the_host_is_never_slower_and_drawing_changes_nothing(
    rate: float, data: int, zero: int
) -> None:
    plan = Parallelism(data=data, zero=zero, offload_optimizer=True, micro_batches=2)

    def step_s(pcie_bytes_per_s: float, *, draw: bool = False) -> float:
        cluster = make_cluster(devices_per_node=data, device=make_device(pcie_bytes_per_s=pcie_bytes_per_s))
        return forecast(Job(graph=make_mlp(layers=6)), cluster, plan, draw=draw).step.seconds

    assert step_s(2 * rate) <= step_s(rate) * (1 + 1e-9)
    assert step_s(rate, draw=True) == pytest.approx(step_s(rate), rel=1e-6)


def test_offload_trades_time_for_memory_and_says_what_it_assumes() -> None:
    cluster = make_cluster(device=make_device(pcie_bytes_per_s=3e10))
    here, there = (forecast(Job(graph=gpt()), cluster, Parallelism(offload_optimizer=away)) for away in (False, True))
    assert there.memory.peak_bytes < here.memory.peak_bytes
    assert there.step.seconds > here.step.seconds
    assert there.timeline.exposed_by_axis[HOST] > 0
    assert any("host memory" in note for note in there.notes)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("data", [1, 8])
def test_gradients_that_are_sharded_add_up_on_the_host_and_others_on_the_device(zero: int, data: int) -> None:
    """ZeRO-Offload holds 2 bytes for each weight on a single device (Ren et al. 2021)."""
    program = lower(gpt(), Parallelism(data=data, zero=zero, offload_optimizer=True, micro_batches=4))
    held = role_bytes(program, "gradient")
    assert held == (0.0 if zero >= 2 else gpt().role_bytes("gradient"))
