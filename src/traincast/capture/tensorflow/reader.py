"""Walks a TensorFlow graph from what it trains or returns, and records the work of each node."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from traincast.capture.optimizers import UPDATES
from traincast.capture.phases import mark_kept, tell_mode
from traincast.capture.tensorflow.nodes import (
    CALLS,
    GRADIENT_SCOPE,
    SAME,
    Argument,
    Value,
    algorithm_of,
    declared_shapes,
    is_bookkeeping,
    layer_of,
    source_of,
    type_of,
)
from traincast.capture.tensorflow.numbers import compute
from traincast.capture.tensorflow.rules import RULES
from traincast.errors import CaptureFailed
from traincast.spec.graph import Attr, Graph, Op, Tensor


class Reader:
    def __init__(self, definition: Any, *, batch: int, tf32: bool) -> None:
        self.batch = batch
        self.tf32 = tf32
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []
        self.assumptions: dict[str, None] = {}
        self.updates: dict[str, list[tuple[Value, Value, list[Value]]]] = {}
        self._nodes = {node.name: node for node in definition.node}
        self._functions = {function.signature.name: function for function in definition.library.function}
        self._order = list(definition.node)
        self._values: dict[str, list[Value]] = {}

    def run(self) -> None:
        targets = [node.name for node in self._order if algorithm_of(node.op) is not None]
        if not targets:
            used = {source_of(name)[0] for node in self._order for name in node.input}
            targets = [node.name for node in self._order if node.name not in used and not is_bookkeeping(node)]
        for name in self._needed(targets):
            node = self._nodes[name]
            inputs = [self._value(text) for text in node.input if not text.startswith("^")]
            self._values[name] = self._evaluate(node, inputs)
        self._append_updates()

    def _needed(self, targets: Sequence[str]) -> list[str]:
        """Everything the targets use, each after its inputs."""
        order: list[str] = []
        state: dict[str, int] = {}
        for target in targets:
            stack = [(target, False)]
            while stack:
                name, is_ready = stack.pop()
                if is_ready:
                    order.append(name)
                    continue
                if name in state:
                    continue
                state[name] = 1
                if name not in self._nodes:
                    raise CaptureFailed(f"the TensorFlow graph uses the node {name!r}, which it does not define")
                stack.append((name, True))
                stack += [
                    (source_of(text)[0], False)
                    for text in reversed(self._nodes[name].input)
                    if not text.startswith("^")
                ]
        return order

    def _value(self, text: str) -> Value:
        name, place = source_of(text)
        if name not in self._values:
            raise CaptureFailed(f"the TensorFlow graph has a loop through the node {name!r}")
        outputs = self._values[name]
        if place >= len(outputs):
            raise CaptureFailed(
                f"the TensorFlow graph uses output {place} of the node {name!r}, which has {len(outputs)}"
            )
        return outputs[place]

    def new(self, shape: Sequence[int], dtype: str, *, role: str = "temporary", name: str = "") -> Value:
        sizes = tuple(int(size) for size in shape)
        self.tensors.append(Tensor(shape=sizes, dtype=dtype, role=role, name=name))
        return Value(sizes, dtype, len(self.tensors) - 1)

    def emit(
        self, node: Any, kind: str, flop: float | None, attrs: dict[str, Attr], reads: Sequence[Value],
        writes: Sequence[Value], *, bytes_read: float | None = None, name: str = "",
    ) -> None:  # fmt: skip
        kept = [value for value in reads if value.index is not None]
        read_indices = tuple(dict.fromkeys(value.index for value in kept if value.index is not None))
        written = tuple(value.index for value in writes if value.index is not None)
        dtypes = [value.dtype for value in (*reads, *writes)]
        dtype = next((d for d in dtypes if d.startswith(("fp", "bf"))), dtypes[0] if dtypes else "fp32")
        if self.tf32 and dtype == "fp32" and kind in ("matmul", "conv"):
            dtype = "tf32"
        phase = "backward" if GRADIENT_SCOPE.search(node.name) else "forward"
        self.ops.append(
            Op(
                name=f"tf.{name or node.op}",
                kind=kind,
                flop=flop,
                bytes_read=sum(self.tensors[i].num_bytes for i in read_indices) if bytes_read is None else bytes_read,
                bytes_written=sum(self.tensors[i].num_bytes for i in written),
                phase=phase,
                dtype=dtype,
                reads=read_indices,
                writes=written,
                layer=layer_of(node.name),
                attrs=attrs,
            )
        )

    def _evaluate(self, node: Any, inputs: list[Value]) -> list[Value]:
        op = node.op
        apply = algorithm_of(op)
        if apply is not None:
            self._note_update(node, apply, inputs)
            return [inputs[0]]
        if op in CALLS:
            return self._call(node, inputs)
        if op in SAME:
            return inputs or [Value((), "fp32")]
        if op in ("NoOp", "Assert", "Assign", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"):
            return inputs[:1]
        rule = RULES.get(op)
        try:
            numbers = compute(node, inputs)
            if numbers is not None:
                return numbers
            if rule is not None:
                return rule(self, node, inputs)
            return self._unknown(node, inputs)
        except CaptureFailed:
            raise
        except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise CaptureFailed(
                f"the TensorFlow operation {op} (node {node.name!r}) has inputs of shapes "
                f"{[value.shape for value in inputs]} that cannot be read: {error}"
            ) from error

    def _unknown(self, node: Any, inputs: list[Value]) -> list[Value]:
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

    def _call(self, node: Any, inputs: list[Value]) -> list[Value]:
        """The body of a function in place of its call."""
        function = self._functions.get(node.attr["f"].func.name)
        if function is None:
            raise CaptureFailed(f"the TensorFlow graph calls {node.attr['f'].func.name!r}, which it does not define")
        inner = Reader.__new__(Reader)
        inner.batch, inner.tf32, inner._functions = self.batch, self.tf32, self._functions
        inner.ops, inner.tensors, inner.assumptions, inner.updates = (
            self.ops,
            self.tensors,
            self.assumptions,
            self.updates,
        )
        inner._nodes = {item.name: item for item in function.node_def}
        inner._order = list(function.node_def)
        inner._values = {
            argument.name: [value] for argument, value in zip(function.signature.input_arg, inputs, strict=False)
        }
        outputs = [function.ret[argument.name] for argument in function.signature.output_arg]
        updates = [item.name for item in function.node_def if algorithm_of(item.op) is not None]
        wanted = [*updates, *(source_of(text)[0] for text in outputs)]
        arguments = set(inner._values)
        for argument in arguments:
            inner._nodes.setdefault(argument, Argument(argument))
        for name in inner._needed(wanted):
            if name in arguments:
                continue
            item = inner._nodes[name]
            values = [inner._value(text) for text in item.input if not text.startswith("^")]
            inner._values[name] = inner._evaluate(item, values)
        return [inner._value(text) for text in outputs]

    def _note_update(self, node: Any, algorithm: str, inputs: list[Value]) -> None:
        first = inputs[0]
        gradient = next(
            (value for value in reversed(inputs) if value.shape == first.shape and value.index != first.index), first
        )
        states = [v for v in inputs[1:] if v.shape == first.shape and v.index not in (first.index, gradient.index)]
        self.updates.setdefault(algorithm, []).append((first, gradient, states))

    def _append_updates(self) -> None:
        for algorithm, members in self.updates.items():
            for value, gradient, states in members:
                self._set_role(value, "parameter")
                self._set_role(gradient, "gradient")
                for state in states:
                    self._set_role(state, "optimizer_state")
            update = UPDATES[algorithm]
            numel = sum(value.numel for value, _, _ in members)
            touched = [v for value, gradient, states in members for v in (value, gradient, *states)]
            written = [v for value, _, states in members for v in (value, *states)]
            indices = [
                tuple(dict.fromkeys(v.index for v in part if v.index is not None)) for part in (touched, written)
            ]
            # TensorFlow's Apply kernels are fused: one per variable.
            self.ops.append(
                Op(
                    name=f"optimizer.{algorithm}", kind="optimizer", flop=float(update.flop * numel),
                    bytes_read=float(update.fused_reads * numel * 4), bytes_written=float(update.fused_writes * numel * 4),
                    phase="optimizer", reads=indices[0], writes=indices[1], num_kernels=len(members), num_calls=len(members),
                    attrs={"algorithm": algorithm, "numel": numel, "num_tensors": len(members), "implementation": "fused"},
                )
            )  # fmt: skip

    def _set_role(self, value: Value, role: str) -> None:
        if value.index is not None:
            self.tensors[value.index] = replace(self.tensors[value.index], role=role)

    def graph(self, *, name: str) -> Graph:
        return Graph(
            name=name,
            ops=tuple(self.ops),
            tensors=mark_kept(self.tensors, self.ops),
            batch_size=self.batch,
            mode=tell_mode(self.ops),
            source="tensorflow",
            assumptions=tuple(self.assumptions),
        )
