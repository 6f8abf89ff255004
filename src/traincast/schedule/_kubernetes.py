"""A finished Kubernetes object (pod, batch job, Kueue workload or Volcano job) to the fields of a request."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from traincast.schedule._cells import Unusable, read_moment

ENDED = ("Completed", "Failed", "Aborted", "Terminated")
"""Phases of a Volcano job that will not run again; it held its GPUs until then, whatever became of it."""
_GO_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s)?")
_Groups = Sequence[tuple[int, Mapping[str, Any]]]


def read_object(item: Mapping[str, Any]) -> dict[str, Any]:
    """GPUs of all replicas, times from its status."""
    kind = item.get("kind", "Pod")
    meta, spec, status = item.get("metadata", {}), item.get("spec", {}), item.get("status", {})
    named = f"{kind} {meta.get('name')}"
    groups, tenant = _find_pods(kind, meta, spec)
    gpus, device = _count_gpus(groups)
    if not gpus:
        raise Unusable(f"{named} asks for no GPU")
    start_s, duration_s, state = _read_life(named, kind, meta, status)
    limits = [spec.get("activeDeadlineSeconds"), spec.get("maximumExecutionTimeSeconds")]
    limits += [pod.get("activeDeadlineSeconds") for _, pod in groups]
    known = [float(limit) for limit in limits if limit is not None]
    return {
        "job_id": f"{meta.get('namespace', 'default')}/{meta.get('name')}",
        "submit_s": read_moment(meta, "creationTimestamp"),
        "num_gpus": gpus,
        "duration_s": duration_s,
        "limit_s": min(known, default=math.nan),
        "started_s": start_s,
        "gpu_type": device,
        "tenant": tenant,
        "user": meta.get("labels", {}).get("user"),
        "priority": float(spec.get("priority", 0) or 0),
        "state": state,
    }


def _find_pods(kind: str, meta: Mapping[str, Any], spec: Mapping[str, Any]) -> tuple[_Groups, str | None]:
    """How many pods of which template, and the queue or namespace that pays."""
    if kind == "Workload":
        sets = spec.get("podSets", [])
        return [(entry.get("count", 1), entry.get("template", {}).get("spec", {})) for entry in sets], spec.get(
            "queueName"
        )
    if kind == "Job" and "tasks" in spec:
        tasks = spec["tasks"]
        return [(entry.get("replicas", 1), entry.get("template", {}).get("spec", {})) for entry in tasks], spec.get(
            "queue"
        )
    if kind == "Job" and "template" in spec:
        return [(spec.get("parallelism") or 1, spec["template"].get("spec", {}))], meta.get("namespace")
    return [(1, spec)], meta.get("namespace")


def _count_gpus(groups: _Groups) -> tuple[float, str | None]:
    gpus, device = 0.0, None
    for replicas, pod in groups:
        for container in pod.get("containers", []):
            resources = container.get("resources", {})
            for name, count in {**resources.get("requests", {}), **resources.get("limits", {})}.items():
                if name.endswith("/gpu"):
                    gpus += int(replicas) * float(count)
        device = device or pod.get("nodeSelector", {}).get("nvidia.com/gpu.product")
    return gpus, device


def _read_life(
    named: str, kind: str, meta: Mapping[str, Any], status: Mapping[str, Any]
) -> tuple[float, float, str | None]:
    """When it started, how long it ran and how it ended."""
    starts, ends, state = _find_moments(status)
    annotated = meta.get("annotations", {}).get("traincast/duration-s")
    start_s = min((_seconds(start) for start in starts), default=math.nan)
    if annotated is not None:
        return start_s, float(annotated), state
    if not ends:
        phase = state or "unknown"
        raise Unusable(f"{named} has no start and end; finished objects are needed (its phase is {phase})")
    end_s = max(_seconds(end) for end in ends)
    if math.isnan(start_s):
        ran_s = _parse_go_duration(status.get("runningDuration"))
        if math.isnan(ran_s):
            raise Unusable(f"{named} ended as {state or 'finished'} and has no start: it never ran")
        start_s = end_s - ran_s
    return start_s, end_s - start_s, state


def _seconds(stamp: Any) -> float:
    return read_moment({"time": stamp}, "time")


def _find_moments(status: Mapping[str, Any]) -> tuple[list[Any], list[Any], str | None]:
    """Stamps of starts, stamps of ends, and the last phase that is named."""
    starts = [status.get("startTime")]
    ends = [status.get("completionTime")]
    phase = status.get("phase")
    for entry in status.get("containerStatuses", []):
        ends.append(entry.get("state", {}).get("terminated", {}).get("finishedAt"))
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else []:
        name, holds, at = condition.get("type"), condition.get("status"), condition.get("lastTransitionTime")
        if name is None:  # Volcano's conditions say what the job became, with no type
            starts.append(at if holds == "Running" else None)
            ends.append(at if holds in ENDED else None)
        elif holds in ("True", True, None):
            starts.append(at if name in ("Admitted", "QuotaReserved") and not status.get("startTime") else None)
            ends.append(at if name in ("Finished", "Complete", "Failed") else None)
            phase = name if name in ("Complete", "Failed") else phase
    whole = status.get("state")
    if isinstance(whole, dict):
        phase = whole.get("phase") or phase
        ends.append(whole.get("lastTransitionTime") if phase in ENDED else None)
        if phase not in ENDED:
            ends = []
    return [start for start in starts if start], [end for end in ends if end], phase


def _parse_go_duration(text: Any) -> float:
    found = _GO_DURATION.fullmatch(str(text)) if text else None
    if found is None:
        return math.nan
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds
