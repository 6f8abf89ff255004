"""`traincast schedule`: a job trace on shared clusters under several policies, side by side."""

import dataclasses
import inspect
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from traincast.cli import options
from traincast.cli.learned import CalibrationOption, GivenOption, load_learned
from traincast.cli.output import say
from traincast.noun import noun

_TRACE, _CLUSTER, _KNOWS = "Trace", "Cluster and policies", "What the scheduler knows"
_HAZARDS, _OUTPUT, _SLURM = "What goes wrong", "Output", "Slurm"
DEFAULT_POLICIES = "fifo,srtf,easy"


def _option(*flags: str, help: str, panel: str, **more: Any) -> Any:  # noqa: A002 (typer's word)
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


@noun
class Options:
    """The options of the command; None is what nobody asked for."""

    cluster: Annotated[
        list[str],
        _option(
            "--cluster",
            "-c",
            help="NODESxGPUS:device/CPUScpu/MEMORY@USD, comma between pools, or a file of sinfo; repeat to compare.",
            panel=_CLUSTER,
        ),
    ] = dataclasses.field(default_factory=list)
    policy: Annotated[
        str | None,
        _option(
            "--policy",
            "-p",
            help=f"Policies, comma between them ({DEFAULT_POLICIES}; slurm with --slurm-conf).",
            panel=_CLUSTER,
        ),
    ] = None
    slurm_conf: Annotated[
        list[Path], _option("--slurm-conf", help="slurm.conf of the site; repeat it to compare several.", panel=_SLURM)
    ] = dataclasses.field(default_factory=list)
    sacct: Annotated[Path | None, _option("--sacct", help="Job log: sacct -P -o ALL, as the trace.", panel=_SLURM)] = (
        None
    )
    slurm_qos: Annotated[Path | None, _option("--slurm-qos", help="sacctmgr -P show qos.", panel=_SLURM)] = None
    slurm_accounts: Annotated[
        Path | None, _option("--slurm-accounts", help="sacctmgr -P show associations.", panel=_SLURM)
    ] = None
    placement: Annotated[
        str | None, _option("--placement", help="consolidated (default), spread, topology or count.", panel=_CLUSTER)
    ] = None
    racks: Annotated[int | None, _option("--nodes-per-rack", help="Nodes of a rack.", panel=_CLUSTER)] = None
    uplink: Annotated[
        str | None, _option("--uplink", help="Bytes/s of a rack's uplink, such as 12.5GB; shared.", panel=_CLUSTER)
    ] = None
    traffic: Annotated[
        str | None, _option("--traffic", help="Bytes/s each GPU of a job sends across racks (1GB).", panel=_CLUSTER)
    ] = None
    quotas: Annotated[
        str | None,
        _option("--quota", help="GPUs tenants own under the policy quota: vision=32,speech=16.", panel=_CLUSTER),
    ] = None
    queues: Annotated[
        Path | None,
        _option("--queues", help="Queues of the policy kueue: its objects as YAML or JSON.", panel=_CLUSTER),
    ] = None
    until: Annotated[
        str | None,
        _option(
            "--until", help="A time at which to stop (7d), or a goal to search nodes for (p90_wait<1h).", panel=_CLUSTER
        ),
    ] = None
    nodes_plan: Annotated[
        str | None,
        _option(
            "--nodes", help="Nodes of the first pool that join, leave or are set aside: 2d:+4,6d-7d:-8.", panel=_CLUSTER
        ),
    ] = None
    format: Annotated[str | None, _option("--format", help="Format of the trace; default: guessed.", panel=_TRACE)] = (
        None
    )
    only: Annotated[str | None, _option("--only", help="Keep rows of this trace, tenant or cluster.", panel=_TRACE)] = (
        None
    )
    columns: Annotated[
        str | None, _option("--columns", help="Columns of a table: submit=when,gpus=n,seconds=took.", panel=_TRACE)
    ] = None
    workloads: Annotated[
        Path | None, _option("--workloads", help="Rules that name what jobs train (map.toml).", panel=_TRACE)
    ] = None
    now: Annotated[
        bool, _option("--now", help="Take running and waiting jobs as the state at time 0.", panel=_TRACE)
    ] = False
    job: Annotated[
        str | None, _option("--job", help="With --now: when this job starts, p50 and p90.", panel=_TRACE)
    ] = None
    load: Annotated[float | None, _option("--load", help="Load of a synthetic trace (1).", panel=_TRACE)] = None
    seed: Annotated[int | None, _option("--seed", help="Seed of everything drawn (0).", panel=_TRACE)] = None
    knows: Annotated[
        str | None,
        _option(
            "--knows",
            help="limit, forecast, history or truth, comma between them; default: limit where the log has limits.",
            panel=_KNOWS,
        ),
    ] = None
    kill: Annotated[bool, _option("--kill-at-limit", help="End a job that passes its limit.", panel=_KNOWS)] = False
    forecasts: Annotated[
        bool,
        _option(
            "--forecasts", help="Forecast jobs that name a workload: speed, memory, belief and truth.", panel=_KNOWS
        ),
    ] = False
    calibration: CalibrationOption = None
    given: GivenOption = None
    gpu_speed: Annotated[
        str | None,
        _option(
            "--gpu-speed", help="Speed of GPU types as a multiple of the log's: h100-80g=2.1,l40s=0.8.", panel=_CLUSTER
        ),
    ] = None
    plan_with: Annotated[
        float | None,
        _option("--plan-with", help="Quantile of a forecast the scheduler plans with (0.5).", panel=_KNOWS),
    ] = None
    sigma: Annotated[
        str | None,
        _option(
            "--sigma",
            help="Log-normal error of every estimate; several, comma between them, are compared.",
            panel=_KNOWS,
        ),
    ] = None
    bias: Annotated[float | None, _option("--bias", help="Factor on every estimate.", panel=_KNOWS)] = None
    preempt_cost: Annotated[
        float | None,
        _option(
            "--preempt-cost",
            help="Seconds lost by a preemption; default: 7 for 1 GPU, 30 up to 8, 60 above.",
            panel=_HAZARDS,
        ),
    ] = None
    restart_cost: Annotated[
        float | None, _option("--restart-cost", help="Seconds lost by a restart after a failure (60).", panel=_HAZARDS)
    ] = None
    resize_cost: Annotated[
        float | None, _option("--resize-cost", help="Seconds lost by an elastic resize (30).", panel=_HAZARDS)
    ] = None
    mtbf: Annotated[
        str | None,
        _option(
            "--mtbf-hours",
            help="Mean hours between failures of a node; several, comma between them, are compared.",
            panel=_HAZARDS,
        ),
    ] = None
    mttr: Annotated[float | None, _option("--mttr-hours", help="Mean hours to repair (1).", panel=_HAZARDS)] = None
    checkpoint_every: Annotated[
        float | None,
        _option(
            "--checkpoint-every",
            help="Seconds between checkpoints; without, a failed job starts from nothing.",
            panel=_HAZARDS,
        ),
    ] = None
    by: Annotated[
        str | None, _option("--by", help="Break waits down by tenant, size or job (who waits longest).", panel=_OUTPUT)
    ] = None
    html: Annotated[Path | None, _option("--html", help="Write one page with tables and pictures.", panel=_OUTPUT)] = (
        None
    )
    out: Annotated[
        Path | None,
        _option("--out", "-o", help="Folder for the page, tables of jobs and traces of nodes.", panel=_OUTPUT),
    ] = None
    json: options.Json = False

    def asked(self) -> set[str]:
        """The flags that were given, as they are written on the command line."""
        found = set()
        for entry in dataclasses.fields(self):
            if getattr(self, entry.name) not in (None, False, []):
                found.add(_flag_of(entry.name))
        return found


