"""Curves of error against measuring time: D-optimal, A-optimal, random and the full grid, on machines left out.

    python benchmarks/design.py --out docs/theory           # all curves, ten seeds: some ten minutes of CPU time
    python benchmarks/design.py --quick                     # two machines each, two seeds
    python benchmarks/design.py --only conv2d --seeds 3

A machine (GPU, or host of collectives) is left out. What the others taught is a prior: a regression of log time on
logarithms of sizes and of the machine's peaks. On the left-out machine a design chooses rows to measure, a Bayesian
linear model on random Fourier features (a Gaussian process, Rahimi and Recht 2007) corrects the prior with them, and the
error is taken on other rows of that machine. Rows near the dispatch floor count as noisier, in the design and in the fit.
A row costs 25 calls and 2 ms of preparation, as the data were recorded.

How much machines differ, how smoothly, and how noisy a row is, is learned from the other machines alone: the deviations and
the length scale under which their own corrections, each machine predicted without itself, are most probable (type II maximum
likelihood over a fixed grid). This rule was fixed on four left-out machines (linear on A100-PCIe-40GB, bmm on A100-PCIe-80GB,
conv on P4, all-reduce on the pairwise A100), which are marked in the table; all others are fresh.

On our corpus nothing but the priors of `traincast calibrate` is known: candidates are its single operators and the steps of
four fifths of the architectures, each at the price of measuring it, and the error is that of the steps of the other fifth (CPU
time, labels from all settings of a workload together).
"""

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from traincast.design import a_optimal, d_optimal, random_design

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
NUM_CANDIDATES, NUM_TEST, NUM_SEEDS = 500, 800, 10
CALLS, PREPARE_S = 25, 2e-3
NUM_FOURIER = 120
SHARES = tuple(2.0**-power for power in (9, 7, 6, 5, 4, 3, 2, 1))
"""Of the time of the full grid."""
SEEN = {
    ("gemm_linear", "A100-PCIe-40GB"), ("gemm_bmm", "A100-PCIe-80GB"), ("conv2d", "P4"),
    ("all_reduce", "vidur_network a100_pairwise_nvlink"),
}  # fmt: skip
METHODS = ("d-optimal", "a-optimal", "random")
COLOURS = {"d-optimal": "#1b6ca8", "a-optimal": "#3a923a", "random": "#c0392b", "full grid": "#555555"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows of all machines: features of sizes, of the machine, seconds, and which machine each row is of."""

    name: str
    logs: np.ndarray
    sizes: np.ndarray
    machine: np.ndarray
    seconds: np.ndarray
    host: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """Deviations of the correction and of one row in log time, and the distance over which its shape changes."""

    length: float = 1.2
    constant: float = 0.4
    slope: float = 0.2
    shape: float = 0.2
    noise: float = 0.12


TRIED = {
    "length": (0.5, 0.8, 1.2, 2.0, 3.5), "constant": (0.1, 0.2, 0.4, 0.8), "slope": (0.03, 0.1, 0.2, 0.4),
    "shape": (0.05, 0.1, 0.2, 0.4, 0.8), "noise": (0.03, 0.06, 0.12, 0.2, 0.3),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Mean relative error at each amount of measuring time, with its spread over seeds."""

    method: str
    spent_s: list[float]
    error: list[float]
    low: list[float]
    high: list[float]


def read(path: Path) -> "dict[str, np.ndarray]":
    from pyarrow import parquet

    table = parquet.read_table(path)
    return {name: np.asarray(table.column(name).to_pylist()) for name in table.schema.names}


def quadratic(logs: np.ndarray) -> np.ndarray:
    """A constant, each logarithm, and all their products: a smooth surface over sizes."""
    count = logs.shape[1]
    products = [logs[:, i] * logs[:, j] for i in range(count) for j in range(i, count)]
    return np.column_stack([np.ones(len(logs)), logs, *products])


def centred(logs: np.ndarray) -> np.ndarray:
    return (logs - logs.mean(axis=0)) / np.maximum(logs.std(axis=0), 1e-9)


def operator_problems() -> Iterator[Problem]:
    peaks = {}
    with (SHARED / "gpu_ops" / "gpu_specs.csv").open() as stream:
        header = stream.readline().strip().split(",")
        flop = next(name for name in header if "fp32" in name.lower() and "flop" in name.lower())
        memory = next(name for name in header if "bw" in name.lower() or "bandwidth" in name.lower())
        for line in stream:
            record = dict(zip(header, line.strip().split(","), strict=False))
            if record.get(flop) and record.get(memory):
                peaks[record[header[0]]] = (float(record[flop]), float(record[memory]))
    columns = {
        "gemm_linear": ("m", "k", "n"), "gemm_bmm": ("batch", "m", "k", "n"), "softmax": ("rows", "cols"),
        "layernorm": ("rows", "cols"), "conv2d": ("batch", "in_channels", "out_channels", "in_size"),
    }  # fmt: skip
    for file, names in columns.items():
        data = read(SHARED / "gpu_ops" / f"{file}.parquet")
        seconds = data["latency_ms"].astype(float) * 1e-3
        known = np.array([gpu in peaks for gpu in data["gpu"]])
        # Rows near the dispatch floor say nothing about the kernel (README of the data).
        floors = {gpu: seconds[data["gpu"] == gpu].min() for gpu in set(data["gpu"])}
        clear = seconds > 1.7 * np.array([floors[gpu] for gpu in data["gpu"]])
        kept = known & clear
        logs = np.log(np.column_stack([data[name].astype(float) for name in names]))[kept]
        machine = np.log(np.array([peaks[gpu] for gpu in data["gpu"][kept]]))
        yield Problem(
            name=file,
            logs=centred(logs),
            sizes=quadratic(centred(logs)),
            machine=centred(machine),
            seconds=seconds[kept],
            host=data["gpu"][kept],
        )


def collective_problem() -> Problem:
    data = read(SHARED / "collectives" / "collectives.parquet")
    kept = (data["collective"] == "all_reduce") & (data["n_nodes"] == 1) & (data["time_s"].astype(float) > 0)
    amounts = np.maximum(data["bytes"].astype(float), 1.0)
    ranks = data["n_gpus"].astype(float)
    logs = np.log(np.column_stack([amounts, ranks]))[kept]
    host = np.array([f"{a} {b}" for a, b in zip(data["source"], data["hardware"], strict=True)])[kept]
    size = centred(logs)
    features = np.column_stack([quadratic(size), size[:, 0] ** 3])
    return Problem(
        name="all_reduce",
        logs=size,
        sizes=features,
        machine=np.zeros((kept.sum(), 1)),
        seconds=data["time_s"].astype(float)[kept],
        host=host,
    )


def prior_of(
    problem: Problem, rows: np.ndarray, *, without: "list[str]", random: np.random.Generator, limit: int = 20_000
) -> np.ndarray:
    """ln(seconds) of rows as the machines that are not left out suggest them."""
    others = random.permutation(np.flatnonzero(~np.isin(problem.host, without)))[:limit]
    features = np.column_stack([problem.sizes, problem.machine])
    return features[rows] @ ridge_fit(features[others], np.log(problem.seconds[others]), 1e-3)


def correction_features(logs: np.ndarray, spreads: Spreads) -> np.ndarray:
    random = np.random.default_rng(1)
    directions = random.normal(size=(logs.shape[1], NUM_FOURIER)) / spreads.length
    waves = np.sqrt(2 / NUM_FOURIER) * np.cos(logs @ directions + random.uniform(0, 2 * np.pi, NUM_FOURIER))
    return np.column_stack([np.full(len(logs), spreads.constant), spreads.slope * logs, spreads.shape * waves])


def noise_of(prior: np.ndarray, spreads: Spreads) -> np.ndarray:
    """Near the dispatch floor a row says less about its kernel."""
    return np.sqrt(spreads.noise**2 + np.exp(2 * (prior.min() - prior)))


def learn_spreads(problem: Problem, left_out: str, *, num_rows: int = 250) -> Spreads:
    """Under which the corrections that the other machines needed are most probable."""
    random = np.random.default_rng(7)
    needed = []
    for host in sorted(set(problem.host) - {left_out}):
        rows = random.permutation(np.flatnonzero(problem.host == host))[:num_rows]
        if len(rows) >= 60:
            prior = prior_of(problem, rows, without=[left_out, host], random=random, limit=8_000)
            needed.append((problem.logs[rows], np.log(problem.seconds[rows]) - prior, prior))

    def evidence(spreads: Spreads) -> float:
        total = 0.0
        for logs, correction, prior in needed:
            noise = noise_of(prior, spreads)
            features, target = correction_features(logs, spreads) / noise[:, None], correction / noise
            normal, slope = features.T @ features + np.eye(features.shape[1]), features.T @ target
            explained = slope @ np.linalg.solve(normal, slope)
            total -= 0.5 * (target @ target - explained + np.linalg.slogdet(normal)[1]) + np.log(noise).sum()
        return float(total)

    best = Spreads()
    value = evidence(best)
    for _ in range(2):
        for name, tried in TRIED.items():
            for number in tried:
                other = replace(best, **{name: number})
                found = evidence(other) if other != best else value
                if found > value:
                    best, value = other, found
    return best


def ridge_fit(features: np.ndarray, target: np.ndarray, ridge: float) -> np.ndarray:
    gram = features.T @ features + ridge * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ target)


