"""Prices what a device exchanges with its host, and what the host computes for it."""

import math
from collections.abc import Mapping

from traincast.catalog import read_constants
from traincast.noun import noun
from traincast.spec import HOST, Cluster, Collective, Device, Estimate, NodeGroup
from traincast.units import NORMAL_90


@noun
class HostConstants:
    """Of the document `host`, which says what each is."""

    host_bytes_per_s: tuple[tuple[int, float], ...]
    grace: Mapping[str, tuple[float, float]]
    host_efficiency: float
    copy_efficiency: float
    copy_latency_s: float
    unknown_pcie_bytes_per_s: float
    nvme_bytes_per_s: float
    log_sigma: float


CONSTANTS = read_constants(HostConstants, "host")


def estimate_host_task(task: Collective, cluster: Cluster) -> Estimate:
    """A copy over the device's link to its host, or an update at its share of the host's memory."""
    seconds = max(_seconds(task, group) for group in cluster.groups)
    factor = math.exp(NORMAL_90 * CONSTANTS.log_sigma)
    return Estimate(
        seconds=seconds, low_s=seconds / factor, high_s=seconds * factor, limit="communication", ground="bound",
        link=HOST if task.kind == "copy_in" and task.phase != "optimizer" else "",
    )  # fmt: skip


def describe_host(cluster: Cluster, *, held: str = "optimizer state", nvme: bool = False) -> str:
    """What is assumed about the hosts, in one sentence."""
    group = cluster.groups[0]
    drives = ""
    if nvme:
        known = "" if group.nvme_bytes_per_s else " (not given; --nvme-bytes-per-s to change)"
        drives = f", and {nvme_bytes_per_s(group) * group.devices_per_node / 1e9:.0f} GB/s of a node's NVMe{known}"
    where = "on NVMe" if nvme else "in host memory"
    return (
        f"{held} {where}: {copy_bytes_per_s(group.device) / 1e9:.0f} GB/s between a {group.device.name} and its "
        f"host and {host_bytes_per_s(group) / 1e9:.0f} GB/s of host memory for each device{drives} are assumed"
    )


def _seconds(task: Collective, group: NodeGroup) -> float:
    if task.num_bytes <= 0:
        return 0.0
    drives_s = task.num_bytes / nvme_bytes_per_s(group) if task.tier == "nvme" else 0.0
    if task.kind == "host_update":
        return max(drives_s, task.num_bytes / (CONSTANTS.host_efficiency * host_bytes_per_s(group) * group.speed))
    return CONSTANTS.copy_latency_s + max(
        drives_s, task.num_bytes / (CONSTANTS.copy_efficiency * copy_bytes_per_s(group.device))
    )


def nvme_bytes_per_s(group: NodeGroup) -> float:
    """One device's share of what the drives of its node read or write."""
    return (group.nvme_bytes_per_s or CONSTANTS.nvme_bytes_per_s) / group.devices_per_node


def copy_bytes_per_s(device: Device) -> float:
    grace = _grace(device)
    return grace[0] if grace else device.pcie_bytes_per_s or CONSTANTS.unknown_pcie_bytes_per_s


def host_bytes_per_s(group: NodeGroup) -> float:
    grace = _grace(group.device)
    if grace:
        return grace[1]
    year = group.device.year or 0
    return next(rate for since, rate in CONSTANTS.host_bytes_per_s if year >= since) / group.devices_per_node


def _grace(device: Device) -> tuple[float, float] | None:
    return next((rates for name, rates in CONSTANTS.grace.items() if device.name.startswith(name)), None)
