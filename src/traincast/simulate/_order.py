"""Pipeline orders: when each stage has run all its micro-batches."""

from collections.abc import Sequence

EXACT_CELLS = 4_000
"""Passes of a micro-batch that are placed one by one; beyond, the formulas say the same of equal stages."""
WEIGHT_SHARE = 0.5
"""Of a backward pass that makes weight gradients: every product has one of each."""


def finish_times(order: str, *, forward_s: Sequence[float], backward_s: Sequence[float], hop_s: float, micro_batches: int,
                 virtual_stages: int = 1) -> list[float]:  # fmt: skip
    """The time at which each stage ends its last backward, counted from the start of the first forward."""
    num_stages = len(forward_s)
    if num_stages == 1:
        return [micro_batches * (forward_s[0] + backward_s[0])]
    exact = num_stages * micro_batches * virtual_stages <= EXACT_CELLS
    # Megatron's interleaved order is defined for whole rounds of micro-batches only.
    if not exact or (virtual_stages > 1 and (micro_batches % num_stages or order == "zero-bubble")):
        return _by_formula(order, forward_s, backward_s, hop_s, micro_batches, virtual_stages)

    def list_passes(stage: int) -> list[Pass]:
        times = forward_s[stage], backward_s[stage]
        if virtual_stages > 1:
            return _interleave(stage, num_stages, micro_batches, virtual_stages, *times)
        if order == "zero-bubble":
            return _fill_bubbles(stage, num_stages, micro_batches, *times)
        return _in_turn(order, stage, num_stages, micro_batches, *times)

    lists = [list_passes(stage) for stage in range(num_stages)]
    return _run(lists, hop_s=hop_s, num_chunks=num_stages * virtual_stages, micro_batches=micro_batches)


def _by_formula(order: str, forward_s: Sequence[float], backward_s: Sequence[float], hop_s: float, micro_batches: int,
                virtual_stages: int) -> list[float]:  # fmt: skip
    """Steady state of the slowest stage, plus filling and draining: (p - 1)(F + B) / v (Narayanan et al. 2021), and
    (p - 1)(F + B - 2W) where the weight half W of each backward fills the gaps (ZB-H1, Qi et al. 2024)."""
    both = [f + b for f, b in zip(forward_s, backward_s, strict=True)]
    slowest = max(both)
    ramp_s = sum(both) - slowest
    if order == "zero-bubble":
        ramp_s = max(0.0, ramp_s - 2 * WEIGHT_SHARE * (sum(backward_s) - backward_s[both.index(slowest)]))
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


FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = range(3)
Pass = tuple[int, int, int, float]
"""What it is, the chunk of layers it runs, its micro-batch, its duration."""


def _interleave(stage: int, num_stages: int, micro_batches: int, virtual: int, forward_s: float,
                backward_s: float) -> list[Pass]:  # fmt: skip
    """Megatron's interleaved 1F1B: rounds of one micro-batch per stage through each chunk in turn (Narayanan et al. 2021)."""
    total = micro_batches * virtual
    warm = min(2 * (num_stages - stage - 1) + (virtual - 1) * num_stages, total)

    def step(number: int, kind: int) -> Pass:
        turn, place = divmod(number, num_stages * virtual)
        chunk = place // num_stages
        chunk = chunk if kind == FORWARD else virtual - 1 - chunk
        seconds = (forward_s if kind == FORWARD else backward_s) / virtual
        return kind, chunk * num_stages + stage, turn * num_stages + place % num_stages, seconds

    passes = [step(number, FORWARD) for number in range(warm)]
    for number in range(total):
        if warm + number < total:
            passes.append(step(warm + number, FORWARD))
        passes.append(step(number, INPUT_GRADIENT))
    return passes


def _in_turn(order: str, stage: int, num_stages: int, micro_batches: int, forward_s: float,
             backward_s: float) -> list[Pass]:  # fmt: skip
    """GPipe's order, or 1F1B."""
    warm = micro_batches if order == "gpipe" else min(num_stages - stage - 1, micro_batches)
    passes: list[Pass] = [(FORWARD, stage, number, forward_s) for number in range(warm)]
    for number in range(micro_batches):
        if warm + number < micro_batches:
            passes.append((FORWARD, stage, warm + number, forward_s))
        passes.append((INPUT_GRADIENT, stage, number, backward_s))
    return passes


