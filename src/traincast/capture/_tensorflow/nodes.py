"""Nodes of a TensorFlow graph: their attributes and the tensors between them, as plain values."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TYPES = {
    1: "fp32", 2: "fp64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64", 9: "int64", 10: "bool", 14: "bf16",
    17: "int16", 18: "complex128", 19: "fp16", 22: "int32", 23: "int64",
}  # fmt: skip

RESOURCE = 20
"""The type of a handle: a variable, an iterator or a table."""

NUMPY = {
    "fp32": np.float32, "fp64": np.float64, "int32": np.int32, "int64": np.int64, "bool": np.bool_, "fp16": np.float16,
    "uint8": np.uint8, "int8": np.int8, "int16": np.int16,
}  # fmt: skip

VALUE_LIMIT = 65536

APPLY = re.compile(r"^(Resource)?(Sparse)?Apply([A-Z]\w*)$")
"""Nodes that update a variable in one kernel, the variable first, its slots next."""

APPLIED = {"GradientDescent": "sgd", "KerasMomentum": "momentum", "AdagradV2": "adagrad", "AdamWithAmsgrad": "adam"}

ASSIGN = {
    "Assign": "", "AssignVariableOp": "", "AssignAdd": "add", "AssignAddVariableOp": "add", "AssignSub": "sub",
    "AssignSubVariableOp": "sub", "ResourceScatterAdd": "add", "ResourceScatterSub": "sub", "ResourceScatterUpdate": "",
    "ScatterAdd": "add", "ScatterSub": "sub", "ScatterUpdate": "",
}  # fmt: skip
"""Nodes that write a variable and the arithmetic they do."""

OUTPUTS: dict[str, tuple[str, ...]] = {
    "SparseSoftmaxCrossEntropyWithLogits": ("loss", "backprop"), "SoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "TensorListPopBack": ("output_handle", "tensor"), "BroadcastGradientArgs": ("r0", "r1"),
    "StatelessRandomGetKeyCounter": ("key", "counter"), "TopKV2": ("values", "indices"), "TopK": ("values", "indices"),
    "Unique": ("y", "idx"), "UniqueV2": ("y", "idx"), "UniqueWithCounts": ("y", "idx", "count"),
    "MaxPoolWithArgmax": ("output", "argmax"), "Switch": ("output_false", "output_true"),
    "Merge": ("output", "value_index"), "RefMerge": ("output", "value_index"),
    "LSTMBlockCell": ("i", "cs", "f", "o", "ci", "co", "h"),
    "CudnnRNN": ("output", "output_h", "output_c", "reserve_space"),
    "CudnnRNNV3": ("output", "output_h", "output_c", "reserve_space", "host_reserved"),
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2", "reserve_space_3"),
    ),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"),
        ("x_backprop", "scale_backprop", "offset_backprop", "reserve_space_4", "reserve_space_5"),
    ),
}  # fmt: skip
"""Operations with several named outputs, in order: inside functions an output is named, not numbered."""

GRADIENT_SCOPE = re.compile(r"(^|/)(gradients?(_\d+)?|gradient_tape)/")

CALLS = ("PartitionedCall", "StatefulPartitionedCall", "TPUPartitionedCall")

SAME = {
    "Identity", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "PlaceholderWithDefault", "IdentityN",
    "EnsureShape", "Enter", "Exit", "NextIteration", "RefIdentity", "RefEnter", "RefExit", "OptionalGetValue",
    "OptionalFromValue", "BroadcastHelper", "XlaSharding", "CopyHost", "Copy",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the TensorFlow graph: its shape, its memory, and its numbers where they are small and known."""

    shape: tuple[int, ...]
    dtype: str
    index: int | None = None
    numbers: Any = None
    handle: str = ""
    """Of a resource: the variable it stands for."""
    items: tuple["Value | None", ...] | None = None
    """Of a list of tensors: what it holds."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def source_of(text: str) -> tuple[str, str, int]:
    """Node, named output and number of 'node', 'node:1' or, inside functions, 'node:output:1'."""
    name, *rest = text.lstrip("^").split(":")
    return name, rest[0] if len(rest) == 2 else "", int(rest[-1]) if rest else 0


def place_of(node: Any, output: str, number: int) -> int:
    """The number of a named output among all outputs of its node."""
    names = OUTPUTS.get(node.op, ())
    return names.index(output) if output in names else number


def algorithm_of(op: str) -> str | None:
    found = APPLY.match(op)
    if found is None:
        return None
    return APPLIED.get(found[3], found[3].lower().removesuffix("v2"))


def has_effect(node: Any) -> bool:
    """Does more than return a value."""
    return (
        node.op in ASSIGN
        or node.op in ("StatefulPartitionedCall", "While", "If", "Case")
        or algorithm_of(node.op) is not None
    )


def is_bookkeeping(node: Any) -> bool:
    words = ("Save", "Restore", "Assign", "NoOp", "MergeV2", "Assert", "Summary", "Const", "Placeholder", "VarHandle",
             "VarIsInitialized", "ReadVariable", "Variable", "Shape")  # fmt: skip
    return any(word in node.op for word in words)


def layer_of(name: str) -> str:
    scope = name.rpartition("/")[0]
    scope = re.sub(r"(^|/)(gradients?(_\d+)?|gradient_tape)/", r"\1", scope + "/").strip("/")
    scope = re.sub(r"_grad$", "", scope)
    return scope.replace("/", ".")


def type_of(node: Any, key: str) -> str | None:
    return TYPES.get(node.attr[key].type) if key in node.attr else None


def ints_of(node: Any, key: str, default: Sequence[int]) -> list[int]:
    return list(node.attr[key].list.i) or list(default) if key in node.attr else list(default)


def flag_of(node: Any, *keys: str) -> bool:
    return any(node.attr[key].b for key in keys if key in node.attr)


def text_of(node: Any, key: str, default: str) -> str:
    return (node.attr[key].s.decode() or default) if key in node.attr else default


def sizes_of(shape: Any, batch: int, seq: int | None = None) -> tuple[int, ...] | None:
    if shape.unknown_rank:
        return None
    sizes = [int(dim.size) for dim in shape.dim]
    if seq is not None:
        sizes = [seq if size < 0 and place == 1 else size for place, size in enumerate(sizes)]
    if any(size < 0 for size in sizes[1:]):
        return None
    return tuple(batch if size < 0 else size for size in sizes)


def declared_shapes(node: Any, batch: int) -> list[tuple[int, ...]] | None:
    if "_output_shapes" not in node.attr:
        return None
    shapes = [sizes_of(shape, batch) for shape in node.attr["_output_shapes"].list.shape]
    known = [shape for shape in shapes if shape is not None]
    return known if len(known) == len(shapes) else None
