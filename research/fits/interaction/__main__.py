"""Fits the interaction network that ships to the whole corpus: `python -m research.fits.interaction [-o FILE]`."""

import argparse
from pathlib import Path

from research.corpus import load_corpus
from research.papers.compare import train_default
from research.papers.stack import Learner
from traincast.cost import WEIGHTS, save_network
from traincast.errors import InvalidInput


def main() -> None:
    parser = argparse.ArgumentParser(prog="research.fits.interaction", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=WEIGHTS)
    options = parser.parse_args()
    corpus = load_corpus()
    model, steps = train_default(Learner.of(corpus))
    if model.network is None:
        raise InvalidInput("the corpus taught no network")
    save_network(
        model.network, options.out,
        {"steps": str(len(steps)), "architectures": str(len({step.name for step in steps})), "made_by": "make fit-interaction"},
    )  # fmt: skip


if __name__ == "__main__":
    main()
