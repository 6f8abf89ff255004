"""One row of another system's job log to the fields of a request, for every format that we read."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, MissingExtra
from traincast.schedule._cells import (
    NoGpu,
    Row,
    Unusable,
    positive,
    read_moment,
    read_moment_if_any,
    read_name,
    read_number,
)
from traincast.schedule._kubernetes import read_object
from traincast.schedule._sacct import parse_elapsed, read_sacct, read_slurm_json

__all__ = ["FORMATS", "Format", "Unusable", "guess_format", "positive"]


NUMBER, MOMENT, WORD = "number", "moment", "word"
COLUMNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "job_id": (WORD, ("job_id", "jobid", "JobID", "job_name", "id", "name")),
    "submit_s": (
        MOMENT,
        ("submit_s", "submit_time_s", "submit_time", "submitted_time", "submit", "timestamp", "time", "arrival_s"),
    ),
    "num_gpus": (NUMBER, ("num_gpus", "n_gpus", "gpus", "gpu_num", "num_gpu", "num_replicas")),
    "duration_s": (NUMBER, ("duration_s", "duration", "run_time", "runtime", "seconds", "elapsed_s")),
    "started_s": (MOMENT, ("started_s", "start_time", "start")),
    "end_s": (MOMENT, ("end_s", "end_time", "end")),
    "limit_s": (NUMBER, ("limit_s", "walltime_s", "time_limit_s")),
    "deadline_s": (MOMENT, ("deadline_s", "deadline", "ddl")),
    "steps": (NUMBER, ("steps", "iterations")),
    "priority": (NUMBER, ("priority",)),
    "min_gpus": (NUMBER, ("min_gpus",)),
    "max_gpus": (NUMBER, ("max_gpus",)),
    "num_nodes": (NUMBER, ("num_nodes",)),
    "num_cpus": (NUMBER, ("num_cpus",)),
    "memory_bytes": (NUMBER, ("memory_bytes",)),
    "exclusive": (NUMBER, ("exclusive",)),
    "array_limit": (NUMBER, ("array_limit",)),
    "workload": (WORD, ("workload", "application")),
    "workload_label": (WORD, ("model_name", "model")),
    "gpu_type": (WORD, ("gpu_type", "device")),
    "user": (WORD, ("user", "user_name")),
    "tenant": (WORD, ("tenant", "vc", "team", "account", "type", "cluster")),
    **{name: (WORD, (name,)) for name in ("partition", "qos", "dependency", "constraint", "comment", "state")},
}
"""Fields of a job, how their cells are read, and the columns that logs of this field call them by."""
NEEDED = ("submit", "gpus", "seconds")


def parse_columns(text: str) -> dict[str, str]:
    """'submit=when,gpus=n,seconds=took': a field to the column that holds it."""
    short = {
        "submit": "submit_s",
        "gpus": "num_gpus",
        "seconds": "duration_s",
        "start": "started_s",
        "end": "end_s",
        "limit": "limit_s",
    }
    found = {}
    for part in text.split(","):
        field, _, column = (word.strip() for word in part.partition("="))
        field = short.get(field, field)
        if field not in COLUMNS or not column:
            raise InvalidInput(f"{part!r} is not FIELD=COLUMN; fields: {', '.join([*short, *COLUMNS])}")
        found[field] = column
    return found


def read_columns(row: Row, given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A row of any table; `given` says which column holds a field, else the usual names are tried."""
    found: dict[str, Any] = {}
    for field, (kind, names) in COLUMNS.items():
        names = (given[field],) if given and field in given else names
        if kind == WORD:
            found[field] = read_name(row, *names)
        elif kind == NUMBER:
            found[field] = read_number(row, *names, default=math.nan)
        else:
            found[field] = read_moment_if_any(row, *names)
    if math.isnan(found["submit_s"]):
        found["submit_s"] = found["started_s"]
    for field, word in (("submit_s", "submit"), ("num_gpus", "gpus")):
        if math.isnan(found[field]):
            raise Unusable(f"no {word} in the columns {', '.join(map(str, row))}; name it with --columns {word}=COLUMN")
    end_s = found.pop("end_s")
    if math.isnan(found["duration_s"]):
        found["duration_s"] = end_s - found["started_s"]
    found["exclusive"] = 0.0 if math.isnan(found["exclusive"]) else found["exclusive"]
    found["priority"] = 0.0 if math.isnan(found["priority"]) else found["priority"]
    return found


