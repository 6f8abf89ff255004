"""Ops to kernels: which family each kernel belongs to, its columns, and how far it is from what was measured."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincast.cost._alignment import copied_bytes, misalignment
from traincast.cost._attention import HEAD_MULTIPLE, KERNELS, REGISTER_FED_KERNELS
from traincast.cost._bounds import (
    GENERATIONS,
    WIDE_SM_SHARE,
    generation,
    is_systolic,
    lanes_flop_per_s,
    product_flop_per_s,
    scales_blocks,
    uses_matrix_units,
)
from traincast.cost._features import WINOGRAD
from traincast.cost._products import UNKNOWN_SM
from traincast.errors import UnknownName
from traincast.spec import Device, Op
from traincast.units import DTYPE_BYTES

Array = NDArray[np.float64]
MEASURED, TRANSFER, BOUND = 0, 1, 2
HALF = ("fp16", "bf16", "fp8", "fp4")
STREAMED_COPIES = ("cast", "fill", "copy")

HEAVY: dict[str, float] = {
    "pow": 1.0, "tanh": 0.5, "gelu": 0.5, "silu": 0.5, "sigmoid": 0.5, "exp": 0.5, "log": 0.5, "erf": 0.5, "div": 0.3,
    "sin": 0.5, "cos": 0.5,
}  # fmt: skip
"""Arithmetic weight of an elementwise function; the rest only move data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Kernels of one family and number format."""

    columns: Array
    owner: NDArray[np.intp]
    """The op each kernel belongs to."""
    factor: Array
    """How much longer than the family's own kernels: what counting bytes does not show, or repeats in a row."""
    extra_sigma: Array
    ground: NDArray[np.int64]
    resident: Array
    """Share of its bytes still in L2 from the ops before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelList:
    groups: dict[tuple[str, str], Kernels]


class _Collector:
    """Gathers rows op by op; numpy takes over once they are complete."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.rows: dict[tuple[str, str], list[tuple[float, ...]]] = {}
        self.owner = 0
        self.resident = 0.0
        self.in_flight = 1.0
        self._is_short: dict[str, bool] = {}
        self.systolic = is_systolic(device)

    def on_matrix(self, dtype: str) -> bool:
        """Whether products of this type run on matrix units in a format shorter than fp32, with tiles on multiprocessors."""
        return self.is_short(dtype) and not self.systolic

    def is_short(self, dtype: str) -> bool:
        """The same on multiprocessors or on systolic arrays."""
        if dtype not in self._is_short:
            _, real = product_flop_per_s(self.device, dtype)
            self._is_short[dtype] = real not in ("fp32", "fp64") and uses_matrix_units(self.device, real)
        return self._is_short[dtype]

    def add(self, family: str, columns: tuple[float, ...], *, dtype: str = "fp32", factor: float = 1.0, sigma: float = 0.0,
            ground: int = MEASURED) -> None:  # fmt: skip
        row = (self.owner, factor, sigma, ground, self.resident, *columns)
        self.rows.setdefault((family, dtype), []).append(row)

    def pointwise(self, num_bytes: float, *, inputs: float = 1.0, heavy: float = 0.0, aligned: bool = True,
                  factor: float = 1.0, sigma: float = 0.0, ground: int = TRANSFER) -> None:  # fmt: skip
        columns = (num_bytes, inputs, heavy, float(aligned))
        self.add("pointwise", columns, factor=factor * self.in_flight, sigma=sigma, ground=ground)

    def matmul(self, op: Op, batch: float, m: float, n: float, k: float, *, transposed: bool = False,
               num_bytes: float | None = None, factor: float = 1.0, sigma: float = 0.0,
               ground: int = MEASURED) -> None:  # fmt: skip
        item = DTYPE_BYTES[op.dtype]
        moved = item * batch * (m * k + k * n + m * n) if num_bytes is None else num_bytes
        family = "product" if self.is_short(op.dtype) else "matmul"
        # As `add` does, without another call: products are most of what is priced.
        self.rows.setdefault((family, op.dtype), []).append(
            (self.owner, factor, sigma, ground, self.resident, batch, m, n, k, float(transposed), item, moved)
        )

    def collect(self) -> KernelList:
        groups = {}
        for key, rows in self.rows.items():
            about = np.array(rows, dtype=np.float64)
            groups[key] = Kernels(
                columns=about[:, 5:],
                owner=about[:, 0].astype(np.intp),
                factor=about[:, 1],
                extra_sigma=about[:, 2],
                ground=about[:, 3].astype(np.int64),
                resident=about[:, 4],
            )
        return KernelList(groups=groups)


