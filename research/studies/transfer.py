"""Tables of many machines to what all but one of them teach about it: a prior for log time and the features that correct it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.spatial import KDTree

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
NUM_FOURIER = 120


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
    shared: float = 0.2
    """Of the share of the others' common need that holds here, around `kept`."""
    single: float = 0.1
    """Of the weight of one other machine."""
    near: float = 0.1
    """Distance in log sizes over which a shape of another machine speaks for this one."""
    kept: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What other machines say about rows: ln(seconds) by sizes and peaks; by row, machine and neighbour, how far the nearest
    measured shapes are and what they needed beyond that."""

    logs: np.ndarray
    regression: np.ndarray
    distances: np.ndarray
    residuals: np.ndarray


NEAR = (0.02, 0.08, 0.2, 0.5)
NUM_NEIGHBOURS, LEAST_ROWS = 4, 60
TRIED = {
    "length": (0.5, 0.8, 1.2, 2.0, 3.5), "constant": (0.1, 0.2, 0.4, 0.8), "slope": (0.01, 0.03, 0.1, 0.2, 0.4),
    "shape": (0.02, 0.05, 0.1, 0.2, 0.4, 0.8), "noise": (0.015, 0.03, 0.06, 0.12, 0.2, 0.3),
    "shared": (0.03, 0.1, 0.3, 0.6), "single": (0.03, 0.1, 0.2, 0.4),
}  # fmt: skip


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


HALF = {
    "half_gemm": ("gemm", ("m", "n", "k")),
    "half_attention": ("attention_causal", ("batch", "seq", "heads", "kv_heads")),
}
"""Tables of half-precision kernels and the sizes that describe a row."""
MOST_HALF = 3000
"""Rows of one device that are looked at, drawn once."""


def half_problems() -> Iterator[Problem]:
    """Half-precision kernels of current GPUs (bf16, heads of 128, no window); all runtimes of a device together are one."""
    from traincast import catalog

    for name, (file, sizes) in HALF.items():
        data = read(SHARED / "kernels_half" / f"{file}.parquet")
        kept = (data["dtype"] == "bfloat16") & (data["time_s"].astype(float) > 2e-5)
        if "window" in data:
            kept &= (data["window"] == 0) & (data["head_dim"] == 128)
        places: list[int] = []
        runtimes = np.array(
            [f"{device} {kernel}" for device, kernel in zip(data["device"], data["kernel"], strict=True)]
        )
        for device in sorted(set(data["device"][kept].tolist())):
            here = np.flatnonzero(kept & (data["device"] == device))
            # The runtime with most rows: kernels of several would be noise to a model of sizes alone.
            words, counts = np.unique(runtimes[here], return_counts=True)
            here = here[runtimes[here] == words[counts.argmax()]]
            places += np.random.default_rng(0).permutation(here)[:MOST_HALF].tolist()
        chips = [catalog.device(_CATALOGUED.get(one, one)) for one in data["device"][places].tolist()]
        logs = centred(np.log(np.column_stack([data[one].astype(float) for one in sizes]))[places])
        machine = np.log([[chip.matrix_flop_per_s["bf16"], chip.memory_bytes_per_s] for chip in chips])
        yield Problem(
            name=name,
            logs=logs,
            sizes=quadratic(logs),
            machine=centred(machine),
            seconds=data["time_s"].astype(float)[places],
            host=data["device"][places],
        )


_CATALOGUED = {"gb200": "gb200-186g"}


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


def ask_others(
    problem: Problem, rows: np.ndarray, *, without: "list[str]", trees: "dict[str, KDTree]", random: np.random.Generator,
    limit: int = 20_000,
) -> Lesson:  # fmt: skip
    others = random.permutation(np.flatnonzero(~np.isin(problem.host, without)))[:limit]
    features = np.column_stack([problem.sizes, problem.machine])
    weights = ridge_fit(features[others], np.log(problem.seconds[others]), 1e-3)
    asked = [host for host in sorted(trees) if host not in without]
    distances, residuals = np.zeros((2, len(rows), len(asked), NUM_NEIGHBOURS))
    for place, host in enumerate(asked):
        inside = problem.host == host
        needed = np.log(problem.seconds[inside]) - features[inside] @ weights
        distances[:, place], nearest = trees[host].query(problem.logs[rows], k=NUM_NEIGHBOURS)
        residuals[:, place] = (needed - needed.mean())[nearest]
    return Lesson(
        logs=problem.logs[rows], regression=features[rows] @ weights, distances=distances, residuals=residuals
    )


def trees_of(problem: Problem) -> "dict[str, KDTree]":
    hosts = {host: problem.host == host for host in set(problem.host)}
    return {host: KDTree(problem.logs[inside]) for host, inside in hosts.items() if inside.sum() >= LEAST_ROWS}


def shape_needs(lesson: Lesson, near: float) -> tuple[np.ndarray, np.ndarray]:
    """What each shape needed beyond the regression on the others together, and how each of them differed from that."""
    weights = np.exp(-0.5 * (lesson.distances / near) ** 2)
    each = (weights * lesson.residuals).sum(axis=2) / np.maximum(weights.sum(axis=2), 1e-12)
    trust = weights.max(axis=2)
    shared = (trust * each).sum(axis=1) / (trust.sum(axis=1) + 0.1)
    return shared, trust * (each - shared[:, None])


def prior_of(lesson: Lesson, spreads: Spreads) -> np.ndarray:
    """ln(seconds) of rows before anything is measured on their machine."""
    return np.asarray(lesson.regression + spreads.kept * shape_needs(lesson, spreads.near)[0])


def correction_features(lesson: Lesson, spreads: Spreads) -> np.ndarray:
    random = np.random.default_rng(1)
    logs = lesson.logs
    directions = random.normal(size=(logs.shape[1], NUM_FOURIER)) / spreads.length
    waves = np.sqrt(2 / NUM_FOURIER) * np.cos(logs @ directions + random.uniform(0, 2 * np.pi, NUM_FOURIER))
    shared, single = shape_needs(lesson, spreads.near)
    return np.column_stack([
        np.full(len(logs), spreads.constant), spreads.slope * logs, spreads.shape * waves, spreads.shared * shared,
        spreads.single * single,
    ])  # fmt: skip


def noise_of(prior: np.ndarray, spreads: Spreads) -> np.ndarray:
    """Near the dispatch floor a row says less about its kernel."""
    return np.sqrt(spreads.noise**2 + np.exp(2 * (prior.min() - prior)))


def learn_spreads(problem: Problem, left_out: str, *, trees: "dict[str, KDTree]", num_rows: int = 250) -> Spreads:
    """Under which the corrections that the other machines needed are most probable."""
    random = np.random.default_rng(7)
    lessons = []
    for host in sorted(set(trees) - {left_out}):
        rows = random.permutation(np.flatnonzero(problem.host == host))[:num_rows]
        lesson = ask_others(problem, rows, without=[left_out, host], trees=trees, random=random, limit=8_000)
        lessons.append((lesson, np.log(problem.seconds[rows])))

    def evidence(spreads: Spreads) -> float:
        total = 0.0
        for lesson, log_seconds in lessons:
            prior = prior_of(lesson, spreads)
            noise = noise_of(prior, spreads)
            features, target = correction_features(lesson, spreads) / noise[:, None], (log_seconds - prior) / noise
            normal, slope = features.T @ features + np.eye(features.shape[1]), features.T @ target
            explained = slope @ np.linalg.solve(normal, slope)
            total -= 0.5 * (target @ target - explained + np.linalg.slogdet(normal)[1]) + np.log(noise).sum()
        return float(total)

    best = carry_over(lessons)
    value = evidence(best)
    for _ in range(2):
        for name, tried in TRIED.items():
            for number in tried:
                other = replace(best, **{name: number})
                found = evidence(other) if other != best else value
                if found > value:
                    best, value = other, found
    return best


def carry_over(lessons: "list[tuple[Lesson, np.ndarray]]") -> Spreads:
    """How far a shape speaks for its neighbours, and how much of what it needed elsewhere holds here: by least squares,
    after each machine's own constant and slopes."""
    best, least = Spreads(), math.inf
    for near in NEAR:
        here, there = [], []
        for lesson, log_seconds in lessons:
            own = np.column_stack([np.ones(len(log_seconds)), lesson.logs])
            both = np.column_stack([log_seconds - lesson.regression, shape_needs(lesson, near)[0]])
            both -= own @ np.linalg.lstsq(own, both, rcond=None)[0]
            here.append(both[:, 0])
            there.append(both[:, 1])
        target, known = np.concatenate(here), np.concatenate(there)
        kept = float(known @ target / max(known @ known, 1e-12))
        missed = float(np.mean((target - kept * known) ** 2))
        if missed < least:
            best, least = replace(best, near=near, kept=kept), missed
    return best


def ridge_fit(features: np.ndarray, target: np.ndarray, ridge: float) -> np.ndarray:
    gram = features.T @ features + ridge * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ target)
