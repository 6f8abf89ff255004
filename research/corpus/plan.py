"""The plan of our own corpus: which steps are measured in which settings."""

import hashlib
from collections.abc import Iterator, Sequence

from research.corpus.testbed import TOO_LARGE, TestbedSetting
from traincast.spec import Attr, Experiment

BATCHES = (4, 16)
OPTIMIZER = "adamw"
HEAP_RELEASED = "heap_released"
"""Marks blocks before which ranks gave back the memory of earlier experiments, so that resident memory is their own."""

LARGE_IMAGE = "size=224"
LARGE_IMAGE_SETTINGS = frozenset({"1xnone", "2x1gbit", "4x1gbit", "4x100mbit", "4xmixed"})
"""Steps on images of 224 x 224 take seconds on a quarter of a core: they are measured at the smaller batch, in these settings."""


def experiments_in(
    setting: TestbedSetting, names: Sequence[str], *, batches: Sequence[int] = BATCHES
) -> Iterator[Experiment]:
    """Every architecture at every batch size, in a fixed order in which families are mixed."""
    ordered = sorted(set(names) - TOO_LARGE, key=lambda name: hashlib.sha256(f"corpus {name}".encode()).hexdigest())
    for batch in batches:
        for name in ordered:
            if LARGE_IMAGE in name and (batch != BATCHES[0] or setting.name not in LARGE_IMAGE_SETTINGS):
                continue
            attrs: dict[str, Attr] = {
                "batch": batch, "optimizer": OPTIMIZER, "num_ranks": setting.num_ranks, "network": setting.network,
                "strategy": "ddp" if setting.num_ranks > 1 else "local",
            }  # fmt: skip
            yield Experiment(subject="step", name=name, attrs=attrs)