def list_kernels(ops: Sequence[Op], device: Device) -> KernelList:
    collector = _Collector(device)
    shares = reuse_shares(ops, device)
    vectors = {True: short_vectors(device, numbers=1.0), False: short_vectors(device)}
    for index, op in enumerate(ops):
        short = op.attrs.get("short_vectors") and "compiled" not in op.attrs
        collector.in_flight = vectors[op.kind == "embedding"] if short else 1.0
        collector.owner = index
        collector.resident = shares[index]
        if collector.systolic and op.kind == "conv":
            op = _take_slices(op, ops[max(0, index - HANDED_ON) : index])
        if "compiled" in op.attrs:
            _compiled(op, collector)
        else:
            _KINDS[op.kind](op, collector)
    return collector.collect()


VECTOR = 4.0
"""Numbers that a thread takes at a time; kernels that fetch rows of tables take one."""
HALVES_PER_SM_CYCLE, BEND = 20.0, 2.3
"""Bytes that a multiprocessor streams with eight bytes in flight for each of its threads: 2048 x 8 over some 800 cycles."""


def short_vectors(device: Device, *, numbers: float = VECTOR) -> float:
    """How much longer streams of half precision take than DRAM alone would: four numbers are eight bytes for each thread in
    flight, which fills memory that is fast beside its multiprocessors only in part (Little 1961)."""
    if device.num_sm is None or device.clock_hz is None:
        return 1.0
    flow = HALVES_PER_SM_CYCLE * numbers / VECTOR * device.num_sm * device.clock_hz
    asked = device.memory_bytes_per_s / flow
    return float((1.0 + asked**BEND) ** (1.0 / BEND))


HANDED_ON = 2
"""Convolutions that take what was made right before them: the next layer's, or the two that make a layer's gradients."""


def _take_slices(op: Op, before: Sequence[Op]) -> Op:
    """A convolution on systolic arrays, without the input that a generated kernel makes slice by slice in the scratchpad while
    the arrays work on the slice before: compilers for them run both at once (XLA's fused convolutions, Gaudi's bundles)."""
    made = {
        tensor: last.bytes_written / len(last.writes)
        for last in before
        if "compiled" in last.attrs
        for tensor in last.writes
    }
    handed = sum(made.get(tensor, 0.0) for tensor in op.reads)
    return replace(op, bytes_read=max(0.0, op.bytes_read - handed)) if handed else op


REUSE_OF_L2 = 0.5
"""Share of L2 in which a just written tensor survives until it is read; the rest is taken by what streams through."""


def reuse_shares(ops: Sequence[Op], device: Device) -> list[float]:
    """The share of each op's bytes that its predecessors left in L2."""
    capacity = REUSE_OF_L2 * (device.l2_bytes or 0.0)
    touched = 0.0
    written: dict[int, tuple[float, float]] = {}
    shares = []
    for op in ops:
        found = 0.0
        for tensor in op.reads:
            entry = written.get(tensor)
            if entry is not None and touched - entry[0] + entry[1] <= capacity:
                found += entry[1]
        total = op.bytes_read + op.bytes_written
        shares.append(min(found, op.bytes_read) / total if found and total else 0.0)
        touched += total
        for tensor in op.writes:
            written[tensor] = (touched, op.bytes_written / len(op.writes))
    return shares


def _number(op: Op, key: str) -> float:
    return float(op.attrs[key])


STRIDED_SUM = 3.0
"""Generated kernels that sum over pixels of images with channels last: a thread's numbers lie apart."""
HELD_BYTES_PER_SM = 262144.0
"""Of a channel's numbers that one block of threads keeps in registers between statistics and application."""
LONGEST_SUM = 4096.0
"""The longest sum that was measured; libraries split longer ones over a device that few outputs leave idle."""
SPLIT_TILE = 128.0
SUM_FACTOR = 1.2
TURNED_READS = 1.2
"""Kernels that read across the order they write in, in short runs."""
NORM_CHANNELS = 64.0
"""That a block of threads of a batch norm with channels last takes at a time; threads of fewer are idle."""


PROMOTION_SHARE = 0.45
"""Of the lanes' peak, while they add up scaled sums of blocks beside the matrix units: H100, 1.3 times the time of products with
one scale."""
GROUPED = "grouped_mm"
"""In the name of an operator that runs the products of all experts in one launch."""


