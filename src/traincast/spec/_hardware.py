"""Devices, links and clusters: what a machine can do, by its data sheet."""

import math
from collections.abc import Mapping
from dataclasses import field

from traincast.errors import InvalidInput
from traincast.noun import noun


@noun
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


FABRIC_FROM_BYTES_PER_S = 40e9
"""A link inside a node of unknown transport is taken for NVLink from this rate on, and for PCIe below."""
RDMA_FROM_BYTES_PER_S = 12.5e9
"""A network of unknown transport is taken for one with direct access to device memory from 100 Gb/s per node on (the rate of
InfiniBand EDR), and for sockets below."""
TRANSPORTS = (
    "nvlink", "nvlink-cube", "nvlink-pairs", "nvswitch", "xgmi", "ici", "neuronlink", "c2c", "pcie", "pcie-host", "memory",
    "infiniband", "roce", "efa", "slingshot", "tcpx", "tcpxo", "dcn", "sockets",
)  # fmt: skip
"""How bytes travel. Direct NVLink, the hybrid cube mesh of P100 and V100, bridges between pairs, switches; AMD's and Google's
and Amazon's own links; PCIe with peer access, and without it through the memory of the host; memory of one host; networks that
read and write device memory by themselves; and sockets, for which the host copies."""
NETWORKS = ("infiniband", "roce", "efa", "slingshot", "tcpx", "tcpxo", "dcn", "sockets")
"""Transports whose rate is that of a node; all others are rated by device."""
_TRANSPORT_OF_KIND = {
    "nvlink topology": "nvlink-cube", "nvlink bridge": "nvlink-pairs", "ethernet-tcp": "sockets", "ethernet": "sockets",
    "gpudirect-tcpx": "tcpx", "gpudirect-tcpxo": "tcpxo", "cpu": "memory", "hybrid-cube": "nvlink-cube",
}  # fmt: skip
_SWITCHED_FROM_BYTES_PER_S = 190e9
"""NVLink of this rate (NVLink 3 and later) is found behind switches wherever more than two devices have it."""
_CUBE_BYTES_PER_S = 150e9
"""The six links of a V100, which nodes without switches join to a cube mesh."""


@noun
class Link:
    """A connection of one device (inside a node) or of one node (between nodes), one direction."""

    name: str
    bytes_per_s: float
    latency_s: float
    """Of one hop, by the wire and the adapters; what software adds is the cost model's."""
    kind: str = ""
    """The family of the product, as the catalogue names it."""
    source: str = ""
    transport: str = ""
    """One of TRANSPORTS; left out: what `kind` implies; empty after that: not known, and a forecast says what it assumes."""
    reduces: bool = False
    """Its switches add in flight: NVLink SHARP, or SHARP in a network where it is switched on."""
    num_ports: int = 1
    """Network adapters that share the rate."""
    flow_bytes_per_s: float | None = None
    """What one connection of sockets may carry, where the provider limits it; None: what the cores of a host copy."""

    def __post_init__(self) -> None:
        _require_positive(self.name, bytes_per_s=self.bytes_per_s)
        if self.flow_bytes_per_s is not None:
            _require_positive(self.name, flow_bytes_per_s=self.flow_bytes_per_s)
        if not (self.latency_s >= 0 and math.isfinite(self.latency_s)):
            raise InvalidInput(f"link {self.name!r} has a latency of {self.latency_s} s; it must be finite and >= 0")
        if self.num_ports < 1:
            raise InvalidInput(f"link {self.name!r} has {self.num_ports} ports; it must have at least 1")
        if not self.transport:
            object.__setattr__(self, "transport", _imply_transport(self.kind, self.bytes_per_s))
        elif self.transport not in TRANSPORTS:
            raise InvalidInput(f"link {self.name!r} has transport {self.transport!r}; allowed: {', '.join(TRANSPORTS)}")

    @property
    def is_network(self) -> bool:
        return self.transport in NETWORKS


