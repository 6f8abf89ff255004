"""Error against measuring time on a GPU left out: D-optimal and random choice of kernels, and the full grid.

    python -m research.studies.design [--only conv2d] [--seeds 3]

What the other GPUs taught is a prior: a regression of log time on logarithms of sizes and of the GPU's peaks. On the left-out
GPU a design chooses kernels to measure, a Bayesian linear model on random Fourier features (a Gaussian process, Rahimi and
Recht 2007) corrects the prior with them, and the error is taken on other kernels of that GPU. A kernel costs 25 calls and 2
ms of preparation. A design knows costs only as its fit forecasts them, and is planned again whenever the time doubles.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from research.output import say
from traincast import catalog
from traincast.design import d_optimal, random_design

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
NUM_CANDIDATES, NUM_ASKED, MOST_ROWS = 400, 400, 3000
CALLS, PREPARE_S = 25, 0.002
SHARES = tuple(2.0**-power for power in (9, 7, 6, 5, 4, 3, 2, 1))
"""Of the time of the full grid, at which a design is planned again."""
NUM_WAVES, LENGTH = 120, 1.2
CONSTANT, SLOPE, SHAPE, NOISE = 0.4, 0.2, 0.2, 0.12
"""Standard deviations, in log time, of what one GPU differs from the others by, and of a measured kernel."""
CLOSE = 1.05
"""A design is done where its error is this close to that of the full grid."""
FP32 = {
    "gemm_linear": ("m", "k", "n"), "gemm_bmm": ("batch", "m", "k", "n"), "softmax": ("rows", "cols"),
    "layernorm": ("rows", "cols"), "conv2d": ("batch", "in_channels", "out_channels", "in_size"),
}  # fmt: skip
HALF = {"gemm": ("m", "n", "k"), "attention_causal": ("batch", "seq", "heads", "kv_heads")}
CATALOGUED = {"gb200": "gb200-186g"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Measured kernels of one sort: log sizes and log peaks, centred, and the GPU that ran each."""

    name: str
    sizes: np.ndarray
    peaks: np.ndarray
    seconds: np.ndarray
    device: np.ndarray


def read(path: Path) -> "dict[str, np.ndarray]":
    from pyarrow import parquet

    table = parquet.read_table(path)
    return {name: np.asarray(table.column(name).to_pylist()) for name in table.schema.names}


def centred(logs: np.ndarray) -> np.ndarray:
    return (logs - logs.mean(axis=0)) / np.maximum(logs.std(axis=0), 1e-9)


def read_tables() -> Iterator[KernelTable]:
    """Kernels in fp32 of older GPUs, and in bf16 (by the runtime with most rows, heads of 128) of current ones."""
    with (SHARED / "gpu_ops" / "gpu_specs.csv").open() as stream:
        records = list(csv.DictReader(stream))
    first, *names = records[0]
    flop = next(name for name in names if "fp32" in name.lower() and "flop" in name.lower())
    memory = next(name for name in names if "bw" in name.lower() or "bandwidth" in name.lower())
    peaks = {one[first]: (float(one[flop]), float(one[memory])) for one in records if one[flop] and one[memory]}
    for file, columns in FP32.items():
        data = read(SHARED / "gpu_ops" / f"{file}.parquet")
        seconds = data["latency_ms"].astype(float) * 1e-3
        # Rows near the dispatch floor say nothing about the kernel (README of the data).
        floors = {gpu: seconds[data["gpu"] == gpu].min() for gpu in set(data["gpu"])}
        kept = np.array([gpu in peaks for gpu in data["gpu"]])
        kept &= seconds > 1.7 * np.array([floors[gpu] for gpu in data["gpu"]])
        logs = np.log(np.column_stack([data[name].astype(float) for name in columns]))[kept]
        machine = np.log(np.array([peaks[gpu] for gpu in data["gpu"][kept]]))
        yield KernelTable(
            name=file, sizes=centred(logs), peaks=centred(machine), seconds=seconds[kept], device=data["gpu"][kept]
        )
    for file, columns in HALF.items():
        data = read(SHARED / "kernels_half" / f"{file}.parquet")
        kept = (data["dtype"] == "bfloat16") & (data["time_s"].astype(float) > 2e-5)
        if "window" in data:
            kept &= (data["window"] == 0) & (data["head_dim"] == 128)
        places: list[int] = []
        for device in sorted(set(data["device"][kept].tolist())):
            here = np.flatnonzero(kept & (data["device"] == device))
            words, counts = np.unique(data["kernel"][here], return_counts=True)
            here = here[data["kernel"][here] == words[counts.argmax()]]
            places += np.random.default_rng(0).permutation(here)[:MOST_ROWS].tolist()
        chips = [catalog.device(CATALOGUED.get(one, one)) for one in data["device"][places].tolist()]
        logs = np.log(np.column_stack([data[one].astype(float) for one in columns]))[places]
        machine = np.log([[chip.matrix_flop_per_s["bf16"], chip.memory_bytes_per_s] for chip in chips])
        yield KernelTable(
            name=f"half_{file}", sizes=centred(logs), peaks=centred(machine),
            seconds=data["time_s"].astype(float)[places], device=data["device"][places],
        )  # fmt: skip


