"""Names of accelerators to devices with their sources."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from traincast.catalog._names import load_facts
from traincast.spec import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalNode:
    """The node this device is most often found in: defaults where a user names only the device."""

    devices_per_node: int
    intra: str
    inter: str
    num_ports: int = 1
    """Ports of the inter link that one node has."""
    domain: int | None = None
    """Devices that the intra link can join across hosts (the chips of a TPU pod); None: it ends at the host."""
    most: int | None = None
    """Devices that one machine can hold, where nothing else is said; None: as many boards as a server has slots for, and as many
    devices as usual of what is no board."""
    rack: int | None = None
    """Devices of a rack that jobs use as one domain of the intra link, though its trays are smaller; None: no such rack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """A device with what the catalogue knows beyond the data sheet."""

    device: Device
    title: str
    typical_node: TypicalNode
    nominal_memory_bytes: float
    """As sold; `device.memory_bytes` is what is left for programs."""
    reported_memory_bytes: float | None = None
    """What nvidia-smi shows."""
    memory_bus_bits: int | None = None
    memory_pin_bits_per_s: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    """By name of the figure; '*' for all figures without their own."""
    unsized: bool = False
    """The name does not say which of the memory sizes it is sold with is meant; the largest is taken."""
    notes: str = ""
    corrected: str = ""
    """What was changed against the collected figures, and why."""

    def source_of(self, figure: str) -> str:
        return self.sources.get(figure, self.sources["*"])


def device(name: str | Device) -> Device:
    """A device by name or any known spelling: 'h100', 'A100-SXM4-80GB', 'NVIDIA H100 80GB HBM3', '4090'."""
    return name if isinstance(name, Device) else device_entry(name).device


def devices() -> tuple[Device, ...]:
    return tuple(device(name) for name in load_facts("device").entries)


BOARDS_PER_SERVER = 8
"""Boards of two slots that servers for GPUs are built for; "8x" such a board is read as one of them."""


def usual_node_size(name: str, count: int) -> int:
    """Devices of each node where somebody names only how many there are. A typical node says where most devices of a kind are
    found, often one to a workstation, and not how many a machine can hold."""
    typical = device_entry(name).typical_node
    usual = typical.devices_per_node
    is_board = any(word in typical.intra for word in ("pcie", "pairs"))
    most = typical.most or (max(usual, BOARDS_PER_SERVER) if is_board else usual)
    if count <= most:
        return count
    if count % usual == 0 and (usual >= BOARDS_PER_SERVER / 2 or usual == most):
        return usual
    even = max(size for size in range(1, most + 1) if count % size == 0)
    # A count that only tiny nodes divide (11) is taken as it is.
    return even if 2 * even >= usual else count


def device_entry(name: str) -> DeviceEntry:
    return _build(load_facts("device").find(name))


@functools.cache
def _build(name: str) -> DeviceEntry:
    facts = load_facts("device").entries[name]
    sources = facts["sources"]
    return DeviceEntry(
        device=Device(
            name=name,
            memory_bytes=facts["memory_bytes"],
            memory_bytes_per_s=facts["memory_bytes_per_s"],
            matrix_flop_per_s=facts.get("matrix_flop_per_s", {}),
            vector_flop_per_s=facts.get("vector_flop_per_s", {}),
            vendor=facts["vendor"],
            architecture=facts["architecture"],
            year=facts["year"],
            power_watts=facts.get("power_watts"),
            num_sm=facts.get("num_sm"),
            lanes_per_sm=facts.get("lanes_per_sm"),
            clock_hz=facts.get("clock_hz"),
            l2_bytes=facts.get("l2_bytes"),
            link_bytes_per_s=facts.get("link_bytes_per_s"),
            pcie_bytes_per_s=facts.get("pcie_bytes_per_s"),
            source=sources["*"],
            confidence=facts["confidence"],
            aliases=tuple(facts.get("aliases", ())),
        ),
        title=facts["title"],
        typical_node=TypicalNode(**facts["typical_node"]),
        nominal_memory_bytes=facts["nominal_memory_bytes"],
        reported_memory_bytes=facts.get("reported_memory_bytes"),
        memory_bus_bits=facts.get("memory_bus_bits"),
        memory_pin_bits_per_s=facts.get("memory_pin_bits_per_s"),
        sources=sources,
        unsized=facts.get("unsized", False),
        notes=facts.get("notes", ""),
        corrected=facts.get("corrected", ""),
    )
