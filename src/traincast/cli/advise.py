"""`traincast advise`: a job in plain sentences, or as the flags of a Slurm script."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli import options
from traincast.cli.learned import GivenOption, load_learned
from traincast.cli.output import say
from traincast.cli.progress import waiting
from traincast.cli.questions import takes_question
from traincast.spec import SAFE_CONFIDENCE, Question

if TYPE_CHECKING:
    from traincast.plan import Advice


@takes_question()
def advise(
    question: Question,
    confidence: Annotated[
        float, typer.Option("--confidence", "-c", help="How likely it must be to fit, between 0 and 1.")
    ] = SAFE_CONFIDENCE,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Only the flags for sbatch: --time, --mem, --gres, --nodes ...")
    ] = False,
    given: GivenOption = None,
    time_quantile: options.TimeQuantile = 0.95,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Say in sentences what dominates a job, whether it fits, what one change would bring and what is not known.

    Example: traincast advise gpt2-xl --device a100-80g -g 8 --batch 4 --seq 1024 --precision bf16-amp --steps 10000
    """
    from traincast.plan import advise as give_advice
    from traincast.plan import complete_question, with_batch

    with waiting(f"reading {question.source}"):
        completed = complete_question(question)
    request, cluster, parallelism = completed.question, completed.cluster, completed.parallelism
    if not request.source.endswith((".json", ".json.gz")):
        request = dataclasses.replace(request, workload=with_batch(request.workload))
    learned = load_learned(question.calibration, given, filed=request.calibration)
    if slurm:
        say(_flags(request, cluster, parallelism, quantile=time_quantile, as_json=json, learned=learned))
        return
    with waiting("trying changes"):
        advice = give_advice(request, cluster, parallelism, confidence=confidence, calibration=learned)
    _show(question, advice, completed.assumptions, as_json=json, color=color)


def _show(question: Question, advice: "Advice", assumptions: Sequence[str], *, as_json: bool, color: str) -> None:
    import textwrap

    from traincast.report import (
        after_advice,
        choose_paint,
        document_forecast,
        format_assumptions,
        format_json,
        plain_data,
        say_next,
    )

    if as_json:
        document = {
            "sentences": list(advice.sentences),
            "assumptions": list(dict.fromkeys(assumptions)),
            "suggestions": plain_data(advice.suggestions),
            "forecast": document_forecast(advice.plan.forecast),
        }
        say(format_json(document))
        return
    paint = choose_paint(sys.stdout, color=color)
    for sentence in advice.sentences:
        say(textwrap.fill(sentence, width=paint.width, subsequent_indent="  "))
    say("\n" + format_assumptions(assumptions, paint=paint))
    say("\n" + say_next(after_advice(question, advice.plan.forecast), paint=paint))


def _flags(request: Any, cluster: Any, parallelism: Any, *, quantile: float, as_json: bool, learned: Any) -> str:
    from traincast.forecast import forecast, pose_job
    from traincast.plan import Plan, make_recipe, slurm_flags
    from traincast.report import format_json

    job = pose_job(request, parallelism, cluster=cluster)
    answer = forecast(job, cluster, parallelism, calibration=learned)
    plan = Plan.of(answer, cluster, parallelism, batch=job.graph.batch_size)
    flags = slurm_flags(make_recipe(plan, quantile=quantile, command="train.py"))
    if as_json:
        return format_json({"flags": flags, "time_quantile": quantile, "job": answer.job})
    return " ".join(f"{name}={value}" for name, value in flags.items())
