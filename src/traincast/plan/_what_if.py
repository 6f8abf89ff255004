"""One change to a plan, its cluster or its job, and what it does to time, memory and money."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from traincast import catalog
from traincast.errors import IllegalPlan, InvalidInput, did_you_mean
from traincast.files import decode
from traincast.forecast import Engine, pose_job
from traincast.plan._nouns import Plan
from traincast.spec import JOB_FIELDS, Cluster, Forecast, Parallelism, Question, WorkloadOptions

_CLUSTER_KEYS = ("device", "node", "nodes", "devices_per_node", "intra", "inter", "usd_per_hour")
_OF_NODE = ("devices_per_node", "intra", "inter", "usd_per_hour")
_PLAN_KEYS = tuple(item.name for item in dataclasses.fields(Parallelism))
_WORKLOAD_KEYS = tuple(item.name for item in dataclasses.fields(WorkloadOptions))
_JOB_KEYS = tuple(item.name for item in JOB_FIELDS)
_SHORT = {
    "dp": "data", "tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert", "vp": "virtual_stages",
    "machine": "node", "price": "usd_per_hour",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a change does: ratios above 1 are more than before."""

    change: str
    after: Forecast
    step_ratio: float
    job_ratio: float
    memory_ratio: float
    usd_ratio: float | None
    energy_ratio: float | None


def what_if(base: Plan, request: Question, change: str, *, engine: Engine | None = None) -> Delta:
    """`change` is KEY=VALUE: a field of the plan, of the workload, of the job, or of the cluster.

    The samples of one step stay the same: replicas and passes make up for what the change takes or gives. `engine`: the one that
    answered for the base, and so with its costs.
    """
    key, value = _read(change)
    request, cluster, plan, batch = _apply(base, request, key, value)
    job = pose_job(request, plan, cluster=cluster, batch=batch)
    return compare(base.forecast, (engine or Engine()).forecast(job, cluster, plan), change=change)


def compare(before: Forecast, after: Forecast, *, change: str) -> Delta:
    return Delta(
        change=change,
        after=after,
        step_ratio=after.step.seconds / before.step.seconds,
        job_ratio=after.job.total.seconds / before.job.total.seconds,
        memory_ratio=after.memory.needed_bytes / before.memory.needed_bytes,
        usd_ratio=after.usd.value / before.usd.value if after.usd and before.usd and before.usd.value else None,
        energy_ratio=after.energy_joules / before.energy_joules
        if after.energy_joules and before.energy_joules
        else None,
    )


def _read(change: str) -> tuple[str, Any]:
    name, found, text = change.partition("=")
    key = _SHORT.get(name.strip().replace("-", "_"), name.strip().replace("-", "_"))
    known = (*_PLAN_KEYS, *_WORKLOAD_KEYS, *_CLUSTER_KEYS, *_JOB_KEYS)
    if not found or not text.strip():
        raise InvalidInput(f"{change!r} is not a change; write KEY=VALUE, for instance tensor=4 or nodes=16")
    if key not in known:
        raise InvalidInput(
            f"what-if has the unknown key {name!r}; allowed: {', '.join(known)}{did_you_mean(key, known)}"
        )
    return key, _value(text.strip())


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _change_job(request: Question, key: str, value: Any) -> Question:
    kept = {name: amount for name, amount in request.job.items() if name not in _EXCLUSIVE or key not in _EXCLUSIVE}
    return dataclasses.replace(request, job={**kept, key: value})


def _apply(base: Plan, request: Question, key: str, value: Any) -> tuple[Question, Cluster, Parallelism, int]:
    cluster, plan, batch = base.cluster, base.parallelism, base.batch
    table = {item.name: getattr(plan, item.name) for item in dataclasses.fields(plan)}
    global_batch = base.forecast.global_batch
    if key == "batch":
        if not isinstance(value, int) or value < 1:
            raise InvalidInput(f"batch = {value!r}; it must be a whole number of at least 1")
        batch = value
    elif key in _WORKLOAD_KEYS:
        request = dataclasses.replace(
            request, workload=decode(WorkloadOptions, {**request.workload.given(), key: value})
        )
    elif key in _PLAN_KEYS:
        table[key] = value
    elif key in _CLUSTER_KEYS:
        cluster = _change_cluster(cluster, key, value)
    else:
        request = _change_job(request, key, value)
    if key != "data":
        inner = math.prod(degree for degree in (table["tensor"], table["pipeline"], table["context"]))
        if not isinstance(inner, int) or inner < 1 or cluster.num_devices % inner:
            raise IllegalPlan(
                f"{key}={value}: tensor x pipeline x context = {inner} must divide the {cluster.num_devices} devices"
            )
        table["data"] = cluster.num_devices // inner
    if key != "micro_batches":
        if key != "batch" and global_batch % table["data"] == 0:
            batch = math.gcd(batch, global_batch // table["data"])
        if global_batch % (table["data"] * batch):
            raise IllegalPlan(
                f"{key}={value}: {table['data']} replicas with a batch of {batch} cannot share {global_batch} samples "
                "of a step evenly"
            )
        table["micro_batches"] = global_batch // (table["data"] * batch)
    if table["pipeline"] == 1:
        table["virtual_stages"] = 1
    return request, cluster, decode(Parallelism, table, where="plan"), batch


_EXCLUSIVE = ("steps", "samples", "epochs")


def _change_cluster(cluster: Cluster, key: str, value: Any) -> Cluster:
    """The cluster with one thing changed; another device or machine comes with its own links and price."""
    if len(cluster.groups) != 1:
        raise InvalidInput(f"{key}: a cluster of mixed nodes has no single {key}; change its groups in a file")
    group = cluster.groups[0]
    if key == "nodes":
        if not isinstance(value, int) or value < 1:
            raise InvalidInput(f"nodes = {value!r}; it must be a whole number of at least 1")
        kind = cluster.name.partition(" x ")[2] or cluster.name
        return dataclasses.replace(
            cluster, name=f"{value} x {kind}", groups=(dataclasses.replace(group, num_nodes=value),)
        )
    table: dict[str, Any] = {
        "device": group.device.name, "num_nodes": group.num_nodes, "devices_per_node": group.devices_per_node,
        "intra": group.intra, "inter": group.inter, "usd_per_hour": group.usd_per_hour,
    }  # fmt: skip
    if key in ("device", "node"):
        table = {"num_nodes": group.num_nodes, "devices_per_node": group.devices_per_node, key: value}
    else:
        table[key] = value
        if key == "devices_per_node" and group.usd_per_hour is not None and isinstance(value, int):
            table["usd_per_hour"] = group.usd_per_hour * value / group.devices_per_node
    return catalog.cluster_from(table)
