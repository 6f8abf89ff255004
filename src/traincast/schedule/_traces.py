"""Job logs of other systems to a table of jobs; a row that cannot be used is reported with its line, never dropped."""

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, MissingExtra, UnknownName
from traincast.schedule._formats import FORMATS, Format, Unusable, guess_format, positive
from traincast.schedule._jobs import NAMES, NUMBERS, JobTable
from traincast.spec import Request

__all__ = ["FORMATS", "BadRow", "Trace", "guess_format", "read_trace", "write_columns", "write_trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    origin_s: float = 0.0
    """The moment of the log that is time 0 of the jobs."""


@dataclass(slots=True, kw_only=True)
class _Found:
    """What the rows of a log became, while it is read."""

    requests: list[Request]
    bad: list[BadRow]
    states: Counter[str]
    seen: set[str]
    skipped: int = 0
    folded: int = 0
    held: int = 0


def read_trace(path: Path, *, kind: str | None = None, only: str | None = None, from_zero: bool = True) -> Trace:
    """Read a job log; `only` keeps one tenant or one `trace` of a file that holds several."""
    if not path.is_file():
        raise InvalidInput(f"no trace at {path}")
    name = kind or guess_format(path)
    if name not in FORMATS:
        raise UnknownName("trace format", name, FORMATS)
    chosen = FORMATS[name]
    found = _Found(requests=[], bad=[], states=Counter(), seen=set())
    for line, row in chosen.rows(path):
        try:
            _read_row(chosen, line, row, only, found)
        except (Unusable, InvalidInput) as error:
            found.bad.append(BadRow(line=line, reason=str(error)))
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError) as error:
            found.bad.append(BadRow(line=line, reason=f"unreadable ({type(error).__name__}: {error})"))
    if not found.requests:
        reason = f"; first problem: {found.bad[0]}" if found.bad else ""
        raise InvalidInput(f"{path}: no usable job in format {name}{reason}")
    jobs = JobTable.from_requests(found.requests)
    notes = [chosen.note] if chosen.note else []
    if found.skipped:
        notes.append(f"{found.skipped} rows without this name left out on request")
    if found.held:
        notes.append(
            f"{found.held:,} jobs wait from when they were eligible (dependency, array or begin time), not from submission"
        )
    notes += _say_states(found.states)
    if found.folded:
        notes.append(f"{found.folded} rows of job steps belong to the jobs above them")
    origin_s = float(jobs.submit_s[0]) if from_zero else 0.0
    if origin_s:
        jobs = jobs.from_zero()
    return Trace(
        name=path.stem, format=name, jobs=jobs, bad_rows=tuple(found.bad), notes=tuple(notes), origin_s=origin_s
    )


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
    state, was_held = fields.pop("state", None), fields.pop("held", False)
    request = _request(fields, line)
    if request.job_id in found.seen:
        raise Unusable(f"job id {request.job_id} occurs twice")
    found.seen.add(request.job_id)
    found.requests.append(request)
    found.states[state or ""] += 1
    found.held += was_held


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


def _request(fields: dict[str, Any], line: int) -> Request:
    label = fields.pop("workload_label", None)

    def known(name: str) -> float | None:
        value = fields.get(name)
        return None if value is None or math.isnan(value) else float(value)

    duration = known("duration_s")
    if duration is not None and duration < 0:
        raise Unusable(f"duration is {duration:g} s; it must be at least 0")
    workload = fields.get("workload")
    if duration is None and workload is None:
        raise Unusable("no duration and no workload")
    if fields["submit_s"] < 0:
        raise Unusable(f"submission is at {fields['submit_s']:g} s; it must be at least 0")

    def whole(name: str) -> int | None:
        value = known(name)
        return None if value is None else int(value)

    return Request(
        job_id=fields.get("job_id") or str(line),
        submit_s=float(fields["submit_s"]),
        num_gpus=positive(float(fields["num_gpus"]), "GPUs"),
        duration_s=duration,
        workload=workload if workload is not None else label if duration is None else None,
        steps=known("steps"),
        gpu_type=fields.get("gpu_type"),
        user=fields.get("user") or (label if label else None),
        tenant=fields.get("tenant"),
        priority=float(fields.get("priority") or 0.0),
        deadline_s=known("deadline_s"),
        min_gpus=whole("min_gpus"),
        max_gpus=whole("max_gpus"),
        limit_s=_above_zero(known("limit_s")),
        started_s=known("started_s"),
        partition=fields.get("partition"),
        qos=fields.get("qos"),
        num_nodes=whole("num_nodes"),
        num_cpus=known("num_cpus"),
        memory_bytes=known("memory_bytes"),
        exclusive=bool(fields.get("exclusive")),
        array_limit=whole("array_limit"),
        dependency=fields.get("dependency"),
        reservation=fields.get("reservation"),
        constraint=fields.get("constraint"),
    )


def _above_zero(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def write_trace(jobs: JobTable, path: Path) -> None:
    """Our own table: parquet, or CSV by the ending."""
    columns: dict[str, list[Any]] = {
        "job_id": list(jobs.job_ids),
        "submit_s": jobs.submit_s.tolist(),
        "num_gpus": jobs.num_gpus.tolist(),
    }
    for name in NUMBERS:
        columns[name] = [None if math.isnan(value) else value for value in getattr(jobs, name).tolist()]
    for name, field in NAMES.items():
        columns[field] = list(getattr(jobs, name))
    write_columns(columns, path)


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
