import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.catalog._targets import target_of, targets
from traincast.errors import InvalidInput
from traincast.forecast._assemble import time_job
from traincast.resolve._target import train_to_target
from traincast.spec import Estimate, Graph, Job, Parallelism


def resnet(batch: int) -> Graph:
    mlp = make_mlp(batch=batch)
    return Graph(name="resnet50", ops=mlp.ops, tensors=mlp.tensors, batch_size=batch, repeats=mlp.repeats)


@given(octave=st.integers(0, 20))
def test_a_larger_batch_never_needs_fewer_samples(octave: int) -> None:
    for target in targets():
        assert target.samples_at(2.0 ** (octave + 1)).value >= target.samples_at(2.0**octave).value


def test_resnet_takes_about_35_epochs_of_imagenet() -> None:
    samples = target_of("resnet50").samples_at(3200)
    assert samples.value / 1_281_167 == pytest.approx(35, rel=0.03)
    assert samples.low < samples.value < samples.high


def test_the_interval_of_a_job_holds_speed_and_convergence_together() -> None:
    step = Estimate(seconds=1.0, low_s=0.9, high_s=1.1)
    graph = resnet(32)
    sure, unsure = (
        time_job(Job(graph=graph, samples=3.2e4, samples_spread=spread), make_cluster(), step, 32).total
        for spread in (0.0, 0.3)
    )
    assert unsure.seconds == sure.seconds
    assert unsure.low_s < sure.low_s
    assert unsure.high_s > sure.high_s
    assert sure.high_s / sure.seconds < 1.1


def test_a_job_to_its_target_runs_the_expected_samples_and_says_where_they_come_from() -> None:
    job, said = train_to_target(Job(graph=resnet(400)), Parallelism(data=8))
    assert job.samples == target_of("resnet50").samples_at(3200).value
    assert "MLPerf" in said
    assert "nearest" not in said
    assert "nearest" in train_to_target(Job(graph=resnet(2)), Parallelism())[1]


def test_an_unknown_workload_or_a_second_length_is_refused() -> None:
    with pytest.raises(InvalidInput, match="known: bert"):
        train_to_target(Job(graph=make_mlp()), Parallelism())
    with pytest.raises(InvalidInput, match="give no steps"):
        train_to_target(Job(graph=resnet(32), steps=5), Parallelism())
