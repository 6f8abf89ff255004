"""A Kubernetes object (pod, batch job or Kueue workload) to the fields of a request."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from traincast.schedule._cells import NoGpu, Unusable, read_moment

_Groups = Sequence[tuple[int, Mapping[str, Any]]]


def read_object(item: Mapping[str, Any]) -> dict[str, Any]:
    """GPUs of all replicas, times from its status; an object that has not ended runs, or waits if it has not started."""
    kind = item.get("kind", "Pod")
    meta, spec, status = item.get("metadata", {}), item.get("spec", {}), item.get("status", {})
    named = f"{kind} {meta.get('name')}"
    groups, tenant = _find_pods(kind, meta, spec)
    gpus, device = _count_gpus(groups)
    if not gpus:
        raise NoGpu(f"{named} asks for no GPU")
    start_s, duration_s, state = _read_life(named, meta, status)
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
        "job_name": meta.get("name"),
        "comment": " ".join(str(part.get("image")) for _, pod in groups for part in pod.get("containers", [])),
        "priority": float(spec.get("priority", 0) or 0),
        "state": state,
    }


def _find_pods(kind: str, meta: Mapping[str, Any], spec: Mapping[str, Any]) -> tuple[_Groups, str | None]:
    """How many pods of which template, and the queue or namespace that pays."""
    if kind == "Workload":
        pods = [(entry.get("count", 1), entry.get("template", {}).get("spec", {})) for entry in spec.get("podSets", [])]
        return pods, spec.get("queueName")
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


def _read_life(named: str, meta: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[float, float, str | None]:
    """When it started, how long it ran and how it ended, or that it runs or waits."""
    starts, ends, state = _find_moments(status)
    annotated = meta.get("annotations", {}).get("traincast/duration-s")
    start_s = min((_seconds(start) for start in starts), default=math.nan)
    if annotated is not None:
        return start_s, float(annotated), state
    if not ends and state not in ("Succeeded", "Failed", "Complete"):
        waits = math.isnan(start_s) or state == "Pending"
        return (math.nan, math.nan, "PENDING") if waits else (start_s, math.nan, "RUNNING")
    if not ends or math.isnan(start_s):
        raise Unusable(f"{named} ended as {state or 'finished'} and has no start and end: it never ran")
    return start_s, max(_seconds(end) for end in ends) - start_s, state


def _seconds(stamp: Any) -> float:
    return read_moment({"time": stamp}, "time")


def _find_moments(status: Mapping[str, Any]) -> tuple[list[Any], list[Any], str | None]:
    """Stamps of starts, stamps of ends, and the last phase that is named."""
    starts, ends, phase = [status.get("startTime")], [status.get("completionTime")], status.get("phase")
    for entry in status.get("containerStatuses", []):
        ends.append(entry.get("state", {}).get("terminated", {}).get("finishedAt"))
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else []:
        name, at = condition.get("type"), condition.get("lastTransitionTime")
        if condition.get("status") in ("True", True, None):
            starts.append(at if name in ("Admitted", "QuotaReserved") and not status.get("startTime") else None)
            ends.append(at if name in ("Finished", "Complete", "Failed") else None)
            phase = name if name in ("Complete", "Failed") else phase
    return [start for start in starts if start], [end for end in ends if end], phase
