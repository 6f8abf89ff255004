"""torch.compile: pointwise ops, casts, norms, losses and the reductions they feed become one kernel each; what only they read is
never written, and what the backward pass can compute again from a smaller tensor is never kept."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from traincast.lower._orders import TURNED
from traincast.lower._rewrite import map_tasks
from traincast.noun import noun
from traincast.spec import DYNAMIC, Graph, Op, Stage, Task, Tensor, segments

FUSIBLE = ("elementwise", "copy", "dropout", "norm", "softmax", "reduce", "random", "index", "embedding")
STENCIL = "pool"
"""Reads each input several times: takes what makes its input into its own kernel where that is one read."""
LEADING = ("softmax", "norm", "reduce", "embedding", "index", STENCIL)
"""A fused kernel is priced as the least regular of its members, the first of these that it holds."""
EAGER = "eager"
"""The attribute of ops that a compiled step leaves as they are written."""
AUTOTUNED = "autotuned"
"""The attribute of products whose kernels the compiler may generate itself."""
PADS = "pads"
"""The attribute of products whose odd operands the compiler may copy to whole vectors."""
VECTOR = 8
MAX_MEMBERS = 64
"""The compiler's own limit of nodes in one kernel."""
MAX_CONCATENATED = 8
"""Tensors that are joined inside one kernel; of more, each is copied by itself."""
MAX_BESIDE = 16
"""Copies of equal size that run in one kernel."""


@noun
class FusionRules:
    """What the code generators of one compiler differ in."""

    goes_on_after_reduction: bool = True
    """What reads a sum may be computed where the sum is."""
    reduces_scaled: bool = True
    """A sum over what was scaled channel by channel is taken where it is scaled."""
    concatenates: bool = True
    """Tensors are joined inside the kernel that reads them; else each is copied into its place."""


ON_GPU = FusionRules()
ON_CPU = FusionRules(goes_on_after_reduction=False, reduces_scaled=False, concatenates=False)


def fuse(stage: Stage, *, rules: FusionRules = ON_GPU) -> Stage:
    """The stage with every group of fusible ops, linked by what they hand on, run as one kernel."""
    stage = _recompute_in_backward(_lay_out(stage))
    last_read = _last_reads(stage)
    groups: dict[int, list[int]] = {}
    member: set[int] = set()
    carried: dict[int, float] = {}
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        found = _groups(stage, (part.start, part.stop), last_read, rules)
        groups.update({group[-1]: group for group in found})
        member.update(index for group in found for index in group)
        if part.count > 1:
            carried.update(_carried(stage, found, part.start))

    def rewrite(index: int, task: Task) -> list[Task]:
        if index in groups:
            merged = _merge(stage, groups[index], last_read)
            handed = _handed_on(stage, groups[index]) + carried.get(index, 0.0)
            merged = replace(merged, bytes_read=max(0.0, merged.bytes_read - handed))
            if isinstance(task, Op) and groups[index] == [index] and _is_concatenation(task):
                return [_copy_into_place(stage, task, last_read)]
            return [merged]
        return [] if index in member else [_let_pad(task)]

    return map_tasks(stage, rewrite)


def _let_pad(task: Task) -> Task:
    """A product of odd widths as the compiler sees it: it copies operands to whole vectors where that is faster (inductor's
    `shape_padding`, on by default)."""
    if not isinstance(task, Op) or task.kind != "matmul" or task.attrs.get(EAGER, False):
        return task
    odd = any(int(task.attrs[key]) % VECTOR for key in ("m", "n", "k"))
    return replace(task, attrs={**task.attrs, PADS: True}) if odd else task


def mark_autotuned(graph: Graph) -> Graph:
    """The graph with products whose kernels the compiler may generate: what follows them reads their results from registers."""
    marked = [replace(op, attrs={**op.attrs, AUTOTUNED: True}) if op.kind == "matmul" else op for op in graph.ops]
    return replace(graph, ops=tuple(marked))


def _handed_on(stage: Stage, group: list[int]) -> float:
    """Bytes that a group need not read: results of one generated product, right before it."""
    writer = stage.tasks[group[0] - 1] if group[0] else None
    if not isinstance(writer, Op) or not writer.attrs.get(AUTOTUNED):
        return 0.0
    read = {tensor for index in group if isinstance(op := stage.tasks[index], Op) for tensor in op.reads}
    return float(sum(stage.tensors[tensor].num_bytes for tensor in writer.writes if tensor in read))


