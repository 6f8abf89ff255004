"""Turns tasks and tensor lifetimes into the peak memory of a rank, what it is made of and when it happens."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincast.catalog import read_constants
from traincast.memo import Remember, compute
from traincast.noun import noun
from traincast.spec import HOST, ROLES, Collective, MemoryProfile, Op, Repeat, Stage, Task, Tensor, segments

RESIDENT: tuple[str, ...] = ("parameter", "optimizer_state", "input", "buffer", "cache")

WIDE_GRADIENT = ".main_grad"
"""How gradients are named that are kept in a wider format than the one they are computed in."""

LOSS = "loss"
"""The layer of the operators of a loss."""
UPDATE = "temporaries of the update"
"""The role of what an update makes and forgets: wide copies of gradients, denominators."""

Place = tuple[int, int]
"""(segment, position in it)."""


@dataclass(frozen=True, slots=True)
class Life:
    """One birth of a tensor: once per repetition of the segment it happens in."""

    tensor: int
    born: Place
    dies: Place
    carried_to: Place | None = None
    """Set where the next repetition uses it: the place where that one lets go of it."""
    surplus: Place | None = None
    """Set where each repetition's input is kept for the backward pass, that of the first from outside included: the place
    where the result of the last one goes, which no backward repetition takes."""


@noun
class Overheads:
    """What real runs hold beyond live tensors: the constants of the document `memory`, then what the job and its framework do.

    A gathered input of a split product is dropped after use, but its memory comes back only when the device has passed the
    gather. A host that runs ahead of the device therefore holds gathers of several layers and passes: as many as it can
    queue, which is a number of launches and not a share of the model.
    """

    cache: float
    workspace_bytes: float
    whole_buffers: float
    queued_gathers: float
    lone_pass: float
    returned_passes: float
    lead_flop: float
    lead_slope: float
    lead_ranks: float
    lead_group: float
    wide_ranks: float
    wide_slope: float
    wide_bytes: float
    reclaim: float
    reclaim_slope: float
    bucket_bytes: float = 0.0
    """Buffers of a stack that reduces and gathers through buckets of its own; never more than two copies of the weights that
    train. Then gradients have no second copy, unless they are added to sums in a wider format."""
    gradient_shards: int = 1
    """Ranks that share the sums of gradients: the buckets hold gradients before they are shared."""
    flat_gradients: bool = False
    """Gradients are views of buffers that are made before the first step, so they are there in every pass."""
    by_weight: bool = False
    """A compiler plans memory: weights are gathered, or cast, one by one and not a layer at a time, and gradients are added in
    place."""
    largest_batch: float = 1.0
    """Activations of the batch with the largest inputs over those of the mean one."""
    live_bytes: float = 0.0
    """Gathered weights that a stack lets live at once, where that is more than two layers'."""
    keeps_outputs: bool = False
    """The output that the loss read stays until its buffer is written again, and there are two of them."""

    @staticmethod
    @functools.cache
    def usual() -> "Overheads":
        """As fitted, of a framework without habits of its own."""
        return read_constants(Overheads, "memory")


def replay_memory(stage: Stage, *, capacity_bytes: float, micro_batches: int = 1, overhead_bytes: float = 0.0,
                  pipelined: bool = False, overheads: Overheads | None = None,
                  with_curve: bool = False, bucket_copies: bool = False, replicated: bool = False) -> MemoryProfile:  # fmt: skip
    """Allocate and free as the step does; of repeated layers only the first and last repetition can hold the peak.

    `overhead_bytes` lie outside the framework's allocator (driver, communicators): no part of the peak, but of what must fit.
    Without `overheads` the peak is that of the live tensors alone. `bucket_copies`: replicas copy their gradients, in the format
    of the weights, into the buckets in which they are reduced.
    """
    accumulates = keeps_gradients(stage, micro_batches, overheads)
    one = replay_pass(stage, accumulates=accumulates, every=with_curve)
    return add_up(stage, one, capacity_bytes=capacity_bytes, overhead_bytes=overhead_bytes, pipelined=pipelined,
                   overheads=overheads, bucket_copies=bucket_copies, lone_pass=micro_batches == 1,
                   replicated=replicated)  # fmt: skip


