"""Visits in rounds that can be stopped at any moment: experiments of a team of ranks."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol as Shape

from traincast.profile._protocol import Progress, Visit
from traincast.spec import Block, Environment, Experiment

Show = Callable[[Progress, Experiment | None], None]


class Keeper(Shape):
    """Where finished blocks go, and who knows how many there are: a store."""

    def append(self, experiment: Experiment, environment: Environment, block: Block, /) -> object: ...

    def num_blocks(self, experiment: Experiment, environment: Environment, /) -> int: ...


def visit_all(
    visit_one: Callable[[Experiment], Visit],
    kept: Keeper,
    environment: Environment,
    experiments: Sequence[Experiment],
    *,
    num_rounds: int,
    budget_s: float,
    progress: Progress,
    show: Show,
    skipped: set[str] | None = None,
) -> Iterator[Visit]:
    """In rounds, each in an order of its own.

    While an experiment runs it is in `skipped`, so one that kills the ranks is not tried again.
    """
    skipped = skipped if skipped is not None else set()
    started = time.monotonic()
    missing = {each.key: max(0, num_rounds - kept.num_blocks(each, environment)) for each in experiments}
    progress.total += sum(missing.values())
    for key, count in missing.items():
        progress.expect(key, count)
    for number in range(num_rounds):
        for experiment in _in_new_order(experiments, number):
            if missing[experiment.key] < num_rounds - number or experiment.key in skipped:
                continue
            before = time.monotonic()
            skipped.add(experiment.key)
            visit = visit_one(experiment)
            if visit.block is not None:
                kept.append(experiment, environment, visit.block)
                skipped.discard(experiment.key)
            progress.finish(experiment.key, time.monotonic() - before)
            show(progress, experiment)
            yield visit
            if time.monotonic() - started > budget_s:
                show(progress, None)
                return
    show(progress, None)


def _in_new_order(experiments: Sequence[Experiment], number: int) -> list[Experiment]:
    """Another order in each round, so that no experiment always follows the same ones: what it shares with its neighbours of
    the moment is drift and can be told from what is its own. The same order after a restart."""
    ordered = list(experiments)
    random.Random(f"{number} {ordered[0].key if ordered else ''}").shuffle(ordered)
    return ordered
