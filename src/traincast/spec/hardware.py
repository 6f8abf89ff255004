"""Devices, links and clusters: what a machine can do, by its data sheet."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from traincast.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. Rates are peaks of the data sheet, dense; a missing dtype is unsupported or not known."""

    name: str
    memory_bytes: float
    """What a program can allocate, after what the driver keeps."""
    memory_bytes_per_s: float
    matrix_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    """Peak of the matrix (tensor) units by dtype."""
    vector_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    """Peak of the ordinary lanes by dtype."""
    vendor: str = ""
    architecture: str = ""
    year: int | None = None
    power_watts: float | None = None
    num_sm: int | None = None
    lanes_per_sm: int | None = None
    clock_hz: float | None = None
    l2_bytes: float | None = None
    link_bytes_per_s: float | None = None
    """NVLink or like, one direction, all links together."""
    pcie_bytes_per_s: float | None = None
    source: str = ""
    confidence: str = ""
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_positive(self.name, memory_bytes=self.memory_bytes, memory_bytes_per_s=self.memory_bytes_per_s)
        rates = {**self.matrix_flop_per_s, **self.vector_flop_per_s}
        if not rates:
            raise InvalidInput(f"device {self.name!r} has no flop_per_s for any dtype; give at least fp32")
        _require_positive(self.name, **{f"flop_per_s of {dtype}": rate for dtype, rate in rates.items()})

    def peak_flop_per_s(self, dtype: str) -> float | None:
        """The faster of matrix and vector units for this precision; None where the device lacks it."""
        rates = [rates[dtype] for rates in (self.matrix_flop_per_s, self.vector_flop_per_s) if dtype in rates]
        return max(rates, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection of one device (inside a node) or of one node (between nodes), one direction."""

    name: str
    bytes_per_s: float
    latency_s: float
    kind: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        _require_positive(self.name, bytes_per_s=self.bytes_per_s)
        if not (self.latency_s >= 0 and math.isfinite(self.latency_s)):
            raise InvalidInput(f"link {self.name!r} has a latency of {self.latency_s} s; it must be finite and >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes of one make."""

    device: Device
    num_nodes: int
    devices_per_node: int
    intra: Link
    inter: Link
    usd_per_hour: float | None = None
    """Of one whole node; None where no price is known."""
    speed: float = 1.0
    """Share of the nominal speed these nodes reach: below 1 for a node known to be slow."""

    def __post_init__(self) -> None:
        for field_name, count in (("num_nodes", self.num_nodes), ("devices_per_node", self.devices_per_node)):
            if count < 1:
                raise InvalidInput(f"{field_name} is {count}; it must be at least 1")
        if self.usd_per_hour is not None and not (self.usd_per_hour >= 0 and math.isfinite(self.usd_per_hour)):
            raise InvalidInput(f"usd_per_hour is {self.usd_per_hour}; a price is a finite number >= 0")
        _require_positive(self.device.name, speed=self.speed)

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Groups of nodes, ranks numbered group by group and node by node. One group is the homogeneous case."""

    name: str
    groups: tuple[NodeGroup, ...]
    price_date: str = ""
    price_source: str = ""

    def __post_init__(self) -> None:
        if not self.groups:
            raise InvalidInput(f"cluster {self.name!r} has no nodes")

    @property
    def num_devices(self) -> int:
        return sum(group.num_devices for group in self.groups)

    @property
    def num_nodes(self) -> int:
        return sum(group.num_nodes for group in self.groups)

    @property
    def devices_per_node(self) -> int:
        """Of the smallest node, which limits what a group inside a node may span."""
        return min(group.devices_per_node for group in self.groups)

    @property
    def usd_per_hour(self) -> float | None:
        prices = [group.usd_per_hour for group in self.groups]
        known = [price * group.num_nodes for price, group in zip(prices, self.groups, strict=True) if price is not None]
        return sum(known) if len(known) == len(prices) else None


def _require_positive(owner: str, **amounts: float) -> None:
    for name, amount in amounts.items():
        if not (amount > 0 and math.isfinite(amount)):
            raise InvalidInput(f"{owner!r} has {name} = {amount}; it must be a finite number above 0")
