"""CherryPick's question on measured GPU runs: which GPU type, count and batch is best, and what does finding it cost?

Run: python -m research.papers.search_gpus. A job is a model of one publisher at one precision; its configurations are the runs of
../shared/cases on other GPU types, counts and batches. CherryPick runs configurations one after the other, ours forecasts all and
runs none, or the best three. Costs of running: ten steps of a configuration on all of its GPUs.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.baselines.cherrypick import cherrypick
from research.output import say
from research.papers.search import CHECKED, CHERRYPICK, FORECAST, NUM_CHECKED, RANDOM
from research.studies.own_runs import Known, read_settings
from traincast import catalog

Array = NDArray[np.float64]
LEAST_CONFIGURATIONS, LEAST_DEVICES = 12, 2
GOOD = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One measured run of a job as a configuration that could be chosen."""

    features: tuple[float, ...]
    samples: float
    machines: float
    measured_s: float
    forecast_s: float


OBJECTIVES: dict[str, Callable[[Config, float], float]] = {
    "fastest epoch": lambda one, seconds: seconds / one.samples,
    "GPU time of an epoch": lambda one, seconds: one.machines * seconds / one.samples,
}


def read_jobs() -> dict[str, list[Config]]:
    """By publisher, model, mode and precision; those with enough configurations and more than one type of GPU."""
    found: dict[str, list[tuple[str, Config]]] = defaultdict(list)
    for (source, device), runs in read_settings().items():
        for one in runs:
            labels = one.run.labels
            key = f"{source} {labels.model} {labels.mode} {labels.precision}"
            found[key].append((device, _configure(one, device)))
    return {
        key: [config for _, config in each]
        for key, each in sorted(found.items())
        if len(each) >= LEAST_CONFIGURATIONS and len({device for device, _ in each}) >= LEAST_DEVICES
    }


def _configure(one: Known, device: str) -> Config:
    batch, machines, _, split = (math.exp(size) for size in one.sizes[3:7])
    chip = catalog.device(device)
    peak = max([*chip.matrix_flop_per_s.values(), *chip.vector_flop_per_s.values()])
    return Config(
        features=(math.log(peak), math.log(chip.memory_bytes_per_s), math.log(machines), math.log(batch)),
        samples=batch * max(machines / split, 1.0), machines=machines, measured_s=one.run.measured_s,
        forecast_s=one.run.forecast_s,
    )  # fmt: skip


def compare_searches(jobs: dict[str, list[Config]], *, seeds: Sequence[int]) -> str:
    """Markdown: regret of what is chosen, how often it is as good as the best, and the GPU time of the runs."""
    lines = [
        "| objective | method | searches | regret, mean % | p90 % | within 5% of the best | runs | GPU seconds |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for objective, value in OBJECTIVES.items():
        found: dict[str, list[tuple[float, int, float]]] = defaultdict(list)
        for configs in jobs.values():
            truth = np.array([value(one, one.measured_s) for one in configs])
            guess = np.array([value(one, one.forecast_s) for one in configs])
            costs = np.array([10 * one.machines * one.measured_s for one in configs])
            for seed in seeds:
                for method, chosen, runs in choose(configs, truth, guess, seed=seed):
                    found[method].append(
                        (float(truth[chosen] / truth.min() - 1), len(runs), float(costs[list(runs)].sum()))
                    )
        for method, rows in found.items():
            regret, runs_made, spent = np.array(rows).T
            lines.append(
                f"| {objective} | {method} | {len(rows)} | {100 * regret.mean():.1f} | {100 * np.quantile(regret, 0.9):.1f} | "
                f"{100 * (regret <= GOOD).mean():.0f}% | {runs_made.mean():.1f} | {spent.mean():.0f} |"
            )
    return "\n".join(lines)


def choose(
    configs: Sequence[Config], truth: Array, guess: Array, *, seed: int
) -> list[tuple[str, int, tuple[int, ...]]]:
    """Method, place of what it chose, and places that it ran."""
    searched = cherrypick([one.features for one in configs], lambda place: float(truth[place]), seed=seed)
    drawn = np.random.default_rng(seed + 1000).permutation(len(configs))[: len(searched.runs)].tolist()
    best = tuple(np.argsort(guess, kind="stable")[:NUM_CHECKED].tolist())
    return [
        (FORECAST, int(np.argmin(guess)), ()),
        (CHECKED, min(best, key=lambda place: float(truth[place])), best),
        (CHERRYPICK, searched.chosen, searched.runs),
        (RANDOM, min(drawn, key=lambda place: float(truth[place])), tuple(drawn)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    jobs = read_jobs()
    say(f"{len(jobs)} jobs, {sum(len(each) for each in jobs.values())} configurations\n")
    say(compare_searches(jobs, seeds=range(parser.parse_args().seeds)))


if __name__ == "__main__":
    main()
