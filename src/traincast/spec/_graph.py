"""One training step as operations on tensors: what a model asks of one device, before any plan or machine is known."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec._parallel import Parallelism
from traincast.units import DTYPE_BYTES

PHASES = ("forward", "backward", "recompute", "optimizer")
MODES = ("training_step", "forward_backward", "inference")
ROLES = ("parameter", "gradient", "optimizer_state", "activation", "input", "buffer", "temporary", "cache")
"""cache: keys and values that a forward pass returns with its scores, so that it keeps those of all layers."""

MATMULS = ("matmul", "conv", "attention", "rnn")
"""Kinds of operations that are matrix multiplications: matrix units run them."""
KINDS: dict[str, tuple[str, ...]] = {
    "matmul": ("batch", "m", "n", "k", "layout"),
    "attention": ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "causal"),
    "conv": ("batch", "in_channels", "out_channels", "groups", "in_size", "out_size", "kernel", "stride", "pass"),
    "elementwise": ("function", "numel", "num_inputs"),
    "softmax": ("rows", "cols"),
    "norm": ("function", "rows", "cols"),
    "reduce": ("function", "rows", "cols"),
    "embedding": ("rows", "cols", "vocab"),
    "index": ("function", "numel"),
    "pool": ("function", "numel", "kernel"),
    "rnn": ("cell", "batch", "length", "inputs", "hidden", "layers", "directions"),
    "optimizer": ("algorithm", "numel", "num_tensors", "implementation"),
    "dropout": ("numel",),
    "copy": ("function", "numel"),
    "sort": ("rows", "cols"),
    "random": ("numel",),
    "other": (),
}
"""Every kind of operation and the attributes that describe it.

