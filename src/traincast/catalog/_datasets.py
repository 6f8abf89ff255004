"""Names of well-known data sets to their sizes."""

import functools

from traincast.catalog._names import load_facts, make_entry
from traincast.noun import noun


@noun
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
    counts = ("num_train_samples", "num_eval_samples", "num_tokens", "size_bytes")
    return make_entry(Dataset, name, facts, **{key: int(facts[key]) for key in counts if key in facts})
