"""A publisher to forecasts without anything that its runs taught: what a user of software that nobody measured gets.

Taken away are the host constants of its stack (runs of the same stack by others give them; else what a framework is expected to
cost), its vote in the two constants of sustained kernels, and what single workloads of it were seen to wait.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from research.fits.kernels.steps import LOADS, SHARES, Step, log_errors, read_steps, with_step
from research.fits.stacks import FITTED, MIN_ROWS, ROUNDS, expect_constants, thin
from research.fits.tune import know_step, tune
from traincast.accuracy import translate
from traincast.accuracy._cases import Measured
from traincast.accuracy._translate import CaseQuestion, read_stack
from traincast.cost import Pricing, default_ops, load_learned, read_constants
from traincast.cost._learned import Learned
from traincast.errors import TraincastError
from traincast.forecast import Engine
from traincast.spec import Job, Stack

MOST_STEPS = 8
"""Of one source in the choice of the two constants of sustained kernels."""
TAUGHT = {"sia": ("deepspeech2",), "lambda": ("maskrcnn",)}
"""Workloads whose waiting was read off runs of a publisher; without it they wait for nothing."""
TAUGHT_HABITS: dict[str, tuple[str, ...]] = {"sia": ("update scaled", "input_bytes_per_s")}
"""Calls and amounts of a framework that were read off runs of a publisher."""


def publisher_of(source: str) -> str:
    """Tables of one publisher share machines, people and habits, so they are left out together."""
    return source.partition("_")[0]


def choose_sustained() -> dict[str, Learned]:
    """Operator models without each publisher in the choice of the constants of sustained kernels, by publisher."""
    groups: dict[str, list[Step]] = defaultdict(list)
    for step in read_steps():
        if step.source != "lambda":
            groups[step.source].append(step)
    learned = load_learned()
    grid = list(itertools.product(SHARES, LOADS))
    centres: dict[str, dict[tuple[float, float], float]] = {}
    for source, steps in groups.items():
        own = [steps[i] for i in sorted({round(x) for x in np.linspace(0, len(steps) - 1, MOST_STEPS)})]
        centres[source] = {
            (share, load): float(abs(np.median(log_errors(own, with_step(learned, share=share, load=load)))))
            for share, load in grid
        }
    chosen = {}
    for publisher in {publisher_of(source) for source in groups}:
        kept = [source for source in groups if publisher_of(source) != publisher]
        share, load = min(grid, key=lambda pair: float(np.mean([centres[source][pair] for source in kept])))
        chosen[publisher] = with_step(learned, share=share, load=load)
    return chosen


def fit_without(stack: Stack, publisher: str, rows: Sequence[Measured]) -> Stack:
    """The stack with constants that runs of other publishers give it; where there are too few, with those that a framework is
    expected to have by the stacks of other publishers."""
    others = [row for row in rows if publisher_of(row.case.source or "") != publisher]
    stacks = {(found := read_stack(row.case, [])).name: found for row in others}
    expected: dict[str, Any] = {**expect_constants(list(stacks.values()))}
    bare = dataclasses.replace(stack, **expected)
    own = [row for row in others if read_stack(row.case, []).name == stack.name]
    if len(own) < MIN_ROWS:
        return bare
    known = []
    for row in thin(own):
        try:
            asked = translate(row.case)
            costs = Pricing(ops=default_ops())
            known.append(know_step(asked.job, asked.cluster, asked.parallelism, row.step_s, costs=costs))
        except TraincastError:
            continue
    tuned = tune(Stack(), known, rounds=ROUNDS, spreads=FITTED)
    constants: dict[str, Any] = {name: value for name, value in read_constants(tuned).items() if name in FITTED}
    return dataclasses.replace(bare, **constants)


def forget(job: Job, stack: Stack, publisher: str) -> Job:
    graph = job.graph
    if graph.name in TAUGHT.get(publisher, ()):
        graph = dataclasses.replace(graph, input_variation=0.0, preparation_s=0.0)
    taught = TAUGHT_HABITS.get(publisher, ())
    plan = dataclasses.replace(
        stack.plan,
        calls=tuple(one for one in stack.plan.calls if one[0] not in taught),
        amounts=tuple(one for one in stack.plan.amounts if one[0] not in taught),
    )
    return dataclasses.replace(job, stack=dataclasses.replace(stack, plan=plan), graph=graph)


class Untaught:
    """Engines and jobs without a publisher. What is found once is kept."""

    def __init__(self, measured: Sequence[Measured], *, shipped: Engine) -> None:
        self.measured = measured
        self.shipped = shipped
        self.sustained = choose_sustained()
        self.stacks: dict[tuple[str, str], Stack] = {}

    def without(self, publisher: str, question: CaseQuestion) -> tuple[Engine, Job]:
        stack = question.job.stack
        key = publisher, stack.name
        if key not in self.stacks:
            self.stacks[key] = fit_without(stack, publisher, self.measured) if stack.num_steps else stack
        # Habits are the question's own (a document may be asked with options); constants are those found.
        bare = dataclasses.replace(stack, **{name: getattr(self.stacks[key], name) for name in FITTED})
        learned = self.sustained.get(publisher)
        engine = self.shipped if learned is None else Engine(costs=Pricing(ops=learned, stack=bare))
        engine._remember = self.shipped._remember
        return engine, forget(question.job, bare, publisher)
