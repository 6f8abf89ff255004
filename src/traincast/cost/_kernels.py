"""Ops to kernels: which family each kernel belongs to, its columns, and how far it is from what was measured.

Kinds that were measured (matmul, 3x3 convolution, elementwise, softmax, layer norm) map to their own family. The others are
carried over by counting what the real kernels of PyTorch move and multiply, and carry a wider spread.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincast.catalog import read_constant_table, read_constants
from traincast.cost._alignment import copied_bytes, misalignment
from traincast.cost._attention import CONSTANTS as ATTENTION
from traincast.cost._bounds import CONSTANTS as BOUNDS
from traincast.cost._bounds import (
    generation,
    is_systolic,
    lanes_flop_per_s,
    product_flop_per_s,
    scales_blocks,
    uses_matrix_units,
)
from traincast.cost._features import CONSTANTS as OPERATORS
from traincast.cost._products import CONSTANTS as MATMUL_CONSTANTS
from traincast.errors import UnknownName
from traincast.noun import noun
from traincast.spec import Device, Op
from traincast.units import DTYPE_BYTES

Array = NDArray[np.float64]
MEASURED, TRANSFER, BOUND = 0, 1, 2
HALF = ("fp16", "bf16", "fp8", "fp4")
STREAMED_COPIES = ("cast", "fill", "copy")


@noun
class KernelConstants:
    """Of the document `kernels`, which says what each is."""

    heavy: Mapping[str, float]
    vector: float
    halves_per_sm_cycle: float
    bend: float
    handed_on: int
    reuse_of_l2: float
    held_bytes_per_sm: float
    longest_sum: float
    split_tile: float
    split_sm: int
    turned_reads: float
    norm_channels: float
    promotion_share: float
    conv_pass: Mapping[str, float]
    lane_window: float
    lane_point: float
    turned_passes: float
    unturned: float
    unturned_groups: float
    channel_multiple: float
    point_pass: Mapping[str, float]
    gathered_pass: Mapping[str, float]
    narrow_group: float
    narrow_factor: float
    widest_tile: float
    depthwise_share: Mapping[str, float]
    depthwise_nchw: float
    unrolled_taps: tuple[float, float]
    rolled_share: tuple[float, float]
    wide_group: float
    wide_group_share: float
    narrow_group_share: float
    groups_together: float
    odd_group_share: float
    sort_bytes: float
    sort_kernels: float
    summed_rows: float
    usual_sm: int
    step_tile: tuple[int, int]
    gates: Mapping[str, float]
    unknown_arithmetic: float


@noun
class Rule:
    """Of the document `kernel_rules`: how much longer than the family's own kernels, and what that adds to the error."""

    factor: float
    log_sigma: float


CONSTANTS = read_constants(KernelConstants, "kernels")
RULES = read_constant_table(Rule, "kernel_rules")


@noun
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
    """Share of its bytes in L2: what every time step of a recurrent network reads again."""


KernelGroups = dict[tuple[str, str], Kernels]
"""By family and number format."""


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

    def add(self, family: str, columns: tuple[float, ...], rule: str = "", *, dtype: str = "fp32", factor: float = 1.0,
            sigma: float = 0.0, ground: int | None = None) -> None:  # fmt: skip
        """A kernel of a family, or as the rule says what is like one: such a kernel was not measured itself."""
        if rule:
            known = RULES[rule]
            factor, sigma = factor * known.factor, math.hypot(sigma, known.log_sigma) if sigma else known.log_sigma
        ground = ground if ground is not None else TRANSFER if rule else MEASURED
        self.rows.setdefault((family, dtype), []).append((self.owner, factor, sigma, ground, self.resident, *columns))

    def stream(self, rule: str, num_bytes: float, *, inputs: float = 1.0, heavy: float = 0.0, aligned: bool = True,
               times: float = 1.0, ground: int = TRANSFER) -> None:  # fmt: skip
        """A kernel that reads and writes so many bytes."""
        known = RULES[rule]
        # As `add` does, without another call: these are most of what is priced.
        self.rows.setdefault(("pointwise", "fp32"), []).append((
            self.owner, times * known.factor * self.in_flight, 0.0 if ground == MEASURED else known.log_sigma, ground,
            self.resident, num_bytes, inputs, heavy, float(aligned),
        ))  # fmt: skip

    def matmul(self, op: Op, batch: float, m: float, n: float, k: float, rule: str = "", *, transposed: bool = False,
               num_bytes: float | None = None, factor: float = 1.0) -> None:  # fmt: skip
        item = DTYPE_BYTES[op.dtype]
        moved = item * batch * (m * k + k * n + m * n) if num_bytes is None else num_bytes
        family = "product" if self.is_short(op.dtype) else "matmul"
        self.add(family, (batch, m, n, k, float(transposed), item, moved), rule, dtype=op.dtype, factor=factor)

    def collect(self) -> KernelGroups:
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
        return groups


