"""Peak memory of a graph by the lifetimes of its tensors, flat or folded: a small reference for the tests."""

from traincast.spec._graph import Graph, Repeat, segments

RESIDENT = ("parameter", "optimizer_state", "buffer", "input")


def peak_bytes(graph: Graph) -> float:
    """Resident tensors, plus every other one from its first write to its last read.

    In a folded graph a tensor written in a repeated range and read in a later range of the same count is a stack: each
    repetition (and a write outside) adds one, each reading repetition (and a last read outside) takes one away.
    """
    parts = list(segments(graph.repeats, num_tasks=len(graph.ops)))
    part_of = {index: number for number, part in enumerate(parts) for index in range(part.start, part.stop)}
    reads: dict[int, list[int]] = {}
    writes: dict[int, list[int]] = {}
    for position, op in enumerate(graph.ops):
        for index in op.reads:
            reads.setdefault(index, []).append(position)
        for index in op.writes:
            writes.setdefault(index, []).append(position)

    grows: dict[int, list[int]] = {}
    shrinks: dict[int, list[int]] = {}
    grows_once: dict[int, list[int]] = {}
    shrinks_once: dict[int, list[int]] = {}
    for index, tensor in enumerate(graph.tensors):
        if tensor.role in RESIDENT or index not in writes:
            continue
        written = {part_of[position] for position in writes[index]}
        touched = sorted({*written, *(part_of[position] for position in reads.get(index, []))})
        if tensor.role == "gradient":
            grows.setdefault(writes[index][0], []).append(index)
            continue
        stacked = any(
            parts[w].count > 1 and any(r > w and parts[r].count == parts[w].count for r in touched) for w in written
        )
        if stacked:
            for number in written:
                first = min(position for position in writes[index] if part_of[position] == number)
                grows.setdefault(first, []).append(index)
            last_write = max(w for w in written if parts[w].count > 1)
            popping = [n for n in touched if n > last_write and n not in written and parts[n].count > 1]
            outside = [n for n in touched if n > last_write and parts[n].count == 1]
            for number in [*popping, *outside[-1:]]:
                last = max(position for position in reads[index] if part_of[position] == number)
                shrinks.setdefault(last, []).append(index)
        elif (
            len(touched) == 1
            and parts[touched[0]].count > 1
            and min(reads.get(index, writes[index])) >= writes[index][0]
        ):
            grows.setdefault(writes[index][0], []).append(index)
            shrinks.setdefault(max(writes[index] + reads.get(index, [])), []).append(index)
        else:
            grows_once.setdefault(writes[index][0], []).append(index)
            shrinks_once.setdefault(max(writes[index] + reads.get(index, [])), []).append(index)

    resident = sum(t.num_bytes * t.copies for t in graph.tensors if t.role in RESIDENT)
    live = peak = resident
    held = [0] * len(graph.tensors)
    for part in parts:
        for repetition in range(part.count):
            for position in range(part.start, part.stop):
                added = list(grows.get(position, []))
                if repetition == 0:
                    added += grows_once.get(position, [])
                for index in added:
                    held[index] += 1
                    live += graph.tensors[index].num_bytes
                peak = max(peak, live)
                removed = list(shrinks.get(position, []))
                if repetition == part.count - 1:
                    removed += shrinks_once.get(position, [])
                for index in removed:
                    if held[index]:
                        held[index] -= 1
                        live -= graph.tensors[index].num_bytes
    return peak


__all__ = ["Repeat", "peak_bytes"]
