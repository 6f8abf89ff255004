"""Prices what a device exchanges with its host, and what the host computes for it."""

import math

from traincast.spec import HOST, Cluster, Collective, Device, Estimate, NodeGroup
from traincast.units import NORMAL_90

HOST_BYTES_PER_S = ((2023, 614e9), (2020, 410e9), (0, 256e9))
"""(year of the device from which, memory of a two-socket server of that time): DGX H100 (2 x 8 channels DDR5-4800), DGX A100
(2 x 8 DDR4-3200), servers of V100 (2 x 6 DDR4-2666), by the data sheets of the processors. One node's devices share it."""
GRACE: dict[str, tuple[float, float]] = {"gh200": (450e9, 500e9), "gb200": (225e9, 256e9), "gb300": (225e9, 256e9)}
"""NVLink-C2C each way and LPDDR5X of one device's part of its Grace processor."""
HOST_EFFICIENCY = 0.5
"""Share of the nominal memory rate that a vectorised update of many threads reaches; DeepSpeed's CPU Adam moves about 28 bytes
for each parameter and updates a billion of them in a quarter of a second on a V100 server (Ren et al. 2021)."""
COPY_EFFICIENCY = 0.8
"""Of PCIe and C2C from pinned memory."""
COPY_LATENCY_S = 1e-5
NVME_BYTES_PER_S = 12e9
"""Drives of a node where nobody says it: two to four of PCIe 4, a belief. DGX-2's read 25 GB/s (Rajbhandari et al. 2021)."""
SPREAD = 0.4
"""One standard deviation of the log error: hosts differ, and none was measured here."""


def estimate_host_task(task: Collective, cluster: Cluster) -> Estimate:
    """A copy over the device's link to its host, or an update at its share of the host's memory."""
    seconds = max(_seconds(task, group) for group in cluster.groups)
    factor = math.exp(NORMAL_90 * SPREAD)
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
        return max(drives_s, task.num_bytes / (HOST_EFFICIENCY * host_bytes_per_s(group) * group.speed))
    return COPY_LATENCY_S + max(drives_s, task.num_bytes / (COPY_EFFICIENCY * copy_bytes_per_s(group.device)))


def nvme_bytes_per_s(group: NodeGroup) -> float:
    """One device's share of what the drives of its node read or write."""
    return (group.nvme_bytes_per_s or NVME_BYTES_PER_S) / group.devices_per_node


def copy_bytes_per_s(device: Device) -> float:
    grace = _grace(device)
    # A device without a stated host link sits on PCIe 3 x16 at worst.
    return grace[0] if grace else device.pcie_bytes_per_s or 1.5754e10


def host_bytes_per_s(group: NodeGroup) -> float:
    grace = _grace(group.device)
    if grace:
        return grace[1]
    year = group.device.year or 0
    return next(rate for since, rate in HOST_BYTES_PER_S if year >= since) / group.devices_per_node


def _grace(device: Device) -> tuple[float, float] | None:
    return next((rates for name, rates in GRACE.items() if device.name.startswith(name)), None)
