"""`python -m research.fits.operators`: measured operators in, the shipped weights and the table of left-out errors out."""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.fits.operators.data import read_rows
from research.fits.operators.models import Recipe, fit_learned, leave_devices_out, widen
from traincast.cost._learned import WEIGHTS, Learned
from traincast.errors import TraincastError
from traincast.files import write_safetensors

DEFAULT_DATA = Path("../shared/data/gpu_ops")


def save(learned: Learned, path: Path) -> None:
    arrays: dict[str, NDArray[np.float64]] = {}
    names = {}
    for family, voices in learned.families.items():
        names[family] = list(voices.names)
        for part in ("places", "handicap", "mean", "scale", "low", "high"):
            arrays[f"{family}.{part}"] = getattr(voices, part)
        for index, layer in enumerate(voices.layers):
            arrays[f"{family}.layer{index}"] = layer.astype(np.float64)
        arrays[f"{family}.sigma"] = np.array([voices.sigma_seen, voices.sigma_unseen])
    constants = {
        "similarity": asdict(learned.similarity),
        "law": asdict(learned.law),
    }
    notes = {
        "names": json.dumps(names, sort_keys=True),
        "constants": json.dumps(constants, sort_keys=True),
        "data": "NeuSight (ASPLOS'25) operator and node latencies, MIT, Georgia Institute of Technology and Microsoft",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, arrays, notes)


def summarize(blind: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> list[dict[str, object]]:
    return [
        {
            "family": family,
            "left_out": name,
            "rows": len(residuals),
            "mean_abs": round(float(np.mean(np.abs(residuals))), 4),
            "median_abs": round(float(np.median(np.abs(residuals))), 4),
            "p90_abs": round(float(np.quantile(np.abs(residuals), 0.9)), 4),
            "bias": round(float(np.median(residuals)), 4),
        }
        for family, devices in blind.items()
        for name, residuals in devices.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m research.fits.operators", description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="directory of the measured operators")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where to write the weights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--max-rows", type=int, default=4000, help="rows per operator, device and file, drawn at random"
    )
    parser.add_argument("--members", type=int, default=Recipe().num_members)
    parser.add_argument(
        "--folds", action=argparse.BooleanOptionalAction, default=True, help="leave every device out once"
    )
    options = parser.parse_args(arguments)
    started_s = time.perf_counter()
    try:
        rows = read_rows(options.data, max_rows=options.max_rows, seed=options.seed)
    except TraincastError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    recipe = Recipe(seed=options.seed, num_members=options.members)
    learned = fit_learned(rows, recipe=recipe)
    table: list[dict[str, object]] = []
    if options.folds:
        blind = leave_devices_out(rows, recipe=replace(recipe, num_members=1))
        learned = widen(learned, blind)
        table = summarize(blind)
    save(learned, options.out)
    sys.stdout.write(json.dumps(table, indent=1) + "\n")
    sys.stderr.write(f"wrote {options.out} after {time.perf_counter() - started_s:.0f} s; {learned.law}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