def replay_stages(stages: Sequence[Stage], *, capacity_bytes: float, micro_batches: int = 1, overhead_bytes: float = 0.0,
                  overheads: Overheads | None = None, bucket_copies: bool = False,
                  replicated: bool = False, remember: Remember = compute) -> list[MemoryProfile]:  # fmt: skip
    """As `replay_memory` for each stage of a pipeline; equal tasks are replayed once."""
    known: dict[tuple[int, bool], Pass] = {}
    profiles = []
    for stage in stages:
        accumulates = keeps_gradients(stage, micro_batches, overheads)
        key = id(stage.tasks), accumulates
        if key not in known:
            known[key] = remember(replay_tasks, stage.tasks, stage.repeats, stage.tensors, accumulates)
        profiles.append(
            add_up(stage, known[key], capacity_bytes=capacity_bytes, overhead_bytes=overhead_bytes,
                    pipelined=len(stages) > 1, overheads=overheads, bucket_copies=bucket_copies,
                    lone_pass=micro_batches == 1, replicated=replicated)
        )  # fmt: skip
    return profiles


def keeps_gradients(stage: Stage, micro_batches: int, overheads: Overheads | None = None) -> bool:
    """Gradients that are added up live through the whole step; so do those kept in a wider format than their weights', and those
    of a stack that has buffers for them."""
    if micro_batches > 1 or stage.num_in_flight > 1 or (overheads is not None and overheads.flat_gradients):
        return True
    return _adds_wide(stage)


def _adds_wide(stage: Stage) -> bool:
    return any(tensor.role == "gradient" and tensor.name.endswith(WIDE_GRADIENT) for tensor in stage.tensors)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one micro-batch through a stage."""

    resident: dict[str, float]
    live_bytes: float
    """At the peak of the pass itself, without other passes in flight."""
    peak_at: str
    gradient_bytes: float
    """At that peak."""
    stash_bytes: float
    trained_bytes: float
    """All gradients together, at the peak or not: those of frozen weights are never made."""
    unit_bytes: float
    gathered_bytes: float
    """Of all weights that are gathered in a pass: no more of them can live at once."""
    weight_share: float
    """Of the largest weight in the unit of weights that is the largest."""
    largest_gradient_bytes: float
    """Of gradients that are added to others: one as large as a table of tokens finds no hole and takes new memory."""
    gathers: "Gathers"
    has_master: bool
    """The update keeps weights in a wider format than the passes use."""
    frozen_bytes: float
    """Of weights that no update writes."""
    curve: tuple[tuple[str, float], ...]
    update_bytes: float = 0.0
    """At the peak of the update, when no pass is in flight."""
    update_at: str = ""
    leaving_bytes: float = 0.0
    """Of the gradients that go to the host as soon as they are made."""
    narrow_bytes: float = 0.0
    """That weights stored in eight bits save, whose gradients still have sixteen."""
    output_bytes: float = 0.0
    """Of what the loss reads."""

    def reduced_bytes(self, *, shards: int) -> float:
        """Of all gradients before so many ranks share them, in the format of the weights."""
        whole = max(self.resident["parameter"] + self.narrow_bytes, self.gathered_bytes)
        return min(whole, shards * (self.trained_bytes or self.leaving_bytes))

    @property
    def bucket_bytes(self) -> float:
        """Of a copy of the gradients in the format of the weights, where one of them is not the wider."""
        return min(self.resident["parameter"] + self.narrow_bytes, self.resident.get("gradient", self.trained_bytes))


def find_lives(stage: Stage, *, accumulates: bool) -> list[Life]:
    """When each tensor is born and dies."""
    return list(_course_of(stage, accumulates=accumulates).lives)


def replay_tasks(
    tasks: tuple[Task, ...], repeats: tuple[Repeat, ...], tensors: tuple[Tensor, ...], accumulates: bool
) -> Pass:
    """One micro-batch through a stage's tasks, whatever its place in a pipeline."""
    return replay_pass(Stage(tasks=tasks, repeats=repeats, tensors=tensors), accumulates=accumulates)


