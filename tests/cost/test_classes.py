"""Factors by class of operators: inference of image models on GPUs, everything else as it is priced."""

import pytest

from traincast import catalog
from traincast.catalog._workloads import workload
from traincast.cost import ClassFactors, Pricing
from traincast.cost._interaction.classes import load_class_factors
from traincast.cost._interaction.nodes import classes_of
from traincast.forecast import Engine
from traincast.spec import Graph, Job, Parallelism


def infers(name: str = "resnet50") -> Graph:
    return workload(name, batch=32, precision="fp16", mode="inference")


def step_s(graph: Graph, factors: ClassFactors | None, device: str = "rtx-3090") -> float:
    engine = Engine(costs=Pricing(interaction=factors))
    cluster = catalog.cluster(device=device, devices_per_node=1)
    return engine.forecast(Job(graph=graph), cluster, Parallelism()).step.seconds


def test_inference_of_images_is_corrected_and_factors_of_one_change_nothing() -> None:
    ones = ClassFactors(factors=dict.fromkeys(load_class_factors().factors, 1.0))
    assert step_s(infers(), ones) == step_s(infers(), None)
    assert step_s(infers(), load_class_factors()) != step_s(infers(), None)


@pytest.mark.parametrize(
    "graph", [workload("resnet50", batch=8), workload("gpt2", batch=2), workload("gpt2", batch=2, mode="inference")]
)
def test_training_and_tokens_are_left_to_the_layers(graph: Graph) -> None:
    assert Engine().correct(Job(graph=graph), catalog.cluster(device="rtx-3090", devices_per_node=1)) is None


@pytest.mark.parametrize("device", ["cpu", "tpu-v4"])
def test_what_is_no_gpu_is_left_to_the_layers(device: str) -> None:
    assert Engine().correct(Job(graph=infers()), catalog.cluster(device=device, devices_per_node=1)) is None


def test_each_class_takes_its_factor_and_the_host_stays() -> None:
    job, cluster = Job(graph=infers()), catalog.cluster(device="h100-sxm-80g", devices_per_node=1)
    plain, both = (Engine(costs=Pricing(interaction=one)) for one in (None, load_class_factors()))
    program = plain.lower(job, cluster, Parallelism())
    before, after = plain.cost(program, job, cluster)[0], both.cost(program, job, cluster)[0]
    assert [one.host_s for one in before] == [one.host_s for one in after]
    factors = load_class_factors().factors
    for name, one, other in zip(classes_of(program.stages[0].tasks), before, after, strict=True):
        assert other.seconds == pytest.approx(one.seconds * factors.get(name or "", 1.0))


def test_factors_stay_between_a_half_and_twice() -> None:
    assert all(0.5 < factor < 2.0 for factor in load_class_factors().factors.values())
