"""Optimizers by the names of experiments: one table for steps, sharded steps and single updates."""

from typing import Any

CLASSES: dict[str, tuple[str, dict[str, float]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
}
"""Class of torch.optim and what it is given beside its rate, which changes no duration."""


def find_optimizer(torch: Any, name: str) -> tuple[Any, dict[str, float]]:
    """The class of an optimizer and its options. `torch`: whoever asks has loaded it."""
    kind, options = CLASSES[name]
    return getattr(torch.optim, kind), {"lr": 1e-3, **options}
