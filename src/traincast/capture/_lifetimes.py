"""When storages really ended to what a replay of reads and writes must hold at its peak."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from traincast.spec import Op

TOLERANCE = 1.01
"""A peak that reads and writes explain to a hundredth stays as it is."""


class Lifetimes:
    """Watches storages: after which operation each of them was let go."""

    def __init__(self, num_ops: Callable[[], int]) -> None:
        self._num_ops = num_ops
        self._watched: list[Any] = []
        self._ended: dict[int, int] = {}

    def watch(self, storage: Any, number: int) -> None:
        def end(_: Any) -> None:
            self._ended[number] = self._num_ops()

        self._watched.append(weakref.ref(storage, end))

    def hold(self, ops: Sequence[Op], sizes: Sequence[float]) -> list[Op]:
        """The same operations; the one at the peak also reads what lives then without being touched again: a gradient that its
        node has consumed, what a frame of the program still names. `sizes` are 0 where a storage outlives the step."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for place, op in enumerate(ops):
            for index in (*op.reads, *op.writes):
                first.setdefault(index, place)
                last[index] = place
        ends = {index: max(last[index], self._ended.get(index, len(ops)) - 1) for index in first}
        touched, alive = ([0.0] * (len(ops) + 1) for _ in range(2))
        for index, begin in first.items():
            for changes, end in ((touched, last[index]), (alive, ends[index])):
                changes[begin] += sizes[index]
                changes[end + 1] -= sizes[index]
        levels = list(accumulate(alive))
        peak = max(range(len(levels)), key=levels.__getitem__)
        if levels[peak] <= TOLERANCE * max(accumulate(touched)):
            return list(ops)
        held = [
            index for index, end in ends.items() if first[index] <= peak <= end and last[index] < peak and sizes[index]
        ]
        return [
            replace(op, reads=tuple(dict.fromkeys((*op.reads, *held)))) if place == peak else op
            for place, op in enumerate(ops)
        ]