def _carried(stage: Stage, groups: Sequence[list[int]], start: int) -> dict[int, float]:
    """Bytes that a layer's first groups need not read, by their last member: what the last group of the layer before made, where
    one kernel may go over both. (Every layer is counted so, the first one too.)"""
    writer = {tensor: index for group in groups for index in group for tensor in _writes(stage, index)}
    made: set[int] = set()
    place = start
    found: dict[int, float] = {}
    for group in groups:
        beside = set(range(place, group[-1])).difference(group)
        made.update(tensor for index in beside for tensor in _writes(stage, index))
        reads = [(tensor, op) for op in _ops_of(stage, group) for tensor in op.reads]
        if made.isdisjoint(tensor for tensor, _ in reads):
            late = {tensor: op for tensor, op in reads if writer.get(tensor, -1) > group[-1]}
            found[group[-1]] = sum(
                stage.tensors[tensor].num_bytes
                for tensor, op in late.items()
                if _loops(stage, _ops_of(stage, [writer[tensor]])[0]).joins(_loops(stage, op))
            )
        place = group[-1] + 1
        made.update(tensor for index in group for tensor in _writes(stage, index))
    return found


def _writes(stage: Stage, index: int) -> tuple[int, ...]:
    task = stage.tasks[index]
    return task.writes if isinstance(task, Op) else ()


def _ops_of(stage: Stage, members: Sequence[int]) -> list[Op]:
    return [op for index in members if isinstance(op := stage.tasks[index], Op)]


def leave_eager(graph: Graph, layer: str) -> Graph:
    """The graph with one of its outermost layers marked as left out of compilation."""
    ops = tuple(
        [
            replace(op, attrs={**op.attrs, EAGER: True}) if op.layer.partition(".")[0] == layer else op
            for op in graph.ops
        ]
    )
    return replace(graph, ops=ops)


def choose_kept(graph: Graph) -> Graph:
    """The graph where whatever its forward pass makes may be kept for the backward pass, as torch.compile's partition does: bf16
    scores instead of their fp32 logarithms. Programs that are fused by hand keep what they kept."""
    made = {tensor for op in graph.ops if op.phase == "forward" for tensor in op.writes}
    tensors = tuple(
        replace(tensor, role="activation") if tensor.role == "temporary" and index in made else tensor
        for index, tensor in enumerate(graph.tensors)
    )
    return _sum_scores(replace(graph, tensors=tensors))


def _sum_scores(graph: Graph) -> Graph:
    """A compiled loss takes the sums of exponentials of scores, and the logarithms of single scores where it needs them: those of
    all are never written."""
    makers = {tensor: op for op in graph.ops if op.phase == "forward" for tensor in op.writes}
    instead: dict[int, tuple[int, int]] = {}
    tensors = list(graph.tensors)
    for op in graph.ops:
        if _feeds_loss(op, graph):
            logs = op.writes[0]
            tensors.append(replace(tensors[logs], shape=(int(op.attrs["rows"]),), name="sums of exponentials"))
            instead[logs] = _before_casts(op.reads[0], makers), len(tensors) - 1

    def rewrite(op: Op) -> Op:
        logs = next((tensor for tensor in (*op.reads, *op.writes) if tensor in instead), None)
        if logs is None:
            return op
        scores, sums = instead[logs]
        if logs in op.writes:
            return replace(op, writes=(sums,), bytes_written=float(tensors[sums].num_bytes))
        less = 0.0 if op.phase == "forward" else tensors[logs].num_bytes - tensors[scores].num_bytes
        reads = (*(scores if tensor == logs else tensor for tensor in op.reads), sums)
        return replace(op, reads=reads, bytes_read=op.bytes_read - less)

    return replace(graph, ops=tuple([rewrite(op) for op in graph.ops]), tensors=tuple(tensors))


def _feeds_loss(op: Op, graph: Graph) -> bool:
    """Whether it makes logarithms of probabilities that the forward pass looks up and does nothing else with."""
    if op.phase != "forward" or op.kind != "softmax" or EAGER in op.attrs or len(op.writes) != 1:
        return False
    readers = [one for one in graph.ops if one.phase == "forward" and op.writes[0] in one.reads]
    return bool(readers) and all(one.attrs.get("function") == "nll_loss" for one in readers)


def _before_casts(tensor: int, makers: Mapping[int, Op]) -> int:
    """What a tensor was before it was cast."""
    while (op := makers.get(tensor)) is not None and op.attrs.get("function") == "cast":
        tensor = op.reads[0]
    return tensor


