"""The search is never worse than trying every plan, and says what ruled plans out."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_device, make_mlp
from plan.models import pose_transformer
from traincast import Job, Parallelism, catalog
from traincast.certainty._labels import label_run
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.errors import IllegalPlan, InvalidInput
from traincast.forecast import build_job, forecast, load_source
from traincast.learn import learn
from traincast.plan import SEARCHED, Limits, Space, plan, search_plans
from traincast.plan._advice import advise
from traincast.plan._ask import decide
from traincast.plan._fit import find_fit
from traincast.plan._nouns import job_quantile_s, meet_probability
from traincast.plan._search import search
from traincast.plan._space import Shape, list_candidates
from traincast.plan._vary import space_of
from traincast.resolve import ask_in_words, choose_stack, complete_plan, fill_in
from traincast.spec import Calibration, Environment, MachineRates, MeasuredRun, Question, Rates, WorkloadOptions

CLUSTERS = (catalog.cluster("aws-p4d.24xlarge", nodes=1), catalog.cluster("aws-p3.16xlarge", nodes=1))


def _by_brute_force(pose, clusters, space, limits):
    """Forecast every plan; the figures of those that keep the limits."""
    shape = Shape.of(pose(1, Parallelism()).graph)
    points = []
    for cluster in clusters:
        for candidate in list_candidates(space, cluster, shape):
            try:
                answer = forecast(pose(candidate.batch, candidate.parallelism), cluster, candidate.parallelism)
            except IllegalPlan:
                continue
            late = limits.deadline_s and meet_probability(answer.job, limits.deadline_s) < limits.confidence
            if answer.memory.fit_probability >= limits.confidence and not late:
                points.append((answer.job.total.seconds, answer.usd.value, answer.energy_joules))
    return points


def _front(points):
    return {
        point
        for point in points
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) and other != point for other in points)
    }


@given(
    layers=st.integers(2, 6),
    hidden=st.sampled_from([128, 1024]),
    zero=st.sets(st.integers(0, 3), min_size=1, max_size=2),
    order=st.sampled_from(["1f1b", "gpipe", "interleaved", "zero-bubble"]),
    recompute=st.sampled_from(["none", "full"]),
    objective=st.sampled_from(["time", "money", "energy"]),
    late=st.booleans(),
)
@settings(max_examples=6, deadline=None)
def test_the_search_is_never_worse_than_trying_every_plan(
    layers: int, hidden: int, zero: set[int], order: str, recompute: str, objective: str, late: bool
) -> None:
    pose = pose_transformer(layers=layers, hidden=hidden)
    space = Space(
        global_batch=16, batches=(1, 2), tensor=(1, 2), context=(1,), pipeline=(1, 2), zero=tuple(zero),
        orders=(order,), recompute=(recompute,), sequence_parallel=(False,),
    )  # fmt: skip
    limits = Limits(deadline_s=75.0 if late else None)
    points = _by_brute_force(pose, CLUSTERS, space, limits)
    found = search(pose, CLUSTERS, space, limits=limits, objective=objective, top=3)
    if not points:
        assert not found.plans
        return
    axis = ["time", "money", "energy"].index(objective)
    best = found.plans[0].forecast
    reached = (best.job.total.seconds, best.usd.value, best.energy_joules)[axis]
    assert reached <= min(point[axis] for point in points) * (1 + 1e-6)
    front = [(p.forecast.job.total.seconds, p.forecast.usd.value, p.forecast.energy_joules) for p in found.front]
    for point in _front(points):
        assert any(all(a <= b * (1 + 1e-5) for a, b in zip(mine, point, strict=True)) for mine in front)


def test_bounds_and_exhaustion_give_the_same_plans() -> None:
    pose = pose_transformer(layers=8)
    degrees = (1, 2, 4, 8)
    space = Space(global_batch=32, context=(1,), recompute=("none",), batches=(1, 2), tensor=degrees, pipeline=degrees)
    quick = search(pose, CLUSTERS[:1], space, top=5)
    whole = search(pose, CLUSTERS[:1], space, top=5, exhaustive=True)
    assert [p.forecast.job.total for p in quick.plans] == [p.forecast.job.total for p in whole.plans]
    assert len(quick.front) == len(whole.front)
    assert whole.num_pruned == 0
    assert quick.num_pruned > 0
    for found in (quick, whole):
        excluded = sum(found.excluded.values())
        assert found.num_plans == found.num_evaluated + found.num_pruned + excluded


def test_layers_of_a_small_model_are_cut_only_where_somebody_asks_for_it() -> None:
    pose, space = pose_transformer(layers=8), Space(global_batch=32, recompute=("none",), batches=(1,))
    found = search(pose, CLUSTERS[:1], space)
    assert {(plan.parallelism.tensor, plan.parallelism.pipeline) for plan in found.plans} == {(1, 1)}
    assert any("--tp" in note for note in found.notes)


@pytest.mark.parametrize("objective", ["time", "energy"])
def test_plans_that_run_layers_again_are_not_lost_to_their_bounds(objective: str) -> None:
    pose = pose_transformer(layers=6, hidden=2048, steps=1000)
    space = Space(global_batch=64, context=(1,), tensor=(1, 2), pipeline=(1, 4), batches=(4, 16), zero=(1,))
    quick = search(pose, CLUSTERS[1:], space, objective=objective, top=4)
    whole = search(pose, CLUSTERS[1:], space, objective=objective, top=4, exhaustive=True)
    assert [p.candidate for p in quick.plans] == [p.candidate for p in whole.plans]
    assert {p.parallelism.recompute for p in whole.plans} != {"none"}
    assert quick.num_evaluated < whole.num_evaluated


def test_every_plan_carries_the_forecast_that_the_forecast_gives() -> None:
    pose = pose_transformer()
    for found in search(pose, CLUSTERS[:1], Space(global_batch=8, batches=(1,), context=(1,)), top=3).plans:
        again = forecast(pose(found.batch, found.parallelism), found.cluster, found.parallelism)
        assert again == found.forecast


def test_an_impossible_deadline_says_how_many_it_excluded_and_what_came_nearest() -> None:
    space = Space(global_batch=8, batches=(1,), context=(1,), pipeline=(1,))
    found = search(pose_transformer(), CLUSTERS[:1], space, limits=Limits(deadline_s=61.0))
    assert found.plans == ()
    assert found.excluded["deadline"] == found.num_plans
    assert found.nearest is not None
    assert found.nearest.limit == "deadline"
    assert "meets the deadline" in found.nearest.says


def test_a_model_that_fits_nowhere_is_excluded_by_memory_before_it_is_timed() -> None:
    request = Question(source="llama-3-70b", workload=WorkloadOptions(precision="bf16", seq=4096), job={"steps": 10})
    space = Space(global_batch=8, batches=(1,), tensor=(8,), context=(1,), recompute=("full",))
    found = search_plans(request, catalog.cluster("aws-p3.16xlarge", nodes=1), space=space)
    assert found.plans == ()
    assert set(found.excluded) == {"memory"}
    assert found.nearest is not None
    assert "per device" in found.nearest.says


def test_a_budget_without_a_price_is_a_reason_of_its_own() -> None:
    cluster = catalog.cluster(device="a100-80g", nodes=1, devices_per_node=2, price=None)
    space = Space(global_batch=4, batches=(1,), context=(1,), pipeline=(1,), tensor=(1,), recompute=("none",))
    found = search(pose_transformer(), [cluster], space, limits=Limits(budget_usd=5.0))
    assert set(found.excluded) == {"price not known"}


@given(deadlines=st.tuples(st.floats(61, 1e4), st.floats(61, 1e4)))
@settings(max_examples=20, deadline=None)
def test_a_later_deadline_is_never_less_likely_to_be_met(deadlines: tuple[float, float]) -> None:
    answer = forecast(pose_transformer()(1, Parallelism()), CLUSTERS[0])
    early, late = (meet_probability(answer.job, deadline) for deadline in sorted(deadlines))
    assert 0 <= early <= late <= 1


@pytest.mark.parametrize("quantile", [0.05, 0.5, 0.95])
def test_a_time_limit_at_a_quantile_is_met_with_that_probability(quantile: float) -> None:
    job = forecast(pose_transformer(steps=10_000)(1, Parallelism()), CLUSTERS[0]).job
    assert meet_probability(job, job_quantile_s(job, quantile)) == pytest.approx(quantile, abs=1e-6)
    assert job_quantile_s(job, 0.95) == pytest.approx(job.total.high_s, rel=1e-3)


def test_a_job_with_a_fixed_batch_is_planned_at_that_batch() -> None:
    job: Job = pose_transformer()(2, Parallelism())
    found = plan(job, CLUSTERS[0], space=Space(global_batch=16, context=(1,), pipeline=(1,)), top=2)
    assert [one.batch for one in found] == [2, 2]
    assert all(one.forecast.global_batch == 16 for one in found)


def test_wrong_questions_are_refused_in_a_sentence() -> None:
    pose, space = pose_transformer(), Space(global_batch=8)
    with pytest.raises(InvalidInput, match="allowed: time, money, energy"):
        search(pose, CLUSTERS, space, objective="speed")
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        Limits(confidence=1.0)
    with pytest.raises(InvalidInput, match="at least one sample"):
        Space(global_batch=0)
    with pytest.raises(InvalidInput, match="no cluster"):
        plan(replace(pose(1, Parallelism())), [])
    with pytest.raises(InvalidInput, match="allowed: 0, 1, 2, 3"):
        replace(space, zero=(7,))


JOB_FILE = """
source = "gpt2"
[workload]
batch = 2
precision = "bf16"
[parallelism]
data = 4
tensor = 2
micro_batches = 2
context = 1
pipeline = 1
zero = 1
overlap = false
offload_optimizer = true
bucket_bytes = 1e6
shard = 2
[job]
stack = "pytorch"
"""


def test_a_job_file_fixes_what_its_plan_names(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB_FILE)
    found = search_plans(Question(source=str(file)), CLUSTERS[0])
    assert found.plans
    for one in (*found.plans, *found.front):
        plan = one.parallelism
        assert one.forecast.global_batch == 16
        assert (plan.tensor, plan.zero, plan.overlap, plan.offload_optimizer) == (2, 1, False, True)
        assert (plan.bucket_bytes, plan.shard) == (1e6, 2)
        job = build_job(
            {}, load_source("gpt2", WorkloadOptions(batch=one.batch, precision="bf16"), recompute=plan.recompute)
        )
        assert forecast(job, one.cluster, plan) == one.forecast
    slower = found.plans[0].forecast.step.seconds
    plain = search_plans(Question(source=str(file)), CLUSTERS[0], space=Space(global_batch=16, base=Parallelism()))
    assert plain.plans[0].forecast.step.seconds < slower


def test_flags_win_over_the_plan_of_a_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB_FILE)
    space = space_of(fill_in(Question(source=str(file))), global_batch=32, tensor=(1, 4), zero=None)
    assert (space.global_batch, space.tensor, space.zero) == (32, (1, 4), (1,))
    assert space.base is not None
    assert not space.base.overlap


def test_costs_of_ones_own_reach_every_plan() -> None:
    own = Pricing(ops=Roofline())
    pose = pose_transformer()
    space = Space(global_batch=8, batches=(1,), context=(1,), pipeline=(1,), recompute=("none",))
    for one in search(pose, CLUSTERS[:1], space, top=3, costs=own).plans:
        again = forecast(pose(one.batch, one.parallelism), one.cluster, one.parallelism, costs=own)
        assert again == one.forecast
        assert again.step != forecast(pose(one.batch, Parallelism()), one.cluster, one.parallelism).step


def test_what_runs_have_taught_reaches_plans_and_fits() -> None:
    job, cluster = Job(graph=make_mlp(), steps=10), make_cluster(devices_per_node=1, device=make_device(name="core"))
    plain = forecast(job, cluster)
    run = MeasuredRun(
        labels=label_run(job, cluster, Parallelism()), job=job, cluster=cluster, parallelism=Parallelism(),
        step_s=2 * plain.step.seconds,
    )  # fmt: skip
    calibration = learn([run, run], name="core")
    (best,) = plan(job, cluster, space=Space(global_batch=32, recompute=("none",)), calibration=calibration)
    assert best.forecast == forecast(job, cluster, best.parallelism, calibration=calibration)
    assert best.forecast.step.seconds == pytest.approx(2 * plain.step.seconds, rel=0.05)
    fit = find_fit(
        lambda batch, seq, plan: Job(graph=make_mlp(batch=batch)), cluster, Parallelism(), batch=32, seq=None,
        confidence=0.9, calibration=calibration,
    )  # fmt: skip
    assert fit.now.step == best.forecast.step


def test_a_calibration_reaches_plans_fits_and_advice() -> None:
    rates = Rates(flop_per_s=1e10, bytes_per_s=5e9, overhead_s=5e-6, log_spread=0.3, num_measurements=1)
    here = Environment(device="core", settings={"threads": 1})
    machine = MachineRates(name="core", environment=here, rates={"matmul": rates}, fallback=rates)
    calibration = Calibration(name="core", machine=machine)
    job = Job(graph=make_mlp(), steps=10)
    cluster = make_cluster(devices_per_node=1, device=make_device(name=calibration.name))
    space = Space(global_batch=32, recompute=("none",))
    (best,) = plan(job, cluster, space=space, calibration=calibration)
    assert best.forecast == forecast(job, cluster, best.parallelism, calibration=calibration)
    fit = find_fit(
        lambda batch, seq, plan: Job(graph=make_mlp(batch=batch)), cluster, Parallelism(), batch=32, seq=None,
        confidence=0.9, calibration=calibration,
    )  # fmt: skip
    assert fit.now.step == forecast(replace(job, steps=None), cluster, calibration=calibration).step
    request = Question(source="resnet18", workload=WorkloadOptions(batch=4))
    advice = advise(request, cluster, Parallelism(), calibration=calibration)
    assert advice.plan.forecast.step != advise(request, cluster, Parallelism()).plan.forecast.step
    with pytest.raises(InvalidInput, match="give one of them"):
        plan(job, cluster, space=space, calibration=calibration, costs=Pricing())


@pytest.mark.parametrize(
    "stack", ["megatron-lm", "megatron-core", "megatron-deepspeed", "deepspeed", "torchtitan", "nanotron", None]
)
def test_a_plan_that_is_found_is_answered_as_the_same_plan_asked_for(stack: str | None) -> None:
    job = {} if stack is None else {"stack": stack}
    asked = Question(source="gpt2", workload=WorkloadOptions(precision="bf16"), job=job)
    space = replace(space_of(asked, global_batch=32), context=(1,), tensor=(1, 2), pipeline=(1, 2), batches=(2, 4))
    found = search_plans(asked, CLUSTERS[0], space=space, top=4)
    assert found.plans
    for one in found.plans:
        named = {item.name: getattr(one.parallelism, item.name) for item in fields(Parallelism)}
        # Recomputation is named in the stack's own words; these mean the same in both.
        same = replace(asked, workload=replace(asked.workload, batch=one.batch), parallelism=named)
        again = decide(replace(same, cluster={"node": "aws-p4d.24xlarge", "nodes": 1}))
        assert again.parallelism == one.parallelism
        assert forecast(again.job, one.cluster, one.parallelism) == one.forecast
    for one in list_candidates(space, CLUSTERS[0], Shape.of(load_source("gpt2", WorkloadOptions(batch=2)))):
        said = {name: getattr(one.parallelism, name) for name in SEARCHED}
        completed = complete_plan(said, num_devices=8, stack=choose_stack(replace(asked, parallelism=said)))
        if said["recompute"] == completed.recompute:
            assert completed == one.parallelism


def test_a_search_whose_time_is_out_gives_the_best_so_far() -> None:
    question = ask_in_words("gpt2-xl", "8xa100-80g", global_batch=64)
    cluster = decide(question).cluster
    found = search_plans(question, cluster, limits=Limits(search_s=1e-3))
    assert found.stopped == "out of time"
    assert len(found.plans) >= 1


def test_the_first_plan_is_dominated_by_none_of_its_table() -> None:
    question = ask_in_words("gpt2", "8xa100-80g", global_batch=64, steps=1000)
    cheap, dear = (catalog.cluster(device="a100-80g", devices_per_node=8, price=usd) for usd in (10.0, 40.0))
    found = search_plans(question, (replace(dear, name="dear"), replace(cheap, name="cheap")))
    assert found.plans[0].cluster.name == "cheap"
