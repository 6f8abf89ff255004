"""Fits what classes of operators take in whole steps on GPUs: python -m research.fits.interaction_gpu [--every 4] [--dry].

Steps: inference of image models (../shared/data/timm). Folds: five of whole families of architectures (modules in alphabetical
order, every fifth). What is printed as left out comes from factors that saw nothing of the family; below it the same where the
other GPU, or the other version of PyTorch, taught alone. `training`: the same fit to training steps, which does not ship because
it loses. The factors go into the document `operator_classes`.
"""

import argparse
import json
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.data import Data, read_everything
from research.fits.interaction_gpu.members import Table, fit_classes
from traincast.catalog._constants import DOCUMENTS
from traincast.files import read_json

Array = NDArray[np.float64]
DOCUMENT = DOCUMENTS / "operator_classes.json"
FAMILY_FOLDS = 5
LEAST_CHANGE = 0.005
"""Factors nearer to one than this are left out of the document."""
TRANSFERS = (
    ("RTX 3090 to RTX 4090", ("3090 eager 2.4", "3090 NHWC 2.4"), ("4090 eager 2.4", "4090 NHWC 2.4")),
    ("RTX 4090 to RTX 3090", ("4090 eager 2.4", "4090 NHWC 2.4"), ("3090 eager 2.4", "3090 NHWC 2.4")),
    ("PyTorch 2.4 to 2.9.1", ("4090 eager 2.4", "4090 NHWC 2.4"), ("4090 eager 2.9.1",)),
)  # fmt: skip


def fold_programs(data: Data) -> NDArray[np.intp]:
    """0 to 4 for image models by family, 5 for all cases."""
    families = sorted({one.family for one in data.programs if one.source == "timm"})
    return np.array(
        [families.index(one.family) % FAMILY_FOLDS if one.source == "timm" else FAMILY_FOLDS for one in data.programs],
        dtype=np.intp,
    )


def conditions_of(data: Data) -> NDArray[np.str_]:
    return np.array([row.condition for row in data.rows])


def inference_rows(data: Data) -> NDArray[np.bool_]:
    """Rows of image models that were not trained."""
    return np.array([row.condition.startswith(("3090", "4090")) for row in data.rows])


def leave_out(data: Data, table: Table, rows: NDArray[np.bool_], *, known: NDArray[np.bool_] | None = None) -> Array:
    """Logarithms of the steps of all rows: of `rows` by factors that `known` rows (or these) of other families taught, of others
    as the layers say."""
    fold = fold_programs(data)[table.row_program]
    found = table.log_step(np.zeros(len(table.node_class)))
    taught = rows if known is None else known
    for one in sorted(set(fold[rows].tolist())):
        factors = fit_classes(table, taught & (fold != one))
        asked = rows & (fold == one)
        found[asked] = table.log_step(factors[table.node_class])[asked]
    return found


def share_table(data: Data, table: Table) -> Array:
    place_of = {name: place for place, name in enumerate(table.classes)}
    shares = np.zeros((len(data.programs), len(place_of)))
    for place, program in enumerate(data.programs):
        for name, share in program.shares.items():
            shares[place, place_of[name]] = share
    return shares


def report(data: Data, table: Table) -> None:
    conditions, asked = conditions_of(data), inference_rows(data)
    layers = table.log_step(np.zeros(len(table.node_class)))
    told = leave_out(data, table, asked)
    for name in ("inference", *sorted(set(conditions[asked].tolist()))):
        _print(name, table, asked if name == "inference" else conditions == name, layers, told)
    for name, before, after in TRANSFERS:
        there = np.isin(conditions, after)
        if there.any():
            _print(name, table, there, layers, leave_out(data, table, there, known=np.isin(conditions, before)))
    training = np.char.startswith(conditions, "train")
    _print("training", table, training, layers, leave_out(data, table, training))


def _print(name: str, table: Table, rows: NDArray[np.bool_], layers: Array, told: Array) -> None:
    errors = [np.abs(np.expm1(each - table.log_measured))[rows] for each in (layers, told)]
    sums, factors = (f"{100 * each.mean():.1f}% (median {100 * np.median(each):.1f}%)" for each in errors)
    sys.stdout.write(f"{name}, families left out, n {int(rows.sum())}: layers {sums}, with factors {factors}\n")


def write(data: Data, table: Table) -> None:
    document = read_json(DOCUMENT)
    logs = fit_classes(table, inference_rows(data))
    document["constants"]["factors"]["value"] = {
        name: round(float(np.exp(log)), 3)
        for name, log in zip(table.classes, logs.tolist(), strict=True)
        if abs(log) > LEAST_CHANGE
    }
    DOCUMENT.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="of so many image models one is read")
    parser.add_argument("--dry", action="store_true", help="print what left-out families say and write nothing")
    asked = parser.parse_args(arguments)
    data = read_everything(every=asked.every)
    table = Table.of(data)
    report(data, table)
    if not asked.dry:
        write(data, table)


if __name__ == "__main__":
    main()