def _lay_out(stage: Stage) -> Stage:
    """Generated kernels write in the order that a convolution takes, and what adds its bias is fused into what follows."""

    def rewrite(_index: int, task: Task) -> list[Task]:
        if not isinstance(task, Op) or task.kind != "conv":
            return [task]
        kept = {name: value for name, value in task.attrs.items() if name != TURNED}
        return [replace(task, attrs={**kept, "fused_bias": True})]

    return map_tasks(stage, rewrite) if any(isinstance(t, Op) and t.kind == "conv" for t in stage.tasks) else stage


def _fusible(task: Task) -> bool:
    if not isinstance(task, Op) or task.phase == "optimizer" or not {EAGER, DYNAMIC}.isdisjoint(task.attrs):
        return False
    return task.kind in FUSIBLE or (task.kind == STENCIL and task.phase == "forward")


def _last_reads(stage: Stage) -> dict[int, int]:
    """Where each tensor is read last; a carried one is read by the next repetition, which counts as the end."""
    last: dict[int, int] = {}
    for index, task in enumerate(stage.tasks):
        if isinstance(task, Op):
            last.update(dict.fromkeys(task.reads, index))
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        seen: set[int] = set()
        for task in stage.tasks[part.start : part.stop]:
            if isinstance(task, Op):
                seen.update(task.reads)
                last.update({tensor: len(stage.tasks) for tensor in task.writes if tensor in seen and part.count > 1})
    return last


@noun
class _Loops:
    """What a kernel goes over: so many results, each from so many values."""

    results: int
    values: int = 1

    def joins(self, other: "_Loops") -> bool:
        """Whether a kernel over these may go on with the other's: the same results, or the values that it reduces."""
        if self.values > 1 and other.values > 1:
            return self == other
        whole = self if self.values > 1 else other
        plain = other if self.values > 1 else self
        return plain.results in (whole.results, whole.results * whole.values)


def _loops(stage: Stage, op: Op) -> _Loops:
    if op.kind in ("reduce", "softmax") or (op.kind == "norm" and not _is_pointwise_norm(op)):
        return _Loops(results=int(op.attrs["rows"]), values=max(1, int(op.attrs["cols"])))
    return _Loops(results=max((stage.tensors[tensor].numel for tensor in op.writes), default=0))


def _is_pointwise_norm(op: Op) -> bool:
    """Batch norm in evaluation: its statistics are known."""
    return "batch" in str(op.attrs["function"]) and not op.attrs.get("training", True)


@dataclass(slots=True)
class _Group:
    """Ops that may still take another: nothing outside has read what they write."""

    members: list[int] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    phase: str = ""
    loops: _Loops = field(default_factory=lambda: _Loops(results=0))


def _groups(stage: Stage, part: tuple[int, int], last_read: dict[int, int], rules: FusionRules) -> list[list[int]]:
    """Groups in the order of their last members. An op joins the groups that made its inputs, which become one, where their
    loops agree or where it alone reads what they make; any other reader of what a group writes closes it, because the group
    runs where its last member stood."""
    readers = _readers(stage, *part)
    opened: list[_Group] = []
    done: list[list[int]] = []

    def close(group: _Group) -> None:
        opened.remove(group)
        done.append(sorted(group.members))

    for index in range(*part):
        task = stage.tasks[index]
        reads = set(task.reads) if isinstance(task, Op) else set()
        linked = [group for group in opened if group.made & reads]
        if not isinstance(task, Op) or not _fusible(task):
            for group in list(opened) if not isinstance(task, Op) else linked:
                close(group)
            continue
        joined = _Group(members=[index], made=set(task.writes), phase=task.phase, loops=_loops(stage, task))
        for group in linked:
            fits = group.phase == task.phase and len(group.members) + len(joined.members) <= MAX_MEMBERS
            alone = fits and _reads_alone(group, index, readers, last_read)
            fits = fits and _may_join(stage, group, joined, alone=alone, rules=rules)
            if not fits:
                close(group)
                continue
            opened.remove(group)
            if group.loops.values > 1:
                joined.loops = group.loops
            joined.members = group.members + joined.members
            joined.made |= group.made
        # A tensor that another open group reads must not be overwritten before that group runs.
        for group in [other for other in opened if set(task.writes) & _read_by(stage, other)]:
            close(group)
        opened.append(joined)
    while opened:
        close(opened[0])
    return sorted(done, key=lambda members: members[-1])


