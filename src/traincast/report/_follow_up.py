"""An answer to the one command worth running next."""

import dataclasses
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from traincast.errors import InvalidInput
from traincast.plan import Miss
from traincast.resolve import find_training, write_command
from traincast.spec import PLAN_FIELDS, Cluster, Forecast, Parallelism, Question

MOST_TIMES = 4
"""Times as many devices as were asked for are looked at in a search of all machines."""


def after_forecast(question: Question, answer: Forecast) -> str:
    """What does not fit is fitted; what has no length gets one; anything else is compared with other machines."""
    if not answer.memory.is_safe:
        return _command(question, "fit")
    if answer.job.num_steps <= 1:
        return _command(question, "forecast", *find_training(question).length)
    return search_all(question, answer)


def ask_again(question: Question) -> str:
    """The forecast of a question."""
    return _command(question, "forecast")


def search_all(question: Question, answer: Forecast) -> str:
    """The search over every machine that can be rented, for the same job."""
    kept = dataclasses.replace(question, cluster={}, parallelism={})
    if question.workload.batch is not None and "global_batch" not in question.job:
        kept = dataclasses.replace(kept, job={**kept.job, "global_batch": answer.global_batch})
    if not answer.settings.get("seq") and "global_batch" not in kept.job:
        kept = dataclasses.replace(kept, job={**kept.job, "global_batch": answer.global_batch})
    kept = dataclasses.replace(kept, workload=dataclasses.replace(kept.workload, batch=None))
    return _command(kept, "plan", "--all", "--gpus", f"{answer.num_devices}..{MOST_TIMES * answer.num_devices}")


def after_fit(question: Question, *, largest: int, fits: bool) -> str:
    """The forecast at the largest batch, or a search for a plan that fits."""
    if fits and largest:
        return _command(with_batch(question, largest), "forecast")
    return _command(_unplanned(question), "plan")


def after_plan(question: Question, cluster: Mapping[str, Any], plan: Parallelism, batch: int) -> str:
    """The forecast of the best plan, in full."""
    plain = Parallelism()
    names = {item.name for item in PLAN_FIELDS} & {item.name for item in dataclasses.fields(plan)}
    values = {name: getattr(plan, name) for name in sorted(names) if getattr(plan, name) != getattr(plain, name)}
    named = dataclasses.replace(
        with_batch(question, batch), parallelism={"zero": plan.zero, **values}, cluster=dict(cluster)
    )
    return _command(named, "forecast", "--explain")


def after_no_plan(question: Question, nearest: Miss | None, limits: Iterable[str]) -> str:
    """What makes the job fit where its machine is named and memory binds; where another limit does, the search of every machine.
    Empty where every machine was searched. `limits`: as words."""
    if not {"device", "node"} & question.cluster.keys() or nearest is None:
        return ""
    if nearest.limit == "memory":
        return _command(_unplanned(question), "fit")
    count = nearest.candidate.cluster.num_devices
    open_question = dataclasses.replace(_unplanned(question), cluster={})
    return _command(open_question, "plan", "--all", "--gpus", f"{count}..{8 * count}", *limits)


def place_of(cluster: Cluster) -> dict[str, Any]:
    """The words for a cluster of equal nodes: its machine where it has a name in the catalogue, else its devices."""
    from traincast.catalog import load_facts

    group = cluster.groups[0]
    machine = cluster.name.partition(" x ")[2]
    if load_facts("node").get(machine) is not None:
        return {"node": machine, "nodes": group.num_nodes}
    return {"device": group.device.name, "nodes": group.num_nodes, "devices_per_node": group.devices_per_node}


def after_advice(question: Question, answer: Forecast) -> str:
    """The search for a better plan, at the same number of samples."""
    kept = _unplanned(question)
    return _command(dataclasses.replace(kept, job={**kept.job, "global_batch": answer.global_batch}), "plan")


def with_batch(question: Question, batch: int) -> Question:
    return dataclasses.replace(question, workload=dataclasses.replace(question.workload, batch=batch))


def _unplanned(question: Question) -> Question:
    job = dict(question.job)
    batch = question.workload.batch
    if batch is not None:
        factors = [question.parallelism.get(name, 1) for name in ("data", "micro_batches")]
        for factor in factors:
            batch *= factor if isinstance(factor, int) else 1
        job.setdefault("global_batch", batch)
    options = dataclasses.replace(question.workload, batch=None)
    return dataclasses.replace(question, workload=options, parallelism={}, job=job)


def _command(question: Question, command: str, *more: str) -> str:
    """As it is typed; empty where the question cannot be (groups of nodes of a job file)."""
    try:
        words = write_command(_short(question), command=command)
    except InvalidInput:
        return ""
    return shlex.join([*_join_gpus(words), *more])


def _short(question: Question) -> Question:
    """Without what a job file says again, and with whole numbers as such."""
    job: dict[str, Any] = {
        name: _say_count(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in question.job.items()
        if value is not None
    }
    stack = job.get("stack")
    if stack is not None and not isinstance(stack, str):
        job["stack"] = stack.spelling
    return dataclasses.replace(question, job=job)


def _say_count(amount: float) -> Any:
    """15B instead of 15000000000, where that is exact."""
    for letter, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if amount >= size and (amount / size * 1000).is_integer():
            return f"{amount / size:g}{letter}"
    return int(amount)


def _join_gpus(words: Iterable[str]) -> list[str]:
    """--device h100 --nodes 1 --devices-per-node 8 as --gpus 8xh100."""
    listed = list(words)
    found = {flag: listed[place + 1] for place, flag in enumerate(listed[:-1]) if flag in _HARDWARE}
    if "--device" not in found or "--devices-per-node" not in found:
        return listed
    nodes = found.get("--nodes", "1")
    gpus = f"{found['--devices-per-node']}x{found['--device']}"
    made = [word for place, word in enumerate(listed) if not (word in found or (place and listed[place - 1] in found))]
    return [*made, "--gpus", gpus if nodes == "1" else f"{nodes}x{gpus}"]


_HARDWARE = ("--device", "--nodes", "--devices-per-node")
