"""A small hand-made forecast that the report tests print, trace and draw."""

import pytest

from traincast.spec import Estimate, Forecast, JobTime, MemoryProfile, Range, Span, Timeline


def make_forecast(*, peak_bytes: float = 30e9) -> Forecast:
    spans = (
        Span(name="aten.mm", start_s=0.0, end_s=0.06, stream="compute", category="compute", layer="block.0.mlp"),
        Span(name="aten.add", start_s=0.06, end_s=0.08, stream="compute", category="memory", layer="block.0"),
        Span(name="aten.mm", start_s=0.08, end_s=0.09, stream="compute", category="compute", layer="head"),
        Span(name="all_reduce[data]", start_s=0.07, end_s=0.1, stream="communication", category="communication"),
    )
    timeline = Timeline(
        duration_s=0.1,
        spans=spans,
        shares={"compute": 0.7, "memory": 0.2, "communication": 0.1, "host": 0.0, "bubble": 0.0},
        exposed_by_axis={"data": 0.01},
        busy_s=0.09,
        communication_s=0.03,
    )
    step = Estimate(seconds=0.1, low_s=0.08, high_s=0.13)
    return Forecast(
        workload="tiny-gpt",
        cluster="2 x 8 a100",
        device="a100",
        num_devices=16,
        global_batch=128,
        step=step,
        samples_per_s=1280.0,
        timeline=timeline,
        memory=MemoryProfile(
            peak_bytes=peak_bytes,
            by_role={"parameter": peak_bytes / 4, "activation": peak_bytes * 3 / 4},
            peak_at="backward block.0",
            capacity_bytes=40e9,
        ),
        job=JobTime(total=step.scaled(1000), num_steps=1000, startup_s=60, training_s=100),
        usd=Range(value=12.0, low=10.0, high=15.0),
        energy_joules=3.6e6,
        utilization=0.41,
        grounds={"measured": 0.5, "transfer": 0.25, "bound": 0.25},
        unknown_ops=("aten.mystery",),
        notes=("the network is assumed to be idle",),
    )


@pytest.fixture
def forecast() -> Forecast:
    return make_forecast()


@pytest.fixture
def oversized_forecast() -> Forecast:
    return make_forecast(peak_bytes=90e9)
