"""A model as its ranks run it, kept in pieces that many plans share: what is cut once, replayed once and priced once.

Plans of one (batch, recomputation, tensor, context, expert, sequence) split differ only in how a pipeline cuts the layers
and in how replicas share the state. Stages of equal shape differ only in how many layers they repeat, so one of each shape
is cut and the others are made from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from traincast.lower import spread_state
from traincast.lower.pipeline import cut_pipeline
from traincast.lower.rewrite import scale_op
from traincast.simulate.memory import RESIDENT, WIDE_GRADIENT, Life, Pass, find_lives, replay_pass
from traincast.spec import Collective, Op, Parallelism, Repeat, Stage, Task, Tensor
from traincast.spec.graph import segments

_SHARED = ("parameter", "gradient", "optimizer_state")
_HOLLOW = {role: Tensor(shape=(0,), dtype="fp32", role=role) for role in (*RESIDENT, "gradient", "temporary")}


@dataclass(slots=True, eq=False)
class Shape:
    """The tasks of one sort of stage, without numbers of layers: first, middle, last, or the whole model."""

    stage: Stage
    """One stage of this sort, with some number of layers."""
    templates: dict[tuple[int, bool, int], Stage] = field(default_factory=dict)
    """(what is sharded beyond the state, experts replicated, alone or in a pipeline) -> the stage with the collectives of its
    replicas in place."""
    lives: dict[bool, list[Life]] = field(default_factory=dict)
    unit_bytes: float | None = None

    def template(self, plan: Parallelism) -> Stage:
        """The stage with collectives of replicas where this plan needs them; only their sizes of group are another's."""
        replicas = plan.data * plan.context
        key = plan.zero if plan.zero >= 2 else 0, replicas > plan.expert, min(plan.pipeline, 2)
        if key not in self.templates:
            like = replace(plan, zero=key[0], pipeline=key[2], virtual_stages=1, offload_optimizer=False)
            self.templates[key] = self.stage if replicas == 1 else spread_state(self.stage, like)
        return self.templates[key]

    def find_lives(self, *, accumulates: bool) -> list[Life]:
        if accumulates not in self.lives:
            self.lives[accumulates] = find_lives(self.stage, accumulates=accumulates)
        return self.lives[accumulates]

    def gathered_unit_bytes(self, plan: Parallelism) -> float:
        if self.unit_bytes is None:
            self.unit_bytes = replay_pass(self.template(plan), accumulates=True).unit_bytes
        return self.unit_bytes