def curves(problem: Problem, left_out: str, *, num_seeds: int) -> tuple[list[Curve], float, float]:
    """One curve per method, and the error and cost of measuring every candidate."""
    spreads = learn_spreads(problem, left_out)
    inside = np.flatnonzero(problem.host == left_out)
    trials = []
    for seed in range(num_seeds):
        random = np.random.default_rng(seed)
        rows = random.permutation(inside)[: NUM_CANDIDATES + NUM_TEST]
        prior = prior_of(problem, rows, without=[left_out], random=random)
        features, seconds, noise = (
            correction_features(problem.logs[rows], spreads),
            problem.seconds[rows],
            noise_of(prior, spreads),
        )
        weighted, target = features / noise[:, None], (np.log(seconds) - prior) / noise

        def error(
            measured: "list[int]", features: np.ndarray = features, prior: np.ndarray = prior, seconds: np.ndarray = seconds,
            weighted: np.ndarray = weighted, target: np.ndarray = target,
        ) -> float:  # fmt: skip
            correction = features @ ridge_fit(weighted[measured], target[measured], 1.0) if measured else 0.0
            return float(np.mean(np.abs(np.exp(prior + correction) / seconds - 1)[NUM_CANDIDATES:]))

        costs = CALLS * seconds[:NUM_CANDIDATES] + PREPARE_S
        trials.append(
            try_methods(error, weighted[:NUM_CANDIDATES], costs, targets=weighted[:NUM_CANDIDATES:4], seed=seed)
        )
    return gather(trials)


