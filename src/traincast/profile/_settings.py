"""Emulated clusters by name: '4x1gbit' to the nodes of a test-bed."""

from collections.abc import Sequence
from dataclasses import dataclass

from traincast.errors import UnknownName
from traincast.profile._testbed import EmulatedNode

CPU_SHARE = 0.25
TOO_LARGE = frozenset({
    "dlrm(tables=12,width=32,rows=5000)", "mlp(depth=4,width=768)", "mlp(depth=8,width=512)", "mlp(depth=8,width=768)",
    "random(seed=7)", "random(seed=12)", "random(seed=16)",
})  # fmt: skip
"""Above 5 MB of parameters: a few of them would spend most of the campaign waiting for a 100 Mbit/s link."""


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
