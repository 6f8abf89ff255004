"""Drift of the machine is told from what experiments cost."""

import datetime
import math

import numpy as np
import pytest

from traincast.profile import _drift as drift
from traincast.profile._drift import Drift, find_drift, observe, steady_levels, steady_seconds
from traincast.spec._measurement import Block, Environment, Experiment, Measurement

BEGAN = datetime.datetime(2026, 11, 16, 10, 0, tzinfo=datetime.UTC)
NUM_EXPERIMENTS, NUM_ROUNDS, VISIT_S = 20, 5, 2.0


def visits(seed: int, *, drift: float, scatter: float, shuffled: bool = True) -> tuple[np.ndarray, ...]:
    """Levels, and of each visit its logarithm, experiment and time, under a drift that lasts about half a minute."""
    rng = np.random.default_rng(seed)
    levels = rng.normal(0, 1, NUM_EXPERIMENTS)
    orders = [rng.permutation(NUM_EXPERIMENTS) if shuffled else np.arange(NUM_EXPERIMENTS) for _ in range(NUM_ROUNDS)]
    owners = np.concatenate(orders)
    times_s = VISIT_S * np.arange(len(owners))
    covariance = np.exp(-np.abs(times_s[:, None] - times_s[None, :]) / 30.0)
    shared = drift * np.linalg.cholesky(covariance + 1e-9 * np.eye(len(owners))) @ rng.normal(0, 1, len(owners))
    return levels, levels[owners] + shared + rng.normal(0, scatter, len(owners)), owners, times_s


def spread_of(found: np.ndarray, levels: np.ndarray) -> float:
    """Of the errors, apart from the one that all have in common: that the machine was slow all the time nobody can see."""
    return float(np.std(found - levels))


def means_of(logs: np.ndarray, owners: np.ndarray) -> np.ndarray:
    return np.array([logs[owners == owner].mean() for owner in range(owners.max() + 1)])


def error_over_that_of_means(seed: int, *, shuffled: bool) -> float:
    levels, logs, owners, times_s = visits(seed, drift=0.15, scatter=0.02, shuffled=shuffled)
    return spread_of(steady_levels(logs, owners, times_s)[0], levels) / spread_of(means_of(logs, owners), levels)


def test_estimates_under_drift_are_closer_than_means() -> None:
    ratios = [error_over_that_of_means(seed, shuffled=True) for seed in range(8)]
    assert np.median(ratios) < 0.65
    assert max(ratios) < 1.1


def test_the_same_order_in_every_round_hides_the_drift() -> None:
    """Why campaigns shuffle: neighbours that are always the same share every moment."""
    assert np.median([error_over_that_of_means(seed, shuffled=False) for seed in range(8)]) > 0.85


def test_without_drift_estimates_are_hardly_other_than_means() -> None:
    for seed in range(4):
        levels, logs, owners, times_s = visits(seed, drift=0.0, scatter=0.05)
        found, _ = steady_levels(logs, owners, times_s)
        assert spread_of(found, levels) < 1.15 * spread_of(means_of(logs, owners), levels)


def test_with_independent_blocks_the_estimate_is_their_mean() -> None:
    _, logs, owners, times_s = visits(1, drift=0.0, scatter=0.01)
    found, _ = steady_levels(logs, owners, times_s, Drift())
    # But for strays, which weigh less; clip none by looking at the middle of the scatter only.
    assert found == pytest.approx(means_of(logs, owners), abs=0.005)


def test_a_drift_of_minutes_is_found_and_its_absence_too() -> None:
    _, logs, owners, times_s = visits(2, drift=0.15, scatter=0.02)
    assert find_drift(logs, owners, times_s).own_share <= 0.5
    _, logs, owners, times_s = visits(2, drift=0.0, scatter=0.05)
    assert find_drift(logs, owners, times_s).own_share >= 0.7


def test_the_stated_error_is_the_error() -> None:
    stated, made = [], []
    for seed in range(12):
        levels, logs, owners, times_s = visits(seed, drift=0.15, scatter=0.03)
        found, errors = steady_levels(logs, owners, times_s)
        stated.append(float(np.sqrt(np.mean(errors**2))))
        made.append(spread_of(found, levels))
    assert np.mean(stated) == pytest.approx(np.mean(made), rel=0.25)


