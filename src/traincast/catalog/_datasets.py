"""Names of well-known data sets to their sizes."""

import functools
from dataclasses import dataclass

from traincast.catalog._names import Entry, load_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """How much there is to train on; None where it is not known or has no fixed answer."""

    name: str
    title: str
    kind: str
    num_train_samples: int | None = None
    num_eval_samples: int | None = None
    num_tokens: int | None = None
    size_bytes: int | None = None
    sample_shape: str = ""
    source: str = ""
    confidence: str = ""
    notes: str = ""
    aliases: tuple[str, ...] = ()


def dataset(name: str | Dataset) -> Dataset:
    return name if isinstance(name, Dataset) else _build(load_facts("dataset").find(name))


def datasets() -> tuple[Dataset, ...]:
    return tuple(dataset(name) for name in load_facts("dataset").entries)


def usual_dataset(workload: str) -> Dataset | None:
    """What a workload of the catalogue is usually trained on; None where it is not there, or its data set is not."""
    found = load_facts("model").get(workload)
    name = load_facts("model").entries[found].get("dataset", "") if found is not None else ""
    return dataset(name) if name and load_facts("dataset").get(name) is not None else None


@functools.cache
def _build(name: str) -> Dataset:
    facts = load_facts("dataset").entries[name]
    return Dataset(
        name=name,
        title=facts["title"],
        kind=facts["kind"],
        num_train_samples=_count(facts, "num_train_samples"),
        num_eval_samples=_count(facts, "num_eval_samples"),
        num_tokens=_count(facts, "num_tokens"),
        size_bytes=_count(facts, "size_bytes"),
        sample_shape=facts.get("sample_shape", ""),
        source=facts["source"],
        confidence=facts["confidence"],
        notes=facts.get("notes", ""),
        aliases=tuple(facts.get("aliases", ())),
    )


def _count(facts: Entry, key: str) -> int | None:
    return int(facts[key]) if key in facts else None
