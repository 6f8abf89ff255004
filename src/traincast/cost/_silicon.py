"""A data sheet to what matrix units hold of their peak: joules per FLOP of the silicon under the board's power limit."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from traincast.cost._bounds import is_systolic, product_flop_per_s
from traincast.spec import Device

ENERGY: dict[str, tuple[float, float]] = {
    "volta": (3.15, 0.12), "turing": (4.2, 0.15), "ga100": (1.0, 0.0), "ga10x": (2.5, 0.15), "ada": (1.9, 0.0),
    "hopper": (1.0, 0.0), "blackwell": (1.0, 0.0), "gb20x": (2.0, 0.2), "cdna1": (2.7, 0.25), "cdna2": (2.44, 0.25),
    "cdna3": (1.87, 0.15), "cdna4": (1.42, 0.25),
}  # fmt: skip
"""Joules per FLOP of the matrix units in 16 bits beside the data-centre chips of 2020 to 2025, and log_sigma that not having
measured its kernels adds. Units fed from registers (Volta, Turing, GA10x, Ada, GB20x) take more than those that read
shared memory. ga100, hopper and blackwell share one constant that kernels fit; volta, turing, ga10x and ada come from whole
steps. With CDNA's, the fastest of many large products alone is what was published (stas00/ml-engineering's MAMF, 744d01e:
MI300X 0.514 of the peak, MI325X 0.604, MI355X 0.62; the same law says 0.88 for A100 and 0.81 for H100, published 0.87 and
0.80); cdna1 and cdna2 moved with cdna3 when the law changed. A law that saw a silicon's kernels overrides it."""

REGISTER_FED = ("volta", "turing", "ga100", "ga10x", "ada", "gb20x", "cdna1", "cdna2", "cdna3", "cdna4")
"""Whose threads load the operands of matrix units into their registers; newer units read shared memory by themselves, and their
kernels stay on a multiprocessor and take tile after tile."""

UNKNOWN_ENERGY, UNKNOWN_LOG_SIGMA = 1.5, 0.3
"""Between the silicons known, and wide enough for each of them."""

FORMAT_ENERGY: dict[str, float] = {
    "fp64": 4.0, "fp32": 4.0, "tf32": 2.0, "fp16": 1.0, "bf16": 1.0, "fp8": 0.5, "int8": 0.5, "fp4": 0.25,
}  # fmt: skip
"""Joules per FLOP of a number format beside 16 bits, as the width of a multiplier's operands."""

FORMAT_SHARE: dict[str, float] = {"tf32": 0.75, "fp4": 0.78}
"""Of the rate that 16 bits reach beside their peak: operands of four bytes fill shared memory twice as fast; those of half a byte
come with a scale for each 16 (B200, m >= 1024, newest kernel of the vendor: 0.78)."""

NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Silicon:
    """What is known of a chip's matrix units beyond its data sheet."""

    name: str
    energy: float
    log_sigma: float
    known: bool
    register_fed: bool


def find_silicon(device: Device, fitted: Mapping[str, float] = NOTHING) -> Silicon:
    """The entry of a device's chip; an architecture nobody entered is marked as unknown and widens what rests on it.

    `fitted`: energies that kernels of the silicon taught.
    """
    name = _name_silicon(device)
    energy, log_sigma = ENERGY.get(name, (UNKNOWN_ENERGY, UNKNOWN_LOG_SIGMA))
    return Silicon(
        name=name, energy=fitted.get(name, energy), log_sigma=log_sigma, known=name in ENERGY or is_systolic(device),
        register_fed=name in REGISTER_FED,
    )  # fmt: skip


def _name_silicon(device: Device) -> str:
    """Chips for data centres and for graphics share the name of an architecture, not their matrix units."""
    words = device.architecture.lower().split()
    family, chip = (words[0] if words else ""), (words[1] if len(words) > 1 else "")
    if family == "ampere":
        return "ga10x" if chip.startswith("ga10") and chip != "ga100" else "ga100"
    if family == "blackwell" and chip.startswith("gb20"):
        return "gb20x"
    return family


def watts_per_need(device: Device, dtype: str, *, joules_per_flop: float, fitted: Mapping[str, float]) -> float | None:
    """Power of the board over what its matrix units would draw at their peak; None where no power limit is known."""
    if device.power_watts is None or is_systolic(device):
        return None
    peak, real = product_flop_per_s(device, dtype)
    need = joules_per_flop * find_silicon(device, fitted).energy * FORMAT_ENERGY.get(real, 1.0) * peak
    return device.power_watts / need


def name_unknown_silicon(device: Device) -> str | None:
    """A sentence for the user where the chip's energy per FLOP had to be assumed."""
    if find_silicon(device).known or not device.matrix_flop_per_s:
        return None
    return (
        f"the architecture of {device.name} ({device.architecture or 'not given'}) is not among those whose matrix units were "
        "measured; a middle energy per FLOP is assumed and the interval is wider"
    )
