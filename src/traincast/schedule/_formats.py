"""One row of another system's job log to the fields of a request, for every format that we read."""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, MissingExtra
from traincast.schedule._cells import Row, Unusable, positive, read_moment, read_moment_if_any, read_name, read_number
from traincast.schedule._kubernetes import read_object
from traincast.schedule._sacct import read_sacct

__all__ = ["FORMATS", "Format", "Unusable", "guess_format", "positive"]


def _tiresias(row: Row) -> dict[str, Any]:
    return {
        "job_id": read_name(row, "job_id"),
        "submit_s": read_number(row, "submit_time"),
        "num_gpus": read_number(row, "num_gpu"),
        "duration_s": read_number(row, "duration"),
        "workload_label": read_name(row, "model_name"),
    }


def _helios(row: Row) -> dict[str, Any]:
    return {
        "job_id": read_name(row, "job_id", "jobid"),
        "submit_s": read_moment(row, "submit_time"),
        "num_gpus": read_number(row, "gpu_num"),
        "duration_s": read_number(row, "duration"),
        "started_s": read_moment_if_any(row, "start_time"),
        "user": read_name(row, "user"),
        "tenant": read_name(row, "vc"),
    }


def _philly(row: Row) -> dict[str, Any]:
    """The flat table derived from msr-fiddle/philly-traces."""
    return {
        "job_id": read_name(row, "jobid", "job_id"),
        "submit_s": read_moment(row, "submitted_time", "submit_time", "timestamp", "time"),
        "num_gpus": read_number(row, "num_gpus", "gpus", "gpu_num", "num_gpu"),
        "duration_s": read_number(row, "duration", "run_time", "runtime"),
        "user": read_name(row, "user"),
        "tenant": read_name(row, "vc"),
    }


