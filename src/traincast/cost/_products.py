"""Products on matrix units to seconds: tiles on multiprocessors, traffic, and the clock that power leaves.

A lone kernel runs near its boost clock; a training step runs for minutes at the power limit. Every term falls or stays where a
rate, a bandwidth or a cache of the device grows, so a faster device is never slower.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincast.catalog import read_constants
from traincast.cost._bounds import CONSTANTS as BOUNDS
from traincast.cost._bounds import (
    find_silicon,
    is_systolic,
    l2_bytes_per_s,
    lanes_flop_per_s,
    product_flop_per_s,
    watts_per_need,
)
from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Device

Array = NDArray[np.float64]


@noun
class MatmulConstants:
    """Of the document `matmuls`, which says what each is."""

    tiles: tuple[tuple[int, int], ...]
    splits: tuple[int, ...]
    long_sum: float
    more_splits: tuple[int, ...]
    sharpness: float
    longest_fill: float
    array: float
    array_share: float
    unknown_sm: float
    unknown_l2_bytes: float
    blocks_per_sm: float
    block_bytes_per_cycle: float
    own_shares: float
    gathered_bytes_per_sm_cycle: float
    easy_flop_per_sm_cycle: float
    easy_gain: float
    boost: float


CONSTANTS = read_constants(MatmulConstants, "matmuls")


@noun
class TileLaw:
    """What tiles cost on matrix units of one kind."""

    wave_loss: float
    """Share of an unfilled last wave that is lost: all of it where one block of threads computes one tile, less where blocks stay
    and share the last tiles."""
    fill: float
    """Steps of the sum that filling and draining a tile's pipeline costs."""
    split_fill: float
    """The same of a split sum, as a multiple."""
    share: tuple[float, float, float]
    """Rate of tiles of 128x128, 128x64 and 64x64 beside the largest: small tiles fetch more operands for each product."""


@noun
class ProductLaw:
    """The constants of one group of number formats. Fitted by research/fits/kernels."""

    cap: float
    """Best share of the peak that large products reach at full clock."""
    joules_per_flop: float
    """In 16 bits, on silicon of energy 1."""
    energy: Mapping[str, float]
    """Of silicons whose kernels were fitted, beside that energy."""
    power_exponent: float
    """Clock follows power less than linearly, as voltage falls with it; at most 1, else a faster unit would be slower."""
    sustained: float
    """How much more power a product draws under lasting load (heat, leakage, real data), as a share."""
    sustained_s: float
    """Length of a burst of repeated calls at which half of that shows."""
    idle_draw: float
    """Power of multiprocessors that wait for a last wave, operands or a pipeline, beside that of busy ones. A kernel that keeps
    the chip half idle leaves power for a higher clock, so a board that its power limits loses less by it."""
    shared: TileLaw
    """Of units that read their operands from shared memory."""
    registers: TileLaw
    """Of units that threads feed from their registers."""
    dram_share: float
    l2_bytes_per_sm_cycle: float
    l2_share: float
    """Of the cache that a repeated call finds filled with its own operands."""
    join: float
    """Norm that joins arithmetic and traffic: higher overlaps better."""
    start_s: float
    step_load: float
    """Of the lasting load of a training step: hours, real data; 1 is the longest burst of a benchmark."""
    step_share: float
    """What products in a step keep of the rate of lone kernels at the same clock: gaps, cold caches, other work beside them."""
    log_sigma: float
    """Of single products on a measured device."""
    level_log_sigma: float = 0.1
    """Of the level of a device that was not measured, silicon known."""

    def __post_init__(self) -> None:
        if not 0 < self.power_exponent <= 1:
            raise InvalidInput(f"power_exponent is {self.power_exponent}; above 1 a faster unit would be slower")


@noun
class GroupLaw:
    """What products of many experts in one launch lose beside one product. Fitted by research/fits/kernels."""

    share: float
    """Of the rate of a plain product: each tile finds its expert first."""
    padding: float
    """Of a tile's rows that stay empty for each expert, where experts get unequal numbers of tokens."""
    log_sigma: float
    level_log_sigma: float = 0.1


