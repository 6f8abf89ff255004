"""The hardware columns of a case to a Cluster."""

import math
import re
from collections import Counter
from dataclasses import replace

from traincast import catalog
from traincast.accuracy.cases import Case
from traincast.errors import InvalidInput
from traincast.spec import Cluster, Device, Link, NodeGroup
from traincast.units import GIGA

RACK_SCALE = {"gb200-186g": 64, "gb300-279g": 64}
"""Devices whose NVLink spans a rack of trays: a domain of 72, of which jobs use 64."""
UNSIZED = {"a100-sxm4": "a100-sxm4-80g"}
"""Names that do not say how much memory the device has, with the largest that is sold."""
_NVLINK_FROM_GBPS = 40.0
_PCIE_LATENCY_S, _NVLINK_LATENCY_S = 1.5e-6, 1.2e-6
_FAST_NETWORK_FROM_GBPS = 200.0
_ETHERNET_LATENCY_S, _RDMA_LATENCY_S = 2.5e-5, 5e-6


def build_cluster(case: Case, assumptions: list[str]) -> Cluster:
    """One group per number of devices in use on a node, so that uneven placements stay uneven."""
    device = catalog.device(case.gpu)
    if device.name in UNSIZED:
        largest = catalog.device(UNSIZED[device.name]).memory_bytes
        assumptions.append(f"{device.name} does not say its memory; {largest / GIGA:.0f} GB assumed")
        device = replace(device, memory_bytes=largest)
    counts = read_placement(case, assumptions)
    if device.name in RACK_SCALE and case.inter_bw_Gbps is None and len(counts) > 1:
        counts = _join_trays(counts, RACK_SCALE[device.name])
        assumptions.append(f"NVLink joins the trays of a rack into a domain of {max(counts)} devices")
    typical = catalog.cluster(device=device.name, nodes=len(counts), devices_per_node=max(counts), price=None).groups[0]
    intra = _intra_link(case, device, typical.intra, needed=max(counts) > 1, assumptions=assumptions)
    inter = _inter_link(case, typical.inter, needed=len(counts) > 1, assumptions=assumptions)
    groups = tuple(
        NodeGroup(device=device, num_nodes=num_nodes, devices_per_node=size, intra=intra, inter=inter)
        for size, num_nodes in sorted(Counter(counts).items(), reverse=True)
    )
    name = " + ".join(f"{group.num_nodes} x {group.devices_per_node}" for group in groups)
    return Cluster(name=f"{name} {device.name}", groups=groups)


def read_placement(case: Case, assumptions: list[str]) -> list[int]:
    """Devices in use on each node."""
    num_gpus = case.n_gpus or 1
    text = (case.placement or "").strip()
    if re.fullmatch(r"[1-9]+", text) and sum(map(int, text)) == num_gpus:
        return [int(digit) for digit in text]
    spread = re.fullmatch(r"([0-9]+)@([0-9]+)", text)
    if spread and int(spread[1]) == num_gpus and int(spread[2]) >= 1:
        return _spread_evenly(num_gpus, int(spread[2]), case, assumptions)
    return _spread_evenly(num_gpus, _count_nodes(case, text, assumptions), case, assumptions)


def _count_nodes(case: Case, placement: str, assumptions: list[str]) -> int:
    num_gpus = case.n_gpus or 1
    if case.n_nodes is not None:
        if case.n_nodes < 1:
            raise InvalidInput(f"n_nodes is {case.n_nodes}; it must be at least 1")
        return min(case.n_nodes, num_gpus)
    if num_gpus == 1:
        return 1
    if case.gpus_per_node:
        return math.ceil(num_gpus / case.gpus_per_node)
    size = 1 if placement == "unconsolidated" else catalog.device_entry(case.gpu).typical_node.devices_per_node
    num_nodes = math.ceil(num_gpus / size)
    assumptions.append(f"the number of nodes is not known; {num_nodes} assumed")
    return num_nodes


def _spread_evenly(num_gpus: int, num_nodes: int, case: Case, assumptions: list[str]) -> list[int]:
    if num_nodes > num_gpus:
        raise InvalidInput(f"{num_gpus} GPUs cannot be spread over {num_nodes} nodes")
    each, more = divmod(num_gpus, num_nodes)
    if more:
        assumptions.append(f"{num_gpus} GPUs are assumed to be spread evenly over {num_nodes} nodes")
    return [each + 1] * more + [each] * (num_nodes - more)


def _join_trays(counts: list[int], domain: int) -> list[int]:
    total = sum(counts)
    full, rest = divmod(total, domain)
    return [domain] * full + ([rest] if rest else [])


def _intra_link(case: Case, device: Device, typical: Link, *, needed: bool, assumptions: list[str]) -> Link:
    rate = case.intra_bw_GBps
    if rate is not None:
        _require_rate("intra_bw_GBps", rate)
        fast = rate >= _NVLINK_FROM_GBPS
        return Link(
            name=f"{rate:g} GB/s",
            bytes_per_s=rate * GIGA,
            latency_s=typical.latency_s
            if fast == _is_nvlink(typical)
            else _NVLINK_LATENCY_S
            if fast
            else _PCIE_LATENCY_S,
            kind="nvlink" if fast else "pcie",
        )
    if case.placement == "nvlink" and device.link_bytes_per_s and not _is_nvlink(typical):
        return Link(
            name="nvlink bridge", bytes_per_s=device.link_bytes_per_s, latency_s=_NVLINK_LATENCY_S, kind="nvlink"
        )
    if needed:
        assumptions.append(f"the link inside the node is not known; {typical.name} assumed")
    return typical


def _inter_link(case: Case, typical: Link, *, needed: bool, assumptions: list[str]) -> Link:
    rate = case.inter_bw_Gbps
    if rate is None:
        if needed:
            assumptions.append(f"the network is not known; {typical.bytes_per_s * 8 / GIGA:g} Gb/s per node assumed")
        return typical
    _require_rate("inter_bw_Gbps", rate)
    fast = rate >= _FAST_NETWORK_FROM_GBPS
    bytes_per_s = rate * GIGA / 8
    return replace(
        typical,
        name=f"{rate:g} Gb/s",
        bytes_per_s=bytes_per_s,
        latency_s=_RDMA_LATENCY_S if fast else _ETHERNET_LATENCY_S,
        kind="",
        transport="",
    )


def _is_nvlink(link: Link) -> bool:
    return link.kind.startswith("nv") or link.bytes_per_s >= _NVLINK_FROM_GBPS * GIGA


def _require_rate(name: str, rate: float) -> None:
    if not rate > 0:
        raise InvalidInput(f"{name} is {rate:g}; it must be above 0")
