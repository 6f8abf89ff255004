"""`traincast plan`: which cluster and which parallelism, for a deadline, a budget or speed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli import options
from traincast.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traincast.forecast.request import Request
    from traincast.plan import Plan
    from traincast.plan.offers import Chosen
    from traincast.spec import Cluster

Sizes = str | None


def plan(
    source: options.Source,
    device: options.Device = None,
    machine: options.Machine = None,
    all_machines: Annotated[
        bool, typer.Option("--all", help="Every machine of the catalogue that can be rented and has a price.")
    ] = False,
    offers: Annotated[
        Path | None, typer.Option("--offers", help="A price list (TOML or JSON): machines, prices, regions, counts.")
    ] = None,
    nodes: options.Nodes = None,
    devices_per_node: options.DevicesPerNode = None,
    intra: options.Intra = None,
    inter: options.Inter = None,
    price: options.Price = None,
    gpus: Annotated[Sizes, typer.Option("--gpus", help="Devices to use: 64 or a range such as 8..64.")] = None,
    region: Annotated[Sizes, typer.Option("--region", help="Only these regions: us-east-1 or us,eu.")] = None,
    devices: Annotated[Sizes, typer.Option("--devices", help="Only these devices: h100-80g,a100-80g.")] = None,
    global_batch: Annotated[
        int | None, typer.Option("--global-batch", help="Samples of one optimizer step, the same in every plan.")
    ] = None,
    seq: options.Seq = None,
    precision: options.Precision = None,
    optimizer: options.Optimizer = None,
    attention: options.Attention = None,
    micro_batch: Annotated[
        Sizes, typer.Option("--micro-batch", "-b", help="Samples of one pass to try: 1,2,4; default: powers of two.")
    ] = None,
    tp: Annotated[Sizes, typer.Option("--tp", help="Tensor parallel degrees to try: 1,2,4,8.")] = None,
    pp: Annotated[Sizes, typer.Option("--pp", help="Pipeline stages to try.")] = None,
    cp: Annotated[Sizes, typer.Option("--cp", help="Context parallel degrees to try.")] = None,
    ep: Annotated[Sizes, typer.Option("--ep", help="Expert parallel degrees to try.")] = None,
    vp: Annotated[Sizes, typer.Option("--vp", help="Virtual stages of the interleaved order to try.")] = None,
    zero: Annotated[Sizes, typer.Option("--zero", help="ZeRO stages to try: 0,1,2,3.")] = None,
    recompute: Annotated[Sizes, typer.Option("--recompute", help="none,selective,full: which to try.")] = None,
    order: Annotated[Sizes, typer.Option("--order", help="gpipe,1f1b,interleaved,zero-bubble: which to try.")] = None,
    steps: options.Steps = None,
    samples: options.Samples = None,
    epochs: options.Epochs = None,
    epoch_samples: options.EpochSamples = None,
    stack: options.Stack = None,
    compiled: options.Compiled = False,
    deadline: Annotated[str | None, typer.Option("--deadline", help="The job must end within: 36h, 90min, 2d.")] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="USD that the job may cost.")] = None,
    confidence: Annotated[
        float, typer.Option("--confidence", "-c", help="How sure memory, deadline and budget must hold, 0 to 1.")
    ] = 0.9,
    objective: Annotated[str, typer.Option("--objective", help="What to make small: time, money or energy.")] = "time",
    top: Annotated[int, typer.Option("--top", min=1, help="How many plans to show.")] = 10,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Work out every plan; no bound may skip one.")
    ] = False,
    what_if: Annotated[
        list[str] | None, typer.Option("--what-if", help="KEY=VALUE: what this one change does to the best plan.")
    ] = None,
    emit: Annotated[
        str | None,
        typer.Option("--emit", help="Write the best plan for slurm, skypilot, torchrun, accelerate, deepspeed or k8s."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File that --emit writes; -: print it.")] = None,
    time_quantile: options.TimeQuantile = 0.95,
    command: Annotated[str, typer.Option("--command", help="What each rank runs, for --emit.")] = "train.py",
    print_flags: Annotated[
        bool, typer.Option("--print-flags", help="With --emit slurm: only the flags for sbatch.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Draw cost against time with the front to an SVG file.")
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="none, processes or ray: where clusters are worked on side by side.")
    ] = "none",
    workers: options.Workers = 0,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Choose cluster and parallelism for a deadline, a budget or speed.

    Example: traincast plan llama-2-7b --all --devices h100-80g,a100-80g --gpus 8..64 --precision bf16 --seq 4096
    --global-batch 512 --steps 20000 --deadline 14d --objective money
    """
    from traincast.cli.progress import follow
    from traincast.forecast.request import Request, WorkloadOptions, fill_in
    from traincast.plan import Limits, search_plans
    from traincast.report.document import format_json
    from traincast.report.paint import choose_paint
    from traincast.report.plan import document_search, draw_front, format_deltas, format_search
    from traincast.units import parse_seconds

    paint = choose_paint(sys.stdout, color=color)
    request = fill_in(
        Request(
            source=source,
            workload=WorkloadOptions(seq=seq, precision=precision, optimizer=optimizer, attention=attention),
            cluster=options.given(
                device=device, node=machine, nodes=nodes, devices_per_node=devices_per_node, intra=intra, inter=inter,
                price_per_device=price,
            ),
            job=options.given(
                steps=steps, samples=samples, epochs=epochs, epoch_samples=epoch_samples, stack=stack,
                compiled=compiled or None,
            ),
        )
    )  # fmt: skip
    space = _space(
        request, global_batch=global_batch, batches=micro_batch, tensor=tp, pipeline=pp, context=cp, expert=ep,
        virtual_stages=vp, zero=zero, recompute=recompute, orders=order,
    )  # fmt: skip
    limits = Limits(
        deadline_s=None if deadline is None else parse_seconds(deadline), budget_usd=budget, confidence=confidence
    )
    chosen = _choose(request, all_machines=all_machines, offers=offers, gpus=gpus, region=region, devices=devices)
    with follow(label="plans") as watch:
        found = search_plans(
            request, chosen.clusters, space=space, limits=limits, objective=objective, top=top, exhaustive=exhaustive,
            watch=watch, engine=engine, workers=workers,
        )  # fmt: skip
    found = _note(found, chosen)
    deltas = _deltas(found.plans, request, what_if or [])
    if svg is not None:
        from traincast.files import write_whole

        title = (
            f"{found.plans[0].forecast.workload if found.plans else source}, {space.global_batch:,} samples per step"
        )
        write_whole(svg, draw_front(found, title=title, deadline_s=limits.deadline_s))
    if emit is not None:
        _emit(
            found.plans, emit, output, quantile=time_quantile, command=command,
            precision=request.workload.precision or "fp32", print_flags=print_flags,
        )  # fmt: skip
        if output is None or str(output) == "-":
            return
    if json:
        document = document_search(found)
        document["what_if"] = [_document_delta(delta) for delta in deltas]
        say(format_json(document))
        return
    say(format_search(found, paint=paint))
    if deltas:
        say("\n" + format_deltas(found.plans[0], deltas, paint=paint))


