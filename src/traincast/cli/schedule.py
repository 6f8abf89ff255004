"""`traincast schedule`: a job trace on a shared cluster under several policies, side by side."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from traincast.cli import options
from traincast.cli.output import say


def schedule(
    trace: Annotated[str, typer.Argument(help="A job log, or synthetic:N for N generated jobs.", show_default=False)],
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", help="NODESxGPUS[:device][@usd per GPU-hour], comma between pools.")
    ],
    policy: Annotated[str, typer.Option("--policy", "-p", help="Policies, comma between them.")] = "fifo,srtf,easy",
    placement: Annotated[
        str, typer.Option("--placement", help="consolidated, spread, topology or count.")
    ] = "consolidated",
    format: Annotated[str | None, typer.Option("--format", help="Format of the trace; default: guessed.")] = None,  # noqa: A002
    only: Annotated[str | None, typer.Option("--only", help="Keep rows of this trace, tenant or cluster.")] = None,
    forecasts: Annotated[
        bool, typer.Option("--forecasts", help="Forecast jobs that name a workload: speed, memory, belief and truth.")
    ] = False,
    speeds: Annotated[
        Path | None,
        typer.Option("--speeds", help="Measured steps/s by workload, device and num_gpus (CSV or parquet)."),
    ] = None,
    sigma: Annotated[float, typer.Option("--sigma", help="Log-normal error of every estimate.")] = 0.0,
    class_sigma: Annotated[float, typer.Option("--class-sigma", help="Error shared by a class of jobs.")] = 0.0,
    bias: Annotated[float, typer.Option("--bias", help="Factor on every estimate.")] = 1.0,
    error_sweep: Annotated[bool, typer.Option("--error-sweep", help="Repeat with ever worse estimates.")] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Spread the sweep over a Ray cluster.")] = False,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="Processes of the sweep; with --ray, calls at once (0: all).")
    ] = 0,
    plan_with: Annotated[
        float, typer.Option("--plan-with", help="Quantile of a forecast that the scheduler plans with, such as 0.9.")
    ] = 0.5,
    preempt_cost: Annotated[float, typer.Option("--preempt-cost", help="Seconds lost by a preemption.")] = 0.0,
    resize_cost: Annotated[float, typer.Option("--resize-cost", help="Seconds lost by an elastic resize.")] = 0.0,
    mtbf: Annotated[float | None, typer.Option("--mtbf-hours", help="Mean hours between failures of a node.")] = None,
    mttr: Annotated[float, typer.Option("--mttr-hours", help="Mean hours to repair.")] = 1.0,
    checkpoint_every: Annotated[
        float | None,
        typer.Option("--checkpoint-every", help="Seconds between checkpoints; needed to survive failures."),
    ] = None,
    racks: Annotated[int | None, typer.Option("--nodes-per-rack", help="Nodes of a rack, for topology.")] = None,
    uplink: Annotated[
        str | None, typer.Option("--uplink", help="Bytes/s of a rack's uplink, such as 12.5GB; shared.")
    ] = None,
    traffic: Annotated[str, typer.Option("--traffic", help="Bytes/s each GPU of a job sends across racks.")] = "1GB",
    quotas: Annotated[
        str | None, typer.Option("--quota", help="GPUs that tenants own under the policy quota: vision=32,speech=16.")
    ] = None,
    load: Annotated[float, typer.Option("--load", help="Load of a synthetic trace.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything drawn.")] = 0,
    until: Annotated[
        str | None, typer.Option("--until", help="Stop at this time, such as 7d; the rest is unfinished.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for tables, event logs, page and plots.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Simulate a cluster whose scheduler uses forecasts.

    Runs every policy on the same trace and compares waiting, completion, fairness, use, deadlines, cost and energy.

    Example: traincast schedule synthetic:1000 --cluster 16x8:a100-80g@2.5 --policy fifo,srtf,easy --out out/
    """
    import math
    from dataclasses import replace

    from traincast.cli.progress import follow, watch
    from traincast.errors import InvalidInput, UnknownName
    from traincast.files import write_whole
    from traincast.report.document import format_json
    from traincast.report.schedule import draw_sweep, format_comparison, format_page, format_sweep
    from traincast.schedule import study
    from traincast.schedule.estimators import EXACT, Noisy
    from traincast.schedule.hazards import Overheads, WeibullFailures
    from traincast.schedule.metrics import measure_schedule
    from traincast.schedule.network import UniformTraffic
    from traincast.schedule.placement import PLACERS
    from traincast.units import HOUR_S, parse_bytes, parse_seconds

    names = study.check_policies([name for name in policy.replace(" ", "").split(",") if name])
    if placement not in PLACERS:
        raise UnknownName("placement", placement, PLACERS)
    capacity = None if uplink is None else parse_bytes(uplink)
    fleet = study.parse_fleet(cluster, nodes_per_rack=racks, uplink_bytes_per_s=capacity)
    read = _read(trace, kind=format, only=only, fleet_gpus=fleet.num_gpus, load=load, seed=seed)
    noisy = sigma > 0 or class_sigma > 0 or bias != 1.0
    setting = study.Setting(
        fleet=fleet,
        placer=PLACERS[placement],
        estimator=Noisy(sigma=sigma, class_sigma=class_sigma, bias=bias, seed=seed) if noisy else EXACT,
        overheads=Overheads(preempt_s=preempt_cost, resize_s=resize_cost, checkpoint_every_s=checkpoint_every),
        failures=None
        if mtbf is None
        else WeibullFailures(mean_up_s=mtbf * HOUR_S, mean_repair_s=mttr * HOUR_S, seed=seed),
        network=None if capacity is None else UniformTraffic(bytes_per_s_per_gpu=parse_bytes(traffic)),
        until_s=math.inf if until is None else parse_seconds(until),
        record=out is not None,
        quotas=() if quotas is None else study.parse_quotas(quotas, fleet),
    )
    jobs = read.jobs
    if forecasts and speeds is not None:
        raise InvalidInput("speeds come from --forecasts or from the table of --speeds, not from both")
    if forecasts or speeds is not None:
        from traincast.schedule.oracle import forecast_speeds
        from traincast.schedule.speeds import forecast_jobs, read_speeds

        source = forecast_speeds(folder=Path(trace).parent) if speeds is None else read_speeds(speeds)
        known = forecast_jobs(jobs, fleet=fleet, oracle=source, seed=seed, quantile=plan_with)
        jobs = known.jobs
        read = replace(read, jobs=jobs, notes=(*read.notes, *known.notes))
        setting = replace(setting, perf=known.perf, estimator=setting.estimator if noisy else known.estimator)
    if error_sweep:
        engine = "ray" if ray else "processes" if workers > 1 else "none"
        with follow(label="runs") as on_done:
            points = study.sweep_errors(jobs, setting, policies=names, engine=engine, workers=workers, on_done=on_done)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            write_whole(out / "error-sweep.svg", draw_sweep(points, title=f"What wrong estimates cost: {read.name}"))
        say(format_json(points) if json else format_sweep(points))
        return
    schedules = [study.run_policy(name, jobs, setting) for name in watch(names, label="policies")]
    found = [measure_schedule(entry) for entry in schedules]
    if out is not None:
        _write(out, schedules)
        write_whole(out / "index.html", format_page(read, schedules, found))
    if json:
        answer = {
            "trace": read.name,
            "format": read.format,
            "num_jobs": len(jobs),
            "bad_rows": [str(row) for row in read.bad_rows],
            "notes": list(read.notes),
            "policies": [entry.as_dict() for entry in found],
        }
        say(format_json(answer))
    else:
        say(format_comparison(read, schedules, found))
        if out is not None:
            sys.stderr.write(f"wrote {out}/index.html, tables, event logs, charts and traces\n")