def list_kernels(ops: Sequence[Op], device: Device) -> KernelGroups:
    collector = _Collector(device)
    vectors = {True: short_vectors(device, numbers=1.0), False: short_vectors(device)}
    for index, op in enumerate(ops):
        short = op.attrs.get("short_vectors") and "compiled" not in op.attrs
        collector.in_flight = vectors[op.kind == "embedding"] if short else 1.0
        collector.owner = index
        if collector.systolic and op.kind == "conv":
            op = _take_slices(op, ops[max(0, index - CONSTANTS.handed_on) : index])
        if "compiled" in op.attrs:
            _compiled(op, collector)
        else:
            _KINDS[op.kind](op, collector)
    return collector.collect()


def short_vectors(device: Device, *, numbers: float = CONSTANTS.vector) -> float:
    """How much longer streams of half precision take than DRAM alone would: four numbers are eight bytes for each thread in
    flight, which fills memory that is fast beside its multiprocessors only in part (Little 1961)."""
    if device.num_sm is None or device.clock_hz is None:
        return 1.0
    flow = CONSTANTS.halves_per_sm_cycle * numbers / CONSTANTS.vector * device.num_sm * device.clock_hz
    asked = device.memory_bytes_per_s / flow
    return float((1.0 + asked**CONSTANTS.bend) ** (1.0 / CONSTANTS.bend))


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


def _number(op: Op, key: str) -> float:
    return float(op.attrs[key])


GROUPED = "grouped_mm"
"""In the name of an operator that runs the products of all experts in one launch."""


def _matmul(op: Op, to: _Collector) -> None:
    attrs = op.attrs
    batch, m, n, k = float(attrs["batch"]), float(attrs["m"]), float(attrs["n"]), float(attrs["k"])
    if batch == 1.0 and min(m, n) == 1.0:
        # A matrix and a vector: every number is read once and used once.
        to.stream("matrix_vector", op.num_bytes)
        return
    if to.on_matrix(op.dtype):
        slower, doubt = misalignment(op, to.device)
        if op.attrs.get("pads") and (copied := copied_bytes(op, to.device)):
            to.stream("pad_copy", copied)
        item = DTYPE_BYTES[op.dtype]
        moved = batch * (item * (m * k + k * n) + max(item, 2.0) * m * n)
        block = float(attrs.get("scale_block", 0.0))
        if block and product_flop_per_s(to.device, op.dtype)[1] == "fp8" and not scales_blocks(to.device):
            # Sums of every block are scaled and added on the lanes.
            promoted = 2.0 * batch * m * n * k / block
            to.add("lanes", (promoted, 0.0, CONSTANTS.promotion_share), "block_scales", dtype=op.dtype)
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
    if k >= 2 * CONSTANTS.longest_sum and not to.is_short(op.dtype):
        tile = CONSTANTS.split_tile
        tiles = max(1.0, batch * math.ceil(m / tile) * math.ceil(n / tile))
        parts = math.floor(min((to.device.num_sm or CONSTANTS.split_sm) / tiles, k / CONSTANTS.longest_sum))
    if parts > 1:
        to.matmul(op, batch * parts, m, n, k / parts, "split_sum", transposed=transposed, num_bytes=op.num_bytes)
        to.stream("sum", (parts + 1) * 4 * batch * m * n)
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
    to.add("product", columns, "by_sample", dtype=op.dtype, factor=slower, sigma=doubt)
    if summed:
        to.stream("sum", (samples + 1.0) * item * m * n)


