"""Fits the graph network of the twelve resource numbers that ships: `python -m research.fits.resources [-o FILE]`."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from research.corpus import FOLDER, load_corpus
from research.papers.beside import find_learner
from research.papers.driple import (
    coverage,
    errors_of,
    find_ranges,
    fit_in_steps,
    fit_network,
    mean_over_targets,
    predict_left_out,
    read_runs,
    summarise,
)
from traincast.forecast._activity import CORE
from traincast.resources import WEIGHTS, save_graph_correction


def main() -> None:
    parser = argparse.ArgumentParser(prog="research.fits.resources", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=WEIGHTS)
    parser.add_argument(
        "--corpus", type=Path, default=FOLDER, help="a corpus of your own setting, as `make corpus` writes it"
    )
    parser.add_argument("--device", default=CORE, help="the catalogue's name of the device that ran the corpus")
    options = parser.parse_args()
    corpus = load_corpus(options.corpus)
    rows, learner = read_runs(corpus), find_learner(corpus)
    # Steps of one worker teach the layers that give the step; without them the network has to learn it too.
    method = "network" if learner is None else "forecast"
    answers = predict_left_out(rows, split="architecture", method=method, learner=learner)
    ranges = find_ranges(rows, answers)
    error = mean_over_targets(summarise(errors_of(rows, answers)))
    about = {
        "device": options.device,
        "runs": str(len(rows)),
        "architectures": str(len({row.step.name for row in rows})),
        "settings": str(len({row.step.setting.name for row in rows})),
        "error_architecture_left_out": f"{error:.4f}",
        "steps": "of the network" if learner is None else "of a cost model",
        "made_by": "python -m research.fits.resources",
    }
    network = fit_network(rows) if learner is None else fit_in_steps(rows, learner)[0]
    save_graph_correction(replace(network, errors=ranges, about=about), options.out)
    inside = coverage(rows, answers, ranges)
    sys.stdout.write(
        f"{len(rows)} runs; an architecture left out: {error:.1%} mean over the twelve; {inside:.0%} inside the ranges\n"
    )


if __name__ == "__main__":
    main()
