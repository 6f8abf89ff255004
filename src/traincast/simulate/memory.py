"""Turns tasks and tensor lifetimes into the peak memory of a rank, what it is made of and when it happens."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from traincast.spec import MemoryProfile, Op, Repeat, Stage, Tensor
from traincast.spec.graph import segments

RESIDENT: tuple[str, ...] = ("parameter", "optimizer_state", "input", "buffer")

Place = tuple[int, int]
"""(segment, position in it)."""


@dataclass(frozen=True, slots=True)
class _Life:
    """One birth of a tensor: once per repetition of the segment it happens in."""

    tensor: int
    born: Place
    dies: Place
    carried_to: Place | None = None
    """Set where the next repetition uses it: the place where that one lets go of it."""


@dataclass(slots=True)
class _Events:
    """Bytes that appear and vanish at each place, per repetition of its segment."""

    born: defaultdict[Place, float] = field(default_factory=lambda: defaultdict(float))
    freed: defaultdict[Place, float] = field(default_factory=lambda: defaultdict(float))
    enter: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Held at the start of each repetition of a segment: what the one before it left."""
    leave: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Change once a segment is over."""


def replay_memory(stage: Stage, *, capacity_bytes: float, micro_batches: int = 1, overhead_bytes: float = 0.0,
                  with_curve: bool = False) -> MemoryProfile:  # fmt: skip
    """Allocate and free as the step does; of repeated layers only the first and last repetition can hold the peak."""
    parts = list(segments(stage.repeats, num_tasks=len(stage.tasks)))
    steady = RESIDENT
    if micro_batches > 1 or stage.num_in_flight > 1:
        steady = (*RESIDENT, "gradient")
    resident = {role: _role_bytes(stage.tensors, role) for role in steady}
    lives = list(_find_lives(stage, parts, skip=steady))
    base = sum(resident.values()) + overhead_bytes
    held = _stash_bytes(stage, parts, lives) * (stage.num_in_flight - 1)
    levels = _sweep(parts, _collect(stage, parts, lives), base + held, every=with_curve)
    peak_bytes, peak_at = max(((level, place) for level, place in levels), default=(base, (0, 0, 0)))
    gradients = resident.get("gradient", _live_gradients(stage, parts, lives, peak_at))
    by_role = {
        **resident,
        "gradient": gradients,
        "activation": peak_bytes - base - (0.0 if "gradient" in resident else gradients),
        "framework": overhead_bytes,
    }
    return MemoryProfile(
        peak_bytes=peak_bytes,
        by_role={role: amount for role, amount in by_role.items() if amount > 0},
        peak_at=_describe(stage, parts, peak_at),
        capacity_bytes=capacity_bytes,
        curve=tuple((stage.tasks[parts[at[0]].start + at[1]].name, level) for level, at in levels)
        if with_curve
        else (),
    )


def _role_bytes(tensors: Sequence[Tensor], role: str) -> float:
    return sum(tensor.num_bytes * tensor.copies for tensor in tensors if tensor.role == role)


def _find_lives(stage: Stage, parts: Sequence[Repeat], *, skip: Sequence[str]) -> Iterator[_Life]:
    reads: dict[int, list[Place]] = {}
    writes: dict[int, list[Place]] = {}
    for number, part in enumerate(parts):
        for position, task in enumerate(stage.tasks[part.start : part.stop]):
            if isinstance(task, Op):
                for tensor in task.reads:
                    reads.setdefault(tensor, []).append((number, position))
                for tensor in task.writes:
                    writes.setdefault(tensor, []).append((number, position))
    end = (len(parts), 0)
    for tensor, written in writes.items():
        role = stage.tensors[tensor].role
        if role in skip:
            continue
        if role == "gradient":
            yield _Life(tensor, written[0], end)
            continue
        used = sorted(reads.get(tensor, []))
        births = list(_births(parts, written, used))
        for (born, let_go), after in zip(births, [*births[1:], None], strict=True):
            limit = after[0] if after is not None else end
            uses = [place for place in (*used, *written) if born <= place < limit and place != let_go]
            if after is not None and after[1] is not None:
                # The next writer uses this value in its first repetition, and counts it from its start on.
                uses = [place for place in uses if place[0] < after[0][0]]
                uses.append((after[0][0] - 1, parts[after[0][0] - 1].stop - parts[after[0][0] - 1].start - 1))
            last = max(uses, default=born)
            own_count = parts[born[0]].count
            stashed = last[0] != born[0] and parts[last[0]].count == own_count
            yield _Life(tensor, born, last, None if stashed or let_go is None else let_go)


def _births(
    parts: Sequence[Repeat], written: Sequence[Place], used: Sequence[Place]
) -> Iterator[tuple[Place, Place | None]]:
    """The places where a tensor gets fresh memory, with the place where a repetition lets go of the one before it.

    A write after a read of the same memory is in place and no birth, unless the segment repeats: then the read was of what
    the repetition before had written.
    """
    seen: set[int] = set()
    for place in sorted(written):
        number = place[0]
        if number in seen:
            continue
        earlier = [use for use in used if use[0] == number and use < place]
        in_place = place in used
        if not seen or (not in_place and (not earlier or parts[number].count > 1)):
            seen.add(number)
            yield place, max(earlier) if earlier and parts[number].count > 1 and not in_place else None


def _stash_bytes(stage: Stage, parts: Sequence[Repeat], lives: Sequence[_Life]) -> float:
    """What one micro-batch leaves from its forward pass for its backward."""
    first = next((number for number, part in enumerate(parts) if _phase(stage, part) != "forward"), len(parts))
    return sum(
        stage.tensors[life.tensor].num_bytes * parts[life.born[0]].count
        for life in lives
        if life.born[0] < first <= life.dies[0] and stage.tensors[life.tensor].role != "gradient"
    )


def _phase(stage: Stage, part: Repeat) -> str:
    return next((task.phase for task in stage.tasks[part.start : part.stop] if isinstance(task, Op)), "forward")


def _collect(stage: Stage, parts: Sequence[Repeat], lives: Sequence[_Life]) -> _Events:
    events = _Events()

    for life in lives:
        size = stage.tensors[life.tensor].num_bytes
        number = life.born[0]
        copies = parts[number].count
        events.born[life.born] += size
        if life.carried_to is not None:
            events.freed[life.carried_to] += size
            events.enter[number] += size
            if life.dies[0] != number:
                events.leave[number] += size
                copies = 1
            else:
                continue
        if life.dies[0] >= len(parts):
            continue
        if parts[life.dies[0]].count == copies:
            events.freed[life.dies] += size
        elif parts[life.dies[0]].count == 1:
            events.freed[life.dies] += size * copies
        else:
            events.leave[life.dies[0]] -= size * copies
    return events


def _sweep(
    parts: Sequence[Repeat], events: _Events, base: float, *, every: bool
) -> list[tuple[float, tuple[int, int, int]]]:
    """(bytes in use, (segment, position, repetition)) while each task runs."""
    live = base
    levels: list[tuple[float, tuple[int, int, int]]] = []
    for number, part in enumerate(parts):
        length = part.stop - part.start
        born = [events.born.get((number, position), 0.0) for position in range(length)]
        freed = [events.freed.get((number, position), 0.0) for position in range(length)]
        delta = sum(born) - sum(freed)
        for repetition in range(part.count) if every else sorted({0, part.count - 1}):
            level = live + events.enter.get(number, 0.0) + repetition * delta
            for position in range(length):
                level += born[position]
                levels.append((level, (number, position, repetition)))
                level -= freed[position]
        live += part.count * delta + events.leave.get(number, 0.0)
    return levels


def _live_gradients(stage: Stage, parts: Sequence[Repeat], lives: Sequence[_Life], peak: tuple[int, int, int]) -> float:
    total = 0.0
    for life in lives:
        if stage.tensors[life.tensor].role != "gradient":
            continue
        number, position = life.born
        if number < peak[0]:
            total += stage.tensors[life.tensor].num_bytes * parts[number].count
        elif number == peak[0]:
            total += stage.tensors[life.tensor].num_bytes * (peak[2] + (1 if position <= peak[1] else 0))
    return total


def _describe(stage: Stage, parts: Sequence[Repeat], peak: tuple[int, int, int]) -> str:
    if not stage.tasks:
        return "an empty stage"
    task = stage.tasks[parts[peak[0]].start + peak[1]]
    where = f" in {task.layer}" if task.layer else ""
    return f"{task.phase}, {task.name}{where}"
