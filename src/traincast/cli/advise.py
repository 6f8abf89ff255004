"""`traincast advise`: a job in plain sentences, or as the flags of a Slurm script."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from traincast.cli import options
from traincast.cli.output import say


def advise(
    source: options.Source,
    device: options.Device = None,
    machine: options.Machine = None,
    nodes: options.Nodes = None,
    devices_per_node: options.DevicesPerNode = None,
    price: options.Price = None,
    batch: options.Batch = None,
    seq: options.Seq = None,
    precision: options.Precision = None,
    optimizer: options.Optimizer = None,
    recompute: options.Recompute = None,
    tp: options.TensorParallel = None,
    pp: options.PipelineStages = None,
    zero: options.Zero = None,
    micro_batches: options.MicroBatches = None,
    steps: options.Steps = None,
    samples: options.Samples = None,
    epochs: options.Epochs = None,
    epoch_samples: options.EpochSamples = None,
    confidence: Annotated[
        float, typer.Option("--confidence", "-c", help="How sure it must be to fit, between 0 and 1.")
    ] = 0.9,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Only the flags for sbatch: --time, --mem, --gres, --nodes ...")
    ] = False,
    script: Annotated[
        Path | None,
        typer.Option(
            "--script",
            help="A batch script: its nodes and GPUs are those of the job unless given here, and its --time, --mem and "
            "--gres are judged. Implies --slurm.",
        ),
    ] = None,
    time_quantile: options.TimeQuantile = 0.95,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Say in sentences what dominates a job, whether it fits, what one change would bring and what is not known.

    Example: traincast advise gpt2-xl --device a100-80g -g 8 --batch 4 --seq 1024 --precision bf16-amp --steps 10000

    Example: traincast advise gpt2-xl --script train.sbatch --device a100-80g --batch 4 --seq 1024 --steps 10000
    """
    import dataclasses

    from traincast.forecast.request import Request, WorkloadOptions, build_cluster, complete_plan, fill_in
    from traincast.plan.advice import advise as give_advice
    from traincast.plan.advice import with_batch
    from traincast.plan.emit.sbatch import read_batch_script
    from traincast.report.document import document_forecast, format_json, plain_data
    from traincast.report.paint import choose_paint

    asks = None if script is None else read_batch_script(script)
    request = fill_in(
        Request(
            source=source,
            workload=WorkloadOptions(batch=batch, seq=seq, precision=precision, optimizer=optimizer),
            cluster=options.given(
                device=device, node=machine, nodes=nodes, devices_per_node=devices_per_node, price_per_device=price
            ),
            parallelism=options.given(
                tensor=tp, pipeline=pp, zero=zero, micro_batches=micro_batches, recompute=recompute
            ),
            job=options.given(steps=steps, samples=samples, epochs=epochs, epoch_samples=epoch_samples),
        )
    )
    if asks is not None:
        written: dict[str, Any] = {"nodes": asks.num_nodes, "devices_per_node": asks.devices_per_node}
        if not {"device", "node", "groups"} & request.cluster.keys():
            written["device"] = asks.device
        request = dataclasses.replace(request, cluster=options.given(**written) | dict(request.cluster))
    if not request.source.endswith((".json", ".json.gz")):
        request = dataclasses.replace(request, workload=with_batch(request.workload))
    cluster = build_cluster(request)
    parallelism = complete_plan(request.parallelism, num_devices=cluster.num_devices)
    if slurm or asks is not None:
        say(_flags(request, cluster, parallelism, quantile=time_quantile, asks=asks, as_json=json))
        return
    advice = give_advice(request, cluster, parallelism, confidence=confidence)
    if json:
        document = {
            "sentences": list(advice.sentences),
            "suggestions": plain_data(advice.suggestions),
            "forecast": document_forecast(advice.plan.forecast),
        }
        say(format_json(document))
        return
    paint = choose_paint(sys.stdout, color=color)
    import textwrap

    for sentence in advice.sentences:
        say(textwrap.fill(sentence, width=paint.width, subsequent_indent="  "))


def _flags(request: Any, cluster: Any, parallelism: Any, *, quantile: float, asks: Any, as_json: bool) -> str:
    from traincast.forecast import forecast
    from traincast.forecast.request import build_job, load_source
    from traincast.plan import Candidate, Plan
    from traincast.plan.emit import make_recipe, slurm_flags
    from traincast.plan.emit.sbatch import judge
    from traincast.report.document import format_json

    job = build_job(request.job, load_source(request.source, request.workload, recompute=parallelism.recompute))
    answer = forecast(job, cluster, parallelism)
    plan = Plan(
        candidate=Candidate(cluster=cluster, parallelism=parallelism, batch=job.graph.batch_size),
        forecast=answer,
        deadline_probability=None,
    )
    flags = slurm_flags(make_recipe(plan, quantile=quantile, command="train.py"))
    remarks = () if asks is None else tuple(judge(asks, flags, answer.job))
    if as_json:
        return format_json({"flags": flags, "time_quantile": quantile, "job": answer.job, "remarks": remarks})
    return "\n".join((" ".join(f"{name}={value}" for name, value in flags.items()), *(f"# {line}" for line in remarks)))