def find_attention_kernel(op: Op, device: Device) -> str:
    """The generation of a fused kernel: as the op says, as its operator's name tells, else what frameworks choose here."""
    said = op.attrs.get("kernel")
    if said is not None:
        if said not in ATTENTION.kernels:
            raise UnknownName("attention kernel", str(said), ATTENTION.kernels)
        return str(said)
    if "cudnn" in op.name:
        return "cudnn"
    if "efficient" in op.name:
        return "efficient"
    if generation(device) < BOUNDS.generations["ampere"]:
        # FlashAttention-2 has no kernels for Volta and Turing; frameworks run the memory-efficient one there.
        return "efficient"
    return "cudnn" if generation(device) >= BOUNDS.generations["blackwell"] else "flash-2"


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
    if size % ATTENTION.head_multiple:
        # Inputs are copied to a padded head and the result is cut back.
        to.stream("head_padding", 2.0 * moved)
    columns = (
        float(attrs["batch"]) * float(attrs["heads"]), queries, keys, width, float(attrs["causal"]),
        float(attrs.get("window") or keys), backward, ATTENTION.kernels[kernel],
        float(kernel in ATTENTION.register_fed_kernels), moved,
    )  # fmt: skip
    doubt = "attention_doubt" if backward or kernel == "efficient" else ""
    to.add("attention", columns, doubt, dtype=op.dtype)


def _backward_bytes(op: Op, kernel: str) -> float:
    """What the backward kernels move beside their operands: gradients of queries are summed in fp32 and then rounded, and those
    of keys and values are written for every head of queries and then summed where heads share them (cuDNN sums in its kernel)."""
    attrs = op.attrs
    size = float(attrs["head_dim"])
    heads = float(attrs["batch"]) * float(attrs["heads"])
    moved = 8 * heads * float(attrs["q_len"]) * size
    if float(attrs.get("kv_heads", attrs["heads"])) < float(attrs["heads"]) and kernel != "cudnn":
        wide = size + float(attrs.get("value_dim", size))
        moved += 2.0 * DTYPE_BYTES[op.dtype] * heads * float(attrs["kv_len"]) * wide
    return moved


def _attention_on_lanes(op: Op, to: _Collector) -> None:
    """One fused kernel: products that never leave the chip, at a share of what plain products reach."""
    batch = _number(op, "batch") * _number(op, "heads")
    queries, keys, size = _number(op, "q_len"), _number(op, "kv_len"), _number(op, "head_dim")
    backward = op.phase == "backward"
    flop = op.flop or 4 * batch * queries * keys * size * (ATTENTION.backward_flop if backward else 1.0)
    k = flop / max(2 * batch * queries * keys, 1.0)
    rule = "attention_on_lanes_backward" if backward else "attention_on_lanes"
    to.matmul(op, batch, queries, keys, k, rule, num_bytes=op.num_bytes)


def _spatial(op: Op, key: str) -> float:
    return math.prod(float(size) for size in str(op.attrs[key]).split("x"))


def _prefers_lanes(device: Device, real: str) -> bool:
    """Whether Winograd's saving on the lanes beats matrix units that are hardly faster, as on GeForce cards in TF32."""
    peak, _ = product_flop_per_s(device, real)
    return real == "tf32" and BOUNDS.wide_sm_share * OPERATORS.winograd * lanes_flop_per_s(device) > peak


def _conv(op: Op, to: _Collector) -> None:
    groups, inputs = _number(op, "groups"), _number(op, "in_channels")
    if _adds_bias(op):
        to.stream("bias", 2.0 * op.bytes_written)
    _copy_first(op, to)
    _, real = product_flop_per_s(to.device, op.dtype)
    strided = _spatial(op, "stride") > 1
    winograd = _spatial(op, "kernel") == 9 and not strided and groups == 1
    if groups == inputs and groups > 1:
        last, taps = bool(op.attrs.get("channels_last")), _spatial(op, "kernel")
        share = CONSTANTS.depthwise_share[str(op.attrs["pass"])] * (1.0 if last else CONSTANTS.depthwise_nchw)
        if taps > CONSTANTS.unrolled_taps[last]:
            share *= CONSTANTS.rolled_share[last]
        to.add("lanes", (op.flop or 0.0, op.num_bytes, share), "depthwise", dtype=op.dtype)
    elif winograd and (not uses_matrix_units(to.device, real) or _prefers_lanes(to.device, real)):
        _winograd(op, to, lanes=not uses_matrix_units(to.device, real))
    elif to.on_matrix(op.dtype):
        _conv_on_matrix(op, to, real)
    else:
        m, n, k = _conv_sizes(op)
        taps, direction = _spatial(op, "kernel"), str(op.attrs["pass"])
        factor = CONSTANTS.conv_pass[direction] * (CONSTANTS.lane_point if taps == 1 else CONSTANTS.lane_window)
        if to.is_short(op.dtype):
            factor = (CONSTANTS.point_pass if taps == 1 else CONSTANTS.gathered_pass)[direction]
        to.matmul(op, groups, m, n, k, "conv_on_lanes", num_bytes=op.num_bytes, factor=factor)


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
    rule = "" if direction == "forward" else "winograd_gradient"
    to.add("conv", row, rule, dtype=op.dtype if lanes else "fp32", factor=CONSTANTS.conv_pass[direction])