Trial = tuple[dict[str, list[tuple[float, float]]], float, float]


def try_methods(
    error: "Callable[[list[int]], float]", features: np.ndarray, costs: np.ndarray, *, targets: np.ndarray, seed: int
) -> Trial:  # fmt: skip
    """Seconds and error of every method at each share of the full grid's time, and those of the full grid."""
    total, everything = float(costs.sum()), list(range(len(costs)))
    before, after = error([]), error(everything)
    points = {}
    for method in METHODS:
        # The best rows per second come first, so a prefix is the design of a smaller budget.
        order = plan(method, features, costs, total * SHARES[-1], targets, seed)
        spent = np.cumsum(costs[order])
        points[method] = [(0.0, before)]
        for share in SHARES:
            count = int(np.searchsorted(spent, share * total, side="right"))
            points[method].append((float(spent[count - 1]) if count else 0.0, error(order[:count])))
        points[method].append((total, after))
    return points, total, after


def gather(trials: "list[Trial]") -> tuple[list[Curve], float, float]:
    found = [summarise(method, [points[method] for points, _, _ in trials]) for method in METHODS]
    return found, float(np.mean([total for _, total, _ in trials])), float(np.mean([after for _, _, after in trials]))


def plan(
    method: str, features: np.ndarray, costs: np.ndarray, budget: float, targets: np.ndarray, seed: int
) -> list[int]:
    if method == "random":
        return random_design(len(features), budget=budget, costs=costs, seed=seed)
    if method == "d-optimal":
        return d_optimal(features, budget=budget, costs=costs, ridge=1.0, exchange=False, scaled=False)
    return a_optimal(features, budget=budget, costs=costs, ridge=1.0, targets=targets, scaled=False)