def _may_join(stage: Stage, group: _Group, joined: _Group, *, alone: bool, rules: FusionRules) -> bool:
    """Whether what a group makes may be computed in the kernel of the op that reads it."""
    op = stage.tasks[joined.members[-1]]
    if not isinstance(op, Op):
        return False
    if op.kind == STENCIL:
        return alone and _num_reads(stage, group) == 1
    if _is_concatenation(op):
        return alone and _joins_inside(op, rules)
    if any(_is_concatenation(each) and not _joins_inside(each, rules) for each in _ops(stage, group)):
        return False
    kinds = {each.kind for each in _ops(stage, group)}
    if joined.loops.values > 1 and "norm" in kinds and not rules.reduces_scaled:
        return False
    if group.loops.values > 1 and not kinds & {"norm", "softmax"} and not rules.goes_on_after_reduction:
        return False
    return group.loops.joins(joined.loops) or (alone and group.loops.values == 1)


def _joins_inside(op: Op, rules: FusionRules) -> bool:
    return rules.concatenates and len(op.reads) <= MAX_CONCATENATED


def _ops(stage: Stage, group: _Group) -> list[Op]:
    return _ops_of(stage, group.members)


def _readers(stage: Stage, start: int, stop: int) -> dict[int, list[int]]:
    """Where each tensor is read."""
    found: dict[int, list[int]] = {}
    for index in range(start, stop):
        task = stage.tasks[index]
        for tensor in task.reads if isinstance(task, Op) else ():
            found.setdefault(tensor, []).append(index)
    return found


def _reads_alone(group: _Group, index: int, readers: dict[int, list[int]], last_read: dict[int, int]) -> bool:
    """Whether nothing but this task reads what a group makes, so that the group is computed inside it and never written."""
    end = group.members[-1]
    return all(
        last_read.get(tensor, -1) <= index
        and all(reader == index for reader in readers.get(tensor, ()) if reader > end)
        for tensor in group.made
    )


def _num_reads(stage: Stage, group: _Group) -> int:
    """Tensors from outside; one that is overwritten in place was read as it came."""
    inside: set[int] = set()
    outside: set[int] = set()
    for op in _ops(stage, group):
        outside.update(tensor for tensor in op.reads if tensor not in inside)
        inside.update(op.writes)
    return len(outside)


def _makers_and_readers(tasks: Sequence[Task]) -> tuple[dict[int, Op], set[int]]:
    """Who wrote each tensor last, and what anybody read."""
    makers: dict[int, Op] = {}
    read: set[int] = set()
    for task in tasks:
        if isinstance(task, Op):
            makers.update(dict.fromkeys(task.writes, task))
            # In place it is read and made anew.
            read.update(tensor for tensor in task.reads if tensor not in task.writes)
    return makers, read


def _copy_into_place(stage: Stage, op: Op, last_read: dict[int, int]) -> Op:
    """Joined by copies: what only the joined tensor reads is written in its place at once; other results of products and
    convolutions go together where their sizes are equal."""
    index = next(place for place, task in enumerate(stage.tasks) if task is op)
    makers, elsewhere = _makers_and_readers(stage.tasks[:index])
    pointwise = {tensor for tensor in op.reads if tensor in makers and _fusible(makers[tensor])}
    copied = [
        each for each in op.reads if each not in pointwise or each in elsewhere or last_read.get(each, -1) > index
    ]
    sizes = Counter(stage.tensors[tensor].numel for tensor in copied if tensor not in pointwise)
    kernels = sum(math.ceil(count / MAX_BESIDE) for count in sizes.values()) + sum(each in pointwise for each in copied)
    whole = sum(stage.tensors[tensor].numel for tensor in op.reads)
    share = sum(stage.tensors[tensor].numel for tensor in copied) / whole if whole else 1.0
    return replace(
        op,
        num_kernels=kernels,
        num_calls=kernels,
        bytes_read=op.bytes_read * share,
        bytes_written=op.bytes_written * share,
    )


def _is_concatenation(op: Op) -> bool:
    return op.kind == "copy" and op.attrs.get("function") == "cat"


def _read_by(stage: Stage, group: _Group) -> set[int]:
    return {tensor for op in _ops(stage, group) for tensor in op.reads}


