"""A GPU type as a new setting: what a few runs of one's own are worth. Run: python -m research.studies.new_gpu [--asked N]

The RTX 4090 is left out of nothing that ships but is new to the user, who measures 0, 5, 10 or 20 image models on it (drawn at
random, three seeds) and asks about models of other families. `learn` is the library's, as `traincast learn` calls it. From
scratch: Ernest and a black box fitted to the same runs alone.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.data import TIMM, image_models
from research.output import say
from research.papers.images import kernel_ridge
from traincast import catalog
from traincast.forecast import Engine, label_run
from traincast.learn import learn
from traincast.spec import Calibration, Cluster, Job, MeasuredRun, Parallelism

Array = NDArray[np.float64]
CONDITION = "4090_e_2.9.1"
COUNTS = (0, 5, 10, 20)
SEEDS = 3
PLAN = Parallelism()


def read_runs(limit: int) -> list[tuple[str, MeasuredRun]]:
    """Families and runs, evenly over the table."""
    from pyarrow import parquet

    cluster: Cluster = catalog.cluster(device="rtx-4090", devices_per_node=1)
    table: list[dict[str, Any]] = [
        row for row in parquet.read_table(TIMM / "graphs" / "infer_index.parquet").to_pylist() if row[CONDITION]
    ]
    picked = [table[round(place)] for place in np.linspace(0, len(table) - 1, limit)]
    runs = []
    for row in picked:
        graph = image_models.without_norm_casts(image_models.read_graph(TIMM / "graphs" / row["graph"]))
        job = Job(graph=graph)
        labels = label_run(job, cluster, PLAN)
        run = MeasuredRun(
            labels=labels, job=job, cluster=cluster, parallelism=PLAN, step_s=row[CONDITION], name=row["model"]
        )
        runs.append((row["module"], run))
    return runs


def ask(runs: Sequence[MeasuredRun], calibration: Calibration | None) -> Array:
    engine = Engine(calibration=calibration)
    found = [engine.forecast(run.job, run.cluster, PLAN).step.seconds / run.step_s for run in runs]
    return np.abs(np.array(found) - 1)


def black_box(known: Sequence[MeasuredRun], asked: Sequence[MeasuredRun]) -> Array:
    def sizes(runs: Sequence[MeasuredRun]) -> Array:
        return np.log([[run.job.graph.flop, run.job.graph.num_bytes, run.job.graph.batch_size] for run in runs])

    logs = np.log([run.step_s for run in known])
    answers = np.exp(kernel_ridge(sizes(known), logs, reach=1.0)(sizes(asked)))
    return np.abs(answers / np.array([run.step_s for run in asked]) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asked", type=int, default=60)
    options = parser.parse_args()
    everything = read_runs(options.asked)
    families = sorted({family for family, _ in everything})
    say(
        "| own runs | n | mean % | median % | p90 % | a black box from these runs alone, mean % |\n|--:|--:|--:|--:|--:|--:|"
    )
    for count in COUNTS:
        errors, alone = [], []
        for seed in range(SEEDS):
            draw = np.random.default_rng(seed)
            own = set(draw.permutation(families)[: len(families) // 2].tolist())
            known = [run for family, run in everything if family in own]
            asked = [run for family, run in everything if family not in own]
            picked = [known[place] for place in draw.permutation(len(known))[:count]]
            calibration = learn(picked, name="mine") if picked else None
            errors.append(ask(asked, calibration))
            if picked:
                alone.append(black_box(picked, asked))
        found = np.concatenate(errors)
        other = f"{100 * np.concatenate(alone).mean():.1f}" if alone else "-"
        say(
            f"| {count} | {len(found)} | {100 * found.mean():.1f} | {100 * np.median(found):.1f} | "
            f"{100 * np.quantile(found, 0.9):.1f} | {other} |"
        )


if __name__ == "__main__":
    main()
