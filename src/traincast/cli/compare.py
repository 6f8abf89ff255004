"""`traincast compare`: a recorded trace beside the forecast of the same job."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from traincast.cli import options
from traincast.cli.learned import GivenOption, load_learned
from traincast.cli.output import say
from traincast.cli.questions import takes_question
from traincast.spec import Question


@takes_question(without=("steps",))
def compare(
    trace: Annotated[Path, typer.Argument(help="A trace of torch.profiler (.json or .json.gz).", show_default=False)],
    question: Question,
    given: GivenOption = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Steps in the trace, where it does not mark them (ProfilerStep)."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Operations to list.")] = 10,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Lay a profiler trace beside the forecast of its job and rank operations by what they add to the difference.

    The device is that of the trace unless --device names another.

    Example: traincast compare trace.json.gz gpt2 --batch 8 --seq 1024
    """
    from traincast.accuracy import compare_trace, device_of_trace
    from traincast.errors import InvalidInput
    from traincast.forecast import complete_plan, fill_in, forecast, pose_job, resolve
    from traincast.report import choose_paint, document_comparison, format_comparison, format_json

    said = question.calibration
    question = fill_in(question)
    found = question.cluster.get("device") or question.cluster.get("node") or device_of_trace(trace)
    learned = load_learned(said, given, filed=question.calibration)
    if learned is not None and learned.machine is not None:
        from traincast.cost import Calibrated, Pricing
        from traincast.integrate import cluster_of_cores

        kept = learned.machine
        cluster = cluster_of_cores(kept)
        plan = complete_plan({}, num_devices=1)
        asked = pose_job(question, plan)
        costs = Calibrated(rates=kept, others=Pricing().estimate)
        answer = forecast(asked, cluster, plan, costs=costs, draw=True)
    elif found is None:
        raise InvalidInput(
            f"{trace} was recorded on a CPU, which no catalogue knows; calibrate that machine (traincast calibrate) and give "
            "--calibration, or name a --device"
        )
    else:
        cluster_options = (
            question.cluster if {"device", "node", "groups"} & question.cluster.keys() else {"device": found}
        )
        resolved = resolve(dataclasses.replace(question, cluster={**cluster_options, **question.cluster}))
        asked = resolved.job
        answer = forecast(asked, resolved.cluster, resolved.parallelism, calibration=learned, draw=True)
    compared = compare_trace(trace, answer, asked.graph, num_steps=steps)
    if json:
        say(format_json(document_comparison(compared)))
        return
    then = "traincast calibrate --out this-machine.json"
    say(format_comparison(compared, paint=choose_paint(sys.stdout, color=color), limit=top, then=then))
