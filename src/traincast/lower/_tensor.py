"""Tensor parallelism: splits the weights of paired products over ranks (Shoeybi et al. 2019) in any captured graph.

A product whose input every rank holds is cut by columns when what follows leads to another product, which is then cut by
rows; the row product leaves partial sums that are reduced where they are next needed. Whatever lies between works on its
part. Nothing here knows what a transformer is.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from traincast.errors import IllegalPlan
from traincast.lower._rewrite import (
    SIZES,
    alter,
    find_owners,
    find_trained,
    is_expert,
    map_tasks,
    resize_matmul,
    scale_op,
)
from traincast.spec import Collective, Op, Parallelism, Stage, Task, Tensor, segments

WHOLE, PART, PARTIAL = "whole", "part", "partial"
PASS_THROUGH = ("elementwise", "copy", "dropout", "attention", "softmax", "matmul", "index", "reduce", "norm", "random")
SPLIT_TABLE_ROWS = 16_384
"""Smaller tables (positions, token types) are kept whole on every rank, as Megatron does."""
_SCALED = {**SIZES, "attention": ("heads", "kv_heads"), "embedding": ("vocab",)}


def split_tensors(stage: Stage, plan: Parallelism) -> Stage:
    """The same stage as one of `plan.tensor` ranks runs it, with the collectives that keep it right."""
    if plan.tensor == 1:
        return stage
    cuts = _choose_cuts(stage, plan.tensor)
    if plan.folds_experts:
        cuts = {weight: cut for weight, cut in cuts.items() if not is_expert(stage.tensors[weight].name)}
    if not cuts:
        raise IllegalPlan(f"tensor = {plan.tensor}: no pair of matmuls in this model can be split; allowed: tensor = 1")
    return _Splitter(stage, plan, cuts).run()


@dataclass(slots=True)
class _Weights:
    """Which tensors hold a parameter, or a cast copy of one."""

    source: dict[int, int] = field(default_factory=dict)

    def follow(self, stage: Stage, op: Op) -> None:
        if op.kind == "copy" and len(op.reads) == 1 and (weight := self.of(stage, op.reads[0])) is not None:
            for tensor in op.writes:
                self.source[tensor] = weight

    def of(self, stage: Stage, tensor: int) -> int | None:
        return tensor if stage.tensors[tensor].role == "parameter" else self.source.get(tensor)


def weight_of(op: Op, stage: Stage, weights: _Weights) -> int | None:
    """The matrix this product multiplies by, if it is a parameter."""
    if op.kind != "matmul":
        return None
    found = [weights.of(stage, tensor) for tensor in op.reads]
    matrices = [weight for weight in found if weight is not None and len(stage.tensors[weight].shape) > 1]
    return matrices[0] if matrices else None


def _consumers(ops: Sequence[Op]) -> dict[int, list[Op]]:
    """The ops that read each tensor."""
    found: dict[int, list[Op]] = {}
    for op in ops:
        for tensor in op.reads:
            found.setdefault(tensor, []).append(op)
    return found


def _large_table(op: Op, stage: Stage) -> int | None:
    if int(op.attrs["vocab"]) < SPLIT_TABLE_ROWS:
        return None
    return next((t for t in op.reads if stage.tensors[t].role == "parameter"), None)


def _cut_of_product(op: Op, ranks: int, *, takes_part: bool, leads_on: bool) -> str | None:
    """By row where its input is cut already, by column where another product follows; None where it cannot be."""
    if takes_part:
        return "row" if int(op.attrs["k"]) % ranks == 0 else None
    return "column" if leads_on and int(op.attrs["n"]) % ranks == 0 else None


def _cut_biases(stage: Stage, op: Op, weights: "_Weights") -> dict[int, str]:
    """A bias is cut with the columns of its weight; that of a row matmul is added once, to the whole sum."""
    biases = (weights.of(stage, t) for t in op.reads if len(stage.tensors[t].shape) == 1)
    return {bias: "column" for bias in biases if bias is not None}


def _choose_cuts(stage: Stage, ranks: int) -> dict[int, str]:
    """How each weight is cut: by column, by row, or (an embedding) by vocabulary."""
    weights = _Weights()
    state: dict[int, str] = {}
    cuts: dict[int, str] = {}
    forward = [task for task in stage.ops() if task.phase == "forward"]
    for op in forward:
        weights.follow(stage, op)
    consumers = _consumers(forward)
    for op in forward:
        weight = weight_of(op, stage, weights)
        activations = [t for t in op.reads if weights.of(stage, t) is None and stage.tensors[t].role != "input"]
        takes_part = any(state.get(tensor) == PART for tensor in activations)
        cut = None
        if weight is not None:
            leads_on = not takes_part and _leads_to_product(op, stage, consumers, weights, state)
            cut = _cut_of_product(op, ranks, takes_part=takes_part, leads_on=leads_on)
            passes_on = cut == "column"
        elif op.kind == "embedding":
            weight, passes_on = _large_table(op, stage), False
            cut = "vocab"
        else:
            passes_on = takes_part
        if weight is not None and cut is not None:
            cuts.setdefault(weight, cut)
        if cut == "column":
            cuts |= _cut_biases(stage, op, weights)
        state |= dict.fromkeys(op.writes, PART if passes_on else WHOLE)
    return cuts if any(cut in ("column", "row") for cut in cuts.values()) else {}


def _leads_to_product(
    op: Op, stage: Stage, consumers: dict[int, list[Op]], weights: _Weights, state: dict[int, str]
) -> bool:
    """Whether everything made from this product's output stays in parts until a product with a weight, or the loss."""
    width = int(op.attrs["n"])
    open_tensors, own = list(op.writes), set(op.writes)
    seen: set[int] = set()
    while open_tensors:
        tensor = open_tensors.pop()
        for user in consumers.get(tensor, []):
            if id(user) in seen:
                continue
            seen.add(id(user))
            if weight_of(user, stage, weights) is not None:
                continue
            if user.kind not in PASS_THROUGH:
                return False
            if user.kind == "norm" and int(user.attrs["cols"]) >= width:
                return False
            if user.kind == "elementwise" and _joins_whole(tensor, user, stage, state, own):
                return False
            own.update(user.writes)
            open_tensors.extend(user.writes)
    return True


