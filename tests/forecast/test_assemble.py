"""Step, job, price, energy and CO2 of one forecast always belong together, whatever the job is."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import catalog
from traincast.certainty._labels import label_run
from traincast.forecast import Engine
from traincast.learn import learn
from traincast.plan import decide
from traincast.simulate import list_busy
from traincast.spec import Calibration, Cluster, Forecast, Job, MeasuredRun, Parallelism, Question, WorkloadOptions
from traincast.spec._hardware import Region

KWH_JOULES = 3.6e6
RL = {"regime": "grpo", "group_size": 8, "prompt_tokens": 256, "response_tokens": 256, "response_max": 1024}
REGIMES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ramp-up": {"rampup_batch": 16, "rampup_increment": 16, "rampup_samples": 4e3},
    "grpo": RL,
    "grpo with devices that only generate": {**RL, "rollout_gpus": 8, "rollout_lag": 1},
}


@cache
def pose(regime: str) -> tuple[Job, Cluster, Parallelism]:
    model, batch = ("qwen2.5-0.5b", 8) if "grpo" in regime else ("gpt2", 4)
    found = decide(
        Question(
            source=model,
            workload=WorkloadOptions(precision="bf16", batch=batch),
            cluster={"device": "a100-80g", "nodes": 1, "devices_per_node": 8},
            parallelism={"data": 8, "recompute": "none"},
            job={"global_batch": 64, **REGIMES[regime]},
        )
    )
    return found.job, found.cluster, found.parallelism


@cache
def teach() -> Calibration | None:
    """Of runs that took a third longer than we think."""
    engine, (_, cluster, plan) = Engine(), pose("plain")
    runs = []
    for batch in (2, 4, 8, 16):
        job = Job(graph=catalog.workload("gpt2", batch=batch))
        step_s = 1.33 * engine.forecast(job, cluster, plan).step.seconds
        labels = label_run(job, cluster, plan)
        runs.append(
            MeasuredRun(labels=labels, job=job, cluster=cluster, parallelism=plan, name=str(batch), step_s=step_s)
        )
    return learn(runs, name="mine")


def check(found: Forecast, cluster: Cluster) -> None:
    total, usd, energy, co2 = found.job.total, found.usd, found.energy_range, found.kg_co2
    assert None not in (usd, energy, co2)
    assert cluster.region is not None
    paid = found.num_devices / cluster.num_devices
    parts = found.job
    assert total.seconds == pytest.approx(
        parts.startup_s + parts.training_s + parts.evaluation_s + parts.checkpoint_s + parts.loading_stall_s
        + parts.restarts_s + parts.compile_s + parts.logging_s
    )  # fmt: skip
    for name, seconds in (("value", total.seconds), ("low", total.low_s), ("high", total.high_s)):
        assert getattr(usd, name) == pytest.approx(cluster.usd_per_hour * seconds / 3600 * paid)
        kwh = getattr(energy, name) / KWH_JOULES
        assert getattr(co2, name) == pytest.approx(kwh * cluster.region.grams_co2_per_kwh / 1000)
    assert energy.value == found.energy_joules
    assert found.samples_per_s == pytest.approx(found.global_batch / found.step.seconds)
    assert total.low_s <= total.seconds <= total.high_s


@settings(max_examples=30, deadline=None)
@given(
    regime=st.sampled_from(sorted(REGIMES)),
    calibrated=st.booleans(),
    steps=st.integers(1, 10_000),
    grams=st.floats(1, 900),
    usd=st.floats(0.1, 200),
    evaluates=st.booleans(),
)
def test_price_energy_and_co2_follow_from_the_time_of_the_job_in_every_regime(
    regime: str, calibrated: bool, steps: int, grams: float, usd: float, evaluates: bool
) -> None:
    job, cluster, plan = pose(regime)
    groups = tuple(replace(group, usd_per_hour=usd) for group in cluster.groups)
    cluster = replace(cluster, groups=groups, region=Region(name="here", grams_co2_per_kwh=grams))
    job = replace(job, steps=steps, samples=None, evaluation_every_steps=100 if evaluates else None, compiled=evaluates)
    found = Engine(calibration=teach() if calibrated else None).forecast(job, cluster, plan)
    check(found, cluster)


def test_a_growing_batch_emits_what_its_energy_stands_for() -> None:
    job, cluster, plan = pose("ramp-up")
    cluster = replace(cluster, region=Region(name="here", grams_co2_per_kwh=400.0))
    job = replace(job, samples=1e5, steps=None)
    grown = Engine().forecast(job, cluster, plan)
    whole = Engine().forecast(
        replace(job, rampup_batch=None, rampup_samples=None, rampup_increment=None), cluster, plan
    )
    assert None not in (grown.kg_co2, whole.kg_co2)
    assert grown.kg_co2.value / whole.kg_co2.value == pytest.approx(grown.energy_joules / whole.energy_joules)
    assert grown.kg_co2.value > whole.kg_co2.value


@settings(max_examples=10, deadline=None)
@given(
    plan=st.sampled_from(
        [
            Parallelism(data=8),
            Parallelism(data=8, zero=3),
            Parallelism(data=4, tensor=2, micro_batches=3),
            Parallelism(data=4, pipeline=2, micro_batches=4),
            Parallelism(data=8, micro_batches=2, overlap=False),
        ]
    )
)
def test_what_keeps_a_rank_busy_is_the_same_drawn_or_added_up(plan: Parallelism) -> None:
    job, cluster, _ = pose("plain")
    engine = Engine()
    program = engine.lower(job, cluster, plan)
    estimates = engine.cost(program, job, cluster)
    drawn: dict[str, float] = {}
    for span in engine.draw(program, estimates, job).spans:
        if span.rank == 0:
            drawn[span.category] = drawn.get(span.category, 0.0) + span.end_s - span.start_s
    added: dict[str, float] = {}
    for one in list_busy(program, estimates):
        added[one.category] = added.get(one.category, 0.0) + one.seconds
    # A collective that shares its link with another is drawn as long as it takes; added up it counts as if it were alone.
    sent, alone = drawn.pop("communication"), added.pop("communication")
    assert added == pytest.approx(drawn, rel=1e-6)
    assert 0.8 * sent <= alone <= sent * (1 + 1e-6)