@dataclass(slots=True, eq=False)
class Piece:
    """A stage of a shape with its own number of layers."""

    shape: Shape
    stage: Stage
    count: int | None
    """Repetitions, where it was made from another of its shape; None: it is the one that was cut."""
    end: int
    """Where the optimizer begins."""
    _passes: dict[bool, Pass] = field(default_factory=dict)
    _replayed: dict[tuple[int, int, bool], Pass] = field(default_factory=dict)
    _leftover: float | None = None
    _state: dict[tuple[int, int], Stage] = field(default_factory=dict)
    _alone: tuple[Stage, tuple[int, ...]] | None = None

    @property
    def widens(self) -> bool:
        """Gradients are kept in a wider format than they are computed in, and so through the whole step."""
        return any(t.role == "gradient" and t.name.endswith(WIDE_GRADIENT) for t in self.stage.tensors)

    def update(self, plan: Parallelism) -> Stage:
        """The optimizer's tasks under a plan, and the tensors that replicas share as this plan shares them."""
        key = plan.data * plan.context, plan.zero
        if key not in self._state:
            self._state[key] = spread_state(self._take_update()[0], plan)
        return self._state[key]

    def update_tasks(self, plan: Parallelism) -> tuple[Task, ...]:
        """The optimizer's tasks under a plan, naming the tensors of the whole stage."""
        places = self._take_update()[1]
        return tuple(
            replace(task, reads=tuple(places[t] for t in task.reads), writes=tuple(places[t] for t in task.writes))
            if isinstance(task, Op)
            else task
            for task in self.update(plan).tasks
        )

    def _take_update(self) -> tuple[Stage, tuple[int, ...]]:
        """The optimizer as a stage of its own, with the tensors it shares or writes, and their places in the whole."""
        if self._alone is None:
            tasks = self.stage.tasks[self.end :]
            used = {t for task in tasks if isinstance(task, Op) for t in (*task.reads, *task.writes)}
            places = tuple(i for i, t in enumerate(self.stage.tensors) if t.role in _SHARED or i in used)
            number = {place: index for index, place in enumerate(places)}
            moved = tuple(
                replace(task, reads=tuple(number[t] for t in task.reads), writes=tuple(number[t] for t in task.writes))
                if isinstance(task, Op)
                else task
                for task in tasks
            )
            tensors = tuple(self.stage.tensors[place] for place in places)
            self._alone = Stage(tasks=moved, repeats=(), tensors=tensors), places
        return self._alone

    def repeats(self, template: Stage) -> tuple[Repeat, ...]:
        if self.count is None:
            return template.repeats
        return tuple(replace(repeat, count=self.count) for repeat in template.repeats)

    def replay(self, plan: Parallelism, *, accumulates: bool) -> Pass:
        """One pass as `traincast.simulate` replays it, with what the plan shares taken out."""
        key = plan.data * plan.context, plan.zero, accumulates
        if key not in self._replayed:
            self._replayed[key] = self._replay(plan, accumulates=accumulates)
        return self._replayed[key]

    def _replay(self, plan: Parallelism, *, accumulates: bool) -> Pass:
        state = self.update(plan)
        if not accumulates:
            # Gradients come and go with the layers here, so their shares change the whole course.
            tensors = list(self.stage.tensors)
            for place, tensor in zip(self._take_update()[1], state.tensors, strict=True):
                tensors[place] = tensor
            one = replay_pass(
                replace(self.stage, tensors=tuple(tensors)),
                accumulates=False,
                lives=self.shape.find_lives(accumulates=False),
            )
        else:
            if accumulates not in self._passes:
                self._passes[accumulates] = self._replay_without_update()
            one = self._passes[accumulates]
            resident = {role: self._fixed_bytes(role) for role in (*RESIDENT, "gradient")}
            temporary = 0.0
            written = {t for task in state.tasks if isinstance(task, Op) for t in task.writes}
            for index, tensor in enumerate(state.tensors):
                if tensor.role in _SHARED:
                    resident[tensor.role] += tensor.num_bytes * tensor.copies
                elif index in written and tensor.role == "temporary":
                    temporary += tensor.num_bytes
            base = sum(resident.values())
            one = replace(
                one,
                resident=resident,
                live_bytes=base + max(one.live_bytes, self._left() + temporary),
                gradient_bytes=resident["gradient"],
            )
        gathered = self.shape.gathered_unit_bytes(plan) if plan.zero == 3 and plan.data * plan.context > 1 else 0.0
        return replace(one, unit_bytes=gathered)

    def _fixed_bytes(self, role: str) -> float:
        """Of what no replica shares."""
        if role in _SHARED:
            return 0.0
        return sum(t.num_bytes * t.copies for t in self.stage.tensors if t.role == role)

    def _replay_without_update(self) -> Pass:
        """With nothing resident and nothing that the optimizer writes: what the passes alone add to any state."""
        written = {t for task in self.stage.tasks[self.end :] if isinstance(task, Op) for t in task.writes}
        hollow = tuple(
            _HOLLOW[tensor.role]
            if tensor.role in (*RESIDENT, "gradient") or (tensor.role == "temporary" and index in written)
            else tensor
            for index, tensor in enumerate(self.stage.tensors)
        )
        lives = self.shape.find_lives(accumulates=True)
        return replay_pass(replace(self.stage, tensors=hollow), accumulates=True, lives=lives)

    def _left(self) -> float:
        """What the passes leave behind for the optimizer to run beside."""
        if self._leftover is None:
            parts = list(segments(self.stage.repeats, num_tasks=len(self.stage.tasks)))
            update = next((n for n, part in enumerate(parts) if part.stop > self.end), len(parts))
            at = self.end - parts[update].start if update < len(parts) else 0
            self._leftover = sum(
                self.stage.tensors[life.tensor].num_bytes * (1 if life.carried_to else parts[life.born[0]].count)
                for life in self.shape.find_lives(accumulates=True)
                if life.dies >= (update, at) > life.born
            )
        return self._leftover


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A model cut into the stages of a pipeline: the distinct pieces, and which one each stage is."""

    pieces: tuple[Piece, ...]
    owner: tuple[int, ...]


class NotInPieces(Exception):
    """A model whose update cannot be told from its passes; it is forecast as a whole."""


@dataclass(slots=True, eq=False)
class Variant:
    """One split of a model along the tensor, context and expert axes."""

    shared: Stage
    _cuts: dict[int, Cut] = field(default_factory=dict)
    _shapes: tuple[tuple[Shape, int], ...] | None = None

    def cut(self, plan: Parallelism) -> Cut:
        if plan.pipeline not in self._cuts:
            made = self._cut_alike(plan) if plan.pipeline > 1 else None
            self._cuts[plan.pipeline] = made or self._cut(plan)
        return self._cuts[plan.pipeline]

    def _cut(self, plan: Parallelism) -> Cut:
        pieces: list[Piece] = []
        known: dict[int, int] = {}
        owner = []
        for stage in cut_pipeline(self.shared, plan):
            if id(stage.tasks) not in known:
                known[id(stage.tasks)] = len(pieces)
                pieces.append(Piece(shape=Shape(stage=stage), stage=stage, count=None, end=_optimizer_start(stage)))
            owner.append(known[id(stage.tasks)])
        return Cut(pieces=tuple(pieces), owner=tuple(owner))

    def _cut_alike(self, plan: Parallelism) -> Cut | None:
        """From the stages of one cut of the same model: where layers do not divide evenly, the first stages get one more."""
        layers, num_stages = self._layers(), plan.pipeline
        if layers is None or layers // num_stages < 2 or plan.balance != "layers":
            return None
        shapes = self._reference(plan, layers)
        if shapes is None:
            return None
        pieces: dict[tuple[int, int], Piece] = {}
        owner = []
        for index in range(num_stages):
            sort = 0 if index == 0 else 2 if index == num_stages - 1 else 1
            count = layers // num_stages + (index < layers % num_stages)
            if (sort, count) not in pieces:
                pieces[sort, count] = self._resize(*shapes[sort], count)
            owner.append(list(pieces).index((sort, count)))
        return Cut(pieces=tuple(pieces.values()), owner=tuple(owner))

    def _reference(self, plan: Parallelism, layers: int) -> tuple[tuple[Shape, int], ...] | None:
        """(first, middle, last) stage of a cut in which each has as many layers; None where no cut is like that."""
        if self._shapes is None:
            degree = next((p for p in range(3, layers // 2 + 1) if layers % p == 0), None)
            self._shapes = ()
            if degree is not None:
                cut = self._cut(replace(plan, pipeline=degree, virtual_stages=1))
                if cut.owner == (0, *[1] * (degree - 2), 2):
                    self._shapes = tuple((piece.shape, layers // degree) for piece in cut.pieces)
        return self._shapes or None

    def _layers(self) -> int | None:
        """How often the layers repeat, where there is one sort of them; None: each cut is another."""
        counts = {repeat.count for repeat in self.shared.repeats}
        forward = [
            part
            for part in self.shared.repeats
            if any(task.phase == "forward" for task in self.shared.tasks[part.start : part.stop])
        ]
        return forward[0].count if len(forward) == 1 and len(counts) == 1 else None

    def _resize(self, shape: Shape, old: int, count: int) -> Piece:
        stage, shared = shape.stage, self.shared
        tensors = [
            replace(tensor, copies=count) if tensor.copies == old and like.copies > 1 else tensor
            for tensor, like in zip(stage.tensors, shared.tensors, strict=True)
        ]
        whole = sum(t.numel * t.copies for t in shared.tensors if t.role == "parameter")
        own = sum(t.numel * t.copies for t in tensors if t.role == "parameter")
        share = own / whole if whole else 1.0
        for index, like in enumerate(shared.tensors):
            if like.role == "optimizer_state":
                tensors[index] = replace(like, shape=(max(1, round(like.numel * like.copies * share)),), copies=1)
        end = _optimizer_start(stage)
        update = [task for task in shared.tasks if task.phase == "optimizer"]
        scaled = [
            scale_op(task, share, attrs=("numel",)) if isinstance(task, Op) and task.kind == "optimizer" else task
            for task in update
        ]
        made = replace(
            stage,
            tasks=(*stage.tasks[:end], *scaled),
            tensors=tuple(tensors),
            repeats=tuple(replace(repeat, count=count) for repeat in stage.repeats),
        )
        return Piece(shape=shape, stage=made, count=count, end=end)


def _optimizer_start(stage: Stage) -> int:
    """The first task of the update, which runs once and ends the step."""
    end = next((index for index, task in enumerate(stage.tasks) if task.phase == "optimizer"), len(stage.tasks))
    if any(repeat.stop > end for repeat in stage.repeats):
        raise NotInPieces
    return end


def place_replicas(tasks: Sequence[Task], plan: Parallelism) -> list[Task]:
    """A template's tasks with the group sizes and kinds that this plan gives its collectives between replicas and stages."""
    replicas = plan.data * plan.context
    kind = "all_reduce" if plan.zero == 0 else "reduce_scatter"
    made: dict[int, Collective] = {}
    placed: list[Task] = []
    for task in tasks:
        if isinstance(task, Collective) and task.axis in ("data", "pipeline"):
            if id(task) not in made:
                if task.axis == "pipeline":
                    made[id(task)] = replace(task, stride=plan.stride("pipeline"))
                else:
                    # A stride beyond the tensor axis tells the gradients of spread experts from all others.
                    spread = task.stride // plan.tensor
                    made[id(task)] = replace(
                        task,
                        kind=task.kind if task.kind == "all_gather" else kind,
                        num_ranks=replicas // spread,
                        stride=plan.tensor * spread,
                    )
            placed.append(made[id(task)])
        else:
            placed.append(task)
    return placed
