"""`traincast schedule`: a job trace on shared clusters under several policies, side by side."""

import dataclasses
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from traincast.cli import options
from traincast.cli.learned import CalibrationOption, GivenOption, load_learned
from traincast.cli.output import say

_TRACE, _CLUSTER, _KNOWS = "Trace", "Cluster and policies", "What the scheduler knows"
_HAZARDS, _OUTPUT = "What goes wrong", "Output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command; None is what nobody asked for."""

    cluster: Annotated[
        list[str],
        typer.Option(
            "--cluster",
            "-c",
            help="NODESxGPUS[:device][/CPUScpu][/MEMORY][@usd per GPU-hour], comma between pools; repeat to compare.",
            rich_help_panel=_CLUSTER,
        ),
    ]
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="Policies, comma between them.", rich_help_panel=_CLUSTER)
    ] = "fifo,srtf,easy"
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement", help="consolidated (default), spread, topology or count.", rich_help_panel=_CLUSTER
        ),
    ] = None
    racks: Annotated[
        int | None, typer.Option("--nodes-per-rack", help="Nodes of a rack.", rich_help_panel=_CLUSTER)
    ] = None
    uplink: Annotated[
        str | None,
        typer.Option("--uplink", help="Bytes/s of a rack's uplink, such as 12.5GB; shared.", rich_help_panel=_CLUSTER),
    ] = None
    traffic: Annotated[
        str | None,
        typer.Option("--traffic", help="Bytes/s each GPU of a job sends across racks (1GB).", rich_help_panel=_CLUSTER),
    ] = None
    quotas: Annotated[
        str | None,
        typer.Option(
            "--quota", help="GPUs tenants own under the policy quota: vision=32,speech=16.", rich_help_panel=_CLUSTER
        ),
    ] = None
    until: Annotated[
        str | None,
        typer.Option(
            "--until", help="Stop at this time, such as 7d; the rest is unfinished.", rich_help_panel=_CLUSTER
        ),
    ] = None
    format: Annotated[
        str | None, typer.Option("--format", help="Format of the trace; default: guessed.", rich_help_panel=_TRACE)
    ] = None
    only: Annotated[
        str | None, typer.Option("--only", help="Keep rows of this trace, tenant or cluster.", rich_help_panel=_TRACE)
    ] = None
    load: Annotated[
        float | None, typer.Option("--load", help="Load of a synthetic trace (1).", rich_help_panel=_TRACE)
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of everything drawn (0).", rich_help_panel=_TRACE)
    ] = None
    knows: Annotated[
        str | None,
        typer.Option(
            "--knows",
            help="limit, forecast, history or truth, comma between them; default: limit where the log has limits.",
            rich_help_panel=_KNOWS,
        ),
    ] = None
    kill: Annotated[
        bool, typer.Option("--kill-at-limit", help="End a job that passes its limit.", rich_help_panel=_KNOWS)
    ] = False
    forecasts: Annotated[
        bool,
        typer.Option(
            "--forecasts",
            help="Forecast jobs that name a workload: speed, memory, belief and truth.",
            rich_help_panel=_KNOWS,
        ),
    ] = False
    calibration: CalibrationOption = None
    given: GivenOption = None
    speeds: Annotated[
        Path | None,
        typer.Option(
            "--speeds",
            help="Measured steps/s by workload, device and num_gpus (CSV or parquet).",
            rich_help_panel=_KNOWS,
        ),
    ] = None
    plan_with: Annotated[
        float | None,
        typer.Option(
            "--plan-with", help="Quantile of a forecast the scheduler plans with (0.5).", rich_help_panel=_KNOWS
        ),
    ] = None
    sigma: Annotated[
        float | None, typer.Option("--sigma", help="Log-normal error of every estimate.", rich_help_panel=_KNOWS)
    ] = None
    class_sigma: Annotated[
        float | None, typer.Option("--class-sigma", help="Error shared by a class of jobs.", rich_help_panel=_KNOWS)
    ] = None
    bias: Annotated[float | None, typer.Option("--bias", help="Factor on every estimate.", rich_help_panel=_KNOWS)] = (
        None
    )
    error_sweep: Annotated[
        bool, typer.Option("--error-sweep", help="Repeat with ever worse estimates.", rich_help_panel=_KNOWS)
    ] = False
    ray: Annotated[bool, typer.Option("--ray", help="Spread the sweep over a Ray cluster.", rich_help_panel=_KNOWS)] = (
        False
    )
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=0, help="Processes of the sweep; with --ray, calls at once.", rich_help_panel=_KNOWS
        ),
    ] = None
    preempt_cost: Annotated[
        float | None,
        typer.Option(
            "--preempt-cost",
            help="Seconds lost by a preemption; default: 7 for 1 GPU, 30 up to 8, 60 above.",
            rich_help_panel=_HAZARDS,
        ),
    ] = None
    restart_cost: Annotated[
        float | None,
        typer.Option(
            "--restart-cost", help="Seconds lost by a restart after a failure (60).", rich_help_panel=_HAZARDS
        ),
    ] = None
    resize_cost: Annotated[
        float | None,
        typer.Option("--resize-cost", help="Seconds lost by an elastic resize (30).", rich_help_panel=_HAZARDS),
    ] = None
    mtbf: Annotated[
        float | None,
        typer.Option("--mtbf-hours", help="Mean hours between failures of a node.", rich_help_panel=_HAZARDS),
    ] = None
    mttr: Annotated[
        float | None, typer.Option("--mttr-hours", help="Mean hours to repair (1).", rich_help_panel=_HAZARDS)
    ] = None
    checkpoint_every: Annotated[
        float | None,
        typer.Option(
            "--checkpoint-every",
            help="Seconds between checkpoints; without, a failed job starts from nothing.",
            rich_help_panel=_HAZARDS,
        ),
    ] = None
    by: Annotated[
        str | None,
        typer.Option("--by", help="Break waits down by tenant, size or both.", rich_help_panel=_OUTPUT),
    ] = None
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one page with tables and pictures.", rich_help_panel=_OUTPUT)
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for tables, event logs, page and plots.", rich_help_panel=_OUTPUT),
    ] = None
    json: options.Json = False

    def asked(self) -> set[str]:
        """The flags that were given, as they are written on the command line."""
        found = set()
        for entry in dataclasses.fields(self):
            if getattr(self, entry.name) not in (None, False):
                found.add(_flag_of(entry.name))
        return found


