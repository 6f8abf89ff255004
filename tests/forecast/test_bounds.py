"""A bound is never above what the plan itself says."""

import functools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from forecast.test_engine import CHANGES, PLANS
from plan.models import pose_transformer
from traincast import catalog
from traincast.errors import IllegalPlan
from traincast.forecast._engine import Engine
from traincast.plan._nouns import Candidate, JobAt, Space
from traincast.plan._space import Shape, list_candidates
from traincast.plan._vary import JobsOnce
from traincast.spec import Graph, Job, Parallelism, Stack


@functools.cache
def setting(name: str) -> tuple[Engine, JobAt, list[Candidate]]:
    layers, experts = {"dense": (6, None), "deep": (24, None), "experts": (4, 4)}[name]
    pose = pose_transformer(layers=layers, experts=experts, hidden=1024)
    jobs = JobsOnce(lambda batch, plan, _: pose(batch, plan), lambda _: Stack(), built_in=True)
    cluster = catalog.cluster("aws-p4d.24xlarge", nodes=2)
    candidates = list(list_candidates(Space(global_batch=32), cluster, Shape.of(jobs(1, Parallelism()).graph)))
    return Engine(), jobs, candidates


@pytest.mark.parametrize("name", ["dense", "deep", "experts"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_no_plan_is_below_its_bounds(name: str, data: st.DataObject) -> None:
    engine, job_at, candidates = setting(name)
    candidate = data.draw(st.sampled_from(candidates))
    plan, cluster = candidate.parallelism, candidate.cluster
    job, plain = job_at(candidate.batch, plan), job_at(candidate.batch, replace(plan, recompute="none"))
    try:
        answer = engine.forecast(job, cluster, plan)
    except IllegalPlan:
        return
    assert engine.bound_memory(job, cluster, plan).needed_bytes <= answer.memory.needed_bytes
    for step_s, busy_s in (
        engine.bound_time(job, cluster, plan),
        engine.bound_time(job, cluster, plan, plain=plain if plan.recompute != "none" else None),
    ):
        assert step_s <= answer.step.seconds
        assert busy_s <= answer.timeline.busy_s
        job_s, usd, joules = engine.weigh(job, cluster, plan, step_s=step_s, busy_s=busy_s)
        assert job_s <= answer.job.total.seconds
        assert usd is not None
        assert joules is not None
        assert answer.usd is not None
        assert answer.energy_joules is not None
        assert usd <= answer.usd.value
        assert joules <= answer.energy_joules


@pytest.mark.parametrize("name", CHANGES)
def test_no_field_of_a_plan_takes_it_below_its_bounds(name: str) -> None:
    engine, cluster = BOUNDING, catalog.cluster("aws-p4d.24xlarge", nodes=1)
    job = Job(graph=gpt2())
    for base in (PLANS[0], PLANS[1], PLANS[3], PLANS[4]):
        for change in CHANGES[name]:
            try:
                plan = replace(base, **change)
                answer = engine.forecast(job, cluster, plan)
            except IllegalPlan:
                continue
            step_s, busy_s = engine.bound_time(job, cluster, plan)
            assert step_s <= answer.step.seconds
            assert busy_s <= answer.timeline.busy_s
            assert engine.bound_memory(job, cluster, plan).needed_bytes <= answer.memory.needed_bytes


@functools.cache
def gpt2() -> Graph:
    return catalog.workload("gpt2", batch=4, precision="bf16", seq=1024)


BOUNDING = Engine()


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize(
    "plan",
    [Parallelism(data=4), Parallelism(data=2, pipeline=2, micro_batches=4, zero=1), Parallelism(data=4, servers=2)],
)
def test_a_model_that_is_no_transformer_is_bound_alike(plan: Parallelism, folded: bool) -> None:
    job = Job(graph=make_mlp(layers=4, folded=folded), steps=10)
    cluster, engine = make_cluster(nodes=1, devices_per_node=4), Engine()
    answer = engine.forecast(job, cluster, plan)
    assert 0 < engine.bound_time(job, cluster, plan)[0] <= answer.step.seconds
    assert engine.bound_memory(job, cluster, plan).needed_bytes <= answer.memory.needed_bytes


def test_a_cost_model_that_sees_whole_stages_gives_no_bound_on_time() -> None:
    class Whole:
        def estimate(self, stage, cluster):  # type: ignore[no-untyped-def]
            raise AssertionError

    assert Engine(costs=Whole()).bound_time(Job(graph=make_mlp()), make_cluster(), Parallelism()) == (0.0, 0.0)
