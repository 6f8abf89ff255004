"""The links that a group of ranks crosses, from its neighbours outwards, each with the part of it that one member has."""

import math
from collections.abc import Mapping
from dataclasses import field, replace

from traincast.catalog import read_constant_table, read_constants
from traincast.cost._sharing import share_network
from traincast.noun import noun
from traincast.spec import FABRIC_FROM_BYTES_PER_S, RDMA_FROM_BYTES_PER_S, Cluster, Collective, Link, NodeGroup
from traincast.units import GIGA


@noun
class Transport:
    """What software makes of one kind of link."""

    efficiency: float
    log_sigma: float
    hop_s: float = 0.0
    peer_s: float = 0.0
    flow_bytes_per_s: float = math.inf
    writes_lines: bool = False


@noun
class CollectiveConstants:
    """What is fitted to measured collectives or assumed; the documents `collectives` and `transports` say what each is."""

    launch_s: float
    pipeline: float
    local_copy: float
    exchange_copy: float
    exchange_hop: float
    dispatch_bytes_per_s: float
    dispatch_own: float
    dispatch_start_s: float
    step_s: float
    fill: float
    long_step_s: float
    long_hop_s: float
    short_share: float
    line_share: float
    line_hop_s: float
    tree_share: float
    pair_gain: float
    switch_share: float
    switch_start_s: float
    network_sum_share: float
    exchange_start_s: float
    posting: float
    in_switch_gain: float
    latency_log_sigma: float
    channels_inside: int
    channels_across: int
    unknown_sm: int
    memory_per_link_byte: float
    channel_bytes_per_s: float
    pair_channels: int
    plain_ranks: int
    torus_dims: int
    bridged_part: int
    tree_channel_bytes_per_s: Mapping[str, tuple[float, float]]
    hybrid_cube: Mapping[str, tuple[float, float]]
    host_staged_share: float
    pairs_latency_s: float
    pcie3_bytes_per_s: float
    certainly_direct_from_bytes_per_s: float
    most_exact_devices: int
    transports: Mapping[str, Transport] = field(default_factory=lambda: read_constant_table(Transport, "transports"))


CONSTANTS = read_constants(CollectiveConstants, "collectives")


@noun
class Level:
    """One link on the way, between units of the level below it."""

    fan: int
    """Units that it joins."""
    inside: int
    """Members of the group in each of these units."""
    link: Link
    """With its transport settled."""
    bytes_per_s: float
    """Nominal, of one member while all groups of this kind talk."""
    is_network: bool = False
    assumed: bool = False
    """The transport was not given."""


@noun
class Route:
    """What one group of ranks has between its members, innermost level first; none for a group of one."""

    num_ranks: int
    levels: tuple[Level, ...] = ()
    num_servers: int = 0
    copies: float = 1.0
    """Of every token, where receivers of an all-to-all share them."""
    tree_bytes_per_s: tuple[float, float] = (math.inf, math.inf)
    """What trees between two nodes and between more can reduce, whatever the network carries."""

    @property
    def num_nodes(self) -> int:
        """Parts of the group that have only a network between them."""
        return math.prod(level.fan for level in self.levels if level.is_network)

    @property
    def crosses_network(self) -> bool:
        return any(level.is_network for level in self.levels)


