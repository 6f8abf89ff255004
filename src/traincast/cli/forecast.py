"""`traincast forecast`: one job on one cluster under one plan."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli import options
from traincast.cli.learned import GivenOption, costs_of, load_learned
from traincast.cli.output import say
from traincast.cli.progress import waiting
from traincast.cli.questions import takes_question
from traincast.noun import noun
from traincast.spec import Parallelism, Question

if TYPE_CHECKING:
    from traincast.forecast import Origin
    from traincast.spec import Forecast

MOST_DRAWN = 32
"""Micro-batches of a step up to which a document says how busy its devices are."""


@noun
class Shown:
    """How the answer is shown, and what is written beside it."""

    explain: Annotated[
        bool, typer.Option("--explain", "-e", help="Each part's own answer, slowest layers, parts of memory and job.")
    ] = False
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write the step as a trace for https://ui.perfetto.dev.")
    ] = None
    emit: Annotated[
        str | None,
        typer.Option(
            "--emit",
            help="Print the job as the file of a scheduler or trainer instead: slurm, deepspeed ... (see traincast config).",
            rich_help_panel="Output",
        ),
    ] = None
    price_file: options.PriceFile = None
    json: options.Json = False
    color: options.Color = "auto"

    def draws(self, plan: Parallelism) -> bool:
        """Whether every span is shown, or what follows from them: only then is the step drawn."""
        asked = self.explain or self.trace is not None
        return asked or (self.json and plan.micro_batches <= MOST_DRAWN)


@takes_question(common=("explain", "json"))
def forecast(
    question: Question,
    *,
    to_target: Annotated[
        bool,
        typer.Option(
            "--to-target", help="Until MLPerf's quality target, where its samples are known.", rich_help_panel="Job"
        ),
    ] = False,
    shown: Shown,
    given: GivenOption = None,
    activity: Annotated[
        Path | None,
        typer.Option(
            "--activity",
            help="With --method driple: a network adapted to runs of this setting (traincast learn --method driple).",
            rich_help_panel="Learned",
        ),
    ] = None,
) -> None:
    """Forecast step time, job time, memory and cost of a training job.

    Example: traincast forecast llama-3-8b --gpus 8xh100 --tokens 15B

    Example: traincast forecast --config qlora.yml --gpus 4xh100

    Example: traincast forecast --config config.json --config ds_config.json --config training_args.json --gpus 8xa100-80g

    What is not said is chosen as a practitioner would, and listed as flags under the answer.
    """
    from traincast.forecast import Origin
    from traincast.forecast import answer as run_forecast
    from traincast.plan import decide

    with waiting(f"reading {question.source}"):
        resolved = decide(question)
    about_target: tuple[str, ...] = ()
    if to_target:
        from traincast.resolve import train_to_target

        job, said = train_to_target(resolved.job, resolved.parallelism)
        resolved, about_target = dataclasses.replace(resolved, job=job), (said,)
    learned = load_learned(question.calibration, given, filed=resolved.calibration)
    correction = None
    if activity is not None:
        from traincast.resources import load_twelve

        correction = load_twelve(activity)
    draw = shown.draws(resolved.parallelism)
    answer = run_forecast(resolved, calibration=learned, draw=draw, work=not shown.json, activity=correction)
    origin = Origin(question=question, resolved=resolved, calibration=learned)
    answer = dataclasses.replace(answer, notes=(*answer.notes, *about_target), origin=origin)
    if shown.explain:
        from traincast.forecast import explain_parts

        parts = explain_parts(answer, resolved.job, resolved.cluster, resolved.parallelism, costs=costs_of(learned))
        answer = dataclasses.replace(answer, parts=parts)
    _show(answer, shown, origin)


def _show(answer: "Forecast", shown: Shown, origin: "Origin") -> None:
    from traincast.report import choose_paint, document_forecast, format_answer, format_json

    # Before any file is written: an unknown word for --color stops the command.
    paint = choose_paint(sys.stdout, color=shown.color)
    if shown.trace is not None:
        from traincast.files import write_json
        from traincast.report import trace_forecast

        write_json(shown.trace, trace_forecast(answer))
    if shown.emit is not None:
        from traincast.cli.emit import emit_answer

        say(emit_answer(origin.question, origin.resolved, answer, kind=shown.emit))
    elif shown.json:
        say(format_json(document_forecast(answer)))
    else:
        from traincast.plan import tell

        told = tell(answer, price_file=shown.price_file)
        say(format_answer(answer, told, paint=paint, explain=shown.explain, price_table=shown.price_file is not None))
