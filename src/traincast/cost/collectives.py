"""Prices communication: the algorithm, the links a group crosses, and what it shares them with.

A pipelined algorithm that cuts n bytes into chunks over h hops of latency a and bandwidth B takes h a + n/B + 2 sqrt(h a n/B)
at the best chunk size (Hockney 1994; van de Geijn 1994): latency, bandwidth, and a square root between the two.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from traincast.cost.offload import estimate_host_task
from traincast.cost.sharing import MAX_EXACT_DEVICES, share_network
from traincast.spec import HOST, Cluster, Collective, Estimate, NodeGroup

HYBRID_CUBE: Mapping[int, float] = {2: 1 / 6, 3: 2 / 6, 4: 4 / 6, 5: 1.7 / 6, 6: 3 / 6, 7: 4 / 6, 8: 1.0}
"""Share of the six NVLinks of a V100 in a hybrid cube mesh that rings over so many of its eight devices can use."""

IN_SWITCH_BYTES_PER_S = 400e9
"""NVLink of this rate comes with switches that add (NVLink 4 and later)."""
ETHERNET_50G_BYTES_PER_S = 6.25e9
CHANNELS_INSIDE, CHANNELS_ACROSS = 16, 8
"""Cores that NCCL's rings occupy by default, inside a node and across."""
RINGS = ("all_gather", "reduce_scatter")
LONGEST_RING = 64
"""Nodes up to which a ring is walked node by node (seen up to 16). Beyond, libraries have logarithmic forms (NCCL's PAT since
2.23) or are told to shard inside groups: latency then grows with the logarithm. A prior, not measured."""
NVLINK2_BYTES_PER_S = 150e9
"""Six links of a V100: without switches in nodes of up to eight, with them in larger ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What one group of ranks has between its members."""

    num_ranks: int
    per_node: int
    num_nodes: int
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    intra_kind: str = "nvlink"
    inter_kind: str = "infiniband"
    num_servers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstants:
    """What software makes of links; fitted by `python -m research.fits.operators collectives` on measured collectives."""

    launch_s: float = 7.4e-06
    switched_efficiency: float = 0.88
    """Share of the nominal rate of NVLink, xGMI and like that a ring reaches."""
    in_switch_efficiency: float = 0.55
    """Share of it that an all-reduce reaches when the switches add in flight (NVLink SHARP, Hopper on). From one machine."""
    pcie_efficiency: float = 0.79
    network_efficiency: float = 0.736
    """Of InfiniBand, EFA and RoCE."""
    ethernet_efficiency: float = 0.7
    """Of plain Ethernet through the host's sockets."""
    ethernet_flow_bytes_per_s: float = 0.55e9
    """What one socket flow of a ring reaches on cards of up to 50 Gb/s; clouds cap a flow at 5 to 10 Gb/s. From the steps of five
    models on one 50 Gb/s cluster (Sia, aws): each left out in turn, the others say 0.55 to 0.6. On faster cards in proportion:
    1.1 on one of 100 Gb/s (Sia, azure)."""
    ethernet_pair_sharing: float = 1.5
    """How many times slower a socket flow is where a ring has two nodes only: what it sends and what it receives then run between
    the same two hosts. From the same steps: without each of the five models the others say 1.5."""
    intra_hop_s: float = 2.9e-06
    inter_hop_s: float = 2.24e-05
    pipeline: float = 0.61
    """Weight of the square root: how far from the best chunk size real libraries stay."""
    spread: float = 0.25
    """One standard deviation of the log error on left-out machines."""
    overlap_slowdown: float = 0.0
    """Weight of what a collective takes from kernels that run beside it; 1: as `slow_kernels` counts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined:
    """Rings inside a node, a hierarchy across nodes; latency, bandwidth and the square root between them."""

    constants: LinkConstants = field(default_factory=LinkConstants)

    def estimate(self, task: Collective, cluster: Cluster) -> Estimate:
        if task.axis == HOST:
            return estimate_host_task(task, cluster)
        route = find_route(task, cluster)
        size = task.num_bytes
        if task.bucket_bytes is not None and 0 < size < task.bucket_bytes:
            # A small gradient travels in a bucket with its neighbours and pays its part of the bucket.
            seconds = self.seconds(task.kind, task.bucket_bytes, route) * size / task.bucket_bytes
        else:
            seconds = self.seconds(task.kind, size, route)
        factor = math.exp(1.645 * self.constants.spread)
        return Estimate(
            seconds=seconds,
            low_s=seconds / factor,
            high_s=seconds * factor,
            host_s=self.constants.launch_s / 2,
            limit="communication",
            ground="transfer",
            slowdown=self.slow_kernels(route, _slowest_group(cluster)) if task.overlapped else 0.0,
            link="inter" if route.num_nodes > 1 else "intra",
        )

    def slow_kernels(self, route: Route, group: NodeGroup) -> float:
        """How much longer kernels take beside a collective: it holds a core for each channel, and for every byte on the link
        it reads or writes three in memory. The scarcer of the two counts."""
        if not self.constants.overlap_slowdown or route.num_ranks == 1:
            return 0.0
        rate = self._inter_bytes_per_s(route) if route.num_nodes > 1 else self._intra_bytes_per_s(route)
        cores = CHANNELS_ACROSS if route.num_nodes > 1 else CHANNELS_INSIDE
        share = max(cores / (group.device.num_sm or 100), 3 * rate / group.device.memory_bytes_per_s)
        return self.constants.overlap_slowdown * min(share, 0.5) / (1 - min(share, 0.5))

    def seconds(self, kind: str, num_bytes: float, route: Route) -> float:
        if route.num_ranks == 1 or num_bytes <= 0:
            return 0.0
        c = self.constants
        hops_s, volume_s = 0.0, 0.0
        inside, across = route.per_node, route.num_nodes
        intra = self._intra_bytes_per_s(route)
        inter = self._inter_bytes_per_s(route)
        if kind in ("push", "pull"):
            # The slower of a worker's own link and the servers' links, which all workers share (Li et al. 2014).
            own = inter if across > 1 else intra
            hops_s = c.inter_hop_s if across > 1 else c.intra_hop_s
            volume_s = num_bytes * max(1.0, route.num_ranks / max(1, route.num_servers)) / own
        elif kind == "send_recv":
            hops_s = c.inter_hop_s if across > 1 else c.intra_hop_s
            volume_s = num_bytes / (inter if across > 1 else intra)
        elif kind == "all_to_all":
            ranks = route.num_ranks
            hops_s = (inside - 1) * c.intra_hop_s + (across - 1) * c.inter_hop_s
            local_s = (inside - 1) / ranks * num_bytes / intra
            remote_s = (ranks - inside) / ranks * num_bytes * inside / inter if across > 1 else 0.0
            volume_s = max(local_s, remote_s)
        else:
            rounds = 2 if kind == "all_reduce" else 1
            hops_s = rounds * self._hops(kind, route)
            local_s = (inside - 1) / inside * num_bytes / intra
            # The shards of a node cross the network side by side, so its whole network carries the message once. One ring of
            # sockets through all ranks has no such shards: every link, those between nodes too, carries what a rank sends.
            parts = route.num_ranks if _by_sockets(route) else across
            remote_s = (parts - 1) / parts * num_bytes / inter if across > 1 else 0.0
            volume_s = rounds * max(local_s, remote_s)
            if across == 1 and _adds_in_switch(route) and kind == "all_reduce":
                switched = self._pipelined(
                    4 * c.intra_hop_s, num_bytes / (route.intra_bytes_per_s * c.in_switch_efficiency)
                )
                return min(switched, self._pipelined(hops_s, volume_s))
        return self._pipelined(hops_s, volume_s)

    def _hops(self, kind: str, route: Route) -> float:
        """Latency of the way through a group. All-reduces have trees across nodes; all-gathers and reduce-scatters are rings
        through every rank, of whose links one per node crosses the network. A torus of TPUs has short rings of its own."""
        c = self.constants
        inside, across = route.per_node, route.num_nodes
        if across == 1 or kind not in RINGS or route.inter_kind.startswith("ici"):
            return (inside - 1) * c.intra_hop_s + math.log2(across) * 2 * c.inter_hop_s
        ranks = inside * across
        links = across if across <= LONGEST_RING else LONGEST_RING * (1 + math.log2(across / LONGEST_RING))
        return (1 - 1 / ranks) * links * ((inside - 1) * c.intra_hop_s + c.inter_hop_s)

    def _pipelined(self, hops_s: float, volume_s: float) -> float:
        c = self.constants
        return c.launch_s + hops_s + volume_s + 2 * c.pipeline * math.sqrt(hops_s * volume_s)

    def _intra_bytes_per_s(self, route: Route) -> float:
        rate = route.intra_bytes_per_s
        if route.intra_kind == "hybrid-cube":
            return rate * HYBRID_CUBE.get(route.per_node, 0.5) * self.constants.switched_efficiency
        return rate * (
            self.constants.pcie_efficiency if route.intra_kind == "pcie" else self.constants.switched_efficiency
        )

    def _inter_bytes_per_s(self, route: Route) -> float:
        if _by_sockets(route):
            rate = route.inter_bytes_per_s * self.constants.ethernet_efficiency
            sharing = self.constants.ethernet_pair_sharing if route.num_nodes == 2 else 1.0
            faster = max(1.0, route.inter_bytes_per_s / ETHERNET_50G_BYTES_PER_S)
            return min(rate, self.constants.ethernet_flow_bytes_per_s * faster / sharing)
        return route.inter_bytes_per_s * self.constants.network_efficiency


def _by_sockets(route: Route) -> bool:
    return route.inter_kind.startswith("ethernet")


def _adds_in_switch(route: Route) -> bool:
    return route.intra_kind.startswith("nv") and route.intra_bytes_per_s >= IN_SWITCH_BYTES_PER_S and route.per_node > 2


def find_route(task: Collective, cluster: Cluster) -> Route:
    """Which links the group crosses: its members sit `stride` ranks apart, nodes hold `devices_per_node` ranks.

    Groups of the same kind run side by side on a node and share its network evenly: on equal nodes each has its members' part
    of it, on unequal ones the slowest group's max-min share counts, because the step waits for all.
    """
    group = _slowest_group(cluster)
    per_node = min(task.num_ranks, max(1, cluster.devices_per_node // task.stride))
    num_nodes = min(-(-task.num_ranks // per_node), cluster.num_nodes)
    inter_bytes_per_s = group.inter.bytes_per_s * min(1.0, per_node / cluster.devices_per_node)
    if num_nodes > 1 and len(cluster.groups) > 1 and cluster.num_devices <= MAX_EXACT_DEVICES:
        inter_bytes_per_s = share_network(task, cluster)
    kind = group.intra.kind or "nvlink"
    if (
        kind == "nvlink"
        and abs(group.intra.bytes_per_s / NVLINK2_BYTES_PER_S - 1) < 0.02
        and cluster.devices_per_node <= 8
    ):
        kind = "hybrid-cube"
    return Route(
        num_ranks=task.num_ranks,
        per_node=per_node,
        num_nodes=num_nodes,
        intra_bytes_per_s=group.intra.bytes_per_s,
        inter_bytes_per_s=inter_bytes_per_s,
        intra_kind=kind,
        inter_kind=group.inter.kind or "infiniband",
        num_servers=task.num_servers,
    )


def constants_from(values: Mapping[str, float]) -> LinkConstants:
    """Constants with some values changed, names checked."""
    known = {field.name for field in fields(LinkConstants)}
    return LinkConstants(**{name: value for name, value in values.items() if name in known})


def _slowest_group(cluster: Cluster) -> NodeGroup:
    """A ring runs at the speed of its slowest link."""
    crosses = cluster.num_nodes > 1
    return min(cluster.groups, key=lambda group: (group.inter if crosses else group.intra).bytes_per_s)
