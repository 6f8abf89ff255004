"""A model to the devices that can train it, whole or by adapters, and to what a device must hold of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from traincast.catalog import device, is_current, load_facts
from traincast.errors import TraincastError
from traincast.forecast import answer
from traincast.noun import noun
from traincast.plan._ask import decide
from traincast.resolve import find_training
from traincast.spec import Forecast, Question
from traincast.units import MEGA

METHODS = {"full": "finetuning", "LoRA": "lora", "QLoRA": "qlora"}
"""How a model may be trained, to the regime that says so."""
COUNTS = (1, 2, 4, 8)
"""Devices of one node that are tried, the fewest that fit first."""
LEAST_BYTES = 11e9
HALF = "bf16"
GPU_VENDORS = ("NVIDIA", "AMD")
"""Other accelerators are not rented for fine-tuning with PyTorch."""
ROWS: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("full, AdamW", "fp32", {"regime": "finetuning"}, {}),
    ("full, AdamW", "bf16", {"regime": "finetuning"}, {}),
    ("full, AdamW", "bf16-pure", {"regime": "finetuning"}, {}),
    ("full, 8-bit Adam", "bf16", {"regime": "finetuning"}, {"optimizer": "adamw-8bit"}),
    ("LoRA", "bf16", {"regime": "lora"}, {}),
    ("QLoRA (4-bit weights)", "bf16", {"regime": "qlora"}, {}),
    ("inference", "bf16", {}, {"mode": "inference"}),
)
"""(method, number format, fields of the job, fields of the model) of the memory table."""


@noun
class Way:
    """One method on one kind of device."""

    device: str
    method: str
    count: int | None
    """Devices of one node that it takes at least; None: more than a node has."""
    fit_probability: float = 0.0
    usd_per_million: float | None = None
    """Of tokens, or of samples where a sample has no tokens; None: no price is known."""


@noun
class Held:
    """What one device holds under one method, with one sample in a pass."""

    method: str
    precision: str
    needed_bytes: float
    by_role: dict[str, float]


def usual_devices() -> tuple[str, ...]:
    """Of every size of memory the cheapest device that can be rented today, and the fastest."""
    rates: dict[str, float] = {}
    for entry in load_facts("node").entries.values():
        if "usd_per_hour" in entry and is_current(entry["price_date"]):
            usd = entry["usd_per_hour"] / entry["devices_per_node"]
            rates[entry["device"]] = min(usd, rates.get(entry["device"], usd))
    sizes: dict[float, list[str]] = {}
    for name in rates:
        found = device(name)
        if (
            HALF in found.matrix_flop_per_s
            and found.memory_bytes >= LEAST_BYTES
            and load_facts("device").entries[name]["vendor"] in GPU_VENDORS
        ):
            sizes.setdefault(round(found.memory_bytes / 8e9), []).append(name)
    chosen = {
        name
        for names in sizes.values()
        for name in (
            min(names, key=lambda one: rates[one]),
            max(names, key=lambda one: device(one).matrix_flop_per_s[HALF]),
        )
    }
    return tuple(sorted(chosen, key=lambda name: (device(name).memory_bytes, name)))


def list_ways(
    question: Question, devices: Sequence[str], *, watch: Callable[[int, int, str], None] | None = None
) -> tuple[Way, ...]:
    """Every method on every device."""
    cells = [(name, method) for name in devices for method in METHODS]
    found = []
    for number, (name, method) in enumerate(cells):
        found.append(_find_way(question, name, method))
        if watch is not None:
            watch(number + 1, len(cells), "")
    return tuple(found)


def _find_way(question: Question, name: str, method: str) -> Way:
    for count in COUNTS:
        place: dict[str, Any] = {"device": device(name).name, "nodes": 1, "devices_per_node": count}
        plan = {} if count == 1 else {"zero": 3}
        asked = replace(question, cluster=place, parallelism=plan, job={**question.job, "regime": METHODS[method]})
        found = _try(asked)
        if found is not None and found.memory.fits:
            return Way(
                device=place["device"], method=method, count=count, fit_probability=found.memory.fit_probability,
                usd_per_million=_price(found),
            )  # fmt: skip
    return Way(device=device(name).name, method=method, count=None)


def _try(question: Question) -> Forecast | None:
    try:
        return answer(decide(question))
    except TraincastError:
        # Not every model takes adapters, and not every device the number format.
        return None


def _price(found: Forecast) -> float | None:
    rate = found.origin.resolved.cluster.usd_per_hour if found.origin is not None else None
    if rate is None and found.usd is not None and found.job.total.seconds:
        rate = found.usd.value / found.job.total.seconds * 3600
    each = found.settings.get("seq") or 1
    return None if rate is None else rate / 3600 / (found.samples_per_s * each) * MEGA


def list_held(question: Question, *, large: str, seq: int | None = None) -> Iterator[Held]:
    """The memory table, with layers run again as is usual in fine-tuning. `large`: a device that holds everything. `seq`: tokens
    of a sample."""
    for method, precision, job, options in ROWS:
        again = (
            {} if "mode" in options else {"recompute": find_training(replace(question, job=job)).recompute or "none"}
        )
        asked = replace(
            question, cluster={"device": large, "nodes": 1, "devices_per_node": 1}, job={**question.job, **job},
            workload=replace(question.workload, batch=1, precision=precision, seq=seq, **options),
            parallelism={"data": 1, "micro_batches": 1, **again},
        )  # fmt: skip
        found = _try(asked)
        if found is not None:
            memory = found.memory
            # The large device would leave larger holes than the one that the table is read for.
            needed = memory.needed_bytes - memory.outside_parts.get("holes between blocks", 0.0)
            yield Held(method=method, precision=precision, needed_bytes=needed, by_role=dict(memory.by_role))