def _conv_on_matrix(op: Op, to: _Collector, real: str) -> None:
    groups, taps = _number(op, "groups"), _spatial(op, "kernel")
    direction = str(op.attrs["pass"])
    last = bool(op.attrs.get("channels_last"))
    if last and groups > 1 and direction != "forward" and op.attrs.get("grouped_gradients_on_lanes"):
        width = _number(op, "in_channels") / groups
        share = CONSTANTS.narrow_group_share
        if _runs_one_by_one(groups, width):
            wide = width > CONSTANTS.wide_group
            share = min(width * (CONSTANTS.wide_group_share if wide else CONSTANTS.odd_group_share), share)
        to.add("lanes", (op.flop or 0.0, op.num_bytes, share), "grouped_gradient", dtype=op.dtype)
        return
    m, n, k = _pad_channels(op)
    factor = (CONSTANTS.point_pass if taps == 1 else CONSTANTS.gathered_pass)[direction]
    if n <= CONSTANTS.narrow_group and (groups > 1 or (taps > 1 and not op.attrs.get("wide_tiles"))):
        factor *= CONSTANTS.narrow_factor
    if real in HALF and not last:
        factor *= _turn_images(op, to)
    item = DTYPE_BYTES[op.dtype]
    columns = (groups, m, n, k, item * _gathered_numbers(op), item, op.num_bytes)
    to.add("product", columns, "conv_on_matrix", dtype=op.dtype, factor=factor)


def _pad_channels(op: Op) -> tuple[float, float, float]:
    """The implicit product with channels padded to whole vectors."""
    m, n, k = _conv_sizes(op)
    taps, whole = _spatial(op, "kernel"), CONSTANTS.channel_multiple
    n = math.ceil(n / whole) * whole
    if op.attrs["kernel"] == op.attrs["stride"]:
        # Patches that do not overlap are rows of a plain product.
        return m, n, math.ceil(k / whole) * whole
    multiple = whole if k / taps > whole / 2 else whole / 2
    return m, n, math.ceil(k / taps / multiple) * multiple * taps


def _turn_images(op: Op, to: _Collector) -> float:
    """What images without channels last cost a convolution in half precision: they are turned, or its kernel takes longer by
    the factor that is returned."""
    groups = _number(op, "groups")
    if not (op.attrs.get("turned_images") and op.attrs.get("training", True)):
        return CONSTANTS.unturned if groups == 1 else CONSTANTS.unturned_groups
    to.stream("turned_images", CONSTANTS.turned_passes * op.num_bytes)
    return CONSTANTS.unturned_groups if _runs_one_by_one(groups, _number(op, "in_channels") / groups) else 1.0


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
    return _number(op, "batch") * _spatial(op, "out_size") * read * taps * math.ceil(columns / CONSTANTS.widest_tile)


def _runs_one_by_one(groups: float, width: float) -> bool:
    return groups > 1 and (width > CONSTANTS.wide_group or groups % CONSTANTS.groups_together > 0)


def _elementwise(op: Op, to: _Collector) -> None:
    known = op.phase == "forward" and op.dtype == "fp32"
    to.stream(
        "elementwise", op.num_bytes, inputs=_number(op, "num_inputs"),
        heavy=CONSTANTS.heavy.get(str(op.attrs["function"]), 0.0), aligned=int(_number(op, "numel")) % 4 == 0,
        times=CONSTANTS.turned_reads if op.attrs.get("turned_bytes") else 1.0, ground=MEASURED if known else TRANSFER,
    )  # fmt: skip


def _softmax(op: Op, to: _Collector) -> None:
    rows, cols = _number(op, "rows"), _number(op, "cols")
    item = DTYPE_BYTES[op.dtype]
    if op.phase == "backward":
        if op.num_kernels > 1:
            # PyTorch multiplies gradient and output in a kernel of its own before it reduces; fused kernels do not.
            to.stream("softmax_product", 3 * item * rows * cols, inputs=2.0)
        to.add("softmax", (rows, cols, 3 * item * rows * cols), "softmax_backward")
    else:
        to.add("softmax", (rows, cols, 2 * item * rows * cols))


