"""Checks the sizes that a model's configuration asks for, before anything is built from them."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from traincast.errors import InvalidInput

MOST_NUMBER = 2**31
"""No size, id or length of a model is larger."""
MOST_LAYERS = 1_024
"""In one count, or in all the stages of one list together."""
MOST_EXPERTS = 32_768
MOST_MODULES = 2**20
"""Layers times experts: each becomes an object."""
MOST_ITEMS = 1_024
"""Of one list or table; label names are not counted, since no shape depends on them."""
MOST_VALUES = 20_000
"""In a whole configuration."""
MOST_WIDTH = 2**21
MOST_LAYERS_BY_WIDTH = 2**25
"""Layers times the widest of them; the largest model that was ever trained has a fifth of it."""

LABELS = ("id2label", "label2id")
"""Names of classes: only how many there are matters."""

_LAYERS = re.compile(
    r"(^|_)(n_|num_)?(\w*_)?(layers?|depths?|blocks|stages)$|^n_?layers?$|^depths?$|layers_block_type$"
)
_NOT_COUNTS = re.compile(
    r"norm|drop|scale|size|dim|prob|rate|interval|offset|index|indices|type|freq|ids?$|_at$|first_k|heads|per_layer"
)
_STAGES = re.compile(r"^(num_|n_)|depths?$|repeats$|^layers$|_blocks$")
"""Lists whose items are counts; those of other keys, such as moe_layers, are places."""
_EXPERTS = re.compile(r"experts$")
_WIDTHS = re.compile(
    r"(^|_)(hidden|embed|embedding|intermediate|ffn|inner|head|state|model|channels?|filters?|kernel|width)_?(sizes?|dims?)$"
    r"|^(n_embd|n_inner|n_heads?|d_model|d_ff|d_kv)$|(^|_)(channels|heads|filters|kernel)$"
)


def check_sizes(config: Mapping[str, Any]) -> None:
    """Refuse a configuration whose model could not be recorded in reasonable time and memory."""
    layers, experts, width = 1.0, 1.0, 1.0
    for num_values, (path, key, value) in enumerate(_walk(config, "", 0), 1):
        if num_values > MOST_VALUES:
            raise InvalidInput(f"the config has more than {MOST_VALUES:,} values; a model's config has a few hundred")
        if isinstance(value, (list, tuple, dict)):
            if len(value) > MOST_ITEMS:
                raise InvalidInput(f"the config has {len(value):,} items in {path}; at most {MOST_ITEMS:,} are taken")
            total = _total(value)
            if total is not None and _counts_layers(key) and _STAGES.search(key):
                layers = max(layers, _check(path, total, MOST_LAYERS))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            most = MOST_NUMBER
            if _EXPERTS.search(key):
                most = MOST_EXPERTS
                experts = max(experts, value)
            elif _counts_layers(key):
                most = MOST_LAYERS
                layers = max(layers, value)
            elif _WIDTHS.search(key):
                most = MOST_WIDTH
                width = max(width, value)
            _check(path, value, most)
    if layers * experts > MOST_MODULES:
        raise InvalidInput(
            f"the config asks for {layers:,.0f} layers with {experts:,.0f} experts each; at most {MOST_MODULES:,} experts in "
            "all are taken"
        )
    if layers * width > MOST_LAYERS_BY_WIDTH:
        raise InvalidInput(
            f"the config asks for {layers:,.0f} layers of a width of {width:,.0f}; layers times width is at most "
            f"{MOST_LAYERS_BY_WIDTH:,}"
        )


def _check(path: str, value: float, most: float) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        # An unset length is written as infinity by some tools; no count is.
        if most == MOST_NUMBER:
            return value
        raise InvalidInput(f"the config has {path} = {value}; it must be finite")
    if isinstance(value, int) and abs(value) > most:
        shown = f"{value:,}" if abs(value) < 10**30 else "a number of more than 30 digits"
        raise InvalidInput(f"the config has {path} = {shown}; at most {most:,} is taken")
    if isinstance(value, float) and most != MOST_NUMBER and abs(value) > most:
        raise InvalidInput(f"the config has {path} = {value:g}; at most {most:,} is taken")
    return value


def _counts_layers(key: str) -> bool:
    return _LAYERS.search(key) is not None and _NOT_COUNTS.search(key) is None


def _total(value: Any) -> float | None:
    """The sum of a list of numbers, and of lists in it; None for anything else."""
    if not isinstance(value, (list, tuple)):
        return None
    total = 0.0
    for item in value:
        inner = _total(item) if isinstance(item, (list, tuple)) else item
        if isinstance(inner, bool) or not isinstance(inner, (int, float)):
            return None
        total += min(float(inner), 1e300) if abs(inner) < 1e300 else 1e300
    return total


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, str, Any]]:
    """(path, key of the nearest table, value) of everything in a configuration."""
    if depth > 40:
        raise InvalidInput("the config is nested deeper than 40 levels")
    pairs: Any = ()
    if isinstance(value, Mapping):
        pairs = [(str(key)[:80], item) for key, item in value.items() if key not in LABELS]
    elif isinstance(value, (list, tuple)):
        pairs = [(f"[{place}]", item) for place, item in enumerate(value[: MOST_ITEMS + 1])]
    for key, item in pairs:
        name = key if isinstance(value, Mapping) else path.rpartition(".")[2].partition("[")[0]
        inner = f"{path}.{key}" if path and isinstance(value, Mapping) else f"{path}{key}"
        yield inner, name, item
        yield from _walk(item, inner, depth + 1)
