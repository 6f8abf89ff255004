"""Turns a stage into what its process takes of a device: the requests of its steps go through the caching allocator, and what
lies around the allocator is added."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from traincast.catalog import read_constants
from traincast.noun import noun
from traincast.simulate._allocator import CachingAllocator
from traincast.simulate._memory import RESIDENT, Life, Place, find_lives, replay_pass
from traincast.spec import MemoryProfile, Op, Repeat, Stage, segments

STEPS = 2
"""After the first step the allocator's cache has the shape that the others find."""
BESIDE_STREAM = (
    "gathered weights",
    "gradient buckets",
    "communication buffers",
    "largest gradient",
    "whole activations",
    "kept outputs",
    "gathered inputs",
    "workspace",
)
"""Parts of a peak that are no tensors of the stage."""


@noun
class Surroundings:
    """What a device's own meter (nvidia-smi) shows beside what the allocator has reserved for the tensors of a graph:
    the constants of the document `device_memory`."""

    context_bytes: float
    unseen: float
    search: float
    full: float
    sharpness: float

    @staticmethod
    def usual(*, lean: bool = False) -> "Surroundings":
        """`lean`: of frameworks whose tensors are all in the graph and that search nothing."""
        found = read_constants(Surroundings, "device_memory")
        return replace(found, unseen=0.0, search=0.0) if lean else found


_MOST_SHARE = 1e6


def reserve(stage: Stage, *, accumulates: bool, flat_update: bool = False) -> int:
    """Bytes that the allocator has taken from the device after two steps: folded layers are unfolded one by one. `flat_update`:
    what the update makes of all weights is one piece, for which no hole that layers left is large enough."""
    allocator = CachingAllocator()
    steady = (*RESIDENT, "gradient") if accumulates else RESIDENT
    for index, tensor in enumerate(stage.tensors):
        if tensor.role in steady and tensor.num_bytes:
            for copy in range(tensor.copies):
                allocator.allocate(("resident", index, copy), tensor.num_bytes)
    lives = find_lives(stage, accumulates=accumulates)
    parts = list(segments(stage.repeats, num_tasks=len(stage.tasks)))
    pieces = [_pieces(stage, parts, life, flat_update) for life in lives]
    for _ in range(STEPS):
        _run_step(parts, lives, pieces, allocator)
    return allocator.reserved_bytes


def _pieces(stage: Stage, parts: Sequence[Repeat], life: Life, flat: bool) -> list[float]:
    """An update runs over lists of tensors, so what it makes comes in as many pieces as there are weights, unless these are views
    of one `flat` buffer."""
    size = stage.tensors[life.tensor].num_bytes
    number, position = life.born
    if flat or stage.tasks[parts[number].start + position].phase != "optimizer":
        return [size]
    weights = [t.num_bytes for t in stage.tensors if t.role == "parameter" for _ in range(t.copies) if t.num_bytes]
    whole = sum(weights)
    return [size * weight / whole for weight in weights] if whole else [size]


def _run_step(
    parts: Sequence[Repeat], lives: Sequence[Life], pieces: Sequence[Sequence[float]], allocator: CachingAllocator
) -> None:
    born, dies, let_go = (_by_place(lives, which) for which in ("born", "dies", "carried_to"))
    held: set[tuple[int, int]] = set()

    def free(life: int, repetition: int) -> None:
        if (life, repetition) in held:
            held.discard((life, repetition))
            for piece in range(len(pieces[life])):
                allocator.free((life, repetition, piece))

    for number, part in enumerate(parts):
        for repetition in range(part.count):
            for position in range(part.stop - part.start):
                place = (number, position)
                for life in born.get(place, ()):
                    if (life, repetition) not in held:
                        held.add((life, repetition))
                        for piece, num_bytes in enumerate(pieces[life]):
                            allocator.allocate((life, repetition, piece), num_bytes)
                for life in let_go.get(place, ()):
                    free(life, repetition - 1)
                for life in dies.get(place, ()):
                    origin = lives[life].born[0]
                    if origin == number:
                        free(life, repetition)
                    elif parts[origin].count == part.count:
                        # The backward range takes what the layers left in the opposite order.
                        free(life, part.count - 1 - repetition)
                    elif repetition == part.count - 1:
                        for one in range(parts[origin].count):
                            free(life, one)
    for life, repetition in sorted(held):
        free(life, repetition)


def _by_place(lives: Sequence[Life], which: str) -> Mapping[Place, list[int]]:
    places: defaultdict[Place, list[int]] = defaultdict(list)
    for index, life in enumerate(lives):
        place = getattr(life, which)
        if place is not None:
            places[place].append(index)
    return places


def searches_algorithms(stage: Stage) -> bool:
    """Whether there are convolutions, whose libraries try several algorithms."""
    return any(isinstance(task, Op) and task.kind == "conv" for task in stage.tasks)


def reserved_bytes(stage: Stage, profile: MemoryProfile, *, accumulates: bool, flat_update: bool = False) -> float:
    """Of a whole rank: the stage's own stream, the parts of its peak that are no tensors of it, and other passes in flight."""
    beside = sum(profile.by_role.get(part, 0.0) for part in BESIDE_STREAM)
    others = stage.num_in_flight - 1
    stash = replay_pass(stage, accumulates=accumulates).stash_bytes * others if others else 0.0
    return reserve(stage, accumulates=accumulates, flat_update=flat_update) + beside + stash


def device_bytes(
    reserved: float, *, capacity_bytes: float, searches: bool, around: Surroundings, communicators: float = 0.0
) -> float:
    """What the device's own meter shows: a smooth lower one of what is asked for and what there is. Communicators take their
    buffers from the device, not from the allocator."""
    wanted = (
        around.context_bytes + communicators + reserved * (1 + around.unseen + (around.search if searches else 0.0))
    )
    room = around.full * capacity_bytes
    share = min(wanted / room, _MOST_SHARE)
    return float(room * share / (1 + share**around.sharpness) ** (1 / around.sharpness))
