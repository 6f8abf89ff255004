"""What 0, 1, 5 and 20 runs of one's own are worth in a new setting: python -m research.studies.own_runs [--seeds N].

A setting is one publisher's runs on one GPU type, 12 runs or more of them in ../shared/cases. Half of its runs, drawn at random,
are asked; of the other half so many are own runs. Of the setting, what ships has seen host constants of the stack and nothing
else. The correction is the one that `learn` makes of few runs (partial pooling); with 6 runs and more `learn` also
cross-validates other answers and takes them where they are surely better.
From scratch: kernel ridge regression on sizes of program and cluster, and an additive linear model of FLOP over peak and bytes
over bandwidth, both fitted to the same own runs alone; the better of the two counts.
"""

import argparse
import math
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from research.fits.interaction_gpu.data import cache_file
from research.papers.images import kernel_ridge
from traincast.accuracy import hide_results, parse_case, read_rows, translate
from traincast.accuracy._cases import parse_observation
from traincast.certainty._gaussian_process import condition
from traincast.certainty._labels import label_run
from traincast.errors import TraincastError
from traincast.files import decode, encode, read_json, write_json
from traincast.forecast import Engine, shares_of
from traincast.spec import MeasuredForecast

Array = NDArray[np.float64]
SHARED = Path(__file__).resolve().parents[3] / "shared"
TABLES = ("single_gpu", "dp", "llm", "mlperf")
MOST_ROWS = 150
"""Of one source and table, evenly."""
LEAST_RUNS = 12
COUNTS = (0, 1, 5, 20)
STEPS = 50
"""That a run needs for a step time to be trusted."""
TIMES = 7.3
"""How many times more runs who starts from scratch is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One measured run with its forecast, and what a fit from scratch may see of it."""

    run: MeasuredForecast
    sizes: tuple[float, ...]
    work: tuple[float, ...]
    """Seconds at the peak and of the bytes at full bandwidth, and one for the start."""


def read_settings() -> dict[tuple[str, str], list[Known]]:
    """Runs by publisher and GPU type; kept in the temporary folder, under the name of the physics that priced them."""
    path = cache_file().with_suffix(".own.json.gz")
    if path.is_file():
        return _load(path)
    engine = Engine(most=500)
    found: dict[tuple[str, str], list[Known]] = defaultdict(list)
    for table in TABLES:
        cases = [
            row
            for row in read_rows(str(SHARED / "cases" / f"{table}.parquet"))
            if row.get("quality") in (None, "clean")
        ]
        sources = sorted({str(row["source"]) for row in cases})
        for source in sources:
            own = [row for row in cases if row["source"] == source]
            picked = sorted({round(x) for x in np.linspace(0, len(own) - 1, MOST_ROWS)})
            for place in picked:
                known = _read(own[place], engine)
                if known is not None:
                    found[source.partition("_")[0], known.run.labels.device].append(known)
            sys.stderr.write(f"{table} {source}: {len(picked)}\n")
    settings = {key: runs for key, runs in found.items() if len(runs) >= LEAST_RUNS}
    rows = [[*key, encode(one.run), one.sizes, one.work] for key, runs in settings.items() for one in runs]
    write_json(path, rows)
    return settings


def _load(path: Path) -> dict[tuple[str, str], list[Known]]:
    found: dict[tuple[str, str], list[Known]] = defaultdict(list)
    for source, device, run, sizes, work in read_json(path):
        decoded = decode(MeasuredForecast, run, where=path.name)
        found[source, device].append(Known(run=decoded, sizes=tuple(sizes), work=tuple(work)))
    return dict(found)


def _read(row: dict[str, object], engine: Engine) -> Known | None:
    try:
        question = translate(parse_case(hide_results([row])[0]))
        seen = parse_observation(row)
        answer = engine.forecast(question.job, question.cluster, question.parallelism)
    except TraincastError:
        return None
    if not seen.scores_time or not seen.step_s:
        return None
    job, cluster, plan = question.job, question.cluster, question.parallelism
    graph, device = job.graph, cluster.groups[0].device
    passes = plan.micro_batches
    peak = max([*device.matrix_flop_per_s.values(), *device.vector_flop_per_s.values()])
    return Known(
        run=MeasuredForecast(
            labels=label_run(job, cluster, plan), shares=shares_of(answer.timeline), forecast_s=answer.step.seconds,
            measured_s=seen.step_s,
        ),
        sizes=tuple(math.log(max(value, 1.0)) for value in (
            graph.flop * passes, graph.num_bytes * passes, graph.num_parameters, graph.batch_size * passes,
            cluster.num_devices, cluster.num_nodes, plan.tensor * plan.pipeline,
        )),
        work=(graph.flop * passes / peak, graph.num_bytes * passes / device.memory_bytes_per_s, 1.0,
              float(cluster.num_devices > 1) * graph.num_parameters),
    )  # fmt: skip


def pooled_errors(own: Sequence[Known], asked: Sequence[Known]) -> Array:
    logs = np.zeros(len(asked))
    if own:
        process = condition([one.run for one in own], shrink=True)
        logs = np.array([one.log_ratio for one in process.predict([(one.run.labels, one.run.shares) for one in asked])])
    said = np.array([one.run.forecast_s for one in asked]) * np.exp(logs)
    return np.abs(said / np.array([one.run.measured_s for one in asked]) - 1)


