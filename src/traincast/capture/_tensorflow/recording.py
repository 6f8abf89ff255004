"""What the nodes of a TensorFlow graph do, kept as operations, tensors and variables, to the graph of a step."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from traincast.capture._optimizers import UPDATES
from traincast.capture._phases import mark_gradients, mark_kept, tell_mode
from traincast.capture._tensorflow.frames import Frame
from traincast.capture._tensorflow.nodes import GRADIENT_SCOPE, Value, declared_shapes, layer_of, type_of
from traincast.errors import CaptureFailed
from traincast.noun import noun
from traincast.spec import Attr, Graph, Op, Tensor
from traincast.units import DTYPE_BYTES

_STATISTICS = re.compile(
    r"moving_(mean|var)|global_step|/Adam|/Momentum|beta\d_power|iter(ations?)?$|learning_rate|seed"
)
_BACKWARD_FUNCTION = re.compile(r"backward|_grad_|gradient")
_GRADIENT_SUMS = ("AddN", "AccumulateNV2", "UnsortedSegmentSum")
"""Gradients of a tensor that is used several times are added outside the scope of gradients."""
_RANK = {"forward": 0, "recompute": 1, "backward": 2, "optimizer": 3}


@dataclass(slots=True)
class Variable:
    """A variable of the graph: its tensor once its shape is known, and how it is written."""

    name: str
    value: Value | None = None
    is_updated: bool = False
    """Written with something that a gradient went into, or by an Apply node."""
    is_written: bool = False


@noun
class Body:
    """A function of the graph, read once however often it is called."""

    arguments: Sequence[str]
    nodes: Mapping[str, Any]
    outputs: Sequence[str]
    order: Sequence[str]


@dataclass(slots=True)
class Recording:
    """Shared by the whole graph and every function that it calls."""

    batch: int
    functions: Mapping[str, Any]
    seq: int | None = None
    loop_length: int | None = None
    tf32: bool = False
    is_open: bool = False
    """An input leaves its batch open."""
    ops: list[Op] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    assumptions: dict[str, None] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    shapes: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Shape and dtype of variables that are only written, from whoever reads them."""
    frozen: frozenset[str] = frozenset()
    """Constants that were variables; empty where the names of the file do not say."""
    frames: dict[str, Frame] = field(default_factory=dict)
    """Loops of TensorFlow 1, by the node that stands for each."""
    kept: dict[str, list[Value | None]] = field(default_factory=dict)
    """Stacks and arrays of tensors of TensorFlow 1, by their handle."""
    updates: dict[str, list[tuple[Value, Value, list[Value]]]] = field(default_factory=dict)
    bodies: dict[str, Body] = field(default_factory=dict)
    scopes: list[str] = field(default_factory=list)
    """Names of the nodes whose functions are running."""
    _late: set[int] = field(default_factory=set)
    """Tensors that a gradient went into."""
    _gradients: set[int] = field(default_factory=set)
    """Tensors that the backward pass writes."""
    _writers: list[tuple[int, Variable]] = field(default_factory=list)
    """Operations that write a variable."""
    pulled_bytes: float = 0.0
    """What the nodes read of variables, each time they do: what a parameter server sends."""
    pushed_bytes: float = 0.0

    def new(self, shape: Sequence[int], dtype: str, *, role: str = "temporary", name: str = "") -> Value:
        sizes = tuple(int(size) for size in shape)
        self.tensors.append(Tensor(shape=sizes, dtype=dtype, role=role, name=name))
        return Value(sizes, dtype, len(self.tensors) - 1)

    def emit(
        self, node: Any, kind: str, flop: float | None, attrs: dict[str, Attr], reads: Sequence[Value],
        writes: Sequence[Value], *, bytes_read: float | None = None, name: str = "",
    ) -> list[Value]:  # fmt: skip
        """One operation; what it writes."""
        read_indices = tuple(dict.fromkeys(value.index for value in reads if value.index is not None))
        written = tuple(value.index for value in writes if value.index is not None)
        dtypes = [value.dtype for value in (*reads, *writes)]
        dtype = next((d for d in dtypes if d.startswith(("fp", "bf"))), dtypes[0] if dtypes else "fp32")
        if self.tf32 and dtype == "fp32" and kind in ("matmul", "conv"):
            dtype = "tf32"
        self.ops.append(
            Op(
                name=f"tf.{name or node.op}", kind=kind, flop=flop, phase=self._phase(node, read_indices, written), dtype=dtype,
                bytes_read=self._size(reads) if bytes_read is None else bytes_read, reads=read_indices, writes=written,
                bytes_written=sum(self.tensors[i].num_bytes for i in written), layer=layer_of(node.name), attrs=attrs,
            )
        )  # fmt: skip
        return list(writes)

    def _size(self, values: Sequence[Value]) -> float:
        """A slice is smaller than its tensor."""
        sizes: dict[int, float] = {}
        for value in values:
            if value.index is not None:
                size = min(value.numel * DTYPE_BYTES[value.dtype], self.tensors[value.index].num_bytes)
                sizes[value.index] = max(sizes.get(value.index, 0.0), size)
        return sum(sizes.values())

    def _phase(self, node: Any, reads: tuple[int, ...], written: tuple[int, ...]) -> str:
        late = self._late.intersection(reads)
        in_scope = any(GRADIENT_SCOPE.search(scope) for scope in (node.name, *self.scopes))
        if in_scope or (late and node.op in _GRADIENT_SUMS and late <= self._gradients):
            phase = "backward"
        else:
            phase = "optimizer" if late else "forward"
        if phase == "backward":
            self._gradients.update(written)
        if phase != "forward":
            self._late.update(index for index in written if self.tensors[index].role == "temporary")
        return phase

    def enter_function(self, node_name: str, function_name: str) -> None:
        is_gradient = _BACKWARD_FUNCTION.search(function_name) and "forward" not in function_name
        self.scopes.append(f"gradients/{node_name}" if is_gradient else node_name)

    def unknown(self, node: Any, inputs: Sequence[Value]) -> list[Value]:
        """An operation without a rule, where the file says what comes out."""
        shapes = declared_shapes(node, self.batch)
        if shapes is None:
            raise CaptureFailed(
                f"the TensorFlow operation {node.op} (node {node.name!r}) is not known and its shape is not in the file; "
                "export the graph with as_graph_def(add_shapes=True)"
            )
        dtype = type_of(node, "T") or (inputs[0].dtype if inputs else "fp32")
        outputs = [self.new(shape, dtype) for shape in shapes]
        self.emit(node, "other", None, {}, inputs, outputs)
        return outputs

    # variables

    def variable(self, handle: str, node: Any) -> Variable:
        found = self.variables.get(handle)
        if found is None:
            found = self.variables[handle] = Variable(name=handle)
        if found.value is None and handle in self.shapes:
            shape, dtype = self.shapes[handle]
            found.value = self.new(shape, dtype, role="parameter", name=_variable_name(handle))
        return found

    def shape_variable(self, handle: str, shape: Sequence[int], dtype: str, node: Any) -> Value:
        variable = self.variable(handle, node)
        if variable.value is None:
            variable.value = self.new(shape, dtype, role="parameter", name=_variable_name(handle))
        return variable.value

    def read_variable(self, node: Any, handle: str) -> Value:
        value = self.variable(handle, node).value
        if value is None:
            shapes = declared_shapes(node, self.batch)
            if not shapes:
                raise CaptureFailed(
                    f"the variable {handle!r} has no shape in the file; export the graph with as_graph_def(add_shapes=True)"
                )
            value = self.shape_variable(handle, shapes[0], type_of(node, "dtype") or "fp32", node)
        self.pulled_bytes += self._size([value])
        return value

    def write_variable(
        self, node: Any, handle: str, value: Value, *, function: str, rows: Value | None = None
    ) -> Value:
        """Plain assignment hands the buffer over; adding to a variable is a pass over it."""
        target = self.shape_variable(handle, value.shape, value.dtype, node)
        variable = self.variables[handle]
        variable.is_written = True
        self.pushed_bytes += self._size([value])
        is_late = value.index is not None and value.index in self._late
        variable.is_updated = variable.is_updated or is_late
        if function or rows is not None:
            numel = value.numel
            attrs: dict[str, Attr] = {"function": f"assign_{function}", "numel": numel, "num_inputs": 2}
            size = 2.0 * numel * DTYPE_BYTES[target.dtype]
            self.emit(node, "elementwise", float(numel), attrs, [target, value], [target], bytes_read=size)
            last = self.ops[-1]
            self.ops[-1] = replace(last, bytes_written=size / 2, phase="optimizer" if is_late else last.phase)
            self._writers.append((len(self.ops) - 1, variable))
        elif value.index is not None:
            self._hand_over(value.index, target, variable)
        if is_late and target.index is not None:
            # Whoever reads the variable from here on reads what the gradient made of it.
            self._late.add(target.index)
        return target

    def _hand_over(self, index: int, target: Value, variable: Variable) -> None:
        """The operation that made the new value writes it to the variable."""
        for place in range(len(self.ops) - 1, -1, -1):
            op = self.ops[place]
            if index in op.writes and target.index is not None:
                self.ops[place] = replace(op, writes=tuple(dict.fromkeys((*op.writes, target.index))))
                self._writers.append((place, variable))
                return

    def note_update(self, node: Any, algorithm: str, inputs: Sequence[Value]) -> None:
        """An Apply node: the variable, its slots, scalars, and the gradient."""
        values = [self._held(value, node) for value in inputs]
        shaped = next((value for value in values if value is not None and value.shape), None)
        first = values[0] or (shaped and self._shaped_like(inputs[0], shaped, node))
        if first is None:
            raise CaptureFailed(f"the update {node.name!r} ({node.op}) has a variable whose shape is not in the file")
        slots = [
            value or self._shaped_like(given, first, node)
            for value, given in zip(values[1:], inputs[1:], strict=True)
            if given.handle
        ]
        plain = [value for value, given in zip(values, inputs, strict=True) if value is not None and not given.handle]
        gradient = [first, *_others_like(first, plain)][-1]
        if not inputs[0].handle:
            slots = [v for v in _others_like(first, plain[1:]) if v.index != gradient.index]
        self._mark_updated(inputs)
        self.pushed_bytes += self._size([gradient])
        self.updates.setdefault(algorithm, []).append((first, gradient, [v for v in slots if v.shape == first.shape]))

    def _mark_updated(self, inputs: Sequence[Value]) -> None:
        for handle in (value.handle for value in inputs if value.handle):
            self.variables[handle].is_updated = True

    def _held(self, value: Value, node: Any) -> Value | None:
        return self.variable(value.handle, node).value if value.handle else value

    def _shaped_like(self, handle: Value, other: Value, node: Any) -> Value:
        return self.shape_variable(handle.handle, other.shape, other.dtype, node)

    # the finished graph

    def graph(self, *, name: str) -> Graph:
        self._settle_phases()
        self._append_updates()
        order = sorted(range(len(self.ops)), key=lambda place: _RANK[self.ops[place].phase])
        self.ops = [self.ops[place] for place in order]
        self._give_roles()
        tensors = mark_gradients(mark_kept(self.tensors, self.ops), self.ops)
        return Graph(
            name=name, ops=tuple(self._with_traffic(_collapse(self.ops, tensors))), tensors=tensors,
            batch_size=self.batch, mode=tell_mode(self.ops), source="tensorflow", assumptions=tuple(self.assumptions),
        )  # fmt: skip

    def _with_traffic(self, ops: list[Op]) -> list[Op]:
        """The update says what a step moves where servers hold the variables."""
        last = max((place for place, op in enumerate(ops) if op.kind == "optimizer"), default=None)
        if last is not None and self.pulled_bytes:
            moved: dict[str, Attr] = {"pulled_bytes": int(self.pulled_bytes), "pushed_bytes": int(self.pushed_bytes)}
            ops[last] = replace(ops[last], attrs={**ops[last].attrs, **moved})
        return ops

    def _settle_phases(self) -> None:
        """What only the update uses belongs to it: decay of weights, the schedule of the learning rate."""
        for place, variable in self._writers:
            if variable.is_updated and self.ops[place].phase == "forward":
                self.ops[place] = replace(self.ops[place], phase="optimizer")
        if not any(op.phase == "optimizer" for op in self.ops):
            return
        readers: dict[int, set[str]] = defaultdict(set)
        for place in reversed(range(len(self.ops))):
            op = self.ops[place]
            used = set().union(*(readers[index] for index in op.writes))
            if op.phase == "forward" and used == {"optimizer"}:
                op = self.ops[place] = replace(op, phase="optimizer")
            elif op.phase == "optimizer" and "backward" in used:
                op = self.ops[place] = replace(op, phase="backward")
            for index in op.reads:
                if self.tensors[index].role == "temporary":
                    readers[index].add(op.phase)

    def _give_roles(self) -> None:
        in_pass = {index for op in self.ops if op.phase != "optimizer" for index in op.reads}
        trains = any(variable.is_updated for variable in self.variables.values()) or bool(self.updates)
        for variable in self.variables.values():
            if variable.value is None or variable.value.index is None:
                continue
            index = variable.value.index
            tensor = self.tensors[index]
            role = _role_of(variable, tensor, trains=trains, in_pass=index in in_pass)
            self.tensors[index] = replace(tensor, role=role)
        self._give_roles_to_constants()
        for members in self.updates.values():
            for value, gradient, states in members:
                self._set_role(value, "parameter")
                if gradient.index != value.index:
                    self._set_role(gradient, "gradient")
                for state in states:
                    self._set_role(state, "optimizer_state")

    def _give_roles_to_constants(self) -> None:
        if self.variables:
            # Constants are the weights of a frozen graph only.
            held = {v.value.index for v in self.variables.values() if v.value is not None}
            for index, tensor in enumerate(self.tensors):
                if tensor.role == "parameter" and index not in held:
                    self.tensors[index] = replace(tensor, role="buffer")

    def _set_role(self, value: Value, role: str) -> None:
        if value.index is not None:
            self.tensors[value.index] = replace(self.tensors[value.index], role=role)

    def _append_updates(self) -> None:
        """Apply nodes are fused: one kernel per variable."""
        for algorithm, members in self.updates.items():
            numel = sum(value.numel for value, _, _ in members)
            touched = [v for value, gradient, states in members for v in (value, gradient, *states)]
            written = [v for value, _, states in members for v in (value, *states)]
            per_element = UPDATES[algorithm].flop if algorithm in UPDATES else 2 + 4 * len(members[0][2])
            self.ops.append(
                Op(
                    name=f"optimizer.{algorithm}", kind="optimizer", flop=float(per_element * numel),
                    bytes_read=self._size(touched), bytes_written=self._size(written), phase="optimizer",
                    reads=_indices(touched), writes=_indices(written), num_kernels=len(members), num_calls=len(members),
                    attrs={"algorithm": algorithm, "numel": numel, "num_tensors": len(members), "implementation": "fused"},
                )
            )  # fmt: skip


