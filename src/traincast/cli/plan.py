"""`traincast plan`: which cluster and which parallelism, for a deadline, a budget or speed."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli import options
from traincast.cli.learned import GivenOption, load_learned
from traincast.cli.output import say
from traincast.cli.questions import takes_question
from traincast.noun import noun
from traincast.resolve import is_hardware
from traincast.spec import SAFE_CONFIDENCE, Question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traincast.forecast import Engine
    from traincast.plan import Chosen, Limits, Plan, Search, Space
    from traincast.report import Paint
    from traincast.spec import Calibration, Cluster

CHOICES = {
    "batch": "batches", "tensor": "tensor", "pipeline": "pipeline", "context": "context", "expert": "expert",
    "virtual_stages": "virtual_stages", "zero": "zero", "recompute": "recompute", "order": "orders",
}  # fmt: skip
"""What a search may vary: the field of a question to that of the space."""


@noun
class Machines:
    """Which machines a search may use."""

    all_machines: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every machine of the catalogue that can be rented and has a price.",
            rich_help_panel="Cluster",
        ),
    ] = False
    offers: Annotated[
        Path | None,
        typer.Option(
            "--offers",
            help="A price list (TOML or JSON): machines, prices, regions, counts.",
            rich_help_panel="Cluster",
        ),
    ] = None
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", help="Devices to use: 64, a range such as 8..64, or hardware such as 2x8xh100.",
            rich_help_panel="Cluster",
        ),
    ] = None  # fmt: skip
    region: Annotated[
        str | None, typer.Option("--region", help="Only these regions: us-east-1 or us,eu.", rich_help_panel="Cluster")
    ] = None
    devices: Annotated[
        str | None, typer.Option("--devices", help="Only these devices: h100-80g,a100-80g.", rich_help_panel="Cluster")
    ] = None


@noun
class Wishes:
    """What the best plan is."""

    deadline: Annotated[
        str | None,
        typer.Option("--deadline", help="The job must end within: 36h, 90min, 2d.", rich_help_panel="Limits"),
    ] = None
    budget: Annotated[
        float | None, typer.Option("--budget", help="USD that the job may cost.", rich_help_panel="Limits")
    ] = None
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence",
            "-c",
            help="How likely memory, deadline and budget must be kept, 0 to 1.",
            rich_help_panel="Limits",
        ),
    ] = SAFE_CONFIDENCE
    objective: Annotated[
        str, typer.Option("--objective", help="What to make small: time, money or energy.", rich_help_panel="Limits")
    ] = "time"
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="Work out every plan; no bound may skip one.", rich_help_panel="Limits"),
    ] = False
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", help="Search no longer than this; the best so far is given.", rich_help_panel="Limits"
        ),
    ] = None
    given: GivenOption = None


@noun
class Output:
    """What is shown and written."""

    top: Annotated[int, typer.Option("--top", min=1, help="How many plans to show.", rich_help_panel="Output")] = 10
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if", help="KEY=VALUE: what this one change does to the best plan.", rich_help_panel="Output"
        ),
    ] = None
    emit: Annotated[
        str | None,
        typer.Option(
            "--emit",
help="Write the best plan for slurm, skypilot, k8s or torchrun, or as the file of a trainer: deepspeed, accelerate "
            "... (traincast config --formats).",
            rich_help_panel="Output",
        ),
    ] = None  # fmt: skip
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File that --emit writes; -: print it.", rich_help_panel="Output"),
    ] = None
    price_file: options.PriceFile = None
    time_quantile: options.TimeQuantile = 0.95
    command: Annotated[
        str, typer.Option("--command", help="What each rank runs, for --emit.", rich_help_panel="Output")
    ] = "train.py"
    json: options.Json = False
    color: options.Color = "auto"


@takes_question(without=("data", "micro_batches"), lists=CHOICES)
def plan(
    question: Question,
    choices: Mapping[str, tuple[Any, ...]],
    machines: Machines,
    wishes: Wishes,
    output: Output,
) -> None:
    """Choose cluster and parallelism for a deadline, a budget or speed.

    Example: traincast plan llama-2-7b --all --devices h100-80g,a100-80g --gpus 8..64 --precision bf16 --seq 4096
    --global-batch 512 --steps 20000 --deadline 14d --objective money
    """
    from traincast.plan import INTERRUPTED
    from traincast.report import choose_paint, document_search, format_deltas, format_json

    paint = choose_paint(sys.stdout, color=output.color)
    asked = _ask(question, choices, machines, wishes)
    found, request = _search(asked, wishes, top=output.top), asked.request
    deltas = _deltas(found.plans, request, output.what_if or [], asked.engine)
    if output.emit is not None:
        _emit(found.plans, output, request)
        if output.output is None or str(output.output) == "-":
            return
    if output.json:
        document = document_search(found)
        document["what_if"] = [_document_delta(delta) for delta in deltas]
        say(format_json(document))
        return
    say(_describe(question, asked, found, file=output.price_file, paint=paint, is_open=not choices))
    if deltas:
        say("\n" + format_deltas(found.plans[0], deltas, paint=paint))
    if found.stopped == INTERRUPTED:
        raise KeyboardInterrupt


def _describe(
    question: Question, asked: "_Asked", found: "Search", *, file: Path | None, paint: "Paint", is_open: bool
) -> str:
    """`is_open`: no list of choices was given, so that the plan of a forecast is one of those that may be taken."""
    from traincast.plan import find_plain, highlight
    from traincast.report import after_no_plan, after_plan, format_search, place_of
    from traincast.resolve import find_length, reads_text

    request, plain = asked.request, None
    if found.plans and is_open and not found.stopped:
        cluster, samples = found.plans[0].cluster, asked.space.global_batch
        plain = find_plain(request, cluster, global_batch=samples, limits=asked.limits, engine=asked.engine)
    shown = highlight(found, plain)
    then, prices = after_no_plan(question, found.nearest, asked.limit_words), ""
    if shown:
        first = shown[0].plan
        then = after_plan(request, place_of(first.cluster), first.parallelism, first.batch)
        prices = _list_prices(request, first, file, paint)
    tokens = find_length(request.source, request.workload) if reads_text(request.source, request.workload) else None
    return format_search(found, highlights=shown, prices=prices, paint=paint, then=then, tokens=tokens)


@noun
class _Asked:
    """What a search is asked, with the clusters that may be used."""

    request: Question
    clusters: "tuple[Cluster, ...]"
    space: "Space"
    limits: "Limits"
    engine: "Engine"
    calibration: "Calibration | None"
    notes: tuple[str, ...]
    limit_words: tuple[str, ...]
    """Deadline and budget as they were said."""
    is_wide: bool
    """Whether every machine of the catalogue may be used."""


def _ask(question: Question, choices: Mapping[str, tuple[Any, ...]], machines: Machines, wishes: Wishes) -> _Asked:
    from traincast.forecast import Engine
    from traincast.plan import Limits, settle
    from traincast.resolve import fill_in
    from traincast.units import parse_seconds

    request = _leave_open(fill_in(question), question, machines)
    chosen = _choose(request, machines)
    settled = settle(request, chosen.clusters)
    space = _space(settled.request, choices, num_devices=max(cluster.num_devices for cluster in settled.clusters))
    limits = Limits(
        deadline_s=None if wishes.deadline is None else parse_seconds(wishes.deadline),
        budget_usd=wishes.budget,
        confidence=wishes.confidence,
        search_s=wishes.seconds,
    )
    learned = load_learned(question.calibration, wishes.given, filed=request.calibration)
    said = {"--deadline": wishes.deadline, "--budget": wishes.budget}
    words = tuple(f"{part}" for flag, value in said.items() if value is not None for part in (flag, value))
    left_out = tuple(f"{name}: {count} machines left out" for name, count in chosen.left_out.items())
    return _Asked(
        request=_without_choices(settled.request), clusters=settled.clusters, space=space, limits=limits,
        engine=Engine(calibration=learned), calibration=learned, notes=(*request.said, *settled.notes, *left_out),
        limit_words=words, is_wide=machines.all_machines,
    )  # fmt: skip


def _search(asked: _Asked, wishes: Wishes, *, top: int) -> "Search":
    """What is found; of every machine of the catalogue, first a few are chosen."""
    from traincast.cli.progress import follow
    from traincast.plan import preselect, search_plans

    clusters, notes = asked.clusters, asked.notes
    if asked.is_wide and not wishes.exhaustive:
        with follow(label="machines") as watch:
            few = preselect(
                asked.request, clusters, asked.space, limits=asked.limits, objective=wishes.objective, engine=asked.engine,
                watch=watch,
            )  # fmt: skip
        clusters = few.clusters
        if few.num_set_aside:
            notes += (
                f"{few.num_set_aside} clusters set aside after a few plain plans (--exhaustive searches them too)",
            )
    with follow(label="plans") as watch:
        found = search_plans(
            asked.request, clusters, space=asked.space, limits=asked.limits, objective=wishes.objective, top=top,
            exhaustive=wishes.exhaustive, watch=watch, engine=asked.engine, calibration=asked.calibration,
        )  # fmt: skip
    return dataclasses.replace(found, notes=tuple(dict.fromkeys((*notes, *found.notes))))


def _list_prices(request: Question, plan: "Plan", file: Path | None, paint: "Paint") -> str:
    """What providers ask for the machines of a plan."""
    from traincast.forecast import pose_job
    from traincast.plan import price_everywhere, read_prices
    from traincast.report import format_prices

    if plan.forecast.job.num_steps <= 1 or plan.cluster.price_source == "given":
        return ""
    job = pose_job(request, plan.parallelism, cluster=plan.cluster, batch=plan.batch)
    prices = None if file is None else read_prices(file)
    return format_prices(price_everywhere(plan.forecast, job, plan.cluster, prices=prices), paint=paint)


def _space(request: Question, choices: Mapping[str, tuple[Any, ...]], *, num_devices: int) -> Any:
    """What the search varies; what the request's plan names is fixed, unless a list of choices names others."""
    from traincast.plan import space_of

    values: dict[str, Any] = {CHOICES[name]: tried for name, tried in choices.items()}
    return space_of(request, global_batch=request.job.get("global_batch"), num_devices=num_devices, **values)


