"""Walks a TensorFlow graph, its functions, branches and loops, and records the work of each node."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from traincast.capture._tensorflow import control
from traincast.capture._tensorflow.frames import FRAME
from traincast.capture._tensorflow.nodes import (
    ASSIGN,
    CALLS,
    RESOURCE,
    SAME,
    Value,
    algorithm_of,
    declared_shapes,
    has_effect,
    is_bookkeeping,
    place_of,
    sizes_of,
    source_of,
    type_of,
)
from traincast.capture._tensorflow.numbers import UnknownNumbers, compute
from traincast.capture._tensorflow.recording import Body, Recording
from traincast.capture._tensorflow.rules import RULES
from traincast.errors import CaptureFailed, InvalidInput

_SILENT = ("NoOp", "Assert", "VarIsInitializedOp", "DisableCopyOnRead", "ControlTrigger", "PrintV2")
_UNREADABLE = (
    IndexError, KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError, OverflowError, MemoryError, InvalidInput,
)  # fmt: skip
"""What a rule raises on a node that lacks what its operation needs."""
_MAX_DEPTH = 100
_READ = re.compile(r"/(ReadVariableOp|read)(_\d+)?$")
_RETURNED = re.compile(r"^Identity(_\d+)?$")


class Scope:
    """One graph or one call of a function: its nodes, and the values they have so far."""

    def __init__(self, recording: Recording, nodes: Mapping[str, Any], values: dict[str, list[Value]]) -> None:
        self.recording = recording
        self.nodes = nodes
        self.values = values

    def run(self, order: Sequence[str]) -> None:
        for name in order:
            if name not in self.values:
                node = self.nodes[name]
                inputs = [self.value(text) for text in node.input if not text.startswith("^")]
                self.values[name] = self._evaluate(node, inputs)

    def value(self, text: str) -> Value:
        name, output, number = source_of(text)
        if name not in self.values:
            raise CaptureFailed(f"the TensorFlow graph has a loop through the node {name!r}")
        outputs = self.values[name]
        place = place_of(self.nodes[name], output, number) if output and name in self.nodes else number
        if place >= len(outputs):
            raise CaptureFailed(
                f"the TensorFlow graph uses output {place} of the node {name!r}, which has {len(outputs)}"
            )
        return outputs[place]

    def _evaluate(self, node: Any, inputs: list[Value]) -> list[Value]:
        try:
            return self._dispatch(node, inputs)
        except UnknownNumbers:
            return self._declared(node, inputs)
        except CaptureFailed:
            raise
        except _UNREADABLE as error:
            raise CaptureFailed(
                f"the TensorFlow operation {node.op} (node {node.name!r}) has inputs of shapes "
                f"{[value.shape for value in inputs]} that cannot be read: {error}"
            ) from error

    def _dispatch(self, node: Any, inputs: list[Value]) -> list[Value]:
        op, recording = node.op, self.recording
        apply = algorithm_of(op)
        if apply is not None:
            recording.note_update(node, apply, inputs)
            return inputs[:1]
        if op in CALLS:
            return call(recording, node, node.attr["f"].func.name, inputs)
        if op in SAME:
            return inputs or [Value((), "fp32")]
        if op in _SILENT:
            return inputs[:1]
        if op in ASSIGN:
            return self._assign(node, inputs)
        if op in _HANDLES:
            return _HANDLES[op](recording, node, inputs)
        if op == FRAME:
            return self._run_frame(node.name, inputs)
        handler = control.RULES.get(op)
        if handler is not None:
            return handler(recording, node, inputs, call)
        known = control.on_lists(recording, node, inputs) or compute(node, inputs)
        if known is not None:
            return known
        rule = RULES.get(op)
        return rule(recording, node, inputs) if rule is not None else recording.unknown(node, inputs)

    def _run_frame(self, name: str, inputs: list[Value]) -> list[Value]:
        """A loop of TensorFlow 1: its nodes lie among those of the graph around it."""
        frame = self.recording.frames[name]
        constants = inputs[len(frame.merges) :]
        given = list(frame.given(inputs))

        def follow(values: list[Value], targets: list[str], order: list[str]) -> list[Value]:
            scope = Scope(self.recording, self.nodes, frame.given([*values, *constants]))
            scope.run(order)
            return [scope.value(text) for text in targets]

        asked = needed(self.nodes, [source_of(frame.condition)[0]], given)
        done = needed(self.nodes, [*(source_of(text)[0] for text in frame.results), *frame.effects], given)
        return control.repeat(
            self.recording, name, inputs[: len(frame.merges)],
            asks=lambda values: follow(values, [frame.condition], asked)[0],
            runs=lambda values: follow(values, frame.results, done),
        )  # fmt: skip

    def _declared(self, node: Any, inputs: list[Value]) -> list[Value]:
        """A node whose sizes come out of data, with the shape that the file gives it."""
        recording = self.recording
        shapes = declared_shapes(node, recording.batch)
        if shapes is None:
            raise CaptureFailed(
                f"node {node.name!r} ({node.op}) takes a shape that cannot be computed from the file; "
                "export the graph with fixed input sizes and as_graph_def(add_shapes=True)"
            )
        dtype = next((v.dtype for v in inputs if v.index is not None), inputs[0].dtype if inputs else "fp32")
        outputs = [recording.new(shape, dtype) for shape in shapes]
        numel = sum(value.numel for value in outputs)
        recording.emit(node, "copy", 0.0, {"function": node.op.lower(), "numel": numel}, inputs, outputs)
        return outputs

    def _assign(self, node: Any, inputs: list[Value]) -> list[Value]:
        target, rows = inputs[0], inputs[1] if "Scatter" in node.op else None
        if target.handle and inputs[-1].dtype != "string":
            written = self.recording.write_variable(
                node, target.handle, inputs[-1], function=ASSIGN[node.op], rows=rows
            )
            return [written if "Resource" not in node.op and "Variable" not in node.op else target]
        return inputs[:1]


def needed(nodes: Mapping[str, Any], targets: Iterable[str], given: Iterable[str] = ()) -> list[str]:
    """Everything the targets use, each after its inputs: in the order of the file where that is one."""
    order: list[str] = []
    known = set(given)
    state: set[str] = set()
    for target in targets:
        stack = [(target, False)]
        while stack:
            name, is_ready = stack.pop()
            if is_ready:
                order.append(name)
                continue
            if name in state or name in known:
                continue
            state.add(name)
            if name not in nodes:
                raise CaptureFailed(f"the TensorFlow graph uses the node {name!r}, which it does not define")
            stack.append((name, True))
            stack += [(source_of(text)[0], False) for text in reversed(nodes[name].input) if not text.startswith("^")]
    written = [name for name in nodes if name in state]
    return written if _is_ordered(nodes, written, known) else order


def _is_ordered(nodes: Mapping[str, Any], order: Sequence[str], known: set[str]) -> bool:
    """A program writes its nodes as it makes them: losses before gradients, late gradients first."""
    seen = set(known)
    for name in order:
        if any(source_of(text)[0] not in seen for text in nodes[name].input if not text.startswith("^")):
            return False
        seen.add(name)
    return True


def call(recording: Recording, node: Any, function_name: str, inputs: Sequence[Value]) -> list[Value]:
    """The body of a function in place of its call."""
    body = recording.bodies.get(function_name)
    if body is None:
        body = recording.bodies[function_name] = _read_body(recording, function_name)
    values = {name: [value] for name, value in zip(body.arguments, inputs, strict=False)}
    scope = Scope(recording, body.nodes, values)
    if len(recording.scopes) >= _MAX_DEPTH:
        raise CaptureFailed(f"the TensorFlow function {function_name!r} calls itself without an end")
    recording.enter_function(node.name, function_name)
    try:
        scope.run(body.order)
    finally:
        recording.scopes.pop()
    return [scope.value(text) for text in body.outputs]


def _read_body(recording: Recording, name: str) -> Body:
    function = recording.functions.get(name)
    if function is None:
        raise CaptureFailed(f"the TensorFlow graph calls {name!r}, which it does not define")
    arguments = [argument.name for argument in function.signature.input_arg]
    nodes = {item.name: item for item in function.node_def}
    outputs = [function.ret[argument.name] for argument in function.signature.output_arg]
    targets = [
        *(source_of(text)[0] for text in outputs),
        *(item.name for item in function.node_def if has_effect(item)),
    ]
    return Body(arguments=arguments, nodes=nodes, outputs=outputs, order=needed(nodes, targets, arguments))


def find_targets(nodes: Sequence[Any]) -> list[str]:
    """What a graph is for: its updates and what nothing else uses."""
    used = {source_of(name)[0] for node in nodes for name in node.input if not name.startswith("^")}
    effects = [node.name for node in nodes if has_effect(node)]
    trains = any(algorithm_of(node.op) is not None for node in nodes)
    if trains:
        # A graph of TensorFlow 1 holds its savers and initialisers too.
        return [node.name for node in nodes if algorithm_of(node.op) is not None]
    results = [node.name for node in nodes if node.name not in used and not is_bookkeeping(node)]
    # A traced function returns identities; whatever else is unused was only looked at for its shape.
    returned = [name for name in results if _RETURNED.match(name)]
    return [*(returned or results), *effects]


def note_shapes(recording: Recording, nodes: Mapping[str, Any]) -> None:
    """Shapes of variables that are written before they are read."""
    for node in nodes.values():
        if node.op == "ReadVariableOp":
            shapes = declared_shapes(node, recording.batch)
            if shapes:
                handle = source_of(node.input[0])[0]
                recording.shapes.setdefault(handle, (shapes[0], type_of(node, "dtype") or "fp32"))


def find_frozen(nodes: Mapping[str, Any]) -> frozenset[str]:
    """Constants that a freezing tool put in the place of variables: it keeps the node that read the variable."""
    return frozenset(
        source_of(node.input[0])[0]
        for node in nodes.values()
        if node.op == "Identity" and node.input and _READ.search(node.name)
        and (held := nodes.get(source_of(node.input[0])[0])) is not None and held.op == "Const"
    )  # fmt: skip


def _placeholder(recording: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    if "dtype" in node.attr and node.attr["dtype"].type == RESOURCE:
        return [Value((), "int64", None, None, handle=node.name)]
    shape = sizes_of(node.attr["shape"].shape, recording.batch, recording.seq) if "shape" in node.attr else None
    if shape is None or (not shape and "_output_shapes" in node.attr):
        declared = declared_shapes(node, recording.batch)
        shape = declared[0] if declared else shape
    if shape is None:
        raise CaptureFailed(
            f"the input {node.name!r} has open dims besides the batch; say the sequence length with --seq, or export the "
            "graph with fixed sizes"
        )
    if "shape" in node.attr and any(dim.size < 0 for dim in node.attr["shape"].shape.dim[:1]):
        recording.is_open = True
    return [recording.new(shape, type_of(node, "dtype") or "fp32", role="input", name=node.name)]


def _variable(recording: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    shared = node.attr["shared_name"].s.decode() if "shared_name" in node.attr else ""
    handle = shared if shared and not shared.startswith("Variable") else node.name
    shape = sizes_of(node.attr["shape"].shape, recording.batch) or ()
    dtype = type_of(node, "dtype") or "fp32"
    value = recording.shape_variable(handle, shape, dtype, node)
    if node.op == "VarHandleOp":
        return [Value((), "int64", None, None, handle=handle)]
    return [Value(value.shape, value.dtype, value.index, None, handle=handle)]


def _read(recording: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    return [recording.read_variable(node, inputs[0].handle)] if inputs[0].handle else inputs[:1]


def _gather(recording: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    table = recording.variable(inputs[0].handle, node).value if inputs[0].handle else inputs[0]
    if table is None:
        raise CaptureFailed(
            f"the table of the lookup {node.name!r} has no shape in the file; export it with add_shapes=True"
        )
    return RULES["GatherV2"](recording, node, [table, inputs[1]])


def _variable_shape(recording: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    held = recording.variable(inputs[0].handle, node).value if inputs[0].handle else inputs[0]
    if held is None:
        raise CaptureFailed(f"the variable of {node.name!r} has no shape in the file; export it with add_shapes=True")
    return compute_shape(held)


def compute_shape(value: Value) -> list[Value]:
    import numpy as np

    return [Value((len(value.shape),), "int32", None, np.array(value.shape, dtype=np.int32))]


def _next(recording: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    """A batch from an input pipeline."""
    from traincast.capture._tensorflow.nodes import TYPES

    types = [TYPES.get(kind, "fp32") for kind in node.attr["output_types"].list.type]
    shapes = [sizes_of(shape, recording.batch, recording.seq) for shape in node.attr["output_shapes"].list.shape]
    recording.is_open = recording.is_open or any(
        s.dim[:1] and s.dim[0].size < 0 for s in node.attr["output_shapes"].list.shape
    )
    if any(shape is None for shape in shapes):
        raise CaptureFailed(f"the input pipeline {node.name!r} has open dims besides the batch; give it fixed shapes")
    return [
        recording.new(shape or (), dtype, role="input", name=f"{node.name}_{number}")
        for number, (shape, dtype) in enumerate(zip(shapes, types, strict=True))
    ]


_HANDLES: dict[str, Callable[[Recording, Any, list[Value]], list[Value]]] = {
    "Placeholder": _placeholder, "VariableV2": _variable, "Variable": _variable, "VarHandleOp": _variable,
    "ReadVariableOp": _read, "ResourceGather": _gather, "VariableShape": _variable_shape, "IteratorGetNext": _next,
}  # fmt: skip
"""Nodes that make, read and ask for variables and inputs."""
