"""The cluster part of a question to a Cluster: devices, nodes, uneven placements, links at a rate, prices."""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from traincast import catalog
from traincast.errors import InvalidInput
from traincast.spec import (
    FABRIC_FROM_BYTES_PER_S,
    RDMA_FROM_BYTES_PER_S,
    Cluster,
    Device,
    Link,
    NodeGroup,
    Notes,
    Question,
)
from traincast.units import GIGA

MOST_NODES = 2**20
"""More than any cluster has; a list of them still fits."""
_PCIE_LATENCY_S, _NVLINK_LATENCY_S = 1.5e-6, 1.2e-6
_ETHERNET_LATENCY_S, _RDMA_LATENCY_S = 2.5e-5, 5e-6
_BRIDGE = "bridge"
"""The link inside a node is the device's own, though its usual node has none."""
_RATE = re.compile(r"[0-9.]+(?:e[+-]?\d+)?\s*[KMGT]?(?:bit/s|bps|b/s|byte/s|B/s)", re.IGNORECASE)


def build_cluster(question: Question) -> Cluster:
    return place(question)[0]


def place(question: Question) -> tuple[Cluster, Notes]:
    """The cluster of a question, and what is assumed of it; of as many devices as its plan names where it says no number."""
    degrees = [question.parallelism.get(axis, 1) for axis in ("data", "tensor", "pipeline", "context")]
    wanted = math.prod(degree for degree in degrees if isinstance(degree, int) and degree >= 1)
    return read_cluster(question.cluster, num_wanted=wanted)


def read_cluster(values: Mapping[str, Any], *, num_wanted: int = 1) -> tuple[Cluster, Notes]:
    """`num_wanted`: devices that the plan names, where the question does not say how many there are."""
    table = dict(values)
    if "groups" not in table and "device" not in table and "node" not in table:
        raise InvalidInput(
            "no device is given; say which with --gpus 8xh100 or --machine NAME (traincast can MODEL lists them)"
        )
    price, region = _take_price(table), table.pop("region", None)
    made, notes = _make(table, num_wanted)
    made = _at_price(made, price)
    return made if region is None else dataclasses.replace(made, region=catalog.region(region)), notes


def _make(table: dict[str, Any], num_wanted: int) -> tuple[Cluster, Notes]:
    if "groups" in table or "node" in table:
        _refuse(table, ("placement", "device_memory", "nvlink_domain"))
        return catalog.cluster_from(table), ()
    counts = _count_devices(table, num_wanted)
    if counts is None:
        _refuse(table, ("placement", "nvlink_domain"))
        table["device"], notes = _find_device(table)
        return catalog.cluster_from(table), notes
    return _build(table, counts)


def _build(table: dict[str, Any], counts: list[int]) -> tuple[Cluster, Notes]:
    device, notes = _find_device(table)
    table.pop("device")
    rack = catalog.device_entry(device.name).typical_node.rack if _is_listed(device) else None
    domain = table.pop("nvlink_domain", None)
    if domain is not None and not rack:
        table["domains"] = [{"num_devices": domain}]
    elif rack and "inter" not in table and len(counts) > 1:
        rack = domain or rack
        counts = _join_trays(counts, rack)
        notes = (*notes, f"NVLink joins the trays of a rack into a domain of {max(counts)} devices")
    intra, inter = table.pop("intra", None), table.pop("inter", None)
    for name in ("nodes", "num_nodes", "devices_per_node"):
        table.pop(name, None)
    shape = {**table, "device": device}
    typical = catalog.cluster_from({**shape, "nodes": len(counts), "devices_per_node": max(counts)}).groups[0]
    if intra is None and max(counts) > 1:
        notes = (*notes, f"the link inside the node is not known; {typical.intra.name} assumed")
    if inter is None and len(counts) > 1:
        speed = typical.inter.bytes_per_s * 8 / GIGA
        notes = (*notes, f"the network is not known; {speed:g} Gb/s per node assumed")
    links = {"intra": _link_inside(intra, device, typical.intra), "inter": _link_between(inter, typical.inter)}
    made = [
        catalog.cluster_from({**shape, "nodes": num_nodes, "devices_per_node": size, **links})
        for size, num_nodes in sorted(Counter(counts).items(), reverse=True)
    ]
    if len(made) == 1:
        return made[0], notes
    groups: tuple[NodeGroup, ...] = tuple(one.groups[0] for one in made)
    name = " + ".join(f"{group.num_nodes} x {group.devices_per_node}" for group in groups)
    joined = Cluster(
        name=f"{name} {device.name}", groups=groups, price_date=made[0].price_date, price_source=made[0].price_source
    )
    return joined, notes


def _take_price(table: dict[str, Any]) -> float | None:
    price = table.pop("price_per_device", None)
    if price is not None and not (isinstance(price, (int, float)) and price >= 0 and math.isfinite(price)):
        raise InvalidInput(f"price = {price}; a price is a finite number of USD per device and hour, at least 0")
    return price


