"""A flat recording to a graph in which identical consecutive layers are written once and repeated.

Two operations are the same when everything that is known about them is the same and their layer paths differ in numbers
only. A run is a stretch of operations that repeats without a gap. A run of the forward pass and the run of the backward pass
that reads what it kept are trimmed to the same layers, so that they have the same count.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.spec import Graph, Op, Repeat, Tensor

PERSISTENT = ("parameter", "gradient", "optimizer_state", "buffer", "input")

_NUMBER = re.compile(r"\d+")
_MAX_PERIODS = 64
_MIN_SAVED_OPS = 4
_MAX_RUNS = 200
_GROUPS = (2, 3, 4, 5, 6)


@dataclass(frozen=True, slots=True)
class _Run:
    """Operations `start` .. `start + period x count`, the same `period` operations `count` times."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.count

    def trimmed(self, first: int, last: int) -> "_Run":
        return _Run(self.start + first * self.period, self.period, last - first + 1)


def fold(graph: Graph) -> Graph:
    """The same step with identical consecutive layers folded; counts of FLOP, bytes and parameters stay the same."""
    return fold_alike((graph,))[0]


def fold_alike(graphs: Sequence[Graph]) -> tuple[Graph, ...]:
    """Fold recordings of one model at several sizes in the same way, so that their operations still correspond."""
    first = graphs[0]
    if any(graph.repeats for graph in graphs):
        raise InvalidInput(f"graph {first.name!r} is folded already")
    if any([op.name for op in graph.ops] != [op.name for op in first.ops] for graph in graphs):
        raise InvalidInput(f"graph {first.name!r} changes its ops with the batch; record it at the batch you need")
    if any(len(graph.tensors) != len(first.tensors) for graph in graphs):
        raise InvalidInput(f"graph {first.name!r} changes its tensors with the batch; record it at the batch you need")
    found = _find_runs(_signatures(graphs), [op.layer for op in first.ops])
    runs, classes = _settle(first, found)
    return tuple(_rewrite(graph, runs, classes) for graph in graphs)


def _signatures(graphs: Sequence[Graph]) -> NDArray[np.int64]:
    numbers: dict[Hashable, int] = {}
    keys = [
        tuple(_signature(op, graph.tensors) for op, graph in zip(ops, graphs, strict=True))
        for ops in zip(*(graph.ops for graph in graphs), strict=True)
    ]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _signature(op: Op, tensors: Sequence[Tensor]) -> Hashable:
    def described(index: int) -> Hashable:
        tensor = tensors[index]
        return tensor.dtype, tensor.num_bytes, tensor.role if tensor.role in PERSISTENT else ""

    return (
        op.name, op.kind, op.phase, op.dtype, op.flop, op.bytes_read, op.bytes_written, op.num_kernels,
        _NUMBER.sub("#", op.layer), tuple(op.attrs.items()),
        tuple(described(index) for index in op.reads), tuple(described(index) for index in op.writes),
    )  # fmt: skip


def _find_runs(signatures: NDArray[np.int64], layers: Sequence[str]) -> list[_Run]:
    """Greedily the runs that save most, longest saving first."""
    left = signatures.copy()
    runs: list[_Run] = []
    periods = _likely_periods(signatures)
    numbers = [tuple(_NUMBER.findall(layer)) for layer in layers]
    while len(runs) < _MAX_RUNS:
        best: tuple[int, int, int] | None = None
        best_saved = _MIN_SAVED_OPS - 1
        for period in periods:
            for start, length in _equal_stretches(left, period):
                saved = length // period * period
                if saved > best_saved:
                    best, best_saved = (start, period, length), saved
        if best is None:
            break
        start, period, length = best
        start = _aligned_start(start, period, length, numbers)
        run = _Run(start, period, (best[0] + length + period - start) // period)
        if run.count >= 2:
            runs.append(run)
        # Unique negative marks: what is taken, or cannot be aligned, never matches again.
        taken = slice(best[0], best[0] + length + period)
        left[taken] = -1 - np.arange(best[0], best[0] + length + period)
    return sorted(runs, key=lambda run: run.start)


def _likely_periods(signatures: NDArray[np.int64]) -> list[int]:
    gaps: Counter[int] = Counter()
    last: dict[int, int] = {}
    for position, signature in enumerate(signatures.tolist()):
        if signature in last:
            gaps[position - last[signature]] += 1
        last[signature] = position
    return sorted(period for period, _ in gaps.most_common(_MAX_PERIODS))


def _equal_stretches(signatures: NDArray[np.int64], period: int) -> list[tuple[int, int]]:
    """Starts and lengths of stretches, at least a period long, that equal what follows a period later."""
    equal = signatures[:-period] == signatures[period:]
    edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a >= period]


