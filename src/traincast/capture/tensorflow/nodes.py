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

NUMPY = {
    "fp32": np.float32,
    "fp64": np.float64,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
    "fp16": np.float16,
}

VALUE_LIMIT = 65536

APPLY = {
    "ApplyGradientDescent": "sgd", "ApplyMomentum": "momentum", "ApplyKerasMomentum": "momentum", "ApplyAdam": "adam",
    "ApplyAdagrad": "adagrad", "ApplyAdagradV2": "adagrad", "ApplyRMSProp": "rmsprop", "ApplyAdamWithAmsgrad": "adam",
}  # fmt: skip

GRADIENT_SCOPE = re.compile(r"(^|/)(gradients?(_\d+)?|gradient_tape)/")

CALLS = ("PartitionedCall", "StatefulPartitionedCall")

SAME = {
    "Identity", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "ReadVariableOp", "PlaceholderWithDefault",
    "IdentityN", "EnsureShape",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the TensorFlow graph: its shape, its memory, and its numbers where they are small and known."""

    shape: tuple[int, ...]
    dtype: str
    index: int | None = None
    numbers: Any = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Argument:
    """Stands for an argument of a function among its nodes."""

    name: str
    input: tuple[str, ...] = ()
    op: str = "Argument"


def source_of(text: str) -> tuple[str, int]:
    """'node', 'node:1' or, inside functions, 'node:output:1'."""
    name, *rest = text.lstrip("^").split(":")
    return name, int(rest[-1]) if rest else 0


def algorithm_of(op: str) -> str | None:
    return APPLY.get(op.removeprefix("Resource"))


def is_bookkeeping(node: Any) -> bool:
    words = ("Save", "Restore", "Assign", "NoOp", "Merge", "Assert", "Summary", "Const", "Placeholder", "VarHandle",
             "VarIsInitialized", "ReadVariable", "Variable")  # fmt: skip
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


def sizes_of(shape: Any, batch: int, node: Any) -> tuple[int, ...] | None:
    if shape.unknown_rank:
        return None
    sizes = [int(dim.size) for dim in shape.dim]
    if any(size < 0 for size in sizes[1:]):
        return None
    return tuple(batch if size < 0 else size for size in sizes)


def declared_shapes(node: Any, batch: int) -> list[tuple[int, ...]] | None:
    if "_output_shapes" not in node.attr:
        return None
    shapes = [sizes_of(shape, batch, node) for shape in node.attr["_output_shapes"].list.shape]
    known = [shape for shape in shapes if shape is not None]
    return known if len(known) == len(shapes) else None