def _at_price(cluster: Cluster, price: float | None) -> Cluster:
    if price is None:
        return cluster
    groups = tuple(dataclasses.replace(group, usd_per_hour=price * group.devices_per_node) for group in cluster.groups)
    return dataclasses.replace(cluster, groups=groups, price_date="", price_source="given")


def _refuse(table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key in table:
            raise InvalidInput(f"{key} goes with a device by name, not with a machine, groups or a device of your own")


def _find_device(table: dict[str, Any]) -> tuple[Device, Notes]:
    given = table["device"]
    memory = table.pop("device_memory", None)
    if not isinstance(given, (str, Device)):
        if memory is not None:
            raise InvalidInput("device_memory goes with a device by name; put memory_bytes into the device's own table")
        return given, ()
    device = catalog.device(given)
    if memory is not None:
        if isinstance(memory, bool) or not isinstance(memory, (int, float)) or not 0 < memory < math.inf:
            raise InvalidInput(f"device_memory = {memory!r}; it must be a finite number of bytes above 0, such as 80GB")
        return dataclasses.replace(device, memory_bytes=float(memory)), ()
    if isinstance(given, str) and catalog.device_entry(device.name).unsized:
        return device, (f"{device.name} does not say its memory; {device.memory_bytes / GIGA:.0f} GB assumed",)
    return device, ()


def _is_listed(device: Any) -> bool:
    from traincast.catalog import load_facts

    return isinstance(device, Device) and load_facts("device").get(device.name) is not None


def _count_devices(table: dict[str, Any], num_wanted: int) -> list[int] | None:
    """Devices in use on each node; None where the catalogue has to say or to complain."""
    placement = table.pop("placement", None)
    if not isinstance(table["device"], (str, Device)):
        if placement is not None:
            table["placement"] = placement
        return None
    if placement is not None:
        for key in ("nodes", "devices_per_node"):
            if key in table:
                raise InvalidInput(f"placement says how many devices each node uses; leave out {key}")
        return _read_placement(placement)
    nodes = table.get("nodes", table.get("num_nodes", 1))
    size = table.get("devices_per_node")
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        return None
    if size is None and num_wanted % nodes == 0:
        size = num_wanted // nodes
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        return None
    if nodes > MOST_NODES:
        raise InvalidInput(
            f"nodes = {nodes if nodes < 10**30 else 'a huge number'}; a cluster has at most {MOST_NODES:,}"
        )
    return [size] * nodes


def _read_placement(text: Any) -> list[int]:
    parts = text.split(",") if isinstance(text, str) else text
    try:
        counts = [int(part) for part in parts]
    except (TypeError, ValueError):
        counts = []
    if not counts or min(counts) < 1:
        raise InvalidInput(f"placement = {text!r}; give the devices in use on each node, such as 4,3")
    return counts


def _join_trays(counts: list[int], domain: int) -> list[int]:
    full, rest = divmod(sum(counts), domain)
    return [domain] * full + ([rest] if rest else [])


def _link_inside(given: Any, device: Device, typical: Link) -> Any:
    if given is None:
        return typical
    if given == _BRIDGE:
        if not device.link_bytes_per_s or _is_nvlink(typical):
            return typical
        return Link(
            name="nvlink bridge", bytes_per_s=device.link_bytes_per_s, latency_s=_NVLINK_LATENCY_S, kind="nvlink"
        )
    rate = _rate_of(given, typical, "intra")
    if rate is None:
        return given
    fast = rate >= FABRIC_FROM_BYTES_PER_S
    own = _NVLINK_LATENCY_S if fast else _PCIE_LATENCY_S
    return Link(
        name=f"{rate / GIGA:g} GB/s",
        bytes_per_s=rate,
        latency_s=typical.latency_s if fast == _is_nvlink(typical) else own,
        kind="nvlink" if fast else "pcie",
        transport="pcie-host" if typical.transport == "pcie-host" and not fast else "",
    )


def _link_between(given: Any, typical: Link) -> Any:
    if given is None:
        return typical
    rate = _rate_of(given, typical, "inter")
    if rate is None:
        return given
    fast = rate >= RDMA_FROM_BYTES_PER_S
    return dataclasses.replace(
        typical,
        name=f"{rate * 8 / GIGA:g} Gb/s",
        bytes_per_s=rate,
        latency_s=_RDMA_LATENCY_S if fast else _ETHERNET_LATENCY_S,
        kind="",
        transport="",
    )


def _rate_of(given: Any, typical: Link, where: str) -> float | None:
    """A rate in words or as a number; None for a link by name, as a table or as a noun."""
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number and not (isinstance(given, str) and _RATE.fullmatch(given.strip())):
        return None
    return catalog.make_link(given, like=typical, where=where).bytes_per_s


def _is_nvlink(link: Link) -> bool:
    return link.kind.startswith("nv") or link.bytes_per_s >= FABRIC_FROM_BYTES_PER_S