def _philly_log(item: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of `cluster_job_log` as published: attempts with their places; the job ran from the first to the last."""
    attempts = [
        entry for entry in item.get("attempts") or [] if read_name(entry, "start_time") and read_name(entry, "end_time")
    ]
    if not attempts:
        raise Unusable("no attempt with a start and an end")
    gpus = [sum(len(place.get("gpus") or []) for place in entry.get("detail") or []) for entry in attempts]
    return {
        "job_id": read_name(item, "jobid"),
        "submit_s": read_moment(item, "submitted_time"),
        "num_gpus": float(max(gpus)),
        "duration_s": sum(read_moment(entry, "end_time") - read_moment(entry, "start_time") for entry in attempts),
        "started_s": min(read_moment(entry, "start_time") for entry in attempts),
        "user": read_name(item, "user"),
        "tenant": read_name(item, "vc"),
    }


def _pai(row: Row) -> dict[str, Any]:
    gpus = read_number(row, "num_gpu", "gpu_num", default=math.nan)
    if math.isnan(gpus):
        # The published tables give percent of a GPU per instance.
        gpus = read_number(row, "plan_gpu") / 100 * read_number(row, "inst_num", default=1.0)
    return {
        "job_id": read_name(row, "job_id", "job_name"),
        "submit_s": read_moment(row, "submit_time", "start_time"),
        "num_gpus": gpus if gpus < 1 else float(math.ceil(gpus)),
        "duration_s": read_number(row, "duration", default=math.nan)
        if read_name(row, "duration")
        else read_moment(row, "end_time") - read_moment(row, "start_time"),
        "gpu_type": None if read_name(row, "gpu_type") in (None, "MISC", "CPU") else read_name(row, "gpu_type"),
        "user": read_name(row, "user"),
    }


def _acme(row: Row) -> dict[str, Any]:
    return {
        "job_id": read_name(row, "job_id"),
        "submit_s": read_moment(row, "submit_time"),
        "num_gpus": read_number(row, "gpu_num"),
        "duration_s": read_number(row, "duration", default=math.nan)
        if read_name(row, "duration")
        else read_moment(row, "end_time") - read_moment(row, "start_time"),
        "started_s": read_moment_if_any(row, "start_time"),
        "user": read_name(row, "user"),
        "tenant": read_name(row, "type"),
    }


def _itp(row: Row) -> dict[str, Any]:
    deadline = read_number(row, "ddl", "deadline", default=math.nan)
    return {
        "job_id": read_name(row, "job_id", "id"),
        "submit_s": read_moment(row, "submit_time"),
        "num_gpus": read_number(row, "num_gpu", "gpus"),
        "duration_s": read_number(row, "duration"),
        "workload_label": read_name(row, "model_name"),
        "steps": read_number(row, "iterations", default=math.nan),
        "deadline_s": deadline,
        "tenant": read_name(row, "vc", "cluster"),
    }


def _sia(row: Row) -> dict[str, Any]:
    """Adaptive workloads carry no duration: they need the named application's speed."""
    return {
        "job_id": read_name(row, "name", "job_id"),
        "submit_s": read_number(row, "time", "submit_time"),
        "num_gpus": read_number(row, "num_replicas"),
        "workload": read_name(row, "application"),
        "duration_s": read_number(row, "duration", default=math.nan),
    }


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


def _gavel(fields: Sequence[str]) -> dict[str, Any]:
    if len(fields) != 10:
        raise Unusable(f"{len(fields)} tab-separated fields; Gavel traces have 10")
    values = {name: fields[at] for name, at in (("steps", 5), ("gpus", 6), ("weight", 7), ("arrival", 9))}
    return {
        "submit_s": read_number(values, "arrival"),
        "num_gpus": read_number(values, "gpus"),
        "steps": read_number(values, "steps"),
        "priority": read_number(values, "weight", default=1.0),
        "workload": fields[0],
    }


def _tidy(row: Row) -> dict[str, Any]:
    """Our own table, also the tidy traces of the project."""
    return {
        "job_id": read_name(row, "job_id"),
        "submit_s": read_number(row, "submit_s", "submit_time_s"),
        "num_gpus": read_number(row, "num_gpus", "n_gpus"),
        "duration_s": read_number(row, "duration_s", default=math.nan),
        "workload": read_name(row, "workload"),
        "workload_label": read_name(row, "model"),
        "steps": read_number(row, "steps", "iterations", default=math.nan),
        "gpu_type": read_name(row, "gpu_type"),
        "user": read_name(row, "user"),
        "tenant": read_name(row, "tenant", "vc"),
        "deadline_s": read_number(row, "deadline_s", default=math.nan),
        "priority": read_number(row, "priority", default=0.0),
        "min_gpus": read_number(row, "min_gpus", default=math.nan),
        "max_gpus": read_number(row, "max_gpus", default=math.nan),
        "limit_s": read_number(row, "limit_s", default=math.nan),
        "started_s": read_number(row, "started_s", default=math.nan),
        **{name: read_number(row, name, default=math.nan) for name in ("num_nodes", "num_cpus", "memory_bytes")},
        "exclusive": read_number(row, "exclusive", default=0.0),
        "array_limit": read_number(row, "array_limit", default=math.nan),
        **{name: read_name(row, name) for name in ("partition", "qos", "dependency", "reservation", "constraint")},
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


PAI_TASKS = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
             "gpu_type")  # fmt: skip
"""The columns of `pai_task_table`, which is published without a first line of names."""


def _pai_rows(path: Path) -> Iterator[tuple[int, Row | Unusable]]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        head = file.readline()
        named = "start_time" in head or "submit_time" in head
        file.seek(0)
        yield from _numbered(csv.DictReader(file) if named else csv.DictReader(file, fieldnames=PAI_TASKS), path)


def _bar_rows(path: Path) -> Iterator[tuple[int, Row | Unusable]]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        yield from _numbered(csv.DictReader(file, delimiter="|"), path)


def _words(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith((";", "#")):
            yield number, line.split()


def _tabs(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), 1):
        if line.strip():
            yield number, line.split("\t")


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
    note: str = ""


FORMATS: dict[str, Format] = {
    "tidy": Format(_parquet_rows, _tidy),
    "tidy-csv": Format(_csv_rows, _tidy),
    "tiresias": Format(_csv_rows, _tiresias, "model names are synthetic labels"),
    "helios": Format(_csv_rows, _helios),
    "philly": Format(_csv_rows, _philly),
    "philly-log": Format(_items, _philly_log, "a job retried runs its attempts one after the other"),
    "pai": Format(_pai_rows, _pai),
    "acme": Format(_csv_rows, _acme),
    "itp": Format(_csv_rows, _itp, "models, batch sizes and deadlines were generated by ElasticFlow"),
    "sia": Format(_csv_rows, _sia),
    "gavel": Format(_tabs, _gavel),
    "swf": Format(_words, _swf),
    "sacct": Format(_bar_rows, read_sacct),
    "kubernetes": Format(_items, read_object),
}


def guess_format(path: Path) -> str:
    """The format by the file's ending and the names of its columns."""
    ending = path.suffix.lower()
    known = {".parquet": "tidy", ".swf": "swf", ".trace": "gavel", ".jsonl": "kubernetes"}
    if ending == "" and path.name == "cluster_job_log":
        return "philly-log"
    if ending == ".json":
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return "philly-log" if '"attempts"' in file.read(4096) else "kubernetes"
    if ending in known:
        return known[ending]
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.readline()
    if "|" in head and "JobID" in head:
        return "sacct"
    cells = [part.strip().strip('"') for part in head.split(",")]
    if len(cells) == len(PAI_TASKS) and "gpu_type" not in cells and cells[4].replace(".", "").isdigit():
        return "pai"
    columns = set(cells)
    for name, needed in (
        ("tidy-csv", {"submit_s", "num_gpus"}),
        ("tidy-csv", {"submit_time_s", "n_gpus"}),
        ("sia", {"application", "num_replicas"}),
        ("itp", {"num_gpu", "submit_time", "ddl"}),
        ("tiresias", {"num_gpu", "submit_time", "iterations", "model_name"}),
        ("pai", {"plan_gpu"}),
        ("pai", {"num_gpu", "submit_time", "duration", "num_cpu"}),
        ("helios", {"gpu_num", "vc", "submit_time", "duration"}),
        ("acme", {"gpu_num", "type", "submit_time"}),
        ("helios", {"gpu_num", "submit_time", "duration"}),
        ("philly", {"jobid", "vc"}),
        ("philly", {"num_gpus", "duration"}),
    ):
        if needed <= columns:
            return name
    raise InvalidInput(f"{path}: cannot tell its format; pass one of {', '.join(FORMATS)}")