def _space(request: "Request", **asked: Any) -> Any:
    """Lists such as '1,2,4' to the fields of a space; what they leave out is as the request's plan says, or searched."""
    from traincast.plan.vary import space_of

    words = ("recompute", "orders")
    values: dict[str, Any] = {
        name: value if name == "global_batch" else tuple(_split(value)) if name in words else _numbers(name, value)
        for name, value in asked.items()
        if value is not None
    }
    return space_of(request, **values)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(name: str, text: str) -> tuple[int, ...]:
    from traincast.errors import InvalidInput

    try:
        return tuple(int(part) for part in _split(text))
    except ValueError:
        raise InvalidInput(f"{name} = {text!r}; give whole numbers such as 1,2,4") from None


def _choose(
    request: "Request", *, all_machines: bool, offers: Path | None, gpus: str | None, region: str | None,
    devices: str | None,
) -> "Chosen":  # fmt: skip
    import dataclasses

    from traincast.errors import InvalidInput
    from traincast.forecast.request import build_cluster
    from traincast.plan.offers import (
        Chosen,
        Wanted,
        catalogue_offers,
        check_regions,
        offer_of,
        read_offers,
        size_offers,
    )

    if all_machines and offers is not None:
        raise InvalidInput("give --all or --offers FILE, not both")
    named = {key: value for key, value in request.cluster.items() if key != "price_per_device"}
    if (all_machines or offers is not None) and named:
        raise InvalidInput(
            f"the machines come from {'--all' if all_machines else '--offers'}; leave out {', '.join(named)}"
        )
    low, high = _range(gpus)
    regions = tuple(_split(region or ""))
    wanted = Wanted(min_devices=low, max_devices=high, regions=regions, devices=tuple(_split(devices or "")))
    if all_machines or offers is not None:
        listed = catalogue_offers() if offers is None else read_offers(offers)
        check_regions(listed, regions)
        chosen = size_offers(listed, wanted)
    else:
        cluster: Cluster = build_cluster(request)
        if isinstance(request.cluster.get("node"), str):
            cluster = dataclasses.replace(cluster, name=f"{cluster.num_nodes} x {request.cluster['node']}")
        if gpus is None or len(cluster.groups) > 1:
            return Chosen(clusters=(cluster,), left_out={})
        chosen = size_offers([offer_of(cluster)], wanted)
    if not chosen.clusters:
        reasons = ", ".join(f"{name} left out {count}" for name, count in chosen.left_out.items())
        raise InvalidInput(f"no machine is left to plan for ({reasons}); widen --gpus, --region or --devices")
    return chosen


