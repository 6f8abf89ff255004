"""Pipeline parallelism: cuts a stage into several along its layers, and passes activations between them."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from traincast.errors import IllegalPlan
from traincast.lower._recompute import match_backward
from traincast.lower._rewrite import alter, find_owners, find_trained, scale_op
from traincast.spec import Collective, Op, Parallelism, Repeat, Stage, Task, Tensor, segments


@dataclass(frozen=True, slots=True)
class _Unit:
    """The smallest piece that is not cut: one repetition of a layer, or one op outside them."""

    segment: int
    task: int | None
    cost: float


def cut_sorts(stage: Stage, plan: Parallelism) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
    """(the distinct sorts of stages, which of them each rank of the pipeline runs, first to last)."""
    if plan.pipeline == 1:
        return (stage,), (0,)
    parts = list(segments(stage.repeats, num_tasks=len(stage.tasks)))
    units = list(_units(stage, parts))
    layers = max((part.count for part in parts), default=1)
    if len(units) < plan.pipeline * plan.virtual_stages:
        raise IllegalPlan(
            f"pipeline = {plan.pipeline} x virtual_stages = {plan.virtual_stages} cannot cut {len(units)} layers; "
            f"allowed: pipeline x virtual_stages up to {max(layers, len(units))}"
        )
    if plan.balance == "matmuls":
        bounds = _balance_products(stage, parts, units, plan.pipeline)
    else:
        bounds = _balance(units, parts, plan.pipeline)
    owner = _assign(stage, parts, units, bounds)
    places: dict[tuple[object, ...], int] = {}
    sorts: list[Stage] = []
    ranks: list[int] = []
    for index in range(plan.pipeline):
        key = tuple(owner.share(number, index) for number in range(len(parts))) + tuple(
            task for task, place in owner.single.items() if place == index
        )
        if key not in places:
            places[key] = len(sorts)
            sorts.append(_extract(stage, parts, owner, index, plan))
        ranks.append(places[key])
    return tuple(sorts), tuple(ranks)


def _units(stage: Stage, parts: Sequence[Repeat]) -> Iterator[_Unit]:
    for number, part in enumerate(parts):
        ops = [(i, stage.tasks[i]) for i in range(part.start, part.stop)]
        forward = [(i, op) for i, op in ops if isinstance(op, Op) and op.phase == "forward"]
        if not forward:
            continue
        if part.count > 1:
            cost = sum(_cost(op) for _, op in forward)
            yield from (_Unit(number, None, cost) for _ in range(part.count))
        else:
            yield from (_Unit(number, i, _cost(op)) for i, op in forward)


def _cost(op: Op) -> float:
    # One byte weighs about as much as 150 FLOP on present accelerators: near the ridge of their rooflines.
    return (op.flop or 0.0) + 150.0 * op.num_bytes


def _balance(units: Sequence[_Unit], parts: Sequence[Repeat], num_stages: int) -> list[int]:
    """Where each stage starts. Equal numbers of layers where they divide evenly, as frameworks do; else equal cost."""
    repeated = [place for place, unit in enumerate(units) if unit.task is None]
    if len(repeated) >= num_stages and len(repeated) % num_stages == 0:
        size = len(repeated) // num_stages
        return [0, *(repeated[size * stage] for stage in range(1, num_stages))]
    if len(repeated) >= num_stages:
        sizes = [len(repeated) // num_stages + (1 if i < len(repeated) % num_stages else 0) for i in range(num_stages)]
        starts, total = [0], 0
        for size in sizes[:-1]:
            total += size
            starts.append(repeated[total])
        return starts
    whole = sum(unit.cost for unit in units)
    starts, spent = [0], 0.0
    for place, unit in enumerate(units):
        if len(starts) < num_stages and spent >= whole * len(starts) / num_stages and place > starts[-1]:
            starts.append(place)
        spent += unit.cost
    while len(starts) < num_stages:
        starts.append(min(len(units) - 1, starts[-1] + 1))
    return starts


def _balance_products(stage: Stage, parts: Sequence[Repeat], units: Sequence[_Unit], num_stages: int) -> list[int]:
    """Where each stage starts if it ends with the unit that fills its share of the products with weights."""
    inside = {
        number: sum(_product_flop(stage, task) for task in stage.tasks[part.start : part.stop])
        for number, part in enumerate(parts)
    }
    costs = [
        inside[unit.segment] if unit.task is None else _product_flop(stage, stage.tasks[unit.task]) for unit in units
    ]
    whole, last = sum(costs), max((place for place, cost in enumerate(costs) if cost), default=0)
    starts, spent = [0], 0.0
    for place, cost in enumerate(costs[:-1]):
        spent += cost
        # Behind the last product the scores in a wider format, and then the loss, may have a stage each.
        closes = bool(cost) or (place > last and _is_copy(stage, units[place]))
        if len(starts) < num_stages and closes and spent >= whole * len(starts) / num_stages * (1 - 1e-9):
            starts.append(place + 1)
    if len(starts) < num_stages:
        idle = num_stages - len(starts)
        raise IllegalPlan(
            f"pipeline = {num_stages} leaves {idle} stage{'s' if idle > 1 else ''} with nothing to run when it is cut by the "
            f"work in products; use fewer stages, or balance = 'layers'"
        )
    return starts


def _is_copy(stage: Stage, unit: _Unit) -> bool:
    return unit.task is not None and stage.tasks[unit.task].kind == "copy"


def _product_flop(stage: Stage, task: Task) -> float:
    if not isinstance(task, Op) or task.kind != "matmul" or task.phase != "forward":
        return 0.0
    weights = (tensor for tensor in task.reads if stage.tensors[tensor].role == "parameter")
    return (task.flop or 0.0) if any(True for _ in weights) else 0.0


@dataclass(slots=True)
class _Owner:
    """Which stage runs what: repetitions of a segment by number, tasks outside by name."""

    repeated: dict[int, list[int]]
    single: dict[int, int]

    def share(self, segment: int, stage: int) -> int:
        """Repetitions of a segment that a stage runs."""
        return self.repeated[segment][stage] if segment in self.repeated else 0


def _first_owner(counts: Sequence[int]) -> int:
    """The first stage that runs any of a repeated part."""
    return min(index for index, count in enumerate(counts) if count)


def _assign(stage: Stage, parts: list[Repeat], units: Sequence[_Unit], bounds: Sequence[int]) -> _Owner:
    num_stages = len(bounds)
    repeated: dict[int, list[int]] = {}
    single: dict[int, int] = {}
    for place, unit in enumerate(units):
        index = max(i for i in range(num_stages) if bounds[i] <= place)
        if unit.task is None:
            repeated.setdefault(unit.segment, [0] * num_stages)[index] += 1
        else:
            single[unit.task] = index
    for forward, backward in match_backward(stage, parts).items():
        if forward in repeated:
            repeated[backward] = repeated[forward]
    home = _homes(stage, parts, repeated, single)
    current = num_stages - 1
    for number, part in enumerate(parts):
        if number in repeated:
            if any(task.phase != "forward" for task in stage.tasks[part.start : part.stop]):
                current = _first_owner(repeated[number])
            continue
        if part.count > 1:
            # A repeated part that belongs to no layer (an unrolled optimizer) is shared by all stages.
            repeated[number] = [max(1, part.count // num_stages)] * num_stages
            continue
        for index in range(part.start, part.stop):
            task = stage.tasks[index]
            if index in single or not isinstance(task, Op) or task.phase == "optimizer":
                continue
            # A backward op runs where what it reads was made; a sum of gradients where the op before it ran.
            known = [home[tensor] for tensor in (*task.reads, *task.writes) if tensor in home]
            current = min(known) if known else current
            single[index] = current
    return _Owner(repeated, single)


def _homes(
    stage: Stage, parts: Sequence[Repeat], repeated: dict[int, list[int]], single: dict[int, int]
) -> dict[int, int]:
    """The stage of each parameter, gradient and activation used outside the repeated layers. Weights that several stages share
    have none: what reads them runs where its other operands are."""
    home: dict[int, int] = {}
    shared: set[int] = set()
    for index, place in single.items():
        task = stage.tasks[index]
        if isinstance(task, Op):
            for tensor in (*task.writes, *task.reads):
                if stage.tensors[tensor].role == "parameter" and home.setdefault(tensor, place) != place:
                    shared.add(tensor)
            for tensor in task.writes:
                home.setdefault(tensor, place)
    carried = {
        tensor
        for number, part in enumerate(parts) if number in repeated
        for task in stage.ops(part)
        for tensor in task.writes
    }  # fmt: skip
    return {tensor: place for tensor, place in home.items() if tensor not in carried | shared}


def _touched(tasks: Iterable[Task]) -> set[int]:
    """Every tensor that one of these tasks reads or writes."""
    return {tensor for task in tasks if isinstance(task, Op) for tensor in (*task.reads, *task.writes)}


def _weight_share(stage: Stage, used: Collection[int], copies: Mapping[int, int]) -> float:
    """The part of all weights that train which belongs to the tensors in use."""
    weights = [(i, stage.tensors[i]) for i in find_trained(stage)]
    whole = sum(t.numel * t.copies for _, t in weights)
    own_numel = sum(t.numel * copies.get(i, t.copies) for i, t in weights if i in used)
    return own_numel / whole if whole else 1.0


def _keep_own(
    stage: Stage, used: set[int], copies: dict[int, int], updating: set[int], share: float
) -> tuple[Tensor, ...]:
    """Tensors of a stage: state follows its weight, and what belongs to no single weight is kept by its share."""
    owners = find_owners(stage)
    return tuple(
        _keep(owners.get(i, i) if tensor.role == "optimizer_state" else i, tensor, used, copies)
        if i in owners or not (tensor.role == "optimizer_state" or (tensor.role == "temporary" and i in updating))
        else _keep_share(tensor, share)
        for i, tensor in enumerate(stage.tensors)
    )


def _extract(stage: Stage, parts: Sequence[Repeat], owner: _Owner, index: int, plan: Parallelism) -> Stage:
    tasks: list[Task] = []
    repeats: list[Repeat] = []
    copies: dict[int, int] = {}
    for number, part in enumerate(parts):
        start = len(tasks)
        if part.count > 1:
            count = owner.share(number, index)
            if not count:
                continue
            tasks.extend(stage.tasks[part.start : part.stop])
            repeats.append(Repeat(start=start, stop=len(tasks), count=count))
            repeated = _touched(stage.tasks[part.start : part.stop])
            copies |= dict.fromkeys((tensor for tensor in repeated if stage.tensors[tensor].copies > 1), count)
        else:
            own = range(part.start, part.stop)
            tasks.extend(
                stage.tasks[i] for i in own if owner.single.get(i) == index or stage.tasks[i].phase == "optimizer"
            )
    used = _touched(task for task in tasks if task.phase != "optimizer")
    share = _weight_share(stage, used, copies)
    updating = _touched(task for task in tasks if task.kind == "optimizer") - used
    tensors = _keep_own(stage, used, copies, updating, share)
    tasks = [scale_op(t, share, attrs=("numel",)) if isinstance(t, Op) and t.kind == "optimizer" else t for t in tasks]
    transfers = _transfers(stage, parts, owner, index, plan)
    return Stage(
        tasks=(*transfers, *tasks),
        repeats=tuple(_shift(repeat, len(transfers)) for repeat in repeats),
        tensors=tensors,
    )


def _shift(repeat: Repeat, by: int) -> Repeat:
    return Repeat(start=repeat.start + by, stop=repeat.stop + by, count=repeat.count)


def _keep(index: int, tensor: Tensor, used: set[int], copies: dict[int, int]) -> Tensor:
    """As the stage has it; a state as the weight it belongs to, whose `index` it has."""
    if index not in used:
        return alter(tensor, shape=(0,), copies=1)
    number = copies.get(index, tensor.copies)
    return tensor if number == tensor.copies else alter(tensor, copies=number)


def _keep_share(tensor: Tensor, share: float) -> Tensor:
    """What the optimizer keeps of all weights, or makes of them and forgets, it does for its share."""
    return alter(tensor, shape=(max(1, round(tensor.numel * tensor.copies * share)),), copies=1)


def _transfers(stage: Stage, parts: Sequence[Repeat], owner: _Owner, index: int, plan: Parallelism) -> list[Collective]:
    """What crosses to the next stage and back: the largest tensor that one repetition hands to the next.

    Ranks of the tensor axis each send their part (Narayanan et al. 2021); with sequence parallelism that is all they hold.
    """
    boundary = 0.0
    for part in parts:
        read: set[int] = set()
        for task in stage.tasks[part.start : part.stop]:
            if isinstance(task, Op) and task.phase == "forward":
                crossing = [t for t in task.writes if t in read or part.count == 1]
                read.update(task.reads)
                if part.count > 1:
                    boundary = max([boundary, *(stage.tensors[t].num_bytes for t in crossing)])
    if not boundary:
        outputs = [
            stage.tensors[t].num_bytes for i, place in owner.single.items() if place == index for t in _writes(stage, i)
        ]
        boundary = outputs[-1] if outputs else 0.0
    return [
        Collective(
            kind="send_recv",
            num_bytes=boundary if plan.sequence_parallel else boundary / plan.tensor,
            axis="pipeline",
            num_ranks=2,
            stride=plan.stride("pipeline"),
            phase=phase,
            overlapped=True,
        )
        for phase in ("forward",)
    ]


def _writes(stage: Stage, index: int) -> tuple[int, ...]:
    task = stage.tasks[index]
    return task.writes if isinstance(task, Op) else ()


def in_flight(plan: Parallelism, index: int) -> int:
    """Micro-batches whose activations a stage holds at its fullest moment (Narayanan et al. 2021)."""
    if plan.order == "gpipe":
        return plan.micro_batches
    depth = plan.pipeline - index
    if plan.virtual_stages > 1:
        chunks = 2 * (plan.pipeline - index - 1) + (plan.virtual_stages - 1) * plan.pipeline + 1
        depth = math.ceil(chunks / plan.virtual_stages)
    return max(1, min(plan.micro_batches, depth))
