"""A lowered program to the numbers that corrections above the layers work with: what each operator is and what surrounds it.

Nothing here depends on the device. A correction is a ratio to what physics says, so it carries to a device that was never
measured, and a faster device can never come out slower.
"""

import functools
import math
import struct
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traincast.catalog import read_constants
from traincast.noun import noun
from traincast.spec import MATMULS, Device, Op, Stack, Stage, Task
from traincast.units import DTYPE_BYTES, MIB

Array = NDArray[np.float64]
Places = NDArray[np.intp]


@noun
class InteractionConstants:
    """Of the document `interaction`, which says what each is."""

    clip: float
    least_lanes: int
    reference_flop_per_s: Mapping[str, float]
    reference_bytes_per_s: float
    reference_kernel_s: float


CONSTANTS = read_constants(InteractionConstants, "interaction")

KINDS_AROUND = ("conv", "matmul", "attention", "norm", "elementwise", "copy", "softmax", "reduce", "pool", "index")
NUM_SIZES = 5
OWN = (
    "log_flop", "log_read", "log_written", "log_intensity", "log_balance", "log_share", "log_class_share", "log_count",
    "log_kernels", "num_inputs", "half", "backward", "training", "channels_last", "compiled", "unaligned",
    *(f"log_size{place}" for place in range(NUM_SIZES)),
)  # fmt: skip
"""Of each operator. `log_balance`: time of its arithmetic over time of its bytes on the reference device."""
OF_NEIGHBOUR = (*(f"kind_{kind}" for kind in KINDS_AROUND), "log_bytes_beside", "log_share_beside", "none")
RELATIONS = ("producers", "consumers", "before", "after", "readers")
"""Edges: who wrote what an operator reads, who reads what it writes, the order on the stream, and who reads the same tensor,
which finds it in a cache and which a compiler may join with it."""
TWO_HOPS = ("producers", "consumers")
AROUND = (
    *(f"{relation}_{name}" for relation in RELATIONS for name in OF_NEIGHBOUR),
    *(f"{relation}_twice_{kind}" for relation in TWO_HOPS for kind in KINDS_AROUND),
)
CONDITIONS = ("log_flop_per_s", "log_bytes_per_s", "log_balance", "log_sm", "log_l2", "log_call_s", "log_launch_s")
"""Of the device and the framework that run a program; precision, memory format and compiler stand in each operator's numbers."""
_SIZES = {
    "matmul": ("m", "n", "k", "batch"),
    "attention": ("q_len", "kv_len", "head_dim", "heads", "batch"),
    "conv": ("in_channels", "out_channels", "out_size", "kernel", "groups"),
    "softmax": ("rows", "cols"), "norm": ("rows", "cols"), "reduce": ("rows", "cols"), "sort": ("rows", "cols"),
    "embedding": ("rows", "cols", "vocab"), "rnn": ("batch", "length", "inputs", "hidden", "layers"),
}  # fmt: skip


@noun
class Nodes:
    """The operators of one program as rows of numbers; the update is left out."""

    classes: tuple[str, ...]
    ops: tuple[Op, ...]
    own: Array
    reference_s: Array
    """On the reference device, all runs together."""
    places: Places
    """Of the operators among the tasks."""
    behaviour: str
    """How the program is run: one of BEHAVIOURS."""

    names: tuple[str, ...]
    """The distinct classes."""
    codes: Places
    """Of each operator, the place of its class among the names."""

    def hear(self) -> Array:
        """One column for each of AROUND: messages of the neighbours, linear in what they are, over one and two hops."""
        return _around(self.ops, self.own)

    def shares(self) -> dict[str, float]:
        """Of each class of operators in the time of the reference device."""
        spent = self.sum_up(self.reference_s)
        return dict(zip(self.names, (spent / max(float(spent.sum()), 1e-30)).tolist(), strict=True))

    def sum_up(self, amounts: Array) -> Array:
        """Of each class, over its operators."""
        return np.asarray(np.bincount(self.codes, weights=amounts, minlength=len(self.names)), dtype=np.float64)


REFERENCE_SM, REFERENCE_L2 = 80, 6 * MIB
"""Of a GPU whose data sheet does not say them: those of a V100."""