def _matmul(op: Op, to: _Collector) -> None:
    attrs = op.attrs
    batch, m, n, k = float(attrs["batch"]), float(attrs["m"]), float(attrs["n"]), float(attrs["k"])
    if batch == 1.0 and min(m, n) == 1.0:
        # A matrix and a vector: every number is read once and used once.
        to.pointwise(op.num_bytes, factor=1.2, sigma=0.25)
        return
    if to.on_matrix(op.dtype):
        slower, doubt = misalignment(op, to.device)
        if op.attrs.get("pads") and (copied := copied_bytes(op, to.device)):
            to.pointwise(copied, sigma=0.3)
        item = DTYPE_BYTES[op.dtype]
        moved = batch * (item * (m * k + k * n) + max(item, 2.0) * m * n)
        block = float(attrs.get("scale_block", 0.0))
        if block and product_flop_per_s(to.device, op.dtype)[1] == "fp8" and not scales_blocks(to.device):
            # Sums of every block are scaled and added on the lanes.
            promoted = 2.0 * batch * m * n * k / block
            to.add("lanes", (promoted, 0.0, PROMOTION_SHARE), dtype=op.dtype, sigma=0.2, ground=TRANSFER)
        if attrs.get("products_by_sample"):
            _multiply_by_sample(op, to)
            return
        if GROUPED in op.name:
            # Rows of experts differ in number; where a weight's gradient sums over them, its own rows do not.
            uneven = float(attrs["layout"] != "nt")
            to.add("grouped", (batch, m, n, k, uneven, item, moved), dtype=op.dtype, factor=slower, sigma=doubt)
            return
        to.add("product", (batch, m, n, k, 0.0, item, moved), dtype=op.dtype, factor=slower, sigma=doubt)
        return
    # Kernels for fp32 transpose on their way to shared memory; systolic arrays are fed in either order.
    transposed = attrs["layout"] == "tn" and not to.systolic
    parts = 1
    if k >= 2 * LONGEST_SUM and not to.is_short(op.dtype):
        tiles = max(1.0, batch * math.ceil(m / SPLIT_TILE) * math.ceil(n / SPLIT_TILE))
        parts = math.floor(min((to.device.num_sm or 80) / tiles, k / LONGEST_SUM))
    if parts > 1:
        to.matmul(
            op,
            batch * parts,
            m,
            n,
            k / parts,
            transposed=transposed,
            num_bytes=op.num_bytes,
            sigma=0.2,
            ground=TRANSFER,
        )
        to.pointwise((parts + 1) * 4.0 * batch * m * n, factor=1.2, sigma=0.25)
        return
    to.matmul(op, batch, m, n, k, transposed=transposed)


def _multiply_by_sample(op: Op, to: _Collector) -> None:
    """One matrix for each sample, whose rows are its tokens; of weights' gradients as many are written and then summed."""
    samples, item = _number(op, "by_sample"), DTYPE_BYTES[op.dtype]
    m, n, k = _number(op, "m"), _number(op, "n"), _number(op, "k")
    summed = op.phase == "backward"
    part, layout = ("k", "nn") if summed else ("m", "nt")
    each = replace(op, attrs={**op.attrs, "batch": samples, part: _number(op, part) / samples, "layout": layout})
    slower, doubt = misalignment(each, to.device)
    moved = item * (k * (m + n) + samples * m * n) if summed else op.num_bytes
    columns = (samples, _number(each, "m"), n, _number(each, "k"), 0.0, item, moved)
    to.add("product", columns, dtype=op.dtype, factor=slower, sigma=math.hypot(0.2, doubt), ground=TRANSFER)
    if summed:
        to.pointwise((samples + 1.0) * item * m * n, factor=SUM_FACTOR, sigma=0.25)


def find_attention_kernel(op: Op, device: Device) -> str:
    """The generation of a fused kernel: as the op says, as its operator's name tells, else what frameworks choose here."""
    said = op.attrs.get("kernel")
    if said is not None:
        if said not in KERNELS:
            raise UnknownName("attention kernel", str(said), KERNELS)
        return str(said)
    if "cudnn" in op.name:
        return "cudnn"
    if "efficient" in op.name:
        return "efficient"
    if generation(device) < GENERATIONS["ampere"]:
        # FlashAttention-2 has no kernels for Volta and Turing; frameworks run the memory-efficient one there.
        return "efficient"
    return "cudnn" if generation(device) >= GENERATIONS["blackwell"] else "flash-2"


def _attention(op: Op, to: _Collector) -> None:
    if not to.on_matrix(op.dtype):
        _attention_on_lanes(op, to)
        return
    attrs = op.attrs
    kernel = find_attention_kernel(op, to.device)
    queries, keys = float(attrs["q_len"]), float(attrs["kv_len"])
    size = float(attrs["head_dim"])
    width = (size + float(attrs.get("value_dim", size))) / 2.0
    backward = float(op.phase == "backward")
    moved = op.num_bytes
    if backward:
        moved += _backward_bytes(op, kernel)
    if size % HEAD_MULTIPLE:
        # Inputs are copied to a padded head and the result is cut back.
        to.pointwise(2.0 * moved, sigma=0.15)
    columns = (
        float(attrs["batch"]) * float(attrs["heads"]), queries, keys, width, float(attrs["causal"]),
        float(attrs.get("window") or keys), backward, KERNELS[kernel], float(kernel in REGISTER_FED_KERNELS), moved,
    )  # fmt: skip
    sigma = 0.15 if backward or kernel == "efficient" else 0.0
    to.add("attention", columns, dtype=op.dtype, sigma=sigma, ground=TRANSFER if sigma else MEASURED)