def replay_pass(stage: Stage, *, accumulates: bool, every: bool = False) -> Pass:
    """One micro-batch through a stage; `accumulates`: gradients stay from pass to pass."""
    parts = list(segments(stage.repeats, num_tasks=len(stage.tasks)))
    steady = (*RESIDENT, "gradient") if accumulates else RESIDENT
    course = _course_of(stage, accumulates=accumulates)
    sizes = np.array([tensor.num_bytes for tensor in stage.tensors], dtype=np.float64)
    copies = np.array([tensor.copies for tensor in stage.tensors], dtype=np.float64)
    by_role = dict(zip(ROLES, np.bincount(course.roles, sizes * copies, len(ROLES)).tolist(), strict=True))
    resident = {role: by_role[role] for role in steady}
    base = sum(resident.values())
    update = next((i for i, task in enumerate(stage.tasks) if task.phase == "optimizer"), len(stage.tasks))
    live_bytes, peak_at = course.find_peak(sizes, base, stop=update)
    update_bytes, update_at = course.find_peak(sizes, base, start=update)
    gathered = [_gathered(stage, part) for part in parts]
    return Pass(
        resident=resident,
        live_bytes=live_bytes,
        peak_at=_describe(stage, parts, peak_at),
        gradient_bytes=resident.get("gradient", _live_gradients(stage, parts, course.lives, peak_at)),
        stash_bytes=_stash_bytes(stage, parts, course, sizes),
        trained_bytes=by_role["gradient"],
        unit_bytes=_unit_bytes(stage, parts, gathered),
        weight_share=_weight_share(stage, parts, gathered),
        gathered_bytes=sum(part.count * amount for part, amount in zip(parts, gathered, strict=True)) / 2,
        largest_gradient_bytes=_largest_gradient_bytes(stage),
        gathers=Gathers.of(stage),
        frozen_bytes=_frozen_bytes(stage),
        has_master=any(isinstance(task, Op) and bool(task.attrs.get("master")) for task in stage.tasks),
        curve=_curve(stage, parts, course, sizes, base) if every else (),
        update_bytes=update_bytes,
        update_at=_describe(stage, parts, update_at),
        leaving_bytes=_leaving_bytes(stage, parts),
        narrow_bytes=sum(t.num_bytes * t.copies for t in stage.tensors if t.role == "parameter" and t.dtype == "fp8"),
        output_bytes=_output_bytes(stage),
    )


def _output_bytes(stage: Stage) -> float:
    """What the first operator of the loss reads of the model."""
    first = next((op for op in stage.ops() if op.phase == "forward" and op.layer == LOSS), None)
    return max((stage.tensors[tensor].num_bytes for tensor in first.reads), default=0.0) if first else 0.0


def _frozen_bytes(stage: Stage) -> float:
    trained = {t for task in stage.ops() if task.kind == "optimizer" for t in task.writes}
    weights = (t for place, t in enumerate(stage.tensors) if t.role == "parameter" and place not in trained)
    return sum(tensor.num_bytes * tensor.copies for tensor in weights)


def _leaving_bytes(stage: Stage, parts: Sequence[Repeat]) -> float:
    return sum(
        part.count * task.num_bytes
        for part in parts
        for task in stage.tasks[part.start : part.stop]
        if isinstance(task, Collective) and task.axis == HOST and task.kind == "copy_out" and task.phase == "backward"
    )


def replay_forward(tasks: tuple[Task, ...], repeats: tuple[Repeat, ...], tensors: tuple[Tensor, ...]) -> float:
    """Bytes beside what is always there at the fullest moment of a forward pass that keeps nothing, as in an evaluation."""
    stop = next((index for index, task in enumerate(tasks) if task.phase != "forward"), len(tasks))
    course = _course_of(
        Stage(tasks=tasks[:stop], repeats=tuple([one for one in repeats if one.stop <= stop]), tensors=tensors),
        accumulates=False,
    )
    sizes = np.array([tensor.num_bytes for tensor in tensors], dtype=np.float64)
    return course.find_peak(sizes, 0.0)[0]