def _fill_bubbles(stage: int, num_stages: int, micro_batches: int, forward_s: float, backward_s: float) -> list[Pass]:
    """ZB-H1: weight gradients wait, later stages longer, so that input gradients reach the front sooner (Qi et al. 2024)."""
    warm = min(num_stages - stage, micro_batches)
    weight_s = WEIGHT_SHARE * backward_s
    passes: list[Pass] = [(FORWARD, stage, number, forward_s) for number in range(warm)]
    for number in range(micro_batches):
        passes.append((INPUT_GRADIENT, stage, number, backward_s - weight_s))
        if number >= stage:
            passes.append((WEIGHT_GRADIENT, stage, number - stage, weight_s))
        if warm + number < micro_batches:
            passes.append((FORWARD, stage, warm + number, forward_s))
    left = range(max(0, micro_batches - stage), micro_batches)
    return passes + [(WEIGHT_GRADIENT, stage, number, weight_s) for number in left]


_PENDING = -1.0
"""Instead of a time: not yet."""


def _run(lists: Sequence[Sequence[Pass]], *, hop_s: float, num_chunks: int, micro_batches: int,
         placed: Sequence[list[tuple[str, float, float]]] = ()) -> list[float]:  # fmt: skip
    """When each stage is done. It runs its passes in order; one that needs another stage's result waits for it. `placed`: for
    each stage also what it runs, from when to when."""
    num_stages, last = len(lists), num_chunks - 1
    forwards, backwards = ([[_PENDING] * micro_batches for _ in range(num_chunks)] for _ in (FORWARD, INPUT_GRADIENT))
    clock, position = [0.0] * num_stages, [0] * num_stages
    # What a stage sends in one direction goes one after the other.
    sent_on, sent_back = [0.0] * num_stages, [0.0] * num_stages
    waiting = list(range(num_stages))
    while waiting:
        stage = waiting.pop()
        passes, at, now = lists[stage], position[stage], clock[stage]
        on_s, back_s = sent_on[stage], sent_back[stage]
        for kind, chunk, batch, seconds in passes[at:]:
            if kind == FORWARD:
                arrival_s = forwards[chunk - 1][batch] if chunk else 0.0
            elif kind == INPUT_GRADIENT:
                arrival_s = backwards[chunk + 1][batch] if chunk < last else 0.0
            else:
                arrival_s = 0.0
            if arrival_s < 0.0:
                break
            now = (arrival_s if arrival_s > now else now) + seconds
            if placed:
                placed[stage].append(("FB"[kind], now - seconds, now))
            if kind == FORWARD:
                on_s = forwards[chunk][batch] = (now if now > on_s else on_s) + hop_s
            elif kind == INPUT_GRADIENT:
                back_s = backwards[chunk][batch] = (now if now > back_s else back_s) + hop_s
            at += 1
        if at > position[stage]:
            position[stage], clock[stage] = at, now
            sent_on[stage], sent_back[stage] = on_s, back_s
            waiting += [other for other in ((stage + 1) % num_stages, stage - 1 if stage else num_stages - 1)
                        if other not in waiting]  # fmt: skip
    return clock


def place_passes(order: str, *, forward_s: Sequence[float], backward_s: Sequence[float], hop_s: float,
                 micro_batches: int, virtual_stages: int = 1) -> list[list[tuple[str, float, float]]]:  # fmt: skip
    """("F" or "B", start, end) of every pass of each stage. Orders known only by formula are laid out as 1F1B, with their
    gaps scaled so that each stage ends when the formula says."""
    exact = order in ("gpipe", "1f1b") and virtual_stages == 1 and len(forward_s) > 1
    laid = order if exact else "1f1b"
    lists = [
        _in_turn(laid, stage, len(forward_s), micro_batches, *times)
        for stage, times in enumerate(zip(forward_s, backward_s, strict=True))
    ]
    placed: list[list[tuple[str, float, float]]] = [[] for _ in lists]
    _run(lists, hop_s=hop_s, num_chunks=len(lists), micro_batches=micro_batches, placed=placed)
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