def _leave_open(request: Question, question: Question, machines: Machines) -> Question:
    """Without the machines of a configuration where the command line says which to search."""
    searched = machines.gpus is not None or machines.all_machines or machines.offers is not None
    if not searched or not question.configs:
        return request
    kept = request.cluster if machines.gpus and is_hardware(machines.gpus) else question.cluster
    return dataclasses.replace(request, cluster=kept)


def _without_choices(request: Question) -> Question:
    """The request without what the search decides."""
    job = {name: value for name, value in request.job.items() if name != "global_batch"}
    return dataclasses.replace(request, job=job)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _choose(request: Question, machines: Machines) -> "Chosen":
    from traincast.errors import InvalidInput
    from traincast.plan import Wanted, catalogue_offers, choose_machines, read_offers

    gpus = None if machines.gpus is None or is_hardware(machines.gpus) else machines.gpus
    if machines.all_machines and machines.offers is not None:
        raise InvalidInput("give --all or --offers FILE, not both")
    low, high = _range(gpus)
    wanted = Wanted(
        min_devices=low, max_devices=high, regions=tuple(_split(machines.region or "")),
        devices=tuple(_split(machines.devices or "")),
    )  # fmt: skip
    if machines.all_machines:
        return choose_machines(request, wanted, listed=catalogue_offers(), source="--all")
    if machines.offers is not None:
        return choose_machines(request, wanted, listed=read_offers(machines.offers), source="--offers")
    return choose_machines(request, None if gpus is None else wanted)