def _backward_bytes(op: Op, kernel: str) -> float:
    """What the backward kernels move beside their operands: gradients of queries are summed in fp32 and then rounded, and those
    of keys and values are written for every head of queries and then summed where heads share them (cuDNN sums in its kernel)."""
    attrs = op.attrs
    size = float(attrs["head_dim"])
    heads = float(attrs["batch"]) * float(attrs["heads"])
    moved = 8.0 * heads * float(attrs["q_len"]) * size
    if float(attrs.get("kv_heads", attrs["heads"])) < float(attrs["heads"]) and kernel != "cudnn":
        wide = size + float(attrs.get("value_dim", size))
        moved += 2.0 * DTYPE_BYTES[op.dtype] * heads * float(attrs["kv_len"]) * wide
    return moved


def _attention_on_lanes(op: Op, to: _Collector) -> None:
    """One fused kernel: products that never leave the chip, at a share of what plain products reach."""
    batch = _number(op, "batch") * _number(op, "heads")
    queries, keys, size = _number(op, "q_len"), _number(op, "kv_len"), _number(op, "head_dim")
    flop = op.flop if op.flop else 4 * batch * queries * keys * size * (2.5 if op.phase == "backward" else 1.0)
    factor = 2.25 if op.phase == "backward" else 1.9
    k = flop / max(2 * batch * queries * keys, 1.0)
    to.matmul(op, batch, queries, keys, k, num_bytes=op.num_bytes, factor=factor, sigma=0.25, ground=TRANSFER)


def _spatial(op: Op, key: str) -> float:
    return math.prod(float(size) for size in str(op.attrs[key]).split("x"))


CONV_PASS: dict[str, float] = {"forward": 1.0, "grad_input": 1.1, "grad_weight": 1.2}
"""Of fp32 kernels on the lanes."""
TURNED_PASSES = 2.0
"""Where a library has kernels for channels last only, it turns what they read and turns back what they write, so each byte moves
once more each way."""
UNTURNED = 1.15
"""Kernels that take images without channels last as they are, beside those with (inference of image models in both layouts)."""
CHANNEL_MULTIPLE = 8.0
"""Channels are padded to whole vectors of half precision."""
POINT_PASS: dict[str, float] = {"forward": 1.0, "grad_input": 1.0, "grad_weight": 1.1}
GATHERED_PASS: dict[str, float] = {"forward": 1.0, "grad_input": 1.15, "grad_weight": 1.2}
"""Beside a plain product: of kernels of one pixel, and of wider ones, which gather their operands or scatter their sums."""
NARROW_GROUP, NARROW_FACTOR, UNTURNED_GROUPS = 32.0, 0.55, 1.6
"""Kernels for few channels have tiles of 32, half of the least of plain products. Groups lose more without channels last, and
as much where turned images come in groups that run one by one."""
WIDEST_TILE = 256.0
DEPTHWISE_SHARE: dict[str, float] = {"forward": 0.125, "grad_input": 0.125, "grad_weight": 0.0625}
"""Of the lanes' peak: one multiplication per number that is loaded."""
DEPTHWISE_NCHW = 0.7
"""Of that share where a thread's neighbours are pixels and not channels."""
UNROLLED_TAPS, ROLLED_SHARE = (25.0, 49.0), (0.5, 0.17)
"""Without and with channels last: windows up to 5x5 and 7x7 have kernels of their own, in which the loop over the window is
unrolled; wider ones run in a general kernel at this share of their rate (convmixer, mixnet in both layouts)."""
WIDE_GROUP, WIDE_GROUP_SHARE, NARROW_GROUP_SHARE = 48.0, 5.8e-4, 0.25
"""Of the lanes' peak that gradients of grouped convolutions with channels last reach in libraries that have no kernel for them on
matrix units: groups of more channels run one by one, each at a rate that grows with its width."""
GROUPS_TOGETHER, ODD_GROUP_SHARE = 4.0, 2e-3
"""Kernels of those libraries take so many narrow groups at a time; another number of them runs one by one as well."""