def _swf(fields: Sequence[str]) -> dict[str, Any]:
    """The standard workload format (Feitelson, 1999), with processors read as GPUs."""
    if len(fields) < 9:
        raise Unusable(f"{len(fields)} fields; SWF has 18")
    places = (("submit", 1), ("wait", 2), ("run", 3), ("used", 4), ("asked", 7), ("limit", 8))
    values = {name: fields[at] for name, at in places}
    asked = read_number(values, "asked")
    waited = read_number(values, "wait", default=-1.0)
    # The format writes -1 for what is not known.
    return {
        "job_id": fields[0],
        "submit_s": read_number(values, "submit"),
        "num_gpus": asked if asked > 0 else read_number(values, "used"),
        "duration_s": read_number(values, "run"),
        "limit_s": read_number(values, "limit", default=-1.0),
        "started_s": read_number(values, "submit") + waited if waited >= 0 else math.nan,
        "user": None if len(fields) < 12 or fields[11] == "-1" else fields[11],
        "tenant": None if len(fields) < 15 or fields[14] == "-1" else fields[14],
        "partition": None if len(fields) < 16 or fields[15] == "-1" else fields[15],
    }


def _pbs_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Records of ended jobs in an accounting file of PBS: moment;E;job;key=value key=value ..."""
    for number, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), 1):
        _, kind, job, text = (*line.split(";", 3), "", "", "")[:4]
        if kind == "E":
            pairs = (part.partition("=") for part in text.split())
            yield number, {"job": job, **{name: value for name, _, value in pairs}}


def _pbs(row: Row) -> dict[str, Any]:
    asked = str(row.get("Resource_List.select") or "")
    chunks = [(re.match(r"(\d+)", part), re.search(r"ngpus=(\d+)", part)) for part in asked.split("+")]
    chosen = sum(int(head[1] if head else 1) * int(gpus[1]) for head, gpus in chunks if gpus)
    gpus = chosen or read_number(row, "Resource_List.ngpus", "resources_used.ngpus", default=0.0)
    if not gpus:
        raise NoGpu(f"{row['job']} asks for no GPU")
    start_s = read_moment(row, "start")
    return {
        "job_id": str(row["job"]).partition(".")[0],
        "submit_s": read_moment(row, "qtime", "ctime", "start"),
        "num_gpus": float(gpus),
        "duration_s": read_moment(row, "end") - start_s,
        "limit_s": parse_elapsed(read_name(row, "Resource_List.walltime") or ""),
        "started_s": start_s,
        "user": read_name(row, "user"),
        "tenant": read_name(row, "project", "group", "account"),
        "partition": read_name(row, "queue"),
        "job_name": read_name(row, "jobname"),
    }


def _lsf_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Records of ended jobs in lsb.acct: words, quoted where they have spaces."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        for number, words in enumerate(csv.reader(file, delimiter=" "), 1):
            if words and words[0] == "JOB_FINISH":
                yield number, words


def _lsf(words: Sequence[str]) -> dict[str, Any]:
    if len(words) < 13:
        raise Unusable(f"{len(words)} words; a JOB_FINISH of lsb.acct has more")
    text = " ".join(words)
    gpus = re.search(r"(?:ngpus_physical|ngpus_excl_p|ngpus|\bnum)=(\d+)", text)
    if gpus is None:
        raise NoGpu(f"job {words[3]} asks for no GPU")
    values = {name: words[at] for name, at in (("event", 2), ("submit", 7), ("start", 10))}
    start_s = read_number(values, "start")
    if start_s <= 0:
        raise Unusable(f"job {words[3]} never started")
    return {
        "job_id": words[3],
        "submit_s": read_number(values, "submit"),
        "num_gpus": float(gpus[1]),
        "duration_s": read_number(values, "event") - start_s,
        "started_s": start_s,
        "user": words[11],
        "partition": words[12],
        "tenant": words[12],
    }


def _csv_rows(path: Path) -> Iterator[tuple[int, Row | Unusable]]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        yield from _numbered(csv.DictReader(file), path)


def _numbered(reader: "csv.DictReader[str]", path: Path) -> Iterator[tuple[int, Row | Unusable]]:
    before = 0
    try:
        for row in reader:
            # A quote that is never closed makes one row of many, and the rows inside it would be gone without a word.
            if (None in row or None in row.values()) and any("\n" in str(cell) for cell in row.values()):
                rows = f"lines {before + 1} to {reader.line_num}" if before else f"the lines up to {reader.line_num}"
                yield reader.line_num, Unusable(f"{rows} are one row: a quote is not closed")
            else:
                yield reader.line_num, row
            before = reader.line_num
    except csv.Error as error:
        raise InvalidInput(f"{path}, after line {reader.line_num}: {error}") from error


def _bar_rows(path: Path) -> Iterator[tuple[int, Row | Unusable]]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        yield from _numbered(csv.DictReader(file, delimiter="|"), path)


def _words(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith((";", "#")):
            yield number, line.split()


def _parquet_rows(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "tables", f"reading {path.name}") from error
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, ValueError, NotImplementedError) as error:
        raise InvalidInput(f"{path}: not a parquet table ({error})") from error
    yield from enumerate(rows, 1)


def _slurm_items(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, item in _items(path):
        yield from ((number + at, job) for at, job in enumerate(item.get("jobs") or []))


def _items(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    except RecursionError as error:
        raise InvalidInput(f"{path} is nested too deeply to be read") from error
    if data is not None:
        items = data["items"] if isinstance(data, dict) and "items" in data else data
        yield from enumerate(items if isinstance(items, list) else [data], 1)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, {"kind": "?", "metadata": {"name": f"unreadable JSON: {error}"}}


@dataclass(frozen=True, slots=True)
class Format:
    rows: Callable[[Path], Iterator[tuple[int, Any]]]
    read: Callable[[Any], dict[str, Any] | None]


FORMATS: dict[str, Format] = {
    "tidy": Format(_parquet_rows, read_columns),
    "csv": Format(_csv_rows, read_columns),
    "swf": Format(_words, _swf),
    "sacct": Format(_bar_rows, read_sacct),
    "sacct-json": Format(_slurm_items, read_slurm_json),
    "squeue": Format(_bar_rows, read_sacct),
    "kubernetes": Format(_items, read_object),
    "pbs": Format(_pbs_rows, _pbs),
    "lsf": Format(_lsf_rows, _lsf),
}


def guess_format(path: Path) -> str:
    """The format by the file's ending and its first line; any other table is read by the names of its columns."""
    known = {".parquet": "tidy", ".swf": "swf", ".jsonl": "kubernetes"}
    if path.suffix.lower() in known:
        return known[path.suffix.lower()]
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        text = file.read(4096)
    head = text.partition("\n")[0]
    if text.lstrip()[:1] in ("{", "["):
        return "sacct-json" if '"jobs"' in text and '"items"' not in text else "kubernetes"
    if "|" in head and ("JobID" in head or "JOBID" in head):
        return "squeue" if "JOBID" in head else "sacct"
    if re.match(r"[\d/]+ [\d:]+;[A-Z];", head):
        return "pbs"
    if head.startswith('"JOB_'):
        return "lsf"
    if "," in head:
        return "csv"
    raise InvalidInput(f"{path}: cannot tell its format; pass one of {', '.join(FORMATS)}, or a table with --columns")