@noun
class ProductShape:
    """One entry per kernel."""

    batch: Array
    m: Array
    n: Array
    k: Array
    num_bytes: Array
    resident: Array | None
    """Share of the bytes in L2; None: as a benchmark that repeats the call finds it."""
    gathered_bytes: Array | None = None
    """That multiprocessors fetch from L2, where these are many more than DRAM sees: windows that overlap."""


@noun
class Timed:
    """One entry per kernel."""

    seconds: Array
    compute_s: Array
    memory_s: Array

    def levelled(self, level: float, *, join: float) -> "Timed":
        """The same on a device whose arithmetic takes `level` times as long."""
        compute_s = level * self.compute_s
        before, after = ((part**join + self.memory_s**join) ** (1.0 / join) for part in (self.compute_s, compute_s))
        return Timed(seconds=self.seconds + (after - before), compute_s=compute_s, memory_s=self.memory_s)


def find_tiles(law: ProductLaw, device: Device) -> TileLaw:
    return law.registers if find_silicon(device).register_fed else law.shared


def drawn_power(law: ProductLaw, shape: ProductShape, work: Array) -> Array:
    """Of products beside one that keeps every unit busy; `work`: FLOP that the device's whole width spends on each."""
    busy = 2.0 * shape.batch * shape.m * shape.n * shape.k / work
    return law.idle_draw + (1.0 - law.idle_draw) * busy


def held_share(law: ProductLaw, device: Device, dtype: str, *, load: float | Array, need: float | Array = 1.0) -> Array:
    """Share of the matrix units' peak that large kernels hold.

    `load` is 0 for a lone kernel and 1 for lasting load; `need` is the kernel's power beside that of a plain product.
    """
    power = watts_per_need(device, dtype, joules_per_flop=law.joules_per_flop, fitted=law.energy)
    load = np.asarray(load, dtype=np.float64)
    gain = easy_gain(device, dtype, law.cap)
    if is_systolic(device):
        return np.full_like(load, CONSTANTS.array_share)
    if power is None:
        return np.full_like(load, gain * law.cap)
    left = power / (gain * need * (1.0 + law.sustained * load))
    bend = CONSTANTS.sharpness * law.power_exponent
    return np.asarray(gain * law.cap * (1.0 + left**-bend) ** (-1.0 / CONSTANTS.sharpness), dtype=np.float64)


def easy_flop_per_s(device: Device) -> float:
    """Below this peak, units never wait for operands; infinite where the sheet does not tell."""
    if device.num_sm is None or device.clock_hz is None:
        return 0.0
    return device.num_sm * device.clock_hz * CONSTANTS.easy_flop_per_sm_cycle


def easy_gain(device: Device, dtype: str, cap: float) -> float:
    """How much above its cap a unit that is easy to feed runs; its board does not clock further above the sheet."""
    return min(1.0 + CONSTANTS.easy_gain * ease(device, dtype), CONSTANTS.boost / cap)


def ease(device: Device, dtype: str) -> float:
    """1 for units that do half of what operands can be fetched for or less, 0 for those that use all of it."""
    easy = easy_flop_per_s(device)
    return min(1.0, max(0.0, 2.0 - 2.0 * product_flop_per_s(device, dtype)[0] / easy)) if easy else 0.0


def step_share(law: ProductLaw, device: Device, dtype: str, *, need: float | Array = 1.0) -> Array:
    """Share of the matrix units' peak that large kernels hold inside a training step.

    Units that never wait for operands do not lose what a step takes from others: cold caches and work beside them.
    """
    kept = law.step_share + (1.0 - law.step_share) * ease(device, dtype)
    return kept * held_share(law, device, dtype, load=law.step_load, need=need)


