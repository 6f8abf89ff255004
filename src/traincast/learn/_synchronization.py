"""Learns what synchronising costs on a test-bed: DDP steps of some models to the constants of collectives, checked on others.

On a shared machine a step of the test-bed takes a tenth more or less from one half minute to the next. Steps kept for the check
that were visited after those that were fitted would show that drift and not the fit. So both are visited in turns, the ones
kept back once in every round, and the settings come several times.
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from traincast.cost import UNBOUNDED_BYTES_PER_S, Synced, SyncedStep, fit_sync
from traincast.errors import InvalidInput
from traincast.learn._loads import Load
from traincast.learn._machine import Score
from traincast.lower import lower
from traincast.profile import Protocol, Setting, find_settings
from traincast.spec import Attr, Block, Collective, CollectiveRates, Experiment, Graph, MachineRates, Parallelism
from traincast.store import Store

ON_TESTBED = Protocol(num_rounds=1, block_s=0.6, min_repeats=3, max_repeats=30, warm_up_runs=2)
NOMINAL = Synced(
    wall_scale=1.0, rates=CollectiveRates(hop_s=0.0, bytes_per_s=UNBOUNDED_BYTES_PER_S, link_efficiency=1.0)
)
"""Before any step of several ranks was measured: nothing is throttled, and bytes travel at the link's rate."""

Visit = Callable[[Experiment], Block | None]
"""Runs one experiment on the ranks that are up; None where it could not be run."""
OpenTeam = Callable[[Setting], AbstractContextManager[Visit]]


def find_worker_settings(names: Sequence[str]) -> tuple[Setting, ...]:
    """Of the test-bed's settings those that have something to synchronise."""
    settings = find_settings(names)
    for setting in settings:
        if setting.num_ranks == 1:
            raise InvalidInput(
                f"setting {setting.name!r} has one node, which synchronises nothing; use 2x1gbit or the like"
            )
    return settings


