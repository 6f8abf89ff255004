"""`python -m research.corpus.measure operators|steps`: measures our own corpus into a store (root, hours, resumable)."""

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from research.corpus.architectures import corpus_names, large_image_names
from research.corpus.plan import BATCHES, HEAP_RELEASED, OPTIMIZER, experiments_in
from research.corpus.team import WatchedTeam, team_in, total_memory_bytes
from research.corpus.testbed import EmulatedCluster, TestbedSetting, emulated, find_settings, require_root
from traincast.learn import operators_of, run_subjects
from traincast.learn._loads import capture_step
from traincast.profile import (
    Progress,
    Protocol,
    Steadiness,
    Visit,
    describe,
    make_canary,
    steady,
    subject_of,
    visit_in_rounds,
)
from traincast.profile._team import TeamFailed
from traincast.resources._profile import profile_samples
from traincast.spec import Environment, Experiment
from traincast.store import Store
from traincast.units import parse_seconds

DISTURBED = 0.2
"""Cores that neighbours may use during a block of the corpus before it is taken again, where there is time to wait."""
CORPUS_BLOCK_S, CORPUS_REPEATS, CORPUS_WARM_UP = 1.0, (4, 30), 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What of the corpus is measured, how often, and for how long."""

    names: tuple[str, ...]
    settings: tuple[TestbedSetting, ...]
    batches: tuple[int, ...]
    num_rounds: int
    budget_s: float
    quiet_s: float = 0.0
    """How long each visit may wait for a moment without neighbours."""


def measure_corpus(
    campaign: Campaign, kept: Store, *, samples_file: Path, say: Callable[[str], object]
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
                try:
                    with emulated(cluster), team_in(cluster, machine=f"{platform.node()} testbed") as team:
                        visit_one = partial(
                            _visit_profiled, team, setting, protocol=protocol, samples_file=samples_file,
                            quiet_s=campaign.quiet_s,
                        )  # fmt: skip
                        kept_by = partial(_keep, kept, team.team.environment, skipped[setting.name])
                        visits = visit_in_rounds(
                            [each for each in experiments if each.key not in skipped[setting.name]],
                            partial(kept_by, visit_one), protocol=protocol,
                            num_done=partial(_count, kept, team.team.environment),
                        )  # fmt: skip
                        for visit in visits:
                            yield visit
                            if time.monotonic() - started > campaign.budget_s:
                                return
                    break
                except TeamFailed as error:
                    say(f"{setting.name}: {error}; starting its ranks again")


def _keep(
    kept: Store, environment: Environment, skipped: set[str], visit_one: Callable[[Experiment], Visit],
    experiment: Experiment,
) -> Visit:  # fmt: skip
    """While an experiment runs it is skipped, so one that kills the ranks is not tried again."""
    skipped.add(experiment.key)
    visit = visit_one(experiment)
    if visit.block is not None:
        kept.append(experiment, environment, visit.block)
        skipped.discard(experiment.key)
    return visit


def _count(kept: Store, environment: Environment, experiment: Experiment) -> int:
    return kept.num_blocks(experiment, environment)


def _visit_profiled(team: WatchedTeam, setting: TestbedSetting, experiment: Experiment, *, protocol: Protocol, samples_file: Path,
                    quiet_s: float) -> Visit:  # fmt: skip
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
        profile = profile_samples(
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


def _visit_undisturbed(team: WatchedTeam, experiment: Experiment, *, protocol: Protocol, quiet_s: float) -> Visit:
    """Visit again while neighbours disturb it; the least disturbed counts."""
    deadline_s = time.monotonic() + quiet_s
    best = team.visit(experiment, protocol=protocol, quiet_s=quiet_s)
    while (best.disturbance or 0.0) > DISTURBED and time.monotonic() < deadline_s:
        again = team.visit(experiment, protocol=protocol, quiet_s=quiet_s)
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


def measure_operators(
    names: Sequence[str], kept: Store, *, num_rounds: int, block_s: float, budget_s: float
) -> Iterator[Visit]:
    """Every different operator in the steps of each sixth architecture (or of those named), on one pinned core."""
    steps = [capture_step(name, BATCHES[0], OPTIMIZER) for name in names or corpus_names()[::6]]
    subjects = [subject_of(load.experiment, device="cpu") for load in operators_of(steps)]
    with steady(Steadiness(cores=(max(os.sched_getaffinity(0)),), num_threads=1)) as steadiness:
        yield from run_subjects(
            subjects, store=kept, environment=describe(device="cpu", steadiness=steadiness),
            protocol=Protocol(num_rounds=num_rounds, block_s=block_s), canary=make_canary(), progress=Progress(total=0),
            budget_s=budget_s,
        )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m research.corpus.measure", description=__doc__)
    parser.add_argument("what", choices=("operators", "steps"))
    parser.add_argument("names", nargs="*", help="architectures; default: all of the corpus")
    parser.add_argument("--store", type=Path, default=Path("corpus.db"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block", type=float, default=0.03, help="seconds of repeats in each visit, operators")
    parser.add_argument("--batch", type=int, action="append", help="steps: samples per rank; may be repeated")
    parser.add_argument("--setting", action="append", help="steps: only this setting, such as 4x1gbit; may be repeated")
    parser.add_argument("--budget", help="stop after this time, such as 3min; a later run goes on")
    parser.add_argument("--quiet", default="0s", help="steps: wait up to this long for a moment without neighbours")
    options = parser.parse_args(arguments)
    budget_s = parse_seconds(options.budget) if options.budget else float("inf")
    with Store(options.store) as kept:
        if options.what == "operators":
            visits = measure_operators(
                options.names, kept, num_rounds=options.rounds, block_s=options.block, budget_s=budget_s
            )
        else:
            campaign = Campaign(
                names=tuple(options.names or [*corpus_names(), *large_image_names()]),
                settings=find_settings(options.setting or ()), batches=tuple(options.batch or BATCHES),
                num_rounds=options.rounds, budget_s=budget_s, quiet_s=parse_seconds(options.quiet),
            )  # fmt: skip
            visits = measure_corpus(
                campaign,
                kept,
                samples_file=options.store.with_suffix(".samples.jsonl"),
                say=_tell,
            )
        num_blocks = sum(visit.block is not None for visit in visits)
    _tell(f"{num_blocks} blocks added to {options.store}")
    return 0


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
