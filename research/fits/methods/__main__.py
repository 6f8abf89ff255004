"""Trains what answers for one paper's system: python -m research.fits.methods scaledl|predictddl|driple [--every 4] [--dry].

All learn from the same steps: image models and public runs on GPUs (../shared), Driple's also from simulated ones. A step's
group is the family of an image model or the publisher of a run; groups are dealt to folds in the order of the alphabet, so what
is printed as left out comes from a fit that saw nothing of the group.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.data import SIMULATED, Data, read_everything, read_simulated

Array = NDArray[np.float64]
FOLDS = 4


def group_rows(data: Data) -> list[str]:
    programs = [data.programs[row.program] for row in data.rows]
    return [one.family if one.source in ("timm", "simulated") else one.source for one in programs]


def fold_rows(data: Data) -> NDArray[np.intp]:
    names = group_rows(data)
    dealt = {name: place % FOLDS for place, name in enumerate(sorted(set(names)))}
    return np.array([dealt[name] for name in names], dtype=np.intp)


def describe_errors(errors: Array) -> str:
    return f"mean {100 * errors.mean():.1f}% median {100 * np.median(errors):.1f}% p90 {100 * np.quantile(errors, 0.9):.1f}%"


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m research.fits.methods", description=__doc__)
    parser.add_argument("system", choices=("scaledl", "predictddl", "driple"))
    parser.add_argument("--every", type=int, default=4, help="of so many image models and runs of a source one is read")
    parser.add_argument("--dry", action="store_true", help="print what left-out groups say and write nothing")
    parser.add_argument(
        "--simulated",
        type=int,
        default=SIMULATED,
        help="steps that driple is pre-trained on; 0 compares transfers only",
    )
    asked = parser.parse_args(arguments)
    data = read_everything(every=asked.every)
    if asked.system == "scaledl":
        from research.fits.methods.scaledl import train
    elif asked.system == "predictddl":
        from research.fits.methods.predictddl import train
    else:
        from research.fits.methods.driple import train as train_twelve

        train_twelve(data, read_simulated(asked.simulated) if asked.simulated else None, write=not asked.dry)
        return 0
    train(data, write=not asked.dry)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
