"""Curves of error against measuring time: D-optimal, A-optimal, random and the full grid, on machines left out.

    python -m research.studies.design --out docs/theory           # all curves, ten seeds: some four minutes of CPU time
    python -m research.studies.design --quick                     # two machines each, two seeds
    python -m research.studies.design --only conv2d --seeds 3

A machine (GPU, or host of collectives) is left out. What the others taught is a prior: a regression of log time on
logarithms of sizes and of the machine's peaks, and what the nearest shapes needed beyond it on each of the others. On the
left-out machine a design chooses rows to measure, a Bayesian linear model on random Fourier features (a Gaussian process,
Rahimi and Recht 2007) corrects the prior with them, and the error is taken on other rows of that machine. Rows near the
dispatch floor count as noisier, in the design and in the fit. A row costs 25 calls and 2 ms of preparation, as the data were
recorded. A design knows costs only as its fit forecasts them, and is planned again whenever the time doubles: chosen by what
they really took, rows that happen to be fast are preferred, and the fit becomes too fast for all others.

How much machines differ, how smoothly, how far a shape speaks for its neighbours, and how noisy a row is, is learned from the
other machines alone: the deviations and the length scale under which their own corrections, each machine predicted without
itself, are most probable (type II maximum likelihood over a fixed grid). Rules and model were chosen on four left-out machines
(linear on A100-PCIe-40GB, bmm on A100-PCIe-80GB, conv on P4, all-reduce on the pairwise A100), which are marked in the table;
all others are fresh. The model is the one of least error after the full grid, not of the best ratio.

On our corpus nothing but the priors of `traincast calibrate` is known: candidates are its single operators and the steps of
four fifths of the architectures, each at the price of measuring it, and the error is that of the steps of the other fifth (CPU
time, labels from all settings of a workload together).
"""

import argparse
import functools
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from research.studies.transfer import (
    SHARED,
    Lesson,
    Problem,
    Spreads,
    ask_others,
    collective_problem,
    correction_features,
    half_problems,
    learn_spreads,
    noise_of,
    operator_problems,
    prior_of,
    ridge_fit,
    trees_of,
)
from traincast.design import a_optimal, d_optimal, random_design