@contextmanager
def team_on_testbed(
    setting: Setting, *, protocol: Protocol = ON_TESTBED, store: Store | None = None
) -> Iterator[Visit]:
    """Ranks on the nodes of a test-bed of their own; every block is kept in the store before the next begins."""
    from traincast.profile import EmulatedCluster, emulated, team_in

    cluster = EmulatedCluster(name=f"w{os.getpid()}"[:12], nodes=setting.nodes)
    with emulated(cluster), team_in(cluster) as team:

        def visit(experiment: Experiment) -> Block | None:
            block = team.visit_watched(experiment, protocol=protocol).block
            if block is not None and store is not None:
                store.append(experiment, team.environment, block)
            return block

        yield visit


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStep:
    """A step kept back: what was forecast, and what each visit took."""

    name: str
    setting: str
    forecast_s: float
    blocks_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return statistics.median(self.blocks_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutcome:
    """What a calibration of several ranks brought, and on what it was checked."""

    calibration: MachineRates
    num_steps: int
    """Fitted, each in its setting."""
    in_sample: Score
    before: Score
    after: Score
    by_setting: Mapping[str, Score]
    checked: tuple[CheckedStep, ...]
    noise: float | None
    """Mean relative standard error of what the steps kept back took: a perfect forecast would show most of it as its error.
    None where none was visited twice."""
    measuring_s: float
    unmeasured: tuple[str, ...] = ()


@dataclass(slots=True)
class _Visits:
    """Seconds of every block, by setting and load."""

    seconds: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    failures: dict[str, None] = field(default_factory=dict)
    spent_s: float = 0.0

    def add(self, setting: Setting, load: Load, number: int, visit: Visit) -> None:
        experiment = ddp_experiment(load, setting)
        block = visit(experiment)
        if block is None:
            self.failures[experiment.key] = None
        else:
            self.seconds.setdefault((setting.name, number), []).append(block.seconds)


def calibrate_workers(
    calibration: MachineRates,
    fitted: Sequence[Load],
    held_out: Sequence[Load],
    *,
    settings: Sequence[Setting],
    open_team: OpenTeam,
    budget_s: float,
    num_passes: int = 2,
    num_rounds: int = 2,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> WorkerOutcome:
    """The same calibration with the constants of synchronised steps, and its error on models that were not fitted.

    The budget pays for visits of fitted steps. Each of them is visited once in a setting, and different ones first in
    different settings; those kept back come in each of `num_rounds` rounds of each of `num_passes` passes over the settings,
    on time of their own.
    """
    if not (fitted and held_out and settings):
        raise InvalidInput(
            "give steps to fit, steps to keep back and the settings of a test-bed; one of them is missing"
        )
    known, asked = _Visits(), _Visits()
    queues = [_turned(range(len(fitted)), place / len(settings)) for place in range(len(settings))]
    share_s = budget_s / (num_passes * num_rounds * len(settings))
    for number in range(num_passes):
        for setting, queue in zip(settings, queues, strict=True):
            say(
                f"pass {number + 1} of {num_passes}, {setting.name}: about {share_s * num_rounds:.0f} s of fitted steps"
            )
            with open_team(setting) as visit:
                for turn in range(num_rounds):
                    order = list(range(len(held_out)))
                    random.Random(f"{setting.name} {number} {turn}").shuffle(order)
                    for place, is_fitted in _in_turns(queue, order, budget_s=share_s, visits=known, clock=clock):
                        loads, visits = (fitted, known) if is_fitted else (held_out, asked)
                        visits.add(setting, loads[place], place, visit)
    return _conclude(calibration, fitted, held_out, settings, known, asked)


def _in_turns(
    queue: list[int], order: Sequence[int], *, budget_s: float, visits: _Visits, clock: Callable[[], float]
) -> Iterator[tuple[int, bool]]:
    """Places in the queue of fitted steps until the budget is spent, and between them those kept back, evenly."""
    spent_s, num_checked = 0.0, 0
    while queue and spent_s < budget_s:
        started = clock()
        yield queue.pop(0), True
        took_s = clock() - started
        spent_s += took_s
        visits.spent_s += took_s
        share = min(1.0, spent_s / budget_s) if queue else 1.0
        while num_checked < round(share * len(order)):
            yield order[num_checked], False
            num_checked += 1
    for place in order[num_checked:]:
        yield place, False


def _turned(places: Sequence[int], share: float) -> list[int]:
    start = round(share * len(places))
    return [*places[start:], *places[:start]]


def _conclude(
    calibration: MachineRates,
    fitted: Sequence[Load],
    held_out: Sequence[Load],
    settings: Sequence[Setting],
    known: _Visits,
    asked: _Visits,
) -> WorkerOutcome:
    by_name = {setting.name: setting for setting in settings}
    steps, checked = (
        {
            (name, number): synced_step(loads[number], by_name[name], calibration, statistics.median(blocks))
            for (name, number), blocks in visits.seconds.items()
        }
        for loads, visits in ((fitted, known), (held_out, asked))
    )
    if not checked:
        raise InvalidInput("no step that was kept back could be measured, so nothing can be said about the error")
    synced = fit_sync(list(steps.values()))
    after = _score(synced, list(checked.values()))
    before = _score(NOMINAL, list(checked.values()))
    errors = {**calibration.errors, "workers_before": before.mean, "workers_after": after.mean}
    return WorkerOutcome(
        calibration=replace(
            calibration, step_wall_scale=synced.wall_scale, errors=errors,
            collectives={**calibration.collectives, "all_reduce": synced.rates},
            num_measurements=calibration.num_measurements + len(steps),
            measuring_s=calibration.measuring_s + known.spent_s,
        ),
        num_steps=len(steps), in_sample=_score(synced, list(steps.values())), before=before, after=after,
        by_setting={
            setting.name: _score(synced, mine)
            for setting in settings
            if (mine := [step for (name, _), step in checked.items() if name == setting.name])
        },
        checked=tuple(
            CheckedStep(
                name=held_out[number].experiment.name, setting=name, forecast_s=synced.seconds(step),
                blocks_s=tuple(asked.seconds[name, number]),
            )
            for (name, number), step in checked.items()
        ),
        noise=_noise(list(asked.seconds.values())), measuring_s=known.spent_s,
        unmeasured=(*known.failures, *asked.failures),
    )  # fmt: skip


def _score(synced: Synced, steps: Sequence[SyncedStep]) -> Score:
    return Score.of(np.array([synced.seconds(step) for step in steps]), [step.seconds for step in steps])


def _noise(blocks: Sequence[Sequence[float]]) -> float | None:
    """Blocks of a step scatter about its mean, all steps together; a median of n varies pi/2 times as much as a mean of n
    (Laplace 1774), but that of two is their mean."""
    repeated = [np.log(each) for each in blocks if len(each) > 1]
    if not repeated:
        return None
    variance = sum(float(((each - each.mean()) ** 2).sum()) for each in repeated) / sum(
        len(each) - 1 for each in repeated
    )
    inflation = [np.pi / 2 if len(each) > 2 else 1.0 for each in repeated]
    return float(
        np.mean([np.sqrt(variance * more / len(each)) for each, more in zip(repeated, inflation, strict=True)])
    )


def ddp_experiment(load: Load, setting: Setting) -> Experiment:
    attrs: dict[str, Attr] = {"num_ranks": setting.num_ranks, "strategy": "ddp", "network": setting.network}
    return replace(load.experiment, attrs={**load.experiment.attrs, **attrs})


def synced_step(load: Load, setting: Setting, calibration: MachineRates, seconds: float) -> SyncedStep:
    """A measured step with the amounts that the fit needs; the calibration prices its computation."""
    if load.graph is None:
        raise InvalidInput(
            f"{load.experiment.key} has no graph, so its gradients are not known; make it with step_load"
        )
    gradient_bytes, num_gradients = gradients_of(load.graph)
    return SyncedStep(
        seconds=seconds, compute_s=calibration.step_seconds(load.ops, load.counts), num_ranks=setting.num_ranks,
        speed=min(node.cpu_share for node in setting.nodes),
        link_bytes_per_s=min(node.bits_per_s for node in setting.nodes) / 8, gradient_bytes=gradient_bytes,
        num_tensors=num_gradients, num_buckets=max(1.0, gradient_bytes / Parallelism().bucket_bytes),
    )  # fmt: skip


def gradients_of(graph: Graph) -> tuple[float, int]:
    """Bytes that data parallelism reduces in a step, and in how many tensors."""
    stage = lower(graph, Parallelism(data=2)).stages[0]
    messages = [
        (task.num_bytes, count)
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Collective)
    ]
    return sum(num_bytes * count for num_bytes, count in messages), sum(count for _, count in messages)