def _aligned_start(start: int, period: int, length: int, numbers: Sequence[tuple[str, ...]]) -> int:
    """Where a layer begins: the first position at which the layer number that counts the repetitions changes."""

    def layer_number(position: int) -> tuple[str, ...] | None:
        here, there = numbers[position], numbers[min(position + period, len(numbers) - 1)]
        if position + period >= start + length + period:
            there = numbers[position - period]
        changing = tuple(a for a, b in zip(here, there, strict=False) if a != b)
        return changing or None

    before: tuple[str, ...] | None = None
    for position in range(start - 1, start + min(length, 2 * period)):
        if position < 0:
            continue
        now = layer_number(position) if position >= start else _number_outside(numbers, position, start, period)
        if position >= start and now is not None and now != before:
            return position
        before = now or before
    return start


def _number_outside(
    numbers: Sequence[tuple[str, ...]], position: int, start: int, period: int
) -> tuple[str, ...] | None:
    """The layer number just before the stretch, by the same digit as its first operation."""
    here, there = numbers[start], numbers[min(start + period, len(numbers) - 1)]
    places = [place for place, (a, b) in enumerate(zip(here, there, strict=False)) if a != b]
    previous = numbers[position]
    found = tuple(previous[place] for place in places if place < len(previous))
    return found or None


def _settle(graph: Graph, found: list[_Run]) -> tuple[list[_Run], list[int]]:
    """Trim and drop runs until every tensor has one meaning in the folded graph."""
    runs = _group_alternating(graph, found)
    while True:
        runs = _trim_to_partners(graph, runs)
        changed = _first_conflict(graph, runs)
        if changed is None:
            classes = _Classes(graph, runs)
            bad = classes.conflict()
            if bad is None:
                return runs, classes.of
            runs = [run for run in runs if run != bad]
        else:
            bad, better = changed
            kept = [better if run == bad else run for run in runs]
            runs = [run for run in kept if run is not None]


def _places(runs: Sequence[_Run], num_ops: int) -> list[tuple[int, int, int] | None]:
    """For every operation: its run, repetition and position in the period."""
    places: list[tuple[int, int, int] | None] = [None] * num_ops
    for number, run in enumerate(runs):
        for position in range(run.start, run.stop):
            repetition, offset = divmod(position - run.start, run.period)
            places[position] = (number, repetition, offset)
    return places


def _links(graph: Graph, runs: Sequence[_Run]) -> dict[tuple[int, int], set[tuple[int, int, int]]]:
    """For every pair of runs, what ties their repetitions: tensors that one writes and the other reads, and weights of both."""
    places = _places(runs, len(graph.ops))
    writer: dict[int, tuple[int, int]] = {}
    links: dict[tuple[int, int], set[tuple[int, int, int]]] = defaultdict(set)
    for op, place in zip(graph.ops, places, strict=True):
        for index in op.reads:
            source = writer.get(index)
            if source is None and place is not None and graph.tensors[index].role == "parameter":
                writer[index] = (place[0], place[1])
            elif source is not None and place is not None and source[0] != place[0]:
                links[source[0], place[0]].add((index, source[1], place[1]))
        for index in op.writes:
            if graph.tensors[index].role not in PERSISTENT:
                if place is None:
                    writer.pop(index, None)
                else:
                    writer[index] = (place[0], place[1])
    return {
        (a, b): pairs
        for (a, b), pairs in links.items()
        if len({index for index, _, _ in pairs}) > max(runs[a].count, runs[b].count) // 2
    }