def _curve(
    stage: Stage, parts: Sequence[Repeat], course: "Course", sizes: NDArray[np.float64], base: float
) -> tuple[tuple[str, float], ...]:
    """(task, bytes in use) one after the other, repeated layers as often as they run."""
    first, delta = course.find_levels(sizes, base)
    return tuple(
        (stage.tasks[place].name, float(first[place] + repetition * change))
        for part, change in zip(parts, delta.tolist(), strict=True)
        for repetition in range(part.count)
        for place in range(part.start, part.stop)
    )


def add_up(stage: Stage, one: Pass, *, capacity_bytes: float, overhead_bytes: float, pipelined: bool,
           overheads: Overheads | None, bucket_copies: bool = False, lone_pass: bool = False,
           replicated: bool = False) -> MemoryProfile:  # fmt: skip
    """Other passes in flight keep their stash; then comes what real runs hold besides.

    `lone_pass`: the step is one pass; `replicated`: other ranks train the same weights.
    """
    others = one.stash_bytes * (stage.num_in_flight - 1)
    updates = one.update_bytes > one.live_bytes + others + one.unit_bytes
    by_role = _live_roles(one, others, updates=updates, by_weight=overheads is not None and overheads.by_weight)
    by_role["gradient buckets"] = one.bucket_bytes if bucket_copies else 0.0
    if overheads is not None:
        if overheads.bucket_bytes and not _adds_wide(stage):
            by_role["gradient buckets"] = 0.0
        by_role["activation"] *= overheads.largest_batch
        by_role["communication buffers"] = min(
            overheads.bucket_bytes, 2 * one.reduced_bytes(shards=overheads.gradient_shards)
        )
        if by_role["gathered weights"]:
            unit_bytes = one.unit_bytes * (one.weight_share if overheads.by_weight else 1.0)
            by_role["gathered weights"] = max(unit_bytes, min(overheads.live_bytes, one.gathered_bytes))
        if overheads.keeps_outputs:
            by_role["kept outputs"] = one.output_bytes * (1 if lone_pass else 2)
        # A compiler that plans memory adds gradients in place.
        by_role["largest gradient"] = 0.0 if overheads.by_weight else one.largest_gradient_bytes
        by_role["whole activations"] = overheads.whole_buffers * one.gathers.largest_bytes
        gathers = one.gathers.of_passes(stage.num_in_flight)
        held = functools.partial(gathers.held_bytes, overheads, pipelined=pipelined, lone_pass=lone_pass)
        wanted = held(replicated=replicated)
        pressure = (sum(by_role.values()) + wanted) / (overheads.reclaim * capacity_bytes)
        by_role["gathered inputs"] = wanted / (1 + min(pressure, 1e9) ** overheads.reclaim_slope)
        # Runs that live on what is taken back are the ones that fail: all that is asked for must fit. But what a wide axis
        # holds comes back in time, beside replicas or not.
        overhead_bytes += max(0.0, held(replicated=True) - by_role["gathered inputs"])
        by_role["allocator"] = overheads.cache * sum(by_role.values())
        by_role["workspace"] = overheads.workspace_bytes
    return MemoryProfile(
        peak_bytes=sum(by_role.values()),
        by_role={role: amount for role, amount in by_role.items() if amount > 0},
        peak_at=one.update_at if updates else one.peak_at,
        capacity_bytes=capacity_bytes,
        outside_bytes=overhead_bytes,
        curve=tuple((name, level + others) for name, level in one.curve),
    )


def _live_roles(one: Pass, others_bytes: float, *, updates: bool, by_weight: bool) -> dict[str, float]:
    """Live tensors at the peak, which is in a pass or in the update."""
    own = {**one.resident, "gradient": one.trained_bytes if updates else one.gradient_bytes}
    more = {
        UPDATE: one.update_bytes - sum(own.values()) if updates else 0.0,
        "activation": 0.0 if updates else one.live_bytes - sum(own.values()) + others_bytes,
        "gathered weights": 0.0 if updates else one.unit_bytes,
    }
    if one.has_master and (one.unit_bytes or by_weight):
        # FSDP shards the wide weights alone: those of the passes exist while they are gathered, but for frozen ones, which have
        # no wide copy. A compiler casts each weight where it is used.
        own["parameter"] = one.frozen_bytes
    return {**own, **more}