NUM_CANDIDATES, NUM_TEST, NUM_SEEDS = 500, 800, 10
CALLS, PREPARE_S = 25, 2e-3
CORPUS_SHARE = 0.5
"""Of the corpus that a seed draws as its full grid, so that each seed is another experiment."""
SHARES = tuple(2.0**-power for power in (9, 7, 6, 5, 4, 3, 2, 1))
"""Of the time of the full grid."""
SEEN = {
    ("gemm_linear", "A100-PCIe-40GB"), ("gemm_bmm", "A100-PCIe-80GB"), ("conv2d", "P4"),
    ("all_reduce", "vidur_network a100_pairwise_nvlink"),
}  # fmt: skip
METHODS = ("d-optimal", "a-optimal", "random")
COLOURS = {"d-optimal": "#1b6ca8", "a-optimal": "#3a923a", "random": "#c0392b", "full grid": "#555555"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Mean relative error at each amount of measuring time, with its spread over seeds."""

    method: str
    spent_s: list[float]
    error: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a design may know once some rows are measured: features in units of a row's noise, seconds that each row should
    take to measure, and the features of the forecasts that will be asked for."""

    features: np.ndarray
    expected_s: np.ndarray
    targets: np.ndarray


def curves(problem: Problem, left_out: str, *, num_seeds: int) -> tuple[list[Curve], float, float]:
    """One curve per method, and the error and cost of measuring every candidate."""
    trees = trees_of(problem)
    spreads = learn_spreads(problem, left_out, trees=trees)
    inside = np.flatnonzero(problem.host == left_out)
    trials = []
    for seed in range(num_seeds):
        random = np.random.default_rng(seed)
        rows = random.permutation(inside)[: NUM_CANDIDATES + NUM_TEST]
        lesson = ask_others(problem, rows, without=[left_out], trees=trees, random=random)
        trials.append(try_machine(lesson, problem.seconds[rows], spreads, seed=seed))
    return gather(trials)


def try_machine(lesson: Lesson, seconds: np.ndarray, spreads: Spreads, *, seed: int) -> "Trial":
    prior = prior_of(lesson, spreads)
    features, noise = correction_features(lesson, spreads), noise_of(prior, spreads)
    weighted, target = features / noise[:, None], (np.log(seconds) - prior) / noise
    candidates = slice(0, NUM_CANDIDATES)

    def forecast_s(measured: "list[int]") -> np.ndarray:
        correction = features @ ridge_fit(weighted[measured], target[measured], 1.0) if measured else 0.0
        return np.asarray(np.exp(prior + correction))

    def error(measured: "list[int]") -> float:
        return float(np.mean(np.abs(forecast_s(measured) / seconds - 1)[NUM_CANDIDATES:]))

    def view(measured: "list[int]") -> View:
        expected_s = CALLS * forecast_s(measured)[candidates] + PREPARE_S
        return View(features=weighted[candidates], expected_s=expected_s, targets=features[candidates])

    return try_methods(error, view, CALLS * seconds[candidates] + PREPARE_S, seed=seed)


Trial = tuple[dict[str, list[tuple[float, float]]], float, float]


def try_methods(
    error: "Callable[[list[int]], float]", view: "Callable[[list[int]], View]", costs: np.ndarray, *, seed: int
) -> Trial:
    """Seconds and error of every method at each share of the full grid's time, and those of the full grid."""
    total, everything = float(costs.sum()), list(range(len(costs)))
    before, after = error([]), error(everything)
    points = {}
    for method in METHODS:
        points[method] = [(0.0, before)]
        for measured in designs(method, view, costs, seed=seed):
            points[method].append((float(costs[measured].sum()), error(measured)))
        points[method].append((total, after))
    return points, total, after


def gather(trials: "list[Trial]") -> tuple[list[Curve], float, float]:
    found = [summarise(method, [points[method] for points, _, _ in trials]) for method in METHODS]
    return found, float(np.mean([total for _, total, _ in trials])), float(np.mean([after for _, _, after in trials]))


def designs(method: str, view: "Callable[[list[int]], View]", costs: np.ndarray, *, seed: int) -> Iterator[list[int]]:
    """All that is measured at each share of the time: planned with what is known so far, paid at real prices."""
    total, measured = float(costs.sum()), list[int]()
    for share in SHARES:
        left = share * total - float(costs[measured].sum())
        if method == "random":
            order = random_design(len(costs), budget=total * SHARES[-1], costs=costs, seed=seed)
            planned = [row for row in order if row not in measured]
        else:
            planned = plan(method, view(measured), left, measured)
        for row in planned:
            if costs[row] > left:
                break
            measured.append(row)
            left -= costs[row]
        yield list(measured)


def plan(method: str, now: View, budget: float, measured: "list[int]") -> list[int]:
    if method == "d-optimal":
        return d_optimal(
            now.features,
            budget=budget,
            costs=now.expected_s,
            ridge=1.0,
            measured=measured,
            exchange=False,
            scaled=False,
        )
    return a_optimal(
        now.features,
        budget=budget,
        costs=now.expected_s,
        ridge=1.0,
        measured=measured,
        targets=now.targets,
        scaled=False,
    )


def corpus_curves(fold: int, *, num_seeds: int) -> tuple[list[Curve], float, float]:
    """Steps of a fifth of the architectures left out; each seed draws other candidates."""
    from research.corpus import load_corpus
    from research.papers.stack import PEAKS, Learner
    from traincast.learn import Amounts, Fit, measuring_cost_s, refit, start_fit
    from traincast.profile import Protocol

    learner = Learner.of(load_corpus())
    keys = list(learner.workloads)
    labels = dict(learner._clean(learner.corpus.steps))
    loads = [*(learner.workloads[key].load for key in keys), *(load for load, _ in learner.operators)]
    seconds = np.array([*(labels[key] for key in keys), *(took for _, took in learner.operators)])
    names = sorted({key[0] for key in keys}, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    left_out = set(names[fold::5])
    tested = [place for place, key in enumerate(keys) if key[0] in left_out]
    first = start_fit(loads, PEAKS)
    amounts = Amounts.of(loads, first.groups)
    protocol = Protocol(num_rounds=3, block_s=0.03, warm_up_s=0.005)

    def prices_of(rows: np.ndarray, run_s: np.ndarray) -> np.ndarray:
        return np.array([
            measuring_cost_s(float(took), is_step=loads[row].is_step, protocol=protocol)
            for row, took in zip(rows, run_s, strict=True)
        ])  # fmt: skip

    known = np.array([place for place in range(len(loads)) if place >= len(keys) or keys[place][0] not in left_out])

    def try_seed(seed: int) -> Trial:
        rows = np.sort(np.random.default_rng(seed).permutation(known)[: int(CORPUS_SHARE * len(known))])
        steps = np.flatnonzero(rows < len(keys))
        half = amounts.pick(rows)

        @functools.lru_cache(maxsize=1)
        def fit_of(*measured: int) -> Fit:
            return refit(first, half.pick(measured), seconds[rows[list(measured)]]) if measured else first

        def error(measured: "list[int]") -> float:
            return float(np.mean(np.abs(fit_of(*measured).predict(amounts.pick(tested)) / seconds[tested] - 1)))

        def view(measured: "list[int]") -> View:
            fit = fit_of(*measured)
            features = fit.sensitivities(half)
            return View(features=features, expected_s=prices_of(rows, fit.predict(half)), targets=features[steps])

        return try_methods(error, view, prices_of(rows, seconds[rows]), seed=seed)

    return gather([try_seed(seed) for seed in range(num_seeds)])


def summarise(method: str, runs: list[list[tuple[float, float]]]) -> Curve:
    spent = np.array([[point[0] for point in run] for run in runs])
    error = np.array([[point[1] for point in run] for run in runs])
    return Curve(
        method=method, spent_s=list(spent.mean(axis=0)), error=list(error.mean(axis=0)), low=list(error.min(axis=0)),
        high=list(error.max(axis=0)),
    )  # fmt: skip


def time_to_reach(curve: Curve, target: float) -> float:
    """Measuring time after which the error stays at or below the target, interpolated on logarithms."""
    for index in range(len(curve.error) - 1, -1, -1):
        if curve.error[index] > target:
            if index + 1 == len(curve.error):
                return math.inf
            before, after = max(curve.spent_s[index], 1e-3), curve.spent_s[index + 1]
            high, low = curve.error[index], curve.error[index + 1]
            share = (high - target) / (high - low)
            return float(before * (after / before) ** share)
    return curve.spent_s[0] or 1e-3


def draw(title: str, found: list[Curve], full: tuple[float, float]) -> str:
    """Error against seconds, time on a logarithmic axis; bands show the range over seeds."""
    width, height, left, bottom, top = 620, 380, 70, 50, 40
    points = [curve.spent_s[1:] for curve in found]
    low_x, high_x = min(min(each) for each in points), max(full[0], max(max(each) for each in points))
    high_y = max(max(curve.high[1:]) for curve in found) * 1.05

    def x(value: float) -> float:
        return left + (width - left - 20) * math.log(max(value, low_x) / low_x) / math.log(high_x / low_x)

    def y(value: float) -> float:
        return height - bottom - (height - bottom - top) * min(value, high_y) / high_y

    body = [f'<text x="{left}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>']
    for tick in range(6):
        value = high_y * tick / 5
        body.append(f'<line x1="{left}" y1="{y(value):.1f}" x2="{width - 20}" y2="{y(value):.1f}" stroke="#ddd"/>')
        body.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.0%}</text>')
    for power in range(math.floor(math.log10(low_x)), math.ceil(math.log10(high_x)) + 1):
        value = 10.0**power
        if low_x <= value <= high_x:
            body.append(f'<text x="{x(value):.1f}" y="{height - bottom + 18}" text-anchor="middle">{value:g} s</text>')
    for row, curve in enumerate(found):
        colour = COLOURS[curve.method]
        upper = [f"{x(s):.1f},{y(e):.1f}" for s, e in zip(curve.spent_s[1:], curve.high[1:], strict=True)]
        lower = [f"{x(s):.1f},{y(e):.1f}" for s, e in zip(curve.spent_s[1:], curve.low[1:], strict=True)]
        line = [f"{x(s):.1f},{y(e):.1f}" for s, e in zip(curve.spent_s[1:], curve.error[1:], strict=True)]
        body.append(f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}" opacity="0.12"/>')
        body.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body.append(f'<text x="{width - 130}" y="{top + 18 * row + 8}" fill="{colour}">{curve.method}</text>')
    grey = COLOURS["full grid"]
    body.append(f'<path d="M{left} {y(full[1]):.1f} H{width - 20}" stroke="{grey}" stroke-dasharray="5 4"/>')
    body.append(
        f'<text x="{width - 130}" y="{top + 18 * len(found) + 8}" fill="{grey}">full grid: {full[1]:.1%}</text>'
    )
    middle = (left + width) / 2
    body.append(
        f'<text x="{middle}" y="{height - 12}" text-anchor="middle">measuring time on the left-out machine</text>'
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *body, "</svg>\n"])


