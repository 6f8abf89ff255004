"""Phases of recorded operations by what they read, where no scope names them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from traincast.spec import Op, Tensor

SENTENCE = "the text names no scopes, so the passes and the update are told apart by what the operations read"
UNTOLD = (
    "the text names no scopes and nothing in it is updated, so all of it is taken as a forward pass; write it with "
    "pretty_print(name_stack=True) if it holds a backward pass"
)
_PRODUCTS = ("matmul", "conv")


@dataclass(slots=True, kw_only=True)
class _Chain:
    """Pointwise operations from gradients, weights and moments to one result of the step."""

    ops: set[int]
    leaves: set[int]
    gradients: set[int]


def tell_phases(
    ops: Sequence[Op], tensors: Sequence[Tensor], *, inputs: Collection[int], outputs: Sequence[int | None],
    stacked: Mapping[int, int],
) -> tuple[list[Op], bool]:  # fmt: skip
    """The operations with their phases, and whether an update was found.

    The update is what lies between a result as large as an input and the last operation before it that is not pointwise; that
    one made the gradient. The forward pass ends with the loss, or with the last product before the first gradient. `stacked` says
    of which tensors there is one per round of a loop.
    """
    sizes = [tensor.numel * stacked.get(index, 1) for index, tensor in enumerate(tensors)]
    made: dict[int, int] = {}
    for at, op in enumerate(ops):
        for index in op.writes:
            made.setdefault(index, at)
    chains = [
        _follow(ops, sizes, made, inputs, result)
        for result in dict.fromkeys(outputs)
        if result is not None and result not in inputs and sizes[result] > 1
    ]
    pointwise = set().union(*(chain.ops for chain in chains))
    read_elsewhere = {index for at, op in enumerate(ops) if at not in pointwise for index in op.reads}
    updates = [chain for chain in chains if chain.leaves & read_elsewhere and chain.gradients]
    if not updates:
        return [replace(op, phase="forward") for op in ops], False
    update = set().union(*(chain.ops for chain in updates))
    # A gradient may be multiplied by what the forward pass made, as that of a normalisation is.
    first = min(max(_maker(ops, made, index) for index in chain.gradients) for chain in updates)
    turn = _find_turn(ops, tensors, made, outputs, first, update)
    return list(_with_phases(ops, update, turn)), True


def _follow(
    ops: Sequence[Op], sizes: Sequence[int], made: dict[int, int], inputs: Collection[int], result: int
) -> _Chain:
    found = _Chain(ops=set(), leaves=set(), gradients=set())
    waiting, seen = [(result, sizes[result], True)], set[tuple[int, bool]]()
    while waiting:
        index, size, is_own = waiting.pop()
        if (index, is_own) in seen:
            continue
        seen.add((index, is_own))
        at = made.get(index)
        if at is None:
            if is_own and index in inputs and sizes[index] == size:
                found.leaves.add(index)
            continue
        op, is_small = ops[at], sizes[index] <= 1
        if _is_pointwise(op) and (is_small or sizes[index] == size):
            found.ops.add(at)
            waiting += [(read, size, is_own) for read in op.reads if sizes[read] in (0, 1, size)]
        elif is_small and op.kind == "reduce":
            # The norm of all gradients.
            found.ops.add(at)
            waiting += [(read, sizes[read], False) for read in op.reads]
        elif not is_small and is_own:
            found.gradients.add(index)
    return found


def _maker(ops: Sequence[Op], made: dict[int, int], index: int) -> int:
    """The operation that computed a tensor, whatever moved it since."""
    at = made[index]
    while ops[at].kind == "copy" and ops[at].reads and made.get(ops[at].reads[0], at) < at:
        at = made[ops[at].reads[0]]
    return at


def _is_pointwise(op: Op) -> bool:
    if op.kind == "copy":
        return op.attrs.get("function") == "convert_element_type"
    # Sums of partial gradients belong to the backward pass.
    return op.kind == "elementwise" and op.attrs.get("function") != "add_any"


def _find_turn(
    ops: Sequence[Op], tensors: Sequence[Tensor], made: dict[int, int], outputs: Sequence[int | None], first: int,
    update: set[int],
) -> int:  # fmt: skip
    """Where the backward pass begins."""
    losses = [
        made[index]
        for index in outputs
        if index is not None
        and index in made
        and tensors[index].numel == 1
        and tensors[index].dtype.startswith(("fp", "bf"))
        and made[index] < first
        and made[index] not in update
    ]
    if losses:
        return max(losses) + 1
    used: set[int] = set()
    turn = 0
    for at, op in enumerate(ops[:first]):
        if op.kind in _PRODUCTS:
            weights = {index for index in op.reads if index not in made}
            if not weights or weights - used:
                turn = at + 1
            used |= weights
    return turn


def _with_phases(ops: Sequence[Op], update: set[int], turn: int) -> list[Op]:
    backward: set[int] = set()
    told = []
    for at, op in enumerate(ops):
        if at in update and at >= turn:
            phase = "optimizer"
        elif at < turn:
            phase = "forward"
        elif op.phase == "recompute" and not backward.intersection(op.reads):
            phase = "recompute"
        else:
            phase = "backward"
            backward.update(op.writes)
        told.append(replace(op, phase=phase))
    return told
