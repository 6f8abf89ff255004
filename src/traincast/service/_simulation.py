"""A schedule request to the comparison of its policies, with what each node ran when."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, UnknownName
from traincast.report import document_bars
from traincast.schedule import (
    FORMATS,
    PLACERS,
    Mix,
    Noisy,
    Setting,
    Trace,
    check_options,
    check_policies,
    generate_jobs,
    measure_schedule,
    parse_fleet,
    read_trace,
    run_policy,
)
from traincast.spec import Fleet

Report = Callable[..., None]
TEXT_FORMATS = tuple(name for name in FORMATS if name != "tidy")
"""The formats that are text; tables of our own come as csv."""


def simulate_request(asked: Mapping[str, Any], limits: Mapping[str, Any], report: Report) -> dict[str, Any]:
    names = check_policies(asked["policies"])
    options = {"--sigma": asked["sigma"], "--placement": asked["placement"] != "consolidated"}
    notes = check_options(names, [name for name, given in options.items() if given])
    if asked["placement"] not in PLACERS:
        raise UnknownName("placement", asked["placement"], PLACERS)
    fleet = parse_fleet(asked["cluster"])
    if fleet.num_gpus > limits["schedule_gpus"]:
        raise InvalidInput(f"{fleet.num_gpus:,} GPUs; a simulated cluster may have at most {limits['schedule_gpus']:,}")
    if asked["sigma"] < 0:
        raise InvalidInput(f"sigma = {asked['sigma']}; it must be at least 0")
    trace = _read(asked, fleet, limits)
    setting = Setting(
        fleet=fleet,
        placer=PLACERS[asked["placement"]],
        noise=Noisy(sigma=asked["sigma"], seed=asked["seed"]) if asked["sigma"] else None,
        record=True,
    )
    total = len(names) * len(trace.jobs)
    policies = []
    for place, name in enumerate(names):
        report(place * len(trace.jobs), total, f"simulating {name}")
        schedule = run_policy(name, trace.jobs, setting)
        policies.append({**measure_schedule(schedule).as_dict(), **document_bars(schedule)})
    report(total, total, "done")
    return {
        "trace": trace.name,
        "format": trace.format,
        "num_jobs": len(trace.jobs),
        "num_gpus": fleet.num_gpus,
        "bad_rows": [str(row) for row in trace.bad_rows[:50]],
        "num_bad_rows": len(trace.bad_rows),
        "notes": [*trace.notes, *notes],
        "policies": policies,
    }


def _read(asked: Mapping[str, Any], fleet: Fleet, limits: Mapping[str, Any]) -> Trace:
    trace = asked["trace"]
    count, text, most = trace.get("synthetic"), trace.get("text"), limits["schedule_jobs"]
    if (count is None) == (text is None):
        raise InvalidInput("a trace has either synthetic, a number of jobs to generate, or text, a job log")
    if count is not None:
        if not 1 <= count <= most:
            raise InvalidInput(f"synthetic = {count:,}; from 1 to {most:,} jobs can be generated")
        load = trace["load"]
        if load <= 0:
            raise InvalidInput(f"load = {load}; it must be a finite number above 0")
        jobs = generate_jobs(count, num_gpus=fleet.num_gpus, mix=Mix(load=load, deadline_slack=2.0), seed=asked["seed"])
        return Trace(name=f"synthetic-{count}-load-{load:g}", format="synthetic", jobs=jobs)
    kind = trace.get("format")
    if kind is not None and kind not in TEXT_FORMATS:
        raise UnknownName("trace format", kind, TEXT_FORMATS)
    with tempfile.TemporaryDirectory(prefix="traincast-trace-") as folder:
        path = Path(folder) / ("trace.json" if text.lstrip()[:1] in ("{", "[") else "trace.csv")
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            found = read_trace(path, kind=kind, only=trace.get("only"))
        except InvalidInput as error:
            raise InvalidInput(str(error).replace(str(path), "the trace")) from error
    if len(found.jobs) > most:
        raise InvalidInput(f"the trace has {len(found.jobs):,} jobs; one of at most {most:,} is simulated")
    return found
