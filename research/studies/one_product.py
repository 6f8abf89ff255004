"""A few products measured on a device that no fit has seen: python -m research.studies.one_product [DATA]

The law of products in bf16 is fitted without a device. Then one, two, three or five products of that device, timed by each
runtime as by a user of its own, move the level of its arithmetic as `traincast calibrate --gemm` does, and all products
with 1,024 rows and more are scored. Which products to ask for is chosen on the other devices, one after the other
(`asked`), by what the law says they tell of the level (`D-optimal`: no time is looked at), or by lot (`random`: mean of 20
draws).
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from research.fits.kernels import products
from research.fits.kernels.__main__ import DATA
from research.fits.kernels.solve import Array, Constants, score, solve
from research.fits.kernels.tables import Table, find_device, read_products
from traincast.cost import Timed, time_products
from traincast.learn import believe

SIZES = (2048.0, 4096.0, 8192.0, 16384.0)
NUMBERS = (1, 2, 3, 5)
NUM_DRAWS = 20
NUDGE = 0.01
Shape = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One runtime on one device: what is expected of its products and what was measured."""

    timed: Timed
    measured: Array
    join: float
    log_ratio: dict[Shape, float]
    """By product that may be asked for: measured over expected."""
    tells: dict[Shape, float]
    """How much a product's time follows the level, squared: its information."""

    def error(self, shapes: Sequence[Shape]) -> float:
        known = [self.log_ratio[shape] for shape in shapes if shape in self.log_ratio]
        level = math.exp(believe(known)[0]) if known else 1.0
        return score(self.timed.levelled(level, join=self.join).seconds, self.measured).mean


def find_users(values: Constants, rows: Table, everything: Table, name: str) -> list[User]:
    found = []
    device = find_device(name)
    for runtime in np.unique(rows["runtime"]):
        own = rows.where(rows["runtime"] == runtime)
        pool = everything.where(everything["runtime"] == runtime)
        law = products.read_law(values if own["burst"][0] else {**values, "sustained": 0.0})
        asked = np.isin(pool["m"], SIZES) & np.isin(pool["n"], SIZES) & np.isin(pool["k"], SIZES)
        chosen = pool.where(asked)
        expected = time_products(law, products.shape_of(chosen, 2.0), device, "bf16", lone=True)
        slower = expected.levelled(1.0 + NUDGE, join=law.join)
        tells = (np.log(slower.seconds / expected.seconds) / NUDGE) ** 2
        names = list(zip(chosen["m"], chosen["n"], chosen["k"], strict=True))
        logs = np.log(chosen["time_s"] / expected.seconds)
        found.append(
            User(
                timed=time_products(law, products.shape_of(own, 2.0), device, "bf16", lone=True),
                measured=own["time_s"],
                join=law.join,
                log_ratio=dict(zip(names, logs.tolist(), strict=True)),
                tells=dict(zip(names, tells.tolist(), strict=True)),
            )
        )
    return found


def mean_error(users: Sequence[User], shapes: Sequence[Shape]) -> float:
    return float(np.mean([user.error(shapes) for user in users]))


def ask_by_errors(others: Sequence[User], number: int) -> list[Shape]:
    """Products that together leave the least error on other devices, chosen one after the other."""
    candidates = sorted(set.intersection(*(set(user.log_ratio) for user in others)))
    chosen: list[Shape] = []
    while len(chosen) < number:
        left = [shape for shape in candidates if shape not in chosen]
        chosen.append(min(left, key=lambda shape: mean_error(others, [*chosen, shape])))
    return chosen


def ask_by_information(users: Sequence[User], number: int) -> list[Shape]:
    """Products whose times follow the level most, the shortest of those that tell alike (to 1%)."""
    candidates = sorted(set.intersection(*(set(user.tells) for user in users)))
    return sorted(
        candidates,
        key=lambda shape: (-round(float(np.mean([user.tells[shape] for user in users])), 2), math.prod(shape)),
    )[:number]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", type=Path, default=DATA)
    options = parser.parse_args(arguments)
    rows = products.read_rows(options.data, "bfloat16")
    problem = products.pose(rows, "bf16")
    everything = read_products(options.data, dtype="bfloat16", num_rows=10**9, smallest=products.TRAINING)
    users: dict[str, list[User]] = {}
    for name in sorted(set(rows["device"])):
        here = rows["device"] == name
        values = solve(problem, products.START, list(products.START), chosen=~here)
        pool = everything.where(everything["device"] == name)
        users[name] = find_users(values, rows.where(here & rows["scored"]), pool, name)
    say_table(users)


def say_table(users: dict[str, list[User]]) -> None:
    rng = np.random.default_rng(0)
    plain = {name: mean_error(own, []) for name, own in users.items()}
    _say("none", plain)
    for number in NUMBERS:
        asked, informed, drawn = {}, {}, {}
        for name, own in users.items():
            others = [user for other in users if other != name for user in users[other]]
            shapes = ask_by_errors(others, number)
            asked[name] = mean_error(own, shapes)
            informed[name] = mean_error(own, ask_by_information(own, number))
            pool = sorted(set.intersection(*(set(user.log_ratio) for user in own)))
            draws = [rng.choice(len(pool), number, replace=False) for _ in range(NUM_DRAWS)]
            drawn[name] = float(np.mean([mean_error(own, [pool[place] for place in draw]) for draw in draws]))
            words = ", ".join("x".join(f"{size:.0f}" for size in shape) for shape in shapes)
            sys.stdout.write(f"{number} on {name:16} {words}\n")
        for title, errors in (("asked", asked), ("D-optimal", informed), ("random", drawn)):
            _say(f"{number}, {title}", errors)


def _say(title: str, errors: dict[str, float]) -> None:
    each = "  ".join(f"{name} {error:.1%}" for name, error in errors.items())
    sys.stdout.write(f"{title:14} mean of devices {np.mean(list(errors.values())):.2%}   {each}\n")


if __name__ == "__main__":
    main()
