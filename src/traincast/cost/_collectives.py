"""Prices communication: the algorithm a library would choose, the links a group crosses, and what it shares them with.

A pipelined algorithm that cuts n bytes into chunks over hops of latency a and bandwidth B takes, near the best chunk size,
latency + n/B + c sqrt(a n/B) (Hockney 1994; van de Geijn 1994): latency, bandwidth, and a square root between the two, which
also stands for the change of protocols with size.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

from traincast.cost._bounds import is_systolic
from traincast.cost._offload import estimate_host_task
from traincast.cost._routes import HOST_STAGED_SHARE, Level, Route, alternative_transport, find_route, slowest_group
from traincast.spec import HOST, Cluster, Collective, Estimate, NodeGroup
from traincast.units import NORMAL_90

__all__ = ["LinkConstants", "Pipelined", "Route", "Transport", "constants_from", "find_route"]

CHANNELS_INSIDE, CHANNELS_ACROSS = 16, 8
"""Cores that NCCL's rings occupy by default, inside a node and across."""
MEMORY_PER_LINK_BYTE = 3
"""A byte that is sent is read, what arrives is written, and sums are read once more."""
ONE_SOCKET, SOCKETS_APART = 4, 2.0
"""Boards up to which PCIe devices of a host hang below one socket. The hop of a ring from one socket to the other has half of the
rate: what one root port passes on while it takes as much in. Where NVLink bridges join pairs of boards, each board has one
neighbour on PCIe instead of two, so that two rings share the lanes and the rate is that of the one machine measured (23.8 GB/s
beside PCIe 4, A100 in pairs)."""
RINGS = ("all_gather", "reduce_scatter")
LONGEST_RING = 64
"""Nodes up to which a ring is walked node by node (seen up to 16). Beyond, libraries have logarithmic forms (NCCL's PAT since
2.23) or are told to shard inside groups: latency then grows with the logarithm. A prior, not measured."""
LONGEST_CHAIN = 8
"""Ranks on one switch up to which an all-reduce was seen to run as a ring; more of them have trees."""
PLAIN_RANKS = 4
"""Ranks up to which libraries do not let switches add (seen with four, not with eight); more ranks never beat these few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """What software makes of one kind of link."""

    efficiency: float
    """Share of the nominal rate that long messages reach."""
    hop_s: float = 0.0
    """What it adds to the link's own latency on every hop."""
    deeper_s: float | None = None
    """The same on every hop of a tree after the first, where chunks are already on their way; None: no less."""
    log_sigma: float = 0.3
    """Standard deviation of the log error on machines that were left out; for what was never measured, of our belief."""
    flow_bytes_per_s: float = math.inf
    """What one port carries of a ring when the host's cores copy."""