def _range(text: str | None) -> tuple[int, int]:
    from traincast.errors import InvalidInput

    if text is None:
        return 1, 64
    first, dots, last = text.partition("..")
    try:
        return int(first), int(last if dots else first)
    except ValueError:
        raise InvalidInput(f"gpus = {text!r}; give a number such as 64 or a range such as 8..64") from None


def _note(found: Any, chosen: "Chosen") -> Any:
    import dataclasses

    notes = tuple(f"{name}: {count} machines left out" for name, count in chosen.left_out.items())
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def _deltas(plans: "Sequence[Plan]", request: "Request", changes: "Sequence[str]") -> list[Any]:
    from traincast.errors import InvalidInput
    from traincast.plan.what_if import what_if

    if changes and not plans:
        raise InvalidInput("--what-if changes the best plan, and no plan keeps every limit")
    return [what_if(plans[0], request, change) for change in changes]


def _document_delta(delta: Any) -> dict[str, Any]:
    import dataclasses

    from traincast.report.document import document_forecast

    ratios = {item.name: getattr(delta, item.name) for item in dataclasses.fields(delta) if item.name != "after"}
    return {**ratios, "after": document_forecast(delta.after)}


def _emit(
    plans: "Sequence[Plan]", kind: str, output: Path | None, *, quantile: float, command: str, precision: str,
    print_flags: bool,
) -> None:  # fmt: skip
    from traincast.errors import InvalidInput
    from traincast.files import write_whole
    from traincast.plan.emit import emit, make_recipe, slurm_flags

    if not plans:
        raise InvalidInput("--emit writes the best plan, and no plan keeps every limit")
    if print_flags:
        if kind != "slurm":
            raise InvalidInput(f"--print-flags goes with --emit slurm, not {kind}")
        flags = slurm_flags(make_recipe(plans[0], quantile=quantile, command=command, precision=precision))
        text = " ".join(f"{name}={value}" for name, value in flags.items())
    else:
        text = emit(plans[0], kind, quantile=quantile, command=command, precision=precision)
    if output is None or str(output) == "-":
        say(text)
    else:
        write_whole(output, text if text.endswith("\n") else f"{text}\n")
