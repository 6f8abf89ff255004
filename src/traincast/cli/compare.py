"""`traincast compare`: a recorded trace beside the forecast of the same job."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from traincast.cli import options
from traincast.cli.output import say


def compare(
    trace: Annotated[Path, typer.Argument(help="A trace of torch.profiler (.json or .json.gz).", show_default=False)],
    source: options.Source,
    device: options.Device = None,
    nodes: options.Nodes = None,
    devices_per_node: options.DevicesPerNode = None,
    intra: options.Intra = None,
    inter: options.Inter = None,
    batch: options.Batch = None,
    seq: options.Seq = None,
    precision: options.Precision = None,
    mode: options.Mode = None,
    optimizer: options.Optimizer = None,
    attention: options.Attention = None,
    stack: Annotated[str | None, typer.Option("--stack", help="Software that ran it; default: pytorch.")] = None,
    compiled: options.Compiled = False,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration", help="Of the machine of the trace, made by `traincast calibrate`; a CPU needs it."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Steps in the trace, where it does not mark them (ProfilerStep)."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Operations to list.")] = 20,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Lay a profiler trace beside the forecast of its job and rank operations by what they add to the difference.

    The device is that of the trace unless --device names another.

    Example: traincast compare trace.json.gz gpt2 --batch 8 --seq 1024
    """
    from traincast.accuracy.traces import compare_trace, device_of_trace
    from traincast.errors import InvalidInput
    from traincast.forecast import forecast
    from traincast.forecast.request import Request, WorkloadOptions, build_job, complete_plan, load_source, resolve
    from traincast.report.compare import document_comparison, format_comparison
    from traincast.report.document import format_json
    from traincast.report.paint import choose_paint

    workload = WorkloadOptions(
        batch=batch, seq=seq, precision=precision, mode=mode, optimizer=optimizer, attention=attention
    )
    job = options.given(stack=stack, compiled=compiled or None)
    found = device or device_of_trace(trace)
    if calibration is not None:
        from traincast.cost.pricing import Pricing
        from traincast.integrate.here import cluster_of_cores
        from traincast.learn import Calibrated, load_calibration

        kept = load_calibration(calibration)
        cluster = cluster_of_cores(kept)
        asked, plan = build_job(job, load_source(source, workload)), complete_plan({}, num_devices=1)
        costs = Calibrated(calibration=kept, others=Pricing().estimate)
        answer = forecast(asked, cluster, plan, costs=costs, draw=True)
    elif found is None:
        raise InvalidInput(
            f"{trace} was recorded on a CPU, which no catalogue knows; calibrate that machine (traincast calibrate) and give "
            "--calibration, or name a --device"
        )
    else:
        table = options.given(
            device=found, nodes=nodes, devices_per_node=devices_per_node, intra=intra, inter=inter
        )  # fmt: skip
        resolved = resolve(Request(source=source, workload=workload, cluster=table, job=job))
        asked = resolved.job
        answer = forecast(asked, resolved.cluster, resolved.parallelism, draw=True)
    compared = compare_trace(trace, answer, asked.graph, num_steps=steps)
    if json:
        say(format_json(document_comparison(compared)))
        return
    say(format_comparison(compared, paint=choose_paint(sys.stdout, color=color), limit=top))
