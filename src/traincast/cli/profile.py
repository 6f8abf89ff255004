"""`traincast profile`: measures operators or steps into a store."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli.groups import takes_groups
from traincast.cli.options import Json
from traincast.noun import noun

if TYPE_CHECKING:
    from traincast.profile import Progress, Protocol, Steadied, Visit
    from traincast.spec import Experiment, Measurement
    from traincast.store import Store

SUBJECTS = ("operators", "steps")


@noun
class Measuring:
    """On what, how often and for how long an experiment is repeated."""

    device: Annotated[str, typer.Option("--device", "-d", help="cpu or cuda.")] = "cpu"
    rounds: Annotated[int, typer.Option("--rounds", help="Visits to each experiment, apart in time.")] = 5
    block: Annotated[float, typer.Option("--block", help="Seconds of repeats in each visit.")] = 0.15
    budget: Annotated[
        str | None, typer.Option("--budget", help="Stop after this time, such as 3min; a later run goes on.")
    ] = None
    core: Annotated[int | None, typer.Option("--core", help="Pin to this core.")] = None

    @property
    def budget_s(self) -> float:
        from traincast.units import parse_seconds

        return parse_seconds(self.budget) if self.budget else float("inf")

    @property
    def protocol(self) -> "Protocol":
        from traincast.profile import Protocol

        return Protocol(num_rounds=self.rounds, block_s=self.block)


@takes_groups
def profile(
    what: Annotated[str, typer.Argument(help=f"{', '.join(SUBJECTS)}.", show_default=False)],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Steps: my_file.py:build or an architecture such as 'resnet(depth=2,width=16)'. Operators: kinds, or saved "
            "graphs whose operators are wanted. Default: all known.",
            show_default=False,
        ),
    ] = None,
    *,
    store: Annotated[Path, typer.Option("--store", "-s", help="File that keeps the measurements.")] = Path(
        "measurements.db"
    ),
    batch: Annotated[
        list[int] | None, typer.Option("--batch", "-b", help="Samples of a step; may be repeated.")
    ] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, momentum, adam or adamw.")] = "adamw",
    measuring: Measuring,
    json: Json = False,
) -> None:
    """Measure operators and steps on this machine.

    Everything finished is in the store at once: a run that is stopped or killed is simply started again and goes on where
    it was. Blocks of repeats are spread over interleaved rounds, so that a busy moment of the machine spoils few of them.

    Example: traincast profile steps 'resnet(depth=2,width=16)' my_model.py:build --batch 8 --store mine.db
    """
    from traincast.errors import UnknownName
    from traincast.store import Store

    if what not in SUBJECTS:
        raise UnknownName("subject", what, SUBJECTS)
    with Store(store) as kept:
        experiments = _experiments(what, names or [], batch or [8], optimizer)
        visits = _measure_here(kept, experiments, measuring)
        summary = _summarise(list(visits))
        _say(summary, kept, json=json)


def _measure_here(kept: "Store", experiments: list["Experiment"], measuring: Measuring) -> Iterator["Visit"]:
    import os

    from traincast.learn import run_subjects
    from traincast.profile import Progress, Steadiness, describe, make_canary, steady, subject_of

    device = measuring.device
    subjects = [subject_of(each, device=device) for each in experiments]
    chosen = measuring.core if measuring.core is not None else max(os.sched_getaffinity(0))
    steadiness = Steadiness(cores=(chosen,), num_threads=1)
    with steady(steadiness):
        environment = describe(device=device, steadiness=steadiness)
        progress = Progress(total=0)
        canary = make_canary() if device == "cpu" else None
        for visit in run_subjects(
            subjects, store=kept, environment=environment, protocol=measuring.protocol, canary=canary,
            progress=progress, budget_s=measuring.budget_s,
        ):  # fmt: skip
            _show(progress, visit.experiment)
            yield visit
        _show(progress, None)


def _experiments(what: str, names: list[str], batches: list[int], optimizer: str) -> list["Experiment"]:
    from traincast.profile import step_experiment

    if what == "operators":
        return _wanted_operators(names)
    from traincast.profile import architecture_names

    return [
        step_experiment(name, batch=batch, optimizer=optimizer)
        for name in names or architecture_names()
        for batch in batches
    ]


def _wanted_operators(names: list[str]) -> list["Experiment"]:
    from traincast.errors import InvalidInput, UnknownName
    from traincast.files import load_graph
    from traincast.profile import MAKERS, distinct_operators, grid
    from traincast.spec import Scalable

    files = [name for name in names if Path(name).suffix in (".json", ".gz")]
    kinds = [name for name in names if name not in files]
    for kind in kinds:
        if kind not in MAKERS:
            raise UnknownName("operator kind", kind, MAKERS)
    if not files:
        return [experiment for experiment in grid() if not kinds or experiment.name in kinds]
    loaded = [load_graph(path) for path in files]
    graphs = [graph.small if isinstance(graph, Scalable) else graph for graph in loaded]
    found = [experiment for experiment in distinct_operators(graphs) if not kinds or experiment.name in kinds]
    if not found:
        raise InvalidInput(f"no operator of {', '.join(files)} can be run by itself")
    return found


def _show(progress: "Progress", experiment: "Experiment | None") -> None:
    if not sys.stderr.isatty():
        return
    from traincast.report import Paint
    from traincast.units import show_seconds

    if experiment is None:
        sys.stderr.write("\r\x1b[K")
        return
    bar = Paint().bar(progress.done / max(1, progress.total), width=24)
    left = "unknown" if progress.remaining_s is None else f"about {show_seconds(progress.remaining_s)}"
    sys.stderr.write(f"\r{bar} {progress.done}/{progress.total}, {left} left, {experiment.name[:40]}\x1b[K")
    sys.stderr.flush()


def _summarise(visits: list["Visit"]) -> dict[str, Any]:
    failures = {visit.experiment.key: visit.failure for visit in visits if visit.failure}
    canaries = [visit.block.canary_s for visit in visits if visit.block is not None and visit.block.canary_s]
    from traincast.profile import drift

    return {
        "num_blocks": sum(visit.block is not None for visit in visits),
        "num_experiments": len({visit.experiment.key for visit in visits}),
        "drift": drift(canaries),
        "failures": failures,
        "keys": sorted({visit.experiment.key for visit in visits if visit.block is not None}),
    }


def _without_drift(found: "Sequence[Measurement]") -> "list[Steadied | None]":
    """CPU time where one thread of a CPU was timed, wall time otherwise; of each machine by itself."""
    from traincast.profile import steady_seconds

    steady: dict[tuple[str, str], Steadied] = {}
    for environment in dict.fromkeys(each.environment.key for each in found):
        together = [each for each in found if each.environment.key == environment]
        by_key = steady_seconds(together)
        steady |= {(environment, key): level for key, level in by_key.items()}
    return [steady.get((each.environment.key, each.experiment.key)) for each in found]


def _say(summary: dict[str, Any], kept: "Store", *, json: bool) -> None:
    import statistics

    from traincast.cli.output import lead_to, say
    from traincast.report import format_json

    keys = set(summary.pop("keys"))
    found = [each for each in kept.measurements() if each.experiment.key in keys]
    steady = _without_drift(found)
    noises = [each.noise for each in steady if each is not None and each.noise is not None]
    summary["noise"] = statistics.median(noises) if noises else None
    summary["store"] = str(kept.path)
    summary["measurements"] = [
        {
            "experiment": each.experiment.key,
            "seconds": each.seconds,
            "cpu_seconds": each.cpu_seconds,
            "spread": each.spread,
            "steady_seconds": None if level is None else level.seconds,
            "steady_noise": None if level is None else level.noise,
            "num_blocks": len(each.blocks),
        }
        for each, level in zip(found, steady, strict=True)
    ]
    if json:
        say(format_json(summary))
        return
    _say_measurements(found, steady, kept)
    noise = "unknown (one block each)" if summary["noise"] is None else f"{summary['noise']:.1%}"
    say(f"{summary['num_blocks']} blocks added to {kept.path}; median noise of an estimate: {noise}")
    if summary["drift"] is not None and summary["drift"] > 0.2:
        say(f"warning: the machine was at times {summary['drift']:.0%} slower than usual; more rounds help")
    for key, reason in list(summary["failures"].items())[:10]:
        say(f"not measured: {key}: {reason}")
    lead_to("store", "list", kept.path)


def _say_measurements(found: Sequence["Measurement"], steady: Sequence["Steadied | None"], kept: "Store") -> None:
    from traincast.cli.output import say
    from traincast.report import Table, format_table
    from traincast.units import show_seconds

    rows = tuple(
        (
            each.experiment.key[:90],
            show_seconds(each.seconds),
            show_seconds(each.cpu_seconds) if each.cpu_seconds is not None else "-",
            "-" if each.spread is None else f"{each.spread:.1%}",
            "-" if level is None else show_seconds(level.seconds),
            "-" if level is None or level.noise is None else f"{level.noise:.1%}",
            str(len(each.blocks)),
        )
        for each, level in list(zip(found, steady, strict=True))[:40]
    )
    if rows:
        headings = ("experiment", "wall", "CPU", "spread", "drift out", "±", "blocks")
        say(format_table(Table(headings=headings, rows=rows, left=frozenset({"experiment"}))))
    if len(found) > 40:
        say(f"... and {len(found) - 40} more; see: traincast store list {kept.path}")
