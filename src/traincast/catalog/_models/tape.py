"""A tape that writes operations forward and, from what each of them registered, backward: autograd without tensors."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from traincast.catalog._models.recipe import OPTIMIZERS, STATE_BLOCK, Recipe, Update
from traincast.errors import InvalidInput
from traincast.spec import Attr, Graph, Op, Repeat, Tensor
from traincast.units import DTYPE_BYTES

# Limits of one multi-tensor launch in PyTorch: 320 blocks of 65536 elements, and about 50 tensors for two or three lists.
_ELEMENTS_PER_LAUNCH = 320 * 65536
_TENSORS_PER_LAUNCH = 50


def num_launches(*, numel: int, num_tensors: int) -> int:
    """Kernels of one pass over many tensors."""
    return max(1, math.ceil(num_tensors / _TENSORS_PER_LAUNCH), math.ceil(numel / _ELEMENTS_PER_LAUNCH))


class Value:
    """A tensor as one consumer sees it: views share `index` (the memory) and have their own gradient."""

    __slots__ = ("dtype", "index", "key", "needs_gradient", "num_bytes", "numel", "parameter", "shape")

    def __init__(self, key: int, index: int, shape: tuple[int, ...], dtype: str, *, needs_gradient: bool) -> None:
        self.key = key
        self.index = index
        self.shape = shape
        self.dtype = dtype
        self.needs_gradient = needs_gradient
        self.numel = math.prod(shape)
        self.num_bytes = self.numel * DTYPE_BYTES[dtype]
        self.parameter = False


Gradients = Sequence[Value | None]
Backward = Callable[[Value], Gradients]
BackwardOfMany = Callable[[Gradients], Gradients]


@dataclass(slots=True)
class Memory:
    """A tensor being described; becomes a `Tensor` when the tape is finished."""

    shape: tuple[int, ...]
    dtype: str
    role: str
    name: str
    copies: int


@dataclass(slots=True)
class Draft:
    """An op being described; its tensor indices may still be redirected."""

    name: str
    kind: str
    flop: float
    bytes_read: float
    bytes_written: float
    phase: str
    dtype: str
    reads: list[int]
    writes: list[int]
    layer: str
    attrs: Mapping[str, Attr]
    num_kernels: int
    num_calls: int


@dataclass(slots=True)
class Node:
    """One differentiable step of the forward pass."""

    outputs: tuple[Value, ...]
    inputs: tuple[Value, ...]
    backward: BackwardOfMany
    layer: str


@dataclass(slots=True)
class Span:
    """A range of nodes: a repeated layer (`count`), or a checkpoint that runs its forward ops again before backward."""

    start: int
    stop: int
    count: int
    carried: Value | None = None
    """What enters the first repetition; its successor leaves the last."""
    result: Value | None = None
    checkpoint: bool = False
    first_op: int = 0
    last_op: int = 0


@dataclass(slots=True)
class Updated:
    """What one update of all weights reads and writes, summed as they are gone through."""

    reads: list[Value] = field(default_factory=list)
    writes: list[Value] = field(default_factory=list)
    numel: int = 0
    num_tensors: int = 0
    gradient_bytes: float = 0.0
    weight_bytes: float = 0.0
    other_bytes: float = 0.0
    """State that is not of the weights' shape and the master's format: factors, 8-bit moments and their scales."""


class Tape:
    """Collects the ops of one step: builders call verbs on values, `finish` walks back, adds the optimizer and folds."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.numbers = recipe.numbers
        self.phase = "forward"
        self.drafts: list[Draft] = []
        self.memories: list[Memory] = []
        self.nodes: list[Node] = []
        self.spans: list[Span] = []
        self.repeats: list[Repeat] = []
        self.parameters: list[Value] = []
        self.assumptions: dict[str, None] = {}
        self._gradients: dict[int, Value] = {}
        self._parameter_gradients: dict[int, Value] = {}
        self._main_gradients: dict[int, Value] = {}
        self._shared: set[int] = set()
        self._half_copies: dict[tuple[int, str], Value] = {}
        self._alias: dict[int, int] = {}
        self._translate: dict[int, int] = {}
        self._path: list[str] = []
        self.layer = ""
        self._count = 1
        self._next_key = 0
        self._waiting_calls = 0

    # values

    def new(self, shape: Sequence[int], dtype: str, *, role: str = "", name: str = "", copies: int = 1) -> Value:
        """Fresh memory: an activation in the forward pass, a temporary after it, unless a role is given."""
        role = role or ("activation" if self.phase == "forward" else "temporary")
        shape = tuple(shape)
        self.memories.append(Memory(shape, dtype, role, name, copies))
        self._next_key += 1
        return Value(self._next_key, len(self.memories) - 1, shape, dtype, needs_gradient=False)

    def input(self, name: str, shape: Sequence[int], dtype: str, *, needs_gradient: bool = False) -> Value:
        value = self.new(shape, dtype, role="input", name=name)
        value.needs_gradient = needs_gradient
        return value

    @property
    def in_layers(self) -> bool:
        """Whether a layer that repeats is being written."""
        return self._count > 1

    def buffer(self, name: str, shape: Sequence[int], dtype: str = "fp32") -> Value:
        return self.new(shape, dtype, role="buffer", name=name, copies=self._count)

    def return_with_scores(self, *values: Value) -> None:
        """A forward pass keeps these of every repetition until it ends."""
        for value in values:
            memory = self.memories[value.index]
            memory.role, memory.copies = "cache", self._count

    def parameter(
        self, name: str, shape: Sequence[int], *, dtype: str = "", trained: bool = True, adapter: bool = False
    ) -> Value:
        """A weight of the current layer; inside a repeated layer every repetition has its own."""
        path = f"{self.layer}.{name}" if self.layer else name
        value = self.new(shape, dtype or self.numbers.weight, role="parameter", name=path, copies=self._count)
        value.parameter = True
        value.needs_gradient = trained and self.recipe.trains and (adapter or not self.recipe.adapter_rank)
        self.parameters.append(value)
        return value

    def view(self, value: Value, shape: Sequence[int]) -> Value:
        """The same memory in another shape; its gradient is a view too."""
        shape = tuple(shape)
        out = self.seen_as(value, shape)
        self.register(out, (value,), lambda g: (self.seen_as(g, value.shape),))
        return out

    def seen_as(self, value: Value, shape: Sequence[int]) -> Value:
        """The same memory without a gradient of its own."""
        out = self.part(value, shape)
        if out.numel != value.numel:
            raise InvalidInput(f"a view of {value.shape} as {shape} changes the number of elements")
        return out

    def part(self, value: Value, shape: Sequence[int]) -> Value:
        """A piece of the same memory without a gradient of its own: a call of the host, and no kernel."""
        self._next_key += 1
        self._waiting_calls += 1
        return Value(self._next_key, value.index, tuple(shape), value.dtype, needs_gradient=False)

    # ops

    def op(
        self, name: str, kind: str, reads: Sequence[Value], writes: Sequence[Value], attrs: Mapping[str, Attr], *,
        flop: float = 0.0, dtype: str = "", bytes_read: float | None = None, bytes_written: float | None = None,
        kernels: int = 1, calls: int = 1,
    ) -> None:  # fmt: skip
        """Write one op. Bytes default to what it reads and writes, once each."""
        translate = self._translate
        if translate:
            read = [translate.get(value.index, value.index) for value in reads]
            written = [translate.get(value.index, value.index) for value in writes]
        else:
            read = [value.index for value in reads]
            written = [value.index for value in writes]
        self.drafts.append(
            Draft(
                name,
                kind,
                flop,
                sum([value.num_bytes for value in reads]) if bytes_read is None else bytes_read,
                sum([value.num_bytes for value in writes]) if bytes_written is None else bytes_written,
                self.phase,
                dtype or (writes[0].dtype if writes else reads[0].dtype),
                read,
                written,
                self.layer,
                attrs,
                kernels,
                calls + self._waiting_calls,
            )
        )
        self._waiting_calls = 0

    def views(self, count: int) -> None:
        """Count transposes and the like that the host calls before the next op."""
        self._waiting_calls += count

    def register(self, output: Value, inputs: tuple[Value, ...], backward: Backward) -> Value:
        """Tell how the gradient of `output` becomes gradients of `inputs` (None where one has none)."""

        def backward_of_one(gradients: Gradients) -> Gradients:
            return backward(gradients[0]) if gradients[0] is not None else [None] * len(inputs)

        self.register_many((output,), inputs, backward_of_one)
        return output

    def register_many(self, outputs: tuple[Value, ...], inputs: tuple[Value, ...], backward: BackwardOfMany) -> None:
        """As `register`, for a step with several outputs; a gradient that never came is None."""
        if self.recipe.trains and any(value.needs_gradient for value in inputs):
            for output in outputs:
                output.needs_gradient = True
            self.nodes.append(Node(outputs, inputs, backward, self.layer))

    def assume(self, sentence: str) -> None:
        self.assumptions[sentence] = None

    # structure

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Ops and parameters inside belong to this part of the model."""
        self._path.append(name)
        before, self.layer = self.layer, ".".join(self._path)
        yield
        self._path.pop()
        self.layer = before

    def repeat(self, count: int, carried: Value, body: Callable[[Value], Value], *, shared: bool = False) -> Value:
        """Run `body` `count` times, each time on the last result: written once, forward and backward.

        `shared`: all repetitions use the same weights, so each adds to their gradients.
        """
        if count < 1:
            return carried
        if count == 1 or self._count > 1:
            value = carried
            for _ in range(count):
                value = body(value)
            return value
        first_op, first_node, first_parameter = len(self.drafts), len(self.nodes), len(self.parameters)
        if not shared:
            self._count = count
        result = body(carried)
        self._count = 1
        if shared:
            self._shared.update(value.key for value in self.parameters[first_parameter:])
        if result.index != carried.index:
            if result.numel != carried.numel or result.dtype != carried.dtype:
                raise InvalidInput(
                    f"a repeated layer turns {carried.shape} {carried.dtype} into {result.shape} {result.dtype}"
                )
            self._alias[result.index] = carried.index
        self.repeats.append(Repeat(start=first_op, stop=len(self.drafts), count=count))
        self.spans.append(Span(first_node, len(self.nodes), count, carried, result))
        return result

    def checkpoint(self, body: Callable[[], Value], *, enabled: bool = True) -> Value:
        """Run `body` without keeping what it computes: its ops run again just before its backward pass."""
        if not (enabled and self.recipe.trains):
            return body()
        first_op, first_node = len(self.drafts), len(self.nodes)
        result = body()
        self.spans.append(
            Span(first_node, len(self.nodes), 1, checkpoint=True, first_op=first_op, last_op=len(self.drafts))
        )
        return result

    # casts

    def cast(self, value: Value, dtype: str, *, cached: bool = False) -> Value:
        """The value in another number format: a copy, and a copy back for its gradient. Autocast caches those of weights."""
        if value.dtype == dtype:
            return value
        key = (value.key, dtype)
        if cached and key in self._half_copies:
            return self._half_copies[key]
        out = self.new(value.shape, dtype)
        self.op("aten._to_copy", "copy", (value,), (out,), {"function": "cast", "numel": value.numel})
        self.register(out, (value,), lambda g: (self.cast_back(g, value),))
        if cached:
            self._half_copies[key] = out
        return out

    def cast_back(self, gradient: Value, target: Value) -> Value:
        out = self.gradient_like(target)
        self.op("aten._to_copy", "copy", (gradient,), (out,), {"function": "cast", "numel": out.numel})
        return out

    def for_product(self, value: Value) -> Value:
        """As matmul and conv read it: cast under autocast, as it is otherwise."""
        if self.numbers.autocast and value.dtype == "fp32":
            return self.cast(value, self.numbers.compute, cached=value.parameter)
        return value

    def for_stable(self, value: Value) -> Value:
        """As norms, softmax and loss read it: fp32 under autocast, as it is otherwise."""
        return self.cast(value, "fp32") if self.numbers.autocast else value

    # gradients

    def gradient_like(self, value: Value) -> Value:
        """Memory for the gradient of a value; that of a weight that trains is kept for the optimizer."""
        if value.parameter and not value.needs_gradient:
            return self.new(value.shape, value.dtype, role="temporary")
        if value.parameter:
            memory = self.memories[value.index]
            dtype = self.numbers.compute if value.dtype == "fp8" else value.dtype
            return self.new(value.shape, dtype, role="gradient", name=f"{memory.name}.grad", copies=memory.copies)
        return self.new(value.shape, value.dtype)

    def _give(self, value: Value, gradient: Value) -> None:
        if value.parameter:
            self._give_parameter(value, gradient)
            return
        before = self._gradients.get(value.key)
        if before is None:
            self._gradients[value.key] = gradient
            return
        out = self.new(value.shape, value.dtype)
        self._add(before, gradient, out)
        self._gradients[value.key] = out

    def _add(self, left: Value, right: Value, out: Value) -> None:
        attrs: dict[str, Attr] = {"function": "add", "numel": out.numel, "num_inputs": 2}
        self.op("aten.add_", "elementwise", (left, right), (out,), attrs, flop=out.numel)

    def _give_parameter(self, value: Value, gradient: Value) -> None:
        wanted = self.recipe.gradient_dtype or (self.numbers.gradient if self.numbers.weight != "fp32" else "fp32")
        before = self._parameter_gradients.get(value.key)
        memory = self.memories[gradient.index]
        if wanted != gradient.dtype:
            memory.role = "temporary"
            memory.copies = 1
            if before is None:
                parameter = self.memories[value.index]
                name, copies = f"{parameter.name}.main_grad", parameter.copies
                before = self.new(value.shape, wanted, role="gradient", name=name, copies=copies)
                self._parameter_gradients[value.key] = before
            draft = self._writer(gradient)
            if self.recipe.sums_at_once and draft.kind == "matmul":
                # The weight-gradient product adds straight into the main gradient.
                draft.writes[draft.writes.index(gradient.index)] = before.index
                draft.reads.append(before.index)
                draft.bytes_read += before.num_bytes
                draft.bytes_written += before.num_bytes - gradient.num_bytes
                return
            self._add(before, gradient, before)
            return
        if before is None:
            memory.role = "gradient"
            memory.copies = self.memories[value.index].copies
            memory.name = f"{self.memories[value.index].name}.grad"
            self._parameter_gradients[value.key] = gradient
            if self.recipe.accumulate or value.key in self._shared:
                draft = self._writer(gradient)
                if self.recipe.sums_at_once and draft.kind == "matmul" and value.key not in self._shared:
                    # The weight-gradient product adds to what is there.
                    draft.reads.append(gradient.index)
                    draft.bytes_read += gradient.num_bytes
                    return
                fresh = self.new(value.shape, gradient.dtype)
                draft.writes = [fresh.index if index == gradient.index else index for index in draft.writes]
                self._add(gradient, fresh, gradient)
            return
        memory.role = "temporary"
        memory.copies = 1
        self._add(before, gradient, before)

    def _writer(self, value: Value) -> Draft:
        """The op that wrote a value just now."""
        return next(draft for draft in reversed(self.drafts) if value.index in draft.writes)

    # the backward pass

    def backward(self, outputs: Sequence[tuple[Value, Value]]) -> None:
        """Walk back from outputs whose gradients are given."""
        self.phase = "backward"
        for value, gradient in outputs:
            self._give(value, gradient)
        spans = sorted(self.spans, key=lambda span: (span.stop, -span.start))
        self._walk_back(0, len(self.nodes), spans)

    def _walk_back(self, start: int, stop: int, spans: list[Span]) -> None:
        """Process nodes [start, stop) in reverse; `spans` lie inside, outermost last among those that end together."""
        position = stop
        while position > start:
            span = spans[-1] if spans else None
            if span is None or span.stop < position:
                position -= 1
                self._step_back(self.nodes[position])
                continue
            spans.pop()
            inner: list[Span] = []
            while spans and spans[-1].start >= span.start:
                inner.append(spans.pop())
            inner.reverse()
            if span.checkpoint:
                self._recompute(span, inner)
            else:
                self._repeat_back(span, inner)
            position = span.start

    def _step_back(self, node: Node) -> None:
        gradients = [self._gradients.pop(output.key, None) for output in node.outputs]
        if all(gradient is None for gradient in gradients):
            return
        self.layer = node.layer
        for value, given in zip(node.inputs, node.backward(gradients), strict=True):
            if given is not None and value.needs_gradient:
                self._give(value, given)

    def _repeat_back(self, span: Span, inner: list[Span]) -> None:
        carried, result = span.carried, span.result
        if carried is None or result is None:
            raise InvalidInput("a repeated layer without a carried value")
        nodes = self.nodes[span.start : span.stop]
        made = {output.key for node in nodes for output in node.outputs}
        first_op = len(self.drafts)
        arriving = self._gradients.get(result.key)
        totals: dict[int, Value] = {}
        for node in nodes:
            for value in node.inputs:
                outside = value.key not in made and value.key != carried.key and not value.parameter
                if outside and value.needs_gradient and value.key not in self._gradients:
                    # Every repetition adds its share to the gradient of what all of them read.
                    totals[value.key] = self._gradients[value.key] = self.gradient_like(value)
        before = self._gradients.pop(carried.key, None)
        self._walk_back(span.start, span.stop, inner)
        leaving = self._gradients.get(carried.key)
        if leaving is not None and arriving is not None and leaving.index != arriving.index:
            self._alias[leaving.index] = arriving.index
        for key, total in totals.items():
            if self._gradients[key].index != total.index:
                self._alias[self._gradients[key].index] = total.index
        if len(self.drafts) > first_op:
            self.repeats.append(Repeat(start=first_op, stop=len(self.drafts), count=span.count))
        if before is not None and leaving is not None:
            out = self.gradient_like(carried)
            self._add(before, leaving, out)
            self._gradients[carried.key] = out

    def _recompute(self, span: Span, inner: list[Span]) -> None:
        """Write the forward ops of a checkpoint again, on fresh memory, and let its backward pass read that memory."""
        again: dict[int, int] = {}
        drafts = self.drafts[span.first_op : span.last_op]
        start = len(self.drafts)
        for draft in drafts:
            for index in draft.writes:
                memory = self.memories[index]
                if index not in again and memory.role == "activation":
                    copy = Memory(memory.shape, memory.dtype, "temporary", memory.name, 1)
                    again[index] = len(self.memories)
                    self.memories.append(copy)
            self.drafts.append(
                Draft(
                    draft.name, draft.kind, draft.flop, draft.bytes_read, draft.bytes_written, "recompute", draft.dtype,
                    [again.get(index, index) for index in draft.reads], [again.get(index, index) for index in draft.writes],
                    draft.layer, draft.attrs, draft.num_kernels, draft.num_calls,
                )
            )  # fmt: skip
        outer, self._translate = self._translate, {**self._translate, **again}
        self._walk_back(span.start, span.stop, inner)
        self._translate = outer
        if not self.recipe.fused:
            self._stop_early(start, start + len(drafts))

    def _stop_early(self, start: int, stop: int) -> None:
        """torch.utils.checkpoint stops once all that backward needs is there; Megatron-LM's own runs to the end."""
        needed = {index for draft in self.drafts[stop:] for index in draft.reads}
        last = stop
        while last > start and needed.isdisjoint(self.drafts[last - 1].writes):
            last -= 1
        del self.drafts[last:stop]

    # the optimizer and the graph

    def _optimize(self) -> None:
        recipe = self.recipe
        if recipe.mode != "training_step" or recipe.optimizer == "none" or not self._parameter_gradients:
            return
        self.phase, self.layer = "optimizer", "optimizer"
        update = OPTIMIZERS[recipe.update_name]
        master = recipe.keeps_master and self.numbers.weight != "fp32"
        state_dtype = "fp32" if master else self.numbers.weight
        trained = [
            (value, self._parameter_gradients[value.key])
            for value in self.parameters
            if value.key in self._parameter_gradients
        ]
        total = self._keep_state(trained, update, master=master, dtype=state_dtype)
        if update.product_iterations:
            self._orthogonalize(trained, update.product_iterations)
        implementation = recipe.optimizer_kernels
        read, written, kernels = self._count_update(total, trained, update, master=master, dtype=state_dtype)
        attrs: dict[str, Attr] = {
            "algorithm": recipe.update_name, "numel": total.numel, "num_tensors": total.num_tensors,
            "implementation": implementation, "master": master,
        }  # fmt: skip
        if master and any(gradient.dtype != state_dtype for _, gradient in trained):
            # Wide weights are updated by wide gradients: half-precision ones are copied for the update.
            total.writes.append(self.new((total.numel,), state_dtype, role="temporary", name="wide gradients"))
        if update.flop > 6 and implementation != "fused" and not update.state_dtype:
            # The denominator of the update is built for all weights before any is changed. Kernels for states of 8 bits update
            # one weight after the other in place.
            largest = max((value.shape for value, _ in trained), key=math.prod)
            shape = (total.numel,) if implementation == "foreach" else largest
            total.writes.append(self.new(shape, state_dtype, role="temporary", name=f"{recipe.update_name} temporary"))
        self.op(
            f"optimizer.{recipe.update_name}", "optimizer", total.reads, total.writes, attrs, flop=update.flop * total.numel,
            dtype="fp32", bytes_read=read, bytes_written=written, kernels=kernels, calls=kernels,
        )  # fmt: skip

    def _keep_state(
        self, trained: Sequence[tuple[Value, Value]], update: Update, *, master: bool, dtype: str
    ) -> Updated:
        """Memory for what the optimizer keeps of every weight, and the sums over all of them."""
        total = Updated()
        for value, gradient in trained:
            memory = self.memories[value.index]
            copies = memory.copies
            total.reads += (value, gradient)
            total.writes.append(value)
            shapes = dict.fromkeys((*(("master",) if master else ()), *update.states), value.shape)
            if update.factored:
                rows = math.prod(value.shape[:-1]) if len(value.shape) > 1 else 0
                shapes["factors"] = (rows + value.shape[-1],)
            if update.state_dtype:
                shapes["scales"] = (len(update.states) * -(-math.prod(value.shape) // STATE_BLOCK),)
            for state, shape in shapes.items():
                small = update.state_dtype if state in update.states else None
                kept = self.new(
                    shape, small or dtype, role="optimizer_state", name=f"{memory.name}.{state}", copies=copies
                )
                total.reads.append(kept)
                total.writes.append(kept)
                if small or state in ("factors", "scales"):
                    total.other_bytes += kept.num_bytes * copies
            # A sparse gradient has fewer rows than its table, and only those are updated.
            total.numel += gradient.numel * copies
            total.num_tensors += copies
            total.gradient_bytes += gradient.num_bytes * copies
            total.weight_bytes += value.num_bytes * copies
        return total

    def _orthogonalize(self, trained: Sequence[tuple[Value, Value]], iterations: int) -> None:
        """Newton-Schulz on the momentum of every matrix inside the layers, in bf16: X' = a X + (b A + c A A) X, A = X X'."""
        for value, _ in trained:
            memory = self.memories[value.index]
            if len(value.shape) != 2 or "embedding" in memory.name or "head" in memory.name:
                continue
            small, large = sorted(value.shape)
            matrix = self.new(value.shape, "bf16", role="temporary")
            square = self.new((small, small), "bf16", role="temporary")
            for m, n, k, out in (
                (small, small, large, square),
                (small, small, small, square),
                (small, large, small, matrix),
            ):
                count = iterations * memory.copies
                attrs: dict[str, Attr] = {"batch": count, "m": m, "n": n, "k": k, "layout": "nn"}
                self.op(
                    "muon.newton_schulz", "matmul", (matrix, square), (out,), attrs, flop=2.0 * count * m * n * k,
                    dtype="bf16", bytes_read=2.0 * count * (m * k + k * n), bytes_written=2.0 * count * m * n,
                    kernels=count, calls=count,
                )  # fmt: skip

    def _count_update(
        self, total: Updated, trained: Sequence[tuple[Value, Value]], update: Update, *, master: bool, dtype: str
    ) -> tuple[float, float, int]:
        """(bytes read, bytes written, kernels) of one update of all weights."""
        implementation = self.recipe.optimizer_kernels
        fused = implementation == "fused"
        num_reads, num_writes = (update.fused_reads, update.fused_writes) if fused else (update.reads, update.writes)
        # One of the reads is the gradient, in its own format; half-precision weights are written besides their master copy.
        state_bytes = DTYPE_BYTES[dtype] * total.numel
        read = (num_reads - 1) * state_bytes + total.gradient_bytes + total.other_bytes
        written = num_writes * state_bytes + total.other_bytes + (total.weight_bytes if master else 0.0)
        launches = num_launches(numel=total.numel, num_tensors=total.num_tensors)
        kernels = (1 if fused else update.passes) * (total.num_tensors if implementation == "loop" else launches)
        if self.recipe.precision in ("fp16", "fp16-amp"):
            # The loss scaler looks for infinities and rescales every gradient in place.
            read += total.gradient_bytes
            written += total.gradient_bytes
            kernels += launches
        if any(gradient.dtype != value.dtype for value, gradient in trained):
            # Main gradients stay allocated and are zeroed for the next step.
            written += total.gradient_bytes
            kernels += 1
        return read, written, kernels

    def _name_temporaries(self, resolved: list[int]) -> None:
        """What the forward pass writes and no later phase reads is temporary; the rest is kept for the backward pass."""
        kept = {resolved[index] for draft in self.drafts if draft.phase != "forward" for index in draft.reads}
        for index, memory in enumerate(self.memories):
            if memory.role == "activation" and resolved[index] not in kept:
                memory.role = "temporary"

    def finish(
        self, outputs: Sequence[Value], *, name: str, batch_size: int, tokens_per_sample: int = 1,
        samples_unit: str = "samples", source: str = "",
    ) -> Graph:  # fmt: skip
        """Walk back from the outputs (the loss, or values whose gradients are given), update the weights, and fold."""
        if self.recipe.trains:
            seeds = []
            for value in outputs:
                seed = self.new(value.shape, value.dtype, role="input", name="output_gradient")
                seeds.append((value, seed))
            self.backward(seeds)
            self._optimize()
        alias = self._alias
        resolved = list(range(len(self.memories)))
        for index in alias:
            target = index
            while target in alias:
                target = alias[target]
            resolved[index] = target
        used: dict[int, int] = {}
        ops = []
        for draft in self.drafts:
            reads = tuple([used.setdefault(resolved[index], len(used)) for index in draft.reads])
            writes = tuple([used.setdefault(resolved[index], len(used)) for index in draft.writes])
            ops.append(
                Op(
                    name=draft.name, kind=draft.kind, flop=float(draft.flop), bytes_read=float(draft.bytes_read),
                    bytes_written=float(draft.bytes_written), phase=draft.phase, dtype=draft.dtype, reads=reads, writes=writes,
                    layer=draft.layer, attrs=draft.attrs, num_kernels=draft.num_kernels, num_calls=draft.num_calls,
                )
            )  # fmt: skip
        for value in self.parameters:
            used.setdefault(value.index, len(used))
        memories = self.memories
        self._name_temporaries(resolved)
        tensors = tuple(
            [
                Tensor(shape=m.shape, dtype=m.dtype, role=m.role, name=m.name, copies=m.copies)
                for m in (memories[index] for index in used)
            ]
        )
        return Graph(
            name=name, ops=tuple(ops), tensors=tensors, batch_size=batch_size,
            repeats=tuple(sorted(self.repeats, key=lambda repeat: repeat.start)), mode=self.recipe.mode,
            samples_unit=samples_unit, tokens_per_sample=tokens_per_sample, source=source,
            assumptions=tuple(self.assumptions),
        )  # fmt: skip
