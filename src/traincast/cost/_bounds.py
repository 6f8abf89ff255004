"""A device's data sheet to what its silicon cannot exceed: clock under the power cap, lanes, matrix units, two memory levels."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from traincast.catalog import read_constant_table, read_constants
from traincast.noun import noun
from traincast.spec import Device

Array = NDArray[np.float64]


@noun
class BoundConstants:
    """Of the document `bounds`, which says what each is."""

    generations: Mapping[str, float]
    generation_years: tuple[tuple[float, float], ...]
    unknown_generation: float
    stacked: tuple[str, ...]
    matrix_energy: float
    systolic: tuple[str, ...]
    matrix_power_exponent: float
    clock_sharpness: float
    format_energy: Mapping[str, float]
    format_share: Mapping[str, float]
    l2_bytes_per_lane_cycle: float
    least_l2_gain: float
    unknown_l2_gain: float
    soak_s: float
    clock_per_watt: float
    heat: float
    kernel_floor_s: float
    wide_sm_share: float
    wide_lanes: int
    kepler_issue: tuple[int, int]


CONSTANTS = read_constants(BoundConstants, "bounds")


@noun
class Chip:
    """An entry of the document `silicon`: what is known of a chip beyond its data sheet."""

    energy: float
    log_sigma: float
    register_fed: bool = False
    lane_energy: float = 1.0


CHIPS = dict(read_constant_table(Chip, "silicon"))
UNKNOWN = CHIPS.pop("unknown")

WIDER: dict[str, tuple[str, ...]] = {
    "fp4": ("fp4", "fp8", "bf16", "fp16", "tf32", "fp32"), "fp8": ("fp8", "bf16", "fp16", "tf32", "fp32"),
    "int8": ("int8", "fp16", "fp32"), "fp16": ("fp16", "fp32"), "bf16": ("bf16", "fp32"), "tf32": ("tf32", "fp32"),
    "fp32": ("fp32",), "fp64": ("fp64", "fp32"),
}  # fmt: skip


@noun
class PowerLaw:
    """How much of its boost clock a card holds in dense arithmetic. Fitted inside every fold; the defaults are priors."""

    clock_per_watt: float = CONSTANTS.clock_per_watt
    heat: float = CONSTANTS.heat


def generation(device: Device) -> float:
    name = device.architecture.lower()
    for word, value in CONSTANTS.generations.items():
        if name.startswith(word):
            return value
    if device.year is None:
        return CONSTANTS.unknown_generation
    years, values = zip(*CONSTANTS.generation_years, strict=True)
    return float(np.interp(device.year, years, values))


def stacked_memory(device: Device) -> float:
    """1 for stacked memory, 0 for ordinary, between where the architecture does not tell."""
    name = device.architecture.lower()
    if any(word in name for word in CONSTANTS.stacked):
        return 1.0
    return 0.0 if any(name.startswith(word) for word in CONSTANTS.generations) else 0.5


def l2_bytes_per_s(device: Device) -> float:
    """Not on data sheets: half a byte per lane and cycle, which the measured parts reach within a third."""
    if device.num_sm is None or device.lanes_per_sm is None or device.clock_hz is None:
        return CONSTANTS.unknown_l2_gain * device.memory_bytes_per_s
    lanes = device.num_sm * device.lanes_per_sm
    return max(
        CONSTANTS.l2_bytes_per_lane_cycle * lanes * device.clock_hz,
        CONSTANTS.least_l2_gain * device.memory_bytes_per_s,
    )


def lanes_flop_per_s(device: Device) -> float:
    rates = device.vector_flop_per_s or device.matrix_flop_per_s
    return rates.get("fp32") or min(rates.values())


def product_flop_per_s(device: Device, dtype: str) -> tuple[float, str]:
    """The unit's peak for products of this type and the type it really runs in."""
    for wider in WIDER.get(dtype, (dtype, "fp32")):
        rate = device.peak_flop_per_s(wider)
        if rate is not None:
            return rate, wider
    return lanes_flop_per_s(device), "fp32"


def fastest_flop_per_s(device: Device, dtypes: Iterable[str]) -> float:
    """The peak of the fastest units that products of these types can use; 0: there are none."""
    return max((product_flop_per_s(device, dtype)[0] for dtype in dtypes), default=0.0)


def uses_matrix_units(device: Device, dtype: str) -> bool:
    return (
        device.matrix_flop_per_s.get(dtype, 0.0) >= device.vector_flop_per_s.get(dtype, 0.0)
        and dtype in device.matrix_flop_per_s
    )


