"""What is told beside a forecast: what would make a job fit that does not, and what providers ask for it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from traincast.catalog import stack
from traincast.errors import TraincastError
from traincast.forecast import DeviceMemory, Engine, plain_engine, pose_job
from traincast.forecast import answer as answer_resolved
from traincast.noun import noun
from traincast.plan._ask import decide
from traincast.plan._capacity import Change, suggest_changes
from traincast.plan._prices import JobPrice, price_everywhere, read_prices
from traincast.resolve import Resolved, find_training, read_hardware, reads_text
from traincast.spec import SAFE_CONFIDENCE, Cluster, Forecast, Job, Parallelism, Question

MOST_CHANGES = 1
"""Changes of the plan on the same devices that are named."""
TIMES = (2, 4, 8, 16, 32, 64)
"""As many devices that are tried."""
SMALL_OPTIMIZER = "adamw-8bit"
_CHANGED = ("recompute", "zero", "tensor", "pipeline", "expert", "data", "micro_batches", "sequence_parallel",
            "offload_optimizer", "offload_weights")  # fmt: skip


@noun
class Remedy:
    """One way to make a job fit."""

    change: str
    needed_bytes: float | None = None
    """On one device, then."""
    seconds_ratio: float | None = None
    """Seconds of a sample over those of the job as it was asked."""
    usd: float | None = None
    """What the job costs on other devices."""
    question: Question
    """That asks for it."""


@noun
class Told:
    """What stands beside a forecast."""

    remedies: tuple[Remedy, ...] = ()
    is_elsewhere: bool = False
    """No plan makes it fit on the devices that were asked for."""
    prices: tuple[JobPrice, ...] = ()
    meter: DeviceMemory | None = None
    """What the device's own meter will show; None where the job does not fit."""


def tell(answer: Forecast, *, price_file: Path | None = None) -> Told:
    """Of the forecast of a question that does not fit: QLoRA, LoRA, 8-bit Adam, a smaller or cheaper plan; where none is enough,
    more devices. And the job at every provider that has a price."""
    origin = answer.origin
    if origin is None:
        return Told()
    question, resolved = origin.question, origin.resolved
    prices: tuple[JobPrice, ...] = ()
    if resolved.cluster.price_source != "given":
        listed = None if price_file is None else read_prices(price_file)
        prices = tuple(price_everywhere(answer, resolved.job, resolved.cluster, prices=listed))
    meter = watch_device(answer) if answer.memory.fits else None
    if answer.memory.is_safe:
        return Told(prices=prices, meter=meter)
    remedies = [*train_less(question), *_change_plan(resolved)]
    if not remedies:
        return Told(remedies=tuple(_add_devices(question, answer)), is_elsewhere=True, prices=prices, meter=meter)
    return Told(remedies=tuple(remedies), prices=prices, meter=meter)


def _change_plan(resolved: Resolved) -> Iterator[Remedy]:
    """Smaller micro-batches, activation checkpointing, shards and offloading, the cheapest that fit."""
    batch, plan = resolved.job.graph.batch_size, resolved.parallelism
    changes = change_plan(
        resolved.question, resolved.cluster, plan, batch=batch, confidence=SAFE_CONFIDENCE, engine=plain_engine()
    )
    for change in [one for one in changes if one.fits][:MOST_CHANGES]:
        values = {
            name: getattr(change.plan, name) for name in _CHANGED if getattr(change.plan, name) != getattr(plan, name)
        }
        asked = dataclasses.replace(
            resolved.question, parallelism={**resolved.question.parallelism, **values},
            workload=dataclasses.replace(resolved.question.workload, batch=change.batch),
        )  # fmt: skip
        yield Remedy(
            change=change.name, needed_bytes=change.needed_bytes, seconds_ratio=change.seconds_ratio, question=asked
        )


def watch_device(answer: Forecast) -> DeviceMemory:
    """What the meter of the fullest device will show of a question's forecast."""
    resolved = answer.origin.resolved
    return plain_engine().watch_device(resolved.job, resolved.cluster, resolved.parallelism)


def change_plan(
    question: Question, cluster: Cluster, plan: Parallelism, *, batch: int, confidence: float, engine: Engine
) -> list[Change]:
    """Changes of a plan on the same devices that save memory, those that make the job fit first."""

    def job_at(size: int, length: int | None, other: Parallelism) -> Job:
        return pose_job(question, other, cluster=cluster, batch=size, seq=length)

    try:
        return suggest_changes(job_at, cluster, plan, batch=batch, confidence=confidence, engine=engine)
    except TraincastError:
        # Not every source can be posed at another batch.
        return []


def train_less(question: Question) -> Iterator[Remedy]:
    """What people do whose devices are small, in their order: adapters beside a quantised model, adapters, 8-bit optimizer
    states."""
    options, regime = question.workload, question.job.get("regime")
    if options.adapter_rank is None and regime in (None, "finetuning", "pretraining"):
        yield from _quantise(question)
        yield from _try("LoRA", _ask_also(question, regime="lora"))
    elif regime in ("lora", "qlora"):
        yield from _quantise(question)
    if options.optimizer in (None, "adamw", "adam"):
        small = dataclasses.replace(question, workload=dataclasses.replace(options, optimizer=SMALL_OPTIMIZER))
        yield from _try("8-bit Adam", small)


def _quantise(question: Question) -> Iterator[Remedy]:
    """QLoRA; under the framework that is most used for it, where plain PyTorch does not hold it."""
    found = [] if question.job.get("regime") == "qlora" else [*_try("QLoRA", _ask_also(question, regime="qlora"))]
    if not found and question.job.get("stack") is None and reads_text(question.source, question.workload):
        asked = _ask_also(question, regime="qlora")
        for name in find_training(asked).frameworks[:1]:
            found = [*_try(f"QLoRA with {stack(name).title}", _ask_also(asked, stack=name))]
    yield from found


def _ask_also(question: Question, **job: str) -> Question:
    return dataclasses.replace(question, job={**question.job, **job})


def _try(words: str, question: Question) -> Iterator[Remedy]:
    try:
        found = answer_resolved(decide(question))
    except TraincastError:
        # Not every model takes adapters.
        return
    if found.memory.is_safe:
        yield Remedy(change=words, needed_bytes=found.memory.needed_bytes, question=question)


def _add_devices(question: Question, before: Forecast) -> Iterator[Remedy]:
    """The fewest devices of the same kind, in powers of two, on which the plan that is chosen there fits."""
    device = question.cluster.get("device")
    if not isinstance(device, str):
        return
    options = dataclasses.replace(question.workload, batch=None)
    for times in TIMES:
        count = times * before.num_devices
        place = {**question.cluster, **read_hardware(f"{count}x{device}", {})}
        whole = {} if before.global_batch % count else {"global_batch": before.global_batch}
        asked = dataclasses.replace(
            question, cluster=place, workload=options, parallelism={}, job={**question.job, **whole}
        )
        try:
            resolved = decide(asked)
            found = answer_resolved(resolved)
        except TraincastError:
            continue
        if found.memory.is_safe:
            usd = None if found.usd is None or found.job.num_steps <= 1 else found.usd.value
            yield Remedy(change=f"{count} devices ({found.cluster})", usd=usd, question=asked)
            return