def _read(trace: str, *, kind: str | None, only: str | None, fleet_gpus: int, load: float, seed: int) -> Any:
    from traincast.errors import InvalidInput
    from traincast.schedule.generate import Mix, generate_jobs
    from traincast.schedule.traces import Trace, read_trace

    if trace.startswith("synthetic:"):
        count = trace.removeprefix("synthetic:")
        if not count.isdigit() or not int(count):
            raise InvalidInput(f"{trace!r} is not synthetic:N with a number of jobs, such as synthetic:1000")
        jobs = generate_jobs(int(count), num_gpus=fleet_gpus, mix=Mix(load=load, deadline_slack=2.0), seed=seed)
        return Trace(name=f"synthetic-{count}-load-{load:g}", format="synthetic", jobs=jobs)
    return read_trace(Path(trace), kind=kind, only=only)


def _write(out: Path, schedules: Any) -> None:
    from traincast.files import write_whole
    from traincast.report.schedule import draw_completion, draw_gantt, draw_queue, draw_use, perfetto
    from traincast.schedule.study import event_columns, job_columns
    from traincast.schedule.traces import write_columns

    out.mkdir(parents=True, exist_ok=True)
    for entry in schedules:
        write_columns(job_columns(entry), out / f"{entry.policy}-jobs.parquet")
        write_columns(event_columns(entry), out / f"{entry.policy}-events.parquet")
        if entry.occupations:
            write_whole(out / f"{entry.policy}-gantt.svg", draw_gantt(entry))
            write_whole(out / f"{entry.policy}-perfetto.json", perfetto(entry))
    write_whole(out / "completion.svg", draw_completion(schedules))
    write_whole(out / "queue.svg", draw_queue(schedules))
    write_whole(out / "use.svg", draw_use(schedules))