def _prefers_lanes(device: Device, real: str) -> bool:
    """Whether Winograd's saving on the lanes beats matrix units that are hardly faster, as on GeForce cards in TF32."""
    peak, _ = product_flop_per_s(device, real)
    return real == "tf32" and WIDE_SM_SHARE * WINOGRAD * lanes_flop_per_s(device) > peak


def _conv(op: Op, to: _Collector) -> None:
    groups, inputs = _number(op, "groups"), _number(op, "in_channels")
    if _adds_bias(op):
        to.pointwise(2.0 * op.bytes_written, sigma=0.1)
    _copy_first(op, to)
    _, real = product_flop_per_s(to.device, op.dtype)
    strided = _spatial(op, "stride") > 1
    winograd = _spatial(op, "kernel") == 9 and not strided and groups == 1
    if groups == inputs and groups > 1:
        last, taps = bool(op.attrs.get("channels_last")), _spatial(op, "kernel")
        share = DEPTHWISE_SHARE[str(op.attrs["pass"])] * (1.0 if last else DEPTHWISE_NCHW)
        if taps > UNROLLED_TAPS[last]:
            share *= ROLLED_SHARE[last]
        to.add("lanes", (op.flop or 0.0, op.num_bytes, share), dtype=op.dtype, sigma=0.35, ground=TRANSFER)
    elif winograd and (not uses_matrix_units(to.device, real) or _prefers_lanes(to.device, real)):
        _winograd(op, to, lanes=not uses_matrix_units(to.device, real))
    elif to.on_matrix(op.dtype):
        _conv_on_matrix(op, to, real)
    else:
        m, n, k = _conv_sizes(op)
        taps, direction = _spatial(op, "kernel"), str(op.attrs["pass"])
        factor = CONV_PASS[direction] * (1.1 if taps == 1 else 1.25)
        if to.is_short(op.dtype):
            factor = (POINT_PASS if taps == 1 else GATHERED_PASS)[direction]
        to.matmul(op, groups, m, n, k, num_bytes=op.num_bytes, factor=factor, sigma=0.3, ground=TRANSFER)


def _adds_bias(op: Op) -> bool:
    """Whether a kernel of its own adds a bias to what the library's convolution wrote. Frameworks' own depthwise kernels add it
    themselves, compilers with whatever follows."""
    own = _number(op, "groups") == _number(op, "in_channels") > 1 and not op.attrs.get("channels_last")
    forward = str(op.attrs["pass"]) == "forward"
    return forward and len(op.reads) > 2 and not own and not op.attrs.get("fused_bias")


def _conv_sizes(op: Op) -> tuple[float, float, float]:
    """The implicit product of one group. All three passes are products of the same three sizes; libraries split the long sum of
    the weight gradient over the device, so none of them runs out of parallel work before the forward pass does."""
    groups = _number(op, "groups")
    m = _number(op, "batch") * _spatial(op, "out_size")
    return m, _number(op, "out_channels") / groups, _number(op, "in_channels") / groups * _spatial(op, "kernel")


def _winograd(op: Op, to: _Collector, *, lanes: bool) -> None:
    inputs, outputs = _number(op, "in_channels"), _number(op, "out_channels")
    direction = str(op.attrs["pass"])
    if direction == "grad_input":
        inputs, outputs = outputs, inputs
    row = (
        _number(op, "batch"), inputs, outputs, _number(op, "groups"), _spatial(op, "in_size"), _spatial(op, "out_size"),
        _spatial(op, "kernel"), 0.0, DTYPE_BYTES[op.dtype],
    )  # fmt: skip
    sigma, ground = (0.0, MEASURED) if direction == "forward" else (0.2, TRANSFER)
    to.add("conv", row, dtype=op.dtype if lanes else "fp32", factor=CONV_PASS[direction], sigma=sigma, ground=ground)


def _conv_on_matrix(op: Op, to: _Collector, real: str) -> None:
    groups, taps = _number(op, "groups"), _spatial(op, "kernel")
    direction = str(op.attrs["pass"])
    last = bool(op.attrs.get("channels_last"))
    if last and groups > 1 and direction != "forward" and op.attrs.get("grouped_gradients_on_lanes"):
        width = _number(op, "in_channels") / groups
        share = NARROW_GROUP_SHARE
        if _runs_one_by_one(groups, width):
            share = min(width * (WIDE_GROUP_SHARE if width > WIDE_GROUP else ODD_GROUP_SHARE), share)
        to.add("lanes", (op.flop or 0.0, op.num_bytes, share), dtype=op.dtype, sigma=0.5, ground=TRANSFER)
        return
    m, n, k = _pad_channels(op)
    factor = (POINT_PASS if taps == 1 else GATHERED_PASS)[direction]
    if n <= NARROW_GROUP and (groups > 1 or (taps > 1 and not op.attrs.get("wide_tiles"))):
        factor *= NARROW_FACTOR
    if real in HALF and not last:
        factor *= _turn_images(op, to)
    item = DTYPE_BYTES[op.dtype]
    columns = (groups, m, n, k, item * _gathered_numbers(op), item, op.num_bytes)
    to.add("product", columns, dtype=op.dtype, factor=factor, sigma=0.2, ground=TRANSFER)