def _joins_whole(tensor: int, user: Op, stage: Stage, state: dict[int, str], own: set[int]) -> bool:
    """Whether an op joins a part with an activation that every rank holds whole: one as large, or a larger one that it scales or
    shifts, such as tokens by what a condition says, unless that was made from the part itself."""
    size = stage.tensors[tensor].numel
    for other in user.reads:
        held = stage.tensors[other]
        if other == tensor or held.role != "activation":
            continue
        if held.numel == size and state.get(other) == WHOLE:
            return True
        if held.numel > size and other not in own and state.get(other) != PART:
            return True
    return False


class _Splitter:
    """Walks the tasks once and keeps, for each tensor, whether a rank holds it whole, in part or as a partial sum."""

    def __init__(self, stage: Stage, plan: Parallelism, cuts: dict[int, str]) -> None:
        self.stage, self.plan, self.cuts = stage, plan, cuts
        self.ranks = plan.tensor
        self.weights = _Weights()
        self.state: dict[int, str] = {}
        self.first_use = self._find_first_uses()
        self.owners, self.trained = find_owners(stage), find_trained(stage)

    def _find_first_uses(self) -> dict[tuple[int, int], bool]:
        """(task, tensor it writes) -> whether the next task to read it lies in another segment."""
        segment_of: dict[int, int] = {}
        for number, part in enumerate(segments(self.stage.repeats, num_tasks=len(self.stage.tasks))):
            segment_of.update(dict.fromkeys(range(part.start, part.stop), number))
        waiting: dict[int, int] = {}
        leaves: dict[tuple[int, int], bool] = {}
        for index, task in enumerate(self.stage.tasks):
            if isinstance(task, Op):
                for tensor in task.reads:
                    if tensor in waiting:
                        writer = waiting.pop(tensor)
                        leaves[(writer, tensor)] = segment_of[writer] != segment_of[index]
                waiting.update(dict.fromkeys(task.writes, index))
        return leaves

    def run(self) -> Stage:
        for task in self.stage.tasks:
            if isinstance(task, Op):
                self.weights.follow(self.stage, task)
        stage = map_tasks(self.stage, self._rewrite)
        share = self._weight_share()
        tensors = tuple(self._resize(index, tensor, share) for index, tensor in enumerate(stage.tensors))
        return alter(stage, tensors=tensors)

    def _rewrite(self, index: int, task: Task) -> Iterator[Task]:
        if not isinstance(task, Op):
            yield task
            return
        if task.phase == "optimizer":
            # The update and what surrounds it (clipping, zeroing) touch the weights a rank holds.
            yield scale_op(task, self._weight_share(), attrs=("numel",))
            return
        partial = [tensor for tensor in task.reads if self.state.get(tensor) == PARTIAL]
        if partial and self._keeps_partials(task):
            self._mark(task, PARTIAL)
            yield task
        else:
            for tensor in partial:
                yield from self._reduce(tensor, task)
            yield self._split(task)
        for tensor in task.writes:
            # Reduced here, not by its reader: that one may lie in a layer that repeats.
            if self.state.get(tensor) == PARTIAL and self.first_use.get((index, tensor)):
                yield from self._reduce(tensor, task)

    def _keeps_partials(self, op: Op) -> bool:
        """Sums and casts of partial sums are partial sums."""
        if op.kind == "copy" and len(op.reads) == 1:
            return True
        if op.kind != "elementwise" or op.attrs["function"] != "add":
            return False
        return all(self.state.get(tensor) == PARTIAL for tensor in op.reads)

    def _reduce(self, tensor: int, op: Op) -> Iterator[Task]:
        """Partial sums become whole before the first op that needs them."""
        self.state[tensor] = WHOLE
        kinds = ("reduce_scatter", "all_gather") if self.plan.sequence_parallel else ("all_reduce",)
        for kind in kinds:
            yield Collective(
                kind=kind,
                num_bytes=self.stage.tensors[tensor].num_bytes,
                axis="tensor",
                num_ranks=self.ranks,
                stride=1,
                phase=op.phase,
                layer=op.layer,
                chunked=self.plan.async_tensor,
            )

    def _split(self, op: Op) -> Op:
        weight = weight_of(op, self.stage, self.weights)
        cut = self.cuts.get(weight) if weight is not None else None
        if cut == "vocab":
            cut = "column"  # a tied output layer: the rows of the table are its outputs
        if cut is not None and self._is_split_product(op, cut):
            column = (cut == "column") == (op.phase != "backward")
            self._mark(op, PART if column else PARTIAL)
            return self._shrink_product(op, "n" if column else "k")
        if op.kind == "embedding" and self._uses_split_table(op):
            self._mark(op, PART if op.phase == "backward" else PARTIAL)
            return op
        in_part = any(self.state.get(tensor) == PART for tensor in op.reads) or self._fills_split_shape(op)
        if op.kind == "copy" and len(op.reads) == 1:
            weight = self.weights.of(self.stage, op.reads[0])
            in_part = in_part or (weight is not None and weight in self.cuts)
        if not in_part:
            self._mark(op, WHOLE)
            return self._between(op)
        self._mark(op, PART)
        if op.kind == "attention":
            self._refuse_split_heads(int(op.attrs["heads"]))
        if op.kind == "matmul":
            return self._shrink_inner(op)
        return scale_op(op, 1 / self.ranks, attrs=_SCALED.get(op.kind, ()))

    def _refuse_split_heads(self, heads: int) -> None:
        """Every framework gives a rank whole heads."""
        if heads % self.ranks:
            legal = [degree for degree in range(1, heads + 1) if heads % degree == 0]
            below = max(degree for degree in legal if degree < self.ranks)
            above = [degree for degree in legal if degree > self.ranks][:1]
            raise IllegalPlan(
                f"tensor = {self.ranks} does not divide the {heads} heads of attention; allowed: a divisor of {heads}, "
                f"such as {' or '.join(map(str, [below, *above]))}"
            )

    def _is_split_product(self, op: Op, cut: str) -> bool:
        """A row product only if its input really comes in parts, and the like on the way back."""
        needs_part = (cut == "row") == (op.phase != "backward")
        has_part = any(self.state.get(tensor) == PART for tensor in op.reads)
        return needs_part == has_part

    def _uses_split_table(self, op: Op) -> bool:
        """The forward pass reads the table; the backward pass writes a gradient of its shape."""
        tables = [tensor for tensor, cut in self.cuts.items() if cut == "vocab"]
        shapes = {self.stage.tensors[tensor].shape for tensor in tables}
        return any(tensor in tables for tensor in op.reads) or any(
            self.stage.tensors[t].shape in shapes for t in op.writes
        )

    def _fills_split_shape(self, op: Op) -> bool:
        """The first op of a loss's backward fills a gradient for scores that are split, from a label for each row of them."""
        if op.kind != "index" or op.phase != "backward":
            return False
        shapes = {self.stage.tensors[t].shape for t in op.writes}
        most_rows = max((math.prod(shape[:-1]) for shape in shapes), default=0)
        if any(self.stage.tensors[t].numel > most_rows for t in op.reads):
            return False
        return any(self.stage.tensors[t].shape in shapes for t, state in self.state.items() if state == PART)

    def _shrink_product(self, op: Op, dim: str) -> Op:
        """A product with one dimension of the weight cut: one activation and the weight shrink, the other stays."""
        return resize_matmul(op, 1 / self.ranks, **{dim: max(1, int(op.attrs[dim]) // self.ranks)})

    def _shrink_inner(self, op: Op) -> Op:
        """A product between activations: batched ones are cut by heads, a weight gradient along the cut features."""
        if int(op.attrs["batch"]) >= self.ranks and self._writes_no_gradient(op):
            return scale_op(op, 1 / self.ranks, attrs=("batch",))
        widths = [
            self.stage.tensors[t].shape[-1]
            for t in op.reads
            if self.state.get(t) == PART and self.stage.tensors[t].shape
        ]
        dim = next((name for name in ("m", "n", "k") if int(op.attrs[name]) in widths), "n")
        if dim == "k":
            return scale_op(op, 1 / self.ranks, attrs=("k",))
        return self._shrink_product(op, dim)

    def _writes_no_gradient(self, op: Op) -> bool:
        return all(self.stage.tensors[tensor].role != "gradient" for tensor in op.writes)

    def _between(self, op: Op) -> Op:
        """Ops on whole activations: with sequence parallelism each rank runs them on its part of the positions."""
        if self.plan.sequence_parallel and op.kind not in ("matmul", "embedding", "optimizer"):
            return scale_op(op, 1 / self.ranks, attrs=_SCALED.get(op.kind, ()))
        return op

    def _mark(self, op: Op, state: str) -> None:
        for tensor in op.writes:
            self.state[tensor] = state

    def _weight_share(self) -> float:
        """Share of the weights that train which one rank holds."""
        parameters = [(i, self.stage.tensors[i].numel * self.stage.tensors[i].copies) for i in self.trained]
        whole = sum(numel for _, numel in parameters)
        return sum(numel / (self.ranks if i in self.cuts else 1) for i, numel in parameters) / whole if whole else 1.0

    def _resize(self, index: int, tensor: Tensor, share: float) -> Tensor:
        if index in self.owners:
            cut = self.owners[index] in self.cuts
            return alter(tensor, shape=_shrink(tensor.shape, 1 / self.ranks)) if cut else tensor
        if tensor.role == "optimizer_state":
            return alter(tensor, shape=_shrink(tensor.shape, share))
        if tensor.role == "parameter":
            return alter(tensor, shape=_shrink(tensor.shape, 1 / self.ranks)) if index in self.cuts else tensor
        state = self.state.get(index)
        if state == PART:
            return alter(tensor, shape=_shrink(tensor.shape, 1 / self.ranks))
        if self.plan.sequence_parallel and tensor.role in ("activation", "temporary") and state == WHOLE:
            return alter(tensor, shape=_shrink(tensor.shape, 1 / self.ranks))
        return tensor


def _shrink(shape: tuple[int, ...], factor: float) -> tuple[int, ...]:
    """The first dimension scaled; what counts from here on is the number of elements."""
    numel = math.prod(shape)
    return (max(1, round(numel * factor)),) if shape and numel else shape
