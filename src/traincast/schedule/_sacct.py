"""A row of Slurm's `sacct -P` to the fields of a request."""

import math
import re
import shlex
from typing import Any

from traincast.schedule._cells import Row, Unusable, read_moment, read_moment_if_any, read_name, read_number

_GRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_OLD_GRES = re.compile(r"(?:^|,)(?:gres:)?gpu(?::([^:=,()]*[^:=,()\d][^:=,()]*))?[:=](\d+)")
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_TRES_CPU = re.compile(r"(?:^|,)cpu=(\d+)")
_TRES_MEMORY = re.compile(r"(?:^|,)mem=([\d.]+)([KMGTP]?)")
_REQ_MEM = re.compile(r"([\d.]+)([KMGTP]?)([nc]?)", re.IGNORECASE)
_MEMORY = {"": 2.0**20, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
_SUBMIT = {
    "-d": "dependency", "--dependency": "dependency", "-a": "array", "--array": "array", "--exclusive": "exclusive",
    "--reservation": "reservation", "-C": "constraint", "--constraint": "constraint",
}  # fmt: skip
_UNKNOWN = (None, "Unknown", "None")


def read_sacct(row: Row) -> dict[str, Any] | None:
    job_id = read_name(row, "JobID", "JobIDRaw")
    if job_id is None:
        raise Unusable("no JobID")
    if "." in job_id:
        return None  # a step of the job above it
    gpus, device = _read_gpus(row)
    if any(name in row and read_name(row, name) in _UNKNOWN for name in ("Start", "End")):
        raise Unusable(f"job {job_id} never started or has not ended")
    submit_s, eligible_s = read_moment(row, "Submit"), read_moment_if_any(row, "Eligible")
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
        "duration_s": _read_duration(row),
        "limit_s": read_limit(row),
        "started_s": read_moment_if_any(row, "Start"),
        "gpu_type": device,
        "user": read_name(row, "User"),
        "tenant": read_name(row, "Account", "Partition"),
        "partition": read_name(row, "Partition"),
        "qos": read_name(row, "QOS"),
        "num_nodes": read_number(row, "NNodes", "AllocNodes", default=math.nan),
        "num_cpus": _read_cpus(row),
        "memory_bytes": _read_memory(row),
        "reservation": read_name(row, "Reservation") or asked["reservation"],
        "constraint": read_name(row, "Constraints") or asked["constraint"],
        "priority": read_number(row, "Priority", default=0.0),
        "state": (read_name(row, "State") or "").split(" ")[0] or None,
    }


def _read_gpus(row: Row) -> tuple[int, str | None]:
    text = read_name(row, "AllocTRES") or read_name(row, "ReqTRES") or ""
    old = read_name(row, "AllocGRES") or read_name(row, "ReqGRES") or ""
    found = _GRES.findall(text) or _OLD_GRES.findall(old)
    if not found:
        raise Unusable(f"no gres/gpu in {text or old!r}")
    # A generic entry and a typed one name the same GPUs.
    typed = [(kind, int(count)) for kind, count in found if kind]
    gpus = sum(count for _, count in typed) or max(int(count) for _, count in found)
    return gpus, typed[0][0] if len(typed) == 1 else None


def _read_cpus(row: Row) -> float:
    found = _TRES_CPU.search(read_name(row, "AllocTRES") or read_name(row, "ReqTRES") or "")
    if found is not None:
        return float(found[1])
    return read_number(row, "AllocCPUS", "NCPUS", "ReqCPUS", default=math.nan)


def _read_memory(row: Row) -> float:
    """Bytes in all; `ReqMem` of older versions is per node (n) or per CPU (c)."""
    found = _TRES_MEMORY.search(read_name(row, "AllocTRES") or read_name(row, "ReqTRES") or "")
    if found is not None:
        return float(found[1]) * _MEMORY[found[2].upper()]
    old = _REQ_MEM.fullmatch(read_name(row, "ReqMem") or "")
    if old is None:
        return math.nan
    of = {"": 1.0, "n": read_number(row, "NNodes", "AllocNodes", default=1.0), "c": _read_cpus(row)}[old[3].lower()]
    return float(old[1]) * _MEMORY[old[2].upper()] * of


def read_submit_line(text: str) -> dict[str, Any]:
    """What only the command says: dependencies, the throttle of an array, whole nodes, a reservation, a constraint."""
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
        "array_limit": float(throttle[2]) if throttle[1] and throttle[2].isdigit() else math.nan,
        "exclusive": 1.0 if "exclusive" in found and found["exclusive"] in ("", "exclusive") else 0.0,
        "reservation": found.get("reservation") or None,
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
    if raw is not None and raw.replace(".", "", 1).isdigit():
        return float(raw) * 60
    return parse_elapsed(read_name(row, "Timelimit") or "")
