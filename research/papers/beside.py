"""The layer models' answers beside the reuse predictor's, for the same left-out rows, and both as one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from research.corpus import Corpus, CorpusStep
from research.papers.stack import MIN_SINGLE, Learner

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def merge_groups(groups: Sequence[str], *, num_folds: int, seed: int) -> list[str]:
    """Whole groups dealt to a few folds, where a fit for each group would take too long."""
    names = sorted(set(groups))
    if len(names) <= num_folds:
        return list(groups)
    dealt = np.random.default_rng(seed).permutation(len(names)) % num_folds
    fold = {name: str(number) for name, number in zip(names, dealt.tolist(), strict=True)}
    return [fold[name] for name in groups]


def answer_layers(learner: Learner, steps: Sequence[CorpusStep], groups: Sequence[str], asked: Mask) -> Array:
    """Seconds of the asked rows by layers that saw no row of their group; nan where the rest could teach none."""
    labels, found = np.array(groups), np.full(len(steps), np.nan)
    for label in sorted(set(groups)):
        out = (labels == label) & asked
        known = [step for step, mine in zip(steps, labels != label, strict=True) if mine]
        if not out.any() or sum(step.setting.num_ranks == 1 and bool(step.cpu_seconds) for step in known) < MIN_SINGLE:
            continue
        model = learner.learn(known)
        found[out] = [learner.answer(model, step) for step, mine in zip(steps, out, strict=True) if mine]
    return found


def find_learner(corpus: Corpus) -> Learner | None:
    """None for a corpus whose steps of one worker were taken without their CPU time."""
    single = sum(step.setting.num_ranks == 1 and bool(step.cpu_seconds) for step in corpus.steps)
    return Learner.of(corpus) if single >= MIN_SINGLE else None