def prior_of(table: KernelTable, left_out: str) -> np.ndarray:
    """ln(seconds) of every row by a smooth surface over sizes and peaks that the other GPUs taught."""
    count = table.sizes.shape[1]
    products = [table.sizes[:, i] * table.sizes[:, j] for i in range(count) for j in range(i, count)]
    features = np.column_stack([np.ones(len(table.sizes)), table.sizes, *products, table.peaks])
    others = table.device != left_out
    gram = features[others].T @ features[others] + 1e-3 * np.eye(features.shape[1])
    weights = np.linalg.solve(gram, features[others].T @ np.log(table.seconds[others]))
    return np.asarray(features @ weights)


def correction_features(sizes: np.ndarray) -> np.ndarray:
    """What one GPU may differ by, in units of the noise of a row."""
    random = np.random.default_rng(1)
    directions = random.normal(size=(sizes.shape[1], NUM_WAVES)) / LENGTH
    waves = np.sqrt(2 / NUM_WAVES) * np.cos(sizes @ directions + random.uniform(0, 2 * np.pi, NUM_WAVES))
    return np.column_stack([np.full(len(sizes), CONSTANT), SLOPE * sizes, SHAPE * waves]) / NOISE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutGpu:
    """Rows of a GPU: the first may be measured, the others are asked about."""

    features: np.ndarray
    prior: np.ndarray
    seconds: np.ndarray
    num_candidates: int

    def forecast_s(self, measured: "list[int]") -> np.ndarray:
        known = self.features[measured]
        missed = (np.log(self.seconds[measured]) - self.prior[measured]) / NOISE
        weights = np.linalg.solve(known.T @ known + np.eye(known.shape[1]), known.T @ missed)
        return np.exp(self.prior + NOISE * self.features @ weights)

    def error(self, measured: "list[int]") -> float:
        asked = slice(self.num_candidates, None)
        return float(np.mean(np.abs(self.forecast_s(measured)[asked] / self.seconds[asked] - 1)))

    @property
    def costs(self) -> np.ndarray:
        return np.asarray(CALLS * self.seconds[: self.num_candidates] + PREPARE_S)


def measure_by(method: str, gpu: LeftOutGpu, *, seed: int) -> Iterator[list[int]]:
    """All that is measured at each share of the time: planned with what is known so far, paid at real prices."""
    costs, measured = gpu.costs, list[int]()
    total = float(costs.sum())
    order = random_design(len(costs), budget=total, costs=costs, seed=seed)
    for share in SHARES:
        left = share * total - float(costs[measured].sum())
        if method == "random":
            planned = [row for row in order if row not in measured]
        else:
            planned = d_optimal(
                gpu.features[: len(costs)], budget=left, ridge=1.0, measured=measured, exchange=False, scaled=False,
                costs=CALLS * gpu.forecast_s(measured)[: len(costs)] + PREPARE_S,
            )  # fmt: skip
        for row in planned:
            if costs[row] > left:
                break
            measured.append(row)
            left -= costs[row]
        yield list(measured)


def time_to_reach(method: str, gpu: LeftOutGpu, target: float, *, seed: int) -> float:
    """Seconds of measuring from which on the error stays at or below the target; those of the full grid where it does not."""
    spent = float(gpu.costs.sum())
    for measured in reversed(list(measure_by(method, gpu, seed=seed))):
        if gpu.error(measured) > target:
            break
        spent = float(gpu.costs[measured].sum())
    return spent


def compare(table: KernelTable, left_out: str, *, num_seeds: int) -> dict[str, float]:
    """Means over seeds: errors before and after the full grid, and the seconds that each way of choosing needs."""
    prior, inside = prior_of(table, left_out), np.flatnonzero(table.device == left_out)
    found = []
    for seed in range(num_seeds):
        rows = np.random.default_rng(seed).permutation(inside)[: NUM_CANDIDATES + NUM_ASKED]
        gpu = LeftOutGpu(
            features=correction_features(table.sizes[rows]), prior=prior[rows], seconds=table.seconds[rows],
            num_candidates=min(NUM_CANDIDATES, len(rows) // 2),
        )  # fmt: skip
        full = gpu.error(list(range(gpu.num_candidates)))
        times = {name: time_to_reach(name, gpu, CLOSE * full, seed=seed) for name in ("d-optimal", "random")}
        found.append({"before": gpu.error([]), "full": full, "grid": float(gpu.costs.sum()), **times})
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="one table, such as conv2d")
    options = parser.parse_args()
    say("| kernels | GPU left out | error before % | full grid % | full grid s | random s | D-optimal s |")
    say("|---|---|--:|--:|--:|--:|--:|")
    ratios = []
    for table in read_tables():
        devices, counts = np.unique(table.device, return_counts=True)
        for device in devices[counts >= NUM_CANDIDATES].tolist() if options.only in ("", table.name) else ():
            one = compare(table, device, num_seeds=options.seeds)
            ratios.append((one["grid"] / one["d-optimal"], one["random"] / one["d-optimal"]))
            say(
                f"| {table.name} | {device} | {100 * one['before']:.1f} | {100 * one['full']:.1f} | {one['grid']:.1f} | "
                f"{one['random']:.2f} | {one['d-optimal']:.2f} |"
            )
    grid, random = np.median(np.array(ratios), axis=0)
    say(
        f"\nmedian: D-optimal needs {grid:.1f} times less measuring than the full grid, {random:.1f} times less than random"
    )


if __name__ == "__main__":
    main()