def _imply_transport(kind: str, bytes_per_s: float) -> str:
    if kind == "nvlink":
        if abs(bytes_per_s / _CUBE_BYTES_PER_S - 1) < 0.02:
            return "nvlink-cube"
        return "nvswitch" if bytes_per_s >= _SWITCHED_FROM_BYTES_PER_S else "nvlink"
    found = _TRANSPORT_OF_KIND.get(kind, kind)
    return found if found in TRANSPORTS else ""


@noun
class Domain:
    """Neighbouring devices that a better link joins than the level around them: pairs on a bridge inside a host, the hosts of an
    NVLink rack, a pod under one switch. Jobs that need several domains of a size fill them evenly."""

    num_devices: int
    link: Link

    def __post_init__(self) -> None:
        if self.num_devices < 2:
            raise InvalidInput(f"a domain of {self.num_devices} devices; it must join at least 2")


@noun
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
    power_limit_watts: float | None = None
    """Watts that each device is held to; None: what it is rated for."""
    nvme_bytes_per_s: float | None = None
    """What the local drives of one node read or write; None: not known."""
    host_memory_bytes: float | None = None
    """Memory of one node's host; None: not known."""
    domains: tuple[Domain, ...] = ()
    """Levels beside the host (`intra`) and the whole cluster (`inter`), in any order."""

    def __post_init__(self) -> None:
        for domain in self.domains:
            small, large = sorted((domain.num_devices, self.devices_per_node))
            if large % small:
                raise InvalidInput(
                    f"a domain of {domain.num_devices} devices does not go with hosts of {self.devices_per_node}; one must "
                    "divide the other"
                )
        for field_name, count in (("num_nodes", self.num_nodes), ("devices_per_node", self.devices_per_node)):
            if count < 1:
                raise InvalidInput(f"{field_name} is {count}; it must be at least 1")
        if self.usd_per_hour is not None and not (self.usd_per_hour >= 0 and math.isfinite(self.usd_per_hour)):
            raise InvalidInput(f"usd_per_hour is {self.usd_per_hour}; a price is a finite number >= 0")
        _require_positive(self.device.name, speed=self.speed)
        if self.power_limit_watts is not None:
            _require_positive(self.device.name, power_limit_watts=self.power_limit_watts)
        if self.nvme_bytes_per_s is not None:
            _require_positive(self.device.name, nvme_bytes_per_s=self.nvme_bytes_per_s)
        if self.host_memory_bytes is not None:
            _require_positive(self.device.name, host_memory_bytes=self.host_memory_bytes)

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node


@noun
class Region:
    """How much CO2 a kilowatt-hour stands for somewhere."""

    name: str
    grams_co2_per_kwh: float
    date: str = ""
    source: str = ""


@noun
class Cluster:
    """Groups of nodes, ranks numbered group by group and node by node. One group is the homogeneous case."""

    name: str
    groups: tuple[NodeGroup, ...]
    price_date: str = ""
    price_source: str = ""
    region: Region | None = None
    """Where it stands; None: nobody said, and its CO2 is not known."""

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
    def devices_per_domain(self) -> int:
        """Devices that reach each other without a network: those of a host, or of all hosts of an NVLink rack or a pod."""
        return min(
            max(
                [group.devices_per_node]
                + [min(domain.num_devices, group.num_devices) for domain in group.domains if not domain.link.is_network]
            )
            for group in self.groups
        )

    @property
    def usd_per_hour(self) -> float | None:
        prices = [group.usd_per_hour for group in self.groups]
        known = [price * group.num_nodes for price, group in zip(prices, self.groups, strict=True) if price is not None]
        return sum(known) if len(known) == len(prices) else None


def _require_positive(owner: str, **amounts: float) -> None:
    for name, amount in amounts.items():
        if not (amount > 0 and math.isfinite(amount)):
            raise InvalidInput(f"{owner!r} has {name} = {amount}; it must be a finite number above 0")
