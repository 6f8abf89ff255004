"""Names of accelerators to devices with their sources."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import field

from traincast.catalog._names import Entry, load_facts, make_entry
from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Device


@noun
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


@noun
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


def devices(names: Iterable[str] | None = None) -> tuple[Device, ...]:
    """Those of some names; all that are known where none are given."""
    return tuple(device(name) for name in (load_facts("device").entries if names is None else names))


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


@functools.cache
def device_entry(name: str) -> DeviceEntry:
    return _build(load_facts("device").find(name))


NEEDED = (
    "title", "vendor", "architecture", "year", "confidence", "memory_bytes", "nominal_memory_bytes", "memory_bytes_per_s",
    "typical_node", "sources",
)  # fmt: skip
"""Keys without which a block of devices.json is no device; all others are unknown where they are missing."""
NEEDED_OF_NODE = ("devices_per_node", "intra", "inter")


def _check_keys(name: str, facts: Entry) -> None:
    """A block that lacks something is answered with what a whole one has."""
    missing = [key for key in NEEDED if key not in facts]
    missing += [f"typical_node.{key}" for key in NEEDED_OF_NODE if key not in facts.get("typical_node", NEEDED_OF_NODE)]
    missing += ["sources.*"] if "*" not in facts.get("sources", "*") else []
    if missing:
        raise InvalidInput(
            f"device {name!r} of the catalogue lacks {', '.join(missing)}; a device needs {', '.join(NEEDED)}, its typical_node "
            f"{', '.join(NEEDED_OF_NODE)}, and sources an entry '*' (docs/extend/device.md shows a whole one)"
        )


@functools.cache
def _build(name: str) -> DeviceEntry:
    facts = load_facts("device").entries[name]
    _check_keys(name, facts)
    chip = make_entry(Device, name, facts, source=facts["sources"]["*"])
    typical = make_entry(TypicalNode, f"{name}.typical_node", facts["typical_node"])
    return make_entry(DeviceEntry, name, facts, device=chip, typical_node=typical)
