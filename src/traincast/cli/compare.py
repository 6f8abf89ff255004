"""`traincast compare`: a recorded trace beside the forecast of the same job."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli import options
from traincast.cli.learned import GivenOption, load_learned
from traincast.cli.output import say
from traincast.cli.questions import takes_question
from traincast.spec import Question

if TYPE_CHECKING:
    from traincast.accuracy import TraceComparison
    from traincast.spec import Calibration, Forecast, Graph


@takes_question(without=("steps",))
def compare(
    trace: Annotated[
        Path,
        typer.Argument(
            help="A trace of torch.profiler (.json or .json.gz), or the log of a finished run; see docs/how-to/compare.md.",
            show_default=False,
        ),
    ],
    question: Question,
    given: GivenOption = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Steps in the trace, where it does not mark them (ProfilerStep)."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Add the run of a log to this table (CSV), which `traincast learn` takes."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Operations to list.")] = 10,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Lay a profiler trace beside the forecast of its job and rank operations by what they add to the difference.

    The device is that of the trace unless --device names another.

    Example: traincast compare trace.json.gz gpt2 --batch 8 --seq 1024
    """
    from traincast.accuracy import compare_trace
    from traincast.configs import is_log
    from traincast.report import choose_paint, document_comparison, format_comparison, format_json
    from traincast.resolve import fill_in

    said = question.calibration
    question = fill_in(question)
    if is_log(trace):
        _compare_log(
            trace, question, learned=load_learned(said, given, filed=question.calibration), keep=output, color=color
        )
        return
    learned = load_learned(said, given, filed=question.calibration)
    answer, graph = _forecast_as_traced(trace, question, learned)
    compared = compare_trace(trace, answer, graph, num_steps=steps)
    _warn(compared, answer)
    if json:
        say(format_json(document_comparison(compared)))
        return
    then = "traincast calibrate --out this-machine.json"
    say(format_comparison(compared, paint=choose_paint(sys.stdout, color=color), limit=top, then=then))


def _warn(compared: "TraceComparison", answer: "Forecast") -> None:
    """Where a trace is of another machine or another model than the forecast."""
    from traincast.catalog import load_facts

    ran = load_facts("device").get(compared.device) or compared.device
    if ran != answer.device:
        typer.echo(f"Warning: the trace was recorded on {ran}, the forecast is for {answer.device}.", err=True)
    known_s = sum(op.measured_s for op in compared.ops)
    if known_s and sum(op.measured_s for op in compared.extra) > 0.5 * known_s:
        typer.echo("Warning: most of the trace is not in the forecast; is it of another model?", err=True)


def _compare_log(
    log: Path, question: Question, *, learned: "Calibration | None", keep: Path | None, color: str
) -> None:
    from traincast.accuracy import keep_run, measure_step
    from traincast.configs import read_log
    from traincast.forecast import answer as answer_question
    from traincast.forecast import plain_engine
    from traincast.plan import decide
    from traincast.report import choose_paint, format_log

    run, resolved = read_log(log), decide(question)
    answer = answer_question(resolved, calibration=learned)
    meter = plain_engine().watch_device(resolved.job, resolved.cluster, resolved.parallelism)
    measured = measure_step(run, answer)
    if keep is not None:
        keep_run(keep, log.name, run, measured, resolved)
    say(format_log(run, measured, answer, meter, paint=choose_paint(sys.stdout, color=color)))
    if keep is not None:
        say(f"kept in {keep}; traincast learn {keep} -o mine.json learns from it")


def _forecast_as_traced(trace: Path, question: Question, learned: "Calibration | None") -> "tuple[Forecast, Graph]":
    """The forecast of the job on the device of its trace, unless another is named."""
    from traincast.accuracy import device_of_trace
    from traincast.errors import InvalidInput
    from traincast.forecast import forecast, pose_job
    from traincast.plan import decide
    from traincast.resolve import complete_plan

    found = question.cluster.get("device") or question.cluster.get("node") or device_of_trace(trace)
    if learned is not None and learned.machine is not None:
        from traincast.cost import Calibrated, Pricing
        from traincast.integrate import cluster_of_cores

        kept = learned.machine
        cluster = cluster_of_cores(kept)
        plan = complete_plan({}, num_devices=1)
        asked = pose_job(question, plan)
        costs = Calibrated(rates=kept, others=Pricing().estimate)
        return forecast(asked, cluster, plan, costs=costs, draw=True), asked.graph
    if found is None:
        raise InvalidInput(
            f"{trace} was recorded on a CPU, which no catalogue knows; calibrate that machine (traincast calibrate) and give "
            "--calibration, or name a --device"
        )
    cluster_options = question.cluster if {"device", "node", "groups"} & question.cluster.keys() else {"device": found}
    resolved = decide(dataclasses.replace(question, cluster={**cluster_options, **question.cluster}))
    answer = forecast(resolved.job, resolved.cluster, resolved.parallelism, calibration=learned, draw=True)
    return answer, resolved.job.graph
