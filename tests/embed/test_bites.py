"""The reuse predictor moves a physical sum towards measured neighbours, and is as sure as its left-out errors."""

import math

import pytest

from embed.test_reuse import FOUR, ONE, _rows, _summaries
from traincast.embed import Predictor, Reach, fit_predictor
from traincast.embed._reuse import MIN_SIGMA, Z90
from traincast.embed._summary import physical_columns


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return fit_predictor(_rows(bend=0.4), reach=Reach())


def test_measured_neighbours_shift_the_physical_sum(predictor: Predictor) -> None:
    """The machine bends by up to 40% in a way that no sum of work can follow; its own measurements know better."""
    off, physical = [], []
    for row in _rows(bend=0.4):
        found = predictor.predict(row.summary, row.ranks).seconds
        sum_s = float(physical_columns(row.summary, row.ranks) @ predictor.rates)
        off.append(abs(math.log(found / row.seconds)))
        physical.append(abs(math.log(sum_s / row.seconds)))
    assert sum(off) < 0.6 * sum(physical)


def test_the_interval_is_that_of_left_out_architectures(predictor: Predictor) -> None:
    for summary in _summaries()[:4]:
        found = predictor.predict(summary, FOUR)
        sigma = max(predictor.sigma_at(predictor.farness(summary)), MIN_SIGMA)
        assert math.log(found.high_s / found.seconds) == pytest.approx(Z90 * sigma, rel=1e-6)
        assert math.log(found.seconds / found.low_s) == pytest.approx(Z90 * sigma, rel=1e-6)
    assert pytest.approx(1.645, abs=0.001) == Z90


def test_sureness_falls_from_neighbour_to_stranger(predictor: Predictor) -> None:
    assert predictor.sigma_at(0.5) == pytest.approx(predictor.sigma)
    assert predictor.sigma_at(2.0) == pytest.approx(min(predictor.family_sigma, 3 * predictor.family_sigma))


def test_work_and_gradients_are_counted_over_all_layers() -> None:
    from builders import make_mlp
    from traincast.embed import summarize

    folded, written_out = summarize(make_mlp(layers=4)), summarize(make_mlp(layers=4, folded=False))
    assert folded.gradient_bytes == pytest.approx(written_out.gradient_bytes)
    assert folded.work.reshape(-1, 3)[:, 0].sum() == pytest.approx(
        written_out.work.reshape(-1, 3)[:, 0].sum(), rel=1e-6
    )
    assert folded.gradient_bytes == pytest.approx(4 * 256 * 256 * 4)
    assert ONE.num_ranks == 1
