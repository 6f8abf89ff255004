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
from traincast.spec import Collective, Op, Parallelism, Repeat, Stage, Task
from traincast.spec.graph import segments


@dataclass(slots=True, eq=False)
class Shape:
    """The tasks of one sort of stage, without numbers of layers: first, middle, last, or the whole model."""

    stage: Stage
    """One stage of this sort, with some number of layers."""
    templates: dict[tuple[bool, bool], Stage] = field(default_factory=dict)
    """(weights gathered, experts replicated) -> the stage with the collectives of its replicas in place."""
    lives: dict[bool, list[Life]] = field(default_factory=dict)
    unit_bytes: float | None = None

    def template(self, plan: Parallelism) -> Stage:
        """The stage with collectives of replicas where this plan needs them; only their sizes of group are another's."""
        replicas = plan.data * plan.context
        key = plan.zero == 3, replicas > plan.expert
        if key not in self.templates:
            like = replace(plan, zero=3 if key[0] else 0, pipeline=1, virtual_stages=1, offload_optimizer=False)
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

    @property
    def widens(self) -> bool:
        """Gradients are kept in a wider format than they are computed in, and so through the whole step."""
        return any(t.role == "gradient" and t.name.endswith(WIDE_GRADIENT) for t in self.stage.tensors)

    def update(self, plan: Parallelism) -> Stage:
        """The optimizer's tasks under a plan, and all tensors of the stage as this plan shares them."""
        key = plan.data * plan.context, plan.zero
        if key not in self._state:
            alone = replace(self.stage, tasks=self.stage.tasks[self.end :], repeats=())
            self._state[key] = spread_state(alone, plan)
        return self._state[key]

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
            one = replay_pass(
                replace(self.stage, tensors=state.tensors),
                accumulates=False,
                lives=self.shape.find_lives(accumulates=False),
            )
        else:
            if accumulates not in self._passes:
                self._passes[accumulates] = self._replay_without_update()
            one = self._passes[accumulates]
            resident = dict.fromkeys((*RESIDENT, "gradient"), 0.0)
            temporary = 0.0
            written = {t for task in state.tasks if isinstance(task, Op) for t in task.writes}
            for index, tensor in enumerate(state.tensors):
                if tensor.role in resident:
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

    def _replay_without_update(self) -> Pass:
        """With nothing resident and nothing that the optimizer writes: what the passes alone add to any state."""
        written = {t for task in self.stage.tasks[self.end :] if isinstance(task, Op) for t in task.writes}
        hollow = tuple(
            replace(tensor, shape=(0,), copies=1)
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
    _shapes: dict[str, tuple[Shape, int]] = field(default_factory=dict)

    def cut(self, plan: Parallelism) -> Cut:
        if plan.pipeline not in self._cuts:
            made = self._cut_alike(plan.pipeline) if plan.pipeline > 2 else None
            self._cuts[plan.pipeline] = made or self._cut(plan)
        return self._cuts[plan.pipeline]

    def _cut(self, plan: Parallelism) -> Cut:
        stages = cut_pipeline(self.shared, plan)
        pieces: list[Piece] = []
        known: dict[int, int] = {}
        owner = []
        for stage in stages:
            if id(stage.tasks) not in known:
                known[id(stage.tasks)] = len(pieces)
                pieces.append(Piece(shape=Shape(stage=stage), stage=stage, count=None, end=_optimizer_start(stage)))
            owner.append(known[id(stage.tasks)])
        cut = Cut(pieces=tuple(pieces), owner=tuple(owner))
        layers = self._layers()
        if layers is not None and len(pieces) == 3 and layers % plan.pipeline == 0 and layers // plan.pipeline > 1:
            for name, place in (("first", 0), ("middle", 1), ("last", -1)):
                self._shapes[name] = pieces[owner[place]].shape, layers // plan.pipeline
        return cut

    def _cut_alike(self, num_stages: int) -> Cut | None:
        """From the stages of another cut of the same model, where each gets the same number of layers."""
        layers = self._layers()
        if layers is None or layers % num_stages or layers // num_stages < 2 or not self._shapes:
            return None
        count = layers // num_stages
        pieces = tuple(self._resize(*self._shapes[name], count) for name in ("first", "middle", "last"))
        return Cut(pieces=pieces, owner=(0, *[1] * (num_stages - 2), 2))

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