def _flag_of(name: str) -> str:
    declared = get_type_hints(Options, include_extras=True)[name].__metadata__[0]
    # The first name is the option's default where typer sees Annotated, so it stands apart from the others.
    return next(str(word) for word in (declared.default, *declared.param_decls) if str(word).startswith("--"))


def from_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose options are the fields of `Options`, so that they are written once."""

    def run(trace: str | None = None, **words: Any) -> None:
        command(trace, Options(**words))

    hints = get_type_hints(Options, include_extras=True)
    argument = Annotated[
        str | None, typer.Argument(help="A job log, or synthetic:N for N generated jobs.", show_default=False)
    ]
    parameters = [
        inspect.Parameter("trace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=argument)
    ]
    for entry in dataclasses.fields(Options):
        default = [] if entry.default is dataclasses.MISSING else entry.default
        parameters.append(
            inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[entry.name])
        )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    return run


@from_options
def schedule(trace: str | None, given: Options) -> None:
    """Simulate clusters whose scheduler uses limits, forecasts or the truth.

    Runs every policy on the same trace, beside what really happened where the log says so, and compares waiting,
    completion, fairness, use, deadlines, cost and energy.

    Example: traincast schedule jobs.sacct -c 16x8:a100-80g@2.5 -c 26x8:a100-80g@2.5 -p easy,srtf --knows limit,truth
    As a site runs Slurm: traincast schedule --slurm-conf slurm.conf --sacct jobs.sacct
    """
    from traincast.report import describe_policies, format_json, format_policies, say_next

    source = _find_trace(trace, given)
    if given.job is not None:
        _say_start(source, given)
        return
    if given.until is not None and "<" in given.until:
        _say_nodes(source, given)
        return
    read, cases = compare_cases(source, given)
    _write(given, read, cases)
    groupings = [] if given.by is None else [part for part in given.by.replace(" ", "").split(",") if part]
    say(
        format_json(describe_policies(read, cases)) if given.json else format_policies(read, cases, groupings=groupings)
    )
    if not given.json:
        say("\n" + say_next(_follow_up(trace, given)))
    if given.out is not None and not given.json:
        sys.stderr.write(f"wrote {given.out}/index.html, tables and traces\n")


def _say_start(source: str, given: Options) -> None:
    """When one waiting job starts, under every policy that was asked for."""
    from traincast.errors import InvalidInput
    from traincast.report import format_json, format_starts
    from traincast.schedule import predict_start, read_trace

    names, notes, read, settings, forecast = _prepare(source, given)
    try:
        past = read_trace(Path(source), kind=given.format, only=given.only, columns=given.columns).jobs
    except InvalidInput:  # the log has none that ended
        past = None
    words = {"past": past, "forecast": forecast, "seed": given.seed or 0}
    starts = [predict_start(given.job or "", read.jobs, settings[0][1], policy=name, **words) for name in names]
    say(format_json(starts) if given.json else format_starts(starts, [*read.notes, *notes], known=past is not None))


def _say_nodes(source: str, given: Options) -> None:
    """How many nodes of the first pool meet a goal, for every cluster and policy."""
    from traincast.report import format_goals, format_json
    from traincast.schedule import default_knowledge, find_nodes, know, parse_goal

    names, notes, read, settings, forecast = _prepare(source, given)
    goal = parse_goal(given.until or "")
    knows = given.knows or default_knowledge(read.jobs, forecast)
    rows = []
    for cluster, setting in settings:
        for name in names:
            asked = replace(setting, estimator=know(knows, read.jobs, forecast))
            fleet, tried = find_nodes(read.jobs, asked, policy=name, goal=goal)
            pool = None if fleet is None else fleet.pools[0]
            rows.append(
                {
                    "cluster": cluster,
                    "policy": name,
                    "nodes": None if pool is None else pool.num_nodes,
                    "gpus": None if fleet is None else fleet.num_gpus,
                    "device": setting.fleet.pools[0].device,
                    "usd_per_hour": None
                    if fleet is None or any(each.usd_per_gpu_hour is None for each in fleet.pools)
                    else sum(each.num_gpus * (each.usd_per_gpu_hour or 0.0) for each in fleet.pools),
                    "fleets_tried": tried,
                }
            )
    say(format_json(rows) if given.json else format_goals(rows, given.until or "", [*read.notes, *notes]))


def _follow_up(trace: str | None, given: Options) -> str:
    """The same with a page of pictures; after that, who waits."""
    import shlex

    more = ["--html", "schedule.html"] if given.html is None else ["--by", "tenant,size"]
    return shlex.join([*_repeat(trace, given), *more])


_SHORT = {"--cluster": "-c", "--policy": "-p"}
_OWN_TO_A_RUN = ("html", "out", "json", "by")


def _repeat(trace: str | None, given: Options) -> list[str]:
    """The command with everything that decides its answer."""
    words = ["traincast", "schedule", *([] if trace is None else [trace])]
    for entry in fields(given):
        value = getattr(given, entry.name)
        if entry.name in _OWN_TO_A_RUN or value in (None, False, []):
            continue
        flag = _flag_of(entry.name)
        for one in value if isinstance(value, list) else [value]:
            words += [_SHORT.get(flag, flag), *([] if one is True else [str(one)])]
    return words


def _find_trace(trace: str | None, given: Options) -> str:
    from traincast.errors import InvalidInput

    if trace is not None and given.sacct is not None:
        raise InvalidInput(f"the jobs come from {trace} or from --sacct {given.sacct}, not from both")
    if trace is None and given.sacct is None:
        raise InvalidInput("no jobs: name a job log, synthetic:N, or --sacct FILE")
    return str(given.sacct) if trace is None else trace


def compare_cases(trace: str, given: Options) -> tuple[Any, Any]:
    """The trace with what there is to say about it, and the rows of the comparison."""
    from traincast.cli.progress import follow
    from traincast.schedule import default_knowledge, run_cases

    names, notes, read, settings, forecast = _prepare(trace, given)
    default = default_knowledge(read.jobs, forecast)
    knows = [default] if given.knows is None else [part for part in given.knows.replace(" ", "").split(",") if part]
    with follow(label="jobs") as on_jobs:
        cases = run_cases(
            read.jobs, settings, policies=names, knows=knows, forecast=forecast, on_jobs=on_jobs,
            notify=lambda text: print(text, file=sys.stderr),  # noqa: T201 (standard output is the answer)
        )  # fmt: skip
    for case in cases:
        notes += [note for note in case.schedule.notes if note not in notes]
    return replace(read, notes=(*read.notes, *notes)), cases


def _prepare(trace: str, given: Options) -> tuple[list[str], list[str], Any, Any, Any]:
    """Policies, notes, the trace, a setting per cluster and the estimator of forecasts, once everything is allowed."""
    from traincast.schedule import check_options, check_policies, match_types

    default = "slurm" if given.slurm_conf else DEFAULT_POLICIES
    names = check_policies([name for name in (given.policy or default).replace(" ", "").split(",") if name])
    _check_alone(trace, given)
    settings = _settings(given, names)
    stopping = ["slurm"] if any(setting.site and setting.site.preempt_by != "none" for _, setting in settings) else []
    notes = check_options(names, sorted(given.asked()), stopping=stopping)
    read = _read(trace, given, fleet_gpus=settings[0][1].fleet.num_gpus)
    jobs, said = match_types(read.jobs, [pool for _, setting in settings for pool in setting.fleet.pools])
    read = _with_sites(replace(read, jobs=jobs, notes=(*read.notes, *said)), settings)
    return names, notes, *_with_speeds(trace, given, read, settings)


def _with_sites(read: Any, settings: Any) -> Any:
    """Limits of partitions for jobs without any, and what is not modelled."""
    queues = settings[0][1].queues
    if queues is not None:
        read = replace(read, notes=(*read.notes, *queues.notes))
    sites = [setting.site for _, setting in settings if setting.site is not None]
    if not sites:
        return read
    notes = list(dict.fromkeys(note for site in sites for note in site.notes))
    return replace(read, jobs=sites[0].fill_limits(read.jobs), notes=(*read.notes, *notes))


_NEEDS = {
    "mttr": ("--mttr-hours", "mtbf", "--mtbf-hours"),
    "checkpoint_every": ("--checkpoint-every", "mtbf", "--mtbf-hours"),
    "restart_cost": ("--restart-cost", "mtbf", "--mtbf-hours"),
    "traffic": ("--traffic", "uplink", "--uplink"),
    "uplink": ("--uplink", "racks", "--nodes-per-rack"),
    "slurm_qos": ("--slurm-qos", "slurm_conf", "--slurm-conf"),
    "slurm_accounts": ("--slurm-accounts", "slurm_conf", "--slurm-conf"),
    "job": ("--job", "now", "--now"),
}
"""Options that mean nothing without another one."""


def _check_alone(trace: str, given: Options) -> None:
    """Refuse options that cannot make a difference to this run, whatever the policy."""
    from traincast.errors import InvalidInput

    for name, (flag, other, other_flag) in _NEEDS.items():
        if getattr(given, name) not in (None, False) and getattr(given, other) in (None, False, []):
            raise InvalidInput(f"{flag} means nothing without {other_flag}")
    synthetic = trace.startswith("synthetic:")
    about_logs = ("format", "only", "columns", "workloads", "now", "job")
    for flag, value in ((_flag_of(name), getattr(given, name)) for name in about_logs):
        if value not in (None, False) and synthetic:
            raise InvalidInput(f"{flag} is about a job log, and {trace} is generated")
    if given.load is not None and not synthetic:
        raise InvalidInput("--load is about synthetic:N; a job log has the load it has")
    if given.racks is not None and given.uplink is None and given.placement != "topology":
        raise InvalidInput("--nodes-per-rack means nothing without --placement topology or --uplink")
    _check_forecasts(given)
    drawn = synthetic or given.sigma or given.mtbf or given.forecasts
    if given.seed is not None and not drawn:
        raise InvalidInput("--seed means nothing here: neither jobs, errors nor failures are drawn")


def _check_forecasts(given: Options) -> None:
    from traincast.errors import InvalidInput

    if given.plan_with is not None and not given.forecasts:
        raise InvalidInput("--plan-with is about forecasts, which have an interval; pass --forecasts")
    if given.forecasts and given.gpu_speed is not None:
        raise InvalidInput("speeds come from --forecasts or from --gpu-speed, not from both")


def _settings(given: Options, names: list[str]) -> list[tuple[str, Any]]:
    """One setting per cluster, by its text or by its slurm.conf."""
    import math

    from traincast.errors import InvalidInput, UnknownName
    from traincast.schedule import (
        PLACERS,
        Setting,
        UniformTraffic,
        parse_fleet,
        parse_quotas,
        plan_nodes,
        read_queues,
        read_sinfo,
        read_site,
    )
    from traincast.units import parse_bytes, parse_seconds

    placement = given.placement or "consolidated"
    if placement not in PLACERS:
        raise UnknownName("placement", placement, PLACERS)
    _check_clusters(given, names)
    uplink = None if given.uplink is None else parse_bytes(given.uplink)
    traffic = UniformTraffic(bytes_per_s_per_gpu=parse_bytes(given.traffic or "1GB"))
    base = {
        "placer": PLACERS[placement],
        "overheads": _overheads(given),
        "network": None if uplink is None else traffic,
        "until_s": math.inf if given.until is None or "<" in given.until else parse_seconds(given.until),
        "kill_at_limit": given.kill,
        "queues": None if given.queues is None else read_queues(given.queues),
        "record": given.out is not None or given.html is not None,
    }
    settings = []
    for text in given.cluster:
        if Path(text).is_file():
            fleet = replace(read_sinfo(Path(text)), nodes_per_rack=given.racks, rack_uplink_bytes_per_s=uplink)
        else:
            fleet = parse_fleet(text, nodes_per_rack=given.racks, uplink_bytes_per_s=uplink)
        quotas = () if given.quotas is None else parse_quotas(given.quotas, fleet)
        settings.append((text, Setting(fleet=fleet, quotas=quotas, **base)))
    for path in given.slurm_conf:
        site = read_site(path, qos=given.slurm_qos, accounts=given.slurm_accounts)
        quotas = () if given.quotas is None else parse_quotas(given.quotas, site.fleet)
        settings.append((path.name, Setting(fleet=site.fleet, quotas=quotas, site=site, **base)))
    if given.nodes_plan is not None:
        if given.mtbf is not None:
            raise InvalidInput(
                "--nodes plans when nodes are there; with --mtbf-hours they fail by chance: give one of them"
            )
        planned = [(name, setting, plan_nodes(given.nodes_plan, setting.fleet)) for name, setting in settings]
        settings = [(name, replace(setting, fleet=fleet, failures=plan)) for name, setting, (fleet, plan) in planned]
    return _with_failures(given, _with_noise(given, settings))


def _check_clusters(given: Options, names: list[str]) -> None:
    from traincast.errors import InvalidInput

    if len(set(given.cluster)) < len(given.cluster) or len(set(given.slurm_conf)) < len(given.slurm_conf):
        raise InvalidInput("the same cluster is given twice")
    if not given.cluster and not given.slurm_conf:
        raise InvalidInput("no cluster: pass --cluster NODESxGPUS or --slurm-conf FILE")
    if given.slurm_conf and (given.cluster or given.racks is not None):
        raise InvalidInput("--slurm-conf describes the nodes; leave --cluster and --nodes-per-rack out")
    if given.slurm_conf and "slurm" not in names:
        raise InvalidInput("--slurm-conf is about the policy slurm; add it to --policy")


def _with_noise(given: Options, settings: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Every cluster as often as there are sizes of errors."""
    from traincast.schedule import Noisy

    if all(value is None for value in (given.sigma, given.bias)):
        return settings
    sizes = _numbers(given.sigma or "0", "--sigma", "0,0.3,1")
    plain = Noisy(bias=1.0 if given.bias is None else given.bias, seed=given.seed or 0)
    return [
        (
            name if len(sizes) == 1 else f"{name}, {f'errors of {size:g}' if size else 'no errors'}",
            replace(setting, noise=replace(plain, sigma=size)),
        )
        for name, setting in settings
        for size in sizes
    ]