def _group_alternating(graph: Graph, runs: list[_Run]) -> list[_Run]:
    """Layers that alternate between two masks repeat in pairs: lengthen the period of such a run and of its partners."""
    links = _links(graph, runs)
    factors = [1] * len(runs)
    for number, run in enumerate(runs):
        if not _is_clean(graph, run):
            factors[number] = next((m for m in _GROUPS if run.count >= 2 * m and _is_clean(graph, _grouped(run, m))), 1)
    for a, b in links:
        factors[a] = factors[b] = max(factors[a], factors[b])
    readers = {b for _, b in links}
    # The backward pass meets the layers in reverse order, so what is left over comes first there.
    grouped = [
        _grouped(run, factor, from_end=number in readers) if factor > 1 else run
        for number, (run, factor) in enumerate(zip(runs, factors, strict=True))
    ]
    return [run for run in grouped if run.count >= 2]


def _grouped(run: _Run, factor: int, *, from_end: bool = False) -> _Run:
    count = run.count // factor
    start = run.stop - count * factor * run.period if from_end else run.start
    return _Run(start, run.period * factor, count)


def _trim_to_partners(graph: Graph, runs: list[_Run]) -> list[_Run]:
    """Give runs that hand tensors to each other, repetition by repetition, the same layers."""
    while True:
        links = _links(graph, runs)
        for (a, b), pairs in links.items():
            first, second = runs[a], runs[b]
            sums = Counter(i + j for _, i, j in pairs).most_common(1)[0]
            differences = Counter(j - i for _, i, j in pairs).most_common(1)[0]
            if sums[1] >= differences[1]:
                low = max(0, sums[0] - second.count + 1)
                high = min(first.count - 1, sums[0])
                other = (sums[0] - high, sums[0] - low)
            else:
                low = max(0, -differences[0])
                high = min(first.count - 1, second.count - 1 - differences[0])
                other = (low + differences[0], high + differences[0])
            if high - low + 1 < 2:
                runs = [run for number, run in enumerate(runs) if number not in (a, b)]
                break
            if (low, high) != (0, first.count - 1) or other != (0, second.count - 1):
                runs[a], runs[b] = first.trimmed(low, high), second.trimmed(*other)
                break
        else:
            return runs


def _slots(graph: Graph, run: _Run) -> list[list[int]]:
    """For every read or written place of the period, its tensor in each repetition."""
    slots = []
    for offset in range(run.period):
        ops = [graph.ops[run.start + repetition * run.period + offset] for repetition in range(run.count)]
        for tensors in ([op.reads for op in ops], [op.writes for op in ops]):
            slots += [list(members) for members in zip(*tensors, strict=True)]
    return slots


def _is_clean(graph: Graph, run: _Run) -> bool:
    return all(len(set(slot)) in (1, run.count) for slot in _slots(graph, run))


def _first_conflict(graph: Graph, runs: Sequence[_Run]) -> tuple[_Run, _Run | None] | None:
    """A run with a place that is neither the same tensor nor another one in every repetition, and a better run."""

    for run in runs:
        if not _is_clean(graph, run):
            for first, last in ((1, run.count - 1), (0, run.count - 2), (1, run.count - 2)):
                if last - first + 1 >= 2 and _is_clean(graph, run.trimmed(first, last)):
                    return run, run.trimmed(first, last)
            return run, None
    return None


