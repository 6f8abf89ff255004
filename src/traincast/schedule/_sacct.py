"""A row of Slurm's `sacct -P` to the fields of a request."""

import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from traincast.schedule._cells import NoGpu, Row, Unusable, read_moment, read_moment_if_any, read_name, read_number

_GRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_OLD_GRES = re.compile(r"(?:^|,)(?:gres:)?gpu(?::([^:=,()]*[^:=,()\d][^:=,()]*))?[:=](\d+)")
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_TRES_CPU = re.compile(r"(?:^|,)cpu=(\d+)")
_TRES_MEMORY = re.compile(r"(?:^|,)mem=([\d.]+)([KMGTP]?)")
_MEMORY = {"": 2.0**20, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
_SUBMIT = {
    "-d": "dependency", "--dependency": "dependency", "-a": "array", "--array": "array", "--exclusive": "exclusive",
    "-C": "constraint", "--constraint": "constraint",
}  # fmt: skip
_UNKNOWN = (None, "Unknown", "None", "N/A")
OPEN = ("RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "CONFIGURING", "COMPLETING")
"""States of jobs that have not ended."""


def read_sacct(row: Row) -> dict[str, Any] | None:
    job_id = read_name(row, "JobID", "JobIDRaw", "JOBID")
    if job_id is None:
        raise Unusable("no JobID")
    if "." in job_id:
        return None  # a step of the job above it
    gpus, device = _read_gpus(row)
    state = (read_name(row, "State", "STATE") or "").split(" ")[0] or None
    start_s = read_moment_if_any(row, "Start", "START_TIME")
    is_open = state in OPEN
    if not is_open and any(name in row and read_name(row, name) in _UNKNOWN for name in ("Start", "End")):
        raise Unusable(f"job {job_id} never started or has not ended")
    submit_s, eligible_s = read_moment(row, "Submit", "SUBMIT_TIME"), read_moment_if_any(row, "Eligible")
    asked = read_submit_line(read_name(row, "SubmitLine") or "")
    # A dependency, an array slot or a begin time keeps a job out of the queue until it is eligible. Where the log says on
    # which jobs it waited, the simulation finds that moment itself.
    held = eligible_s > submit_s and asked["dependency"] is None
    return {
        **asked,
        "job_id": job_id,
        "submit_s": eligible_s if held else submit_s,
        "held": held,
        "num_gpus": float(gpus),
        "duration_s": math.nan if is_open else _read_duration(row),
        "limit_s": read_limit(row),
        "started_s": start_s if state != "PENDING" else math.nan,
        "job_name": read_name(row, "JobName", "NAME"),
        "submit_line": read_name(row, "SubmitLine", "COMMAND"),
        "comment": read_name(row, "Comment", "COMMENT"),
        "gpu_type": device,
        "user": read_name(row, "User", "USER"),
        "tenant": read_name(row, "Account", "ACCOUNT", "Partition", "PARTITION"),
        "partition": read_name(row, "Partition", "PARTITION"),
        "qos": read_name(row, "QOS"),
        "num_nodes": read_number(row, "NNodes", "AllocNodes", default=math.nan),
        "num_cpus": _read_cpus(row),
        "memory_bytes": _read_memory(row),
        "constraint": read_name(row, "Constraints") or asked["constraint"],
        "priority": read_number(row, "Priority", "PRIORITY", default=0.0),
        "state": state,
    }


def _read_gpus(row: Row) -> tuple[int, str | None]:
    text = read_name(row, "AllocTRES") or read_name(row, "ReqTRES") or read_name(row, "TRES_ALLOC") or ""
    old = read_name(row, "AllocGRES") or read_name(row, "ReqGRES") or read_name(row, "TRES_PER_NODE", "GRES") or ""
    found = _GRES.findall(text) or _OLD_GRES.findall(old.replace("gres/", ""))
    if not found:
        raise NoGpu(f"no gres/gpu in {text or old!r}")
    # A generic entry and a typed one name the same GPUs.
    typed = [(kind, int(count)) for kind, count in found if kind]
    gpus = sum(count for _, count in typed) or max(int(count) for _, count in found)
    per_node = 1 if _GRES.findall(text) or "TRES_PER_NODE" not in row else read_number(row, "NODES", default=1.0)
    return int(gpus * per_node), typed[0][0] if len(typed) == 1 else None


def _read_cpus(row: Row) -> float:
    found = _TRES_CPU.search(read_name(row, "AllocTRES") or read_name(row, "ReqTRES") or "")
    if found is not None:
        return float(found[1])
    return read_number(row, "AllocCPUS", "NCPUS", "ReqCPUS", default=math.nan)


def _read_memory(row: Row) -> float:
    """Bytes in all."""
    found = _TRES_MEMORY.search(read_name(row, "AllocTRES") or read_name(row, "ReqTRES") or "")
    if found is not None:
        return float(found[1]) * _MEMORY[found[2].upper()]
    return math.nan


def read_submit_line(text: str) -> dict[str, Any]:
    """What only the command says: dependencies, the throttle of an array, whole nodes, a constraint."""
    try:
        words = shlex.split(text)
    except ValueError:  # an unclosed quote
        words = text.split()
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        key = _SUBMIT.get(name)
        if key is not None:
            follows = at + 1 < len(words) and not words[at + 1].startswith("-")
            found[key] = value if equals else words[at + 1] if follows and key != "exclusive" else ""
    throttle = found.get("array", "").rpartition("%")
    return {
        "dependency": found.get("dependency") or None,
        "array_limit": float(throttle[2]) if throttle[1] and throttle[2].isdecimal() else math.nan,
        "exclusive": 1.0 if "exclusive" in found and found["exclusive"] in ("", "exclusive") else 0.0,
        "constraint": found.get("constraint") or None,
    }


def _read_duration(row: Row) -> float:
    if read_name(row, "ElapsedRaw") is not None:
        return read_number(row, "ElapsedRaw")
    elapsed = parse_elapsed(read_name(row, "Elapsed") or "")
    if not math.isnan(elapsed):
        return elapsed
    return read_moment(row, "End") - read_moment(row, "Start")


def parse_elapsed(text: str) -> float:
    """Days-hours:minutes:seconds as seconds; not a number for any other text."""
    found = _ELAPSED.fullmatch(text)
    if found is None:
        return math.nan
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def read_limit(row: Row) -> float:
    """The run time that was asked for; not a number for UNLIMITED, Partition_Limit and where nothing is said."""
    raw = read_name(row, "TimelimitRaw")
    if raw is not None and raw.replace(".", "", 1).isdecimal():
        return float(raw) * 60
    return parse_elapsed(read_name(row, "Timelimit", "TIME_LIMIT") or "")


def _number(value: Any) -> Any:
    """A number as Slurm's JSON writes it: bare, or with a word that says whether it is set."""
    if isinstance(value, Mapping):
        return value.get("number") if value.get("set", True) else None
    return value


def _tres(entries: Any) -> str:
    if isinstance(entries, str):
        return entries
    rows = [entry for entry in entries or [] if entry.get("count")]
    return ",".join(f"{'/'.join(filter(None, (row.get('type'), row.get('name'))))}={row['count']}" for row in rows)


def _state(item: Mapping[str, Any]) -> Any:
    state = item.get("state") or item.get("job_state") or []
    state = state.get("current", state) if isinstance(state, Mapping) else state
    return (state[0] if state else None) if isinstance(state, list) else state


def _json_id(item: Mapping[str, Any]) -> str:
    array = item.get("array") or {}
    within = isinstance(array, Mapping)
    task = _number(array.get("task_id") if within else item.get("array_task_id"))
    base = _number(array.get("job_id") if within else item.get("array_job_id"))
    return f"{base}_{task}" if task is not None and base else str(item.get("job_id"))


def read_slurm_json(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """A job of `sacct --json` or `squeue --json`, brought to the columns of `sacct -P`."""
    times, held, comment = item.get("time") or item, item.get("tres") or {}, item.get("comment")
    limit = _number(times.get("limit", item.get("time_limit")))
    return read_sacct(
        {
            "JobID": _json_id(item),
            "JobName": item.get("name"),
            "SubmitLine": item.get("submit_line") or item.get("command"),
            "Comment": comment.get("job") if isinstance(comment, Mapping) else comment,
            "User": item.get("user") or item.get("user_name"),
            "Account": item.get("account"),
            "Partition": item.get("partition"),
            "QOS": item.get("qos"),
            "State": _state(item),
            "Submit": _number(times.get("submission", item.get("submit_time"))),
            "Eligible": _number(times.get("eligible", item.get("eligible_time"))),
            "Start": _number(times.get("start", item.get("start_time"))) or "Unknown",
            "End": _number(times.get("end", item.get("end_time"))) or "Unknown",
            "ElapsedRaw": _number(times.get("elapsed")) if "elapsed" in times else None,
            "TimelimitRaw": None if limit is None else str(limit),
            "AllocTRES": _tres(held.get("allocated") or item.get("tres_alloc_str")),
            "ReqTRES": _tres(held.get("requested") or item.get("tres_req_str")),
            "Priority": _number(item.get("priority")),
        }
    )
