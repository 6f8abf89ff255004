"""One row of another system's job log to the fields of a request, for every format that we read."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, MissingExtra

Row = Mapping[str, Any]


class Unusable(Exception):
    """Why one row cannot become a job."""


def _number(row: Row, *names: str, default: float | None = None) -> float:
    for name in names:
        value = row.get(name)
        if value is not None and value != "" and value != "None":
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise Unusable(f"{name} is {value!r}, not a number") from None
            if math.isfinite(number):
                return number
    if default is None:
        raise Unusable(f"no {' or '.join(names)}")
    return default


def _name(row: Row, *names: str) -> str | None:
    for name in names:
        value = row.get(name)
        if value is not None and str(value).strip() not in ("", "None", "nan"):
            return str(value).strip()
    return None


def _moment(row: Row, *names: str) -> float:
    """A time stamp or a number of seconds, as seconds of some fixed origin; a stamp without a zone is read as UTC."""
    text = _name(row, *names)
    if text is None or text in ("Unknown", "None"):
        raise Unusable(f"no {' or '.join(names)}")
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Unusable(f"{names[0]} is {text!r}, not a time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def positive(value: float, what: str) -> float:
    if value <= 0:
        raise Unusable(f"{what} is {value:g}; it must be above 0")
    return value


def _tiresias(row: Row) -> dict[str, Any]:
    return {
        "job_id": _name(row, "job_id"),
        "submit_s": _number(row, "submit_time"),
        "num_gpus": _number(row, "num_gpu"),
        "duration_s": _number(row, "duration"),
        "workload_label": _name(row, "model_name"),
    }


def _helios(row: Row) -> dict[str, Any]:
    return {
        "job_id": _name(row, "job_id", "jobid"),
        "submit_s": _moment(row, "submit_time"),
        "num_gpus": _number(row, "gpu_num"),
        "duration_s": _number(row, "duration"),
        "user": _name(row, "user"),
        "tenant": _name(row, "vc"),
    }


def _philly(row: Row) -> dict[str, Any]:
    """The flat table derived from msr-fiddle/philly-traces."""
    return {
        "job_id": _name(row, "jobid", "job_id"),
        "submit_s": _moment(row, "submitted_time", "submit_time", "timestamp", "time"),
        "num_gpus": _number(row, "num_gpus", "gpus", "gpu_num", "num_gpu"),
        "duration_s": _number(row, "duration", "run_time", "runtime"),
        "user": _name(row, "user"),
        "tenant": _name(row, "vc"),
    }


def _philly_log(item: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of `cluster_job_log` as published: attempts with their places; the job ran from the first to the last."""
    attempts = [
        entry for entry in item.get("attempts") or [] if _name(entry, "start_time") and _name(entry, "end_time")
    ]
    if not attempts:
        raise Unusable("no attempt with a start and an end")
    gpus = [sum(len(place.get("gpus") or []) for place in entry.get("detail") or []) for entry in attempts]
    return {
        "job_id": _name(item, "jobid"),
        "submit_s": _moment(item, "submitted_time"),
        "num_gpus": float(max(gpus)),
        "duration_s": sum(_moment(entry, "end_time") - _moment(entry, "start_time") for entry in attempts),
        "user": _name(item, "user"),
        "tenant": _name(item, "vc"),
    }


def _pai(row: Row) -> dict[str, Any]:
    gpus = _number(row, "num_gpu", "gpu_num", default=math.nan)
    if math.isnan(gpus):
        # The published tables give percent of a GPU per instance.
        gpus = _number(row, "plan_gpu") / 100 * _number(row, "inst_num", default=1.0)
    return {
        "job_id": _name(row, "job_id", "job_name"),
        "submit_s": _moment(row, "submit_time", "start_time"),
        "num_gpus": gpus if gpus < 1 else float(math.ceil(gpus)),
        "duration_s": _number(row, "duration", default=math.nan)
        if _name(row, "duration")
        else _moment(row, "end_time") - _moment(row, "start_time"),
        "gpu_type": None if _name(row, "gpu_type") in (None, "MISC", "CPU") else _name(row, "gpu_type"),
        "user": _name(row, "user"),
    }


def _acme(row: Row) -> dict[str, Any]:
    return {
        "job_id": _name(row, "job_id"),
        "submit_s": _moment(row, "submit_time"),
        "num_gpus": _number(row, "gpu_num"),
        "duration_s": _number(row, "duration", default=math.nan)
        if _name(row, "duration")
        else _moment(row, "end_time") - _moment(row, "start_time"),
        "user": _name(row, "user"),
        "tenant": _name(row, "type"),
    }


