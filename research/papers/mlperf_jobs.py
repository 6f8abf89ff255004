"""DeletePop's figure on GPUs: time of whole jobs of MLPerf, the samples given.

A job of a given number of samples is so many equal steps, so its accuracy, 1 - |forecast - measured| / measured, is that of one;
start-up is not part of what MLPerf times. Every clean row is asked as a user would ask it, nothing given. *A perfect forecast*:
equal configurations that were submitted more than once, against the median of their submissions.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.data import SHARED
from traincast.accuracy import hide_results, parse_case, read_rows, translate
from traincast.accuracy._cases import parse_observation
from traincast.errors import TraincastError
from traincast.forecast import Engine

Array = NDArray[np.float64]
SAME = ("model", "gpu", "n_gpus", "micro_batch", "global_batch", "dtype")
"""Columns that equal configurations share."""
AIM = 0.93


def score_jobs() -> tuple[dict[str, list[float]], list[float]]:
    """Accuracies of the forecasts by round, and of the medians of equal configurations."""
    rows = read_rows(str(SHARED / "cases" / "mlperf.parquet"))
    engine = Engine(most=500)
    found: dict[str, list[float]] = defaultdict(list)
    equal: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for row, hidden in zip(rows, hide_results(rows), strict=True):
        try:
            seen = parse_observation(row)
            if not seen.scores_time or not seen.step_s:
                continue
            equal[tuple(row.get(name) for name in SAME)].append(seen.step_s)
            question = translate(parse_case(hidden))
            forecast_s = engine.forecast(question.job, question.cluster, question.parallelism).step.seconds
        except TraincastError:
            continue
        found[str(row["source"])].append(1 - abs(forecast_s / seen.step_s - 1))
    again = [1 - abs(one / float(np.median(each)) - 1) for each in equal.values() if len(each) > 1 for one in each]
    return dict(found), again


def tabulate() -> str:
    """Markdown: one line for each round."""
    rounds, again = score_jobs()
    lines = [
        "| jobs | n | mean accuracy % | median | of the worst tenth | worst | jobs at 93% and more |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_line(name, each) for name, each in sorted(rounds.items())]
    lines.append(_line("all rounds", [one for each in rounds.values() for one in each]))
    lines.append(_line("a perfect forecast", again))
    return "\n".join(lines)


def _line(name: str, accuracies: Sequence[float]) -> str:
    values = np.array(accuracies)
    cells = [values.mean(), np.median(values), np.quantile(values, 0.1), values.min(), (values >= AIM).mean()]
    return f"| {name} | {len(values)} | {' | '.join(f'{100 * cell:.1f}' for cell in cells)} |"