def _flag_of(name: str) -> str:
    declared = get_type_hints(Options, include_extras=True)[name].__metadata__[0]
    # The first name is the option's default where typer sees Annotated, so it stands apart from the others.
    return next(str(word) for word in (declared.default, *declared.param_decls) if str(word).startswith("--"))


def from_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose options are the fields of `Options`, so that they are written once."""

    def run(trace: str, **words: Any) -> None:
        command(trace, Options(**words))

    hints = get_type_hints(Options, include_extras=True)
    argument = Annotated[
        str, typer.Argument(help="A job log, or synthetic:N for N generated jobs.", show_default=False)
    ]
    parameters = [inspect.Parameter("trace", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=argument)]
    for entry in dataclasses.fields(Options):
        default = inspect.Parameter.empty if entry.default is dataclasses.MISSING else entry.default
        parameters.append(
            inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[entry.name])
        )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    return run


@from_options
def schedule(trace: str, given: Options) -> None:
    """Simulate clusters whose scheduler uses limits, forecasts or the truth.

    Runs every policy on the same trace, beside what really happened where the log says so, and compares waiting,
    completion, fairness, use, deadlines, cost and energy.

    Example: traincast schedule jobs.sacct -c 16x8:a100-80g@2.5 -c 26x8:a100-80g@2.5 -p easy,srtf --knows limit,truth
    """
    from traincast.report import describe_policies, format_json, format_policies

    if given.error_sweep:
        _sweep(trace, given)
        return
    read, cases = compare_cases(trace, given)
    _write(given, read, cases)
    groupings = [] if given.by is None else [part for part in given.by.replace(" ", "").split(",") if part]
    say(
        format_json(describe_policies(read, cases)) if given.json else format_policies(read, cases, groupings=groupings)
    )
    if given.out is not None and not given.json:
        sys.stderr.write(f"wrote {given.out}/index.html, tables, event logs, charts and traces\n")


def compare_cases(trace: str, given: Options) -> tuple[Any, Any]:
    """The trace with what there is to say about it, and the rows of the comparison."""
    from traincast.cli.progress import watch
    from traincast.schedule import default_knowledge, run_cases

    names, notes, read, settings, forecast = _prepare(trace, given)
    default = default_knowledge(read.jobs, forecast)
    knows = [default] if given.knows is None else [part for part in given.knows.replace(" ", "").split(",") if part]
    cases = run_cases(
        read.jobs,
        settings,
        policies=names,
        knows=knows,
        forecast=forecast,
        watch=lambda tasks: watch(tasks, label="policies"),
    )
    for case in cases:
        notes += [note for note in case.schedule.notes if note not in notes]
    return replace(read, notes=(*read.notes, *notes)), cases


def _prepare(trace: str, given: Options) -> tuple[list[str], list[str], Any, Any, Any]:
    """Policies, notes, the trace, a setting per cluster and the estimator of forecasts, once everything is allowed."""
    from traincast.schedule import check_options, check_policies

    names = check_policies([name for name in given.policy.replace(" ", "").split(",") if name])
    _check_alone(trace, given)
    notes = check_options(names, sorted(given.asked()))
    settings = _settings(given)
    read = _read(trace, given, fleet_gpus=settings[0][1].fleet.num_gpus)
    return names, notes, *_with_speeds(trace, given, read, settings)


_NEEDS = {
    "mttr": ("--mttr-hours", "mtbf", "--mtbf-hours"),
    "checkpoint_every": ("--checkpoint-every", "mtbf", "--mtbf-hours"),
    "restart_cost": ("--restart-cost", "mtbf", "--mtbf-hours"),
    "traffic": ("--traffic", "uplink", "--uplink"),
    "uplink": ("--uplink", "racks", "--nodes-per-rack"),
    "ray": ("--ray", "error_sweep", "--error-sweep"),
    "workers": ("--workers", "error_sweep", "--error-sweep"),
}
"""Options that mean nothing without another one."""


def _check_alone(trace: str, given: Options) -> None:
    """Refuse options that cannot make a difference to this run, whatever the policy."""
    from traincast.errors import InvalidInput

    for name, (flag, other, other_flag) in _NEEDS.items():
        if getattr(given, name) not in (None, False) and getattr(given, other) in (None, False):
            raise InvalidInput(f"{flag} means nothing without {other_flag}")
    synthetic = trace.startswith("synthetic:")
    for flag, value in (("--format", given.format), ("--only", given.only)):
        if value is not None and synthetic:
            raise InvalidInput(f"{flag} is about a job log, and {trace} is generated")
    if given.load is not None and not synthetic:
        raise InvalidInput("--load is about synthetic:N; a job log has the load it has")
    if given.racks is not None and given.uplink is None and given.placement != "topology":
        raise InvalidInput("--nodes-per-rack means nothing without --placement topology or --uplink")
    if given.plan_with is not None and not (given.forecasts or given.speeds):
        raise InvalidInput("--plan-with is about forecasts; pass --forecasts or --speeds")
    if given.forecasts and given.speeds is not None:
        raise InvalidInput("speeds come from --forecasts or from the table of --speeds, not from both")
    drawn = synthetic or given.sigma or given.class_sigma or given.mtbf or given.forecasts or given.error_sweep
    if given.seed is not None and not drawn:
        raise InvalidInput("--seed means nothing here: neither jobs, errors nor failures are drawn")


def _settings(given: Options) -> list[tuple[str, Any]]:
    """One setting per cluster, by its text."""
    import math

    from traincast.errors import InvalidInput, UnknownName
    from traincast.schedule import PLACERS, Noisy, Setting, UniformTraffic, WeibullFailures, parse_fleet, parse_quotas
    from traincast.units import HOUR_S, parse_bytes, parse_seconds

    placement = given.placement or "consolidated"
    if placement not in PLACERS:
        raise UnknownName("placement", placement, PLACERS)
    if len(set(given.cluster)) < len(given.cluster):
        raise InvalidInput("the same cluster is given twice")
    uplink = None if given.uplink is None else parse_bytes(given.uplink)
    noisy = any(value is not None for value in (given.sigma, given.class_sigma, given.bias))
    seed = given.seed or 0
    noise = Noisy(sigma=given.sigma or 0.0, class_sigma=given.class_sigma or 0.0, bias=1.0 if given.bias is None else given.bias,
                  seed=seed)  # fmt: skip
    failures = None
    if given.mtbf is not None:
        repair_s = (1.0 if given.mttr is None else given.mttr) * HOUR_S
        failures = WeibullFailures(mean_up_s=given.mtbf * HOUR_S, mean_repair_s=repair_s, seed=seed)
    settings = []
    for text in given.cluster:
        fleet = parse_fleet(text, nodes_per_rack=given.racks, uplink_bytes_per_s=uplink)
        traffic = UniformTraffic(bytes_per_s_per_gpu=parse_bytes(given.traffic or "1GB"))
        setting = Setting(
            fleet=fleet,
            placer=PLACERS[placement],
            noise=noise if noisy else None,
            overheads=_overheads(given),
            failures=failures,
            network=None if uplink is None else traffic,
            until_s=math.inf if given.until is None else parse_seconds(given.until),
            kill_at_limit=given.kill,
            record=given.out is not None or given.html is not None,
            quotas=() if given.quotas is None else parse_quotas(given.quotas, fleet),
        )
        settings.append((text, setting))
    return settings


def _overheads(given: Options) -> Any:
    from traincast.schedule import TYPICAL

    asked = {
        "preempt_s": given.preempt_cost,
        "restart_s": given.restart_cost,
        "resize_s": given.resize_cost,
        "checkpoint_every_s": given.checkpoint_every,
    }
    return replace(TYPICAL, **{name: value for name, value in asked.items() if value is not None})


def _with_speeds(trace: str, given: Options, read: Any, settings: Any) -> tuple[Any, Any, Any]:
    """Durations, speeds and beliefs from forecasts or from a table of measured speeds, if they were asked for."""
    from traincast.errors import InvalidInput

    if not given.forecasts and given.speeds is None:
        return read, settings, None
    from traincast.schedule import forecast_jobs, forecast_speeds, read_speeds

    if len(settings) > 1:
        raise InvalidInput("forecasts are made for one cluster at a time; run the command once for each")
    learned = load_learned(given.calibration, given.given)
    own = forecast_speeds(folder=Path(trace).parent, calibration=learned)
    source = own if given.speeds is None else read_speeds(given.speeds)
    text, setting = settings[0]
    quantile = 0.5 if given.plan_with is None else given.plan_with
    known = forecast_jobs(read.jobs, fleet=setting.fleet, oracle=source, seed=given.seed or 0, quantile=quantile)
    read = replace(read, jobs=known.jobs, notes=(*read.notes, *known.notes))
    return read, [(text, replace(setting, perf=known.perf))], known.estimator


def _sweep(trace: str, given: Options) -> None:
    from traincast.cli.progress import follow
    from traincast.errors import InvalidInput
    from traincast.files import write_whole
    from traincast.report import draw_sweep, format_json, format_sweep
    from traincast.schedule import know, sweep_errors

    names, _, read, settings, forecast = _prepare(trace, given)
    if len(settings) > 1:
        raise InvalidInput("--error-sweep looks at one cluster; run the command once for each")
    workers = given.workers or 0
    engine = "ray" if given.ray else "processes" if workers > 1 else "none"
    setting = replace(settings[0][1], estimator=forecast)
    if given.knows is not None:
        setting = replace(setting, estimator=know(given.knows, read.jobs, forecast))
    with follow(label="runs") as on_done:
        points = sweep_errors(read.jobs, setting, policies=names, engine=engine, workers=workers, on_done=on_done)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        write_whole(given.out / "error-sweep.svg", draw_sweep(points, title=f"What wrong estimates cost: {read.name}"))
    say(format_json(points) if given.json else format_sweep(points))


def _read(trace: str, given: Options, *, fleet_gpus: int) -> Any:
    from traincast.errors import InvalidInput
    from traincast.schedule import Mix, Trace, generate_jobs, read_trace

    if trace.startswith("synthetic:"):
        count = trace.removeprefix("synthetic:")
        if not count.isdigit() or not int(count):
            raise InvalidInput(f"{trace!r} is not synthetic:N with a number of jobs, such as synthetic:1000")
        load = 1.0 if given.load is None else given.load
        mix = Mix(load=load, deadline_slack=2.0)
        jobs = generate_jobs(int(count), num_gpus=fleet_gpus, mix=mix, seed=given.seed or 0)
        return Trace(name=f"synthetic-{count}-load-{load:g}", format="synthetic", jobs=jobs)
    return read_trace(Path(trace), kind=given.format, only=given.only)


def _write(given: Options, read: Any, cases: Any) -> None:
    from traincast.files import write_whole
    from traincast.report import format_page

    if given.html is None and given.out is None:
        return
    page = format_page(read, cases)
    if given.html is not None:
        given.html.parent.mkdir(parents=True, exist_ok=True)
        write_whole(given.html, page)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        write_whole(given.out / "index.html", page)
        _write_tables(given.out, cases)


def _write_tables(out: Path, cases: Any) -> None:
    from traincast.files import write_whole
    from traincast.report import draw_completion, draw_gantt, draw_queue, draw_use, name_file, perfetto
    from traincast.schedule import event_columns, job_columns, write_columns

    several = len({case.cluster for case in cases}) > 1
    for case in cases:
        name = name_file(f"{case.label} {case.cluster}" if several else case.label)
        write_columns(job_columns(case.schedule), out / f"{name}-jobs.parquet")
        write_columns(event_columns(case.schedule), out / f"{name}-events.parquet")
        if len(case.schedule.occupations):
            write_whole(out / f"{name}-gantt.svg", draw_gantt(case.schedule))
            write_whole(out / f"{name}-perfetto.json", perfetto(case.schedule))
    schedules = [case.schedule for case in cases]
    write_whole(out / "completion.svg", draw_completion(schedules))
    write_whole(out / "queue.svg", draw_queue(schedules))
    write_whole(out / "use.svg", draw_use(schedules))