def find_route(task: Collective, cluster: Cluster) -> Route:
    """The members sit `stride` ranks apart, and ranks fill each domain before the next begins.

    Groups of the same kind run side by side and share a node's network evenly: on equal nodes each has its members' part of
    it, on unequal ones the slowest group's max-min share counts, because the step waits for all.
    """
    group = slowest_group(cluster)
    levels: list[Level] = []
    inside = 1
    for span, link in _spans(group, cluster):
        members = min(task.num_ranks, max(1, span // task.stride))
        fan = -(-members // inside)
        if link is group.inter and not group.domains:
            fan = min(fan, cluster.num_nodes)
        if fan < 2:
            continue
        levels.append(_level(task, cluster, group, link, span=span, fan=fan, inside=inside))
        inside *= fan
        if inside >= task.num_ranks:
            break
    return Route(
        num_ranks=task.num_ranks,
        levels=tuple(levels),
        num_servers=task.num_servers,
        tree_bytes_per_s=_tree_rates(group),
    )


def _tree_rates(group: NodeGroup) -> tuple[float, float]:
    """A tree has a channel for each adapter that has a device of its own, and a channel has a limit by generation. What goes up a
    tree comes down again, so that half is left."""
    name = group.device.architecture.lower()
    pair, many = next(
        (rates for word, rates in CONSTANTS.tree_channel_bytes_per_s.items() if name.startswith(word)),
        (math.inf, math.inf),
    )
    channels = min(group.inter.num_ports, group.devices_per_node)
    return channels * pair / 2, channels * many / 2


def part_replicas(cluster: Cluster) -> Cluster:
    """The cluster as devices see it that run in containers of their own. A container has a host name of its own, so libraries
    take two on one host for two hosts, and use neither NVLink nor shared memory between them. Where the network reads device
    memory by itself, all that they send each other goes through the adapters of the host, of which each has its part. Elsewhere
    it goes through sockets inside the host, whose cores copy."""
    return replace(cluster, groups=tuple(map(_part_group, cluster.groups)))


def _part_group(group: NodeGroup) -> NodeGroup:
    host, network = group.devices_per_node, settle_transport(group.inter, between_nodes=True)
    if host == 1:
        return group
    if network.transport == "sockets":
        inside = replace(group.intra, transport="sockets", latency_s=network.latency_s, flow_bytes_per_s=None)
        return replace(group, intra=inside, domains=())
    share = replace(network, bytes_per_s=network.bytes_per_s / host)
    return replace(group, num_nodes=group.num_devices, devices_per_node=1, inter=share, domains=())


def slowest_group(cluster: Cluster) -> NodeGroup:
    """A ring runs at the speed of its slowest link."""
    crosses = cluster.num_nodes > 1
    return min(cluster.groups, key=lambda group: (group.inter if crosses else group.intra).bytes_per_s)


def settle_transport(link: Link, *, between_nodes: bool) -> Link:
    """The link with the transport that is assumed where none is given."""
    if link.transport:
        return link
    if between_nodes:
        return replace(link, transport="infiniband" if link.bytes_per_s >= RDMA_FROM_BYTES_PER_S else "sockets")
    return replace(link, transport="nvlink" if link.bytes_per_s >= FABRIC_FROM_BYTES_PER_S else "pcie")


def alternative_transport(link: Link) -> str:
    """What a link of unknown transport might be instead of what is assumed."""
    if link.transport == "infiniband" and link.bytes_per_s >= CONSTANTS.certainly_direct_from_bytes_per_s:
        return "tcpx"
    return {"infiniband": "sockets", "sockets": "infiniband", "nvlink": "pcie", "pcie": "pcie-host"}[link.transport]


def with_other_links(cluster: Cluster) -> Cluster | None:
    """The cluster with the transports that its links might have instead of the assumed ones; None where all are given."""
    groups = []
    for group in cluster.groups:
        intra, inter = _other(group.intra, between_nodes=False), _other(group.inter, between_nodes=True)
        groups.append(replace(group, intra=intra, inter=inter))
    return None if tuple(groups) == cluster.groups else replace(cluster, groups=tuple(groups))


def _other(link: Link, *, between_nodes: bool) -> Link:
    if link.transport:
        return link
    return replace(link, transport=alternative_transport(settle_transport(link, between_nodes=between_nodes)))


def describe_links(cluster: Cluster) -> tuple[str, ...]:
    """What is assumed about links whose transport was not given, in one sentence each."""
    notes: list[str] = []
    for group in cluster.groups:
        tiers = ((group.intra, False, group.devices_per_node > 1), (group.inter, True, cluster.num_nodes > 1))
        for link, between, used in tiers:
            if used and not link.transport:
                taken = settle_transport(link, between_nodes=between)
                where = f"network of {link.bytes_per_s * 8 / GIGA:g} Gb/s" if between else "link inside a node"
                notes.append(
                    f"the transport of the {where} ({link.name}) is not given; {taken.transport} is assumed, and the interval "
                    f"covers {alternative_transport(taken)}"
                )
                if taken.transport == "sockets" and taken.flow_bytes_per_s:
                    notes.append(
                        f"such devices are rented, so one connection is taken to carry {taken.flow_bytes_per_s * 8 / GIGA:g} Gb/s"
                    )
    return tuple(dict.fromkeys(notes))


def _spans(group: NodeGroup, cluster: Cluster) -> list[tuple[int, Link]]:
    """Devices under one unit of each level, smallest first; a domain on the same link as the level below replaces it."""
    host = cluster.devices_per_node
    spans = [(host, group.intra), *((_filled(domain.num_devices, cluster), domain.link) for domain in group.domains)]
    if cluster.num_nodes > 1:
        spans.append((cluster.num_devices, group.inter))
    spans.sort(key=lambda level: level[0])
    return [
        (span, link)
        for place, (span, link) in enumerate(spans)
        if place + 1 == len(spans) or spans[place + 1][1] != link
    ]


def _filled(num_devices: int, cluster: Cluster) -> int:
    """Devices that a job has in each domain of this size: it fills as many as it needs, evenly and by whole hosts."""
    total, host = cluster.num_devices, cluster.devices_per_node
    if num_devices >= total or num_devices <= host:
        return min(num_devices, total)
    num_domains = -(-total // num_devices)
    return min(num_devices, -(-total // (num_domains * host)) * host)


def _level(
    task: Collective, cluster: Cluster, group: NodeGroup, link: Link, *, span: int, fan: int, inside: int
) -> Level:
    host = cluster.devices_per_node
    between_nodes = span > host
    settled = settle_transport(link, between_nodes=between_nodes)
    is_network = between_nodes and settled.is_network
    if not is_network:
        settled, rate = _inside_a_node(settled, group, fan=fan, host=host)
    elif link is group.inter and len(cluster.groups) > 1 and cluster.num_devices <= CONSTANTS.most_exact_devices:
        rate = share_network(task, cluster) / min(inside, host)
    else:
        rate = link.bytes_per_s / host
    return Level(
        fan=fan, inside=inside, link=settled, bytes_per_s=rate, is_network=is_network, assumed=not link.transport
    )


def _inside_a_node(link: Link, group: NodeGroup, *, fan: int, host: int) -> tuple[Link, float]:
    """The link that `fan` neighbours really use, and what one of them has of it."""
    rate = link.bytes_per_s
    if link.transport == "nvlink-cube" and host <= 8:
        used, links = CONSTANTS.hybrid_cube[str(fan)]
        return link, rate * (used / links)
    if link.transport == "nvlink-pairs" and fan > 2:
        return replace(link, transport="pcie", latency_s=max(link.latency_s, CONSTANTS.pairs_latency_s)), min(
            rate, group.device.pcie_bytes_per_s or CONSTANTS.pcie3_bytes_per_s
        )
    if link.transport in ("xgmi", "roce") and host > 1:
        # Every pair of devices has links of its own, so a few of them reach only those between themselves.
        return link, rate * min(1.0, (fan - 1) / (host - 1))
    if link.transport == "pcie-host":
        return link, rate * min(1.0, CONSTANTS.host_staged_share / host)
    return link, rate
