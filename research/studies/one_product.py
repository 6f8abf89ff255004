"""One product measured on a device that no fit has seen: python -m research.studies.one_product [DATA]

The law of products in bf16 is fitted without a device. Then one product of that device, timed by each runtime as by a user of its
own, moves the level of its arithmetic as `traincast calibrate --gemm` does, and all products with 1,024 rows and more are scored.
Which product to ask for is chosen on the other devices.
"""

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from research.fits.kernels import products
from research.fits.kernels.__main__ import DATA
from research.fits.kernels.solve import Constants, score, solve
from research.fits.kernels.tables import Table, find_device, read_products
from traincast.cost import time_products
from traincast.learn import believe

SIZES = (2048.0, 4096.0, 8192.0, 16384.0)
Shape = tuple[float, ...]


def score_shapes(values: Constants, rows: Table, everything: Table, name: str) -> tuple[float, dict[Shape, float]]:
    """Mean error on a device without a measured product, and with each of the products that a user may be asked for."""
    plain: list[float] = []
    found: dict[Shape, list[float]] = defaultdict(list)
    for runtime in np.unique(rows["runtime"]):
        own = rows.where(rows["runtime"] == runtime)
        pool = everything.where(everything["runtime"] == runtime)
        law = products.read_law(values if own["burst"][0] else {**values, "sustained": 0.0})
        device = find_device(name)
        timed = time_products(law, products.shape_of(own, 2.0), device, "bf16", lone=True)
        plain.append(score(timed.seconds, own["time_s"]).mean)
        asked = np.flatnonzero(np.isin(pool["m"], SIZES) & np.isin(pool["n"], SIZES) & np.isin(pool["k"], SIZES))
        chosen = pool.where(asked)
        expected = time_products(law, products.shape_of(chosen, 2.0), device, "bf16", lone=True)
        for place, ratio in enumerate(chosen["time_s"] / expected.seconds):
            level = math.exp(believe([math.log(ratio)])[0])
            error = score(timed.levelled(level, join=law.join).seconds, own["time_s"]).mean
            found[tuple(chosen[side][place] for side in ("m", "n", "k"))].append(error)
    return float(np.mean(plain)), {shape: float(np.mean(errors)) for shape, errors in found.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", type=Path, default=DATA)
    options = parser.parse_args(arguments)
    rows = products.read_rows(options.data, "bfloat16")
    problem = products.pose(rows, "bf16")
    everything = read_products(options.data, dtype="bfloat16", num_rows=10**9, smallest=products.TRAINING)
    plain: dict[str, float] = {}
    scores: dict[str, dict[Shape, float]] = {}
    for name in sorted(set(rows["device"])):
        here = rows["device"] == name
        values = solve(problem, products.START, list(products.START), chosen=~here)
        pool = everything.where(everything["device"] == name)
        plain[name], scores[name] = score_shapes(values, rows.where(here & rows["scored"]), pool, name)
    reached = []
    for name, own in scores.items():
        others = [scores[other] for other in scores if other != name]
        best = min(own, key=lambda shape: float(np.mean([one.get(shape, 1.0) for one in others])))
        reached.append(own[best])
        sizes = " x ".join(f"{size:.0f}" for size in best)
        sys.stdout.write(f"{name:16} without {plain[name]:.1%}  with one of {sizes} {own[best]:.1%}\n")
    sys.stdout.write(
        f"mean of devices  without {np.mean(list(plain.values())):.1%}, with one measured product {np.mean(reached):.1%}\n"
    )


if __name__ == "__main__":
    main()
