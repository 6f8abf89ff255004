"""What the search works out in pieces is what a forecast says."""

import functools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from plan.models import pose_transformer
from traincast import catalog
from traincast.errors import IllegalPlan
from traincast.forecast import forecast
from traincast.plan.bench import Bench, Impossible, figures_of
from traincast.plan.nouns import Candidate, Limits, Space
from traincast.plan.space import Shape, list_candidates
from traincast.spec import Job, Parallelism

LIMITS = Limits(deadline_s=60.0, budget_usd=1.0)


@functools.cache
def _setting(name: str):
    layers, experts = {"dense": (6, None), "deep": (24, None), "experts": (4, 4)}[name]
    pose = pose_transformer(layers=layers, experts=experts)
    cluster = catalog.cluster("aws-p4d.24xlarge", nodes=2)
    candidates = list(list_candidates(Space(global_batch=32), cluster, Shape.of(pose(1, "none").graph)))
    return Bench(pose=pose, limits=LIMITS), pose, candidates


@pytest.mark.parametrize("name", ["dense", "deep", "experts"])
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_figures_in_pieces_are_those_of_a_forecast_and_never_below_their_bound(name: str, data: st.DataObject) -> None:
    bench, pose, candidates = _setting(name)
    candidate = data.draw(st.sampled_from(candidates))
    memory = bench.fill(candidate)
    try:
        answer = forecast(
            pose(candidate.batch, candidate.parallelism.recompute), candidate.cluster, candidate.parallelism
        )
    except IllegalPlan:
        assert isinstance(memory, Impossible)
        return
    assert not isinstance(memory, Impossible)
    assert memory.peak_bytes == pytest.approx(answer.memory.peak_bytes, rel=2e-3)
    assert memory.peak_bytes >= answer.memory.peak_bytes * (1 - 1e-9)
    wanted, bound = figures_of(answer, LIMITS), bench.bound(candidate)
    (figures,) = bench.answer([candidate])
    for found, true in zip(
        (figures.step_s, figures.job_s, figures.usd, figures.energy_joules, figures.deadline_probability),
        (wanted.step_s, wanted.job_s, wanted.usd, wanted.energy_joules, wanted.deadline_probability),
        strict=True,
    ):
        assert found == pytest.approx(true, rel=1e-4)
    assert bound.job_s <= wanted.job_s * (1 + 1e-6)
    assert bound.usd <= wanted.usd * (1 + 1e-6)
    assert bound.energy_joules <= wanted.energy_joules * (1 + 1e-6)


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("plan", [Parallelism(data=4), Parallelism(data=2, pipeline=2, micro_batches=4, zero=1)])
def test_a_model_that_is_no_transformer_is_worked_out_alike(plan: Parallelism, folded: bool) -> None:
    job = Job(graph=make_mlp(layers=4, folded=folded), steps=10)
    cluster = make_cluster(nodes=1, devices_per_node=4)
    candidate = Candidate(cluster=cluster, parallelism=plan, batch=job.graph.batch_size)
    bench = Bench(pose=lambda batch, recompute: job)
    answer = forecast(job, cluster, plan)
    assert bench.fill(candidate).peak_bytes == pytest.approx(answer.memory.peak_bytes, rel=2e-3)
    assert bench.answer([candidate])[0].step_s == pytest.approx(answer.step.seconds, rel=1e-3)


def test_a_plan_that_the_model_cannot_run_is_impossible_and_says_why() -> None:
    job = Job(graph=make_mlp(layers=4), steps=10)
    candidate = Candidate(
        cluster=make_cluster(devices_per_node=8), parallelism=Parallelism(pipeline=8), batch=job.graph.batch_size
    )
    found = Bench(pose=lambda batch, recompute: job).fill(candidate)
    assert isinstance(found, Impossible)
    assert "pipeline = 8" in found.reason


def test_replayed_cuda_graphs_and_compiled_jobs_are_worked_out_alike() -> None:
    _, pose, candidates = _setting("dense")

    def fast(batch: int, recompute: str) -> Job:
        return replace(pose(batch, recompute), compiled=True, cuda_graphs=True)

    bench = Bench(pose=fast)
    for candidate in candidates[:: len(candidates) // 4]:
        if isinstance(bench.fill(candidate), Impossible):
            continue
        answer = forecast(
            fast(candidate.batch, candidate.parallelism.recompute), candidate.cluster, candidate.parallelism
        )
        assert bench.answer([candidate])[0].step_s == pytest.approx(answer.step.seconds, rel=1e-4)
