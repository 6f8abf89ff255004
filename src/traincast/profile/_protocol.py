"""Measures subjects on a noisy machine: interleaved rounds of short blocks, every repeat kept."""

import datetime
import gc
import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Block, Experiment

VERSION = 1
"""Goes into the environment of every measurement: numbers of different protocols are not one population."""


@noun
class Running:
    """A subject ready to run."""

    run: Callable[[], None]
    settle: Callable[[], None] = lambda: None
    """Waits until what was issued has finished; a device that works beside the host needs it."""
    resources: Callable[[], Mapping[str, float]] = dict
    """Called after the timed repeats."""


@noun
class Subject:
    """An experiment and how to set it up. `prepare` may be slow; it is called anew for each block."""

    experiment: Experiment
    prepare: Callable[[], Running]


@noun
class Protocol:
    """How long and how often. The defaults give a block in which a median is steady."""

    num_rounds: int = 5
    warm_up_runs: int = 3
    warm_up_s: float = 0.02
    block_s: float = 0.15
    min_repeats: int = 5
    max_repeats: int = 200
    min_repeat_s: float = 2e-4
    """Shorter runs are grouped into one repeat, so that reading the clocks does not count."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_rounds < 1 or self.min_repeats < 1 or self.max_repeats < self.min_repeats:
            raise InvalidInput(
                f"{self.num_rounds} rounds of {self.min_repeats}..{self.max_repeats} repeats; "
                "use at least one round and one repeat, and no fewer at most than at least"
            )


@dataclass(slots=True)
class Progress:
    """What is done, and an honest guess of what remains: visits known from an earlier round cost what they cost there."""

    total: int
    done: int = 0
    spent_s: float = 0.0
    _pending: dict[str, int] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)

    def expect(self, key: str, visits: int) -> None:
        self._pending[key] = self._pending.get(key, 0) + visits

    def finish(self, key: str, seconds: float) -> None:
        self.done += 1
        self.spent_s += seconds
        self._pending[key] = max(0, self._pending.get(key, 0) - 1)
        self._seconds[key] = seconds

    @property
    def remaining_s(self) -> float | None:
        """None until a first visit has shown what visits cost."""
        if not self._seconds:
            return 0.0 if self.done >= self.total else None
        typical = sum(self._seconds.values()) / len(self._seconds)
        return sum(count * self._seconds.get(key, typical) for key, count in self._pending.items())


@noun
class Visit:
    """One finished block, or the reason why there is none."""

    experiment: Experiment
    block: Block | None
    failure: str | None = None


def measure(
    subjects: Sequence[Subject], *, protocol: Protocol, canary: Callable[[], float] | None = None, source: str = "profile",
    num_done: Callable[[Experiment], int] = lambda _: 0, progress: Progress | None = None,
) -> Iterator[Visit]:  # fmt: skip
    """Visit every subject in rounds, and hand out each block as it is finished."""
    prepare = {subject.experiment.key: subject.prepare for subject in subjects}

    def visit(experiment: Experiment) -> Visit:
        try:
            running = prepare[experiment.key]()
            block = measure_block(running, protocol=protocol, canary=canary, source=source)
        except (RuntimeError, ValueError, NotImplementedError, MemoryError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            return Visit(experiment=experiment, block=None, failure=reason)
        return Visit(experiment=experiment, block=block)

    experiments = [subject.experiment for subject in subjects]
    yield from visit_in_rounds(experiments, visit, protocol=protocol, num_done=num_done, progress=progress)


def visit_in_rounds(
    experiments: Sequence[Experiment], visit_one: Callable[[Experiment], Visit], *, protocol: Protocol,
    num_done: Callable[[Experiment], int] = lambda _: 0, progress: Progress | None = None,
) -> Iterator[Visit]:  # fmt: skip
    """Every experiment once per round, in a new order each round.

    Interleaving lets a slow minute of the machine touch one block of many experiments instead of all blocks of one.
    `num_done` says how many blocks an earlier, broken run has already kept. One that fails is reported once and left out of later
    rounds.
    """
    order = random.Random(protocol.seed)
    missing = {each.key: max(0, protocol.num_rounds - num_done(each)) for each in experiments}
    progress = progress if progress is not None else Progress(total=0)
    progress.total += sum(missing.values())
    for key, visits in missing.items():
        progress.expect(key, visits)
    failed: set[str] = set()
    for number in range(protocol.num_rounds):
        due = [each for each in experiments if missing[each.key] >= protocol.num_rounds - number]
        order.shuffle(due)
        for experiment in due:
            if experiment.key in failed:
                continue
            started = time.perf_counter()
            visit = visit_one(experiment)
            if visit.failure is not None:
                failed.add(experiment.key)
            progress.finish(experiment.key, time.perf_counter() - started)
            yield visit


def measure_block(
    running: Running, *, protocol: Protocol, canary: Callable[[], float] | None = None, source: str = "profile"
) -> Block:
    """Warm up, look at the canary, then time repeats until the block is full."""
    run, settle = running.run, running.settle
    run_s = _warm_up(run, settle, protocol)
    runs_per_repeat = max(1, round(protocol.min_repeat_s / max(run_s, 1e-9))) if run_s < protocol.min_repeat_s else 1
    canary_s = canary() if canary is not None else None
    started_at = datetime.datetime.now(datetime.UTC).isoformat()
    wall_s: list[float] = []
    cpu_s: list[float] = []
    switches: list[int] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        deadline = time.perf_counter() + protocol.block_s
        while len(wall_s) < protocol.max_repeats:
            switches_before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
            cpu_before, wall_before = time.process_time(), time.perf_counter()
            for _ in range(runs_per_repeat):
                run()
            settle()
            wall_after, cpu_after = time.perf_counter(), time.process_time()
            wall_s.append((wall_after - wall_before) / runs_per_repeat)
            cpu_s.append((cpu_after - cpu_before) / runs_per_repeat)
            switches.append(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches_before)
            if wall_after >= deadline and len(wall_s) >= protocol.min_repeats:
                break
    finally:
        if collecting:
            gc.enable()
    return Block(
        started_at=started_at,
        wall_s=tuple(wall_s),
        cpu_s=tuple(cpu_s),
        switches=tuple(switches),
        canary_s=canary_s,
        resources=dict(running.resources()),
        source=source,
    )


def _warm_up(run: Callable[[], None], settle: Callable[[], None], protocol: Protocol) -> float:
    """Run until caches, allocator and just-in-time choices have settled; the shortest run seen."""
    shortest = float("inf")
    started = time.perf_counter()
    count = 0
    while count < protocol.warm_up_runs or (time.perf_counter() - started < protocol.warm_up_s and count < 1000):
        before = time.perf_counter()
        run()
        settle()
        shortest = min(shortest, time.perf_counter() - before)
        count += 1
    return shortest
