"""Numbers of a simulated cluster that can be written down by hand."""

import pytest

from schedule.builders import fleet, table
from traincast.schedule import _study as study
from traincast.schedule._hazards import Overheads
from traincast.schedule._metrics import measure_schedule


def measure(*rows: tuple[float, float, float], nodes: int = 1, gpus: int = 4):  # type: ignore[no-untyped-def]
    setting = study.Setting(fleet=fleet(nodes, gpus))
    return measure_schedule(study.run_policy("fifo", table(*rows), setting))


def test_a_makespan_begins_with_the_first_submission() -> None:
    found = measure((1000.0, 4, 60.0), (1010.0, 4, 60.0))
    assert found.makespan_s == pytest.approx(120.0)
    assert found.utilization == pytest.approx(1.0)


def test_utilization_is_over_all_gpus_and_the_whole_time() -> None:
    found = measure((0.0, 1, 100.0), (0.0, 1, 50.0), gpus=4)
    assert found.utilization == pytest.approx((100 + 50) / (4 * 100))


def test_times_are_counted_from_submission() -> None:
    found = measure((100.0, 4, 60.0), (110.0, 4, 30.0))
    # The second waits until 160 and ends at 190.
    assert found.mean_jct_s == pytest.approx((60 + 80) / 2)
    assert found.max_jct_s == pytest.approx(80.0)


def test_checkpoints_cost_their_share_of_the_time() -> None:
    """A checkpoint of 30 s after every 270 s of work: nine tenths of the time are work."""
    overheads = Overheads(checkpoint_every_s=270.0, checkpoint_s=30.0)
    setting = study.Setting(fleet=fleet(1, 4), overheads=overheads)
    found = measure_schedule(study.run_policy("fifo", table((0.0, 4, 900.0)), setting))
    assert found.makespan_s == pytest.approx(1000.0, rel=0.04)


def test_a_job_is_never_faster_than_alone() -> None:
    """Its slowdown is at least 1, also where it is shorter than what counts as short."""
    found = measure((0.0, 4, 1.0), (0.0, 4, 2000.0))
    assert 1.0 <= found.mean_slowdown < 1.001


def test_more_gpus_pay_for_each_other() -> None:
    from traincast.schedule._speeds import ScalingLaw

    law = ScalingLaw(num_gpus=[1.0], overhead=0.1)
    assert law.rate(0, 0, 8.0, 0) == pytest.approx(8 / (1 + 0.1 * 7))


def test_a_forecast_reaches_as_far_as_nine_of_ten_errors() -> None:
    import math

    from traincast.schedule._speeds import Believed

    beliefs = Believed(estimates_s=(100.0,), spreads=(0.2,)).start(table((0.0, 1.0, 50.0)))
    interval_s = beliefs.interval_s(0)
    assert interval_s is not None
    assert interval_s[1] == pytest.approx(100 * math.exp(1.645 * 0.2))