def _copy_first(op: Op, to: _Collector) -> None:
    """What lies in another order than the library's kernel takes is copied before it runs."""
    turned = op.attrs.get("turned_bytes")
    if turned:
        to.stream("turned_input", 2.0 * float(turned))


def _norm(op: Op, to: _Collector) -> None:
    rows, cols = _number(op, "rows"), _number(op, "cols")
    item = DTYPE_BYTES[op.dtype]
    numel = rows * cols
    function = str(op.attrs["function"])
    _copy_first(op, to)
    if "batch" in function and not op.attrs.get("training", True):
        # In evaluation the statistics are given: one pass.
        to.stream("norm_evaluation", op.num_bytes, inputs=2.0)
    elif "batch" in function:
        _batch_norm(op, to)
    elif "group" in function or "instance" in function:
        # Statistics and application are two passes, in either direction.
        first, second = (2, 3) if op.phase == "backward" else (1, 2)
        to.stream("norm_by_group", first * item * numel)
        to.stream("norm_by_group", second * item * numel, inputs=2.0)
    elif op.attrs.get("fused"):
        # A row stays in registers, so it is read once.
        passes, rule = (3, "norm_fused_backward") if op.phase == "backward" else (2, "norm_fused")
        to.stream(rule, passes * item * numel, inputs=passes - 1.0)
    elif op.phase == "backward":
        to.add("norm", (rows, cols, 3 * item * numel), "norm_backward")
        to.stream("norm_weights", 2 * item * numel, inputs=2.0)
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
    held = item * per_channel * (2.0 if op.phase == "backward" else 1.0) <= CONSTANTS.held_bytes_per_sm
    passes = (3 if held else 5) if op.phase == "backward" else (2 if held else 3)
    moved = passes * item * channels * per_channel
    to.add("blocks", (channels, passes * item * per_channel, moved), "batch_norm", dtype=op.dtype)


def _batch_norm_of_rows(op: Op, to: _Collector) -> None:
    """Blocks of threads go down the pixels, so all are busy however few channels there are; what the device's multiprocessors
    hold between statistics and application is read once."""
    channels, item = _number(op, "rows"), DTYPE_BYTES[op.dtype]
    whole = item * channels * _number(op, "cols")
    operands = 2.0 if op.phase == "backward" else 1.0
    num_sm = float(to.device.num_sm or MATMUL_CONSTANTS.unknown_sm)
    held = min(1.0, CONSTANTS.held_bytes_per_sm * num_sm / max(operands * whole, 1.0))
    passes = operands * (2.0 - held) + 1.0
    padded = math.ceil(channels / CONSTANTS.norm_channels) * CONSTANTS.norm_channels / channels
    to.stream("batch_norm", passes * whole * padded, inputs=2.0)


def _compiled(op: Op, to: _Collector) -> None:
    """A generated kernel: its bytes once, and the input once more where statistics run over the whole batch."""
    moved = op.num_bytes
    if op.kind == "norm" and op.attrs.get("training", True) and not _finds_sums(op, to):
        moved += DTYPE_BYTES[op.dtype] * _number(op, "rows") * _number(op, "cols")
    rule = "compiled_gather" if op.kind in ("index", "embedding") else "compiled"
    to.stream(rule, moved, inputs=2.0)


def _finds_sums(op: Op, to: _Collector) -> bool:
    """Whether a norm reads its input once: its sums run over a row that a kernel holds, or the convolution before it made them,
    as some libraries do, and compilers for systolic arrays while results lie in the scratchpad."""
    function = str(op.attrs["function"])
    if not any(word in function for word in ("batch", "group", "instance")):
        return True
    made = to.systolic or (bool(op.attrs.get("statistics_in_convolutions")) and "instance" not in function)
    return op.phase == "forward" and made


