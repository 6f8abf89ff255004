"""What the labels allow, on labels whose noise we drew ourselves; and searches whose best setting we know."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from research.corpus import CorpusStep
from research.papers.beside import merge_groups
from research.papers.noise import Noise, measure_noise, perfect_error, perfect_rmse_s
from research.papers.search import CHECKED, CHERRYPICK, FORECAST, LARGEST, compare_searches
from traincast.errors import InvalidInput
from traincast.profile._settings import SETTINGS
from traincast.spec._measurement import Block

BEGAN = datetime(2026, 11, 16, tzinfo=UTC)


def make_steps(*, drift: float, scatter: float, count: int = 1200) -> tuple[list[CorpusStep], list[float]]:
    """Steps of one second, a few seconds apart, on a machine whose pace wanders; and forecasts of a quiet machine."""
    random = np.random.default_rng(0)
    steps, pace = [], 0.0
    for place in range(count):
        pace = 0.9 * pace + drift * np.sqrt(1 - 0.9**2) * random.normal()
        wall_s = tuple(np.exp(pace + scatter * random.normal(size=16)).tolist())
        started = (BEGAN + timedelta(seconds=2 * place)).isoformat()
        block = Block(started_at=started, wall_s=wall_s)
        steps.append(CorpusStep(
            name=f"net{place}(width=1)", batch=4, setting=SETTINGS[place % 2], seconds=block.seconds, cpu_seconds=None,
            noise=None, resources={}, blocks=(block,),
        ))  # fmt: skip
    return steps, [1.0] * count


def test_scatter_and_drift_are_told_apart() -> None:
    steps, forecasts = make_steps(drift=0.08, scatter=0.1)
    noise = measure_noise(steps, forecasts)
    assert noise is not None
    # The median of 16 normal values scatters by 1.25 / 4 of one of them.
    assert noise.within == pytest.approx(0.1 * 1.25 / 4, rel=0.2)
    assert noise.drift == pytest.approx(0.08 * np.sqrt(0.9), rel=0.25)
    truth = np.abs(1 / np.array([step.seconds for step in steps]) - 1).mean()
    assert perfect_error(steps, noise) == pytest.approx(truth, rel=0.25)


def test_a_quiet_machine_has_no_drift() -> None:
    noise = measure_noise(*make_steps(drift=0.0, scatter=0.1))
    assert noise is not None
    assert noise.drift < 0.015


def test_errors_of_a_model_that_neighbours_do_not_share_are_no_drift() -> None:
    steps, forecasts = make_steps(drift=0.0, scatter=0.02)
    random = np.random.default_rng(1)
    wrong = [guess * float(np.exp(0.3 * random.normal())) for guess in forecasts]
    noise = measure_noise(steps, wrong)
    assert noise is not None
    assert noise.drift < 0.1


def test_steps_without_their_repeats_say_nothing_of_noise() -> None:
    bare = CorpusStep(name="a", batch=4, setting=SETTINGS[0], seconds=1.0, cpu_seconds=None, noise=None, resources={})
    assert measure_noise([bare], [1.0]) is None
    with pytest.raises(InvalidInput, match="give one for each"):
        measure_noise([bare], [])


def make_step(*, num_blocks: int, noise: float | None, seconds: float = 1.0) -> CorpusStep:
    blocks = tuple(
        Block(started_at=(BEGAN + timedelta(hours=hour)).isoformat(), wall_s=(seconds,) * 4)
        for hour in range(num_blocks)
    )
    return CorpusStep(
        name="net(width=1)", batch=4, setting=SETTINGS[0], seconds=seconds, cpu_seconds=None, noise=noise, resources={},
        blocks=blocks,
    )  # fmt: skip


ONE_BLOCK = Noise(num_blocks=1, within=0.03, drift=0.04, num_pairs=1, again=None, num_again=0)


def test_the_floor_of_normal_errors_is_four_fifths_of_their_deviation() -> None:
    once = [make_step(num_blocks=1, noise=0.09, seconds=seconds) for seconds in (3.0, 4.0)]
    assert ONE_BLOCK.sigma == pytest.approx(0.05)
    assert perfect_error(once, ONE_BLOCK) == pytest.approx(0.05 * np.sqrt(2 / np.pi), rel=0.02)
    assert perfect_rmse_s(once, ONE_BLOCK) == pytest.approx(0.05 * np.sqrt(12.5))


def test_a_step_visited_again_has_the_error_of_its_own_label() -> None:
    often = [make_step(num_blocks=5, noise=0.02)]
    assert perfect_error(often, ONE_BLOCK) == pytest.approx(0.02 * np.sqrt(2 / np.pi), rel=0.02)
    assert perfect_rmse_s(often, ONE_BLOCK) == pytest.approx(0.02)
    assert perfect_error([], ONE_BLOCK) is None
    found = measure_noise(often * 3, [1.0] * 3)
    assert found is not None
    assert (found.often, found.num_often) == (0.02, 3)


def test_groups_stay_whole_when_they_are_dealt_to_folds() -> None:
    groups = [f"net{place % 30}" for place in range(120)]
    folds = merge_groups(groups, num_folds=4, seed=0)
    assert len(set(folds)) == 4
    assert len({(group, fold) for group, fold in zip(groups, folds, strict=True)}) == 30
    assert merge_groups(groups[:3], num_folds=4, seed=0) == groups[:3]


def test_a_forecast_that_orders_settings_rightly_finds_the_best_without_a_run() -> None:
    steps = []
    for name, gradient_s in (("light(width=1)", 0.001), ("heavy(width=9)", 3.0)):
        for setting in SETTINGS:
            rate = min(node.bits_per_s for node in setting.nodes) / 1e9
            wire = gradient_s / rate if setting.num_ranks > 1 else 0.0
            seconds = 0.1 / min(node.cpu_share for node in setting.nodes) + wire
            steps.append(CorpusStep(
                name=name, batch=4, setting=setting, seconds=seconds, cpu_seconds=None, noise=None, resources={}
            ))  # fmt: skip
    lines = compare_searches(steps, [2 * step.seconds for step in steps], seeds=(0, 1))
    fastest = {line.method: line for line in lines if line.objective == "fastest epoch"}
    assert fastest[FORECAST].regret == 0.0
    assert fastest[FORECAST].num_runs == 0.0
    assert fastest[CHECKED].num_runs == 3.0
    assert fastest[CHERRYPICK].num_runs >= 6.0
    assert fastest[CHERRYPICK].run_s > fastest[CHECKED].run_s
    assert fastest[LARGEST].num_searches == 4
