"""`traincast can`: which GPUs can train a model at all, and how."""

import sys
from typing import Annotated

import typer

from traincast.cli import options
from traincast.cli.output import say
from traincast.cli.questions import takes_question
from traincast.spec import Question


@takes_question(sections=("workload",), without=("batch", "precision", "mode"))
def can(
    question: Question,
    devices: Annotated[
        str | None, typer.Option("--devices", help="Only these devices: rtx-4090,h100.", show_default=False)
    ] = None,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Say which GPUs can train a model: whole, by LoRA or by QLoRA, with how many of a node, for how much; and what it must hold.

    Example: traincast can llama-3.1-8b
    """
    from traincast.cli.progress import follow
    from traincast.plan import list_held, list_ways, usual_devices
    from traincast.report import choose_paint, format_held, format_json, format_ways, say_next
    from traincast.resolve import find_training, reads_text

    named = [part.strip() for part in (devices or "").split(",") if part.strip()] or list(usual_devices())
    with follow(label="devices") as watch:
        ways = list_ways(question, named, watch=watch)
    tokens = question.workload.seq or find_training(_tuned(question)).seq
    held = tuple(list_held(question, large=usual_devices()[-1], seq=tokens))
    if json:
        say(format_json({"ways": ways, "held": held}))
        return
    paint = choose_paint(sys.stdout, color=color)
    is_text = reads_text(question.source, question.workload)
    size = f", samples of {tokens:,} tokens" if is_text and tokens else ""
    title = f"What can train {question.source}{size}"
    say(format_ways(ways, title=title, unit="tokens" if is_text else "samples", paint=paint))
    say(
        "\n"
        + format_held(
            held, title=f"Memory of one device, micro-batch 1{size}, usual activation checkpointing", paint=paint
        )
    )
    first = next((way for way in ways if way.count is not None), None)
    if first is not None:
        regime = {"full": "finetuning"}.get(first.method, first.method.lower())
        command = f"traincast forecast {question.source} --regime {regime} --gpus {first.count}x{first.device}"
        say("\n" + say_next(command, paint=paint))


def _tuned(question: Question) -> Question:
    import dataclasses

    return dataclasses.replace(question, job={"regime": "finetuning"})