def _itp(row: Row) -> dict[str, Any]:
    deadline = _number(row, "ddl", "deadline", default=math.nan)
    return {
        "job_id": _name(row, "job_id", "id"),
        "submit_s": _moment(row, "submit_time"),
        "num_gpus": _number(row, "num_gpu", "gpus"),
        "duration_s": _number(row, "duration"),
        "workload_label": _name(row, "model_name"),
        "steps": _number(row, "iterations", default=math.nan),
        "deadline_s": deadline,
        "tenant": _name(row, "vc", "cluster"),
    }


def _sia(row: Row) -> dict[str, Any]:
    """Adaptive workloads carry no duration: they need the named application's speed."""
    return {
        "job_id": _name(row, "name", "job_id"),
        "submit_s": _number(row, "time", "submit_time"),
        "num_gpus": _number(row, "num_replicas"),
        "workload": _name(row, "application"),
        "duration_s": _number(row, "duration", default=math.nan),
    }


def _swf(fields: Sequence[str]) -> dict[str, Any]:
    """The standard workload format (Feitelson, 1999), with processors read as GPUs."""
    if len(fields) < 9:
        raise Unusable(f"{len(fields)} fields; SWF has 18")
    values = {name: fields[at] for name, at in (("submit", 1), ("run", 3), ("used", 4), ("asked", 7))}
    asked = _number(values, "asked")
    return {
        "job_id": fields[0],
        "submit_s": _number(values, "submit"),
        "num_gpus": asked if asked > 0 else _number(values, "used"),
        "duration_s": _number(values, "run"),
        "user": None if len(fields) < 12 or fields[11] == "-1" else fields[11],
        "tenant": None if len(fields) < 15 or fields[14] == "-1" else fields[14],
    }


def _gavel(fields: Sequence[str]) -> dict[str, Any]:
    if len(fields) != 10:
        raise Unusable(f"{len(fields)} tab-separated fields; Gavel traces have 10")
    values = {name: fields[at] for name, at in (("steps", 5), ("gpus", 6), ("weight", 7), ("arrival", 9))}
    return {
        "submit_s": _number(values, "arrival"),
        "num_gpus": _number(values, "gpus"),
        "steps": _number(values, "steps"),
        "priority": _number(values, "weight", default=1.0),
        "workload": fields[0],
    }


_GRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_OLD_GRES = re.compile(r"(?:^|,)(?:gres:)?gpu(?::([^:=,()]*[^:=,()\d][^:=,()]*))?[:=](\d+)")
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")


def _sacct(row: Row) -> dict[str, Any] | None:
    job_id = _name(row, "JobID", "JobIDRaw")
    if job_id is None:
        raise Unusable("no JobID")
    if "." in job_id:
        return None  # a step of the job above it
    text = _name(row, "AllocTRES") or _name(row, "ReqTRES") or ""
    old = _name(row, "AllocGRES") or _name(row, "ReqGRES") or ""
    found = _GRES.findall(text) or _OLD_GRES.findall(old)
    if not found:
        raise Unusable(f"no gres/gpu in {text or old!r}")
    # A generic entry and a typed one name the same GPUs.
    typed = [(kind, int(count)) for kind, count in found if kind]
    gpus = sum(count for _, count in typed) or max(int(count) for _, count in found)
    unknown = (None, "Unknown", "None")
    if any(name in row and _name(row, name) in unknown for name in ("Start", "End")):
        raise Unusable(f"job {job_id} never started or has not ended")
    if _name(row, "ElapsedRaw") is not None:
        duration = _number(row, "ElapsedRaw")
    elif (elapsed := _ELAPSED.fullmatch(_name(row, "Elapsed") or "")) is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in elapsed.groups())
        duration = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    else:
        duration = _moment(row, "End") - _moment(row, "Start")
    return {
        "job_id": job_id,
        "submit_s": _moment(row, "Submit"),
        "num_gpus": float(gpus),
        "duration_s": duration,
        "gpu_type": typed[0][0] if len(typed) == 1 else None,
        "user": _name(row, "User"),
        "tenant": _name(row, "Account", "Partition"),
        "priority": _number(row, "Priority", default=0.0),
    }


