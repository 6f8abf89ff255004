"""Which GPUs a job gets: the free GPUs of every node, and the rules that pick among them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from traincast.errors import InvalidInput
from traincast.schedule._loop import BITS, change, fits, low_bit, tightest
from traincast.spec import Fleet

Placement = tuple[tuple[int, float], ...]
NODE, RACK, SPINE = 0, 1, 2


@dataclass(slots=True, kw_only=True)
class Span:
    """The nodes of one pool, `first` to `last`, with `width` GPUs each; where GPUs are only counted, one node has them all.

    From `bits_at` on lie `words` words of a bitmap of nodes for every number of free GPUs, from `hist_at` on how many such
    nodes."""

    first: int
    last: int
    width: int
    words: int
    bits_at: int
    hist_at: int
    counted: int


class NodeMap:
    """Free whole GPUs per node (`free`), per pool (`room`), and bitmaps of nodes by number free; `_loop.change` keeps them
    in step."""

    def __init__(self, fleet: Fleet, *, by_count: bool = False) -> None:
        self.fleet = fleet
        self.by_count = by_count
        self.free: list[int] = []
        self.size: list[int] = []
        self.pool_of: list[int] = []
        self.rack_of: list[int] = []
        self.room: list[int] = []
        self.up_in_pool: list[int] = []
        self.nodes_in_pool: list[range] = []
        self.pools: list[Span] = []
        self.bits: list[int] = []
        self.hist: list[int] = []
        self.width: list[int] = []
        self.down: set[int] = set()
        for index, pool in enumerate(fleet.pools):
            num_nodes, width = (1, pool.num_gpus) if by_count else (pool.num_nodes, pool.gpus_per_node)
            if not pool.num_nodes:
                num_nodes = 0
            first = len(self.free)
            self.free += [width] * num_nodes
            self.size += [width] * num_nodes
            self.pool_of += [index] * num_nodes
            per_rack = fleet.nodes_per_rack or max(num_nodes, 1)
            offset = (self.rack_of[-1] + 1) if self.rack_of and fleet.nodes_per_rack else 0
            self.rack_of += [offset + node // per_rack for node in range(num_nodes)]
            self.room.append(width * num_nodes)
            self.up_in_pool.append(width * num_nodes)
            self.nodes_in_pool.append(range(first, first + num_nodes))
            self.width.append(width)
            words = -(-num_nodes // BITS)
            self.pools.append(
                Span(
                    first=first, last=first + num_nodes, width=width, words=words, bits_at=len(self.bits),
                    hist_at=len(self.hist), counted=int(by_count),
                )
            )  # fmt: skip
            self.bits += [0] * (0 if by_count else words * (width + 1))
            self.hist += [0] * (0 if by_count else width + 1)
        self._count_nodes()

    def _count_nodes(self) -> None:
        """Bitmaps and counts from the free GPUs of nodes."""
        self.bits, self.hist = [0] * len(self.bits), [0] * len(self.hist)
        self.room = [0] * len(self.room)
        for node, count in enumerate(self.free):
            pool = self.pool_of[node]
            span = self.pools[pool]
            self.room[pool] += count
            if not span.counted:
                at = node - span.first
                self.bits[span.bits_at + count * span.words + at // BITS] |= 1 << (at % BITS)
                self.hist[span.hist_at + count] += 1

    @property
    def free_in_pool(self) -> list[int]:
        return self.room

    def copy(self) -> "NodeMap":
        """The same nodes in the same state, to try things on."""
        twin = object.__new__(NodeMap)
        twin.__dict__.update(self.__dict__)
        twin.free, twin.room = list(self.free), list(self.room)
        twin.up_in_pool = list(self.up_in_pool)
        twin.bits, twin.hist = list(self.bits), list(self.hist)
        twin.down = set(self.down)
        return twin

    def with_free(self, free: Sequence[int]) -> "NodeMap":
        """The same nodes with so many free GPUs on each."""
        twin = self.copy()
        twin.free = [max(count, 0) for count in free]
        twin._count_nodes()
        return twin

    def take(self, placement: Placement) -> None:
        for node, count in placement:
            change(self, node, -int(count))

    def give(self, placement: Placement) -> None:
        for node, count in placement:
            change(self, node, int(count))

    def fail(self, node: int) -> None:
        """Take an emptied node out of service: a node without free GPUs is never chosen."""
        self.down.add(node)
        self.up_in_pool[self.pool_of[node]] -= self.size[node]
        change(self, node, -self.free[node])

    def repair(self, node: int) -> None:
        self.down.discard(node)
        self.up_in_pool[self.pool_of[node]] += self.size[node]
        change(self, node, self.size[node] - self.free[node])

    def nodes_with(self, pool: int, free: int) -> Iterator[int]:
        """The nodes with so many free GPUs, lowest number first."""
        span = self.pools[pool]
        if self.hist[span.hist_at + free]:
            base = span.bits_at + free * span.words
            for word in range(span.words):
                bits = self.bits[base + word]
                while bits:
                    yield span.first + word * BITS + low_bit(bits)
                    bits &= bits - 1

    def locality(self, placement: Placement) -> int:
        if len(placement) <= 1:
            return NODE
        rack = self.rack_of[placement[0][0]]
        return RACK if all(self.rack_of[node] == rack for node, _ in placement) else SPINE


class Placer(Protocol):
    """Picks free GPUs in one pool, or answers None when its rule cannot be met now; takes nothing itself."""

    @property
    def name(self) -> str: ...

    def place(self, nodes: NodeMap, num_gpus: float, pool: int) -> Placement | None: ...


Rule = Callable[[NodeMap, int, int], "Placement | None"]


@dataclass(frozen=True, slots=True)
class ByRule:
    name: str
    rule: Rule

    def place(self, nodes: NodeMap, num_gpus: float, pool: int) -> Placement | None:
        return None if num_gpus > nodes.room[pool] else self.rule(nodes, int(num_gpus), pool)


def consolidate(nodes: NodeMap, count: int, pool: int, *, widest_rest: bool = False) -> Placement | None:
    """As few nodes as possible: the tightest node that fits; larger jobs get empty nodes and the tightest one for the rest, or
    (`widest_rest`) the one with most free GPUs."""
    width = nodes.width[pool]
    if nodes.by_count:
        return count_gpus(nodes, count, pool)
    if count <= width:
        node = tightest(nodes, pool, count)
        return None if node < 0 else ((node, count),)
    if width == nodes.pools[pool].width and not fits(nodes, pool, count):
        return None
    num_full, rest = divmod(count, width)
    empty = nodes.nodes_with(pool, width)
    chosen = [node for node, _ in zip(empty, range(num_full), strict=False)]
    if len(chosen) < num_full:
        return None
    placement: list[tuple[int, float]] = [(node, float(width)) for node in chosen]
    if rest:
        taken = set(chosen)
        levels = range(width, rest - 1, -1) if widest_rest else range(rest, width + 1)
        found = (node for free in levels for node in nodes.nodes_with(pool, free) if node not in taken)
        node = next(found, -1)
        if node < 0:
            return None
        placement.append((node, rest))
    return tuple(placement)


def count_gpus(nodes: NodeMap, count: int, pool: int) -> Placement | None:
    """GPUs are counted, not located: a job fits when enough are free."""
    if not nodes.by_count:
        raise InvalidInput("placement by count needs a node map by count; use `spread` for real nodes")
    return ((nodes.nodes_in_pool[pool].start, float(count)),)


def spread(nodes: NodeMap, count: int, pool: int) -> Placement | None:
    """Any free GPUs, from the emptiest nodes first: never waits for locality."""
    return _fill(nodes, count, pool, None)


def _fill(nodes: NodeMap, count: int, pool: int, rack: int | None) -> Placement | None:
    if nodes.by_count:
        return count_gpus(nodes, count, pool)
    placement: list[tuple[int, float]] = []
    for free in range(nodes.width[pool], 0, -1):
        for node in nodes.nodes_with(pool, free):
            if rack is not None and nodes.rack_of[node] != rack:
                continue
            placement.append((node, min(free, count)))
            count -= min(free, count)
            if not count:
                return tuple(placement)
    return None


def nearest(nodes: NodeMap, count: int, pool: int) -> Placement | None:
    """The nearest GPUs that are free now: one node if possible, else one rack (the tightest), else any nodes."""
    if nodes.by_count:
        return count_gpus(nodes, count, pool)
    if count <= nodes.width[pool]:
        node = tightest(nodes, pool, count)
        if node >= 0:
            return ((node, count),)
    free: dict[int, int] = {}
    for node in nodes.nodes_in_pool[pool]:
        free[nodes.rack_of[node]] = free.get(nodes.rack_of[node], 0) + nodes.free[node]
    best = min(((room, rack) for rack, room in free.items() if room >= count), default=None)
    return _fill(nodes, count, pool, None if best is None else best[1])


CONSOLIDATED = ByRule("consolidated", consolidate)
COUNT = ByRule("count", count_gpus)
PLACERS: dict[str, Placer] = {
    "consolidated": CONSOLIDATED,
    "count": COUNT,
    "spread": ByRule("spread", spread),
    "topology": ByRule("topology", nearest),
}