def _pad_channels(op: Op) -> tuple[float, float, float]:
    """The implicit product with channels padded to whole vectors."""
    m, n, k = _conv_sizes(op)
    taps = _spatial(op, "kernel")
    n = math.ceil(n / CHANNEL_MULTIPLE) * CHANNEL_MULTIPLE
    if op.attrs["kernel"] == op.attrs["stride"]:
        # Patches that do not overlap are rows of a plain product.
        return m, n, math.ceil(k / CHANNEL_MULTIPLE) * CHANNEL_MULTIPLE
    multiple = CHANNEL_MULTIPLE if k / taps > CHANNEL_MULTIPLE / 2 else CHANNEL_MULTIPLE / 2
    return m, n, math.ceil(k / taps / multiple) * multiple * taps


def _turn_images(op: Op, to: _Collector) -> float:
    """What images without channels last cost a convolution in half precision: they are turned, or its kernel takes longer by
    the factor that is returned."""
    groups = _number(op, "groups")
    if not (op.attrs.get("turned_images") and op.attrs.get("training", True)):
        return UNTURNED if groups == 1 else UNTURNED_GROUPS
    to.pointwise(TURNED_PASSES * op.num_bytes, sigma=0.25)
    return UNTURNED_GROUPS if _runs_one_by_one(groups, _number(op, "in_channels") / groups) else 1.0


def _gathered_numbers(op: Op) -> float:
    """That multiprocessors fetch from L2 where a window overlaps its neighbours: one for each tap, for each pass over the
    outputs. The product that a convolution runs as is never written down, so DRAM does not see them."""
    taps = _spatial(op, "kernel")
    if taps == 1.0 or op.attrs["kernel"] == op.attrs["stride"]:
        return 0.0
    read, made = _number(op, "in_channels"), _number(op, "out_channels")
    if str(op.attrs["pass"]) == "grad_input":
        read, made = made, read
    columns = made / _number(op, "groups")
    return _number(op, "batch") * _spatial(op, "out_size") * read * taps * math.ceil(columns / WIDEST_TILE)


def _runs_one_by_one(groups: float, width: float) -> bool:
    return groups > 1 and (width > WIDE_GROUP or groups % GROUPS_TOGETHER > 0)


def _elementwise(op: Op, to: _Collector) -> None:
    heavy = HEAVY.get(str(op.attrs["function"]), 0.0)
    aligned = int(_number(op, "numel")) % 4 == 0
    known = op.phase == "forward" and op.dtype == "fp32"
    to.pointwise(
        op.num_bytes,
        inputs=_number(op, "num_inputs"),
        heavy=heavy,
        aligned=aligned,
        factor=TURNED_READS if op.attrs.get("turned_bytes") else 1.0,
        sigma=0.0 if known else 0.05,
        ground=MEASURED if known else TRANSFER,
    )


def _softmax(op: Op, to: _Collector) -> None:
    rows, cols = _number(op, "rows"), _number(op, "cols")
    item = DTYPE_BYTES[op.dtype]
    if op.phase == "backward":
        if op.num_kernels > 1:
            # PyTorch multiplies gradient and output in a kernel of its own before it reduces; fused kernels do not.
            to.pointwise(3 * item * rows * cols, inputs=2.0)
        to.add("softmax", (rows, cols, 3 * item * rows * cols), sigma=0.15, ground=TRANSFER)
    else:
        to.add("softmax", (rows, cols, 2 * item * rows * cols))


def _copy_first(op: Op, to: _Collector) -> None:
    """What lies in another order than the library's kernel takes is copied before it runs."""
    turned = op.attrs.get("turned_bytes")
    if turned:
        to.pointwise(2.0 * float(turned), factor=TURNED_READS, sigma=0.2)