def _variable_name(handle: str) -> str:
    return re.sub(r"/(ReadVariableOp|resource|Read)(?=/|$)", "", handle)


def _indices(values: Sequence[Value]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(value.index for value in values if value.index is not None))


def _role_of(variable: Variable, tensor: Tensor, *, trains: bool, in_pass: bool) -> str:
    is_float = tensor.dtype.startswith(("fp", "bf"))
    if trains and variable.is_updated and is_float and tensor.shape:
        return "parameter" if in_pass else "optimizer_state"
    is_kept = bool(_STATISTICS.search(variable.name)) or not is_float or not tensor.shape
    return "buffer" if is_kept or (trains and variable.is_written) else "parameter"


def _kept_tensors(indices: Iterable[int], tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Those that outlive the update, each once."""
    held = ("parameter", "gradient", "optimizer_state")
    return tuple(dict.fromkeys(i for i in indices if tensors[i].role in held))


def _name_update(touched: set[int], tensors: Sequence[Tensor], *, num_weights: int) -> str:
    """By how many numbers it keeps for each weight."""
    per_weight = round(sum(tensors[i].role == "optimizer_state" for i in touched) / num_weights)
    return {0: "sgd", 1: "momentum", 2: "adam"}.get(per_weight, f"optimizer of {per_weight} states")


def _is_loose(op: Op) -> bool:
    """A part of an update that is written out."""
    return op.phase == "optimizer" and op.kind != "optimizer"


def _others_like(first: Value, values: Sequence[Value]) -> list[Value]:
    """Values of the same shape that are other tensors."""
    return [value for value in values if value.shape == first.shape and value.index != first.index]


def _collapse(ops: Sequence[Op], tensors: Sequence[Tensor]) -> list[Op]:
    """An update that is written out as many small operations is one operation of the graph, with all their kernels."""
    loose = [op for op in ops if _is_loose(op)]
    weights = {i for op in loose for i in op.writes if tensors[i].role == "parameter"}
    kept = [op for op in ops if not _is_loose(op)]
    if not weights:
        return [*kept, *loose]
    reads = _kept_tensors((i for op in loose for i in op.reads), tensors)
    writes = _kept_tensors((i for op in loose for i in op.writes), tensors)
    algorithm = _name_update({*reads, *writes}, tensors, num_weights=len(weights))
    big = next(iter(sorted(weights, key=lambda index: -tensors[index].num_bytes)))
    return [
        *kept,
        Op(
            name=f"optimizer.{algorithm}", kind="optimizer", flop=sum(op.flop or 0.0 for op in loose),
            bytes_read=sum(op.bytes_read for op in loose), bytes_written=sum(op.bytes_written for op in loose),
            phase="optimizer", dtype=tensors[big].dtype, reads=reads, writes=writes,
            num_kernels=sum(op.num_kernels for op in loose), num_calls=sum(op.num_calls for op in loose),
            attrs={
                "algorithm": algorithm, "numel": sum(tensors[i].numel for i in weights), "num_tensors": len(weights),
                "implementation": "per tensor",
            },
        ),
    ]  # fmt: skip
