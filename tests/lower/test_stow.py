"""Weights and activations in host memory, on NVMe or in a smaller format: bytes on paper, and time that hides where it can."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from builders import make_cluster, make_device
from traincast import catalog
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.errors import IllegalPlan
from traincast.forecast import forecast
from traincast.lower import lower
from traincast.plan._ask import ask
from traincast.spec import HOST, Collective, Forecast, Graph, Job, Parallelism, Program, Question, WorkloadOptions

LAYERS, HIDDEN, TOKENS = 8, 512, 2 * 1024


@cache
def gpt(recompute: str = "none") -> Graph:
    shape = TransformerShape(n_layers=LAYERS, hidden=HIDDEN, heads=8, vocab=1000, seq=1024)
    recipe = Recipe(precision="bf16", attention="flash", implementation="fused", recompute=recompute)
    return build_transformer(shape, recipe, batch=2)


def host_bytes(program: Program, kind: str, *phases: str) -> float:
    return sum(
        task.num_bytes * count
        for stage in program.stages
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Collective) and task.axis == HOST and task.kind == kind and task.phase in phases
    )


def answer(plan: Parallelism, *, graph: Graph | None = None, pcie: float = 3e10, **group: Any) -> Forecast:
    cluster = make_cluster(
        devices_per_node=plan.num_devices, device=make_device(pcie_bytes_per_s=pcie, memory_bytes=8e10)
    )
    cluster = replace(cluster, groups=tuple(replace(one, **group) for one in cluster.groups))
    return forecast(Job(graph=graph or gpt()), cluster, plan)


@pytest.mark.parametrize("shards", [1, 4])
def test_weights_are_copied_in_forward_and_backward(shards: int) -> None:
    plan = Parallelism(data=shards, zero=3 if shards > 1 else 0, offload_weights=True, offload_optimizer=True)
    program = lower(gpt(), plan)
    weights = gpt().role_bytes("parameter") / shards
    assert host_bytes(program, "copy_in", "forward") == pytest.approx(weights, rel=0.02)
    assert host_bytes(program, "copy_in", "backward") == pytest.approx(weights, rel=0.08)
    assert host_bytes(program, "copy_in", "optimizer") == 0.0


def test_updated_weights_go_back_where_the_device_updates_them() -> None:
    program = lower(gpt(), Parallelism(offload_weights=True))
    assert host_bytes(program, "copy_out", "optimizer") == pytest.approx(gpt().role_bytes("parameter"))


def test_two_layers_of_weights_stay() -> None:
    here, away = answer(Parallelism()), answer(Parallelism(offload_weights=True))
    layer = 12 * HIDDEN**2 * 2
    gone = here.memory.by_role["parameter"] - away.memory.by_role["parameter"]
    assert gone == pytest.approx((LAYERS - 2) * layer, rel=0.02)


def test_inputs_of_layers_that_run_again_leave_and_return() -> None:
    """Each layer's input, tokens x hidden in bf16, is all that full recomputation keeps."""
    program = lower(gpt("full"), Parallelism(recompute="full", offload_activations=True))
    kept = LAYERS * TOKENS * HIDDEN * 2
    assert host_bytes(program, "copy_out", "forward") == kept
    assert host_bytes(program, "copy_in", "backward") == kept


def test_activations_that_leave_are_not_held() -> None:
    """What eight layers keep is gone but for what two of them need; time grows by what the link cannot hide."""
    plain, away = answer(Parallelism()), answer(Parallelism(offload_activations=True))
    kept = host_bytes(lower(gpt(), Parallelism(offload_activations=True)), "copy_out", "forward")
    saved = plain.memory.peak_bytes - away.memory.peak_bytes
    assert 0.5 * kept < saved < 1.1 * kept
    assert away.step.seconds >= 2 * kept / 3e10
    quick = answer(Parallelism(offload_activations=True), pcie=1e13)
    assert quick.step.seconds == pytest.approx(plain.step.seconds, rel=0.05)


def test_drives_are_shared_by_the_devices_of_a_node() -> None:
    plan = Parallelism(data=4, zero=3, offload_optimizer=True, offload_to="nvme")
    slow, fast = answer(plan, nvme_bytes_per_s=1e9), answer(plan, nvme_bytes_per_s=2e9)
    update = next(op for op in gpt().ops if op.kind == "optimizer").num_bytes
    assert slow.step.seconds - fast.step.seconds == pytest.approx(update / 1e9 - update / 2e9, rel=0.05)
    assert any("1 GB/s of a node's NVMe" in note for note in slow.notes)


def test_sharded_weights_travel_in_the_format_asked_for() -> None:
    def gathered(plan: Parallelism) -> float:
        return sum(
            task.num_bytes * count
            for stage in lower(gpt(), plan).stages
            for task, count in zip(stage.tasks, stage.counts(), strict=True)
            if isinstance(task, Collective) and task.kind == "all_gather"
        )

    plain = gathered(Parallelism(data=4, zero=3))
    assert gathered(Parallelism(data=4, zero=3, gather_dtype="fp8")) == pytest.approx(plain / 2)


def test_state_is_offloaded_to_the_host_or_to_drives() -> None:
    with pytest.raises(IllegalPlan, match="offload_to"):
        Parallelism(offload_to="tape")


def test_ten_billion_parameters_train_on_one_v100_at_the_published_rate() -> None:
    """Ren et al. (2021), ZeRO-Offload, abstract: 40 TFLOP/s on one V100 for 10B parameters, recomputation counted; within 30%."""
    found = ask(
        Question(
            source="10B",
            workload=WorkloadOptions(arch="gpt", n_layers=50, hidden=4096, heads=32, vocab=50257, seq=1024, batch=8,
                                     precision="fp16"),
            cluster={"device": "v100-32g", "devices_per_node": 1},
            parallelism={"offload_optimizer": True, "offload_weights": True, "recompute": "full"},
        )
    )  # fmt: skip
    assert found.memory.fits
    rate = found.utilization * (catalog.device("v100-32g").peak_flop_per_s("fp16") or 0.0)
    assert rate == pytest.approx(40e12, rel=0.3)
