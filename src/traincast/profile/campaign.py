"""Visits in rounds that can be stopped at any moment: experiments of a team of ranks, and the corpus over its settings."""

import dataclasses
import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol as Shape

from traincast.profile.corpus import Setting, experiments_in
from traincast.profile.machine import total_memory_bytes
from traincast.profile.protocol import Progress, Protocol, Visit
from traincast.profile.team import Team, TeamFailed, team_in
from traincast.profile.testbed import EmulatedCluster, emulated, require_root
from traincast.spec.measurement import Block, Environment, Experiment
from traincast.spec.resources import ResourceProfile

DISTURBED = 0.2
"""Cores that neighbours may use during a block of the corpus before it is taken again, where there is time to wait."""
CORPUS_BLOCK_S, CORPUS_REPEATS, CORPUS_WARM_UP = 1.0, (4, 30), 2

HEAP_RELEASED = "heap_released"
"""Marks blocks before which ranks gave back the memory of earlier experiments, so that resident memory is their own."""

Describe = Callable[..., ResourceProfile]
"""Readings of one rank to its resource numbers: `traincast.resources.profile_samples`."""
Show = Callable[[Progress, Experiment | None], None]


class Keeper(Shape):
    """Where finished blocks go, and who knows how many there are: a store."""

    def append(self, experiment: Experiment, environment: Environment, block: Block, /) -> object: ...

    def num_blocks(self, experiment: Experiment, environment: Environment, /) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What of the corpus is measured, how often, and for how long."""

    names: tuple[str, ...]
    settings: tuple[Setting, ...]
    batches: tuple[int, ...]
    num_rounds: int
    budget_s: float
    quiet_s: float = 0.0
    """How long each visit may wait for a moment without neighbours."""


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


def measure_corpus(
    campaign: Campaign, kept: Keeper, *, samples_file: Path, describe: Describe, show: Show, say: Callable[[str], object]
) -> Iterator[Visit]:  # fmt: skip
    """Round by round over all settings, so that a corpus cut short is thin everywhere rather than absent somewhere."""
    require_root()
    started = time.monotonic()
    skipped: dict[str, set[str]] = {setting.name: set() for setting in campaign.settings}
    for number in range(1, campaign.num_rounds + 1):
        protocol = Protocol(
            num_rounds=number, block_s=CORPUS_BLOCK_S, min_repeats=CORPUS_REPEATS[0], max_repeats=CORPUS_REPEATS[1],
            warm_up_runs=CORPUS_WARM_UP,
        )  # fmt: skip
        for setting in campaign.settings:
            experiments = list(experiments_in(setting, campaign.names, batches=campaign.batches))
            cluster = EmulatedCluster(name=f"c{os.getpid()}"[:12], nodes=setting.nodes)
            while time.monotonic() - started < campaign.budget_s:
                left_s = campaign.budget_s - (time.monotonic() - started)
                try:
                    with emulated(cluster), team_in(cluster, machine=f"{platform.node()} testbed") as team:
                        visit_one = partial(
                            _visit_profiled, team, setting, protocol=protocol, samples_file=samples_file,
                            quiet_s=campaign.quiet_s, describe=describe,
                        )  # fmt: skip
                        yield from visit_all(
                            visit_one, kept, team.environment, experiments, num_rounds=number, budget_s=left_s,
                            progress=Progress(total=0), show=show, skipped=skipped[setting.name],
                        )  # fmt: skip
                    break
                except TeamFailed as error:
                    say(f"{setting.name}: {error}; starting its ranks again")


def _visit_profiled(team: Team, setting: Setting, experiment: Experiment, *, protocol: Protocol, samples_file: Path,
                    quiet_s: float, describe: Describe) -> Visit:  # fmt: skip
    """The visit with the twelve resource numbers of each rank, by the definitions that forecasts use."""
    visit = _visit_undisturbed(team, experiment, protocol=protocol, quiet_s=quiet_s)
    if visit.block is None:
        return visit
    _keep_samples(visit, samples_file)
    memory_bytes = total_memory_bytes() / setting.num_ranks
    resources = {**visit.block.resources, HEAP_RELEASED: 1.0}
    if visit.disturbance is not None:
        resources["neighbours_cpu_share"] = visit.disturbance
    for rank, (samples, node) in enumerate(zip(visit.samples, setting.nodes, strict=True)):
        read = samples.values
        if len(read) < 4:
            continue
        profile = describe(
            [each.at_s for each in read],
            # A node's share is its whole processor: working all of it is full utilisation.
            busy_s=[each.cpu_s / node.cpu_share for each in read],
            memory_share=[each.rss_bytes / memory_bytes for each in read],
            received_bytes=[each.received_bytes for each in read],
            sent_bytes=[each.sent_bytes for each in read],
            num_steps=len(visit.block.wall_s),
        )
        resources |= {f"rank{rank}_{name}": value for name, value in profile.twelve().items()}
        resources[f"rank{rank}_sampled_steps"] = len(visit.block.wall_s)
        resources[f"rank{rank}_gpu_mean"] = profile.gpu.mean
        resources[f"rank{rank}_window_s"] = profile.window_s
        resources[f"rank{rank}_rss_peak_bytes"] = max(each.rss_bytes for each in read)
    return dataclasses.replace(visit, block=dataclasses.replace(visit.block, resources=resources))


def _visit_undisturbed(team: Team, experiment: Experiment, *, protocol: Protocol, quiet_s: float) -> Visit:
    """Visit again while neighbours disturb it; the least disturbed counts."""
    deadline_s = time.monotonic() + quiet_s
    best = team.visit_watched(experiment, protocol=protocol, quiet_s=quiet_s)
    while (best.disturbance or 0.0) > DISTURBED and time.monotonic() < deadline_s:
        again = team.visit_watched(experiment, protocol=protocol, quiet_s=quiet_s)
        if (again.disturbance or 0.0) < (best.disturbance or 0.0):
            best = again
    return best


def _keep_samples(visit: Visit, path: Path) -> None:
    """One line with every reading of every rank, so that other definitions can be applied to the same run later."""
    line = {
        "experiment": visit.experiment.key,
        "num_steps": len(visit.block.wall_s) if visit.block is not None else 0,
        "ranks": [
            [
                [
                    round(each.at_s, 5),
                    round(each.cpu_s, 5),
                    int(each.received_bytes),
                    int(each.sent_bytes),
                    int(each.rss_bytes),
                ]
                for each in samples.values
            ]
            for samples in visit.samples
        ],
    }
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line, separators=(",", ":")) + "\n")
