import math

import numpy as np
import pytest

from traincast.resources._learned import Place, Run, Work, expect, fit_rates, learn, ring_bytes

LINK = 1.25e8


def work(size: float) -> Work:
    groups = 11
    return Work(
        flop=(size * 1e6, *([0.0] * (groups - 1))), num_bytes=(size * 1e4, *([0.0] * (groups - 1))),
        calls=(10.0, *([0.0] * (groups - 1))), gradient_bytes=size * 1e4, batch_size=4,
    )  # fmt: skip


def place(num_ranks: int = 2, *, slowest: float = 0.25) -> Place:
    return Place(num_ranks=num_ranks, bytes_per_s=LINK, narrowest_bytes_per_s=LINK, speed=0.25, slowest=slowest)


def run(size: float, where: Place, *, slower: float = 1.0) -> Run:
    """A made-up machine of 1 GFLOP/s that bursts on the wire for twice as long as its bytes need."""
    step_s = slower * size * 1e6 / 1e9 / where.slowest
    wire_s = 2 * ring_bytes(work(size), where) / LINK
    twelve = {
        "gpu_idle_s": 0.0, "gpu_burst_s": step_s, "gpu_peak": 1.2, "memory_idle_s": 0.0, "memory_burst_s": step_s,
        "memory_peak": 0.05,
    }  # fmt: skip
    for name in ("received", "sent"):
        twelve |= {f"{name}_idle_s": step_s - wire_s, f"{name}_burst_s": wire_s, f"{name}_peak": LINK / 4}
    return Run(work=work(size), place=where, step_s=step_s, twelve=twelve)


def test_a_ring_sends_twice_the_gradients_less_one_part() -> None:
    assert ring_bytes(work(100), place(4)) == pytest.approx(2 * 3 / 4 * 1e6)


def test_rates_recover_the_speed_of_a_machine() -> None:
    runs = [run(size, place(1)) for size in (20, 50, 100, 200, 400)]
    rates = fit_rates(runs)
    assert rates.compute_s(work(80), place(1)) == pytest.approx(80e6 / 1e9 / 0.25, rel=0.05)


def test_a_synchronous_step_waits_for_the_slowest_node() -> None:
    rates = fit_rates([run(size, place(1)) for size in (20, 50, 100, 200, 400)])
    equal, unequal = expect(rates, work(100), place()), expect(rates, work(100), place(slowest=0.125))
    assert unequal.step_s == pytest.approx(2 * equal.step_s, rel=0.01)
    assert unequal.shares["gpu"] == pytest.approx(0.5, rel=0.01)


def test_what_was_seen_is_given_back_and_idle_and_burst_fill_the_step() -> None:
    runs = [run(size, place(ranks)) for size in np.geomspace(20, 2000, 30) for ranks in (2, 3, 4)]
    model = learn(runs)
    step_s, twelve = model.predict(work(300), place(3))
    assert step_s == pytest.approx(300e6 / 1e9 / 0.25, rel=0.1)
    for name in ("gpu", "memory", "received", "sent"):
        assert twelve[f"{name}_idle_s"] + twelve[f"{name}_burst_s"] == pytest.approx(step_s)


def test_one_rank_has_no_network_activity() -> None:
    model = learn([run(size, place(2)) for size in (20, 50, 100, 200, 400)])
    _, twelve = model.predict(work(80), place(1))
    assert twelve["sent_burst_s"] == twelve["sent_peak"] == 0.0


def test_few_runs_of_a_new_setting_move_its_forecasts_and_hardly_those_of_others() -> None:
    old = [run(size, place(2)) for size in np.geomspace(20, 2000, 20)]
    new = [run(size, place(4), slower=1.5) for size in np.geomspace(20, 2000, 20)]
    before, after = learn(old), learn([*old, *new], rates=fit_rates(old))
    asked = work(333)
    moved = math.log(after.predict(asked, place(4))[0] / before.predict(asked, place(4))[0])
    stayed = math.log(after.predict(asked, place(2))[0] / before.predict(asked, place(2))[0])
    assert moved > 0.15
    assert abs(stayed) < 0.6 * moved


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(Exception, match="no run"):
        learn([])
