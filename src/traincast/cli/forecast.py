"""`traincast forecast`: one job on one cluster under one plan."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli import options
from traincast.cli.output import say

if TYPE_CHECKING:
    from traincast.cost import CostModel


def forecast(
    source: options.Source,
    device: options.Device = None,
    machine: options.Machine = None,
    nodes: options.Nodes = None,
    devices_per_node: options.DevicesPerNode = None,
    intra: options.Intra = None,
    inter: options.Inter = None,
    speed: Annotated[
        float | None,
        typer.Option("--speed", help="Share of its nominal speed that each node reaches, such as 0.25 of a CPU core."),
    ] = None,
    price: options.Price = None,
    batch: options.Batch = None,
    seq: options.Seq = None,
    precision: options.Precision = None,
    mode: options.Mode = None,
    optimizer: options.Optimizer = None,
    attention: options.Attention = None,
    recompute: options.Recompute = None,
    dp: options.DataParallel = None,
    tp: options.TensorParallel = None,
    pp: options.PipelineStages = None,
    cp: options.ContextParallel = None,
    ep: Annotated[int | None, typer.Option("--ep", help="Expert parallel degree.")] = None,
    etp: Annotated[
        int | None, typer.Option("--etp", help="Ranks that split one expert: 1 spreads experts over --tp too.")
    ] = None,
    capacity: Annotated[
        float | None, typer.Option("--capacity", help="Tokens of an expert over its even share, filled up or cut off.")
    ] = None,
    imbalance: Annotated[
        float | None, typer.Option("--imbalance", help="Tokens of the busiest rank of experts over the mean.")
    ] = None,
    vp: Annotated[int | None, typer.Option("--vp", help="Virtual stages of each pipeline stage.")] = None,
    zero: options.Zero = None,
    micro_batches: options.MicroBatches = None,
    sequence_parallel: options.SequenceParallel = False,
    order: Annotated[str | None, typer.Option("--order", help="gpipe, 1f1b, interleaved or zero-bubble.")] = None,
    offload_optimizer: Annotated[
        bool, typer.Option("--offload-optimizer", help="Optimizer state in host memory, updated by the host.")
    ] = False,
    servers: Annotated[int | None, typer.Option("--servers", help="Parameter servers; 0: all-reduce.")] = None,
    asynchronous: Annotated[
        bool, typer.Option("--asynchronous", help="Workers do not wait for each other; needs --servers.")
    ] = False,
    stack: options.Stack = None,
    compiled: options.Compiled = False,
    cuda_graphs: Annotated[bool, typer.Option("--cuda-graphs", help="The host replays whole steps.")] = False,
    steps: options.Steps = None,
    samples: options.Samples = None,
    epochs: options.Epochs = None,
    to_target: Annotated[
        bool, typer.Option("--to-target", help="Until MLPerf's quality target, where its samples are known.")
    ] = False,
    epoch_samples: options.EpochSamples = None,
    loading: Annotated[
        float | None, typer.Option("--loading", help="Samples per second that one node's input pipeline delivers.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", "-e", help="Each part's own answer, slowest layers, parts of memory and job.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write the step as a trace for https://ui.perfetto.dev.")
    ] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Draw the step's timeline to an SVG file.")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", help="Price ops as measured by `traincast calibrate` on its machine."),
    ] = None,
    activity: Annotated[
        Path | None,
        typer.Option(
            "--activity",
            help="Correct the resource numbers by runs of this setting (python -m research.fits.resources).",
        ),
    ] = None,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Forecast step time, job time, memory and cost of a training job.

    Example: traincast forecast gpt2-xl --device a100-80g --nodes 2 --devices-per-node 8 --batch 8 --seq 1024
    """
    from traincast.forecast.request import Request, WorkloadOptions, resolve
    from traincast.report.document import document_forecast, format_json
    from traincast.report.paint import choose_paint
    from traincast.report.text import describe_plan, describe_price, format_forecast

    paint = choose_paint(sys.stdout, color=color)
    request = Request(
        source=source,
        workload=WorkloadOptions(
            batch=batch, seq=seq, precision=precision, mode=mode, optimizer=optimizer, attention=attention,
        ),
        cluster=options.given(
            device=device, node=machine, nodes=nodes, devices_per_node=devices_per_node, intra=intra, inter=inter,
            speed=speed, price_per_device=price,
        ),
        parallelism=options.given(
            data=dp, tensor=tp, pipeline=pp, context=cp, expert=ep, expert_tensor=etp, virtual_stages=vp, zero=zero,
            micro_batches=micro_batches, sequence_parallel=sequence_parallel or None, order=order, servers=servers,
            recompute=recompute, offload_optimizer=offload_optimizer or None, asynchronous=asynchronous or None,
            expert_capacity=capacity, expert_imbalance=imbalance,
        ),
        job=options.given(
            steps=steps, samples=samples, epochs=epochs, epoch_samples=epoch_samples, loading_samples_per_s=loading,
            stack=stack, compiled=compiled or None, cuda_graphs=cuda_graphs or None,
        ),
    )  # fmt: skip
    resolved = resolve(request)
    about_target: tuple[str, ...] = ()
    if to_target:
        from traincast.forecast.target import train_to_target

        job, said = train_to_target(resolved.job, resolved.parallelism)
        resolved, about_target = dataclasses.replace(resolved, job=job), (said,)

    from traincast.files import write_json, write_whole
    from traincast.forecast import forecast as run_forecast
    from traincast.report.svg import draw_timeline
    from traincast.report.trace import trace_forecast

    costs = _load_costs(calibration) if calibration is not None else None
    correction = None
    if activity is not None:
        from traincast.resources.correction import load_graph_correction

        correction = load_graph_correction(activity)
    answer = run_forecast(
        resolved.job, resolved.cluster, resolved.parallelism, costs=costs, draw=True, activity=correction
    )
    answer = dataclasses.replace(answer, notes=(*answer.notes, *about_target))
    if explain:
        from traincast.forecast.parts import explain_parts

        parts = explain_parts(answer, resolved.job, resolved.cluster, resolved.parallelism, costs=costs)
        answer = dataclasses.replace(answer, parts=parts)
    if trace is not None:
        write_json(trace, trace_forecast(answer))
    if svg is not None:
        write_whole(svg, draw_timeline(answer.timeline, title=f"{answer.workload} on {answer.cluster}"))
    if json:
        say(format_json(document_forecast(answer)))
        return
    asked = [
        describe_plan(resolved.parallelism, batch_size=resolved.job.graph.batch_size),
        describe_price(resolved.cluster),
    ]
    say(format_forecast(answer, paint=paint, explain=explain, asked=[line for line in asked if line]))


def _load_costs(path: Path) -> "CostModel":
    from traincast.cost.pricing import Pricing
    from traincast.learn import choose_costs, load_calibration

    return choose_costs(load_calibration(path), others=Pricing().estimate)
