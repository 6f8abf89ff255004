"""How the reuse predictor was chosen and how far its intervals hold, on our corpus: python -m research.studies.embedding PART.

PART: reach (errors of left-out families and architectures over a grid), intervals (coverage on a third that was left out) or
meet (how far the predictor may move the answer of the layers). Strict encoder 0: no graph of the corpus taught it.
"""

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from research.corpus import Corpus, CorpusStep, load_corpus
from research.papers.beside import answer_layers, merge_groups
from research.papers.predictddl import ENCODERS, know
from research.papers.stack import Learner
from traincast.embed import Known, Reach, cross_validate, fit_predictor, leave_out_rates, measure_apart, meet

Array = NDArray[np.float64]
FAR = 1e6
"""A reach beyond every distance: what it belongs to counts no more."""
GRID = {
    "0.5 / 0.5": Reach(traits=0.5, vector=0.5), "0.7 / 0.7": Reach(traits=0.7, vector=0.7),
    "1 / 1": Reach(traits=1.0, vector=1.0),
    "0.5 / -": Reach(traits=0.5, vector=FAR), "- / 0.5": Reach(traits=FAR, vector=0.5),
    "no residual": Reach(common=1e-6, single=1e-6),
}  # fmt: skip
"""Of traits and vector."""
THIRDS = 3


def read() -> tuple[Corpus, list[CorpusStep], list[Known]]:
    corpus = load_corpus()
    steps = [step for step in corpus.steps if step.key in corpus.graphs]
    return corpus, steps, know(corpus, steps, encoder=ENCODERS / "strict-0.json.gz")


def group(steps: Sequence[CorpusStep]) -> dict[str, list[str]]:
    return {
        "leave-family-out": [step.family for step in steps],
        "leave-architecture-out": [step.name for step in steps],
    }


def run_reach() -> None:
    _, steps, known = read()
    measured = np.array([step.seconds for step in steps])
    for split, groups in group(steps).items():
        rates = leave_out_rates(known, groups)
        for name, reach in GRID.items():
            found = cross_validate(known, groups, reach=reach, rates=rates)
            print(f"{split}: traits / vector {name:12} {np.abs(found / measured - 1).mean():6.1%}", flush=True)


def run_meet() -> None:
    """The bound is a quantile of how far two answers differ, so no measured time decides it."""
    corpus, steps, known = read()
    measured, learner = np.array([step.seconds for step in steps]), Learner.of(corpus)
    everything = np.ones(len(steps), dtype=bool)
    answers = {
        split: (
            cross_validate(known, groups),
            answer_layers(learner, steps, merge_groups(groups, num_folds=20, seed=0), everything),
        )
        for split, groups in group(steps).items()
    }
    usual = measure_apart(*answers["leave-architecture-out"])
    for split, (reuse_s, layers_s) in answers.items():
        for name, found in (
            ("reuse alone", reuse_s),
            ("layers alone", layers_s),
            ("geometric mean", meet(reuse_s, layers_s, most_apart=np.inf)),
            (f"no farther apart than {usual:.3f}", meet(reuse_s, layers_s, most_apart=usual)),
        ):
            print(f"{split}: {name:28} {np.abs(found / measured - 1).mean():6.1%}", flush=True)


def run_intervals() -> None:
    """Everything fitted again without a third of the architectures, then of the families."""
    corpus, steps, known = read()
    learner = Learner.of(corpus)
    for split, groups in group(steps).items():
        thirds = np.array(merge_groups(groups, num_folds=THIRDS, seed=0))
        out = thirds == thirds[0]
        inside = [step for step, away in zip(steps, out, strict=True) if not away]
        rows = [row for row, away in zip(known, out, strict=True) if not away]
        everything = np.ones(len(inside), dtype=bool)
        beside = tuple(
            answer_layers(learner, inside, merge_groups(names, num_folds=20, seed=0), everything)
            for names in ([step.name for step in inside], [step.family for step in inside])
        )
        predictor = fit_predictor(rows, layers_s=(beside[0], beside[1]))
        layers = learner.learn(inside)
        held, widths = [], []
        for step, row, away in zip(steps, known, out, strict=True):
            if away:
                said = predictor.predict(row.summary, row.ranks, layers_s=learner.answer(layers, step))
                held.append(said.low_s <= step.seconds <= said.high_s)
                widths.append(np.log(said.high_s / said.low_s))
        print(
            f"{split}: {np.mean(held):.1%} of {len(held)} steps held, mean log width {np.mean(widths):.2f}", flush=True
        )


PARTS = {"reach": run_reach, "intervals": run_intervals, "meet": run_meet}


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else "meet"
    if part not in PARTS:
        raise SystemExit(f"unknown part {part!r}; known parts: {', '.join(PARTS)}")
    PARTS[part]()


if __name__ == "__main__":
    main()
