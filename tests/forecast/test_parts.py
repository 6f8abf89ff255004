"""Each part of the model says its own answer, and exactly one of them is the forecast's."""

from tests.builders import make_cluster, make_mlp
from traincast import catalog
from traincast.catalog._workloads import workload
from traincast.forecast import forecast
from traincast.forecast._parts import explain_parts
from traincast.spec import Cluster, Job, Parallelism, Part


def explain(job: Job, cluster: Cluster) -> dict[str, Part]:
    plan = Parallelism(data=cluster.num_devices)
    answer = forecast(job, cluster, plan)
    return {part.name: part for part in explain_parts(answer, job, cluster, plan)}


def test_layers_answer_where_no_factor_by_class_helps() -> None:
    job, cluster = Job(graph=make_mlp()), make_cluster()
    parts = explain(job, cluster)
    assert [(name, part.is_answer) for name, part in parts.items()] == [("physics", False), ("layers", True)]
    assert parts["layers"].step is not None
    assert parts["layers"].step.seconds == forecast(job, cluster).step.seconds


def test_factors_by_class_answer_for_inference_of_images_and_name_what_they_change_most() -> None:
    job = Job(graph=workload("resnet50", batch=16, precision="fp16", mode="inference"))
    cluster = catalog.cluster(device="rtx-3090", devices_per_node=1)
    parts = explain(job, cluster)
    assert [name for name, part in parts.items() if part.is_answer] == ["classes"]
    assert parts["classes"].step == forecast(job, cluster).step
    assert parts["classes"].step != parts["layers"].step
    assert "conv" in parts["classes"].says