class _Classes:
    """Tensors that become one: `of[index]` is the representative of each."""

    def __init__(self, graph: Graph, runs: Sequence[_Run]) -> None:
        self.graph = graph
        self.runs = runs
        self.of = list(range(len(graph.tensors)))
        self._touching: dict[int, set[int]] = defaultdict(set)
        for run in runs:
            for slot in _slots(graph, run):
                if len(set(slot)) > 1:
                    for member in slot[1:]:
                        self._join(slot[0], member)
        self._join_states()
        self.of = [self._root(index) for index in range(len(self.of))]
        for number, run in enumerate(runs):
            for slot in _slots(graph, run):
                if len(set(slot)) > 1:
                    self._touching[self.of[slot[0]]].add(number)

    def _root(self, index: int) -> int:
        while self.of[index] != index:
            self.of[index] = self.of[self.of[index]]
            index = self.of[index]
        return index

    def _join(self, a: int, b: int) -> None:
        low, high = sorted((self._root(a), self._root(b)))
        self.of[high] = low

    def _join_states(self) -> None:
        """Optimizer states are touched by the optimizer only, so they follow their parameter by name."""
        parameters = {t.name: i for i, t in enumerate(self.graph.tensors) if t.role == "parameter" and t.name}
        groups: dict[tuple[int, str], int] = {}
        for index, tensor in enumerate(self.graph.tensors):
            if tensor.role == "optimizer_state":
                owner, _, state = tensor.name.rpartition(".")
                if owner in parameters:
                    first = groups.setdefault((self._root(parameters[owner]), state), index)
                    self._join(first, index)

    def conflict(self) -> _Run | None:
        """A run that must go because a class it makes would not mean what the flat graph means."""
        members: dict[int, list[int]] = defaultdict(list)
        for index, root in enumerate(self.of):
            members[root].append(index)
        # Only what the last repetition leaves behind has a meaning after the run; earlier results are gone or kept.
        outside, early, flat = self._read_outside(), self._written_early(), self._written_outside()
        for root, numbers in self._touching.items():
            tensors = [self.graph.tensors[index] for index in members[root]]
            run = self.runs[min(numbers)]
            kinds = {(t.dtype, t.num_bytes, t.role if t.role in PERSISTENT else "") for t in tensors}
            counts = {self.runs[number].count for number in numbers}
            if len(kinds) > 1:
                return run
            if tensors[0].role in PERSISTENT:
                if counts != {len(tensors)}:
                    return run
            elif (
                len(counts) > 1
                or not outside.isdisjoint(early.intersection(members[root]))
                or len(flat.intersection(members[root])) > 1
            ):
                return run
        return None

    def _written_early(self) -> set[int]:
        early: set[int] = set()
        for run in self.runs:
            for op in self.graph.ops[run.start : run.stop - run.period]:
                early.update(op.writes)
        return early

    def _written_outside(self) -> set[int]:
        places = _places(self.runs, len(self.graph.ops))
        return {index for op, place in zip(self.graph.ops, places, strict=True) if place is None for index in op.writes}

    def _read_outside(self) -> set[int]:
        places = _places(self.runs, len(self.graph.ops))
        return {index for op, place in zip(self.graph.ops, places, strict=True) if place is None for index in op.reads}


def _rewrite(graph: Graph, runs: Sequence[_Run], classes: Sequence[int]) -> Graph:
    members: dict[int, list[int]] = defaultdict(list)
    for index, root in enumerate(classes):
        members[root].append(index)
    roots = sorted(members)
    number_of = {root: number for number, root in enumerate(roots)}

    def moved(indices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(number_of[classes[index]] for index in indices))

    def kept(op: Op) -> Op:
        return replace(op, reads=moved(op.reads), writes=moved(op.writes))

    ops: list[Op] = []
    repeats: list[Repeat] = []
    position = 0
    for run in runs:
        ops += [kept(op) for op in graph.ops[position : run.start]]
        start = len(ops)
        for offset in range(run.period):
            alike = [graph.ops[run.start + repetition * run.period + offset] for repetition in range(run.count)]
            ops.append(
                replace(
                    kept(alike[0]),
                    layer=_merged_name([op.layer for op in alike]),
                    num_calls=round(sum(op.num_calls for op in alike) / run.count),
                )
            )
        repeats.append(Repeat(start=start, stop=len(ops), count=run.count))
        position = run.stop
    ops += [kept(op) for op in graph.ops[position:]]
    tensors = tuple(_merged([graph.tensors[index] for index in members[root]]) for root in roots)
    return replace(graph, ops=tuple(ops), tensors=tensors, repeats=tuple(repeats))


def _merged(tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0]
    if len(tensors) == 1:
        return first
    if first.role in PERSISTENT:
        return replace(first, name=_merged_name([tensor.name for tensor in tensors]), copies=len(tensors))
    kept = any(tensor.role == "activation" for tensor in tensors)
    return replace(first, role="activation" if kept else "temporary")


def _merged_name(names: Sequence[str]) -> str:
    """'layers.3.mlp' and 'layers.4.mlp' are 'layers.*.mlp'."""
    parts = [_NUMBER.split(name) for name in names]
    numbers = [_NUMBER.findall(name) for name in names]
    if any(part != parts[0] for part in parts):
        return names[0]
    merged = parts[0][0]
    for place, rest in enumerate(parts[0][1:]):
        values = {found[place] for found in numbers}
        merged += (values.pop() if len(values) == 1 else "*") + rest
    return merged
