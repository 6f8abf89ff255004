"""Job logs of other systems to a table of jobs; a row that cannot be used is reported with its line, never dropped."""

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, MissingExtra, UnknownName
from traincast.files import read_toml
from traincast.noun import noun
from traincast.schedule._cells import NoGpu
from traincast.schedule._formats import (
    FORMATS,
    NEEDED,
    Format,
    Unusable,
    guess_format,
    parse_columns,
    positive,
    read_columns,
)
from traincast.schedule._jobs import NAMES, NUMBERS, JobTable
from traincast.schedule._sacct import OPEN, read_sacct, read_slurm_json
from traincast.spec import Request

__all__ = ["FORMATS", "BadRow", "Trace", "guess_format", "read_trace", "write_columns"]


@noun
class BadRow:
    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """The usable jobs and everything that was not usable."""

    name: str
    format: str
    jobs: JobTable
    bad_rows: tuple[BadRow, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Found:
    """What the rows of a log became, while it is read: fields of jobs by id, in order of the rows."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    bad: list[BadRow] = field(default_factory=list)
    skipped: int = 0
    folded: int = 0
    no_gpu: int = 0
    requeued: int = 0
    joined: int = 0
    shares: int = 0


def _choose_format(path: Path, name: str, columns: str | None) -> Format:
    if name not in FORMATS:
        raise UnknownName("trace format", name, FORMATS)
    chosen = FORMATS[name]
    if columns is None:
        return chosen
    if chosen.read is not read_columns:
        raise InvalidInput(f"--columns is about tables; {path} is read as {name}, whose columns are known")
    return replace(chosen, read=partial(read_columns, given=parse_columns(columns)))


def _read_rows(path: Path, chosen: Format, only: str | None) -> "_Found":
    found = _Found()
    for line, row in chosen.rows(path):
        try:
            _read_row(chosen, line, row, only, found)
        except NoGpu:
            found.no_gpu += 1
        except (Unusable, InvalidInput) as error:
            found.bad.append(BadRow(line=line, reason=str(error)))
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError) as error:
            found.bad.append(BadRow(line=line, reason=f"unreadable ({type(error).__name__}: {error})"))
    return found


def read_trace(
    path: Path,
    *,
    kind: str | None = None,
    only: str | None = None,
    columns: str | None = None,
    workloads: Path | None = None,
    now: bool = False,
) -> Trace:
    """Read a job log. `only` keeps one tenant or one `trace` of a file that holds several; `columns` say which column holds what;
    `workloads` is a file of rules that name what jobs train. `now` keeps the jobs that run and wait, as the state at time 0; else
    only jobs that have ended are kept."""
    if not path.is_file():
        raise InvalidInput(f"no trace at {path}")
    name = kind or ("csv" if columns and path.suffix != ".parquet" else guess_format(path))
    chosen = _choose_format(path, name, columns)
    found = _read_rows(path, chosen, only)
    notes = _name_workloads(found, workloads) + _say_found(found)
    kept, open_jobs = _choose(found, now=now)
    notes += open_jobs
    if not kept:
        reason = f"; first problem: {found.bad[0]}" if found.bad else "".join(f"; {note}" for note in open_jobs)
        reason += f"; {found.no_gpu:,} jobs ask for no GPU" if found.no_gpu else ""
        needs = f"; a table needs columns of {', '.join(NEEDED)} (--columns)" if chosen.read is read_columns else ""
        raise InvalidInput(f"{path}: no usable job in format {name}{reason}{needs}")
    jobs = JobTable.from_requests([_request(fields, line) for line, fields in kept])
    notes += _say_states(Counter(str(fields.get("state") or "") for _, fields in kept if not now))
    return Trace(name=path.stem, format=name, jobs=jobs.from_zero(), bad_rows=tuple(found.bad), notes=tuple(notes))


def _say_found(found: _Found) -> list[str]:
    said = (
        (found.skipped, "rows without this name left out on request"),
        (found.no_gpu, "jobs ask for no GPU and are left out"),
        (found.requeued, "rows are earlier runs of jobs that were requeued; each job is one with its restarts"),
        (found.shares, "jobs ask for a share of a GPU and are given a whole one"),
        (found.joined, "rows are parts of heterogeneous jobs, which start as one"),
        (found.folded, "rows of job steps belong to the jobs above them"),
        (
            sum(bool(fields.get("held")) for fields in found.jobs.values()),
            "jobs wait from when they were eligible (dependency, array or begin time), not from submission",
        ),
    )
    return [f"{count:,} {what}" for count, what in said if count]


def _read_row(chosen: Format, line: int, row: Any, only: str | None, found: _Found) -> None:
    if isinstance(row, Unusable):
        raise row
    if only is not None and only not in _labels(row):
        found.skipped += 1
        return
    fields = chosen.read(row)
    if fields is None:
        found.folded += 1
        return
    fields = {"line": line, "duration_s": math.nan, "limit_s": math.nan, "started_s": math.nan, **fields}
    if 0 < fields["num_gpus"] < 1:
        fields["num_gpus"] = 1.0
        found.shares += 1
    base, plus, _ = str(fields.get("job_id") or line).partition("+")
    before = found.jobs.get(base)
    if before is None:
        _check(fields)
        found.jobs[base] = {**fields, "job_id": base}
    elif plus:
        before["num_gpus"] += fields["num_gpus"]
        found.joined += 1
    elif chosen.read in (read_sacct, read_slurm_json) and _same_job(before, fields):
        _check(fields)
        before["duration_s"] = before["duration_s"] + fields["duration_s"]
        before["state"] = fields.get("state")
        found.requeued += 1
    else:
        raise Unusable(f"job id {base} occurs twice")


def _same_job(before: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether two rows with one id are runs of one job (`sacct -D` lists every run), and not a copy of the row."""
    return (before["started_s"], before["state"]) != (fields["started_s"], fields["state"])


def _check(fields: Mapping[str, Any]) -> None:
    """A job that cannot be asked for is a bad row."""
    if fields["duration_s"] < 0:
        raise Unusable(f"duration is {fields['duration_s']:g} s; it must be at least 0")
    if fields.get("state") not in OPEN and math.isnan(fields["duration_s"]) and not fields.get("workload"):
        raise Unusable("no duration and no workload")
    if fields["submit_s"] < 0:
        raise Unusable(f"submission is at {fields['submit_s']:g} s; it must be at least 0")
    positive(float(fields["num_gpus"]), "GPUs")
    _request(fields, 0)


def _choose(found: _Found, *, now: bool) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
    """Jobs that have ended, or those that run or wait as the state at time 0: what runs has its rest to do, by its limit."""
    is_open = {job: fields.get("state") in OPEN for job, fields in found.jobs.items()}
    if not now:
        left = sum(is_open.values())
        note = [f"{left:,} jobs still run or wait and are left out; --now asks when they start"] if left else []
        return [(fields["line"], fields) for job, fields in found.jobs.items() if not is_open[job]], note
    moment = max(
        (
            fields[name]
            for fields in found.jobs.values()
            for name in ("submit_s", "started_s")
            if fields[name] == fields[name]
        ),
        default=0.0,
    )
    kept = []
    for job, fields in sorted(
        found.jobs.items(), key=lambda pair: (math.isnan(pair[1]["started_s"]), pair[1]["submit_s"])
    ):
        if not is_open[job]:
            continue
        ran_s = max(moment - fields["started_s"], 0.0) if fields.get("state") != "PENDING" else math.nan
        whole_s = fields["limit_s"] if math.isnan(fields["duration_s"]) else fields["duration_s"]
        if math.isnan(whole_s):
            raise InvalidInput(f"job {job} has neither a limit nor a forecast; nobody can say how long it takes")
        rest_s = whole_s if math.isnan(ran_s) else max(whole_s - ran_s, 1.0)
        kept.append(
            (
                fields["line"],
                {
                    **fields,
                    "submit_s": moment,
                    "duration_s": rest_s,
                    "limit_s": rest_s,
                    "started_s": math.nan,
                    "ran_s": ran_s,
                },
            )
        )
    running = sum(not math.isnan(fields["ran_s"]) for _, fields in kept)
    return kept, [
        f"time 0 is now: {running:,} jobs run, {len(kept) - running:,} wait; each has its whole limit unless a forecast says more"
    ]


def _name_workloads(found: _Found, path: Path | None) -> list[str]:
    """What jobs train, by rules over their names, commands and comments: the first rule that matches."""
    if path is None:
        return []
    rules = read_toml(path).get("rule")
    if not isinstance(rules, list) or not rules:
        raise InvalidInput(f"{path}: a map of workloads has tables [[rule]] with match, workload and, if known, steps")
    counts: Counter[str] = Counter()
    for fields in found.jobs.values():
        text = "\n".join(str(fields.get(name) or "") for name in ("job_name", "submit_line", "comment", "job_id"))
        for rule in rules:
            if not {"match", "workload"} <= rule.keys() <= {"match", "workload", "steps"}:
                raise InvalidInput(
                    f"{path}: a rule has match and workload, and may have steps; it has {', '.join(rule)}"
                )
            if re.search(str(rule["match"]), text, re.MULTILINE):
                fields["workload"], fields["steps"] = str(rule["workload"]), float(rule.get("steps", math.nan))
                counts[fields["workload"]] += 1
                break
    named = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    return [f"workloads of {counts.total():,} of {len(found.jobs):,} jobs by {path.name}: {named or 'no rule matches'}"]


WELL_ENDED = ("COMPLETED", "Completed", "Complete", "Succeeded", "")


def _say_states(states: Counter[str]) -> list[str]:
    """Jobs that failed or were stopped held their GPUs as well, so they are replayed like all others."""
    others = [f"{count:,} {state}" for state, count in states.most_common() if state not in WELL_ENDED]
    if not others:
        return []
    return [
        f"of {states.total():,} jobs some ended otherwise ({', '.join(others)}); all held their GPUs and are replayed"
    ]


def _labels(row: Any) -> set[str]:
    """The names by which a row of a file with several traces can be asked for."""
    names = ("trace", "vc", "tenant", "Account", "Partition", "cluster")
    return {str(row.get(name)) for name in names if row.get(name)} if isinstance(row, Mapping) else set()


_WHOLE = ("min_gpus", "max_gpus", "num_nodes", "array_limit")


def _request(fields: Mapping[str, Any], line: int) -> Request:
    """What a reader found, without what is unknown and what is no field of a request."""
    given = {name: fields.get(name) for name in NUMBERS}
    known: dict[str, Any] = {
        name: float(value) for name, value in given.items() if value is not None and value == value
    }
    known |= {name: int(known[name]) for name in _WHOLE if name in known}
    known["exclusive"] = bool(known.get("exclusive"))
    if known.get("limit_s", 0.0) <= 0:
        known.pop("limit_s", None)
    named: dict[str, Any] = {name: fields.get(name) for name in NAMES.values()}
    named["user"] = named["user"] or fields.get("workload_label")
    if "duration_s" not in known and named["workload"] is None:
        named["workload"] = "unknown"  # a job that has not ended
    job_id = fields.get("job_id") or str(line)
    return Request(
        job_id=job_id, submit_s=float(fields["submit_s"]), num_gpus=float(fields["num_gpus"]), **known, **named
    )


def write_columns(columns: Mapping[str, Sequence[Any]], path: Path) -> None:
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        return
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "tables", f"writing {path.name}") from error
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), path, compression="zstd")