def _range(text: str | None) -> tuple[int, int]:
    from traincast.errors import InvalidInput

    if text is None:
        return 1, 64
    first, dots, last = text.partition("..")
    try:
        return int(first), int(last if dots else first)
    except ValueError:
        raise InvalidInput(f"gpus = {text!r}; give a number such as 64 or a range such as 8..64") from None


def _deltas(plans: "Sequence[Plan]", request: Question, changes: "Sequence[str]", engine: "Engine") -> list[Any]:
    from traincast.errors import InvalidInput
    from traincast.plan import what_if

    if changes and not plans:
        raise InvalidInput("--what-if changes the best plan, and no plan keeps every limit")
    return [what_if(plans[0], request, change, engine=engine) for change in changes]


def _document_delta(delta: Any) -> dict[str, Any]:
    from traincast.report import document_forecast

    ratios = {item.name: getattr(delta, item.name) for item in dataclasses.fields(delta) if item.name != "after"}
    return {**ratios, "after": document_forecast(delta.after)}


def _emit(plans: "Sequence[Plan]", wanted: Output, request: Question) -> None:
    from traincast.cli.emit import say_unwritten
    from traincast.errors import InvalidInput
    from traincast.files import write_whole
    from traincast.forecast import pose_job
    from traincast.plan import emit
    from traincast.resolve import spell_out

    precision = request.workload.precision or "fp32"
    kind, output, quantile, command = str(wanted.emit), wanted.output, wanted.time_quantile, wanted.command
    if not plans:
        raise InvalidInput("--emit writes the best plan, and no plan keeps every limit")
    best = plans[0]
    job = pose_job(request, best.parallelism, cluster=best.cluster, batch=best.batch)
    request = spell_out(request, job)
    say_unwritten(request, best, kind)
    text = emit(best, kind, quantile=quantile, command=command, precision=precision, question=request)
    if output is None or str(output) == "-":
        say(text)
    else:
        write_whole(output, text if text.endswith("\n") else f"{text}\n")
