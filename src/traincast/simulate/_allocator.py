"""Replays requests for device memory through PyTorch's caching allocator: what is reserved, not only what is in use.

The rules are those of CUDACachingAllocator (PyTorch 2): sizes are rounded to 512 bytes; requests up to 1 MiB come from segments
of 2 MiB, those below 10 MiB from segments of 20 MiB, larger ones get a segment of their own, rounded to 2 MiB; the smallest
free block that is large enough is taken and split; free neighbours are merged. The device is as large as it needs to be.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field

from traincast.errors import InvalidInput
from traincast.units import MIB

ROUNDING_BYTES = 512
SMALL_REQUEST_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MIDDLE_REQUEST_BYTES = 10 * MIB
MIDDLE_SEGMENT_BYTES = 20 * MIB
LARGE_ROUNDING_BYTES = 2 * MIB


@dataclass(slots=True, eq=False)
class _Block:
    """A piece of a segment, in use or free, between its neighbours."""

    size: int
    small: bool
    number: int
    before: "_Block | None" = None
    after: "_Block | None" = None
    free: bool = False


@dataclass(slots=True)
class CachingAllocator:
    """Device memory as PyTorch hands it out. Sizes are whole bytes; a name stands for one live piece of memory."""

    reserved_bytes: int = 0
    allocated_bytes: int = 0
    _free: dict[bool, list[tuple[int, int, _Block]]] = field(default_factory=lambda: {True: [], False: []})
    _live: dict[Hashable, _Block] = field(default_factory=dict)
    _next: int = 0

    def allocate(self, name: Hashable, num_bytes: float) -> None:
        if name in self._live:
            raise InvalidInput(f"memory named {name!r} is in use already; free it before it is asked for again")
        size = max(ROUNDING_BYTES, -(-int(num_bytes) // ROUNDING_BYTES) * ROUNDING_BYTES)
        small = size <= SMALL_REQUEST_BYTES
        block = self._take(size, small=small) or self._grow(size, small=small)
        self._split(block, size)
        block.free = False
        self._live[name] = block
        self.allocated_bytes += block.size

    def free(self, name: Hashable) -> None:
        block = self._live.pop(name, None)
        if block is None:
            raise InvalidInput(f"memory named {name!r} is not in use and cannot be freed")
        self.allocated_bytes -= block.size
        before, after = block.before, block.after
        if before is not None and before.free:
            self._forget(before)
            block.size += before.size
            block.number = before.number
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._forget(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._keep(block)

    def _take(self, size: int, *, small: bool) -> _Block | None:
        pool = self._free[small]
        place = bisect_left(pool, size, key=lambda item: item[0])
        return pool.pop(place)[2] if place < len(pool) else None

    def _grow(self, size: int, *, small: bool) -> _Block:
        segment = _segment_bytes(size)
        self.reserved_bytes += segment
        self._next += 1
        # Blocks of equal size are taken in the order of their addresses; room is left for the pieces of a segment.
        return _Block(segment, small, self._next << 40)

    def _split(self, block: _Block, size: int) -> None:
        rest = block.size - size
        if rest < ROUNDING_BYTES if block.small else rest <= SMALL_REQUEST_BYTES:
            return
        piece = _Block(rest, block.small, block.number + size, block, block.after)
        if block.after is not None:
            block.after.before = piece
        block.after = piece
        block.size = size
        self._keep(piece)

    def _keep(self, block: _Block) -> None:
        block.free = True
        insort(self._free[block.small], (block.size, block.number, block))

    def _forget(self, block: _Block) -> None:
        pool = self._free[block.small]
        pool.pop(bisect_left(pool, (block.size, block.number), key=lambda item: item[:2]))


def _segment_bytes(size: int) -> int:
    if size <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MIDDLE_REQUEST_BYTES:
        return MIDDLE_SEGMENT_BYTES
    return -(-size // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES
