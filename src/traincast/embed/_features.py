"""A training step as nodes for message passing: what each operation is and costs, and which earlier ones it hears."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from traincast.noun import noun
from traincast.spec import KINDS, PHASES, Graph, Op
from traincast.units import DTYPE_BYTES

Array = NDArray[np.float64]
Places = NDArray[np.intp]

CUT_OFF = 8
"""Virtual edges reach this far along the graph; a step with its backward pass is shallow enough for less than GHN-2's 50."""
LOG_SCALE = 10.0
"""Natural logarithms of counts and bytes are divided by it: they come to lie between 0 and 3."""
NUM_SIZES = 5

COST_COLUMNS = (
    "log flop", "flop unknown", "log bytes read", "log bytes written", "log flop per byte", "log repeats", "log calls",
    "log kernels", "log2 dtype bytes",
)  # fmt: skip
COLUMNS = (
    *(f"kind {kind}" for kind in KINDS),
    *(f"phase {phase}" for phase in PHASES),
    *COST_COLUMNS,
    *(f"log size {index}" for index in range(NUM_SIZES)),
)


@noun
class GraphNodes:
    """Operations in execution order; node v hears the nodes `sources[v]`, all earlier, at distances `distances[v]`."""

    features: Array
    sources: tuple[Places, ...]
    distances: tuple[Array, ...]

    @property
    def num_nodes(self) -> int:
        return len(self.features)


def describe(graph: Graph) -> GraphNodes:
    """Cost-aware nodes of a whole step, layers that repeat once."""
    rows = np.array([_row(op, count) for op, count in zip(graph.ops, graph.counts(), strict=True)])
    sources, distances = find_sources(earlier_neighbours(graph.ops))
    return GraphNodes(features=rows.reshape(-1, len(COLUMNS)), sources=sources, distances=distances)


def earlier_neighbours(ops: Sequence[Op]) -> list[list[int]]:
    """For each op the last writers of what it reads; what a repeated layer hands to its own next run is no edge."""
    writers: dict[int, int] = {}
    neighbours = []
    for place, op in enumerate(ops):
        neighbours.append(sorted({writers[tensor] for tensor in op.reads if tensor in writers}))
        writers.update(dict.fromkeys(op.writes, place))
    return neighbours


def find_sources(
    neighbours: Sequence[Sequence[int]], *, cut_off: int = CUT_OFF
) -> tuple[tuple[Places, ...], tuple[Array, ...]]:
    """Every earlier node within the cut-off and its shortest distance, neighbours first."""
    sources, distances = [], []
    for place in range(len(neighbours)):
        found: dict[int, int] = {}
        front = [place]
        for distance in range(1, cut_off + 1):
            front = sorted({near for node in front for near in neighbours[node] if near not in found})
            if not front:
                break
            found.update(dict.fromkeys(front, distance))
        sources.append(np.array(list(found), dtype=np.intp))
        distances.append(np.array(list(found.values()), dtype=np.float64))
    return tuple(sources), tuple(distances)


def log1p(amount: float) -> float:
    return math.log1p(amount) / LOG_SCALE


def _row(op: Op, count: int) -> list[float]:
    row = [float(op.kind == kind) for kind in KINDS]
    row += [float(op.phase == phase) for phase in PHASES]
    flop = op.flop or 0.0
    row += [
        log1p(flop),
        float(op.flop is None),
        log1p(op.bytes_read),
        log1p(op.bytes_written),
        math.log((flop + 1.0) / (op.num_bytes + 1.0)) / LOG_SCALE,
        log1p(count),
        log1p(op.num_calls),
        log1p(op.num_kernels),
        math.log2(DTYPE_BYTES.get(op.dtype, 4.0)) / 2,
    ]
    sizes = [log1p(size) for size in _sizes(op)[:NUM_SIZES]]
    return row + sizes + [0.0] * (NUM_SIZES - len(sizes))


def _sizes(op: Op) -> list[float]:
    """The sizes that decide how well an operation of its kind runs, in a fixed order."""
    named = _SIZE_NAMES.get(op.kind)
    if named is None:
        return [max((_area(value) for value in op.attrs.values() if not isinstance(value, bool)), default=0.0)]
    return [_area(op.attrs[name]) for name in named]


_SIZE_NAMES: dict[str, tuple[str, ...]] = {
    "matmul": ("m", "n", "k", "batch"),
    "attention": ("q_len", "kv_len", "head_dim", "batch", "heads"),
    "conv": ("in_channels", "out_channels", "out_size", "kernel", "groups"),
    "softmax": ("rows", "cols"),
    "norm": ("rows", "cols"),
    "reduce": ("rows", "cols"),
    "embedding": ("rows", "cols", "vocab"),
    "sort": ("rows", "cols"),
    "rnn": ("batch", "length", "inputs", "hidden", "layers"),
    "optimizer": ("numel", "num_tensors"),
}


def _area(value: object) -> float:
    """A size, or the product of '56x56'; words are no size."""
    if isinstance(value, str):
        parts = value.split("x")
        return float(math.prod(int(part) for part in parts)) if all(part.isdigit() for part in parts) else 0.0
    return float(value) if isinstance(value, (int, float)) else 0.0


DATASET_TYPES = ("image", "token", "vector")


def dataset_type(graph: Graph) -> str:
    """What a sample is: an image (four-dimensional input), tokens (several looked up per sample) or a vector."""
    if any(tensor.role == "input" and len(tensor.shape) >= 4 for tensor in graph.tensors):
        return "image"
    if any(op.kind == "embedding" and _area(op.attrs["rows"]) > graph.batch_size for op in graph.ops):
        return "token"
    return "vector"


DATA_TYPES = ("images", "detection", "tokens", "speech", "recommendation", "vectors")
"""What people train on: one reuse predictor on GPUs for each that was measured. Detection includes segmentation."""
_TYPE_OF_FAMILY = {
    "detection": "detection", "segmentation": "detection", "speech-rnn": "speech", "speech-transformer": "speech",
    "recsys": "recommendation",
}  # fmt: skip


def data_type(graph: Graph) -> str:
    """One of DATA_TYPES: by the family of a workload that the catalogue knows, else by what its operators read."""
    from traincast.catalog import load_facts

    facts = load_facts("model")
    found = facts.get(graph.name)
    family = str(facts.entries[found]["family"]) if found is not None else ""
    if family in _TYPE_OF_FAMILY:
        return _TYPE_OF_FAMILY[family]
    kinds = {op.kind for op in graph.ops}
    if "rnn" in kinds and "conv" in kinds:
        return "speech"
    if "embedding" in kinds:
        return "tokens" if dataset_type(graph) == "token" else "recommendation"
    return "images" if "conv" in kinds else "vectors"


Describe = Callable[[Graph], GraphNodes]