Sizes are whole numbers. A matmul is `batch` products of (m x k) by (k x n); its `layout` is "tn" (the second operand is
stored transposed, as in torch.nn.Linear), "nn" or "nt", from the view of row-major (activation, weight). A conv's
`in_size`, `out_size`, `kernel` and `stride` are spatial sizes written "56x56"; its `pass` is forward, grad_input or
grad_weight, and in_channels ... stride are always those of the forward convolution; `channels_last` is set where the
channels of a position lie side by side in memory. rows x cols of softmax, norm and
reduce: the reduction runs over cols. Batch normalisation has rows = channels and cols = batch x positions.
"""

Attr = int | float | str | bool

DYNAMIC = "dynamic"
"""The attribute of ops whose results have sizes that only the data tell: no captured step holds them, and the host waits for
each before it goes on."""


MOST_ELEMENTS = 2**70
"""Of one tensor and its copies: more is a damaged file, and products of such sizes have no number."""
MOST_AMOUNT = 1e30
"""FLOP or bytes of one operation."""
MOST_SAMPLES = 2**40
MOST_REPEATS = 2**20


@noun
class Tensor:
    """A piece of memory. Views of it are the same tensor."""

    shape: tuple[int, ...]
    dtype: str
    role: str
    name: str = ""
    copies: int = 1
    """How many of it exist at once: a parameter of a layer that repeats 32 times has 32 copies."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise InvalidInput(f"tensor {self.name!r} has dtype {self.dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")
        if self.role not in ROLES:
            raise InvalidInput(f"tensor {self.name!r} has role {self.role!r}; allowed: {', '.join(ROLES)}")
        if self.copies < 1 or min(self.shape, default=0) < 0:
            raise InvalidInput(
                f"tensor {self.name!r} has shape {self.shape} x {self.copies}; sizes must not be negative"
            )
        if math.prod(self.shape) * self.copies > MOST_ELEMENTS:
            raise InvalidInput(
                f"tensor {self.name!r} has more than {MOST_ELEMENTS:.3g} elements, the most that is read"
            )

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> float:
        """Of one copy."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@noun
class Op:
    """One operation as the framework runs it: usually one kernel on the device."""

    name: str
    kind: str
    flop: float | None
    """Multiply-add counts two. None: there is no formula; never zero by default."""
    bytes_read: float
    bytes_written: float
    phase: str = "forward"
    dtype: str = "fp32"
    """The precision of its arithmetic; 'tf32' is fp32 storage with reduced products."""
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    layer: str = ""
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    num_kernels: int = 1
    num_calls: int = 1
    """Calls the host makes for it, including views that cost the device nothing."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"op {self.name!r} has kind {self.kind!r}; allowed: {', '.join(KINDS)}")
        if self.phase not in PHASES:
            raise InvalidInput(f"op {self.name!r} has phase {self.phase!r}; allowed: {', '.join(PHASES)}")
        missing = [key for key in KINDS[self.kind] if key not in self.attrs]
        if missing:
            raise InvalidInput(f"{self.kind} op {self.name!r} lacks the attributes {', '.join(missing)}")
        for amount in (self.flop, self.bytes_read, self.bytes_written):
            if amount is not None and not 0 <= amount <= MOST_AMOUNT:
                raise InvalidInput(
                    f"op {self.name!r} has an amount of {amount:.6g}; flop and bytes are from 0 to {MOST_AMOUNT:g}"
                    if amount < 1e300
                    else f"op {self.name!r} has an amount without end; flop and bytes are at most {MOST_AMOUNT:g}"
                )

    @property
    def num_bytes(self) -> float:
        return self.bytes_read + self.bytes_written


@noun
class Repeat:
    """The tasks from `start` up to `stop` run `count` times in a row, each time on their own copy of the layer."""

    start: int
    stop: int
    count: int


@noun
class Graph:
    """A whole step of one device on `batch_size` samples, in execution order, with identical layers folded.

    A tensor written in a repeated range and read there before it is written carries from one repetition to the next;
    one written in a repeated range of the forward pass and read in a range of the backward pass with the same count is
    kept once per repetition.
    """

    name: str
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    batch_size: int
    repeats: tuple[Repeat, ...] = ()
    mode: str = "training_step"
    samples_unit: str = "samples"
    tokens_per_sample: int = 1
    source: str = ""
    assumptions: tuple[str, ...] = ()
    """What had to be assumed to make it, in sentences for the user."""
    input_variation: float = 0.0
    """Standard deviation of the work of one pass beside its mean, where inputs have several sizes: images, utterances."""
    largest_batch: float = 1.0
    """Activations of the batch with the largest inputs over those of this one: memory must hold it, however rare it is."""
    padded: bool = False
    """The work is that of the largest input, to which a captured step pads all others, so that its passes do not vary."""
    preparation_s: float = 0.0
    """Seconds in which the host makes the inputs of one pass while the device waits: features of speech in the training loop."""
    plan: Parallelism | None = None
    """How the program itself says that it is spread over devices: the sharding annotations of its arrays."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InvalidInput(f"graph {self.name!r} has a batch of {self.batch_size}; it must be at least 1")
        if max(self.batch_size, self.tokens_per_sample) > MOST_SAMPLES:
            raise InvalidInput(f"graph {self.name!r} has a batch or a length of more than {MOST_SAMPLES:,}")
        if self.mode not in MODES:
            raise InvalidInput(f"graph {self.name!r} has mode {self.mode!r}; allowed: {', '.join(MODES)}")
        check_repeats(self.repeats, num_tasks=len(self.ops), owner=f"graph {self.name!r}")
        limit = len(self.tensors)
        for op in self.ops:
            used = (*op.reads, *op.writes)
            if used and not 0 <= min(used) <= max(used) < limit:
                raise InvalidInput(f"op {op.name!r} of graph {self.name!r} names a tensor outside 0..{limit - 1}")

    def counts(self) -> list[int]:
        """How often each op runs."""
        return count_runs(self.repeats, num_tasks=len(self.ops))

    @property
    def flop(self) -> float:
        return sum((op.flop or 0.0) * count for op, count in zip(self.ops, self.counts(), strict=True))

    @property
    def num_bytes(self) -> float:
        return sum(op.num_bytes * count for op, count in zip(self.ops, self.counts(), strict=True))

    @property
    def num_parameters(self) -> int:
        return sum(tensor.numel * tensor.copies for tensor in self.tensors if tensor.role == "parameter")

    def role_bytes(self, role: str) -> float:
        return sum(tensor.num_bytes * tensor.copies for tensor in self.tensors if tensor.role == role)

    def unknown_ops(self) -> tuple[str, ...]:
        """The names of ops without a FLOP formula, once each, in order."""
        return tuple(dict.fromkeys(op.name for op in self.ops if op.flop is None))

    def with_ops(self, ops: tuple[Op, ...]) -> "Graph":
        return replace(self, ops=ops)


def check_repeats(repeats: tuple[Repeat, ...], *, num_tasks: int, owner: str) -> None:
    """Refuse ranges that overlap, run backwards, nest or leave the list of tasks."""
    end = 0
    for repeat in repeats:
        if not end <= repeat.start < repeat.stop <= num_tasks or not 1 <= repeat.count <= MOST_REPEATS:
            raise InvalidInput(
                f"{owner} repeats [{repeat.start}, {repeat.stop}) x {repeat.count}; ranges must be ordered, apart, "
                f"not empty and inside 0..{num_tasks}"
            )
        end = repeat.stop


def count_runs(repeats: tuple[Repeat, ...], *, num_tasks: int) -> list[int]:
    counts = [1] * num_tasks
    for repeat in repeats:
        counts[repeat.start : repeat.stop] = [repeat.count] * (repeat.stop - repeat.start)
    return counts


def segments(repeats: tuple[Repeat, ...], *, num_tasks: int) -> Iterator[Repeat]:
    """The whole list of tasks as ranges, those that run once included, in order."""
    position = 0
    for repeat in repeats:
        if position < repeat.start:
            yield Repeat(start=position, stop=repeat.start, count=1)
        yield repeat
        position = repeat.stop
    if position < num_tasks:
        yield Repeat(start=position, stop=num_tasks, count=1)


@noun
class Scalable:
    """One model recorded at two batch sizes: all amounts are affine in the batch, so any batch follows."""

    small: Graph
    large: Graph

    def __post_init__(self) -> None:
        if self.small.batch_size >= self.large.batch_size:
            raise InvalidInput(
                f"batches {self.small.batch_size} and {self.large.batch_size}: the second must be larger"
            )
        if [op.name for op in self.small.ops] != [op.name for op in self.large.ops]:
            raise InvalidInput(
                f"graph {self.small.name!r} changes its ops with the batch; record it at the batch you need"
            )
        both = zip(self.small.ops, self.large.ops, strict=True)
        if any(low.attrs.keys() - high.attrs.keys() for low, high in both) or [
            len(tensor.shape) for tensor in self.small.tensors
        ] != [len(tensor.shape) for tensor in self.large.tensors]:
            raise InvalidInput(
                f"graph {self.small.name!r} has other tensors at its second batch size; record it at the batch you need"
            )

    def at(self, batch_size: int) -> Graph:
        """The step at another batch size."""
        if batch_size < 1:
            raise InvalidInput(f"a batch of {batch_size}; it must be at least 1")
        span = self.large.batch_size - self.small.batch_size
        weight = (batch_size - self.small.batch_size) / span

        def whole(low: int, high: int) -> int:
            return max(0, round(low + (high - low) * weight))

        def amount(low: float, high: float) -> float:
            return max(0.0, low + (high - low) * weight)

        def attr(low: Attr, high: Attr) -> Attr:
            both_whole = isinstance(low, int) and isinstance(high, int) and not isinstance(low, bool)
            return whole(int(low), int(high)) if both_whole else low

        ops = tuple(
            replace(
                low,
                flop=None if low.flop is None or high.flop is None else amount(low.flop, high.flop),
                bytes_read=amount(low.bytes_read, high.bytes_read),
                bytes_written=amount(low.bytes_written, high.bytes_written),
                attrs={key: attr(value, high.attrs[key]) for key, value in low.attrs.items()},
            )
            for low, high in zip(self.small.ops, self.large.ops, strict=True)
        )
        tensors = tuple(
            replace(low, shape=tuple(whole(a, b) for a, b in zip(low.shape, high.shape, strict=True)))
            for low, high in zip(self.small.tensors, self.large.tensors, strict=True)
        )
        return replace(self.small, ops=ops, tensors=tensors, batch_size=batch_size)