def describe_conditions(device: Device, stack: Stack) -> Array:
    """One value for each of CONDITIONS; what a data sheet does not say is that of the reference device."""
    peak = max({**device.vector_flop_per_s, **device.matrix_flop_per_s}.values())
    half = next((rate for name in ("bf16", "fp16") if (rate := device.peak_flop_per_s(name))), peak)
    rate = device.memory_bytes_per_s
    chip = device.num_sm or REFERENCE_SM, device.l2_bytes or REFERENCE_L2
    amounts = (half, rate, half / rate, *chip, stack.forward_call_s, stack.launch_s)
    return np.log10(np.maximum(amounts, 1e-9))


MODES = ("training", "inference", "compiled training", "compiled inference")
DATA = ("images", "tokens", "vectors")
BEHAVIOURS = tuple(f"{mode} on {data}" for mode in MODES for data in DATA)
"""How a program is run and on what data: what was learned from images says little of tokens."""
LAST = " channels last"


def class_of(op: Op) -> str:
    """Operators of one class are corrected together: kind, shape or function, and pass."""
    phase = "backward" if op.phase == "backward" else "forward"
    attrs = op.attrs
    if attrs.get("compiled"):
        return f"fused {op.kind} {phase}"
    if op.kind == "conv":
        groups = int(attrs["groups"])
        shape = "grouped" if groups > 1 else "1x1" if _area(attrs["kernel"]) == 1 else "kxk"
        if groups > 1 and groups == attrs["in_channels"]:
            shape = "depthwise"
        return f"conv {shape} {attrs['pass']}{LAST if attrs.get('channels_last') else ''}"
    if op.kind == "matmul":
        return f"matmul {'batched' if int(attrs['batch']) > 1 else 'single'} {phase}"
    function = str(attrs.get("function", "")).removesuffix("_backward")
    if op.kind == "norm" and attrs.get("training") is False:
        function += " evaluation"
    return f"{op.kind} {function} {phase}" if function else f"{op.kind} {phase}"


def describe_nodes(stage: Stage) -> Nodes:
    """The operators of a whole program before any rank shares it."""
    counts = stage.counts()
    chosen = [
        (place, task) for place, task in enumerate(stage.tasks) if isinstance(task, Op) and task.phase != "optimizer"
    ]
    ops = [op for _, op in chosen]
    places = np.array([place for place, _ in chosen], dtype=np.intp)
    runs = np.array([counts[place] for place in places.tolist()], dtype=np.float64)
    behaviour = _behaviour(ops)
    facts = [_facts(op) for op in ops]
    amounts = _complete(np.frombuffer(b"".join([one[1] for one in facts])).reshape(len(ops), len(_RAW)))
    arithmetic_s, traffic_s, kernels = (
        amounts[:, _AMOUNTS.index(name)] for name in ("arithmetic_s", "traffic_s", "kernels")
    )
    spent = runs * (np.maximum(arithmetic_s, traffic_s) + CONSTANTS.reference_kernel_s * kernels)
    classes = tuple([one[0] for one in facts])
    places_of = {name: place for place, name in enumerate(dict.fromkeys(classes))}
    codes = np.array([places_of[name] for name in classes], dtype=np.intp)
    of_class = np.asarray(np.bincount(codes, weights=spent)[codes] if ops else spent, dtype=np.float64)
    last = any(op.attrs.get("channels_last") for op in ops if op.kind == "conv")
    own = _own(amounts, runs, spent, of_class, behaviour, last=last)
    return Nodes(
        classes=classes, ops=tuple(ops), own=own, reference_s=spent, places=places, behaviour=behaviour,
        names=tuple(places_of), codes=codes,
    )  # fmt: skip


def _behaviour(ops: Sequence[Op]) -> str:
    mode = "training" if any(op.phase == "backward" for op in ops) else "inference"
    if any(op.attrs.get("compiled") for op in ops):
        mode = f"compiled {mode}"
    kinds = {op.kind for op in ops}
    return f"{mode} on {'tokens' if 'embedding' in kinds else 'images' if 'conv' in kinds else 'vectors'}"