def _recompute_in_backward(stage: Stage) -> Stage:
    """Tensors of the forward pass that only the backward pass reads again and that pointwise ops made from a tensor of no more
    bytes are read as that tensor: the compiler's partition computes them anew inside the backward kernels."""
    made_from = _sources(stage)
    forward_reads = {
        tensor for task in stage.ops() if task.phase != "backward" and not _fusible(task) for tensor in task.reads
    }
    swapped = {
        tensor: source
        for tensor, source in made_from.items()
        if tensor not in forward_reads and stage.tensors[tensor].role == "activation"
    }
    if not swapped:
        return stage

    def rewrite(_index: int, task: Task) -> list[Task]:
        if not isinstance(task, Op) or task.phase != "backward" or not _fusible(task):
            return [task]
        wanted = [tensor for tensor in task.reads if tensor in swapped]
        if not wanted:
            return [task]
        less = sum(stage.tensors[t].num_bytes - stage.tensors[swapped[t]].num_bytes for t in wanted)
        reads = tuple(dict.fromkeys(swapped.get(tensor, tensor) for tensor in task.reads))
        return [replace(task, reads=reads, bytes_read=max(0.0, task.bytes_read - less))]

    return map_tasks(stage, rewrite)


def _sources(stage: Stage) -> dict[int, int]:
    """For each tensor that forward fusible ops write: the one tensor from outside of equal length and no more bytes it follows
    from. Dropout and random numbers cannot be computed again."""
    found: dict[int, int] = {}
    written: set[int] = set()
    for task in stage.tasks:
        if not isinstance(task, Op) or task.phase != "forward":
            continue
        twice = [tensor for tensor in task.writes if tensor in written]
        written.update(task.writes)
        for tensor in twice:
            found.pop(tensor, None)
        if not _fusible(task) or task.kind in ("dropout", "random", "index", "embedding", "reduce") or twice:
            continue
        for target in task.writes:
            source = _smallest(stage, [found.get(tensor, tensor) for tensor in task.reads], stage.tensors[target])
            if source is not None and source != target:
                found[target] = source
    return found


def _smallest(stage: Stage, tensors: list[int], target: Tensor) -> int | None:
    """The one large input, if all the others are small beside it (weights, statistics)."""
    large = [tensor for tensor in dict.fromkeys(tensors) if stage.tensors[tensor].numel > target.numel // 8]
    if len(large) != 1:
        return None
    source = stage.tensors[large[0]]
    same = source.numel == target.numel and source.num_bytes <= target.num_bytes and source.role == "activation"
    return large[0] if same else None


def _written(stage: Stage, ops: Sequence[Op], end: int, last_read: Mapping[int, int]) -> tuple[int, ...]:
    """What is read after the fused kernel, or kept for good."""
    kept_roles = ("gradient", "parameter", "buffer")
    return tuple(
        dict.fromkeys(
            tensor
            for op in ops
            for tensor in op.writes
            if last_read.get(tensor, -1) > end or stage.tensors[tensor].role in kept_roles or op is ops[-1]
        )
    )


def _merge(stage: Stage, group: list[int], last_read: dict[int, int]) -> Op:
    ops = [op for index in group if isinstance(op := stage.tasks[index], Op)]
    inside = {tensor for op in ops for tensor in op.writes}
    reads = tuple(dict.fromkeys(tensor for op in ops for tensor in op.reads if tensor not in inside))
    writes = _written(stage, ops, group[-1], last_read)
    lead = next((op for kind in LEADING for op in ops if op.kind == kind), ops[-1])
    known = [op.flop for op in ops if op.flop is not None]
    name = f"fused[{'+'.join(op.name.removeprefix('aten.') for op in ops[:4])}{'+...' if len(ops) > 4 else ''}]"
    return replace(
        lead,
        name=name if len(ops) > 1 else lead.name,
        flop=sum(known) if len(known) == len(ops) else None,
        bytes_read=_moved(ops, set(reads), reading=True),
        bytes_written=_moved(ops, set(writes), reading=False),
        reads=reads,
        writes=writes,
        num_kernels=1,
        num_calls=1,
        attrs={**lead.attrs, "compiled": True},
    )


def _moved(ops: list[Op], kept: set[int], *, reading: bool) -> float:
    """Bytes of the members that still move: each kept tensor once, at the share its op had for it."""
    total = 0.0
    seen: set[int] = set()
    for op in ops:
        tensors = op.reads if reading else op.writes
        amount = op.bytes_read if reading else op.bytes_written
        fresh = [tensor for tensor in tensors if tensor in kept and tensor not in seen]
        seen.update(fresh)
        if tensors:
            total += amount * len(fresh) / len(tensors)
    return total
