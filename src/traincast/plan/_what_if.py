"""One change to a plan, its cluster or its job, and what it does to time, memory and money."""

import dataclasses
import math
from typing import Any

from traincast.errors import InvalidInput, did_you_mean
from traincast.forecast import Engine, pose_job
from traincast.noun import noun
from traincast.plan._ask import complete_question
from traincast.plan._nouns import Plan
from traincast.resolve import describe_cluster, place, read_amount
from traincast.spec import PLAN_FIELDS, QUESTION_FIELDS, Asked, Forecast, Question, WorkloadOptions

_LENGTHS = ("steps", "samples", "epochs", "tokens")


@noun
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
    """`change` is KEY=VALUE: a field of the plan, of the workload, of the job, or of the cluster, or the name of its option.

    The samples of one step stay the same: replicas and passes make up for what the change takes or gives. `engine`: the one that
    answered for the base, and so with its costs.
    """
    item, value = _read(change)
    cluster = base.cluster
    if item.section == "cluster":
        table = describe_cluster(cluster)
        if item.name in ("device", "node"):
            # Another device or machine comes with its own links and price.
            table = {name: table[name] for name in ("nodes", "devices_per_node")}
        cluster, _ = place(Question(source="", cluster={**table, item.name: value}))
    asked = complete_question(_change(base, request, item, value, num_devices=cluster.num_devices), cluster)
    plan = asked.parallelism
    job = pose_job(asked.question, plan, cluster=cluster)
    return compare(base.forecast, (engine or Engine()).forecast(job, cluster, plan), change=change)


def _change(base: Plan, request: Question, item: Asked, value: Any, *, num_devices: int) -> Question:
    """The plan as a question that names all of it but its replicas and passes, with one field changed."""
    names = {each.name for each in PLAN_FIELDS if hasattr(base.parallelism, each.name)} - {"data", "micro_batches"}
    plan = {name: getattr(base.parallelism, name) for name in names if getattr(base.parallelism, name) is not None}
    options = {**request.workload.given(), "batch": base.batch}
    job = {**request.job, "global_batch": base.forecast.global_batch}
    if item.section == "job" and item.name in _LENGTHS:
        job = {name: amount for name, amount in job.items() if name not in _LENGTHS}
    {"parallelism": plan, "workload": options, "job": job}.get(item.section, {})[item.name] = value
    if item.name == "micro_batches":
        del job["global_batch"]
    if plan.get("pipeline") == 1:
        plan["virtual_stages"] = 1
    degrees = [plan.get(axis, 1) for axis in ("tensor", "pipeline", "context")]
    inner = math.prod(degree for degree in degrees if isinstance(degree, int))
    data = plan.get("data", num_devices // max(inner, 1))
    if item.name != "batch" and isinstance(data, int) and data and base.forecast.global_batch % data == 0:
        options["batch"] = math.gcd(base.batch, base.forecast.global_batch // data)
    return dataclasses.replace(request, workload=WorkloadOptions(**options), parallelism=plan, job=job)


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


def _read(change: str) -> tuple[Asked, Any]:
    name, found, text = change.partition("=")
    key = name.strip().replace("-", "_")
    if not found or not text.strip():
        raise InvalidInput(f"{change!r} is not a change; write KEY=VALUE, for instance tensor=4 or nodes=16")
    known = {item.name: item for item in QUESTION_FIELDS if item.section}
    flag = f"--{name.strip().replace('_', '-')}"
    item = known.get(key) or next((each for each in known.values() if flag in each.flags), None)
    if item is None:
        raise InvalidInput(
            f"what-if has the unknown key {name!r}; allowed: {', '.join(known)}{did_you_mean(key, known)}"
        )
    return item, read_amount(item, _value(text.strip()))


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
