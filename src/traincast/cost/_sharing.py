"""Who gets how much of the networks of nodes that several groups of one job cross."""

from collections import Counter

from traincast.spec import Cluster, Collective


def share_network(task: Collective, cluster: Cluster) -> float:
    """Bytes per second of a node's network that the slowest of the groups like the task's gets while all of them talk.

    A group's hierarchy sends its message once over the network of every node it touches, however many members sit there. Rates
    are max-min fair (Bertsekas and Gallager 1992): all grow together until the first network is full, which the slowest share.
    """
    sizes, rates = [], []
    for group in cluster.groups:
        sizes += [group.devices_per_node] * group.num_nodes
        rates += [group.inter.bytes_per_s] * group.num_nodes
    node_of = [node for node, size in enumerate(sizes) for _ in range(size)]
    block = task.stride * task.num_ranks
    crossed: Counter[int] = Counter()
    for first in range(0, len(node_of) - block + 1, block):
        for offset in range(task.stride):
            nodes = {node_of[first + offset + task.stride * member] for member in range(task.num_ranks)}
            if len(nodes) > 1:
                crossed.update(nodes)
    return min((rates[node] / number for node, number in crossed.items()), default=min(rates))