def _norm(op: Op, to: _Collector) -> None:
    rows, cols = _number(op, "rows"), _number(op, "cols")
    item = DTYPE_BYTES[op.dtype]
    numel = rows * cols
    function = str(op.attrs["function"])
    _copy_first(op, to)
    if "batch" in function and not op.attrs.get("training", True):
        # In evaluation the statistics are given: one pass.
        to.pointwise(op.num_bytes, inputs=2.0, sigma=0.1)
    elif "batch" in function:
        _batch_norm(op, to)
    elif "group" in function or "instance" in function:
        # Statistics and application are two passes, in either direction.
        first, second = (2, 3) if op.phase == "backward" else (1, 2)
        to.pointwise(first * item * numel, sigma=0.15)
        to.pointwise(second * item * numel, inputs=2.0, sigma=0.15)
    elif op.attrs.get("fused"):
        # A row stays in registers, so it is read once.
        passes, factor = (3, 1.3) if op.phase == "backward" else (2, 1.1)
        to.pointwise(passes * item * numel, inputs=passes - 1.0, factor=factor, sigma=0.15)
    elif op.phase == "backward":
        to.add("norm", (rows, cols, 3 * item * numel), sigma=0.15, ground=TRANSFER)
        # Sums over rows for weight and bias: columns of a tile wait for each other.
        to.pointwise(2 * item * numel, inputs=2.0, factor=1.5, sigma=0.15)
    else:
        known = "layer" in function
        to.add("norm", (rows, cols, 2 * item * numel), ground=MEASURED if known else TRANSFER)


def _batch_norm(op: Op, to: _Collector) -> None:
    """One block of threads for each channel. What a multiprocessor holds is read once, else once more after the statistics; few
    channels leave multiprocessors idle."""
    channels, per_channel = _number(op, "rows"), _number(op, "cols")
    item = DTYPE_BYTES[op.dtype]
    if op.attrs.get("channels_last"):
        _batch_norm_of_rows(op, to)
        return
    held = item * per_channel * (2.0 if op.phase == "backward" else 1.0) <= HELD_BYTES_PER_SM
    if op.phase == "backward":
        passes = 3.0 if held else 5.0
    else:
        passes = 2.0 if held else 3.0
    moved = passes * item * channels * per_channel
    to.add("blocks", (channels, passes * item * per_channel, moved), dtype=op.dtype, sigma=0.15, ground=TRANSFER)


def _batch_norm_of_rows(op: Op, to: _Collector) -> None:
    """Blocks of threads go down the pixels, so all are busy however few channels there are; what the device's multiprocessors
    hold between statistics and application is read once."""
    channels, item = _number(op, "rows"), DTYPE_BYTES[op.dtype]
    whole = item * channels * _number(op, "cols")
    operands = 2.0 if op.phase == "backward" else 1.0
    held = min(1.0, HELD_BYTES_PER_SM * float(to.device.num_sm or UNKNOWN_SM) / max(operands * whole, 1.0))
    passes = operands * (2.0 - held) + 1.0
    padded = math.ceil(channels / NORM_CHANNELS) * NORM_CHANNELS / channels
    to.pointwise(passes * whole * padded, inputs=2.0, sigma=0.15)


def _compiled(op: Op, to: _Collector) -> None:
    """A generated kernel: its bytes once, and the input once more where statistics run over the whole batch."""
    moved, factor = op.num_bytes, 1.0
    if op.kind == "norm" and op.attrs.get("training", True) and not _finds_sums(op, to):
        moved += DTYPE_BYTES[op.dtype] * _number(op, "rows") * _number(op, "cols")
    elif op.kind in ("index", "embedding"):
        factor = 1.6
    if op.attrs.get("strided_sum"):
        factor *= STRIDED_SUM
    to.pointwise(moved, inputs=2.0, factor=factor, sigma=0.2)


def _finds_sums(op: Op, to: _Collector) -> bool:
    """Whether a norm reads its input once: its sums run over a row that a kernel holds, or the convolution before it made them,
    as some libraries do, and compilers for systolic arrays while results lie in the scratchpad."""
    function = str(op.attrs["function"])
    if not any(word in function for word in ("batch", "group", "instance")):
        return True
    made = to.systolic or (bool(op.attrs.get("given_statistics")) and "instance" not in function)
    return op.phase == "forward" and made


def _reduce(op: Op, to: _Collector) -> None:
    to.pointwise(op.num_bytes, factor=SUM_FACTOR, sigma=0.25)


SORT_BYTES, SORT_KERNELS = 360.0, 12.0
"""Of a radix sort of pairs of 64-bit numbers, for each pair: eight passes that read and write both, and their counts."""


def _embedding(op: Op, to: _Collector) -> None:
    rows, cols, vocab = _number(op, "rows"), _number(op, "cols"), _number(op, "vocab")
    item = DTYPE_BYTES[op.dtype]
    if op.phase == "backward":
        # An empty table (unless only the rows that were read get a gradient), the ids sorted by digits (a dozen short
        # kernels), then each id's rows fetched and summed.
        if not op.attrs.get("sparse"):
            to.pointwise(item * vocab * cols, factor=1.0, sigma=0.3)
        to.pointwise(SORT_BYTES * rows / SORT_KERNELS, factor=SORT_KERNELS, sigma=0.4)
        to.pointwise(1.1 * item * rows * cols, factor=1.6, sigma=0.4)
    else:
        to.pointwise(2 * item * rows * cols, factor=1.6, sigma=0.3)


