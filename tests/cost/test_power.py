"""What devices draw and what a power limit does to a step."""

from dataclasses import replace

import pytest

from traincast import catalog
from traincast.cost._power import needs_of, power, work_of
from traincast.forecast import Engine, forecast
from traincast.spec import Job, Parallelism

ONE = catalog.cluster(device="a40", nodes=1, devices_per_node=1)
JOB = Job(graph=catalog.workload("resnet50", batch=32), steps=1000)


def _limited(watts: float):
    return replace(ONE, groups=(replace(ONE.groups[0], power_limit_watts=watts),))


def test_a_lower_limit_is_slower_and_saves_energy_until_the_static_draw_eats_it() -> None:
    answers = [Engine().forecast(JOB, _limited(watts), Parallelism()) for watts in (300, 200, 150, 110)]
    steps = [one.step.seconds for one in answers]
    assert steps == sorted(steps)
    assert steps[0] == Engine().forecast(JOB, ONE, Parallelism()).step.seconds
    joules = [one.energy_joules for one in answers]
    assert joules[1] < joules[0]


def test_a_device_never_draws_more_than_its_limit_or_less_than_nothing() -> None:
    for busy in (0.0, 0.5, 1.0):
        for limit in (None, 1.0, 0.5, 0.3):
            assert 0 < power().draw(busy, limit) <= (1.0 if limit is None else limit)


def test_more_arithmetic_or_more_traffic_draws_more_up_to_the_rated_power() -> None:
    device, work = catalog.device("a40"), work_of(JOB.graph)
    shares = [
        power().draw_at_work(device, needs_of(device, work, passes_per_s=per_s))  # type: ignore[arg-type]
        for per_s in (0.0, 1.0, 5.0, 1000.0)
    ]
    assert shares[0] == power().idle
    assert shares == sorted(shares)
    assert shares[1] < shares[2]
    assert shares[3] == 1.0


def test_the_energy_of_a_rank_is_its_part_of_that_of_the_job() -> None:
    found = forecast(JOB, ONE, Parallelism(), draw=True)
    waiting_s = found.job.total.seconds - found.job.training_s
    spent = found.energy_joules - power().idle * 300 * waiting_s
    assert found.resources[0].energy_joules * found.job.num_steps == pytest.approx(spent, rel=1e-6)


def test_energy_has_the_interval_that_left_out_gpus_gave() -> None:
    found = Engine().forecast(JOB, ONE, Parallelism())
    assert found.energy_range.low < found.energy_joules < found.energy_range.high


@pytest.mark.parametrize("watts", [0, -5])
def test_a_limit_is_above_nothing(watts: float) -> None:
    with pytest.raises(Exception, match="power_limit_watts"):
        _limited(watts)
