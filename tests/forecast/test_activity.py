"""Resource numbers of a forecast: derived from the timeline, or corrected where runs of such a setting were measured."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from builders import make_cluster, make_mlp
from resources.test_correction import RATES, make_member
from traincast import catalog
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.errors import InvalidInput
from traincast.forecast import forecast
from traincast.forecast._activity import CORE, is_like_corpus, place_of
from traincast.report._document import document_forecast
from traincast.report._text import format_forecast
from traincast.resources._correction import TWELVE, GraphCorrection, describe_place, load_graph_correction
from traincast.resources._learned import count_work, expect
from traincast.spec import RESOURCES, Cluster, Forecast, Job, Parallelism


def cores(num_nodes: int = 4) -> Cluster:
    return catalog.cluster("cpu", nodes=num_nodes, devices_per_node=1, inter="ethernet-1g")


def make_correction(cluster: Cluster) -> GraphCorrection:
    work = count_work(make_mlp())
    point = describe_place(work, place_of(cluster), expect(RATES, work, place_of(cluster)))
    return GraphCorrection(
        rates=RATES, centre=point, low=point - 9.0, high=point + 9.0, members=(make_member(0),),
        errors=dict.fromkeys(TWELVE, (-0.2, 0.3)),
    )  # fmt: skip


def ask(cluster: Cluster, *, activity: GraphCorrection | None = None, **plan: int) -> Forecast:
    parallelism = Parallelism(**(plan or {"data": cluster.num_devices}))
    return forecast(
        Job(graph=make_mlp()), cluster, parallelism, costs=Pricing(ops=Roofline()), draw=True, activity=activity
    )


def test_no_accelerator_of_the_catalogue_is_taken_for_a_cpu_core():
    for device in catalog.devices():
        assert is_like_corpus(make_cluster(device=device)) == (device.name == "cpu"), device.name


def test_a_gpu_job_is_derived_and_says_so():
    answer = ask(make_cluster(nodes=2))
    assert [profile.basis for profile in answer.resources] == ["derived"]
    # Durations are as sure as the step, and so are levels the other way round: the same bytes in more or less time.
    document = document_forecast(answer)["resources"][0]
    ranges = document["ranges"]
    assert set(ranges) == set(TWELVE)
    step = answer.step
    assert ranges["gpu_burst_s"][1] <= step.high_s
    assert ranges["sent_peak"][0] == pytest.approx(document["sent"]["peak"] * step.seconds / step.high_s)
    assert all(low <= high for low, high in ranges.values())
    assert ranges["gpu_peak"][1] <= 1.0 + 1e-9
    assert "derived from the timeline" in format_forecast(answer, explain=True)


def test_a_correction_that_is_given_is_used_with_ranges_and_says_so():
    cluster = cores()
    derived = ask(cluster, activity=GraphCorrection(rates=RATES)).resources[0]
    assert derived.basis == "derived"
    answer = ask(cluster, activity=make_correction(cluster))
    (profile,) = answer.resources
    assert profile.basis == "corrected"
    assert profile.twelve() != derived.twelve()
    assert set(profile.ranges) == set(TWELVE)
    document = document_forecast(answer)["resources"][0]
    assert document["basis"] == "corrected"
    assert len(document["ranges"]["sent_peak"]) == 2
    assert "corrected by measured runs" in format_forecast(answer, explain=True)


def test_a_corrected_profile_keeps_the_step_the_bytes_and_the_energy():
    cluster = cores()
    corrected, derived = (
        ask(cluster, activity=given).resources[0] for given in (make_correction(cluster), GraphCorrection(rates=RATES))
    )
    assert corrected.step_s == pytest.approx(derived.step_s)
    assert (corrected.sent_bytes, corrected.energy_joules) == (derived.sent_bytes, derived.energy_joules)
    for name in RESOURCES:
        assert getattr(corrected, name).cycle_s == pytest.approx(derived.step_s)
    assert corrected.sent.mean == pytest.approx(derived.sent_bytes / derived.step_s)


def test_a_plan_that_no_run_had_is_derived():
    cluster = cores(2)
    profiles = ask(cluster, activity=make_correction(cluster), pipeline=2, micro_batches=4).resources
    assert {profile.basis for profile in profiles} == {"derived"}


def test_the_place_of_unequal_nodes_is_that_of_the_first_rank():
    equal = cores(1).groups[0]
    slow = replace(equal, speed=0.5, inter=replace(equal.inter, bytes_per_s=1e7))
    place = place_of(Cluster(name="mixed", groups=(equal, slow)))
    assert (place.num_ranks, place.speed, place.slowest) == (2, 1.0, 0.5)
    assert place.narrowest_bytes_per_s == 1e7 < place.bytes_per_s


def test_what_ships_corrects_a_small_step_on_cpu_nodes_and_needs_no_torch():
    program = """
import sys
from builders import make_mlp
from forecast.test_activity import ask, cores
from dataclasses import replace
cluster = cores(4)
cluster = replace(cluster, groups=(replace(cluster.groups[0], speed=0.25),))
print(ask(cluster).resources[0].basis, "torch" in sys.modules)
"""
    tests = Path(__file__).parents[1]
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tests, check=True)
    assert ran.stdout.split() == ["corrected", "False"]


def test_a_step_unlike_all_measured_ones_is_derived():
    answer = forecast(
        Job(graph=make_mlp(width=8192, batch=4096)),
        cores(),
        Parallelism(data=4),
        costs=Pricing(ops=Roofline()),
        draw=True,
    )
    assert answer.resources[0].basis == "derived"


def test_a_correction_fitted_to_another_device_is_refused():
    cluster = cores()
    fitted = replace(make_correction(cluster), about={"device": "cpu"})
    assert ask(cluster, activity=fitted).resources[0].basis == "corrected"
    with pytest.raises(InvalidInput, match="fitted to runs on 'cpu' and is asked about 'testium'"):
        ask(make_cluster(nodes=4), activity=fitted)
    own = replace(fitted, about={"device": "testium"})
    assert ask(make_cluster(nodes=4), activity=own).resources[0].basis == "corrected"


def test_the_correction_that_ships_says_what_it_was_fitted_to():
    assert load_graph_correction().about["device"] == CORE


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