def time_products(law: ProductLaw, shape: ProductShape, device: Device, dtype: str, *, lone: bool = False) -> Timed:
    """Seconds of each product in `dtype`; `lone`: as a benchmark of single kernels would read them."""
    peak, real = product_flop_per_s(device, dtype)
    peak *= BOUNDS.format_share.get(real, 1.0)
    num_sm, tiles = float(device.num_sm or CONSTANTS.unknown_sm), find_tiles(law, device)
    if is_systolic(device):
        work = array_work(shape)
        rate = peak * _product_share(law, device, dtype, work / peak, np.ones_like(work), lone=lone)
    else:
        work = tile_work(tiles, shape, num_sm=num_sm, fill=tiles.fill)
        rate = peak * _product_share(law, device, dtype, work / peak, drawn_power(law, shape, work), lone=lone)
        fill = _fill(law, tiles, rate, device)
        if fill is not None:
            work = tile_work(tiles, shape, num_sm=num_sm, fill=fill)
    compute_s = _join_gathers(law, work / rate, shape.gathered_bytes, device)
    memory_s = traffic_s(law, shape.num_bytes, device, resident=shape.resident)
    joined = (compute_s**law.join + memory_s**law.join) ** (1.0 / law.join)
    return Timed(seconds=law.start_s + joined, compute_s=compute_s, memory_s=memory_s)


def array_work(shape: ProductShape) -> Array:
    """FLOP that systolic arrays spend on a product: each works on whole tiles, in every direction, and its compiler fills its
    scratchpad with the next while it works on one."""
    rows, cols, depth = (np.ceil(size / CONSTANTS.array) * CONSTANTS.array for size in (shape.m, shape.n, shape.k))
    return np.asarray(2.0 * shape.batch * rows * cols * depth, dtype=np.float64)


def _join_gathers(law: ProductLaw, compute_s: Array, gathered: Array | None, device: Device) -> Array:
    """Arithmetic that waits for overlapping windows to come from L2: few channels use each number that is fetched few times."""
    if gathered is None or device.num_sm is None or device.clock_hz is None or not gathered.any():
        return compute_s
    fetch_s = gathered / (CONSTANTS.gathered_bytes_per_sm_cycle * device.num_sm * device.clock_hz)
    return np.asarray((compute_s**law.join + fetch_s**law.join) ** (1.0 / law.join), dtype=np.float64)


def _product_share(law: ProductLaw, device: Device, dtype: str, peak_s: Array, need: Array, *, lone: bool) -> Array:
    """Of the peak, for kernels that take `peak_s` at the peak and draw `need` of the power of a busy chip."""
    if not lone:
        return step_share(law, device, dtype, need=need)
    cool_s = peak_s / held_share(law, device, dtype, load=0.0, need=need)
    return held_share(law, device, dtype, load=cool_s / (cool_s + law.sustained_s), need=need)


def _fill(law: ProductLaw, tiles: TileLaw, rate: Array, device: Device) -> Array | None:
    """Filling a pipeline takes cycles: units that are slow beside their multiprocessor spend fewer steps of the sum on it.

    None where all spend as many as the law says.
    """
    easy = law.cap * easy_flop_per_s(device)
    return tiles.fill * np.minimum(rate / easy, 1.0) if easy and (rate < easy).any() else None


def time_groups(law: GroupLaw, products: ProductLaw, shape: ProductShape, device: Device, dtype: str, *, uneven: Array,
                lone: bool = False) -> Timed:  # fmt: skip
    """Seconds of products of `shape.batch` experts in one launch, each with `m` rows; with different numbers of them where
    `uneven` is 1."""
    num_sm, tiles = float(device.num_sm or CONSTANTS.unknown_sm), find_tiles(products, device)
    peak, real = product_flop_per_s(device, dtype)
    peak *= law.share * BOUNDS.format_share.get(real, 1.0)
    padding = law.padding * uneven
    work = _best_work(tiles, shape, num_sm, tiles.fill, (1,), padding=padding)
    # Rows that stay empty are multiplied all the same and draw their power.
    rate = peak * _product_share(products, device, dtype, work / peak, np.ones_like(work), lone=lone)
    fill = _fill(products, tiles, rate, device)
    if fill is not None:
        work = _best_work(tiles, shape, num_sm, fill, (1,), padding=padding)
    compute_s = work / rate
    memory_s = shape.num_bytes / (products.dram_share * device.memory_bytes_per_s)
    joined = (compute_s**products.join + memory_s**products.join) ** (1.0 / products.join)
    return Timed(seconds=products.start_s + joined, compute_s=compute_s, memory_s=memory_s)


