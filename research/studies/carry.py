"""What one run of a model elsewhere is worth: python -m research.studies.carry [--every 4] (seconds once the steps are read).

Image models of ../shared/data/timm under one condition (GPU, memory format, mode, compiler) are asked under another, each with
its own run under the first as the only one known. Forecasts are those that ship, by factors of classes that saw nothing of the
family. `carried` of the document `own_runs` is tried at several values: how much of an error travels with the model.
Then the same for publishers whose runs did not suggest it, from one GPU type to all others.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import traincast.certainty._gaussian_process as process
from research.fits.interaction_gpu.__main__ import inference_rows, leave_out
from research.fits.interaction_gpu.data import Data, read_everything
from research.fits.interaction_gpu.members import Table
from research.studies.own_runs import read_settings
from traincast.spec import MIX_KINDS, MeasuredForecast, RunLabels

PAIRS = (
    ("3090 eager 2.4", "4090 eager 2.4"), ("4090 eager 2.4", "4090 eager 2.9.1"), ("3090 eager 2.4", "3090 NHWC 2.4"),
    ("train NCHW", "train NHWC"), ("train NCHW", "3090 eager 2.4"), ("3090 eager 2.4", "4090 compiled 2.9.1"),
)  # fmt: skip
TRIED = (0.0, 0.15, 0.3, 0.4, 0.6)
Runs = dict[str, dict[str, MeasuredForecast]]


def read_runs(data: Data) -> Runs:
    """By condition and model."""
    found: Runs = {}
    table = Table.of(data)
    forecasts_s = np.exp(leave_out(data, table, inference_rows(data))).tolist()
    for row, forecast_s in zip(data.rows, forecasts_s, strict=True):
        program = data.programs[row.program]
        if program.source != "timm":
            continue
        name, training = program.name.split()[0], "train" in row.condition
        mix = np.zeros(len(MIX_KINDS))
        for sort, share in program.shares.items():
            kind = sort.removeprefix("fused ").split()[0]
            mix[MIX_KINDS.index(kind if kind in MIX_KINDS else "other")] += share
        labels = RunLabels(
            model=name, family=program.family, mode="training_step" if training else "inference", precision="fp16-amp",
            device="rtx-4090" if "4090" in row.condition else "rtx-3090", stack="old" if training else "new",
            compiled="compiled" in row.condition, num_parameters=10 ** float(row.of("setting")[-1]),
            pass_tokens=float(program.batch), mix=tuple(mix.tolist()),
        )  # fmt: skip
        found.setdefault(row.condition, {})[name] = MeasuredForecast(
            labels=labels,
            shares=(0.4, 0.6, 0.0, 0.0, 0.0),
            forecast_s=forecast_s,
            measured_s=row.measured_s,
        )
    return found


def carry(pairs: Sequence[tuple[MeasuredForecast, MeasuredForecast]]) -> tuple[float, float]:
    """The mean error of each second run without and with the first known."""
    errors = []
    for known, asked in pairs:
        told = process.condition([known], shrink=True).predict([(asked.labels, asked.shares)])[0].log_ratio
        missed = math.log(asked.measured_s / asked.forecast_s)
        errors.append((abs(math.expm1(-missed)), abs(math.expm1(told - missed))))
    without, given = np.mean(errors, axis=0).tolist()
    return without, given


def pair_publishers() -> dict[str, list[tuple[MeasuredForecast, MeasuredForecast]]]:
    """Runs on one GPU, each with the run of the same model on each other GPU type whose batch is nearest."""
    found: dict[str, list[tuple[MeasuredForecast, MeasuredForecast]]] = {}
    settings = {
        key: [one.run for one in runs if one.run.labels.num_devices == 1] for key, runs in read_settings().items()
    }
    for (source, device), runs in settings.items():
        others = [known for (name, there), known in settings.items() if name == source and there != device]
        for asked, known in itertools.product(runs, others):
            mates = [run for run in known if run.labels.model == asked.labels.model]
            if mates:
                batch = asked.labels.pass_tokens
                nearest = min(mates, key=lambda run: abs(math.log(run.labels.pass_tokens / batch)))
                found.setdefault(source, []).append((nearest, asked))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=4)
    runs, shipped = read_runs(read_everything(every=parser.parse_args().every)), process.SIGMA
    pairs = {
        f"{before} -> {after}": [
            (runs[before][one], runs[after][one]) for one in sorted({*runs[before]} & {*runs[after]})
        ]
        for before, after in PAIRS
    }
    for name, each in (*pairs.items(), *pair_publishers().items()):
        cells = []
        for tried in TRIED:
            process.SIGMA = replace(shipped, carried=tried)
            without, given = carry(each)
            cells.append(f"{tried}: {100 * given:.1f}%")
        sys.stdout.write(f"{name}, {len(each)} runs: {100 * without:.1f}% without, {', '.join(cells)}\n")
    process.SIGMA = shipped


if __name__ == "__main__":
    main()
