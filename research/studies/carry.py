"""What one run of a model elsewhere is worth: python -m research.studies.carry [--every 4] (seconds once the steps are read).

Image models of ../shared/data/timm under one condition (GPU, memory format, mode, compiler) are asked under another, each with
its own run under the first as the only one known. Forecasts are those of the layers. `carried` of the document `own_runs` is
tried at several values: how much of what a forecast misses travels with the model.
"""

import argparse
import math
import sys
from dataclasses import replace

import numpy as np

import traincast.certainty._gaussian_process as process
from research.fits.interaction_gpu.data import Data, read_everything
from traincast.spec import MIX_KINDS, MeasuredForecast, RunLabels

PAIRS = (
    ("3090 eager 2.4", "4090 eager 2.4"), ("4090 eager 2.4", "4090 eager 2.9.1"), ("3090 eager 2.4", "3090 NHWC 2.4"),
    ("train NCHW", "train NHWC"), ("train NCHW", "3090 eager 2.4"), ("3090 eager 2.4", "4090 compiled 2.9.1"),
)  # fmt: skip
TRIED = (0.0, 0.15, 0.3, 0.4)
Runs = dict[str, dict[str, MeasuredForecast]]


def read_runs(data: Data) -> Runs:
    """By condition and model."""
    found: Runs = {}
    for row in data.rows:
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
            forecast_s=float(row.of("layers_s")[0]),
            measured_s=row.measured_s,
        )
    return found


def carry(known: dict[str, MeasuredForecast], asked: dict[str, MeasuredForecast]) -> tuple[int, float, float]:
    """Models of both, and the mean error without and with the one run."""
    errors = []
    for name in sorted(set(known) & set(asked)):
        one = asked[name]
        told = process.condition([known[name]], shrink=True).predict([(one.labels, one.shares)])[0].log_ratio
        missed = math.log(one.measured_s / one.forecast_s)
        errors.append((abs(math.expm1(-missed)), abs(math.expm1(told - missed))))
    without, given = np.mean(errors, axis=0).tolist()
    return len(errors), without, given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=4)
    runs, shipped = read_runs(read_everything(every=parser.parse_args().every)), process.SIGMA
    for before, after in PAIRS:
        cells = []
        for tried in TRIED:
            process.SIGMA = replace(shipped, carried=tried)
            number, without, given = carry(runs[before], runs[after])
            cells.append(f"{tried}: {100 * given:.1f}%")
        sys.stdout.write(f"{before} -> {after}, {number} models: {100 * without:.1f}% without, {', '.join(cells)}\n")
    process.SIGMA = shipped


if __name__ == "__main__":
    main()