def _rate(op: Op) -> float:
    """FLOP/s of the reference device for an operator."""
    if op.kind not in MATMULS or (op.kind == "conv" and op.attrs["groups"] == op.attrs["in_channels"] != 1):
        return CONSTANTS.reference_flop_per_s["fp32"]
    return CONSTANTS.reference_flop_per_s.get(op.dtype, CONSTANTS.reference_flop_per_s["half"])


def _own(amounts: Array, runs: Array, spent: Array, of_class: Array, behaviour: str, *, last: bool) -> Array:
    flop, read, written, arithmetic_s, traffic_s, kernels, inputs, half, backward, unaligned = amounts[:, :-NUM_SIZES].T
    whole = max(float(spent.sum()), 1e-30)
    found = np.empty((len(amounts), len(OWN)))
    for place, column in enumerate((
        np.log10(1 + flop), np.log10(1 + read), np.log10(1 + written), np.log10((1 + flop) / (1 + read + written)),
        np.log10((1e-9 + arithmetic_s) / (1e-9 + traffic_s)), np.log10(1e-6 + spent / whole),
        np.log10(1e-6 + of_class / whole), np.log10(runs), np.log10(1 + kernels), np.minimum(inputs, 6), half, backward,
        float("training" in behaviour), float(last), float(behaviour.startswith("compiled")), unaligned,
    )):  # fmt: skip
        found[:, place] = column
    found[:, -NUM_SIZES:] = amounts[:, -NUM_SIZES:]
    return found


_AMOUNTS = (
    "flop", "read", "written", "arithmetic_s", "traffic_s", "kernels", "inputs", "half", "backward", "unaligned",
    *(f"log_size{place}" for place in range(NUM_SIZES)),
)  # fmt: skip
_RAW = ("flop", "read", "written", "rate", "kernels", "inputs", "half", "backward", "unaligned", *_AMOUNTS[-NUM_SIZES:])


def _complete(raw: Array) -> Array:
    """Columns of _RAW to those of _AMOUNTS, all operators at once."""
    found = np.empty((len(raw), len(_AMOUNTS)))
    found[:, :3] = raw[:, :3]
    found[:, 3] = raw[:, 0] / raw[:, 3]
    found[:, 4] = (raw[:, 1] + raw[:, 2]) / CONSTANTS.reference_bytes_per_s
    found[:, 5:-NUM_SIZES] = raw[:, 4:-NUM_SIZES]
    found[:, -NUM_SIZES:] = np.log10(1 + raw[:, -NUM_SIZES:])
    return found


_KNOWN: dict[int, tuple[Op, tuple[str, bytes]]] = {}
_MOST_KNOWN = 50_000


def _facts(op: Op) -> tuple[str, bytes]:
    """Class of an operator and the doubles of its amounts, kept: plans and settings of one graph share its operators."""
    found = _KNOWN.get(id(op))
    if found is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        # Held by the table itself, so no other operator can come by its identity.
        found = _KNOWN[id(op)] = op, (class_of(op), _pack(*_amounts(op)))
    return found[1]


_NO_SIZES = (0.0,) * NUM_SIZES
_pack = struct.Struct(f"{len(_RAW)}d").pack


def _amounts(op: Op) -> tuple[float, ...]:
    """One value for each of _RAW."""
    kind, attrs = op.kind, op.attrs
    names = _SIZES.get(kind)
    sizes = [_area(attrs[name]) for name in names] if names else [float(attrs.get("numel", 0) or 0)]
    unaligned = kind in _ALIGNED and any(size % 8 for size in sizes[: _ALIGNED[kind]])
    return (
        op.flop or 0.0, op.bytes_read, op.bytes_written, _rate(op), op.num_kernels, len(op.reads), op.dtype in _HALVES,
        op.phase == "backward", unaligned, *sizes, *_NO_SIZES[len(sizes) :],
    )  # fmt: skip


_ALIGNED = {"conv": 2, "matmul": 3}
"""Kinds that want sizes in eights, and how many of their sizes."""
_HALVES = frozenset(dtype for dtype, size in DTYPE_BYTES.items() if size <= 2)


