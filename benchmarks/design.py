"""Curves of error against measuring time: D-optimal, A-optimal, random and the full grid, on machines left out.

    python benchmarks/design.py --out docs/theory           # all curves, about two minutes
    python benchmarks/design.py --quick

A machine (GPU, or host of collectives) is left out. What the others taught is a prior: a regression of log time on
logarithms of sizes and of the machine's peaks. On the left-out machine a design chooses rows to measure, a Bayesian
linear model on random Fourier features (a Gaussian process, Rahimi and Recht 2007) corrects the prior with them, and the
error is taken on other rows of that machine. Rows near the dispatch floor count as noisier, in the design and in the fit.
A row costs 25 calls and 2 ms of preparation, as the data were recorded.

Length scale, prior deviations and noise were set while looking at four left-out machines (linear on A100-PCIe-40GB, bmm on
A100-PCIe-80GB, conv on P4, all-reduce on the pairwise A100), which are marked in the table; all others are fresh.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from traincast.design import a_optimal, d_optimal, random_design

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
NUM_CANDIDATES, NUM_TEST, NUM_SEEDS = 500, 800, 3
CALLS, PREPARE_S = 25, 2e-3
NUM_FOURIER, LENGTH_SCALE = 40, 1.5
CONSTANT_SPREAD, SLOPE_SPREAD, SHAPE_SPREAD, NOISE = 0.4, 0.15, 0.25, 0.12
"""Prior deviations of the correction and of one row, in log time."""
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


def prior_of(problem: Problem, left_out: str, random: np.random.Generator) -> np.ndarray:
    """ln(seconds) of the left-out machine's rows as the other machines suggest them."""
    inside = problem.host == left_out
    others = np.flatnonzero(~inside)
    others = random.permutation(others)[:20_000]
    features = np.column_stack([problem.sizes, problem.machine])
    return features[inside] @ ridge_fit(features[others], np.log(problem.seconds[others]), 1e-3)


def correction_features(logs: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(1)
    directions = random.normal(size=(logs.shape[1], NUM_FOURIER)) / LENGTH_SCALE
    waves = np.sqrt(2 / NUM_FOURIER) * np.cos(logs @ directions + random.uniform(0, 2 * np.pi, NUM_FOURIER))
    return np.column_stack([np.full(len(logs), CONSTANT_SPREAD), SLOPE_SPREAD * logs, SHAPE_SPREAD * waves])


def ridge_fit(features: np.ndarray, target: np.ndarray, ridge: float) -> np.ndarray:
    gram = features.T @ features + ridge * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ target)


def curves(problem: Problem, left_out: str, *, num_seeds: int) -> tuple[list[Curve], float, float]:
    """One curve per method, and the error and cost of measuring every candidate."""
    runs: dict[str, list[list[tuple[float, float]]]] = {method: [] for method in METHODS}
    full: list[tuple[float, float]] = []
    for seed in range(num_seeds):
        random = np.random.default_rng(seed)
        prior = prior_of(problem, left_out, random)
        inside = np.flatnonzero(problem.host == left_out)
        order = random.permutation(len(inside))
        chosen, tested = order[:NUM_CANDIDATES], order[NUM_CANDIDATES : NUM_CANDIDATES + NUM_TEST]
        features = correction_features(problem.logs[inside])
        seconds = problem.seconds[inside]
        costs = CALLS * seconds[chosen] + PREPARE_S
        residual = np.log(seconds) - prior
        noise = np.sqrt(NOISE**2 + np.exp(2 * (prior.min() - prior)))
        weighted = features / noise[:, None]

        def error(
            rows: list[int], chosen: np.ndarray = chosen, tested: np.ndarray = tested, residual: np.ndarray = residual / noise,
            features: np.ndarray = features, prior: np.ndarray = prior, seconds: np.ndarray = seconds,
            weighted: np.ndarray = weighted,
        ) -> float:  # fmt: skip
            measured = chosen[rows]
            correction = features[tested] @ ridge_fit(weighted[measured], residual[measured], 1.0) if rows else 0.0
            predicted = np.exp(prior[tested] + correction)
            return float(np.mean(np.abs(predicted / seconds[tested] - 1)))

        total = float(costs.sum())
        full.append((total, error(list(range(len(chosen))))))
        for method in METHODS:
            runs[method].append([(0.0, error([]))])
            for power in (9, 7, 6, 5, 4, 3, 2, 1, 0):
                budget = total / 2**power
                rows = plan(method, weighted[chosen], costs, budget, seed)
                runs[method][-1].append((float(costs[rows].sum()), error(rows)))
    found = [summarise(method, points) for method, points in runs.items()]
    return found, float(np.mean([spent for spent, _ in full])), float(np.mean([value for _, value in full]))


def plan(method: str, features: np.ndarray, costs: np.ndarray, budget: float, seed: int) -> list[int]:
    if method == "random":
        return random_design(len(features), budget=budget, costs=costs, seed=seed)
    if budget >= costs.sum() * 0.99:
        return list(range(len(features)))
    if method == "d-optimal":
        return d_optimal(features, budget=budget, costs=costs, ridge=1.0, exchange=False, scaled=False)
    return a_optimal(features, budget=budget, costs=costs, ridge=1.0, targets=features[::4], scaled=False)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="directory for the drawings")
    parser.add_argument("--quick", action="store_true", help="two machines each, two seeds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not SHARED.exists():
        print(f"the measured data are not here: {SHARED}", file=sys.stderr)
        return 2
    num_seeds = 2 if options.quick else NUM_SEEDS
    table: list[dict[str, object]] = []
    for problem in [*operator_problems(), collective_problem()]:
        hosts = [
            host for host in sorted(set(problem.host)) if (problem.host == host).sum() >= NUM_CANDIDATES + NUM_TEST // 2
        ]
        for number, host in enumerate(hosts[:2] if options.quick else hosts):
            found, full_s, full_error = curves(problem, host, num_seeds=num_seeds)
            target = 1.05 * full_error
            times = {curve.method: time_to_reach(curve, target) for curve in found}
            row: dict[str, object] = {
                "data": problem.name,
                "left_out": host,
                "seen_while_tuning": (problem.name, host) in SEEN,
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
                    f"{problem.name:12} {host:34} before {found[0].error[0]:6.1%} full {full_error:6.1%} in {full_s:7.1f} s | "
                    + " ".join(f"{method} {seconds:7.2f} s" for method, seconds in times.items())
                    + f" | full {row['full_over_d-optimal']:5.1f}x, random {row['random_over_d-optimal']:4.1f}x the time of D, "
                    f"random {row['random_over_a-optimal']:4.1f}x the time of A",
                    flush=True,
                )
            if options.out is not None and number == 0:
                options.out.mkdir(parents=True, exist_ok=True)
                name = f"design-{problem.name}.svg"
                title = f"{problem.name}, left out: {host}"
                (options.out / name).write_text(draw(title, found, (full_s, full_error)))
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