# NVLink: fitted to four devices, each left out in turn. V100's mesh: fitted to itself. PCIe: two hosts. RDMA: logs of two nodes.
# Sockets: what one thread of a host of one's own copies, 20 Gb/s; where a provider limits connections, the link says so. No
# cluster is fitted. All others: belief.
TRANSPORT_CONSTANTS: Mapping[str, Transport] = {
    "nvlink": Transport(efficiency=0.824, log_sigma=0.15),
    "nvlink-cube": Transport(efficiency=0.93, log_sigma=0.25),
    "nvlink-pairs": Transport(efficiency=0.824, log_sigma=0.2),
    "nvswitch": Transport(efficiency=0.824, log_sigma=0.15),
    "c2c": Transport(efficiency=0.8),
    "xgmi": Transport(efficiency=0.75),
    "ici": Transport(efficiency=0.88),
    "neuronlink": Transport(efficiency=0.75, log_sigma=0.4),
    "pcie": Transport(efficiency=0.75, log_sigma=0.35),
    "pcie-host": Transport(efficiency=1.0, log_sigma=0.6),
    "memory": Transport(efficiency=0.7),
    "infiniband": Transport(efficiency=0.78, hop_s=1.5e-5, deeper_s=5e-6, log_sigma=0.25),
    "roce": Transport(efficiency=0.78, hop_s=1.5e-5, deeper_s=5e-6, log_sigma=0.25),
    "efa": Transport(efficiency=0.78, hop_s=1e-5, deeper_s=5e-6, log_sigma=0.25),
    "slingshot": Transport(efficiency=0.75, hop_s=1.5e-5, deeper_s=5e-6),
    "tcpx": Transport(efficiency=0.65, hop_s=1.5e-5, log_sigma=0.4),
    "dcn": Transport(efficiency=0.75, hop_s=1.5e-5, log_sigma=0.4),
    "sockets": Transport(efficiency=0.8, hop_s=3e-5, log_sigma=0.55, flow_bytes_per_s=2.5e9),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstants:
    """What libraries make of links; research/fits/collectives fits them to measured collectives."""

    launch_s: float = 7.6e-6
    transports: Mapping[str, Transport] = field(default_factory=lambda: TRANSPORT_CONSTANTS)
    pipeline: float = 3.66
    """Weight of the square root: what filling the pipeline of chunks and the slower protocols of short messages cost."""
    local_copy: float = 0.36
    """A rank also copies its own part through the kernel, at this cost beside a byte on the link."""
    exchange_copy: float = 0.52
    """The same in an all-to-all."""
    exchange_hop: float = 0.555
    """Latency of each peer of an all-to-all beside a hop of a ring."""
    dispatch_bytes_per_s: float = 5.9e11
    """What the 24 cores of a kernel that sends each token once carry inside a node, on every device that was measured."""
    dispatch_own: float = 2.5
    """Beside the copies that it sends, such a kernel carries each token so many times more: reads, its own part, the sum."""
    dispatch_start_s: float = 4.5e-5
    """Counting who gets what, before the first token moves."""
    in_switch_gain: float = 1.1
    """How much faster an all-reduce is when switches add in flight: 1.35 was seen on H100 at half a gigabyte and 1.0 at 32 MB,
    nothing on B200."""
    latency_log_sigma: float = 0.35
    """Of short messages, where the host decides."""
    overlap_slowdown: float = 1.0
    """Weight of what a collective takes from kernels that run beside it; 1: as `slow_kernels` counts it, 0: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an algorithm does: the latency of its longest way, and for every level the seconds of its bytes and of one hop."""

    latency_s: float
    volumes: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined:
    """The fastest of the algorithms that libraries have for a kind of collective on a route."""

    constants: LinkConstants = field(default_factory=LinkConstants)

    def estimate(self, task: Collective, cluster: Cluster) -> Estimate:
        if task.axis == HOST:
            return estimate_host_task(task, cluster)
        route = find_route(task, cluster)
        route = replace(route, copies=task.copies)
        seconds = self._in_buckets(task, route)
        low_s, high_s = self._interval(task, route, seconds)
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

    def seconds(self, kind: str, num_bytes: float, route: Route) -> float:
        return self.choose(kind, num_bytes, route)[1]

    def choose(self, kind: str, num_bytes: float, route: Route) -> tuple[str, float]:
        """The algorithm that a library would take at this size, and its seconds."""
        if route.num_ranks == 1 or num_bytes <= 0 or not route.levels:
            return "none", 0.0
        priced = [
            (name, self._price(work))
            for name in ALGORITHMS.get(kind, ("ring",))
            if (work := _WORK[name](self.constants, kind, num_bytes, route)) is not None
        ]
        return min(priced, key=lambda choice: choice[1])

    def slow_kernels(self, task: Collective, seconds: float, route: Route, group: NodeGroup) -> float:
        """What kernels beside a collective lose, as a share of its time: it holds a core for each channel while it runs (but on
        chips whose own engines send), and for every byte on the link it reads or writes three in memory. The scarcer of the two
        counts. Weights that are gathered unit by unit are copied out of the gathered buffer into their tensors, and gradients
        into the buffer that is scattered, between the kernels (FSDP2's copy_out and copy_in); a compiler that plans all memory,
        as those of systolic chips do, gathers them to where they are read. A faster link makes the time shorter and the bytes no
        more, so that kernels never lose more by it."""
        if not self.constants.overlap_slowdown or route.num_ranks == 1 or not route.levels or not seconds:
            return 0.0
        channels = CHANNELS_ACROSS if route.crosses_network else CHANNELS_INSIDE
        cores = 0.0 if is_systolic(group.device) else channels / (group.device.num_sm or 100)
        sent = (2 if task.kind == "all_reduce" else 1) * (1 - 1 / route.num_ranks) * task.num_bytes
        memory_s = MEMORY_PER_LINK_BYTE * sent / group.device.memory_bytes_per_s
        in_units = (
            task.axis == "data" and task.kind in RINGS and task.bucket_bytes is None and not is_systolic(group.device)
        )
        copies_s = 2 * task.num_bytes / group.device.memory_bytes_per_s if in_units else 0.0
        return self.constants.overlap_slowdown * min(1.0, max(cores, memory_s / seconds) + copies_s / seconds)

    def _in_buckets(self, task: Collective, route: Route) -> float:
        if task.bucket_bytes is not None and 0 < task.num_bytes < task.bucket_bytes:
            # A small gradient travels in a bucket with its neighbours and pays its part of the bucket.
            return self.seconds(task.kind, task.bucket_bytes, route) * task.num_bytes / task.bucket_bytes
        return self.seconds(task.kind, task.num_bytes, route)

    def _interval(self, task: Collective, route: Route, seconds: float) -> tuple[float, float]:
        """90% of the truth by what left-out machines showed; where a transport is assumed, the other one too."""
        if not seconds:
            return 0.0, 0.0
        c = self.constants
        latency = min(1.0, (c.launch_s + sum(_hop_s(c, level) for level in route.levels)) / seconds)
        sigma = max(c.transports[level.link.transport].log_sigma for level in route.levels)
        factor = math.exp(NORMAL_90 * math.hypot(sigma * (1 - latency), c.latency_log_sigma * latency))
        reached = [seconds]
        if any(level.assumed for level in route.levels):
            reached.append(self._in_buckets(task, replace(route, levels=tuple(map(_otherwise, route.levels)))))
        return min(reached) / factor, max(reached) * factor

    def _price(self, work: Work) -> float:
        """Levels work side by side on different chunks, so the slowest of them counts."""
        c = self.constants
        slowest_s = max(seconds + c.pipeline * math.sqrt(seconds * hop_s) for seconds, hop_s in work.volumes)
        return c.launch_s + work.latency_s + slowest_s


def _otherwise(level: Level) -> Level:
    """The level with the transport that it might have instead of the assumed one."""
    if not level.assumed:
        return level
    other = alternative_transport(level.link)
    share = HOST_STAGED_SHARE / level.fan if other == "pcie-host" else 1.0
    return replace(level, link=replace(level.link, transport=other), bytes_per_s=level.bytes_per_s * share)


def _hop_s(c: LinkConstants, level: Level) -> float:
    return level.link.latency_s + c.transports[level.link.transport].hop_s


def _next_hop_s(c: LinkConstants, level: Level) -> float:
    """A hop of a chunk that others are on their way before."""
    first_s, deeper_s = _hop_s(c, level), c.transports[level.link.transport].deeper_s
    return first_s if deeper_s is None else min(first_s, level.link.latency_s + deeper_s)


def _climb_s(c: LinkConstants, level: Level) -> float:
    """From the leaves of a binary tree to its root."""
    first_s, depth = _hop_s(c, level), math.log2(level.fan)
    if depth <= 1:
        return depth * first_s
    return first_s + (depth - 1) * _next_hop_s(c, level)


def effective_bytes_per_s(c: LinkConstants, level: Level) -> float:
    """What one member gets of a level in a long message."""
    transport = c.transports[level.link.transport]
    rate = level.bytes_per_s * transport.efficiency
    if math.isinf(transport.flow_bytes_per_s):
        return rate
    flows = (level.link.flow_bytes_per_s or transport.flow_bytes_per_s) * level.link.num_ports
    # The adapter sends one chunk while a core copies the next, so the slower of both bounds a ring of sockets.
    return min(rate, flows / level.inside)


def _ring(c: LinkConstants, kind: str, num_bytes: float, route: Route) -> Work:
    """Every rank passes its part on to its neighbour (Patarasuk and Yuan 2009); an all-reduce goes round twice."""
    rounds = 2 if kind == "all_reduce" else 1
    return Work(
        latency_s=rounds * _walk_s(c, route),
        volumes=_ring_volumes(c, num_bytes, route, rounds=rounds),
    )


def _tree(c: LinkConstants, kind: str, num_bytes: float, route: Route) -> Work | None:
    """Chains inside nodes and double binary trees between them (Sanders et al. 2009): the bytes of a ring, fewer hops."""
    if len(route.levels) == 1 and route.levels[0].fan <= LONGEST_CHAIN and not route.crosses_network:
        return None
    latency_s = 0.0
    for level in route.levels:
        if not level.is_network and level.fan <= LONGEST_CHAIN:
            latency_s += 2 * (level.fan - 1) * _hop_s(c, level)
        else:
            latency_s += 2 * _climb_s(c, level)
    return Work(latency_s=latency_s, volumes=_ring_volumes(c, num_bytes, route, rounds=2))


def _in_switch(c: LinkConstants, kind: str, num_bytes: float, route: Route) -> Work | None:
    """NVLink SHARP: the switches of a node add what its ranks send and return the sum; trees join the nodes."""
    inner = route.levels[0]
    if not inner.link.reduces or inner.is_network or inner.fan <= PLAIN_RANKS:
        return None
    hop_s = _hop_s(c, inner)
    few_hops = 2 * (PLAIN_RANKS - 1)
    latency_s = few_hops * hop_s + sum(2 * _climb_s(c, level) for level in route.levels[1:])
    first, *others = _ring_volumes(c, num_bytes, route, rounds=2)
    few_s = (few_hops + c.local_copy) / PLAIN_RANKS * num_bytes / effective_bytes_per_s(c, inner)
    return Work(latency_s=latency_s, volumes=((max(first[0] / c.in_switch_gain, few_s), hop_s), *others))


def _direct(c: LinkConstants, kind: str, num_bytes: float, route: Route) -> Work:
    """Each rank sends to every other what is theirs; the levels carry their parts side by side."""
    return _exchange(c, num_bytes, replace(route, copies=1.0))


def _once(c: LinkConstants, kind: str, num_bytes: float, route: Route) -> Work | None:
    """The same, with tokens sent once to every unit that needs them, as fast as the cores of that kernel copy."""
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


def _exchange(c: LinkConstants, num_bytes: float, route: Route) -> Work:
    latency_s, volumes = 0.0, []
    for level in route.levels:
        hop_s = _hop_s(c, level)
        sent = (level.fan - 1) * level.inside / route.num_ranks * num_bytes * _sent_once(route, level)
        if level is route.levels[0] and not level.is_network:
            sent += c.exchange_copy * num_bytes / route.num_ranks
        if level.link.transport == "pcie":
            # Devices hang below two bridges: half of what half of them send goes through the one link between these.
            sent = max(sent, level.fan / 4 * num_bytes * _sent_once(route, level))
        latency_s += c.exchange_hop * (level.fan - 1) * hop_s
        volumes.append((sent / effective_bytes_per_s(c, level), hop_s))
    return Work(latency_s=latency_s, volumes=tuple(volumes))


def _sent_once(route: Route, level: Level) -> float:
    """Share of the copies of a token that cross a level when each unit beyond it that needs some gets one: of k copies that
    fall on u units at random, u (1 - (1 - 1/u)^k) units get any."""
    units = level.fan if level.is_network else route.num_ranks
    reached = units * (1 - math.pow(1 - 1 / units, route.copies))
    return reached / route.copies


def _pair(c: LinkConstants, kind: str, num_bytes: float, route: Route) -> Work:
    """One message to a neighbour, over the outermost link between them."""
    level = route.levels[-1]
    hop_s = _hop_s(c, level)
    return Work(latency_s=hop_s, volumes=((num_bytes / effective_bytes_per_s(c, level), hop_s),))


def _servers(c: LinkConstants, kind: str, num_bytes: float, route: Route) -> Work:
    """The slower of a worker's own link and the servers' links, which all workers share (Li et al. 2014)."""
    level = route.levels[-1]
    hop_s = _hop_s(c, level)
    shared = num_bytes * max(1.0, route.num_ranks / max(1, route.num_servers))
    own = effective_bytes_per_s(c, level) * (level.inside if level.is_network else 1)
    return Work(latency_s=hop_s, volumes=((shared / own, hop_s),))


def _walk_s(c: LinkConstants, route: Route) -> float:
    """Latency once round a ring through every rank. A torus has short rings along each of its directions.

    Every step of every rank is a message on each link between nodes, and libraries let two chunks be on their way over a
    connection (NCCL's ring: chunks of half its buffer). The third waits until the first was taken and its slot came back: such
    a link carries a step in no less than one way of a chunk, however many hops inside nodes are faster."""
    units, walked_s = float(route.num_ranks), 0.0
    for level in route.levels:
        is_last = level is route.levels[-1]
        hops = units if is_last else units * (1 - 1 / level.fan)
        if level.link.transport == "ici":
            hops = min(hops, 3 * level.fan ** (1 / 3))
        walked_s += hops * _hop_s(c, level)
        units /= level.fan
    outermost = route.levels[-1].fan
    if route.crosses_network:
        walked_s = max(walked_s, route.num_ranks * _next_hop_s(c, route.levels[-1]))
    if outermost > LONGEST_RING:
        walked_s *= LONGEST_RING * (1 + math.log2(outermost / LONGEST_RING)) / outermost
    return (1 - 1 / route.num_ranks) * walked_s


def _ring_volumes(c: LinkConstants, num_bytes: float, route: Route, *, rounds: int) -> tuple[tuple[float, float], ...]:
    """Shards of a node cross the network side by side, so its whole network carries the message once. One ring of sockets
    through all ranks has no such shards: every link, those between nodes too, carries what a rank sends."""
    volumes = []
    for level in route.levels:
        parts = route.num_ranks if level.link.transport == "sockets" else level.fan
        sent = rounds * (parts - 1) / parts * num_bytes / level.inside
        if level.link.transport == "pcie" and level.fan > ONE_SOCKET and not level.bridged:
            sent *= SOCKETS_APART
        if level is route.levels[0] and not level.is_network:
            sent += c.local_copy * num_bytes / level.fan
        volumes.append((sent / effective_bytes_per_s(c, level), _hop_s(c, level)))
    return tuple(volumes)


_WORK: Mapping[str, Callable[[LinkConstants, str, float, Route], Work | None]] = {
    "ring": _ring, "tree": _tree, "in-switch": _in_switch, "direct": _direct, "once": _once, "pair": _pair, "servers": _servers,
}  # fmt: skip
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "tree", "in-switch"), "all_to_all": ("direct", "once"), "send_recv": ("pair",), "push": ("servers",),
    "pull": ("servers",),
}  # fmt: skip
"""What libraries have for each kind; rings for all others."""


def constants_from(values: Mapping[str, float]) -> LinkConstants:
    """Constants with some values changed, names checked."""
    known = {field.name for field in fields(LinkConstants)}
    return LinkConstants(**{name: value for name, value in values.items() if name in known})  # type: ignore[arg-type]