def scales_blocks(device: Device) -> bool:
    """Whether matrix units apply scales of blocks themselves (OCP Microscaling): those that have a rate for fp4."""
    return "fp4" in device.matrix_flop_per_s


def is_systolic(device: Device) -> bool:
    return device.architecture.lower().startswith(CONSTANTS.systolic)


def soaked(burst_s: float) -> float:
    """How far a burst of work has warmed the card, 0 to 1: short benchmarks run cooler than a training job."""
    return burst_s**2 / (burst_s**2 + CONSTANTS.soak_s**2)


def sustained_clock(device: Device, dtype: str, law: PowerLaw, *, soak: float | Array = 0.0) -> Array:
    """Share of the boost clock held while the arithmetic units are busy, from watts per FLOP/s of the data sheet."""
    one = np.ones_like(np.asarray(soak, dtype=np.float64))
    if device.power_watts is None or is_systolic(device):
        return one
    peak, real = product_flop_per_s(device, dtype)
    energy = relative_energy(device, real, matrix=uses_matrix_units(device, real))
    held = law.clock_per_watt * device.power_watts / (peak * energy)
    if uses_matrix_units(device, real):
        held = held**CONSTANTS.matrix_power_exponent
    cold = (1.0 + held**-CONSTANTS.clock_sharpness) ** (-1.0 / CONSTANTS.clock_sharpness)
    return np.asarray(cold * (1.0 - law.heat * (1.0 - cold) * np.asarray(soak)), dtype=np.float64)


def usable_share(device: Device, dtype: str, law: PowerLaw, *, soak: float | Array = 0.0) -> Array:
    """Of the peak, for products: the lesser of the clock that power allows and what wide multiprocessors can feed."""
    clock = sustained_clock(device, dtype, law, soak=soak)
    if device.architecture.lower().startswith("kepler"):
        issued, lanes = CONSTANTS.kepler_issue
        return np.minimum(clock, issued / lanes)
    _, real = product_flop_per_s(device, dtype)
    many = (device.lanes_per_sm or 0) >= CONSTANTS.wide_lanes
    wide = many and generation(device) >= CONSTANTS.generations["ampere"] and device.vendor.upper() == "NVIDIA"
    if wide and not uses_matrix_units(device, real):
        return np.minimum(clock, CONSTANTS.wide_sm_share)
    return clock


def relative_energy(device: Device, dtype: str, *, matrix: bool) -> float:
    """Joules per FLOP beside one in fp32 on the CUDA cores of a 16 to 7 nm chip."""
    chip = find_silicon(device)
    if not matrix:
        return chip.lane_energy
    return CONSTANTS.matrix_energy * chip.energy * CONSTANTS.format_energy.get(dtype, 1.0)


def find_silicon(device: Device) -> Chip:
    """The entry of a device's chip; an architecture nobody entered widens what rests on it."""
    return CHIPS.get(name_silicon(device), UNKNOWN)


def name_silicon(device: Device) -> str:
    """Chips for data centres and for graphics share the name of an architecture, not their matrix units."""
    words = device.architecture.lower().split()
    family, chip = (words[0] if words else ""), (words[1] if len(words) > 1 else "")
    if family == "ampere":
        return "ga10x" if chip.startswith("ga10") and chip != "ga100" else "ga100"
    if family == "blackwell" and chip.startswith("gb20"):
        return "gb20x"
    return family


def watts_per_need(device: Device, dtype: str, *, joules_per_flop: float, fitted: Mapping[str, float]) -> float | None:
    """Power of the board over what its matrix units would draw at their peak; None where no power limit is known.

    `fitted`: energies that kernels of the silicon taught.
    """
    if device.power_watts is None or is_systolic(device):
        return None
    peak, real = product_flop_per_s(device, dtype)
    energy = fitted.get(name_silicon(device), find_silicon(device).energy)
    return device.power_watts / (joules_per_flop * energy * CONSTANTS.format_energy.get(real, 1.0) * peak)


def name_unknown_silicon(device: Device) -> str | None:
    """A sentence for the user where the chip's energy per FLOP had to be assumed."""
    if name_silicon(device) in CHIPS or is_systolic(device) or not device.matrix_flop_per_s:
        return None
    return (
        f"the architecture of {device.name} ({device.architecture or 'not given'}) is not among those whose matrix units were "
        "measured; a middle energy per FLOP is assumed and the interval is wider"
    )
