"""Products measured on a device to its level: how much longer they take than its data sheet makes us expect."""

import csv
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from traincast import catalog
from traincast.cost import load_learned
from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import DeviceLevel, Op
from traincast.units import DTYPE_BYTES, parse_seconds

FORMATS = ("bf16", "fp16", "tf32", "fp8", "fp4")
SHAPE_LOG_SIGMA, LEVEL_LOG_SIGMA = 0.09, 0.1
"""Of single products around the level of their device, and of the levels of devices around what data sheets make us expect."""
WORDS = "DEVICE FORMAT MxNxK TIME, such as 'h100-sxm-80g bf16 2048x16384x4096 0.35ms'"


@noun
class MeasuredProduct:
    """One product of (m x k) with (k x n), timed alone."""

    device: str
    dtype: str
    m: int
    n: int
    k: int
    seconds: float

    def __post_init__(self) -> None:
        if self.dtype not in FORMATS:
            raise InvalidInput(f"a product in {self.dtype!r} tells no level; allowed: {', '.join(FORMATS)}")
        if min(self.m, self.n, self.k) < 1 or not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise InvalidInput(
                f"product {self.m}x{self.n}x{self.k} in {self.seconds} s; sizes and time must be positive"
            )


def parse_product(text: str) -> MeasuredProduct:
    words = text.split()
    sizes = re.fullmatch(r"(\d+)x(\d+)x(\d+)", words[2]) if len(words) >= 4 else None
    if sizes is None:
        raise InvalidInput(f"{text!r} is no measured product; write {WORDS}")
    m, n, k = (int(size) for size in sizes.groups())
    seconds = parse_seconds(" ".join(words[3:]))
    return MeasuredProduct(device=words[0], dtype=words[1].lower(), m=m, n=n, k=k, seconds=seconds)


def read_products(path: Path) -> list[MeasuredProduct]:
    """A table with the columns device, dtype, m, n, k and time_s."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wanted = ("device", "dtype", "m", "n", "k", "time_s")
    missing = [name for name in wanted if not rows or name not in rows[0]]
    if missing:
        raise InvalidInput(f"{path} has no column {', '.join(missing)}; it needs {', '.join(wanted)} and a row")
    return [_read_row(row, f"{path}, row {number}") for number, row in enumerate(rows, start=1)]


def _read_row(row: Mapping[str, str], where: str) -> MeasuredProduct:
    try:
        m, n, k = (int(float(row[name])) for name in ("m", "n", "k"))
        seconds = float(row["time_s"])
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{where}: m, n, k and time_s must be numbers") from error
    return MeasuredProduct(
        device=row["device"].strip(), dtype=row["dtype"].strip().lower(), m=m, n=n, k=k, seconds=seconds
    )


def expect_product_s(product: MeasuredProduct) -> float:
    """What the data sheet of the device makes us expect of the product, timed alone."""
    size = DTYPE_BYTES[product.dtype]
    op = Op(
        name="aten.mm", kind="matmul", dtype=product.dtype, flop=2.0 * product.m * product.n * product.k,
        bytes_read=size * (product.m * product.k + product.k * product.n), bytes_written=2.0 * product.m * product.n,
        attrs={"batch": 1, "m": product.m, "n": product.n, "k": product.k, "layout": "tn"},
    )  # fmt: skip
    return float(load_learned().predict([op], catalog.device(product.device), lone=True).seconds[0])


def believe(log_ratios: Sequence[float]) -> tuple[float, float]:
    """The logarithm of a device's level and its log_sigma, from products that say it only within the noise of their shapes: the
    mean of a normal posterior."""
    noise, prior = SHAPE_LOG_SIGMA**2 / len(log_ratios), LEVEL_LOG_SIGMA**2
    weight = prior / (prior + noise)
    return weight * sum(log_ratios) / len(log_ratios), math.sqrt(weight * noise)


def learn_levels(products: Sequence[MeasuredProduct]) -> tuple[DeviceLevel, ...]:
    """One level for every device and format. The more products say the same, the more they are believed."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for product in products:
        name = catalog.device(product.device).name
        found[name][product.dtype].append(math.log(product.seconds / expect_product_s(product)))
    return tuple(
        DeviceLevel(
            device=device,
            products={dtype: math.exp(believe(logs)[0]) for dtype, logs in sorted(formats.items())},
            log_sigma=max(believe(logs)[1] for logs in formats.values()),
            num_products=sum(len(logs) for logs in formats.values()),
        )
        for device, formats in sorted(found.items())
    )
