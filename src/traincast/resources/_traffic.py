"""A collective on a cluster to the bytes that one of its ranks sends and receives, and to how many of them leave the node."""

from traincast.noun import noun
from traincast.spec import Cluster, Collective

SERVED = ("push", "pull")
"""What workers exchange with parameter servers: through the host's network stack, while the device waits."""


@noun
class Traffic:
    """Of one rank; what is sent is also received, except where one rank only sends."""

    link_bytes: float
    """Over any link, in each direction."""
    network_bytes: float
    """Over the node's network, in each direction; the rest stays inside the node or its NVLink domain."""


def count_traffic(task: Collective, cluster: Cluster) -> Traffic:
    """Payload of the algorithms that are optimal in bytes: rings inside a node, and between nodes each shard once.

    An all-reduce of n bytes over p ranks sends 2 (p-1)/p n from each rank (Patarasuk and Yuan 2009). With k of the ranks on
    each of N nodes a node sends 2 (N-1)/N n, and its ranks carry equal parts of it.
    """
    ranks, size = task.num_ranks, task.num_bytes
    inside = min(ranks, max(1, cluster.devices_per_domain // task.stride))
    nodes = min(-(-ranks // inside), cluster.num_nodes)
    if ranks == 1:
        return Traffic(link_bytes=0.0, network_bytes=0.0)
    if task.kind in SERVED:
        # A worker sends all its gradients and receives all weights, however many servers they are spread over.
        return Traffic(link_bytes=size, network_bytes=size if cluster.num_nodes > 1 else 0.0)
    if task.kind == "send_recv":
        return Traffic(link_bytes=size, network_bytes=size if nodes > 1 else 0.0)
    if task.kind == "all_to_all":
        return Traffic(
            link_bytes=size * (ranks - 1) / ranks,
            network_bytes=size * (ranks - inside) / ranks if nodes > 1 else 0.0,
        )
    rounds = 2 if task.kind == "all_reduce" else 1
    return Traffic(
        link_bytes=rounds * size * (ranks - 1) / ranks,
        network_bytes=rounds * size * (nodes - 1) / nodes / inside,
    )
