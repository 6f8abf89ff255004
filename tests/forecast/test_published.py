"""Published figures lie within the tolerance that the page states, for every regime that has one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts import load_benchmark
from traincast.accuracy import hide_results, parse_case, read_rows, translate
from traincast.accuracy._cases import parse_observation
from traincast.errors import TraincastError
from traincast.plan import forecast

ROOT = Path(__file__).resolve().parents[2]
MLPERF = ROOT.parent / "shared" / "cases" / "mlperf.parquet"
WORKERS = ROOT.parent / "shared" / "cases" / "dp.parquet"
MOST_ROWS = 4
"""Of one model, evenly over the table."""
TOLERANCES = {
    "transformer-lm": 0.12, "transformer-enc": 0.2, "cnn": 0.3, "detection": 0.3, "segmentation": 0.3, "speech-rnn": 0.3,
    "gnn": 0.3, "diffusion": 0.3, "recsys": 0.4,
}  # fmt: skip


PUBLISHED = load_benchmark("published")


@pytest.mark.parametrize("figure", PUBLISHED.FIGURES, ids=lambda figure: figure.regime)
def test_a_published_figure_lies_within_its_tolerance(figure: object) -> None:
    found = PUBLISHED.check(figure)
    assert found.figure.low <= found.ratio <= found.figure.high


def test_the_page_has_every_figure_with_its_source_and_tolerance() -> None:
    page = PUBLISHED.PAGE.read_text()
    for figure in PUBLISHED.FIGURES:
        assert figure.source in page
        assert f"{figure.low:g} to {figure.high:g}" in page
    for one in (*(each.where for each in PUBLISHED.ELSEWHERE), *PUBLISHED.NONE):
        assert one in page
    for one in PUBLISHED.ELSEWHERE:
        assert (ROOT / one.where.partition(",")[0]).is_file()


@pytest.mark.parametrize("family", sorted(TOLERANCES))
@pytest.mark.skipif(not MLPERF.is_file(), reason="needs ../shared/cases/mlperf.parquet")
def test_the_median_error_of_mlperf_results_is_within_its_tolerance(family: str) -> None:
    """MLPerf Training v2.1 to v4.0, results of many submitters; see research/results/published-figures.md."""
    rows = [row for row in read_rows(MLPERF) if row["family"] == family]
    assert median_error(rows, MOST_ROWS) <= TOLERANCES[family]


@pytest.mark.skipif(not WORKERS.is_file(), reason="needs ../shared/cases/dp.parquet")
def test_the_median_error_of_speech_with_ctc_is_within_its_tolerance() -> None:
    """DeepSpeech 2 as Sia measured it (Jayaram Subramanya et al. 2023); see research/results/published-figures.md."""
    assert median_error([row for row in read_rows(WORKERS) if row["model"] == "deepspeech2"], 16) <= 0.4


def median_error(rows: list[dict[str, Any]], most: int) -> float:
    """Of so many rows, evenly over the table."""
    chosen = [rows[i] for i in sorted({round(x) for x in np.linspace(0, len(rows) - 1, most)})]
    errors = []
    for row, hidden in zip(chosen, hide_results(chosen), strict=True):
        seen = parse_observation(row)
        try:
            asked = translate(parse_case(hidden))
        except TraincastError as error:
            pytest.fail(f"{row['case_id']} is not answered: {error}")
        if seen.step_s and seen.scores_time:
            errors.append(forecast(asked.job, asked.cluster, asked.parallelism).step.seconds / seen.step_s - 1)
    return float(np.median(np.abs(errors)))