def _embedding(op: Op, to: _Collector) -> None:
    rows, cols, vocab = _number(op, "rows"), _number(op, "cols"), _number(op, "vocab")
    item = DTYPE_BYTES[op.dtype]
    if op.phase == "backward":
        # An empty table (unless only the rows that were read get a gradient), the ids sorted by digits (a dozen short
        # kernels), then each id's rows fetched and summed.
        if not op.attrs.get("sparse"):
            to.stream("embedding_table", item * vocab * cols)
        to.stream("embedding_sort", CONSTANTS.sort_bytes * rows / CONSTANTS.sort_kernels, times=CONSTANTS.sort_kernels)
        to.stream("embedding_sum", CONSTANTS.summed_rows * item * rows * cols)
    else:
        to.stream("embedding", 2 * item * rows * cols)


def _moves(rule: str, ground: int = TRANSFER) -> Callable[[Op, _Collector], None]:
    """An op that streams its bytes once."""

    def add(op: Op, to: _Collector) -> None:
        to.stream(rule, op.num_bytes, ground=ground)

    return add


def _pool(op: Op, to: _Collector) -> None:
    to.stream("pool" if op.attrs.get("training", True) else "pool_evaluation", op.num_bytes)


def _rnn(op: Op, to: _Collector) -> None:
    """The products of all inputs at once, then one small product per time step, each waiting for the one before. Layers and
    directions step side by side, each layer one step behind the one below it (Appleyard et al. 2016). Gradients of weights need
    no steps: they are one product over all of them."""
    gates = next((count for name, count in CONSTANTS.gates.items() if name in str(op.attrs["cell"]).lower()), 1.0)
    batch, length, hidden = _number(op, "batch"), _number(op, "length"), _number(op, "hidden")
    layers, directions = _number(op, "layers"), _number(op, "directions")
    backward, rows, width = op.phase == "backward", batch * length, gates * hidden
    for inputs, times in ((_number(op, "inputs"), directions), (directions * hidden, (layers - 1) * directions)):
        if times:
            factor = times * (2.0 if backward else 1.0)
            to.matmul(op, 1, rows, width, inputs, "rnn", factor=factor)
    # Layers step side by side on the cores that tiles of one of them leave free.
    tall, wide = CONSTANTS.step_tile
    tiles = max(1, math.ceil(batch / tall) * math.ceil(width / wide))
    stacks = layers * directions
    beside = max(1.0, min(stacks, (to.device.num_sm or CONSTANTS.usual_sm) / tiles))
    steps, item = (length + layers - 1) * stacks / beside, DTYPE_BYTES[op.dtype]
    # Gates of the inputs and of the state come in, gates are kept; the cell is read, cell and state are written.
    moved = item * batch * hidden * (3 * gates + 3)
    # Every step reads the weights and the state that the one before it has read.
    capacity = CONSTANTS.reuse_of_l2 * (to.device.l2_bytes or 0.0)
    to.resident = min(1.0, capacity / max(1.0, stacks * (item * hidden * width + moved)))
    to.matmul(op, beside, batch, width, hidden, "rnn_step", factor=steps)
    to.stream("rnn_gates", beside * moved, times=steps)
    to.resident = 0.0
    if backward:
        to.matmul(op, 1, width, hidden, rows, "rnn", factor=layers * directions)


def _copy(op: Op, to: _Collector) -> None:
    """A change of format streams; a change of order reads or writes in short runs."""
    if op.attrs.get("products_by_sample"):
        return
    turned = bool(op.attrs.get("turned_bytes")) or str(op.attrs["function"]) not in STREAMED_COPIES
    to.stream("copy_turned" if turned else "copy", op.num_bytes)


def _other(op: Op, to: _Collector) -> None:
    """Only the bound: its bytes, or its arithmetic at a third of the lanes' peak if that takes longer."""
    arithmetic_s = CONSTANTS.unknown_arithmetic * (op.flop or 0.0) / lanes_flop_per_s(to.device)
    num_bytes = max(op.num_bytes, arithmetic_s * to.device.memory_bytes_per_s)
    to.stream("other", num_bytes, ground=BOUND)


_KINDS: dict[str, Callable[[Op, _Collector], None]] = {
    "matmul": _matmul,
    "attention": _attention,
    "conv": _conv,
    "elementwise": _elementwise,
    "softmax": _softmax,
    "norm": _norm,
    "reduce": _moves("sum"),
    "embedding": _embedding,
    "index": _moves("index"),
    "pool": _pool,
    "rnn": _rnn,
    "optimizer": _moves("optimizer"),
    "dropout": _moves("dropout"),
    "copy": _copy,
    "sort": _moves("sort", BOUND),
    "random": _moves("random"),
    "other": _other,
}
