"""The only place that knows prefixes: numbers to readable text and readable text to SI base units."""

import math
import re

from traincast.errors import InvalidInput

KIB, MIB, GIB = 2**10, 2**20, 2**30
KILO, MEGA, GIGA, TERA, PETA = 1e3, 1e6, 1e9, 1e12, 1e15
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
KWH_JOULES = 3.6e6
NORMAL_90 = 1.645
"""Standard deviations on each side of its mean that hold 90% of a normal distribution."""

DTYPE_BYTES: dict[str, float] = {
    "fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip

_SIZE = {"": 1.0, "k": KILO, "m": MEGA, "g": GIGA, "t": TERA, "ki": KIB, "mi": MIB, "gi": GIB, "ti": 2**40}
_TIME = {
    "": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": MINUTE_S, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S, "sec": 1.0,
    "second": 1.0, "seconds": 1.0, "mins": MINUTE_S, "minute": MINUTE_S, "minutes": MINUTE_S, "hour": HOUR_S,
    "hours": HOUR_S, "day": DAY_S, "days": DAY_S, "w": 7 * DAY_S, "week": 7 * DAY_S, "weeks": 7 * DAY_S,
}  # fmt: skip
_COUNT = {"": 1.0, "k": KILO, "m": MEGA, "g": GIGA, "b": GIGA, "t": TERA, "p": PETA}


def parse_bytes(text: str) -> float:
    """'80GiB', '25 MB' or '1e9' as bytes."""
    return _parse(text.strip().removesuffix("B").removesuffix("b"), _SIZE, "a size such as 80GiB or 25MB")


def parse_seconds(text: str) -> float:
    """'36h', '90 min' or '0.5' as seconds."""
    return _parse(text, _TIME, "a duration such as 36h, 90min or 2d")


def parse_count(text: str) -> float:
    """'10k', '7B' or '15T' as a number."""
    return _parse(text.replace("_", "").replace(",", ""), _COUNT, "a number such as 512, 10k, 7B or 15T")


def parse_length(text: str) -> float:
    """'128k' tokens as 131,072: lengths of samples go by 1,024."""
    factors = {"": 1.0, "k": KIB, "ki": KIB, "m": MIB}
    return _parse(text.replace("_", "").replace(",", ""), factors, "a length in tokens such as 4096, 8k or 128k")


def _parse(text: str, factors: dict[str, float], wanted: str) -> float:
    found = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    factor = factors.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise InvalidInput(f"{text!r} is not {wanted}")
    try:
        return float(found[1]) * factor
    except ValueError as error:
        raise InvalidInput(f"{text!r} is not {wanted}") from error


READERS = {"count": parse_count, "length": parse_length, "bytes": parse_bytes, "seconds": parse_seconds}
"""How people write amounts, by what is asked."""


def show_number(amount: float) -> str:
    """2,920, 31.4, 0.072, 0: three digits, thousands apart, never a power of ten."""
    if not math.isfinite(amount):
        return "unknown"
    size = abs(amount)
    if size < 5e-4:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(size)))
    rounded = round(amount, 2 - math.floor(math.log10(size)))
    text = f"{rounded:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def show_change(ratio: float) -> str:
    """'12% more', '6% less', 'the same': an amount over what it was."""
    if not math.isfinite(ratio):
        return "unknown"
    if abs(ratio - 1) < 0.005:
        return "the same"
    return f"{ratio - 1:.0%} more" if ratio > 1 else f"{1 - ratio:.0%} less"


def show_seconds(seconds: float) -> str:
    """1.23 ms, 4.5 s, 2 h 05 min, 3.2 days: the unit a person would choose."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 5e-9:
        return "0 s"
    if seconds < 1e-3:
        return f"{show_number(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 2 * MINUTE_S:
        return f"{seconds:.3g} s"
    if seconds < 2 * HOUR_S:
        return f"{seconds / MINUTE_S:.3g} min"
    if seconds < 2 * DAY_S:
        return f"{seconds / HOUR_S:.3g} h"
    return f"{seconds / DAY_S:,.3g} days" if seconds < 1000 * DAY_S else f"{seconds / DAY_S:,.0f} days"


def show_bytes(amount: float) -> str:
    """12.3 GiB, 512 MiB: binary prefixes, as memory is sold."""
    for unit, size in (("TiB", 2.0**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(amount) >= size:
            return f"{amount / size:.3g} {unit}" if abs(amount) < 1000 * size else f"{amount / size:,.0f} {unit}"
    return f"{amount:.0f} B"


def show_count(amount: float, unit: str = "") -> str:
    """312 TFLOP, 1.56 G: decimal prefixes."""
    for prefix, size in (("E", 1e18), ("P", PETA), ("T", TERA), ("G", GIGA), ("M", MEGA), ("k", KILO)):
        if abs(amount) >= size:
            return f"{amount / size:.3g} {prefix}{unit}"
    return f"{amount:.3g} {unit}".rstrip()


def show_usd(amount: float) -> str:
    return f"${amount:,.2f}" if abs(amount) < 1000 else f"${amount:,.0f}"
