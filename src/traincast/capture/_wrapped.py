"""Modules that a library has wrapped, to what is inside: weights spread over ranks are taken whole, quantised ones as stored."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_DISTRIBUTED = "torch.distributed"
_wrappers: dict[Any, bool] = {}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def unwrap(module: Any) -> Any:
    """The eager module of a compiled one, and the local module of replicas."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = module.module
        if inner is None:
            return module
        module = inner


def is_spread(tensor: Any) -> bool:
    """A tensor of which each rank holds a part."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def is_wrapper(kind: Any) -> bool:
    """A class of tensors that runs its operations on other tensors inside it."""
    found = _wrappers.get(kind)
    if found is None:
        found = _wrappers[kind] = (
            kind not in (torch.Tensor, nn.Parameter, FakeTensor, nn.Buffer)
            and hasattr(kind, "__tensor_flatten__")
            and hasattr(kind, "__tensor_unflatten__")
        )
    return found


def say_spread(tensor: Any) -> str:
    """How a tensor is spread, for the user who gives the plan."""
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names or tuple(f"dim {number}" for number in range(mesh.ndim))
    parts = ", ".join(
        f"{name} {size} ({type(placement).__name__.strip('_').lower()})"
        for name, size, placement in zip(names, mesh.shape, tensor.placements, strict=True)
    )
    return f"weights spread over ranks ({parts}) are recorded whole; the plan says how they are spread"


def without_distributed_hooks(module: nn.Module) -> Callable[[], None]:
    """Takes off the hooks that exchange weights and activations between ranks; returns what puts them back."""
    saved: list[tuple[Any, dict[Any, Any]]] = []
    for part in module.modules():
        for attribute in _HOOKS:
            hooks = getattr(part, attribute, None)
            if not hooks:
                continue
            foreign = [key for key, hook in hooks.items() if _is_distributed(hook)]
            if foreign:
                saved.append((hooks, dict(hooks)))
                for key in foreign:
                    del hooks[key]

    def put_back() -> None:
        for hooks, before in saved:
            hooks.clear()
            hooks.update(before)

    return put_back


def _is_distributed(hook: Any) -> bool:
    owner = getattr(hook, "__self__", None)
    home = type(owner).__module__ if owner is not None else getattr(hook, "__module__", "") or ""
    return home.startswith(_DISTRIBUTED)


def flatten(tensor: Any) -> tuple[dict[str, Any], Any]:
    """The tensors inside a wrapper, by attribute, and what it needs to be put together again."""
    names, context = tensor.__tensor_flatten__()
    return {name: getattr(tensor, name) for name in names}, context


def rebuild(tensor: Any, inner: dict[str, Any], context: Any) -> Any:
    return type(tensor).__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())


def leaves(tensor: Any) -> Iterator[Any]:
    """Plain tensors, the largest first: what a wrapped weight is stored as."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    found = [leaf for part in flatten(tensor)[0].values() for leaf in leaves(part)]
    yield from sorted(found, key=lambda leaf: -leaf.numel())
