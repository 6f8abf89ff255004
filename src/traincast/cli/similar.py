"""`traincast similar`: the nearest known workloads, how they behaved, and how far this one is from all we know."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli import options
from traincast.cli.output import lead_to, say
from traincast.cli.questions import takes_question
from traincast.spec import Question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traincast.embed import Neighbour

DEVICE = "a100-80g"


@takes_question(sections=("workload",))
def similar(
    question: Question,
    *,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many neighbours.")] = 5,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            help="Accelerator for the forecasts of catalogue neighbours.",
            autocompletion=options.complete_device,
        ),
    ] = DEVICE,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Find the known workloads that are most alike, and how they behaved: measured steps, or forecasts of the catalogue.

    Example: traincast similar resnet50 -n 5, or traincast similar my_model.py:build
    """
    from traincast.embed import UNFAMILIAR, load_atlas, summarize
    from traincast.forecast import load_source
    from traincast.report import format_json

    graph = load_source(question.source, question.workload)
    summary, atlas = summarize(graph), load_atlas()
    neighbours = atlas.relatives(summary, count=count)
    distance = atlas.distance(summary)
    behaved = [_behaviour(neighbour, device, batch=graph.batch_size) for neighbour in neighbours]
    if json:
        say(format_json({
            "workload": graph.name, "batch": graph.batch_size, "dataset_type": summary.dataset_type, "distance": distance,
            "familiar": distance <= UNFAMILIAR,
            "neighbours": [
                {"name": each.workload.name, "source": each.workload.source, "batch": found.pop("batch"),
                 "distance": each.distance, **found}
                for each, found in zip(neighbours, behaved, strict=True)
            ],
        }))  # fmt: skip
        return
    title = f"Known workloads like {graph.name} (batch {graph.batch_size}, {summary.dataset_type} data)"
    _say_neighbours(title, neighbours, behaved, color=color)
    say(f"\n{_verdict(distance, limit=UNFAMILIAR)}")
    lead_to("forecast", question.source, "--gpus", f"1x{device}")


def _say_neighbours(
    title: str, neighbours: "Sequence[Neighbour]", behaved: "Sequence[dict[str, Any]]", *, color: str
) -> None:
    from traincast.report import Table, choose_paint, format_table

    paint = choose_paint(sys.stdout, color=color)
    rows = tuple(
        (
            paint(each.workload.name, "cyan"),
            each.workload.source,
            str(found["batch"]),
            f"{each.distance:.2f}",
            _words(found),
        )
        for each, found in zip(neighbours, behaved, strict=True)
    )
    headings = ("workload", "from", "batch", "distance", "how it behaved")
    left = frozenset({"workload", "from", "how it behaved"})
    say(format_table(Table(headings=headings, rows=rows, left=left, title=title), paint=paint))
    if any("measured_s" in found for found in behaved):
        say("(measured: a step on our test-bed of CPU workers with a quarter of a core each)")


def _behaviour(neighbour: "Neighbour", device: str, *, batch: int) -> dict[str, Any]:
    """Measured step times where there are any, else a forecast of one device with the batch that was asked about."""
    if neighbour.workload.measured_s:
        return {"batch": neighbour.workload.batch_size, "measured_s": dict(neighbour.workload.measured_s)}
    from traincast.forecast import forecast
    from traincast.plan import decide
    from traincast.spec import WorkloadOptions

    asked = decide(
        Question(
            source=neighbour.workload.name,
            workload=WorkloadOptions(batch=batch),
            cluster={"device": device},
        )
    )
    found = forecast(asked.job, asked.cluster, asked.parallelism)
    return {
        "batch": batch,
        "forecast": {
            "device": device, "step_s": found.step.seconds, "low_s": found.step.low_s, "high_s": found.step.high_s,
            "fits": found.memory.fits, "utilization": found.utilization,
        }
    }  # fmt: skip


def _words(found: dict[str, Any]) -> str:
    from traincast.units import show_seconds

    if "measured_s" in found:
        shown = sorted(found["measured_s"].items())
        picked = shown if len(shown) <= 4 else [shown[0], *shown[len(shown) // 3 :: len(shown) // 3]]
        return "measured " + ", ".join(f"{_setting(name)} {show_seconds(seconds)}" for name, seconds in picked)
    answer = found["forecast"]
    fits = "" if answer["fits"] else ", does not fit"
    return f"forecast {answer['device']} {show_seconds(answer['step_s'])} a step, {answer['utilization']:.0%} of peak{fits}"


def _setting(name: str) -> str:
    """4x1gbit: four workers on links of 1 Gbit/s."""
    workers, _, network = name.partition("x")
    return f"{workers} worker" if workers == "1" else f"{workers} workers {network}"


def _verdict(distance: float, *, limit: float) -> str:
    if distance > limit:
        return (
            f"Unlike all we know: farther from its nearest neighbour than {distance:.0%} of the known workloads from theirs. "
            "Intervals widen; measure a few steps of it (traincast profile steps) before you trust a forecast."
        )
    if distance <= 0.5:
        return f"Familiar: nearer to its nearest neighbour than {1 - distance:.0%} of the known workloads to theirs."
    return (
        f"Familiar, if not close: farther from its nearest neighbour than {distance:.0%} of the known workloads from theirs "
        f"(above {limit:.0%} it would be a stranger)."
    )
