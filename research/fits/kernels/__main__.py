"""`python -m research.fits.kernels`: measured kernels in, the shipped constants and the table of left-out devices out."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from research.fits.kernels import attention, experts, products
from research.fits.kernels.solve import Array, Constants, Problem, score, solve
from research.fits.kernels.tables import CATALOGUE_NAME, DEVICES, Table
from traincast.cost._laws import KERNELS
from traincast.cost._products import ProductLaw
from traincast.units import NORMAL_90

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "kernels_half"


STEP = {"step_load": 1.25, "step_share": 0.94}
"""From whole steps: the middle of what research.fits.kernels.steps chooses with each source left out."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def leave_out(
    problem: Problem, table: Table, starts: Mapping[str, Constants], free: Sequence[str], title: str
) -> tuple[dict[str, Array], dict[str, Constants]]:
    """Log errors of the scored rows of each device by constants that saw none of its rows, and those constants.

    `starts`: where the fit without a device begins; what is not free there must not have seen the device either.
    """
    found: dict[str, Array] = {}
    folds: dict[str, Constants] = {}
    means = []
    for name in sorted(set(table["device"])):
        here = table["device"] == name
        values = folds[name] = solve(problem, starts[name], free, chosen=~here)
        asked = here & table["scored"]
        predicted = problem.predict(values, asked)
        scores = score(predicted, problem.seconds[asked])
        found[name] = np.log(predicted / problem.seconds[asked])
        means.append(scores.mean)
        say(f"{title:26} {name:16} left out  {scores}")
    say(f"{title:26} {'mean of devices':16} left out  mean {np.mean(means):.1%}")
    return found, folds


def spread_of(errors: Mapping[str, Array]) -> dict[str, float]:
    """log_sigma of single kernels on a known device, and of the level of a device left out."""
    single = np.concatenate([values - np.median(values) for values in errors.values()])
    levels = np.array([np.median(values) for values in errors.values()])
    return {
        "log_sigma": round(float(np.quantile(np.abs(single), 0.9) / NORMAL_90), 4),
        "level_log_sigma": round(float(np.sqrt(np.mean(levels**2))), 4),
    }


def fit(problem: Problem, table: Table, start: Constants, free: Sequence[str], title: str) -> Constants:
    everything = np.ones(len(table), dtype=bool)
    values = solve(problem, start, free, chosen=everything)
    asked = table["scored"]
    say(f"{title:26} {'all devices':16} in sample {score(problem.predict(values, asked), problem.seconds[asked])}")
    return values


def fit_experts(folder: Path, laws: Mapping[str, ProductLaw]) -> dict[str, float]:
    """Constants that layers in bf16 fit; layers in fp8, whose casts are inside, are scored with them."""
    found: dict[str, float] = {}
    for dtype, short in experts.FORMATS.items():
        rows = experts.read_rows(folder, dtype)
        problem = experts.pose(rows, laws[short], short)
        scored = set(rows["device"])
        if not found:
            recent = rows.where(~np.isin(rows["device"], experts.OLD_KERNELS))
            fitted = experts.pose(recent, laws[short], short)
            free, title = list(experts.START), f"experts, {dtype}"
            values = fit(fitted, recent, experts.START, free, title)
            errors, _ = leave_out(fitted, recent, dict.fromkeys(DEVICES, experts.START), free, title)
            found = {"share": values["share"], "padding": values["padding"], **spread_of(errors)}
            scored = set(experts.OLD_KERNELS)
        for name in sorted(scored):
            here = rows["device"] == name
            say(
                f"{'experts, ' + dtype:26} {name:16} as in bf16 {score(problem.predict(values, here), problem.seconds[here])}"
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", type=Path, default=DATA)
    parser.add_argument("--write", action="store_true", help="replace the shipped constants")
    options = parser.parse_args()
    shipped: dict[str, Any] = {"fitted_by": "python -m research.fits.kernels --write"}
    shipped["devices"] = [CATALOGUE_NAME.get(name, name) for name in DEVICES]

    plain = products.read_rows(options.data, "bfloat16")
    problem = products.pose(plain, "bf16")
    half = fit(problem, plain, products.START, list(products.START), "products, bf16")
    same = dict.fromkeys(DEVICES, products.START)
    errors, folds = leave_out(problem, plain, same, list(products.START), "products, bf16")
    shipped["products_half"] = {**half, **STEP, **spread_of(errors)}

    short = products.read_rows(options.data, "fp8")
    problem = products.pose(short, "fp8")
    fp8 = fit(problem, short, half, products.SHAPE_OF_FP8, "products, fp8, no cast")
    errors, _ = leave_out(problem, short, folds, products.SHAPE_OF_FP8, "products, fp8, no cast")
    shipped["products_fp8"] = {**fp8, **STEP, **spread_of(errors)}

    fused = attention.read_rows(options.data)
    problem = attention.pose(fused, products.read_law(half))
    values = fit(problem, fused, attention.START, list(attention.START), "attention, bf16, forward")
    same = dict.fromkeys(DEVICES, attention.START)
    errors, blind = leave_out(problem, fused, same, list(attention.START), "attention, bf16, forward")
    narrow = attention.read_windows(options.data)
    windows = attention.pose(narrow, products.read_law(half))
    for name in sorted(set(narrow["device"])):
        here = narrow["device"] == name
        say(
            f"{'attention, windows':26} {name:16} left out  {score(windows.predict(blind[name], here), windows.seconds[here])}"
        )
    shipped["attention"] = {**values, "backward_share": attention.BACKWARD_SHARE, **spread_of(errors)}
    shipped["groups"] = fit_experts(options.data, {"bf16": products.read_law(half), "fp8": products.read_law(fp8)})
    if options.write:
        KERNELS.write_text(json.dumps(shipped, indent=1) + "\n", encoding="utf-8")
        say(f"wrote {KERNELS}")


if __name__ == "__main__":
    main()
