"""Manifests of Kueue (YAML or JSON) to queues, quotas and who preempts whom."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, MissingExtra
from traincast.noun import noun

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(k|M)?")


@noun
class ClusterQueue:
    """GPUs that a queue owns, may borrow from its cohort and may lend to it; infinity is no limit."""

    name: str
    cohort: str | None = None
    nominal: float = 0.0
    borrowing: float = math.inf
    lending: float = math.inf
    strict: bool = False
    reclaims: str = "Never"
    """Whether it takes back what it owns from borrowers: Never, LowerPriority or Any."""
    within: str = "Never"
    """Whom of its own queue a job preempts: Never, LowerPriority or LowerOrNewerEqualPriority."""


@noun
class Queues:
    cluster_queues: Mapping[str, ClusterQueue] = field(default_factory=dict)
    local: Mapping[str, str] = field(default_factory=dict)
    """Local queue, with and without its namespace, to cluster queue."""
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Found:
    """What objects became, while they are read."""

    cluster_queues: dict[str, ClusterQueue] = field(default_factory=dict)
    local: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


_SILENT = ("ResourceFlavor", "Namespace", "WorkloadPriorityClass", "PriorityClass")
"""Objects whose meaning is in the jobs already."""


def read_queues(path: Path) -> Queues:
    """Objects as `kubectl get clusterqueues,localqueues -o yaml` prints them, or manifests."""
    found = _Found()
    try:
        for item in _objects(path):
            _read_item(item, path, found)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path}: a value is not of the kind that Kubernetes has there: {error}") from error
    if not found.cluster_queues:
        raise InvalidInput(f"{path} has no ClusterQueue")
    return Queues(
        cluster_queues=found.cluster_queues,
        local=found.local,
        notes=tuple(dict.fromkeys(found.notes)),
    )


def _read_item(item: Mapping[str, Any], path: Path, found: _Found) -> None:
    kind, spec, meta = item.get("kind"), item.get("spec") or {}, item.get("metadata") or {}
    name = str(meta.get("name"))
    if kind == "ClusterQueue":
        found.cluster_queues[name] = _read_cluster_queue(name, spec, found.notes)
    elif kind == "LocalQueue":
        space, target = meta.get("namespace", "default"), str(spec.get("clusterQueue", ""))
        found.local[name] = found.local[f"{space}/{name}"] = target
        found.local.setdefault(space, target)
    elif kind not in _SILENT:
        found.notes.append(f"{kind} {name} in {path.name} is not modelled")


def _objects(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    if text.lstrip()[:1] in ("{", "["):
        try:
            documents = [json.loads(text)]
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} is not JSON: {error}") from error
    else:
        try:
            import yaml
        except ImportError as error:
            raise MissingExtra("pyyaml", "schedule", f"reading {path.name}") from error
        try:
            documents = list(yaml.safe_load_all(text))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} is not YAML: {str(error).splitlines()[0]}") from error
    for document in documents:
        entries = document if isinstance(document, list) else (document or {}).get("items", [document])
        yield from (entry for entry in entries if isinstance(entry, dict))


def _quantity(value: Any) -> float:
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        raise InvalidInput(f"{value!r} is not a number of GPUs")
    return float(found[1]) * {None: 1.0, "k": 1e3, "M": 1e6}[found[2]]


def _read_cluster_queue(name: str, spec: Mapping[str, Any], notes: list[str]) -> ClusterQueue:
    nominal, borrowing, lending, flavors = 0.0, 0.0, 0.0, []
    for group in spec.get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            for resource in flavor.get("resources") or []:
                if not str(resource.get("name", "")).endswith("/gpu"):
                    continue
                flavors.append(flavor.get("name"))
                nominal += _quantity(resource.get("nominalQuota", 0))
                borrowing += _quantity(resource["borrowingLimit"]) if "borrowingLimit" in resource else math.inf
                lending += _quantity(resource["lendingLimit"]) if "lendingLimit" in resource else math.inf
    if not flavors:
        raise InvalidInput(f"ClusterQueue {name} has no quota of GPUs (a resource whose name ends in /gpu)")
    if len(flavors) > 1:
        notes.append(f"ClusterQueue {name}: quotas of {len(flavors)} flavors are added up")
    rules = spec.get("preemption") or {}
    if (rules.get("borrowWithinCohort") or {}).get("policy", "Never") != "Never":
        notes.append(f"ClusterQueue {name}: borrowWithinCohort is not modelled")
    for key in ("fairSharing", "admissionChecks", "flavorFungibility"):
        if spec.get(key):
            notes.append(f"ClusterQueue {name}: {key} is not modelled")
    return ClusterQueue(
        name=name,
        cohort=spec.get("cohort") or spec.get("cohortName"),
        nominal=nominal,
        borrowing=borrowing,
        lending=lending,
        strict=spec.get("queueingStrategy") == "StrictFIFO",
        reclaims=rules.get("reclaimWithinCohort", "Never"),
        within=rules.get("withinClusterQueue", "Never"),
    )
