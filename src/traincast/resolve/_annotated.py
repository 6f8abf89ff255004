"""The plan that a program annotates itself with, taken where the question names none."""

import dataclasses
from typing import Any

from traincast.resolve._source import load_model
from traincast.spec import Cluster, Notes, Parallelism, Question, Stack


def find_annotated(question: Question) -> Parallelism | None:
    """Of a source that may have annotations."""
    plan = load_model(question.source, question.workload, Parallelism(), Stack())[0].plan
    return None if plan is None or plan.num_devices == 1 else plan


def take_annotated(question: Question, plan: Parallelism | None) -> Question:
    """The question with the plan, so that a cluster of no said size has as many devices."""
    return question if plan is None else _with(question, plan, ("data", "tensor", "context"))


def spread_annotated(question: Question, plan: Parallelism | None, cluster: Cluster) -> tuple[Question, Notes]:
    """The plan on the devices that there are: replicas are as many as the other axes leave."""
    if plan is None:
        return question, ()
    inner = plan.tensor * plan.context
    bare = {name: value for name, value in question.parallelism.items() if name not in ("data", "tensor", "context")}
    title = _title(plan)
    if cluster.num_devices % inner:
        told = f"the program is annotated for {title}, which {cluster.num_devices} devices cannot hold; not used"
        return dataclasses.replace(question, parallelism=bare), (told,)
    data = cluster.num_devices // inner
    told = (
        f"the plan is that of the program's own sharding annotations: {title}"
        + ("" if data == plan.data else f", with {data} replicas on {cluster.num_devices} devices")
        + " (--dp, --tp, --zero ... to change)"
    )
    shard = plan.shard if plan.shard is not None and data % plan.shard == 0 else None
    fitted = dataclasses.replace(plan, data=data, shard=shard)
    kept = _with(
        dataclasses.replace(question, parallelism=bare), fitted, ("data", "tensor", "context", "zero", "shard")
    )
    return kept, (told,)


def _with(question: Question, plan: Parallelism, names: tuple[str, ...]) -> Question:
    values: dict[str, Any] = {name: getattr(plan, name) for name in names}
    kept = {name: value for name, value in values.items() if value is not None}
    return dataclasses.replace(question, parallelism={**kept, **question.parallelism})


def _title(plan: Parallelism) -> str:
    degrees = [("--dp", plan.data), ("--tp", plan.tensor), ("--cp", plan.context), ("--zero", plan.zero)]
    return " ".join(f"{option} {degree}" for option, degree in degrees if degree > (0 if option == "--zero" else 1))
