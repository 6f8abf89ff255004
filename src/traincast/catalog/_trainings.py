"""Kinds of training to what people run them with: samples of a step, activation checkpointing, axes, and who does so."""

import functools

from traincast.catalog._names import load_facts, make_entry
from traincast.noun import noun


@noun
class Training:
    """The defaults of one kind of training where a question says nothing."""

    name: str
    title: str
    families: tuple[str, ...]
    """Of models of the catalogue; empty: any."""
    regimes: tuple[str, ...] = ()
    """Regimes that are of this kind; empty: pre-training."""
    least_seq: int = 0
    """Tokens of a sample from which on it is of this kind."""
    seq: int | None = None
    """Tokens of a sample; None: the model's own length."""
    tokens_per_step: int | None = None
    most_tokens_per_step: int | None = None
    """However many devices there are."""
    tokens_per_device: int | None = None
    """Of one pass: more make no kernel faster."""
    samples_per_step: int | None = None
    samples_per_device: int | None = None
    """Of one pass."""
    accumulates: bool = False
    """Whether a device that holds fewer samples accumulates gradients up to that number."""
    recompute: str | None = None
    """Activation checkpointing that its trainers turn on; None: as little as fits."""
    axes: tuple[str, ...]
    """What its trainers offer, in the order in which it is tried."""
    precision: str
    length: tuple[str, ...]
    """How the length of such a job is said on the command line."""
    frameworks: tuple[str, ...]
    sources: tuple[str, ...]


@functools.cache
def trainings() -> tuple[Training, ...]:
    """The most special first."""
    facts = load_facts("training")
    return tuple(
        make_entry(Training, name, entry, sources=tuple(facts.sources[short] for short in entry["by"]))
        for name, entry in facts.entries.items()
    )


def training_of(*, family: str | None, regime: str | None, seq: int | None) -> Training:
    """The kind that a model of this family is trained as; the last one takes all that is like no other."""
    for kind in trainings():
        if kind.regimes and regime not in kind.regimes:
            continue
        is_special = regime in kind.regimes
        if (is_special or family in kind.families) and (seq or 0) >= kind.least_seq:
            return kind
    return trainings()[-1]
