"""Prices communication as libraries run it: an algorithm and a protocol over the links that a group crosses.

n bytes in chunks over hops of latency a and rate B take about latency + n/B + c sqrt(a n/B) (Hockney 1994; van de Geijn 1994).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from traincast.cost._bounds import is_systolic
from traincast.cost._offload import estimate_host_task
from traincast.cost._routes import (
    CONSTANTS,
    CollectiveConstants,
    Level,
    Route,
    find_route,
    slowest_group,
)
from traincast.noun import noun
from traincast.spec import HOST, Cluster, Collective, Estimate, NodeGroup
from traincast.units import NORMAL_90

RINGS = ("all_gather", "reduce_scatter")


@noun
class Work:
    """What an algorithm does: the latency of its longest way, and for every level the seconds of its bytes and of one hop."""

    latency_s: float
    volumes: tuple[tuple[float, float], ...]
    posted_s: float = 0.0
    """Of posting messages one by one, while those before them travel."""


@noun
class Pipelined:
    """The fastest of the algorithms that libraries have for a kind of collective on a route."""

    constants: CollectiveConstants = CONSTANTS

    def estimate(self, task: Collective, cluster: Cluster) -> Estimate:
        if task.axis == HOST:
            return estimate_host_task(task, cluster)
        route = replace(find_route(task, cluster), copies=task.copies)
        seconds = self._in_buckets(task, route)
        low_s, high_s = self._interval(route, seconds)
        return Estimate(
            seconds=seconds,
            low_s=low_s,
            high_s=high_s,
            host_s=self.constants.launch_s / 2,
            limit="communication",
            ground="bound" if any(level.assumed for level in route.levels) else "transfer",
            slowdown=self.slow_kernels(task, seconds, route, slowest_group(cluster)) if task.overlapped else 0.0,
            link="inter" if route.crosses_network else "intra",
        )

    def seconds(self, kind: str, num_bytes: float, route: Route, algorithm: str = "") -> float:
        return self.choose(kind, num_bytes, route, algorithm)[1]

    def choose(self, kind: str, num_bytes: float, route: Route, algorithm: str = "") -> tuple[str, float]:
        """The algorithm that a library would take at this size (or the one that it is told, where the route has it), and its
        seconds."""
        if route.num_ranks == 1 or num_bytes <= 0 or not route.levels:
            return "none", 0.0
        priced = [
            (name, self._price(work))
            for name in ALGORITHMS.get(kind, _RINGS)
            if (work := _WORK[name](self.constants, kind, num_bytes, route)) is not None
        ]
        told = [choice for choice in priced if choice[0].rpartition(" ")[2] == algorithm]
        return min(told or priced, key=lambda choice: choice[1])

    def slow_kernels(self, task: Collective, seconds: float, route: Route, group: NodeGroup) -> float:
        """What kernels beside a collective lose, as a share of its time: it holds a core for each channel while it runs (but on
        chips whose own engines send), and for every byte on the link it reads or writes three in memory. The scarcer of the two
        counts. Weights that are gathered unit by unit are copied out of the gathered buffer, and gradients into the buffer that
        is scattered, between the kernels (FSDP2's copy_out and copy_in), but not where a compiler plans all memory."""
        if route.num_ranks == 1 or not route.levels or not seconds:
            return 0.0
        channels = CONSTANTS.channels_across if route.crosses_network else CONSTANTS.channels_inside
        cores = 0.0 if is_systolic(group.device) else channels / (group.device.num_sm or CONSTANTS.unknown_sm)
        sent = (2 if task.kind == "all_reduce" else 1) * (1 - 1 / route.num_ranks) * task.num_bytes
        memory_s = CONSTANTS.memory_per_link_byte * sent / group.device.memory_bytes_per_s
        in_units = (
            task.axis == "data" and task.kind in RINGS and task.bucket_bytes is None and not is_systolic(group.device)
        )
        copies_s = 2 * task.num_bytes / group.device.memory_bytes_per_s if in_units else 0.0
        return min(1.0, max(cores, memory_s / seconds) + copies_s / seconds)

    def _in_buckets(self, task: Collective, route: Route) -> float:
        if task.bucket_bytes is not None and 0 < task.num_bytes < task.bucket_bytes:
            # A small gradient travels in a bucket with its neighbours and pays its part of the bucket.
            return self.seconds(task.kind, task.bucket_bytes, route) * task.num_bytes / task.bucket_bytes
        return self.seconds(task.kind, task.num_bytes, route)

    def _interval(self, route: Route, seconds: float) -> tuple[float, float]:
        """90% of the truth by what left-out machines showed."""
        if not seconds:
            return 0.0, 0.0
        c = self.constants
        latency = min(1.0, (c.launch_s + sum(_hop_s(c, level) for level in route.levels)) / seconds)
        sigma = max(c.transports[level.link.transport].log_sigma for level in route.levels)
        factor = math.exp(NORMAL_90 * math.hypot(sigma * (1 - latency), c.latency_log_sigma * latency))
        return seconds / factor, seconds * factor

    def _price(self, work: Work) -> float:
        """Levels work side by side on different chunks, so the slowest of them counts."""
        c = self.constants
        slowest_s = max(seconds + c.pipeline * math.sqrt(seconds * hop_s) for seconds, hop_s in work.volumes)
        beside = max(slowest_s, work.posted_s) + c.posting * min(slowest_s, work.posted_s)
        return c.launch_s + work.latency_s + beside


Algorithm = Callable[..., Work | None]


def _hop_s(c: CollectiveConstants, level: Level) -> float:
    return level.link.latency_s + c.transports[level.link.transport].hop_s


def _step_s(c: CollectiveConstants, level: Level, route: Route, protocol: str, *, posts: bool = False) -> float:
    """A hop by a protocol that sends flags with the data (LL, LL128) or by the one of long messages (Simple), which wait for each
    other's buffers. Where the network is on the way, a hop inside a node of a ring is no sooner than the host has posted its
    message."""
    hop_s = _hop_s(c, level)
    if not route.crosses_network or level.link.transport == "ici":
        return hop_s
    if level.is_network:
        return hop_s + {"LL": 0.0, "LL128": c.line_hop_s, "": level.link.latency_s + c.long_hop_s}[protocol]
    return max(hop_s, c.step_s if posts and protocol else 0.0 if protocol else c.long_step_s)


def effective_bytes_per_s(c: CollectiveConstants, level: Level) -> float:
    """What one member gets of a level in a long message."""
    transport = c.transports[level.link.transport]
    flow = math.inf if math.isinf(transport.flow_bytes_per_s) else level.link.flow_bytes_per_s
    flows = (flow or transport.flow_bytes_per_s) * level.link.num_ports
    # The adapter sends one chunk while a core copies the next, so the slower of both bounds a ring of sockets.
    return min(level.bytes_per_s * transport.efficiency, flows / level.inside)


def _ring(c: CollectiveConstants, kind: str, num_bytes: float, route: Route, protocol: str = "") -> Work:
    """Every rank passes its part on to its neighbour (Patarasuk and Yuan 2009); an all-reduce goes round twice."""
    rounds = 2 if kind == "all_reduce" else 1
    latency_s = rounds * _walk_s(c, route, protocol)
    return Work(latency_s=latency_s, volumes=_ring_volumes(c, num_bytes, route, rounds=rounds, latency_s=latency_s))


def _tree(c: CollectiveConstants, kind: str, num_bytes: float, route: Route, protocol: str = "") -> Work | None:
    """Chains inside nodes and double binary trees between them (Sanders et al. 2009): fewer hops than a ring, but nodes inside
    the tree send twice. Two nodes exchange halves both ways at once."""
    if not route.crosses_network:
        return None
    latency_s = 0.0
    for level in route.levels:
        hops = math.log2(level.fan) if level.is_network else level.fan - 1
        latency_s += 2 * hops * _step_s(c, level, route, protocol)
    volumes = _ring_volumes(c, num_bytes, route, rounds=2, latency_s=latency_s)
    *others, (between_s, fill_s) = _between(c, num_bytes, volumes, route, many=c.tree_share)
    pair_rate, many_rate = route.tree_bytes_per_s
    limit_s = num_bytes / (pair_rate if route.num_nodes == 2 else many_rate)
    return Work(latency_s=latency_s, volumes=(*others, (max(between_s, limit_s), fill_s)))


def _flagged(
    algorithm: Algorithm, protocol: str, c: CollectiveConstants, kind: str, num_bytes: float, route: Route
) -> Work | None:
    """The same between nodes by a protocol that sends flags with the data: quick steps at a part of the rate. LL128 needs
    networks that write whole lines of 128 bytes."""
    lines = all(c.transports[level.link.transport].writes_lines for level in route.levels if level.is_network)
    work = algorithm(c, kind, num_bytes, route, protocol) if route.crosses_network else None
    if work is None or (protocol == "LL128" and not lines):
        return None
    share = c.short_share if protocol == "LL" else c.line_share
    return replace(work, volumes=tuple((seconds / share, fill_s) for seconds, fill_s in work.volumes))


def _in_switch(c: CollectiveConstants, kind: str, num_bytes: float, route: Route) -> Work | None:
    """NVLink SHARP: the switches of a node add what its ranks send and return the sum; trees join the nodes."""
    inner = route.levels[0]
    if not inner.link.reduces or inner.is_network or inner.fan <= CONSTANTS.plain_ranks:
        return None
    hop_s = _hop_s(c, inner)
    few_hops = 2 * (CONSTANTS.plain_ranks - 1)
    latency_s = few_hops * hop_s + sum(
        2 * math.log2(level.fan) * _step_s(c, level, route, "") for level in route.levels[1:]
    )
    if route.crosses_network:
        latency_s += c.switch_start_s
    first, *others = _ring_volumes(c, num_bytes, route, rounds=2, latency_s=latency_s)
    few_s = (few_hops + c.local_copy) / CONSTANTS.plain_ranks * num_bytes / effective_bytes_per_s(c, inner)
    volumes = ((max(first[0] / c.in_switch_gain, few_s), hop_s), *others)
    return Work(latency_s=latency_s, volumes=_between(c, num_bytes, volumes, route, many=c.switch_share))


def _in_network(c: CollectiveConstants, kind: str, num_bytes: float, route: Route) -> Work | None:
    """CollNet with SHARP (Graham et al. 2016), where a network is said to add: a node sends its sum up once and gets the total
    down once, however many there are."""
    networks = [level for level in route.levels if level.is_network]
    if not networks or not all(level.link.reduces for level in networks):
        return None
    latency_s = sum(
        2 * (1 if level.is_network else level.fan - 1) * _step_s(c, level, route, "") for level in route.levels
    )
    volumes = _ring_volumes(c, num_bytes, route, rounds=2, latency_s=latency_s)
    once_s = [num_bytes / level.inside / effective_bytes_per_s(c, level) / c.network_sum_share for level in networks]
    return Work(latency_s=latency_s, volumes=(*volumes[: -len(networks)], *((s, c.fill * latency_s) for s in once_s)))


def _between(
    c: CollectiveConstants, num_bytes: float, volumes: tuple[tuple[float, float], ...], route: Route, *, many: float
) -> tuple[tuple[float, float], ...]:
    """The volumes with the share of the network's rate that an algorithm reaches between two nodes, and between more. However
    a sum is found, each of n nodes sends 2 (n - 1) / n of it (Patarasuk and Yuan 2009)."""
    found = []
    for level, (seconds, fill_s) in zip(route.levels, volumes, strict=True):
        if level.is_network:
            least = 2 * (level.fan - 1) / level.fan * num_bytes / level.inside
            seconds = max(seconds / (c.pair_gain if level.fan == 2 else many), least / effective_bytes_per_s(c, level))
        found.append((seconds, fill_s))
    return tuple(found)


def _once(c: CollectiveConstants, kind: str, num_bytes: float, route: Route) -> Work | None:
    """An exchange with tokens sent once to every unit that needs them, as fast as the cores of that kernel copy."""
    if route.copies <= 1:
        return None
    work = _exchange(c, num_bytes, route)
    units = route.num_ranks
    carried = num_bytes / route.copies * (units * (1 - math.pow(1 - 1 / units, route.copies)) + c.dispatch_own)
    volumes = tuple(
        (seconds if level.is_network else max(seconds, carried / c.dispatch_bytes_per_s), hop_s)
        for level, (seconds, hop_s) in zip(route.levels, work.volumes, strict=True)
    )
    return Work(latency_s=work.latency_s + c.dispatch_start_s, volumes=volumes)


def _exchange(c: CollectiveConstants, num_bytes: float, route: Route) -> Work:
    """Each rank sends to every other what is theirs; the levels carry their parts side by side. Messages to peers on other nodes
    are posted one by one, while the first of them travel."""
    latency_s, posted_s, volumes = 0.0, 0.0, []
    for level in route.levels:
        hop_s = _hop_s(c, level)
        sent = (level.fan - 1) * level.inside / route.num_ranks * num_bytes * _sent_once(route, level)
        if level is route.levels[0] and not level.is_network:
            sent += c.exchange_copy * num_bytes / route.num_ranks
        if level.link.transport == "pcie":
            # Devices hang below two bridges: half of what half of them send goes through the one link between these.
            sent = max(sent, level.fan / CONSTANTS.bridged_part * num_bytes * _sent_once(route, level))
        if level.is_network:
            latency_s += c.exchange_start_s + level.link.latency_s
            posted_s += (level.fan - 1) * level.inside * c.transports[level.link.transport].peer_s
        else:
            latency_s += c.exchange_hop * (level.fan - 1) * hop_s
        volumes.append((sent / effective_bytes_per_s(c, level), 0.0 if level.is_network else hop_s))
    return Work(latency_s=latency_s, volumes=tuple(volumes), posted_s=posted_s)


def _sent_once(route: Route, level: Level) -> float:
    """Share of the copies of a token that cross a level when each unit beyond it that needs some gets one: of k copies that
    fall on u units at random, u (1 - (1 - 1/u)^k) units get any."""
    units = level.fan if level.is_network else route.num_ranks
    reached = units * (1 - math.pow(1 - 1 / units, route.copies))
    return reached / route.copies


def _pair(c: CollectiveConstants, kind: str, num_bytes: float, route: Route) -> Work:
    """One message to a neighbour, over the outermost link between them. The more ranks a group has, the fewer of the library's
    channels a pair of them gets between nodes."""
    level = route.levels[-1]
    hop_s, rate = _hop_s(c, level), effective_bytes_per_s(c, level)
    if level.is_network:
        rate = min(rate, c.channel_bytes_per_s * max(1.0, c.pair_channels / route.num_ranks))
    return Work(latency_s=hop_s, volumes=((num_bytes / rate, hop_s),))


def _servers(c: CollectiveConstants, kind: str, num_bytes: float, route: Route) -> Work:
    """The slower of a worker's own link and the servers' links, which all workers share (Li et al. 2014)."""
    level = route.levels[-1]
    hop_s = _hop_s(c, level)
    shared = num_bytes * max(1.0, route.num_ranks / max(1, route.num_servers))
    own = effective_bytes_per_s(c, level) * (level.inside if level.is_network else 1)
    return Work(latency_s=hop_s, volumes=((shared / own, hop_s),))


def _walk_s(c: CollectiveConstants, route: Route, protocol: str) -> float:
    """Latency once round a ring through every rank: a network hop for each node, a hop inside a node for each other rank. A torus
    has short rings along each of its directions."""
    units, walked_s = float(route.num_ranks), 0.0
    for level in route.levels:
        is_last = level is route.levels[-1]
        hops = units if is_last else units * (1 - 1 / level.fan)
        if level.link.transport == "ici":
            hops = min(hops, CONSTANTS.torus_dims * level.fan ** (1 / CONSTANTS.torus_dims))
        walked_s += hops * _step_s(c, level, route, protocol, posts=True)
        units /= level.fan
    return (1 - 1 / route.num_ranks) * walked_s


def _ring_volumes(
    c: CollectiveConstants, num_bytes: float, route: Route, *, rounds: int, latency_s: float
) -> tuple[tuple[float, float], ...]:
    """Rings through all ranks, each leaving a node by another adapter: every link, those between nodes too, carries all but one
    of the ranks' parts. On a network the first chunk waits a part of the whole way, because its hops are slower for long ones."""
    volumes = []
    for level in route.levels:
        parts = route.num_ranks if level.is_network else level.fan
        sent = rounds * (parts - 1) / parts * num_bytes / level.inside
        if level is route.levels[0] and not level.is_network:
            sent += c.local_copy * num_bytes / level.fan
        fill_s = c.fill * latency_s if level.is_network else _hop_s(c, level)
        volumes.append((sent / effective_bytes_per_s(c, level), fill_s))
    return tuple(volumes)


_WORK: Mapping[str, Algorithm] = {
    "ring": _ring, "LL ring": partial(_flagged, _ring, "LL"), "LL128 ring": partial(_flagged, _ring, "LL128"),
    "tree": _tree, "LL tree": partial(_flagged, _tree, "LL"), "LL128 tree": partial(_flagged, _tree, "LL128"),
    "direct": lambda c, kind, num_bytes, route: _exchange(c, num_bytes, replace(route, copies=1.0)),
    "in-switch": _in_switch, "in-network": _in_network, "once": _once, "pair": _pair, "servers": _servers,
}  # fmt: skip
_RINGS = ("ring", "LL ring", "LL128 ring")
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": (*_RINGS, "tree", "LL tree", "LL128 tree", "in-switch", "in-network"), "all_to_all": ("direct", "once"),
    "send_recv": ("pair",), "push": ("servers",), "pull": ("servers",),
}  # fmt: skip
"""What libraries have for each kind; rings for all others."""