def tile_work(law: TileLaw, shape: ProductShape, *, num_sm: float, fill: float | Array) -> Array:
    """FLOP that the device's whole width spends, idle parts of tiles and waves included, with the best tile and split."""
    best = _best_work(law, shape, num_sm, fill, CONSTANTS.splits)
    long = shape.k > CONSTANTS.long_sum
    if long.any():
        part = replace(shape, batch=shape.batch[long], m=shape.m[long], n=shape.n[long], k=shape.k[long])
        kept = fill[long] if isinstance(fill, np.ndarray) and fill.ndim else fill
        best[long] = np.minimum(best[long], _best_work(law, part, num_sm, kept, CONSTANTS.more_splits))
    return best


def _best_work(law: TileLaw, shape: ProductShape, num_sm: float, fill: float | Array, splits: tuple[int, ...], *,
               padding: Array | None = None) -> Array:  # fmt: skip
    """`padding`: of the last tile of rows that stays empty on average; where it is 0, all batches have exactly `m` rows."""
    r128, r64, r32 = law.share
    rates = (1.0, 1.0, 1.0, r128, r64, r64, r32)
    k = np.maximum(shape.k, 1.0)
    best = np.full_like(k, np.inf)
    for (rows, cols), rate in zip(CONSTANTS.tiles, rates, strict=True):
        along = np.ceil(shape.m / rows)
        if padding is not None:
            along = np.where(padding > 0, np.maximum(shape.m / rows + padding, 1.0), along)
        tiles = along * (np.ceil(shape.n / cols) * shape.batch)
        fits = tiles / num_sm
        for parts in splits:
            waves = fits * parts
            filled = waves + law.wave_loss * (np.ceil(waves) - waves)
            depth = k / parts + (np.minimum(fill, CONSTANTS.longest_fill * k) if parts == 1 else fill * law.split_fill)
            work = np.maximum(filled, 1.0) * depth * (2.0 * rows * cols * num_sm / rate)
            best = np.minimum(best, work)
    return best


def traffic_s(law: ProductLaw, num_bytes: Array, device: Device, *, resident: Array | None) -> Array:
    """Seconds of bytes of which a share is in L2; `resident` None: as a benchmark that repeats the call finds it."""
    dram = device.memory_bytes_per_s
    if device.num_sm is None or device.clock_hz is None:
        near = l2_bytes_per_s(device)
    else:
        near = max(law.l2_bytes_per_sm_cycle * device.num_sm * device.clock_hz, dram)
    if resident is None:
        resident = 1.0 / (1.0 + (num_bytes / (law.l2_share * (device.l2_bytes or CONSTANTS.unknown_l2_bytes))) ** 2)
    return num_bytes * ((1.0 - resident) / (law.dram_share * dram) + resident / near)


def time_lanes(law: ProductLaw, flop: Array, num_bytes: Array, share: Array, device: Device) -> Timed:
    """Seconds of kernels that multiply on the ordinary lanes at a share of their peak and move their bytes beside."""
    compute_s = flop / (share * lanes_flop_per_s(device))
    memory_s = num_bytes / (law.dram_share * device.memory_bytes_per_s)
    joined = (compute_s**law.join + memory_s**law.join) ** (1.0 / law.join)
    return Timed(seconds=law.start_s + joined, compute_s=compute_s, memory_s=memory_s)


def time_blocks(law: ProductLaw, num_blocks: Array, block_bytes: Array, num_bytes: Array, device: Device) -> Timed:
    """Seconds of kernels whose blocks of threads each stream their own bytes: DRAM limits many of them, the path to one
    multiprocessor limits few."""
    num_sm = float(device.num_sm or CONSTANTS.unknown_sm)
    near = (
        l2_bytes_per_s(device) / num_sm
        if device.clock_hz is None
        else CONSTANTS.block_bytes_per_cycle * device.clock_hz
    )
    near = max(near, CONSTANTS.own_shares * device.memory_bytes_per_s / num_sm)
    block_s = np.ceil(num_blocks / num_sm / CONSTANTS.blocks_per_sm) * block_bytes / near
    memory_s = num_bytes / (law.dram_share * device.memory_bytes_per_s)
    joined = (block_s**law.join + memory_s**law.join) ** (1.0 / law.join)
    return Timed(seconds=law.start_s + joined, compute_s=np.zeros_like(block_s), memory_s=memory_s)
