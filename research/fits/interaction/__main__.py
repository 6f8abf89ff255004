"""Fits the interaction network that ships to the whole corpus: `python -m research.fits.interaction [-o FILE]`."""

import argparse
from pathlib import Path

from research.corpus import load_corpus
from research.fits.interaction.layers import learn_network
from research.fits.weights import save_network
from traincast.cost import WEIGHTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="research.fits.interaction", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=WEIGHTS)
    options = parser.parse_args()
    corpus = load_corpus()
    steps = [step for step in corpus.steps if step.key in corpus.graphs]
    save_network(
        learn_network(corpus), options.out,
        {"steps": str(len(steps)), "architectures": str(len({step.name for step in steps})), "made_by": "make fit-interaction"},
    )  # fmt: skip


if __name__ == "__main__":
    main()
