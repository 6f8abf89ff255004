"""What a dispatch mode sees of one aten call, to a call with named arguments and flat tensors."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from traincast.capture._operators import Call, dtype_name

NO_WORK = frozenset(
    "aten." + name
    for name in (
        "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize", "resize_",
        "set_",
        "as_strided_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "lift_fresh",
        "lift", "record_stream", "_assert_async", "_assert_scalar", "sym_size", "sym_numel",
        "is_same_size", "_has_compatible_shallow_copy_type", "_efficientzerotensor", "is_pinned", "_nested_tensor_size",
        "_has_same_storage_numel",
    )
)  # fmt: skip
"""Operations that allocate, ask or relabel, and move nothing."""

_known: dict[Any, tuple[str, tuple[str, ...], bool, bool]] = {}


def name_of(func: Any) -> str:
    return _signature(func)[0]


def _signature(func: Any) -> tuple[str, tuple[str, ...], bool, bool]:
    known = _known.get(func)
    if known is None:
        schema = func._schema
        known = (
            schema.name.replace("::", "."),
            tuple(argument.name for argument in schema.arguments),
            bool(schema.is_mutable),
            torch.Tag.pointwise in func.tags,
        )
        _known[func] = known
    return known


def read_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Call | None:
    """None for a call that touches no memory: a view of what came in."""
    name, names, mutates, pointwise = _signature(func)
    arguments = dict(zip(names, args, strict=False))
    arguments.update(kwargs)
    inputs = tuple(flat_tensors(arguments.values()))
    outputs = tuple(flat_tensors((output,)))
    if not mutates and outputs and is_view(inputs, outputs):
        return None
    if mutates and not outputs:
        outputs = tuple(_written(func, arguments)) or inputs[:1]
    return Call(name, _with_defaults(func, arguments), inputs, outputs, pointwise, mutates)


def _written(func: Any, arguments: dict[str, Any]) -> Iterator[Any]:
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in arguments:
            yield from flat_tensors((arguments[argument.name],))


def flat_tensors(items: Any) -> Iterator[Any]:
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from flat_tensors(item)


def is_view(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    storages = {tensor.untyped_storage()._cdata for tensor in inputs}
    return all(tensor.untyped_storage()._cdata in storages for tensor in outputs)


def _with_defaults(func: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    for argument in func._schema.arguments:
        if argument.name not in arguments and argument.has_default_value():
            arguments[argument.name] = argument.default_value
    return arguments


def arithmetic_dtype(reads: Sequence[Any], writes: Sequence[Any]) -> str:
    for tensor in (*reads, *writes):
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return dtype_name(tensor)
    return dtype_name(writes[0]) if writes else dtype_name(reads[0]) if reads else "fp32"
