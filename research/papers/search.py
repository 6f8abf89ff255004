"""CherryPick's question on our corpus: which of the measured configurations is best, and what does finding it cost?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.baselines.cherrypick import cherrypick
from research.corpus import CorpusStep

Array = NDArray[np.float64]
Objective = Callable[[CorpusStep, float], float]

MIN_CONFIGURATIONS = 12
CHERRYPICK, FORECAST, CHECKED = "CherryPick", "forecast, no run (ours)", "forecast, the best three run (ours)"
RANDOM, LARGEST = "as many random runs", "always the most ranks on the fastest links"
NUM_CHECKED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLine:
    """One way to choose a setting for an architecture at a batch; means over these and seeds."""

    objective: str
    method: str
    num_searches: int
    regret: float
    """Chosen over best, minus 1, by measured times."""
    p90: float
    found_best: float
    """Share of searches that ended within 5% of the best."""
    num_runs: float
    run_s: float
    """Machine seconds of ten steps in each configuration that was run."""


def _per_sample(step: CorpusStep, seconds: float) -> float:
    return seconds / (step.batch * step.setting.num_ranks)


OBJECTIVES: Mapping[str, Objective] = {
    "fastest epoch": _per_sample,
    "time x machine time of an epoch": lambda step, seconds: step.setting.num_ranks * _per_sample(step, seconds) ** 2,
}


def compare_searches(
    steps: Sequence[CorpusStep], forecast_s: Sequence[float], *, seeds: Sequence[int]
) -> list[SearchLine]:
    """`forecast_s`: of each step by a predictor that never saw its architecture."""
    jobs: dict[tuple[str, int], list[int]] = {}
    for place, step in enumerate(steps):
        jobs.setdefault(step.key, []).append(place)
    jobs = {key: places for key, places in jobs.items() if len(places) >= MIN_CONFIGURATIONS}
    lines = []
    for objective, value in OBJECTIVES.items():
        found: dict[str, list[tuple[float, int, float]]] = {}
        for places in jobs.values():
            rows = [steps[place] for place in places]
            truth = np.array([value(row, row.seconds) for row in rows])
            guess = np.array([value(steps[place], forecast_s[place]) for place in places])
            costs = np.array([10 * row.seconds * row.setting.num_ranks for row in rows])
            for seed in seeds:
                for method, chosen, runs in _choose(rows, truth, guess, seed=seed):
                    regret = float(truth[chosen] / truth.min() - 1)
                    found.setdefault(method, []).append((regret, len(runs), float(costs[list(runs)].sum())))
        lines += [_line(objective, method, rows) for method, rows in found.items()]
    return lines


def _choose(
    rows: Sequence[CorpusStep], truth: Array, guess: Array, *, seed: int
) -> list[tuple[str, int, tuple[int, ...]]]:
    searched = cherrypick([_features(row) for row in rows], lambda index: float(truth[index]), seed=seed)
    drawn = np.random.default_rng(seed + 1000).permutation(len(rows))[: len(searched.runs)].tolist()
    best = tuple(np.argsort(guess, kind="stable")[:NUM_CHECKED].tolist())
    largest = max(range(len(rows)), key=lambda place: _features(rows[place]))
    return [
        (FORECAST, int(np.argmin(guess)), ()),
        (CHECKED, min(best, key=lambda place: truth[place]), best),
        (CHERRYPICK, searched.chosen, searched.runs),
        (RANDOM, min(drawn, key=lambda place: truth[place]), tuple(drawn)),
        (LARGEST, largest, ()),
    ]


def _features(step: CorpusStep) -> list[float]:
    nodes = step.setting.nodes
    rate = min(node.bits_per_s for node in nodes) if len(nodes) > 1 else 1e10
    return [len(nodes), float(np.log10(rate)), min(node.cpu_share for node in nodes)]


def _line(objective: str, method: str, rows: Sequence[tuple[float, int, float]]) -> SearchLine:
    regret, runs, costs = np.array(rows).T
    return SearchLine(
        objective=objective, method=method, num_searches=len(rows), regret=float(regret.mean()),
        p90=float(np.percentile(regret, 90)), found_best=float((regret <= 0.05).mean()), num_runs=float(runs.mean()),
        run_s=float(costs.mean()),
    )  # fmt: skip
