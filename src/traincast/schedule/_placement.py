"""Which GPUs a job gets: the free GPUs of every node, and the rules that pick among them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from traincast.errors import InvalidInput
from traincast.spec import Fleet

Placement = tuple[tuple[int, float], ...]
NODE, RACK, SPINE = 0, 1, 2
_MILLI = 1000
_ROUNDING = 1e-6


class NodeMap:
    """Free whole GPUs per node, with one bitmap of nodes per number free, so that best fit is one lookup.

    Shares of a GPU are kept in thousandths beside the whole GPUs: an opened GPU is no longer free as a whole. CPUs and memory
    of nodes count for owners that have an entry in `per_gpu`: CPUs and bytes that go with each of their GPUs.
    """

    def __init__(self, fleet: Fleet, *, by_count: bool = False) -> None:
        self.fleet = fleet
        self.by_count = by_count
        self.free: list[int] = []
        self.size: list[int] = []
        self.pool_of: list[int] = []
        self.rack_of: list[int] = []
        self.free_in_pool: list[int] = []
        self.up_in_pool: list[int] = []
        self.nodes_in_pool: list[range] = []
        self.buckets: list[list[int]] = []
        self.width: list[int] = []
        self.shares: dict[int, dict[int, int]] = {}
        self.slot_of: dict[int, int] = {}
        self.down: set[int] = set()
        self.per_gpu: Mapping[int, tuple[float, float]] = {}
        self.free_cpus: list[float] = []
        self.free_memory: list[float] = []
        first = 0
        for index, pool in enumerate(fleet.pools):
            num_nodes, width = (1, pool.num_gpus) if by_count else (pool.num_nodes, pool.gpus_per_node)
            if not pool.num_nodes:
                num_nodes = 0
            self.free += [width] * num_nodes
            self.size += [width] * num_nodes
            self.free_cpus += [math.inf if pool.cpus_per_node is None else float(pool.cpus_per_node)] * num_nodes
            memory = math.inf if pool.memory_bytes_per_node is None else pool.memory_bytes_per_node
            self.free_memory += [memory] * num_nodes
            self.pool_of += [index] * num_nodes
            per_rack = fleet.nodes_per_rack or max(num_nodes, 1)
            offset = (self.rack_of[-1] + 1) if self.rack_of and fleet.nodes_per_rack else 0
            self.rack_of += [offset + node // per_rack for node in range(num_nodes)]
            self.free_in_pool.append(width * num_nodes)
            self.up_in_pool.append(width * num_nodes)
            self.nodes_in_pool.append(range(first, first + num_nodes))
            bitmaps = [0] * (width + 1)
            bitmaps[width] = ((1 << num_nodes) - 1) << first
            self.buckets.append(bitmaps)
            self.width.append(width)
            first += num_nodes
        self.rack_masks: dict[int, int] = {}
        for node, rack in enumerate(self.rack_of):
            self.rack_masks[rack] = self.rack_masks.get(rack, 0) | (1 << node)

    def copy(self) -> "NodeMap":
        """The same nodes in the same state, to try things on."""
        twin = object.__new__(NodeMap)
        twin.__dict__.update(self.__dict__)
        twin.free = list(self.free)
        twin.free_in_pool = list(self.free_in_pool)
        twin.up_in_pool = list(self.up_in_pool)
        twin.buckets = [list(bitmaps) for bitmaps in self.buckets]
        twin.shares = {node: dict(opened) for node, opened in self.shares.items()}
        twin.slot_of = dict(self.slot_of)
        twin.down = set(self.down)
        if self.per_gpu:
            twin.free_cpus, twin.free_memory = list(self.free_cpus), list(self.free_memory)
        return twin

    def usable(self, owner: int, node: int, *, cpus: float, memory: float) -> int:
        """GPUs of a node for which so many CPUs and so much memory are enough."""
        per_cpu, per_byte = self.per_gpu[owner]
        most = self.size[node]
        if per_cpu > 0 and cpus < per_cpu * most:
            most = int(cpus / per_cpu + _ROUNDING)
        if per_byte > 0 and memory < per_byte * most:
            most = int(memory / per_byte + _ROUNDING)
        return most

    def width_for(self, owner: int, pool: int) -> int:
        """GPUs that an owner can use of an empty node."""
        kind = self.fleet.pools[pool]
        if self.by_count or owner not in self.per_gpu or not kind.num_nodes:
            return self.width[pool]
        cpus = math.inf if kind.cpus_per_node is None else float(kind.cpus_per_node)
        memory = math.inf if kind.memory_bytes_per_node is None else kind.memory_bytes_per_node
        return self.usable(owner, self.nodes_in_pool[pool].start, cpus=cpus, memory=memory)

    def seen_by(self, owner: int) -> "NodeMap":
        """The same nodes with the GPUs that are free for this owner, whose CPUs and memory must be free as well."""
        if owner not in self.per_gpu:
            return self
        usable = [
            self.usable(owner, node, cpus=cpus, memory=memory)
            for node, (cpus, memory) in enumerate(zip(self.free_cpus, self.free_memory, strict=True))
        ]
        twin = self.limited(usable)
        twin.width = [self.width_for(owner, pool) for pool in range(len(self.width))]
        return twin

    def share_seen_by(self, owner: int, share: float) -> "NodeMap":
        """For a share of a GPU: the same nodes without those that lack the CPUs or the memory."""
        if owner not in self.per_gpu:
            return self
        per_cpu, per_byte = self.per_gpu[owner]
        twin = self.copy()
        for node in range(len(self.free)):
            short = self.free_cpus[node] + _ROUNDING < share * per_cpu or self.free_memory[node] + 1 < share * per_byte
            if short and node not in self.down:
                twin.buckets[self.pool_of[node]][self.free[node]] &= ~(1 << node)
                twin.shares.pop(node, None)
        return twin

    def limited(self, most: Sequence[int], free: Sequence[int] | None = None) -> "NodeMap":
        """The same nodes with at most so many free GPUs on each, none of them opened for shares.

        `free` stands in for what is free now."""
        twin = self.copy()
        twin.shares, twin.slot_of = {}, {}
        twin.free = [max(min(now, limit), 0) for now, limit in zip(free or self.free, most, strict=True)]
        twin.buckets = [[0] * len(bitmaps) for bitmaps in self.buckets]
        twin.free_in_pool = [0] * len(self.free_in_pool)
        for node, count in enumerate(twin.free):
            pool = self.pool_of[node]
            twin.free_in_pool[pool] += count
            if node not in self.down:
                twin.buckets[pool][count] |= 1 << node
        return twin

    def _change(self, node: int, by: int) -> None:
        pool = self.pool_of[node]
        before = self.free[node]
        after = before + by
        self.free[node] = after
        self.free_in_pool[pool] += by
        if node in self.down:
            return
        bitmaps = self.buckets[pool]
        bit = 1 << node
        bitmaps[before] ^= bit
        bitmaps[after] |= bit

    def take(self, placement: Placement, owner: int) -> None:
        for node, count in placement:
            if count < 1:
                self._take_share(node, round(count * _MILLI), owner)
            else:
                self._change(node, -int(count))
        if owner in self.per_gpu:
            self._count_beside(placement, owner, -1)

    def _count_beside(self, placement: Placement, owner: int, sign: int) -> None:
        per_cpu, per_byte = self.per_gpu[owner]
        for node, count in placement:
            self.free_cpus[node] += sign * per_cpu * count
            self.free_memory[node] += sign * per_byte * count

    def give(self, placement: Placement, owner: int) -> None:
        for node, count in placement:
            if count < 1:
                self._give_share(node, round(count * _MILLI), owner)
            else:
                self._change(node, int(count))
        if owner in self.per_gpu:
            self._count_beside(placement, owner, 1)

    def _take_share(self, node: int, need: int, owner: int) -> None:
        opened = self.shares.setdefault(node, {})
        fitting = [(left, slot) for slot, left in opened.items() if left >= need]
        if fitting:
            left, slot = min(fitting)
        else:
            left, slot = _MILLI, min(set(range(self.size[node])) - opened.keys())
            self._change(node, -1)
        opened[slot] = left - need
        self.slot_of[owner] = slot

    def _give_share(self, node: int, need: int, owner: int) -> None:
        opened = self.shares[node]
        slot = self.slot_of.pop(owner)
        opened[slot] += need
        if opened[slot] == _MILLI:
            del opened[slot]
            self._change(node, 1)

    def fail(self, node: int) -> None:
        """Take an emptied node out of service."""
        pool = self.pool_of[node]
        self.buckets[pool][self.free[node]] ^= 1 << node
        self.down.add(node)
        self.free_in_pool[pool] -= self.free[node]
        self.up_in_pool[pool] -= self.size[node]
        self.free[node] = 0
        self.shares.pop(node, None)

    def repair(self, node: int) -> None:
        pool = self.pool_of[node]
        self.down.discard(node)
        self.free[node] = self.size[node]
        self.free_in_pool[pool] += self.size[node]
        self.up_in_pool[pool] += self.size[node]
        self.buckets[pool][self.size[node]] |= 1 << node

    def tightest(self, pool: int, need: int, within: int = -1) -> int:
        """The node with the fewest free GPUs that still holds `need`, lowest number first; -1 if none."""
        bitmaps = self.buckets[pool]
        if self.by_count:
            return self.nodes_in_pool[pool].start if self.free_in_pool[pool] >= need and len(self.free) else -1
        for free in range(need, self.width[pool] + 1):
            nodes = bitmaps[free] & within
            if nodes:
                return (nodes & -nodes).bit_length() - 1
        return -1

    def widest(self, pool: int, need: int, skip: int = 0) -> int:
        """The node with the most free GPUs, if it holds `need`; `skip` masks nodes already chosen."""
        bitmaps = self.buckets[pool]
        for free in range(self.width[pool], need - 1, -1):
            nodes = bitmaps[free] & ~skip
            if nodes:
                return (nodes & -nodes).bit_length() - 1
        return -1

    def share_node(self, pool: int, share: float) -> int:
        """The node with the tightest opened GPU for this share, else the tightest node with a whole GPU."""
        need = round(share * _MILLI)
        best, best_left = -1, _MILLI + 1
        for node, opened in self.shares.items():
            if self.pool_of[node] == pool and node not in self.down:
                for left in opened.values():
                    if need <= left < best_left:
                        best, best_left = node, left
        return best if best >= 0 else self.tightest(pool, 1)

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

    def could_ever(self, nodes: NodeMap, num_gpus: float, pool: int) -> bool: ...


def _full_nodes(bitmap: int, count: int) -> list[int] | None:
    if bitmap.bit_count() < count:
        return None
    chosen = []
    for _ in range(count):
        chosen.append((bitmap & -bitmap).bit_length() - 1)
        bitmap &= bitmap - 1
    return chosen


def _by_total(nodes: NodeMap, num_gpus: float, pool: int) -> bool:
    return num_gpus <= sum(nodes.size[node] for node in nodes.nodes_in_pool[pool])


@dataclass(frozen=True, slots=True)
class Consolidated:
    """As few nodes as possible: the tightest node that fits; larger jobs get empty nodes and one for the rest.

    `rest="widest"` gives the remainder to the node with most free GPUs instead of the tightest (as Helios does).
    """

    name: str = "consolidated"
    rest: str = "tightest"

    def place(self, nodes: NodeMap, num_gpus: float, pool: int) -> Placement | None:
        if num_gpus < 1:
            node = nodes.share_node(pool, num_gpus)
            return None if node < 0 else ((node, num_gpus),)
        count = int(num_gpus)
        width = nodes.width[pool]
        if count > nodes.free_in_pool[pool]:
            return None
        if count <= width:
            node = nodes.tightest(pool, count)
            return None if node < 0 else ((node, count),)
        num_full, rest = divmod(count, width)
        chosen = _full_nodes(nodes.buckets[pool][width], num_full)
        if chosen is None:
            return None
        placement = [(node, float(width)) for node in chosen]
        if rest:
            taken = sum(1 << node for node in chosen)
            if self.rest == "widest":
                node = nodes.widest(pool, rest, taken)
            else:
                node = nodes.tightest(pool, rest, ~taken)
            if node < 0:
                return None
            placement.append((node, rest))
        return tuple(placement)

    def could_ever(self, nodes: NodeMap, num_gpus: float, pool: int) -> bool:
        return _by_total(nodes, num_gpus, pool)


@dataclass(frozen=True, slots=True)
class AnyGpus:
    """GPUs are counted, not located: a job fits when enough are free."""

    name: str = "count"

    def place(self, nodes: NodeMap, num_gpus: float, pool: int) -> Placement | None:
        if num_gpus < 1:
            node = nodes.share_node(pool, num_gpus)
            return None if node < 0 else ((node, num_gpus),)
        if num_gpus > nodes.free_in_pool[pool]:
            return None
        if not nodes.by_count:
            raise InvalidInput("placement by count needs a node map by count; use `spread` for real nodes")
        return ((nodes.nodes_in_pool[pool].start, num_gpus),)

    def could_ever(self, nodes: NodeMap, num_gpus: float, pool: int) -> bool:
        return _by_total(nodes, num_gpus, pool)


@dataclass(frozen=True, slots=True)
class Spread:
    """Any free GPUs, from the emptiest nodes first: never waits for locality."""

    name: str = "spread"

    def place(self, nodes: NodeMap, num_gpus: float, pool: int) -> Placement | None:
        if num_gpus < 1:
            node = nodes.share_node(pool, num_gpus)
            return None if node < 0 else ((node, num_gpus),)
        return _fill(nodes, int(num_gpus), pool, within=-1)

    def could_ever(self, nodes: NodeMap, num_gpus: float, pool: int) -> bool:
        return _by_total(nodes, num_gpus, pool)


def _fill(nodes: NodeMap, count: int, pool: int, *, within: int) -> Placement | None:
    placement: list[tuple[int, float]] = []
    for free in range(nodes.width[pool], 0, -1):
        bitmap = nodes.buckets[pool][free] & within
        while bitmap and count:
            node = (bitmap & -bitmap).bit_length() - 1
            bitmap &= bitmap - 1
            placement.append((node, min(free, count)))
            count -= min(free, count)
        if not count:
            return tuple(placement)
    return None


@dataclass(frozen=True, slots=True)
class TopologyAware:
    """The nearest GPUs that are free now: one node if possible, else one rack (the tightest), else any nodes."""

    name: str = "topology"

    def place(self, nodes: NodeMap, num_gpus: float, pool: int) -> Placement | None:
        if num_gpus < 1:
            node = nodes.share_node(pool, num_gpus)
            return None if node < 0 else ((node, num_gpus),)
        count = int(num_gpus)
        if count > nodes.free_in_pool[pool]:
            return None
        if count <= nodes.width[pool]:
            node = nodes.tightest(pool, count)
            if node >= 0:
                return ((node, count),)
        best: tuple[int, int] | None = None
        span = nodes.nodes_in_pool[pool]
        for rack, mask in nodes.rack_masks.items():
            if nodes.pool_of[mask.bit_length() - 1] != pool and nodes.fleet.nodes_per_rack:
                continue
            free = sum(
                width * (bitmap & mask).bit_count() for width, bitmap in enumerate(nodes.buckets[pool]) if bitmap
            )
            if free >= count and (best is None or free < best[0]):
                best = (free, rack)
        within = nodes.rack_masks[best[1]] if best else ((1 << len(span)) - 1) << span.start
        return _fill(nodes, count, pool, within=within)

    def could_ever(self, nodes: NodeMap, num_gpus: float, pool: int) -> bool:
        return _by_total(nodes, num_gpus, pool)


PLACERS: dict[str, Placer] = {
    "consolidated": Consolidated(),
    "count": AnyGpus(),
    "spread": Spread(),
    "topology": TopologyAware(),
}


def nodes_of(placement: Placement) -> Sequence[int]:
    return [node for node, _ in placement]
