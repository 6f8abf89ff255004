"""Who gets how much of links that several flows cross: max-min fair rates by progressive filling."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Cluster, Collective


@noun
class Flow:
    """A ring, or a whole job: what it sends over each link for every byte of its own rate, and the most it can use."""

    uses: Mapping[Hashable, float] = field(default_factory=dict)
    limit_bytes_per_s: float = math.inf
    weight: float = 1.0
    """Flows that share a full link have rates in proportion to their weights: several connections weigh more than one."""

    def __post_init__(self) -> None:
        if not self.limit_bytes_per_s >= 0 or not self.weight > 0 or any(not use > 0 for use in self.uses.values()):
            raise InvalidInput(
                f"a flow with limit {self.limit_bytes_per_s}, weight {self.weight} and uses {dict(self.uses)}; the limit "
                "must be at least 0, weights and uses above 0"
            )


def _check_links(flows: Sequence[Flow], capacities: Mapping[Hashable, float]) -> None:
    for flow in flows:
        for link in flow.uses:
            if link not in capacities:
                raise InvalidInput(f"a flow uses the link {link!r}, whose capacity is not given")


def share_links(flows: Sequence[Flow], capacities: Mapping[Hashable, float]) -> list[float]:
    """The max-min fair rate of each flow: nobody's can grow without taking from one that is no faster (Bertsekas and Gallager
    1992). All rates grow together; a flow stops at its limit or when a link it crosses is full."""
    _check_links(flows, capacities)
    rates = [0.0] * len(flows)
    growing = set(range(len(flows)))
    while growing:
        # How far the common level may rise before the next link is full or the next flow has all it can use.
        level = min(flows[place].limit_bytes_per_s / flows[place].weight for place in growing)
        full: list[Hashable] = []
        for link, capacity in capacities.items():
            pull = sum(flows[place].weight * flows[place].uses.get(link, 0.0) for place in growing)
            if not pull:
                continue
            taken = sum(
                rates[place] * flow.uses.get(link, 0.0) for place, flow in enumerate(flows) if place not in growing
            )
            reached = max(0.0, capacity - taken) / pull
            if reached < level * (1 - 1e-12):
                level, full = reached, [link]
            elif reached <= level * (1 + 1e-12):
                full.append(link)
        if math.isinf(level):
            return [math.inf if place in growing else rate for place, rate in enumerate(rates)]
        stopping = {
            place
            for place in growing
            if flows[place].limit_bytes_per_s <= level * flows[place].weight * (1 + 1e-12)
            or any(link in flows[place].uses for link in full)
        }
        for place in stopping:
            rates[place] = level * flows[place].weight
        growing -= stopping
    return rates


def share_network(task: Collective, cluster: Cluster) -> float:
    """Bytes per second of a node's network that the slowest of the groups like the task's gets while all of them talk.

    A group's hierarchy sends its message once over the network of every node it touches, however many members sit there.
    """
    sizes, rates = [], []
    for group in cluster.groups:
        sizes += [group.devices_per_node] * group.num_nodes
        rates += [group.inter.bytes_per_s] * group.num_nodes
    node_of = [node for node, size in enumerate(sizes) for _ in range(size)]
    block = task.stride * task.num_ranks
    flows = []
    for first in range(0, len(node_of) - block + 1, block):
        for offset in range(task.stride):
            nodes = {node_of[first + offset + task.stride * member] for member in range(task.num_ranks)}
            if len(nodes) > 1:
                flows.append(Flow(uses=dict.fromkeys(nodes, 1.0)))
    if not flows:
        return min(rates)
    return min(share_links(flows, dict(enumerate(rates))))
