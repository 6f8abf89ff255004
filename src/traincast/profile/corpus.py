"""The plan of our own corpus: which steps are measured in which settings. The measuring itself is resumable, in rounds."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traincast.errors import UnknownName
from traincast.profile.testbed import EmulatedNode
from traincast.spec.graph import Attr
from traincast.spec.measurement import Experiment

BATCHES = (4, 16)
OPTIMIZER = "adamw"
CPU_SHARE = 0.25
NUM_ROUNDS = 3
TOO_LARGE = frozenset({
    "dlrm(tables=12,width=32,rows=5000)", "mlp(depth=4,width=768)", "mlp(depth=8,width=512)", "mlp(depth=8,width=768)",
    "random(seed=7)", "random(seed=12)", "random(seed=16)",
})  # fmt: skip
"""Above 5 MB of parameters: a few of them would spend most of the campaign waiting for a 100 Mbit/s link."""

LARGE_IMAGE = "size=224"
LARGE_IMAGE_SETTINGS = frozenset({"1xnone", "2x1gbit", "4x1gbit", "4x100mbit", "4xmixed"})
"""Steps on images of 224 x 224 take seconds on a quarter of a core: they are measured at the smaller batch, in these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Nodes of a test-bed, and the words that tell this setting from others in a stored measurement."""

    network: str
    nodes: tuple[EmulatedNode, ...]

    @property
    def num_ranks(self) -> int:
        return len(self.nodes)

    @property
    def name(self) -> str:
        return f"{self.num_ranks}x{self.network}"


def equal(network: str, bits_per_s: float, num_ranks: int) -> Setting:
    return Setting(network=network, nodes=(EmulatedNode(bits_per_s=bits_per_s, cpu_share=CPU_SHARE),) * num_ranks)


def unequal(num_ranks: int) -> Setting:
    """One link at a fifth of the others, and another node with little more than half of the computing share."""
    fast, narrow = EmulatedNode(bits_per_s=1e9, cpu_share=CPU_SHARE), EmulatedNode(bits_per_s=2e8, cpu_share=CPU_SHARE)
    weak = EmulatedNode(bits_per_s=1e9, cpu_share=0.15)
    return Setting(network="mixed", nodes=(fast, narrow, weak, fast)[:num_ranks])


SETTINGS: tuple[Setting, ...] = (
    equal("none", 1e9, 1),
    equal("1gbit", 1e9, 2), equal("100mbit", 1e8, 4), unequal(4), equal("10gbit", 1e10, 2), equal("1gbit", 1e9, 4),
    equal("100mbit", 1e8, 2), equal("10gbit", 1e10, 4), unequal(2),
    *(equal(network, rate, 3) for network, rate in (("1gbit", 1e9), ("100mbit", 1e8), ("10gbit", 1e10))),
)  # fmt: skip
"""In this order: a corpus cut short has every network and the ends of the scale."""


def find_settings(names: Sequence[str]) -> tuple[Setting, ...]:
    """All of them where none is named."""
    known = {setting.name: setting for setting in SETTINGS}
    for name in names:
        if name not in known:
            raise UnknownName("setting", name, known)
    return tuple(known[name] for name in names) or SETTINGS


def experiments_in(setting: Setting, names: Sequence[str], *, batches: Sequence[int] = BATCHES) -> Iterator[Experiment]:
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
