"""Pairs of forecast and measurement to error figures, exactly as research/results/accuracy.md defines them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from traincast.accuracy._cases import Case, Observation
from traincast.accuracy._predictions import Prediction
from traincast.noun import noun
from traincast.spec import COVERAGE

NEAR = 0.10


@noun
class Scored:
    """One case with its answer and its truth."""

    case: Case
    prediction: Prediction
    observation: Observation
    excused: bool = False
    """It failed, but a run that needs no less by construction ran (see `find_excused`): memory was not the reason."""


@noun
class Score:
    """Relative errors |forecast - measured| / measured of one set of cases; None where nothing was answered."""

    num_cases: int
    num_answered: int
    mean: float | None = None
    median: float | None = None
    p90: float | None = None
    max: float | None = None
    within_10: float | None = None
    """Share with an error of at most 10%."""
    bias: float | None = None
    """Mean of (forecast - measured) / measured: above 0 the forecast is too high."""
    log_bias: float | None = None
    """Median of ln(forecast / measured), which no outlier moves."""
    coverage: float | None = None
    """Share of measurements inside the 90% interval; None where no interval was given."""
    median_log_width: float | None = None
    """Median of ln(high / low): coverage alone could be bought with wide intervals."""
    interval_score: float | None = None
    """Mean of ln(high / low) plus twenty times what lies outside, in logs (Winkler 1972): less is better."""
    constant_score: float | None = None
    """The same of an interval of one width for every case of the table, which holds nine of ten in hindsight."""

    @property
    def answered(self) -> float:
        return self.num_answered / self.num_cases if self.num_cases else 0.0


@noun
class Confusion:
    """Does it fit? Forecast against what happened; `false_safe` (said it fits, then it failed) costs most."""

    true_fit: int
    true_fail: int
    false_safe: int
    false_alarm: int
    excused: int = 0
    """Failures that memory cannot explain; they are no part of the other counts."""

    @property
    def num_cases(self) -> int:
        return self.true_fit + self.true_fail + self.false_safe + self.false_alarm

    @property
    def accuracy(self) -> float | None:
        return (self.true_fit + self.true_fail) / self.num_cases if self.num_cases else None

    @property
    def false_safe_rate(self) -> float | None:
        """Of the runs that failed."""
        failed = self.true_fail + self.false_safe
        return self.false_safe / failed if failed else None

    @property
    def false_alarm_rate(self) -> float | None:
        """Of the runs that went well."""
        went_well = self.true_fit + self.false_alarm
        return self.false_alarm / went_well if went_well else None


@noun
class Accuracy:
    """Everything that is scored about one set of cases."""

    time: Score
    memory: Score
    fit: Confusion


def score(
    measured: Sequence[float],
    forecast: Sequence[float | None],
    *,
    intervals: Sequence[tuple[float, float] | None] | None = None,
    constant: float | None = None,
) -> Score:
    """Compare pair by pair; a forecast of None counts as not answered. `constant`: log factor of intervals of one width."""
    pairs = [(truth, guess) for truth, guess in zip(measured, forecast, strict=True) if guess is not None]
    if not pairs:
        return Score(num_cases=len(measured), num_answered=0)
    truth, guess = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    signed = guess / truth - 1
    error = np.abs(signed)
    known = [
        (value, interval)
        for value, interval in zip(measured, intervals or [None] * len(measured), strict=True)
        if interval is not None
    ]
    return Score(
        num_cases=len(measured),
        num_answered=len(pairs),
        mean=float(error.mean()),
        median=float(np.median(error)),
        p90=float(np.percentile(error, 90)),
        max=float(error.max()),
        within_10=float((error <= NEAR).mean()),
        bias=float(signed.mean()),
        log_bias=float(np.median(np.log(np.maximum(guess, 1e-300) / truth))),
        coverage=sum(low <= value <= high for value, (low, high) in known) / len(known) if known else None,
        median_log_width=(
            float(np.median([math.log(high / max(low, 1e-300)) for _, (low, high) in known])) if known else None
        ),
        interval_score=score_intervals(known) if known else None,
        constant_score=(
            score_intervals(
                [
                    (value, (one * math.exp(-constant), one * math.exp(constant)))
                    for value, one in zip(truth, guess, strict=True)
                ]
            )
            if constant is not None
            else None
        ),
    )


def score_intervals(pairs: Sequence[tuple[float, tuple[float, float]]]) -> float:
    """The width of each 90% interval and twenty times what lies outside of it, in logs, on average (Winkler 1972)."""
    values, low, high = (
        np.log(np.maximum(np.array(column, dtype=float), 1e-300))
        for column in zip(*((value, *ends) for value, ends in pairs), strict=True)
    )
    outside = np.maximum(0.0, low - values) + np.maximum(0.0, values - high)
    return float(np.mean(high - low + 2 / (1 - COVERAGE) * outside))


def find_constant(scored: Sequence[Scored]) -> float | None:
    """The log factor on either side of every forecast that would have held nine of ten steps."""
    errors = [
        abs(math.log(row.prediction.step_s / row.observation.step_s))
        for row in scored
        if row.observation.scores_time and row.prediction.answered and row.prediction.step_s and row.observation.step_s
    ]
    return float(np.quantile(errors, COVERAGE)) if errors else None


def score_time(scored: Iterable[Scored], *, constant: float | None = None) -> Score:
    rows = [row for row in scored if row.observation.scores_time]
    return score(
        [row.observation.step_s or math.nan for row in rows],
        [row.prediction.step_s if row.prediction.answered else None for row in rows],
        intervals=[_interval(row.prediction) for row in rows],
        constant=constant,
    )


def score_memory(scored: Iterable[Scored]) -> Score:
    rows = [row for row in scored if row.observation.scores_memory]
    return score(
        [row.observation.memory_bytes or math.nan for row in rows],
        [row.prediction.memory_bytes if row.prediction.answered else None for row in rows],
    )


def confuse(scored: Iterable[Scored]) -> Confusion:
    """Every case with a verdict: a plan that cannot be built, and so is not answered, is said to fail. Failures that memory
    cannot explain are counted apart."""
    counts = {(said, went): 0 for said in (True, False) for went in (True, False)}
    excused = 0
    for row in scored:
        if row.observation.scores_fit and row.prediction.fits is not None:
            if row.excused:
                excused += 1
            else:
                counts[row.prediction.fits, row.observation.status == "ok"] += 1
    return Confusion(
        true_fit=counts[True, True],
        true_fail=counts[False, False],
        false_safe=counts[True, False],
        false_alarm=counts[False, True],
        excused=excused,
    )


def assess(scored: Sequence[Scored], *, constant: float | None = None) -> Accuracy:
    return Accuracy(time=score_time(scored, constant=constant), memory=score_memory(scored), fit=confuse(scored))


GROUPINGS: Mapping[str, Callable[[Case], str]] = {
    "group": lambda case: case.group or "unknown",
    "gpu": lambda case: case.gpu,
    "model": lambda case: case.model or "unknown",
    "dtype": lambda case: case.dtype or "unknown",
    "family": lambda case: case.family or "unknown",
    "source": lambda case: case.source or "unknown",
    "scale": lambda case: name_scale(case),
}
"""By what the tables are broken down."""


def name_scale(case: Case) -> str:
    """How far the job is spread, small first when sorted."""
    num_gpus, num_nodes = case.n_gpus or 1, case.n_nodes
    if num_gpus == 1:
        return "1 GPU"
    if num_nodes is None:
        return "2+ GPUs, nodes unknown"
    if num_nodes == 1:
        return "1 node"
    for limit in (2, 4, 8, 16, 32):
        if num_nodes <= limit:
            return "2 nodes" if limit == 2 else f"{limit // 2 + 1}-{limit} nodes"
    return "33+ nodes"


def break_down(scored: Sequence[Scored], by: str) -> dict[str, Accuracy]:
    """Accuracy of each value of one grouping, largest first."""
    choose = GROUPINGS[by]
    parts: dict[str, list[Scored]] = {}
    for row in scored:
        parts.setdefault(choose(row.case), []).append(row)
    ordered = sorted(parts.items(), key=lambda item: (-len(item[1]), item[0]))
    constant = find_constant(scored)
    return {name: assess(rows, constant=constant) for name, rows in ordered}


def _interval(prediction: Prediction) -> tuple[float, float] | None:
    if not prediction.answered or prediction.step_low_s is None or prediction.step_high_s is None:
        return None
    return prediction.step_low_s, prediction.step_high_s
