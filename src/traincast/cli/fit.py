"""`traincast fit`: the largest batch and the longest sequence that fit, and what to change first where nothing does."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from traincast.cli import options
from traincast.cli.learned import GivenOption, load_learned
from traincast.cli.output import say
from traincast.cli.progress import waiting
from traincast.cli.questions import takes_question
from traincast.spec import SAFE_CONFIDENCE, Question

MOST_PARTS = 5
"""Of the peak, largest first."""


@takes_question()
def fit(
    question: Question,
    confidence: Annotated[
        float, typer.Option("--confidence", "-c", help="How likely it must be to fit, between 0 and 1.")
    ] = SAFE_CONFIDENCE,
    given: GivenOption = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Draw the memory of the fullest rank over one pass to an SVG file.")
    ] = None,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Find the largest batch and the longest sequence that fit, and what to change first where the job does not.

    Example: traincast fit llama-2-7b --device a100-80g -g 8 --precision bf16 --seq 4096 --zero 3 --confidence 0.95
    """
    from traincast.plan import complete_question, find_fit, jobs_at
    from traincast.report import format_json

    with waiting(f"reading {question.source}"):
        completed = complete_question(question)
    whole, cluster, plan = completed.question, completed.cluster, completed.parallelism
    assumptions = completed.assumptions
    asked, pose = whole.workload, jobs_at(completed)
    batch = 1 if asked.batch is None else asked.batch
    found = find_fit(
        pose,
        cluster,
        plan,
        batch=batch,
        seq=asked.seq,
        confidence=confidence,
        calibration=load_learned(question.calibration, given, filed=whole.calibration),
    )
    if svg is not None:
        _draw(svg, found.now, pose(found.batch, asked.seq, plan), plan)
    if json:
        say(format_json({**found.document(), "assumptions": list(dict.fromkeys(assumptions))}))
        return

    from traincast.plan import train_less
    from traincast.report import after_fit, choose_paint, format_assumptions, format_remedies, say_next

    paint = choose_paint(sys.stdout, color=color)
    say(_describe(found, paint=paint))
    if not found.fits and (less := format_remedies(tuple(train_less(question)), paint=paint)):
        say("\n" + less)
    say("\n" + format_assumptions(assumptions, paint=paint))
    say("\n" + say_next(after_fit(question, largest=found.most.size, fits=found.fits), paint=paint))


def _draw(file: Path, now: Any, job: Any, plan: Any) -> None:
    from traincast.files import write_whole
    from traincast.forecast import trace_memory
    from traincast.report import draw_memory

    stage, profile = trace_memory(now, job, plan)
    num_stages = len(now.memory.stage_peaks)
    title = f"{now.workload} on {now.num_devices} x {now.device}, stage {stage + 1} of {num_stages}"
    write_whole(file, draw_memory(profile, title=title))


def _say_largest(found: Any) -> str:
    """The largest batch that is as safe as was asked for, and the largest that is worth a try."""
    from traincast.spec import FIT_CONFIDENCE
    from traincast.units import show_number

    most, likely = found.most, found.likely
    if most.size:
        reach = " or more" if most.reached_end else ""
        text = f"{most.size:,}{reach} per device, {show_number(most.answer.samples_per_s)} samples/s"
    else:
        text = f"none is {found.confidence:.0%} safe"
    if likely is None or likely.size == most.size:
        return text
    if not most.size and likely.size == 1:
        return f"{text}; a batch of 1 is {likely.answer.memory.fit_probability:.0%} likely to fit"
    return f"{text}; up to {likely.size:,} are at least {FIT_CONFIDENCE:.0%} likely to fit"


def _describe(found: Any, *, paint: Any) -> str:
    from traincast.report import Table, format_table, say_fit, say_memory, say_meter
    from traincast.units import show_bytes, show_change

    now, meter, longest, wanted = found.now, found.meter, found.longest, found.batch
    memory = now.memory
    verdict = paint(say_fit(memory), *(("green",) if memory.is_safe else ("red", "bold")))
    lines = [
        f"{paint(f'{now.workload} on {now.num_devices} x {now.device}', 'bold')}: {verdict}",
        f"  batch {wanted:<12}{say_memory(memory)}",
    ]
    largest = sorted(memory.by_role.items(), key=lambda item: -item[1])[:MOST_PARTS]
    parts = ", ".join(f"{role.replace('_', ' ')} {show_bytes(amount)}" for role, amount in largest)
    lines.append(f"  at the peak       {parts} (in {memory.peak_where})")
    if memory.fits:
        seen = [show_bytes(amount) for amount in (meter.live_bytes, meter.reserved_bytes)]
        lines.append(f"  meters            {say_meter(meter)}; tensors {seen[0]}, reserved for them {seen[1]}")
    lines.append(f"  largest batch     {_say_largest(found)}")
    if longest is not None:
        reach = " or more" if longest.reached_end else ""
        text = f"{longest.size:,}{reach} tokens at batch {wanted}" if longest.size else f"none at batch {wanted}"
        if found.usual_sequence is not None and longest.size > found.usual_sequence:
            text += f" (the model is published with {found.usual_sequence:,})"
        lines.append(f"  longest sequence  {text}")
    if found.changes:
        rows = tuple(
            (
                change.name,
                show_bytes(change.needed_bytes),
                f"{change.fit_probability:.1%}",
                show_change(change.seconds_ratio),
                "yes" if change.fits else "no",
            )
            for change in found.changes
        )
        headings = (f"to be {found.confidence:.0%} safe", "memory", "probability", "time per sample", "enough")
        lines += ["", format_table(Table(headings=headings, rows=rows, left=frozenset(headings[:1])), paint=paint)]
    elif not found.fits:
        lines += ["", "No change saves memory; use more or larger devices."]
    return "\n".join(lines)