def _area(value: object) -> float:
    """A size, or the product of '56x56'; words are no size."""
    if isinstance(value, str):
        return _parse_area(value)
    return float(value) if isinstance(value, (int, float)) else 0.0


@functools.lru_cache(maxsize=4096)
def _parse_area(text: str) -> float:
    parts = text.split("x")
    return float(math.prod(int(part) for part in parts)) if all(part.isdigit() for part in parts) else 0.0


_KIND_AROUND = {kind: place for place, kind in enumerate(KINDS_AROUND)}


def _around(ops: Sequence[Op], own: Array) -> Array:
    size, kinds = len(ops), len(KINDS_AROUND)
    told = np.zeros((size, len(OF_NEIGHBOUR)))
    columns = np.array([_KIND_AROUND.get(op.kind, -1) for op in ops], dtype=np.intp)
    known = np.flatnonzero(columns >= 0)
    told[known, columns[known]] = 1.0
    moved = np.log10(2 + 10 ** own[:, OWN.index("log_read")] + 10 ** own[:, OWN.index("log_written")])
    share = own[:, OWN.index("log_share")]
    told[:, kinds], told[:, kinds + 1] = moved, share
    beside = np.stack([moved, share], axis=1)
    found = np.empty((size, len(AROUND)))
    width = len(OF_NEIGHBOUR)
    edges = _edges(ops)
    for number, relation in enumerate(RELATIONS):
        heard, alone = _mean(told, *edges[relation], size=size)
        # Bytes and shares count beside the operator's own.
        heard[:, kinds : kinds + 2] = (heard[:, kinds : kinds + 2] - beside) * ~alone[:, None]
        heard[:, -1] = alone
        found[:, number * width : (number + 1) * width] = heard
    start = len(RELATIONS) * width
    for relation in TWO_HOPS:
        first = RELATIONS.index(relation) * width
        twice, _ = _mean(found[:, first : first + kinds], *edges[relation], size=size)
        found[:, start : start + kinds] = twice
        start += kinds
    return found


def _mean(told: Array, origins: Places, ends: Places, *, size: int) -> tuple[Array, NDArray[np.bool_]]:
    """At each end the mean of what stands at its origins, and which have none."""
    number = np.bincount(ends, minlength=size)
    total = np.zeros((size, told.shape[1]))
    if len(ends):
        order = np.argsort(ends, kind="stable")
        sorted_ends = ends[order]
        starts = np.flatnonzero(np.concatenate([[True], sorted_ends[1:] != sorted_ends[:-1]]))
        total[sorted_ends[starts]] = np.add.reduceat(told[origins[order]], starts, axis=0)
    return total / np.maximum(number, 1)[:, None], number == 0


def _edges(ops: Sequence[Op]) -> dict[str, tuple[Places, Places]]:
    """Origins and ends of each relation."""
    writer: dict[int, int] = {}
    reader: dict[int, int] = {}
    flow: list[tuple[int, int]] = []
    shared: list[tuple[int, int]] = []
    for place, op in enumerate(ops):
        for tensor in op.reads:
            if tensor in writer:
                flow.append((writer[tensor], place))
            # The last reader stands for those before it: tensors that all layers read have thousands of pairs.
            if tensor in reader:
                shared.append((reader[tensor], place))
            reader[tensor] = place
        for tensor in op.writes:
            writer[tensor] = place
            reader.pop(tensor, None)
    origins, ends = _columns(flow)
    one, other = _columns(shared)
    places = np.arange(len(ops), dtype=np.intp)
    return {
        "producers": (origins, ends), "consumers": (ends, origins), "before": (places[:-1], places[1:]),
        "after": (places[1:], places[:-1]), "readers": (np.concatenate([one, other]), np.concatenate([other, one])),
    }  # fmt: skip


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[Places, Places]:
    table = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def classes_of(tasks: Sequence[Task]) -> tuple[str | None, ...]:
    """Of tasks as ranks run them; None for what is never corrected: collectives and the update."""
    return tuple([_facts(task)[0] if isinstance(task, Op) and task.phase != "optimizer" else None for task in tasks])
