"""Pipeline orders: when each stage has run all its micro-batches."""

from collections.abc import Sequence

EXACT_CELLS = 20_000


def finish_times(order: str, *, forward_s: Sequence[float], backward_s: Sequence[float], hop_s: float, micro_batches: int,
                 virtual_stages: int = 1) -> list[float]:  # fmt: skip
    """The time at which each stage ends its last backward, counted from the start of the first forward."""
    num_stages = len(forward_s)
    if num_stages == 1:
        return [micro_batches * (forward_s[0] + backward_s[0])]
    if (
        order == "interleaved"
        or virtual_stages > 1
        or order == "zero-bubble"
        or num_stages * micro_batches > EXACT_CELLS
    ):
        return _by_formula(order, forward_s, backward_s, hop_s, micro_batches, virtual_stages)
    return _by_recurrence(order, forward_s, backward_s, hop_s, micro_batches)


def _by_formula(order: str, forward_s: Sequence[float], backward_s: Sequence[float], hop_s: float, micro_batches: int,
                virtual_stages: int) -> list[float]:  # fmt: skip
    """Steady state of the slowest stage, plus filling and draining (Narayanan et al. 2021; zero-bubble: Qi et al. 2024)."""
    both = [f + b for f, b in zip(forward_s, backward_s, strict=True)]
    slowest = max(both)
    ramp_s = sum(both) - slowest
    if order == "zero-bubble":
        # The weight half of the backward fills the ramp; only one forward and the input half stay exposed.
        ramp_s *= 1 / 3
    hops_s = 2 * (len(both) - 1) * hop_s
    transfers_s = 2 * hop_s * (virtual_stages - 1) * micro_batches / len(both)
    total_s = micro_batches * slowest + ramp_s / virtual_stages + hops_s + transfers_s
    # Stage s ends its last backward before the stages in front of it have run theirs.
    tail = 0.0
    ends = []
    for backward in backward_s:
        ends.append(total_s - tail)
        tail += (backward + hop_s) / virtual_stages
    return ends


def _by_recurrence(order: str, forward_s: Sequence[float], backward_s: Sequence[float], hop_s: float,
                   micro_batches: int) -> list[float]:  # fmt: skip
    """Each stage runs its list of passes in order; a pass also waits for its neighbour's."""
    placed = _place(order, forward_s, backward_s, hop_s, micro_batches)
    return [passes[-1][2] for passes in placed]


def place_passes(order: str, *, forward_s: Sequence[float], backward_s: Sequence[float], hop_s: float,
                 micro_batches: int, virtual_stages: int = 1) -> list[list[tuple[str, float, float]]]:  # fmt: skip
    """("F" or "B", start, end) of every pass of each stage. Orders known only by formula are laid out as 1F1B, with their
    gaps scaled so that each stage ends when the formula says."""
    exact = order in ("gpipe", "1f1b") and virtual_stages == 1 and len(forward_s) > 1
    placed = _place(order if exact else "1f1b", forward_s, backward_s, hop_s, micro_batches)
    ends = finish_times(
        order, forward_s=forward_s, backward_s=backward_s, hop_s=hop_s, micro_batches=micro_batches,
        virtual_stages=virtual_stages,
    )  # fmt: skip
    return [_end_at(passes, end_s) for passes, end_s in zip(placed, ends, strict=True)]


def _end_at(passes: Sequence[tuple[str, float, float]], end_s: float) -> list[tuple[str, float, float]]:
    busy_s = sum(end - start for _, start, end in passes)
    waited_s = passes[-1][2] - busy_s
    idle_s = max(0.0, end_s - busy_s)
    waits = waited_s > 1e-9 * busy_s
    scale = idle_s / waited_s if waits else 0.0
    moved = []
    # A stage that never waits in 1F1B has no gap to scale: it begins late.
    before_s, clock_s = 0.0, 0.0 if waits else idle_s
    for kind, start, end in passes:
        clock_s += scale * (start - before_s)
        moved.append((kind, clock_s, clock_s + end - start))
        before_s, clock_s = end, clock_s + end - start
    return moved


def _place(order: str, forward_s: Sequence[float], backward_s: Sequence[float], hop_s: float,
           micro_batches: int) -> list[list[tuple[str, float, float]]]:  # fmt: skip
    num_stages = len(forward_s)
    lists = [_passes(order, stage, num_stages, micro_batches) for stage in range(num_stages)]
    done: dict[tuple[int, str, int], float] = {}
    placed: list[list[tuple[str, float, float]]] = [[] for _ in range(num_stages)]
    clock = [0.0] * num_stages
    position = [0] * num_stages
    waiting = list(range(num_stages))
    while waiting:
        stage = waiting.pop()
        passes = lists[stage]
        while position[stage] < len(passes):
            kind, batch = passes[position[stage]]
            if kind == "F":
                source = (stage - 1, "F", batch) if stage else None
            else:
                source = (stage + 1, "B", batch) if stage + 1 < num_stages else (stage, "F", batch)
            if source is not None and source not in done:
                break
            arrival = 0.0 if source is None else done[source] + (hop_s if source[0] != stage else 0.0)
            start = max(clock[stage], arrival)
            clock[stage] = start + (forward_s[stage] if kind == "F" else backward_s[stage])
            placed[stage].append((kind, start, clock[stage]))
            done[(stage, kind, batch)] = clock[stage]
            position[stage] += 1
            neighbour = stage + 1 if kind == "F" else stage - 1
            if 0 <= neighbour < num_stages and neighbour not in waiting:
                waiting.append(neighbour)
    return placed


def _passes(order: str, stage: int, num_stages: int, micro_batches: int) -> list[tuple[str, int]]:
    if order == "gpipe":
        return [("F", i) for i in range(micro_batches)] + [("B", i) for i in range(micro_batches)]
    warm = min(num_stages - stage - 1, micro_batches)
    passes = [("F", i) for i in range(warm)]
    for i in range(micro_batches - warm):
        passes += [("F", warm + i), ("B", i)]
    return passes + [("B", i) for i in range(micro_batches - warm, micro_batches)]
