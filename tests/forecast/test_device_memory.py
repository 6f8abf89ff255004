from dataclasses import replace

import pytest

from builders import make_cluster
from traincast import catalog
from traincast.catalog._stacks import stack
from traincast.catalog._workloads import workload
from traincast.forecast import forecast
from traincast.forecast._memory import watch_device
from traincast.plan import ask
from traincast.resolve import build_cluster
from traincast.spec import Cluster, Graph, Job, Parallelism, Question, WorkloadOptions


def _on(device: str) -> Cluster:
    return build_cluster(Question(source="resnet50", cluster={"device": device}))


def test_tensors_are_less_than_what_is_reserved_and_that_is_less_than_what_the_meter_shows() -> None:
    job = Job(graph=workload("resnet50", batch=64, precision="fp16-amp"))
    cluster = _on("a100-80g")
    seen = watch_device(job, cluster, Parallelism())
    assert seen.live_bytes < seen.reserved_bytes < seen.used_bytes < catalog.device("a100-80g").memory_bytes
    peak = forecast(job, cluster, Parallelism()).memory.peak_bytes
    assert seen.live_bytes == pytest.approx(peak, rel=0.05)


def test_the_meter_of_a_convolutional_network_is_near_full_long_before_its_tensors_fill_the_device() -> None:
    job = Job(graph=workload("resnet50", batch=152, precision="fp32"), stack=stack("nvidia-dle-pytorch"))
    seen = watch_device(job, _on("v100-sxm2-16g"), Parallelism())
    capacity = catalog.device("v100-sxm2-16g").memory_bytes
    assert seen.live_bytes < 0.85 * capacity
    assert 0.9 * capacity < seen.used_bytes < capacity


def test_tensorflow_takes_the_whole_device_at_once() -> None:
    job = Job(graph=workload("resnet50", batch=1), stack=stack("nvidia-dle-tensorflow"))
    seen = watch_device(job, _on("a100-80g"), Parallelism())
    assert seen.used_bytes > 0.95 * catalog.device("a100-80g").memory_bytes
    assert seen.live_bytes < 0.1 * seen.used_bytes


def test_a_stack_with_buckets_of_its_own_holds_them_where_it_reduces_and_never_more_than_two_copies_of_the_weights() -> (
    None
):
    cluster = build_cluster(Question(source="gpt2", cluster={"device": "a100-80g", "devices_per_node": 8}))
    graph = workload("gpt2-xl", batch=1, precision="bf16")
    weights = graph.role_bytes("parameter")

    def held(zero: int, name: str, data: int = 8) -> dict[str, float]:
        plan = Parallelism(data=data, pipeline=8 // data, zero=zero)
        return dict(forecast(Job(graph=graph, stack=stack(name)), cluster, plan).memory.by_role)

    assert "communication buffers" not in held(0, "deepspeed", data=1)
    # Gradients are in the buckets before they are shared, so sharding them makes the buckets no smaller.
    for zero in range(4):
        assert held(zero, "deepspeed")["communication buffers"] == 2e9
    assert "communication buffers" not in held(1, "pytorch")
    assert held(3, "pytorch")["gathered weights"] < held(3, "deepspeed")["gathered weights"] <= weights * 1.01


def test_a_planned_step_has_no_caching_allocator() -> None:
    cluster = _on("a100-80g")
    job = Job(graph=workload("gpt2", batch=1, precision="bf16"), stack=stack("maxtext"))
    assert "allocator" not in forecast(job, cluster, Parallelism()).memory.by_role


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_buckets_of_a_stack_are_a_second_copy_only_of_gradients_that_are_added_to_wider_sums(precision: str) -> None:
    cluster = build_cluster(Question(source="gpt2", cluster={"device": "a100-80g", "devices_per_node": 8}))
    graph = workload("gpt2-xl", batch=1, precision=precision)
    by_role = forecast(Job(graph=graph, stack=stack("deepspeed")), cluster, Parallelism(data=8, zero=1)).memory.by_role
    assert ("gradient buckets" in by_role) == (precision == "bf16")


def test_gradients_in_flat_buffers_are_there_in_the_only_pass_of_a_step() -> None:
    graph = workload("gpt2-xl", batch=8, precision="fp16", implementation="fused")
    cluster = _on("a100-80g")

    def held(name: str) -> float:
        return forecast(Job(graph=graph, stack=stack(name)), cluster, Parallelism()).memory.by_role.get("gradient", 0.0)

    assert held("megatron-lm") == pytest.approx(graph.role_bytes("gradient"))
    assert held("pytorch") < 0.2 * held("megatron-lm")


def test_a_planned_step_casts_weights_where_it_uses_them() -> None:
    graph = workload("gpt2", batch=1, precision="bf16")
    by_role = {
        name: forecast(Job(graph=graph, stack=stack(name)), _on("a100-80g"), Parallelism()).memory.by_role
        for name in ("maxtext", "pytorch")
    }
    assert by_role["pytorch"]["parameter"] == graph.role_bytes("parameter")
    assert "parameter" not in by_role["maxtext"]


def test_an_inference_of_a_causal_model_returns_keys_and_values_of_all_layers_where_the_stack_does() -> None:
    def held(source: str, name: str, **more: object) -> float:
        question = Question(
            source=source,
            workload=WorkloadOptions(batch=4, mode="inference", precision="fp32", **more),  # type: ignore[arg-type]
            cluster={"device": "a100-80g"},
            job={"stack": name},
        )
        return ask(question).memory.by_role.get("cache", 0.0)

    # Keys and values of gpt2 are cut out of one product with the queries, which stays with them.
    assert held("gpt2", "pytorch", seq=512) == 12 * 3 * 768 * 4 * 512 * 4
    assert held("llama-3.2-1b", "hf-trainer", seq=512) == 16 * 2 * 512 * 4 * 512 * 4
    assert held("gpt2", "megatron-lm", seq=512) == held("bert-base-uncased", "pytorch", seq=512) == 0.0


def test_memory_must_hold_the_batch_with_the_largest_images() -> None:
    graph = workload("maskrcnn", batch=2)
    fixed = replace(graph, largest_batch=1.0)
    assert graph.largest_batch == pytest.approx(1344 / next(t.shape[3] for t in graph.tensors if t.name == "images"))

    def activations(graph: Graph) -> float:
        return forecast(Job(graph=graph), make_cluster()).memory.by_role["activation"]

    assert activations(graph) == pytest.approx(graph.largest_batch * activations(fixed))
    seen = [watch_device(Job(graph=one), make_cluster(), Parallelism()).used_bytes for one in (graph, fixed)]
    assert seen[0] > seen[1]