def scratch_errors(own: Sequence[Known], asked: Sequence[Known]) -> Array:
    """Of the better of two fits to own runs alone."""
    measured = np.array([one.run.measured_s for one in own])
    truth = np.array([one.run.measured_s for one in asked])
    told = kernel_ridge(np.array([one.sizes for one in own]), np.log(measured), reach=1.0)
    black_box = np.exp(np.clip(told(np.array([one.sizes for one in asked])), -20, 20))
    table, wanted = (np.array([one.work for one in runs]) for runs in (own, asked))
    scale = np.maximum(table.max(axis=0), 1e-300)
    weights, _ = nnls(table / scale / measured[:, None], np.ones(len(own)))
    additive = wanted / scale @ weights
    errors = [np.abs(said / truth - 1) for said in (black_box, additive)]
    return min(errors, key=lambda one: float(one.mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    many = [round(TIMES * count) for count in COUNTS if count]
    heads = [f"{count} own" for count in COUNTS] + [f"{count} from scratch" for count in many]
    sys.stdout.write(f"| setting | runs | {' | '.join(heads)} |\n|---|--:|{'--:|' * len(heads)}\n")
    means: dict[str, list[float]] = defaultdict(list)
    worse = []
    for (source, device), runs in sorted(read_settings().items()):
        cells: dict[str, float] = {}
        for count in COUNTS:
            found = [_split(runs, seed, count, pooled_errors) for seed in range(options.seeds)]
            cells[f"{count} own"] = float(np.mean([one for one in found if one is not None]))
        for count in many:
            found = [_split(runs, seed, count, scratch_errors) for seed in range(options.seeds)]
            kept = [one for one in found if one is not None]
            cells[f"{count} from scratch"] = float(np.mean(kept)) if kept else math.nan
        for name, value in cells.items():
            means[name].append(value)
        if cells["5 own"] > 1.05 * cells["0 own"]:
            worse.append(f"{source} {device}: {100 * cells['0 own']:.1f} to {100 * cells['5 own']:.1f}%")
        words = [f"{100 * cells[name]:.1f}" if math.isfinite(cells[name]) else "-" for name in heads]
        sys.stdout.write(f"| {source}, {device} | {len(runs)} | {' | '.join(words)} |\n")
    words = [f"{100 * np.nanmean(means[name]):.1f}" for name in heads]
    sys.stdout.write(f"| mean of {len(means['0 own'])} settings | | {' | '.join(words)} |\n")
    sys.stdout.write(f"worse with 5 runs than with none by more than a twentieth: {'; '.join(worse) or 'none'}\n")
    show_times(read_settings(), options.seeds)
    sys.stdout.write(time_adapting(read_settings()))
    for count, more in zip(COUNTS[1:], many, strict=True):
        both = [
            (a, b)
            for a, b in zip(means[f"{count} own"], means[f"{more} from scratch"], strict=True)
            if math.isfinite(b)
        ]
        sys.stdout.write(
            f"{more} runs from scratch do no better than {count} own runs in {sum(a <= b for a, b in both)} of {len(both)} "
            f"settings\n"
        )


def show_times(settings: dict[tuple[str, str], list[Known]], seeds: int) -> None:
    """How many times more runs a fit from scratch needs for the error that so many own runs leave."""
    for count in (1, 2, 5):
        ratios, open_ended = [], 0
        for runs in settings.values():
            found = [_split(runs, seed, count, pooled_errors) for seed in range(seeds)]
            ours = float(np.mean([one for one in found if one is not None]))
            most = len(runs) // 2
            tried = sorted(
                {min(round(count * times), most) for times in (1, 1.5, 2, 3, 4, 5, 6, TIMES, 10, 15, 25, 50)}
            )
            needed = next((n for n in tried if n >= 2 and _scratch_mean(runs, n, seeds) <= ours), None)
            if needed is None and most < TIMES * count:
                continue
            open_ended += needed is None
            ratios.append((needed or most) / count)
        enough = sum(one >= TIMES for one in ratios)
        sys.stdout.write(
            f"for the error of {count} own runs a fit from scratch needs {np.median(ratios):.1f} times as many at the median of "
            f"{len(ratios)} settings, {TIMES} times or more in {enough}; in {open_ended} all runs there are were too few\n"
        )


def time_adapting(settings: dict[tuple[str, str], list[Known]]) -> str:
    """CPU time of one adaptation by five runs, and the GPU time of the runs themselves."""
    began, count, steps_s = time.process_time(), 0, []
    for runs in settings.values():
        condition([one.run for one in runs[:5]], shrink=True)
        steps_s += [one.run.measured_s * one.run.labels.num_devices for one in runs[:5]]
        count += 1
    return (
        f"adapting to five runs takes {1e3 * (time.process_time() - began) / count:.1f} ms of CPU; {STEPS} steps of a run are "
        f"{STEPS * float(np.median(steps_s)):.0f} GPU seconds at the median, so what costs is runs\n"
    )


def _scratch_mean(runs: Sequence[Known], count: int, seeds: int) -> float:
    found = [_split(runs, seed, count, scratch_errors) for seed in range(seeds)]
    kept = [one for one in found if one is not None]
    return float(np.mean(kept)) if kept else math.inf


def _split(runs: Sequence[Known], seed: int, count: int, method: object) -> float | None:
    """The mean error on half of the runs; None where the other half is smaller than asked for by far."""
    order = np.random.default_rng(seed).permutation(len(runs)).tolist()
    half = len(runs) // 2
    asked, rest = [runs[place] for place in order[:half]], [runs[place] for place in order[half:]]
    if method is scratch_errors and len(rest) < 0.9 * count:
        return None
    return float(method(rest[:count], asked).mean())  # type: ignore[operator]


if __name__ == "__main__":
    main()