def _problems(only: str) -> Iterator[Problem]:
    """Tables are read only if they are asked for."""
    if only.startswith("half") or not only:
        yield from half_problems()
    if not only.startswith("half"):
        yield from (*operator_problems(), collective_problem())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="directory for the drawings")
    parser.add_argument("--quick", action="store_true", help="two machines each, two seeds")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    parser.add_argument("--only", default="", help="one table, such as conv2d or corpus")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    num_seeds = 2 if options.quick else options.seeds
    table: list[dict[str, object]] = []

    def add(name: str, host: str, found: list[Curve], full_s: float, full_error: float, *, drawn: bool) -> None:
        times = {curve.method: time_to_reach(curve, 1.05 * full_error) for curve in found}
        row: dict[str, object] = {
            "data": name,
            "left_out": host,
            "seen_while_tuning": (name, host) in SEEN,
            "error_before": found[0].error[0],
            "error_full": full_error,
            "full_s": full_s,
            **{f"{method}_s": seconds for method, seconds in times.items()},
            **{f"full_over_{method}": full_s / times[method] for method in METHODS},
            **{f"random_over_{method}": times["random"] / times[method] for method in METHODS[:2]},
        }
        table.append(row)
        if not options.json:
            print(
                f"{name:12} {host:34} before {found[0].error[0]:6.1%} full {full_error:6.1%} in {full_s:7.1f} s | "
                + " ".join(f"{method} {seconds:7.2f} s" for method, seconds in times.items())
                + f" | full {row['full_over_d-optimal']:5.1f}x D, {row['full_over_a-optimal']:5.1f}x A, "
                f"random {row['random_over_d-optimal']:4.1f}x D, {row['random_over_a-optimal']:4.1f}x A",
                flush=True,
            )
        if options.out is not None and drawn:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / f"design-{name}.svg").write_text(
                draw(f"{name}, left out: {host}", found, (full_s, full_error))
            )

    if options.only in ("", "corpus"):
        for fold in range(1 if options.quick else 5):
            add(
                "corpus",
                f"architectures {fold + 1}/5",
                *corpus_curves(fold, num_seeds=min(num_seeds, 4)),
                drawn=fold == 0,
            )
    if not SHARED.exists():
        print(f"the measured data are not here: {SHARED}", file=sys.stderr)
    elif options.only != "corpus":
        for problem in _problems(options.only):
            if options.only not in ("", problem.name):
                continue
            enough = NUM_CANDIDATES + NUM_TEST // 2
            hosts = [host for host in sorted(set(problem.host)) if (problem.host == host).sum() >= enough]
            for number, host in enumerate(hosts[:2] if options.quick else hosts):
                add(problem.name, host, *curves(problem, host, num_seeds=num_seeds), drawn=number == 0)
    names = [name for name in table[0] if "_over_" in name] if table else []
    # Medians: where the full grid itself forecasts badly (linear on P4), a ratio can be thousands and means little.
    fresh = [row for row in table if not row["seen_while_tuning"]]
    summary = {
        f"median_{name}": {
            "all": float(np.median([float(str(row[name])) for row in table])),
            "fresh": float(np.median([float(str(row[name])) for row in fresh])),
        }
        for name in names
    }
    print(json.dumps({"rows": table, **summary}, indent=1) if options.json else json.dumps(summary, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
