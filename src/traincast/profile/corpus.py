"""The plan of our own corpus: which steps are measured in which settings. The measuring itself is resumable, in rounds."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traincast.profile.testbed import EmulatedNode
from traincast.spec.graph import Attr
from traincast.spec.measurement import Experiment

BATCHES = (4, 16)
OPTIMIZER = "adamw"
CPU_SHARE = 0.25
NUM_ROUNDS = 3


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
    *(equal("100mbit", 1e8, ranks) for ranks in (2, 3, 4)),
    *(equal("1gbit", 1e9, ranks) for ranks in (2, 3, 4)),
    *(equal("10gbit", 1e10, ranks) for ranks in (2, 3, 4)),
    *(unequal(ranks) for ranks in (2, 4)),
)


def experiments_in(setting: Setting, names: Sequence[str], *, batches: Sequence[int] = BATCHES) -> Iterator[Experiment]:
    """Every architecture at every batch size, in a fixed order in which families are mixed."""
    ordered = sorted(names, key=lambda name: hashlib.sha256(f"corpus {name}".encode()).hexdigest())
    for batch in batches:
        for name in ordered:
            attrs: dict[str, Attr] = {
                "batch": batch, "optimizer": OPTIMIZER, "num_ranks": setting.num_ranks, "network": setting.network,
                "strategy": "ddp" if setting.num_ranks > 1 else "local",
            }  # fmt: skip
            yield Experiment(subject="step", name=name, attrs=attrs)