BACKWARD_GATHERS = 2
"""For each gather of the forward pass: of its input again, and of the gradient of the product it fed."""


@noun
class Gathers:
    """The gathered inputs of split products in all passes in flight."""

    num_gathers: float
    mean_bytes: float
    largest_bytes: float
    num_ranks: int
    num_passes: int
    flop_between: float

    @classmethod
    def of(cls, stage: Stage) -> "Gathers":
        amount, largest, number, ranks, flop = 0.0, 0.0, 0, 1, 0.0
        for task, count in zip(stage.tasks, stage.counts(), strict=True):
            if task.phase != "forward":
                continue
            if isinstance(task, Collective):
                if task.axis == "tensor" and task.kind == "all_gather":
                    amount += task.num_bytes * count
                    largest = max(largest, task.num_bytes)
                    number += count
                    ranks = max(ranks, task.num_ranks)
            elif task.kind == "matmul":
                flop += (task.flop or 0.0) * count
        return cls(
            num_gathers=float(number * stage.num_in_flight),
            mean_bytes=amount / number if number else 0.0,
            largest_bytes=largest,
            num_ranks=ranks,
            num_passes=stage.num_in_flight,
            flop_between=flop / number if number else 0.0,
        )

    def of_passes(self, num_passes: int) -> "Gathers":
        return replace(self, num_gathers=self.num_gathers / self.num_passes * num_passes, num_passes=num_passes)

    def held_bytes(self, overheads: Overheads, *, pipelined: bool, lone_pass: bool, replicated: bool) -> float:
        """Of gathers that the host's lead is expected to keep from being used again."""
        held = self.num_held(overheads, pipelined=pipelined, lone_pass=lone_pass, replicated=replicated)
        return self.mean_bytes * held

    def num_held(self, overheads: Overheads, *, pipelined: bool, lone_pass: bool, replicated: bool) -> float:
        prompt = 1 / (1 + (self.num_ranks / overheads.wide_ranks) ** overheads.wide_slope)
        if pipelined:
            return min(overheads.queued_gathers, self._share_held(overheads, prompt) * self.num_gathers)
        # Whoever gathers again and again is as far ahead in the backward pass, and in the pass that follows.
        behind = overheads.lone_pass if lone_pass else 2 * (1 + BACKWARD_GATHERS)
        waits = replicated and self.largest_bytes > overheads.wide_bytes
        return min(overheads.queued_gathers, behind * self.num_gathers) * (prompt if waits else 1.0)

    def _share_held(self, overheads: Overheads, prompt: float) -> float:
        """Of the gathers of a pipeline's passes: those of all passes but the last ones, and more where the device is slow."""
        waiting = prompt * max(0.0, 1 - overheads.returned_passes / self.num_passes)
        enough = overheads.lead_flop * (self.num_ranks / overheads.lead_group) ** overheads.lead_ranks
        lead = 1 / (1 + (enough / self.flop_between) ** overheads.lead_slope) if self.flop_between else 0.0
        return waiting + (1 - waiting) * lead


def _unit_bytes(stage: Stage, parts: Sequence[Repeat], gathered: Sequence[float]) -> float:
    """Fully sharded weights: the two largest units that are whole at once (one runs, the next is being gathered), and the
    gradients of the one that runs."""
    units: list[float] = []
    gradients = 0.0
    for part, amount in zip(parts, gathered, strict=True):
        if amount:
            tasks = [task for task in stage.tasks[part.start : part.stop] if isinstance(task, Collective)]
            units += [amount] * min(part.count, 2)
            reduced = sum(task.num_bytes for task in tasks if task.axis == "data" and task.kind == "reduce_scatter")
            gradients = max(gradients, reduced)
    return sum(sorted(units)[-2:]) + gradients


def _gathered(stage: Stage, part: Repeat) -> float:
    """Bytes of weights that one repetition of a range gathers."""
    return sum(
        task.num_bytes
        for task in stage.tasks[part.start : part.stop]
        if isinstance(task, Collective) and task.axis == "data" and task.kind == "all_gather"
        if task.phase != "optimizer" and not task.once
    )


