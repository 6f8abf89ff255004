"""A job that does not fit to what would make it fit, and what each way costs."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from traincast.errors import TraincastError
from traincast.forecast import read_hardware
from traincast.spec import FIT_CONFIDENCE, Forecast, Job, Parallelism, Question
from traincast.units import show_bytes, show_change, show_usd

if TYPE_CHECKING:
    from traincast.forecast import Resolved

MOST_CHANGES = 3
"""Changes on the same devices that are named."""
TIMES = (2, 4, 8, 16, 32, 64)
"""As many devices that are tried."""
ADAPTER_RANK = 16


def list_remedies(question: Question, resolved: "Resolved", answer: Forecast) -> list[str]:
    """Changes on the same devices, the cheapest first; where none is enough, more devices, or adapters only."""
    changes = list(_change_plan(question, resolved))
    if changes:
        return changes
    others = [*_train_adapters(question), *_add_devices(question, answer)]
    count, size = answer.num_devices, show_bytes(answer.memory.capacity_bytes)
    devices = f"{count} device{'s' if count > 1 else ''} of {size}"
    return [f"no other plan makes it fit on {devices}", *others]


def _change_plan(question: Question, resolved: "Resolved") -> Iterator[str]:
    from traincast.forecast import complete_question, fill_in, plain_engine, pose_job
    from traincast.plan import suggest_changes

    cluster = resolved.cluster

    def pose(size: int, length: int | None, plan: Parallelism) -> Job:
        return pose_job(whole, plan, cluster=cluster, batch=size, seq=length)

    try:
        whole, _ = complete_question(fill_in(question), cluster, [])
        changes = suggest_changes(
            pose, cluster, resolved.parallelism, batch=resolved.job.graph.batch_size, confidence=FIT_CONFIDENCE,
            engine=plain_engine(),
        )  # fmt: skip
    except TraincastError:
        # Not every source can be posed at another batch.
        return
    for change in [each for each in changes if each.fits][:MOST_CHANGES]:
        yield (
            f"to make it fit: {change.name}; it then needs {show_bytes(change.needed_bytes)}, and a sample takes "
            f"{show_change(change.seconds_ratio)} time"
        )


def _train_adapters(question: Question) -> Iterator[str]:
    from traincast.forecast import answer, resolve

    if question.workload.adapter_rank is not None:
        return
    options = dataclasses.replace(question.workload, adapter_rank=ADAPTER_RANK)
    try:
        found = answer(resolve(dataclasses.replace(question, workload=options)))
    except TraincastError:
        return
    if found.memory.fits:
        needed = show_bytes(found.memory.needed_bytes)
        yield f"to make it fit: train adapters only (--lora-rank {ADAPTER_RANK}); it then needs {needed}"


def _add_devices(question: Question, before: Forecast) -> Iterator[str]:
    """The fewest devices of the same kind, in powers of two, on which the simplest plan fits."""
    from traincast.forecast import answer, resolve

    device = question.cluster.get("device")
    if not isinstance(device, str):
        return
    options = dataclasses.replace(question.workload, batch=1)
    for times in TIMES:
        count = times * before.num_devices
        place = {**question.cluster, **read_hardware(f"{count}x{device}", {})}
        whole = {} if before.global_batch % count else {"global_batch": before.global_batch}
        sharded = dataclasses.replace(
            question, cluster=place, workload=options, parallelism=SHARDED, job={**question.job, **whole}
        )
        try:
            found = answer(resolve(sharded))
        except TraincastError:
            continue
        if found.memory.fits:
            price = (
                "" if found.usd is None or found.job.num_steps <= 1 else f", {show_usd(found.usd.value)} for the job"
            )
            yield f"to make it fit: {count} devices ({found.cluster}), everything sharded and layers run again{price}"
            return


SHARDED = {"zero": 3, "recompute": "full"}
"""The plan of replicas that needs least memory."""