def _numbers(text: str, flag: str, example: str) -> list[float]:
    from traincast.errors import InvalidInput

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{flag} {text!r} is not a number, or several such as {example}") from None


def _with_failures(given: Options, settings: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Every cluster as often as there are mean times between failures; 0 stands for none."""
    from traincast.schedule import WeibullFailures
    from traincast.units import HOUR_S

    if given.mtbf is None:
        return settings
    hours = _numbers(given.mtbf, "--mtbf-hours", "0,2000,500")
    repair_s = (1.0 if given.mttr is None else given.mttr) * HOUR_S
    found = []
    for name, setting in settings:
        for mean in hours:
            failures = None
            if mean or len(hours) == 1:
                failures = WeibullFailures(mean_up_s=mean * HOUR_S, mean_repair_s=repair_s, seed=given.seed or 0)
            label = name if len(hours) == 1 else f"{name}, {f'MTBF {mean:g} h' if mean else 'no failures'}"
            found.append((label, replace(setting, failures=failures)))
    return found


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
    """Durations, speeds and beliefs from forecasts, if they were asked for."""
    if not given.forecasts:
        return *_with_type_speeds(given, read, settings), None
    from traincast.schedule import ForecastSource, forecast_jobs

    learned = load_learned(given.calibration, given.given)
    source = ForecastSource(folder=Path(trace).parent, calibration=learned)
    quantile = 0.5 if given.plan_with is None else given.plan_with
    first, *others = [setting.fleet for _, setting in settings]
    known = forecast_jobs(read.jobs, fleet=first, others=others, oracle=source, seed=given.seed or 0, quantile=quantile)
    read = replace(read, jobs=known.jobs, notes=(*read.notes, *known.notes))
    speeds = (known.perf, *known.others)
    settings = [(text, replace(setting, perf=perf)) for (text, setting), perf in zip(settings, speeds, strict=True)]
    return read, settings, known.estimator


def _with_type_speeds(given: Options, read: Any, settings: Any) -> tuple[Any, Any]:
    """GPU types as fast as the command says; a note where it is asked about others than those of the log and says nothing."""
    from traincast.errors import UnknownName
    from traincast.schedule import TypeSpeeds, parse_type_speeds

    types = list(dict.fromkeys(pool.device for _, setting in settings for pool in setting.fleet.pools))
    if given.gpu_speed is None:
        if len(types) < 2:
            return read, settings
        note = (
            f"{' and '.join(types[1:])} are taken to be as fast as {types[0]}; --gpu-speed {types[1]}=2 says otherwise, or "
            "--forecasts where jobs name workloads"
        )
        return replace(read, notes=(*read.notes, note)), settings
    factors = parse_type_speeds(given.gpu_speed)
    for device in factors:
        if device not in types:
            raise UnknownName("GPU type of --gpu-speed", device, types)
    return read, [
        (name, replace(setting, perf=TypeSpeeds(tuple(factors.get(pool.device, 1.0) for pool in setting.fleet.pools))))
        for name, setting in settings
    ]


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
    kind = "sacct" if given.format is None and given.sacct is not None else given.format
    return read_trace(
        Path(trace), kind=kind, only=given.only, columns=given.columns, workloads=given.workloads, now=given.now
    )


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
    from traincast.report import name_file, perfetto
    from traincast.schedule import job_columns, write_columns

    several = len({case.cluster for case in cases}) > 1
    for case in cases:
        name = name_file(f"{case.label} {case.cluster}" if several else case.label)
        write_columns(job_columns(case.schedule, case.jobs, case.beliefs), out / f"{name}-jobs.parquet")
        if len(case.schedule.occupations):
            write_whole(out / f"{name}-perfetto.json", perfetto(case.schedule))
