"""Prices communication: the algorithm, the links a group crosses, and what it shares them with."""

import math
from dataclasses import dataclass

from traincast.spec import Cluster, Collective, Estimate, NodeGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What one group of ranks has between its members."""

    num_ranks: int
    per_node: int
    num_nodes: int
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    intra_latency_s: float
    inter_latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBeta:
    """Latency per hop plus bytes over the slowest link of the ring; rings, trees and hierarchies, the fastest wins
    (Thakur et al. 2005)."""

    intra_efficiency: float = 0.75
    inter_efficiency: float = 0.8
    launch_s: float = 1e-5
    spread: float = 0.35

    def estimate(self, task: Collective, cluster: Cluster) -> Estimate:
        route = find_route(task, cluster)
        size = task.num_bytes
        if task.bucket_bytes is not None and 0 < size < task.bucket_bytes:
            # A small gradient travels in a bucket with its neighbours and pays its part of the bucket.
            seconds = self.seconds(task.kind, task.bucket_bytes, route) * size / task.bucket_bytes
        else:
            seconds = self.seconds(task.kind, size, route)
        factor = math.exp(1.645 * self.spread)
        return Estimate(
            seconds=seconds,
            low_s=seconds / factor,
            high_s=seconds * factor,
            host_s=1e-5,
            limit="communication",
            ground="bound",
        )

    def seconds(self, kind: str, num_bytes: float, route: Route) -> float:
        ranks = route.num_ranks
        if ranks == 1 or num_bytes == 0:
            return 0.0
        crosses = route.num_nodes > 1
        intra = route.intra_bytes_per_s * self.intra_efficiency
        inter = route.inter_bytes_per_s * self.inter_efficiency
        slowest = min(intra, inter) if crosses and route.per_node > 1 else inter if crosses else intra
        hop_s = route.inter_latency_s if crosses else route.intra_latency_s
        if kind == "send_recv":
            return self.launch_s + hop_s + num_bytes / slowest
        if kind == "all_to_all":
            local = (route.per_node - 1) / ranks * num_bytes / intra
            remote = (ranks - route.per_node) / ranks * num_bytes * route.per_node / inter if crosses else 0.0
            return self.launch_s + hop_s * math.ceil(math.log2(ranks)) + max(local, remote)
        rounds = 2 if kind == "all_reduce" else 1
        ring_hops_s = (ranks - route.num_nodes) * route.intra_latency_s + (
            route.num_nodes - 1 if crosses else 0
        ) * hop_s
        ring_s = rounds * (ring_hops_s + (ranks - 1) / ranks * num_bytes / slowest)
        depth_s = math.ceil(math.log2(max(2, route.per_node))) * route.intra_latency_s
        depth_s += math.ceil(math.log2(route.num_nodes)) * hop_s if crosses else 0.0
        tree_s = rounds * (depth_s + num_bytes / slowest)
        return self.launch_s + min(ring_s, tree_s)


def find_route(task: Collective, cluster: Cluster) -> Route:
    """Which links the group crosses: its members sit `stride` ranks apart, nodes hold `devices_per_node` ranks.

    Groups of the same kind run side by side on a node and share its network; a group with more members on the node has
    the larger share of it.
    """
    group = _slowest_group(cluster)
    per_node = min(task.num_ranks, max(1, cluster.devices_per_node // task.stride))
    num_nodes = min(-(-task.num_ranks // per_node), cluster.num_nodes)
    used_per_node = min(cluster.devices_per_node, cluster.num_devices)
    share = min(1.0, per_node / used_per_node)
    return Route(
        num_ranks=task.num_ranks,
        per_node=per_node,
        num_nodes=num_nodes,
        intra_bytes_per_s=group.intra.bytes_per_s,
        inter_bytes_per_s=group.inter.bytes_per_s * share,
        intra_latency_s=group.intra.latency_s,
        inter_latency_s=group.inter.latency_s,
    )


def _slowest_group(cluster: Cluster) -> NodeGroup:
    """A ring runs at the speed of its slowest link."""
    return min(
        cluster.groups, key=lambda group: group.inter.bytes_per_s if cluster.num_nodes > 1 else group.intra.bytes_per_s
    )