def _weight_share(stage: Stage, parts: Sequence[Repeat], gathered: Sequence[float]) -> float:
    """Of the largest weight among those of the range that gathers most; 1 where nothing is gathered."""
    if not any(gathered):
        return 1.0
    part = parts[max(range(len(parts)), key=lambda number: gathered[number])]
    used = {tensor for task in stage.ops(part) for tensor in task.reads if stage.tensors[tensor].role == "parameter"}
    sizes = [stage.tensors[tensor].num_bytes for tensor in used]
    return max(sizes) / sum(sizes) if sum(sizes) > 0 else 1.0


def _largest_gradient_bytes(stage: Stage) -> float:
    return max(
        (
            stage.tensors[tensor].num_bytes
            for task in stage.ops()
            if task.name == "aten.add_" and task.phase == "backward"
            if any(stage.tensors[tensor].role == "gradient" for tensor in task.writes)
            for tensor in task.reads
            if stage.tensors[tensor].role != "gradient"
        ),
        default=0.0,
    )


Uses = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""(tensors that it reads, tensors that it writes) of each task."""
_NOTHING: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
_ROLE_PLACES = {role: place for place, role in enumerate(ROLES)}


@dataclass(frozen=True, slots=True)
class Course:
    """When tensors are born and die, whatever their sizes: batches and shards of one model have the same course."""

    lives: tuple[Life, ...]
    roles: NDArray[np.intp]
    """Of each tensor, its place in ROLES."""
    counts: NDArray[np.float64]
    """How often each segment repeats."""
    segment_of: NDArray[np.intp]
    """Of each task."""
    starts: NDArray[np.intp]
    """The first task of each segment."""
    born: tuple[NDArray[np.intp], NDArray[np.intp]]
    """(task, tensor) of every birth."""
    freed: tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]
    """(task, tensor, how many of it) of every death inside a repetition."""
    enter: tuple[NDArray[np.intp], NDArray[np.intp]]
    """(segment, tensor) of what each repetition finds: what the one before it left."""
    leave: tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]
    """(segment, tensor, how many of it) of what changes once a segment is over."""

    def find_levels(self, sizes: NDArray[np.float64], base: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bytes in use at each task in the first repetition of its segment, and what each repetition of a segment adds."""
        num_tasks, num_segments = len(self.segment_of), len(self.counts)
        born = np.bincount(self.born[0], sizes[self.born[1]], num_tasks)
        freed = np.bincount(self.freed[0], sizes[self.freed[1]] * self.freed[2], num_tasks)
        # Held beside what a segment began with: everything born up to a task, less what was freed before it.
        held = np.cumsum(born) - np.cumsum(freed) + freed
        at_start = held[self.starts] - born[self.starts]
        delta = np.add.reduceat(born - freed, self.starts)
        enter = np.bincount(self.enter[0], sizes[self.enter[1]], num_segments)
        leave = np.bincount(self.leave[0], sizes[self.leave[1]] * self.leave[2], num_segments)
        after = np.cumsum(self.counts * delta + leave)
        begin = base + np.concatenate([[0.0], after[:-1]]) + enter - at_start
        return begin[self.segment_of] + held, delta

    def find_peak(
        self, sizes: NDArray[np.float64], base: float, *, start: int = 0, stop: int | None = None
    ) -> tuple[float, tuple[int, int, int]]:
        """(bytes in use, (segment, position, repetition)) where most is, from task `start` to before `stop`: only the first and
        the last repetition of a segment can hold the peak. Of equal places the last counts."""
        if start >= (len(self.segment_of) if stop is None else stop):
            return base, (0, 0, 0)
        first, delta = self.find_levels(sizes, base)
        last = first + ((self.counts - 1) * delta)[self.segment_of]
        most = np.maximum(first, last)[start:stop]
        peak = float(most.max())
        task = start + int(np.flatnonzero(most == peak)[-1])
        segment = int(self.segment_of[task])
        repetition = int(self.counts[segment]) - 1 if last[task] == peak else 0
        return peak, (segment, task - int(self.starts[segment]), repetition)


def _course_of(stage: Stage, *, accumulates: bool) -> Course:
    uses = tuple([(task.reads, task.writes) if isinstance(task, Op) else _NOTHING for task in stage.tasks])
    return _lay_course(uses, tuple([tensor.role for tensor in stage.tensors]), stage.repeats, accumulates)