def _moves(factor: float, sigma: float, ground: int = TRANSFER) -> Callable[[Op, _Collector], None]:
    """An op that streams its bytes once, `factor` times slower than an elementwise kernel."""

    def add(op: Op, to: _Collector) -> None:
        to.pointwise(op.num_bytes, factor=factor, sigma=sigma, ground=ground)

    return add


def _pool(op: Op, to: _Collector) -> None:
    """Windows that overlap are read from caches; the backward pass finds its places again by index."""
    to.pointwise(op.num_bytes, factor=2.0 if op.attrs.get("training", True) else 1.1, sigma=0.35)


USUAL_SM = 100
STEP_TILE = (64, 128)
"""Rows and columns of a step's product that one core makes."""
_GATES = {"lstm": 4.0, "gru": 3.0, "rnn": 1.0}


def _rnn(op: Op, to: _Collector) -> None:
    """The products of all inputs at once, then one small product per time step, each waiting for the one before. Layers and
    directions step side by side, each layer one step behind the one below it (Appleyard et al. 2016). Gradients of weights need
    no steps: they are one product over all of them."""
    gates = next((count for name, count in _GATES.items() if name in str(op.attrs["cell"]).lower()), 1.0)
    batch, length, hidden = _number(op, "batch"), _number(op, "length"), _number(op, "hidden")
    layers, directions = _number(op, "layers"), _number(op, "directions")
    backward, rows, width = op.phase == "backward", batch * length, gates * hidden
    for inputs, times in ((_number(op, "inputs"), directions), (directions * hidden, (layers - 1) * directions)):
        if times:
            factor = times * (2.0 if backward else 1.0)
            to.matmul(op, 1, rows, width, inputs, factor=factor, sigma=0.35, ground=TRANSFER)
    # Layers step side by side on the cores that tiles of one of them leave free.
    tiles = max(1, math.ceil(batch / STEP_TILE[0]) * math.ceil(width / STEP_TILE[1]))
    stacks = layers * directions
    beside = max(1.0, min(stacks, (to.device.num_sm or USUAL_SM) / tiles))
    steps, item = (length + layers - 1) * stacks / beside, DTYPE_BYTES[op.dtype]
    # Gates of the inputs and of the state come in, gates are kept; the cell is read, cell and state are written.
    moved = item * batch * hidden * (3 * gates + 3)
    # Every step reads the weights and the state that the one before it has read.
    capacity = REUSE_OF_L2 * (to.device.l2_bytes or 0.0)
    before, to.resident = to.resident, min(1.0, capacity / max(1.0, stacks * (item * hidden * width + moved)))
    to.matmul(op, beside, batch, width, hidden, factor=steps, sigma=0.45, ground=TRANSFER)
    to.pointwise(beside * moved, factor=steps, sigma=0.35)
    to.resident = before
    if backward:
        to.matmul(op, 1, width, hidden, rows, factor=layers * directions, sigma=0.35, ground=TRANSFER)


def _copy(op: Op, to: _Collector) -> None:
    """A change of format streams; a change of order reads or writes in short runs."""
    if op.attrs.get("products_by_sample"):
        return
    turned = bool(op.attrs.get("turned_bytes")) or str(op.attrs["function"]) not in STREAMED_COPIES
    to.pointwise(op.num_bytes, factor=TURNED_READS if turned else 1.0, sigma=0.2 if turned else 0.1)


def _other(op: Op, to: _Collector) -> None:
    """Only the bound: its bytes, or its arithmetic at a third of the lanes' peak if that takes longer."""
    arithmetic_s = 3.0 * (op.flop or 0.0) / lanes_flop_per_s(to.device)
    num_bytes = max(op.num_bytes, arithmetic_s * to.device.memory_bytes_per_s)
    to.pointwise(num_bytes, factor=1.3, sigma=0.8, ground=BOUND)


_KINDS: dict[str, Callable[[Op, _Collector], None]] = {
    "matmul": _matmul,
    "attention": _attention,
    "conv": _conv,
    "elementwise": _elementwise,
    "softmax": _softmax,
    "norm": _norm,
    "reduce": _reduce,
    "embedding": _embedding,
    "index": _moves(2.0, 0.5),
    "pool": _pool,
    "rnn": _rnn,
    "optimizer": _moves(1.1, 0.2),
    "dropout": _moves(1.1, 0.15),
    "copy": _copy,
    "sort": _moves(10.0, 0.8, BOUND),
    "random": _moves(1.2, 0.4),
    "other": _other,
}
