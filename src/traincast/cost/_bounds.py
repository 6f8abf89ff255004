"""A device's data sheet to what its silicon cannot exceed: clock under the power cap, lanes, matrix units, two memory levels."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincast.spec import Device

Array = NDArray[np.float64]

GENERATIONS: dict[str, float] = {
    "maxwell": 0.0, "pascal": 0.0, "volta": 2.0, "turing": 2.0, "ampere": 3.0, "ada": 3.5, "hopper": 3.5,
    "blackwell": 4.0, "cdna1": 3.0, "cdna2": 3.5, "cdna3": 4.0, "cdna4": 4.5,
}  # fmt: skip
"""Families of library kernels: cuBLAS runs Maxwell kernels on Pascal, Volta kernels on Turing, Ampere kernels since."""

LANE_ENERGY: dict[str, float] = {
    "ga10x": 0.63,
    "ada": 0.38,
    "hopper": 0.38,
    "blackwell": 0.34,
    "cdna2": 0.8,
    "cdna3": 0.5,
}
"""Joules per fp32 FLOP on the lanes, relative to the 16 to 7 nm chips the constant was fitted on (they differ by < 8%).

Only the chips named here are carried over: from sustained SGEMM rates published for A10, RTX 3090, RTX 4090 and L4.
"""

MATRIX_ENERGY: dict[str, float] = {
    "volta": 0.15, "turing": 0.15, "ga10x": 0.13, "ampere": 0.078, "ada": 0.078, "hopper": 0.06, "blackwell": 0.028,
    "cdna1": 0.125, "cdna2": 0.1, "cdna3": 0.077,
}  # fmt: skip
"""Joules per fp16 FLOP on the matrix units, on the same scale; from published sustained GEMM rates, not fitted here (cdna3: 51%
of peak on MI300X, 60% on MI325X beside 87% on A100 and 80% on H100, stas00/ml-engineering's MAMF, 744d01e)."""

SYSTOLIC = ("tpu", "gaudi", "neuroncore")
"""Chips whose products run on systolic arrays filled from a scratchpad the compiler plans: an operand is used by a whole row
or column of the array, so lanes and registers do not starve it, and no power cap shows in sustained products (97% of peak
measured on Gaudi 2, stas00/ml-engineering's MAMF, 744d01e)."""

MATRIX_POWER_EXPONENT = 0.75
"""Clock follows power less than linearly because voltage falls with it; between the same chips at 250 and 300 watts 0.6."""

DTYPE_ENERGY: dict[str, float] = {
    "fp64": 4.0,
    "fp32": 4.0,
    "tf32": 2.0,
    "fp16": 1.0,
    "bf16": 1.0,
    "fp8": 0.5,
    "int8": 0.5,
    "fp4": 0.25,
}

WIDER: dict[str, tuple[str, ...]] = {
    "fp4": ("fp4", "fp8", "bf16", "fp16", "tf32", "fp32"), "fp8": ("fp8", "bf16", "fp16", "tf32", "fp32"),
    "int8": ("int8", "fp16", "fp32"), "fp16": ("fp16", "fp32"), "bf16": ("bf16", "fp32"), "tf32": ("tf32", "fp32"),
    "fp32": ("fp32",), "fp64": ("fp64", "fp32"),
}  # fmt: skip

L2_BYTES_PER_LANE_CYCLE = 0.5
SOAK_S = 35.0
KERNEL_FLOOR_S = 2e-6
"""No kernel is shorter: start, drain and the first memory access."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """How much of its boost clock a card holds in dense arithmetic. Fitted inside every fold."""

    clock_per_watt: float = 0.064e12
    """Share of the boost clock held per watt and FLOP/s of peak, before it saturates: about 16 joules per TFLOP."""
    heat: float = 0.6
    """Further loss of a capped card once it is soaked with heat, as a share of what the cap already takes."""


def generation(device: Device) -> float:
    name = device.architecture.lower()
    for word, value in GENERATIONS.items():
        if name.startswith(word):
            return value
    if device.year is None:
        return 3.0
    return float(np.interp(device.year, (2016, 2017, 2020, 2022, 2024), (0.0, 2.0, 3.0, 3.5, 4.0)))


STACKED = (
    "gp100",
    "gv100",
    "ga100",
    "gh100",
    "gb100",
    "ultra",
    "cdna",
    "vega20",
    "tpu",
    "gaudi",
    "neuroncore",
    "vecchio",
)
"""Chips with stacked memory, by a word of their architecture; these are also the ones built for data centres."""
UNKNOWN_STACKED = 0.5


def stacked_memory(device: Device) -> float:
    """1 for stacked memory, 0 for ordinary, between where the architecture does not tell."""
    name = device.architecture.lower()
    if any(word in name for word in STACKED):
        return 1.0
    return 0.0 if any(name.startswith(word) for word in GENERATIONS) else UNKNOWN_STACKED


def l2_bytes_per_s(device: Device) -> float:
    """Not on data sheets: half a byte per lane and cycle, which the measured parts reach within a third."""
    if device.num_sm is None or device.lanes_per_sm is None or device.clock_hz is None:
        return 3.0 * device.memory_bytes_per_s
    lanes = device.num_sm * device.lanes_per_sm
    return max(L2_BYTES_PER_LANE_CYCLE * lanes * device.clock_hz, 1.5 * device.memory_bytes_per_s)


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


def uses_matrix_units(device: Device, dtype: str) -> bool:
    return (
        device.matrix_flop_per_s.get(dtype, 0.0) >= device.vector_flop_per_s.get(dtype, 0.0)
        and dtype in device.matrix_flop_per_s
    )


def scales_blocks(device: Device) -> bool:
    """Whether matrix units apply scales of blocks themselves (OCP Microscaling): those that have a rate for fp4."""
    return "fp4" in device.matrix_flop_per_s


def is_systolic(device: Device) -> bool:
    return device.architecture.lower().startswith(SYSTOLIC)


def soaked(burst_s: float) -> float:
    """How far a burst of work has warmed the card, 0 to 1: short benchmarks run cooler than a training job."""
    return burst_s**2 / (burst_s**2 + SOAK_S**2)


def sustained_clock(device: Device, dtype: str, law: PowerLaw, *, soak: float | Array = 0.0) -> Array:
    """Share of the boost clock held while the arithmetic units are busy, from watts per FLOP/s of the data sheet."""
    one = np.ones_like(np.asarray(soak, dtype=np.float64))
    if device.power_watts is None or is_systolic(device):
        return one
    peak, real = product_flop_per_s(device, dtype)
    energy = _relative_energy(device, real, uses_matrix_units(device, real))
    held = law.clock_per_watt * device.power_watts / (peak * energy)
    if uses_matrix_units(device, real):
        held = held**MATRIX_POWER_EXPONENT
    cold = (1.0 + held**-20.0) ** -0.05
    return np.asarray(cold * (1.0 - law.heat * (1.0 - cold) * np.asarray(soak)), dtype=np.float64)


WIDE_SM_SHARE = 0.85
"""What library kernels reach of the lanes' peak where 128 lanes share the operand bandwidth that 64 had: published SGEMM
rates of RTX 3090, RTX 4090 and H100, not fitted here. A card that its power holds below that does not notice."""

KEPLER_ISSUE_SHARE = 2 / 3
"""Four schedulers feed 128 of the 192 lanes of a Kepler multiprocessor; the rest waits for a second independent instruction."""


def usable_share(device: Device, dtype: str, law: PowerLaw, *, soak: float | Array = 0.0) -> Array:
    """Of the peak, for products: the lesser of the clock that power allows and what wide multiprocessors can feed."""
    clock = sustained_clock(device, dtype, law, soak=soak)
    if device.architecture.lower().startswith("kepler"):
        return np.minimum(clock, KEPLER_ISSUE_SHARE)
    _, real = product_flop_per_s(device, dtype)
    wide = (device.lanes_per_sm or 64) >= 128 and generation(device) >= 3.0 and device.vendor.upper() == "NVIDIA"
    if wide and not uses_matrix_units(device, real):
        return np.minimum(clock, WIDE_SM_SHARE)
    return clock


def _relative_energy(device: Device, dtype: str, matrix: bool) -> float:
    table = MATRIX_ENERGY if matrix else LANE_ENERGY
    found = table.get(_silicon(device), 0.078 if matrix else 1.0)
    return found * (DTYPE_ENERGY.get(dtype, 1.0) if matrix else 1.0)


def _silicon(device: Device) -> str:
    """The key of the energy tables; the GA10x chips are not the GA100 that shares their name."""
    words = device.architecture.lower().split()
    if len(words) > 1 and words[0] == "ampere" and words[1] != "ga100":
        return "ga10x"
    return words[0] if words else ""