@functools.lru_cache(maxsize=1024)
def _lay_course(uses: Uses, roles: tuple[str, ...], repeats: tuple[Repeat, ...], accumulates: bool) -> Course:
    """Everything that it depends on is in its arguments, and they are compared by value."""
    parts = list(segments(repeats, num_tasks=len(uses)))
    lives = tuple(_find_lives(uses, roles, parts, skip=(*RESIDENT, "gradient") if accumulates else RESIDENT))
    events = _list_events(parts, lives)

    def column(name: str, place: int, kind: type) -> NDArray[np.generic]:
        return np.array([event[place] for event in events[name]], dtype=kind)

    def places(name: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        return column(name, 0, np.intp), column(name, 1, np.intp)  # type: ignore[return-value]

    starts = np.array([part.start for part in parts], dtype=np.intp)
    return Course(
        lives=lives,
        roles=np.array([_ROLE_PLACES[role] for role in roles], dtype=np.intp),
        counts=np.array([part.count for part in parts], dtype=np.float64),
        segment_of=np.repeat(np.arange(len(parts)), [part.stop - part.start for part in parts]).astype(np.intp),
        starts=starts,
        born=places("born"),
        freed=(*places("freed"), column("freed", 2, np.float64)),  # type: ignore[arg-type]
        enter=places("enter"),
        leave=(*places("leave"), column("leave", 2, np.float64)),  # type: ignore[arg-type]
    )


def _list_events(parts: Sequence[Repeat], lives: Sequence[Life]) -> dict[str, list[tuple[int, int, float]]]:
    """(where, which tensor, how many of it): `born` and `freed` at tasks, `enter` and `leave` of segments."""
    events: dict[str, list[tuple[int, int, float]]] = {"born": [], "freed": [], "enter": [], "leave": []}

    def task(place: Place) -> int:
        return parts[place[0]].start + place[1]

    for life in lives:
        number = life.born[0]
        copies = parts[number].count
        events["born"].append((task(life.born), life.tensor, 1.0))
        if life.surplus is not None:
            events["freed"].append((task(life.surplus), life.tensor, 1.0))
        if life.carried_to is not None:
            events["freed"].append((task(life.carried_to), life.tensor, 1.0))
            events["enter"].append((number, life.tensor, 1.0))
            if life.dies[0] == number:
                continue
            events["leave"].append((number, life.tensor, 1.0))
            copies = 1
        if life.dies[0] >= len(parts):
            continue
        if parts[life.dies[0]].count == copies:
            events["freed"].append((task(life.dies), life.tensor, 1.0))
        elif parts[life.dies[0]].count == 1:
            events["freed"].append((task(life.dies), life.tensor, float(copies)))
        else:
            events["leave"].append((life.dies[0], life.tensor, -float(copies)))
    return events


def _find_lives(tasks: Uses, roles: Sequence[str], parts: Sequence[Repeat], *, skip: Sequence[str]) -> Iterator[Life]:
    reads, writes = _places(tasks, parts)
    end = (len(parts), 0)
    for tensor, written in writes.items():
        role = roles[tensor]
        if role in skip:
            continue
        if role == "gradient":
            yield Life(tensor, written[0], end)
        else:
            yield from _lives_of(tensor, written, sorted(reads.get(tensor, [])), parts)


def _places(tasks: Uses, parts: Sequence[Repeat]) -> tuple[dict[int, list[Place]], dict[int, list[Place]]]:
    """Where each tensor is read, and where it is written."""
    reads: dict[int, list[Place]] = {}
    writes: dict[int, list[Place]] = {}
    for number, part in enumerate(parts):
        for position, (read, written_here) in enumerate(tasks[part.start : part.stop]):
            for tensor in read:
                reads.setdefault(tensor, []).append((number, position))
            for tensor in written_here:
                writes.setdefault(tensor, []).append((number, position))
    return reads, writes


def _lives_of(tensor: int, written: Sequence[Place], used: Sequence[Place], parts: Sequence[Repeat]) -> Iterator[Life]:
    """One life for every value that the tensor holds in turn."""
    end = (len(parts), 0)
    births = list(_births(parts, written, used))
    taken = [_taking_range(parts, born, _uses(births, i, used, written, end)) for i, (born, _) in enumerate(births)]
    for number, (born, let_go) in enumerate(births):
        after = births[number + 1] if number + 1 < len(births) else None
        is_input = after is not None and after[1] is not None
        if is_input and taken[number + 1] is not None:
            # The range that follows keeps it with its own, and its backward range takes them all.
            yield Life(tensor, born, end)
            continue
        uses = _uses(births, number, used, written, end)
        backward = taken[number]
        if backward is not None:
            last = max(place for place in uses if place[0] == backward)
            surplus = _surplus(parts, born, backward, uses) if let_go is not None and number > 0 else None
            yield Life(tensor, born, last, None, surplus)
            continue
        if after is not None and is_input:
            # The next writer uses this value in its first repetition, and counts it from its start on.
            before = after[0][0] - 1
            uses = [place for place in uses if place[0] < after[0][0]]
            uses.append((before, parts[before].stop - parts[before].start - 1))
        yield Life(tensor, born, max(uses, default=born), let_go)


def _uses(
    births: Sequence[tuple[Place, Place | None]],
    number: int,
    used: Sequence[Place],
    written: Sequence[Place],
    end: Place,
) -> list[Place]:
    """Where the value of one birth is read or changed, up to the next birth."""
    born, let_go = births[number]
    limit = births[number + 1][0] if number + 1 < len(births) else end
    return [place for place in (*used, *written) if born <= place < limit and (place != let_go or place == born)]


def _taking_range(parts: Sequence[Repeat], born: Place, uses: Sequence[Place]) -> int | None:
    """The last range that repeats as often as that of the birth: every repetition keeps its own for it."""
    count = parts[born[0]].count
    later = [place[0] for place in uses if place[0] > born[0] and parts[place[0]].count == count]
    if count == 1:
        return None
    return max(later, default=None)


def _surplus(parts: Sequence[Repeat], born: Place, backward: int, uses: Sequence[Place]) -> Place:
    """With the input from outside there is one more than the backward range takes: a read outside takes it, after that range
    the input of the first repetition, before it the result of the last."""
    outside = [place for place in uses if place[0] > born[0] and parts[place[0]].count == 1]
    after = [place for place in outside if place[0] > backward]
    before = [place for place in outside if place[0] < backward]
    return max(after or before, default=(born[0] + 1, 0))


def _births(
    parts: Sequence[Repeat], written: Sequence[Place], used: Sequence[Place]
) -> Iterator[tuple[Place, Place | None]]:
    """The places where a tensor gets fresh memory, with the place where a repetition lets go of the one before it.

    A write after a read of the same memory is in place and no birth, unless the segment repeats: then the read was of what
    the repetition before had written. Memory that a backward range takes one by one is fresh in every repetition.
    """
    seen: set[int] = set()
    for place in sorted(written):
        number = place[0]
        if number in seen:
            continue
        count = parts[number].count
        kept = count > 1 and any(use[0] > number and parts[use[0]].count == count for use in used)
        in_place = place in used and not kept
        earlier = [use for use in used if use[0] == number and (use < place or (kept and use == place))]
        if not seen or (not in_place and (not earlier or count > 1)):
            seen.add(number)
            yield place, max(earlier) if earlier and count > 1 and not in_place else None


def _stash_bytes(stage: Stage, parts: Sequence[Repeat], course: Course, sizes: NDArray[np.float64]) -> float:
    """What one micro-batch leaves from its forward pass for its backward."""
    first = next((number for number, part in enumerate(parts) if _phase(stage, part) != "forward"), len(parts))
    return sum(
        float(sizes[life.tensor]) * parts[life.born[0]].count
        for life in course.lives
        if life.born[0] < first <= life.dies[0] and stage.tensors[life.tensor].role != "gradient"
    )


def _phase(stage: Stage, part: Repeat) -> str:
    return next((task.phase for task in stage.ops(part)), "forward")


def _live_gradients(stage: Stage, parts: Sequence[Repeat], lives: Sequence[Life], peak: tuple[int, int, int]) -> float:
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
