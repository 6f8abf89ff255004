"""Operators and steps measured on the nodes of a Ray cluster: many machines, one experiment at a time on each."""

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from traincast.profile._operators import prepare_operator
from traincast.profile._protocol import Progress, Protocol, Subject, Visit, measure
from traincast.spec import Environment, Experiment
from traincast.workers import deliver


def subject_of(experiment: Experiment, *, device: str) -> Subject:
    """How a step or an operator alone is set up on this machine."""
    if experiment.subject == "operator":
        return Subject(experiment=experiment, prepare=lambda: prepare_operator(experiment, device=device))
    from traincast.profile._steps import prepare_step

    return Subject(experiment=experiment, prepare=lambda: prepare_step(experiment, device=device))


def measure_over_nodes(
    experiments: Sequence[Experiment],
    *,
    protocol: Protocol,
    device: str,
    share: float | None,
    counts: Mapping[str, int],
    progress: Progress,
) -> Iterator[tuple[Visit, Environment, float]]:
    """Every block with the environment of the node that took it and the seconds it cost; `counts` are known blocks.

    Rounds and their shuffled order are those of `measure`; a node takes whatever is next, so the blocks of one
    experiment come from several machines where there are several.
    """
    order = random.Random(protocol.seed)
    missing = {each.key: max(0, protocol.num_rounds - counts.get(each.key, 0)) for each in experiments}
    progress.total += sum(missing.values())
    for key, visits in missing.items():
        progress.expect(key, visits)
    failed: set[str] = set()
    single = replace(protocol, num_rounds=1)
    for number in range(protocol.num_rounds):
        due = [
            each
            for each in experiments
            if missing[each.key] >= protocol.num_rounds - number and each.key not in failed
        ]  # fmt: skip
        order.shuffle(due)
        found = deliver(visit_here, due, shared=(single, device, share), engine="ray", one_per_node=True)
        for _, (visit, environment, seconds) in found:
            if visit.failure is not None:
                failed.add(visit.experiment.key)
            yield visit, environment, seconds


def visit_here(
    experiment: Experiment, protocol: Protocol, device: str, share: float | None
) -> tuple[Visit, Environment, float]:
    """One block on the machine that runs this."""
    from traincast.profile._machine import Steadiness, describe, make_canary, steady

    begun = time.perf_counter()
    core = max(os.sched_getaffinity(0))
    with steady(Steadiness(cores=(core,), num_threads=1, cpu_share=share)) as steadiness:
        environment = describe(device=device, steadiness=steadiness)
        canary = make_canary() if device == "cpu" else None
        visit = next(measure([subject_of(experiment, device=device)], protocol=protocol, canary=canary))
    return visit, environment, time.perf_counter() - begun