def _kubernetes(item: Mapping[str, Any]) -> dict[str, Any]:
    """A pod, a Kueue Workload or a Volcano Job; GPUs of all replicas, times from its status."""
    kind = item.get("kind", "Pod")
    meta, spec, status = item.get("metadata", {}), item.get("spec", {}), item.get("status", {})
    if kind == "Workload":
        groups = [
            (entry.get("count", 1), entry.get("template", {}).get("spec", {})) for entry in spec.get("podSets", [])
        ]
        tenant = spec.get("queueName")
    elif kind == "Job" and "tasks" in spec:
        groups = [(entry.get("replicas", 1), entry.get("template", {}).get("spec", {})) for entry in spec["tasks"]]
        tenant = spec.get("queue")
    elif kind == "Job" and "template" in spec:
        groups, tenant = [(spec.get("parallelism") or 1, spec["template"].get("spec", {}))], meta.get("namespace")
    else:
        groups, tenant = [(1, spec)], meta.get("namespace")
    gpus, device = 0.0, None
    for replicas, pod in groups:
        for container in pod.get("containers", []):
            resources = container.get("resources", {})
            for name, count in {**resources.get("requests", {}), **resources.get("limits", {})}.items():
                if name.endswith("/gpu"):
                    gpus += int(replicas) * float(count)
        device = device or pod.get("nodeSelector", {}).get("nvidia.com/gpu.product")
    if not gpus:
        raise Unusable(f"{kind} {meta.get('name')} asks for no GPU")
    moments = {"submit": meta.get("creationTimestamp"), "start": status.get("startTime")}
    ends = [
        state["terminated"].get("finishedAt")
        for entry in status.get("containerStatuses", [])
        if "terminated" in (state := entry.get("state", {}))
    ]
    for condition in status.get("conditions", []) if isinstance(status.get("conditions"), list) else []:
        if condition.get("type") in ("Admitted", "QuotaReserved"):
            moments["start"] = moments["start"] or condition.get("lastTransitionTime")
        if condition.get("type") in ("Finished", "Complete"):
            ends.append(condition.get("lastTransitionTime"))
        if condition.get("status") == "Running":  # Volcano's conditions say what the job became, with no type
            moments["start"] = moments["start"] or condition.get("lastTransitionTime")
        if condition.get("status") == "Completed":
            ends.append(condition.get("lastTransitionTime"))
    if status.get("state", {}).get("phase") == "Completed" if isinstance(status.get("state"), dict) else False:
        ends.append(status["state"].get("lastTransitionTime"))
    ends = [end for end in (*ends, status.get("completionTime")) if end]
    annotated = meta.get("annotations", {}).get("traincast/duration-s")
    if annotated is not None:
        duration = float(annotated)
    elif ends and moments["start"]:
        last = max(_moment({"end": end}, "end") for end in ends)
        duration = last - _moment(moments, "start")
    else:
        raise Unusable(f"{kind} {meta.get('name')} has no start and end; finished objects are needed")
    return {
        "job_id": f"{meta.get('namespace', 'default')}/{meta.get('name')}",
        "submit_s": _moment(moments, "submit"),
        "num_gpus": gpus,
        "duration_s": duration,
        "gpu_type": device,
        "tenant": tenant,
        "user": meta.get("labels", {}).get("user"),
        "priority": float(spec.get("priority", 0) or 0),
    }


def _tidy(row: Row) -> dict[str, Any]:
    """Our own table, also the tidy traces of the project."""
    return {
        "job_id": _name(row, "job_id"),
        "submit_s": _number(row, "submit_s", "submit_time_s"),
        "num_gpus": _number(row, "num_gpus", "n_gpus"),
        "duration_s": _number(row, "duration_s", default=math.nan),
        "workload": _name(row, "workload"),
        "workload_label": _name(row, "model"),
        "steps": _number(row, "steps", "iterations", default=math.nan),
        "gpu_type": _name(row, "gpu_type"),
        "user": _name(row, "user"),
        "tenant": _name(row, "tenant", "vc"),
        "deadline_s": _number(row, "deadline_s", default=math.nan),
        "priority": _number(row, "priority", default=0.0),
        "min_gpus": _number(row, "min_gpus", default=math.nan),
        "max_gpus": _number(row, "max_gpus", default=math.nan),
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
    "sacct": Format(_bar_rows, _sacct),
    "kubernetes": Format(_items, _kubernetes),
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