def test_a_block_that_stood_still_moves_its_level_little() -> None:
    levels, logs, owners, times_s = visits(3, drift=0.1, scatter=0.02)
    before, _ = steady_levels(logs, owners, times_s)
    logs[7] += 3.0
    after, _ = steady_levels(logs, owners, times_s)
    assert abs(after[owners[7]] - before[owners[7]]) < 0.15
    assert spread_of(np.delete(after, owners[7]), np.delete(levels, owners[7])) < 0.08


def measurement(name: str, values: dict[int, float]) -> Measurement:
    blocks = tuple(
        Block(started_at=(BEGAN + datetime.timedelta(seconds=at)).isoformat(), wall_s=(seconds,))
        for at, seconds in values.items()
    )
    return Measurement(
        experiment=Experiment(subject="step", name=name), environment=Environment(device="here"), blocks=blocks
    )


def test_experiments_visited_once_keep_their_times() -> None:
    found = steady_seconds([measurement("a", {0: 0.5}), measurement("b", {3: 2.0})])
    assert {key: each.seconds for key, each in found.items()} == pytest.approx({"step a ()": 0.5, "step b ()": 2.0})
    assert all(each.noise is None for each in found.values())


def test_twice_the_seconds_are_twice_the_estimates() -> None:
    table = {"a": {0: 1.0, 20: 1.3, 43: 0.9}, "b": {3: 2.1, 22: 2.7, 40: 1.8}, "c": {6: 0.4, 18: 0.5, 45: 0.37}}
    once = steady_seconds([measurement(name, values) for name, values in table.items()])
    twice = steady_seconds(
        [measurement(name, {at: 2 * seconds for at, seconds in values.items()}) for name, values in table.items()]
    )
    for key, each in once.items():
        assert twice[key].seconds == pytest.approx(2 * each.seconds)
        assert twice[key].noise == pytest.approx(each.noise)


def test_a_slow_minute_is_taken_from_an_experiment_that_was_visited_only_then() -> None:
    """Others, visited then and later, show that the machine took a quarter longer."""
    slow, calm = 1.25, 1.0
    rng = np.random.default_rng(0)
    others = [
        measurement(
            f"other{number}", {2 * number: level * slow, 600 + 2 * int(place): level * calm, 1200 + number: level}
        )
        for number, (level, place) in enumerate(zip(rng.uniform(0.5, 2.0, 12), rng.permutation(12), strict=True))
    ]
    found = steady_seconds([*others, measurement("once", {11: slow})])
    level = math.exp(np.mean([math.log(found[f"step other{number} ()"].seconds) for number in range(12)]))
    truth = math.exp(np.mean([math.log(each.blocks[-1].seconds) for each in others]))
    assert found["step once ()"].seconds / level * truth == pytest.approx(1.0, abs=0.08)


def test_more_experiments_than_are_solved_at_once_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "MOST_AT_ONCE", 20)
    many = [
        measurement(f"net{number}", {number: 1.0 + number, 300 + 7 * number % 50: 1.0 + number}) for number in range(25)
    ]
    found = steady_seconds(many)
    assert {key: each.seconds for key, each in found.items()} == pytest.approx(
        {each.experiment.key: each.blocks[0].seconds for each in many}
    )


def test_blocks_that_do_not_know_when_they_began_are_taken_as_they_are() -> None:
    timed = [measurement("a", {0: 1.0, 20: 1.2}), measurement("b", {4: 2.0, 26: 2.4})]
    blocks = tuple(Block(started_at="", wall_s=(seconds,)) for seconds in (3.0, 3.3))
    lost = Measurement(
        experiment=Experiment(subject="step", name="c"), environment=Environment(device="here"), blocks=blocks
    )
    assert steady_seconds([*timed, lost])["step c ()"].seconds == pytest.approx(math.sqrt(3.0 * 3.3))


def test_cpu_time_counts_for_one_thread_and_wall_time_for_ranks() -> None:
    block = Block(started_at=BEGAN.isoformat(), wall_s=(2.0,), cpu_s=(1.5,))
    for settings, attrs, expected in (
        ({"threads": 1}, {}, 1.5),
        ({"threads": 1}, {"num_ranks": 2}, 2.0),
        ({}, {}, 2.0),
    ):
        each = Measurement(
            experiment=Experiment(subject="step", name="a", attrs=attrs),
            environment=Environment(device="here", settings=settings),
            blocks=(block,),
        )
        assert observe(each, block) == expected


def test_blocks_without_the_wanted_time_do_not_count() -> None:
    both = [measurement("a", {0: 1.0, 9: 1.1}), measurement("b", {4: 2.0})]
    assert steady_seconds(both, seconds_of=lambda _, block: block.cpu_seconds) == {}
