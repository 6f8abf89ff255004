from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.fits.interaction.sync import CollectiveRates, Synced, SyncedStep, collective_seconds, fit_sync
from traincast.errors import InvalidInput

RATES = CollectiveRates(
    hop_s=2e-3, call_s=5e-3, bytes_per_s=1e15, cpu_s_per_byte=1e-9, cpu_s_per_tensor=2e-5, link_efficiency=0.8
)


def test_a_ring_pays_hops_the_narrowest_link_and_the_slowest_core() -> None:
    seconds = collective_seconds(RATES, num_ranks=4, num_bytes=1e6, link_bytes_per_s=1e8, speed=0.25)
    # 6 hops, 1.5 MB on the wire at 80 MB/s, and 1.5 ms of CPU time on a quarter of a core.
    assert seconds == pytest.approx(5e-3 + 6 * 2e-3 + 1.5e6 / 0.8e8 + 1.5e-3 / 0.25)


@given(factor=st.floats(1.0, 100.0))
@settings(max_examples=30, deadline=None)
def test_a_wider_link_is_never_slower(factor: float) -> None:
    slow, fast = (
        collective_seconds(RATES, num_ranks=3, num_bytes=2e6, link_bytes_per_s=rate) for rate in (1e7, 1e7 * factor)
    )
    assert fast <= slow


@given(share=st.floats(0.05, 1.0), link=st.floats(1e6, 1e10), exponent=st.floats(1.0, 50.0))
@settings(max_examples=60, deadline=None)
def test_bytes_that_travel_while_cores_wait_take_at_least_the_longer_and_at_most_both_times(
    share: float, link: float, exponent: float
) -> None:
    rates = CollectiveRates(
        hop_s=0.0, bytes_per_s=1e15, cpu_s_per_byte=1e-9, link_efficiency=1.0, overlap_exponent=exponent
    )
    seconds = collective_seconds(rates, num_ranks=2, num_bytes=1e6, link_bytes_per_s=link, speed=share)
    cpu_s, carried_s = 1e-3 / share, max(1e6 / link, 1e-9)
    assert max(cpu_s, carried_s) * (1 - 1e-9) <= seconds <= (cpu_s + carried_s) * (1 + 1e-9)


@pytest.mark.parametrize("exponent", [0.5, float("inf"), float("nan")])
def test_an_overlap_that_cannot_be_is_refused(exponent: float) -> None:
    with pytest.raises(InvalidInput, match="overlap_exponent"):
        CollectiveRates(hop_s=0.0, bytes_per_s=1e9, overlap_exponent=exponent)


TRUTH = Synced(wall_scale=1.1, rates=replace(RATES, overlap_exponent=2.0))


def steps_on(links: tuple[float, ...]) -> list[SyncedStep]:
    """As they would be measured without noise."""
    steps = []
    for compute_s in (1e-3, 4e-3, 2e-2):
        for num_ranks in (1, 2, 3, 4):
            for link in links:
                for num_bytes, num_tensors, speed in ((2e5, 10, 0.25), (3e6, 60, 0.15)):
                    step = SyncedStep(
                        seconds=0.0, compute_s=compute_s, num_ranks=num_ranks, speed=speed, link_bytes_per_s=link,
                        gradient_bytes=num_bytes, num_tensors=num_tensors,
                    )  # fmt: skip
                    steps.append(replace(step, seconds=TRUTH.seconds(step)))
    return steps


def test_the_constants_of_synchronised_steps_are_recovered() -> None:
    found = fit_sync(steps_on((1.25e7, 1.25e8, 1.25e9)))
    assert found.wall_scale == pytest.approx(1.1, rel=1e-3)
    assert found.rates.hop_s == pytest.approx(RATES.hop_s, rel=1e-2)
    assert found.rates.call_s == pytest.approx(RATES.call_s, rel=1e-2)
    assert found.rates.cpu_s_per_byte == pytest.approx(RATES.cpu_s_per_byte, rel=1e-2)
    assert found.rates.cpu_s_per_tensor == pytest.approx(RATES.cpu_s_per_tensor, rel=1e-2)
    assert found.rates.link_efficiency == pytest.approx(0.8, rel=1e-2)


def test_steps_of_one_link_leave_others_near_their_nominal_rate() -> None:
    found = fit_sync([replace(step, speed=0.25) for step in steps_on((1.25e8,)) if step.speed == 0.25])
    assert found.rates.link_efficiency == pytest.approx(1.0, rel=0.35)
    for step in steps_on((1.25e7,)):
        if step.speed == 0.25:
            assert found.seconds(step) == pytest.approx(step.seconds, rel=0.2)


def test_steps_of_single_ranks_leave_the_network_as_it_is_believed() -> None:
    found = fit_sync([step for step in steps_on((1.25e8,)) if step.num_ranks == 1])
    assert found.wall_scale == pytest.approx(1.1, rel=1e-3)
    assert found.rates.num_measurements == 0
    assert found.rates.link_efficiency == pytest.approx(1.0)
    assert found.rates.cpu_s_per_byte == pytest.approx(1e-9)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least three"):
        fit_sync([])
