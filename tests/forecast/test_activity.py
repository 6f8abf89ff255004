"""Resource numbers of a forecast: derived from the timeline, or learned where runs on GPUs were watched."""

import pytest

from builders import make_cluster, make_mlp
from traincast import catalog
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.forecast import forecast
from traincast.report._document import document_forecast
from traincast.report._text import format_forecast
from traincast.spec import Cluster, Forecast, Job, Parallelism


def cores(num_nodes: int = 4) -> Cluster:
    return catalog.cluster("cpu", nodes=num_nodes, devices_per_node=1, inter="ethernet-1g")


def ask(cluster: Cluster, **plan: int) -> Forecast:
    parallelism = Parallelism(**(plan or {"data": cluster.num_devices}))
    return forecast(Job(graph=make_mlp()), cluster, parallelism, costs=Pricing(ops=Roofline()), draw=True)


def test_a_gpu_job_is_derived_and_says_so():
    answer = ask(make_cluster(nodes=2))
    assert [profile.basis for profile in answer.resources] == ["derived"]
    # Durations are as sure as the step, and so are levels the other way round: the same bytes in more or less time.
    document = document_forecast(answer)["resources"][0]
    ranges = document["ranges"]
    assert len(ranges) == 12
    step = answer.step
    assert ranges["gpu_burst_s"][1] <= step.high_s
    assert ranges["sent_peak"][0] == pytest.approx(document["sent"]["peak"] * step.seconds / step.high_s)
    assert all(low <= high for low, high in ranges.values())
    assert ranges["gpu_peak"][1] <= 1.0 + 1e-9
    assert "derived from the timeline" in format_forecast(answer, explain=True)


def test_a_data_parallel_gpu_job_says_what_nvidia_smi_would_show_over_a_whole_run():
    cluster = catalog.cluster("a100-40g", nodes=1, devices_per_node=8)
    answer = forecast(Job(graph=catalog.workload("resnet50", batch=64)), cluster, Parallelism(data=8), draw=True)
    assert answer.run_utilization is not None
    assert 0 < answer.run_utilization < 1
    assert document_forecast(answer)["run_utilization"] == answer.run_utilization
    assert f"nvidia-smi would show about {answer.run_utilization:.0%}" in format_forecast(answer, explain=True)


def test_what_no_measured_run_was_like_has_no_utilisation_of_a_run():
    assert ask(cores(1)).run_utilization is None
    assert ask(make_cluster(nodes=1, devices_per_node=2), tensor=2).run_utilization is None
