"""Real steps on this CPU through our sampler, the correction fitted to them, and the forecast that uses it."""

from functools import cache

import numpy as np
import pytest
import torch

from research.corpus.architectures import build_architecture
from traincast import catalog
from traincast.capture import capture
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.forecast import forecast
from traincast.integrate._here import host_memory_bytes
from traincast.profile._resources import Sample, sampling
from traincast.profile._steps import load_workload, training_step
from traincast.resources._profile import profile_samples
from traincast.spec import RESOURCES, Graph, Job, Parallelism, ResourceProfile

NAMES = ("random(seed=13)", "random(seed=3)")
BATCH = 4
MIN_STEPS, MIN_READINGS = 8, 12


@cache
def graph_of(name: str) -> Graph:
    model, inputs = build_architecture(name)
    return capture(model, inputs(BATCH), optimizer="adamw", name=name)


def at_equal_times(read: list[Sample]) -> list[Sample]:
    """What a perfectly regular sampler would have read; counters grow evenly between two readings."""
    times = [each.at_s for each in read]
    wanted = np.linspace(times[0], times[-1], max(1, round((times[-1] - times[0]) / 0.02)) + 1)
    names = ("rss_bytes", "cpu_s", "sent_bytes", "received_bytes")
    columns = {name: np.interp(wanted, times, [getattr(each, name) for each in read]) for name in names}
    return [
        Sample(at_s=float(at_s), **{name: float(values[place]) for name, values in columns.items()})
        for place, at_s in enumerate(wanted)
    ]


def measure(name: str) -> ResourceProfile:
    """As many steps as the sampler needs readings, however busy the machine is."""
    workload = load_workload(name, batch=BATCH, device="cpu")
    run = training_step(workload, torch.optim.AdamW(workload.model.parameters()))
    run()
    num_steps = 0
    with sampling(interval_s=0.01) as samples:
        while num_steps < MIN_STEPS or len(samples.values) < MIN_READINGS:
            run()
            num_steps += 1
    seen = at_equal_times(samples.values)
    return profile_samples(
        [each.at_s for each in seen],
        busy_s=[each.cpu_s for each in seen],
        memory_share=[each.rss_bytes / host_memory_bytes() for each in seen],
        # One rank talks to nobody; what other processes of this machine send is not its own.
        received_bytes=[0.0] * len(seen),
        sent_bytes=[0.0] * len(seen),
        num_steps=num_steps,
    )


@pytest.fixture(scope="module")
def measured() -> dict[str, ResourceProfile]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: measure(name) for name in NAMES}
    finally:
        torch.set_num_threads(before)


def one_core():
    return catalog.cluster("cpu", nodes=1, devices_per_node=1, inter="ethernet-1g")


def ask(name: str) -> ResourceProfile:
    job = Job(graph=graph_of(name))
    answer = forecast(
        job,
        one_core(),
        Parallelism(data=1),
        costs=Pricing(ops=Roofline()),
        draw=True,
    )
    return answer.resources[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_real_run_and_its_forecast_have_the_same_numbers_by_the_same_definitions(
    name: str, measured: dict[str, ResourceProfile]
):
    real, told = measured[name], ask(name)
    assert tuple(real.twelve()) == tuple(told.twelve())
    for profile in (real, told):
        for resource in RESOURCES:
            activity = getattr(profile, resource)
            assert activity.idle_s + activity.burst_s == pytest.approx(profile.step_s)
            assert activity.mean * profile.step_s <= activity.peak * profile.step_s * (1 + 1e-6) or resource == "gpu"
        # What is resident is always there, and one rank has nobody to talk to.
        assert profile.memory.idle_s == pytest.approx(0.0, abs=0.05 * profile.step_s)
        assert (profile.received.burst_s, profile.sent.peak) == (0.0, 0.0)
    # A process that trains on one thread is never busier than one core, but for what one reading of the clock is late.
    assert 0 < real.gpu.mean < 1.5
    assert 0 < real.memory.peak < 1