def corpus_curves(fold: int, *, num_seeds: int) -> tuple[list[Curve], float, float]:
    """Steps of a fifth of the architectures left out; each seed draws half of the candidates, so it is another experiment."""
    from traincast.accuracy.corpus import load_corpus
    from traincast.accuracy.paper.stack import PEAKS, Learner
    from traincast.calibrate import Amounts, measuring_cost_s, refit, start_fit
    from traincast.profile.protocol import Protocol

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
    prices = np.array([
        measuring_cost_s(float(took), is_step=load.is_step, protocol=protocol)
        for load, took in zip(loads, seconds, strict=True)
    ])  # fmt: skip
    features = first.sensitivities(amounts)
    trials = []
    for seed in range(num_seeds):
        known = np.array([place for place in range(len(loads)) if place >= len(keys) or keys[place][0] not in left_out])
        rows = np.sort(np.random.default_rng(seed).permutation(known)[: len(known) // 2])

        def error(measured: "list[int]", rows: np.ndarray = rows) -> float:
            chosen = rows[measured]
            fit = refit(first, amounts.pick(chosen), seconds[chosen]) if measured else first
            return float(np.mean(np.abs(fit.predict(amounts.pick(tested)) / seconds[tested] - 1)))

        steps = [row for row in rows if row < len(keys)]
        trials.append(try_methods(error, features[rows], prices[rows], targets=features[steps], seed=seed))
    return gather(trials)


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


def within_a_point(found: list[Curve], full_s: float, full_error: float) -> dict[str, float]:
    """The same ratios where one percentage point counts as equal: 5 % of an error of 1 % is less than any clock's noise."""
    times = {curve.method: time_to_reach(curve, full_error + 0.01) for curve in found}
    return {
        "full_over_d-optimal_within_a_point": full_s / times["d-optimal"],
        "random_over_d-optimal_within_a_point": times["random"] / times["d-optimal"],
    }


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
            **within_a_point(found, full_s, full_error),
        }
        table.append(row)
        if not options.json:
            print(
                f"{name:12} {host:34} before {found[0].error[0]:6.1%} full {full_error:6.1%} in {full_s:7.1f} s | "
                + " ".join(f"{method} {seconds:7.2f} s" for method, seconds in times.items())
                + f" | full {row['full_over_d-optimal']:5.1f}x D, {row['full_over_a-optimal']:5.1f}x A, "
                f"random {row['random_over_d-optimal']:4.1f}x D, {row['random_over_a-optimal']:4.1f}x A | within a point: "
                f"full {row['full_over_d-optimal_within_a_point']:5.1f}x D, "
                f"random {row['random_over_d-optimal_within_a_point']:4.1f}x D",
                flush=True,
            )
        if options.out is not None and drawn:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / f"design-{name}.svg").write_text(
                draw(f"{name}, left out: {host}", found, (full_s, full_error))
            )

    if options.only in ("", "corpus"):
        for fold in range(1 if options.quick else 3):
            add(
                "corpus",
                f"architectures {fold + 1}/5",
                *corpus_curves(fold, num_seeds=min(num_seeds, 4)),
                drawn=fold == 0,
            )
    if not SHARED.exists():
        print(f"the measured data are not here: {SHARED}", file=sys.stderr)
    elif options.only != "corpus":
        for problem in [*operator_problems(), collective_problem()]:
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
