"""`python -m research.fits.kernels.plots [OUT]`: share of the peak against shape, law and measured points, an SVG per family."""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.fits.kernels import attention, experts, products
from research.fits.kernels.__main__ import DATA
from research.fits.kernels.solve import Array, Constants
from research.fits.kernels.tables import DEVICES, Table, find_device
from traincast.cost import KERNELS, load_learned, mean_keys, product_flop_per_s

OUT = Path(__file__).resolve().parents[3] / "docs" / "theory"
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e")
WIDTH, HEIGHT, MARGIN = 720, 360, 48
MOST_POINTS = 120
"""Measured points of a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One device: size of the work, measured share of the peak, and the law's."""

    name: str
    size: Array
    measured: Array
    expected: Array


def draw(title: str, axis: str, series: Sequence[Series]) -> str:
    """Points are measured; the line is the median of the law around them."""
    sizes = np.concatenate([one.size for one in series])
    low, high = math.log10(sizes.min()), math.log10(sizes.max())

    def across(value: float) -> float:
        return MARGIN + (math.log10(value) - low) / (high - low) * (WIDTH - MARGIN - 130)

    def up(share: float) -> float:
        return HEIGHT - MARGIN - min(share, 1.0) * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><text x="{MARGIN}" y="20" font-size="14">{title}</text>',
        f'<text x="{WIDTH / 2 - 60}" y="{HEIGHT - 12}">{axis}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - 130}" y1="{up(share):.0f}" y2="{up(share):.0f}" stroke="#ddd"/>'
            f'<text x="12" y="{up(share) + 4:.0f}">{share:.2f}</text>'
        )
    for power in range(math.ceil(low), math.floor(high) + 1):
        parts.append(f'<text x="{across(10.0**power) - 10:.0f}" y="{HEIGHT - 30}">1e{power}</text>')
    for place, one in enumerate(series):
        colour = COLOURS[place % len(COLOURS)]
        for size, share in zip(one.size[:MOST_POINTS], one.measured[:MOST_POINTS], strict=True):
            parts.append(
                f'<circle cx="{across(size):.0f}" cy="{up(share):.0f}" r="2" fill="{colour}" fill-opacity="0.4"/>'
            )
        points = " ".join(f"{across(x):.0f},{up(y):.0f}" for x, y in _trend(one))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{WIDTH - 124}" y="{40 + 18 * place}" fill="{colour}">{one.name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _trend(one: Series) -> list[tuple[float, float]]:
    edges = np.quantile(np.log10(one.size), np.linspace(0, 1, 13))
    place = np.clip(np.searchsorted(edges, np.log10(one.size)) - 1, 0, 11)
    found = [place == each for each in range(12)]
    return [
        (float(10 ** np.median(np.log10(one.size[f]))), float(np.median(one.expected[f]))) for f in found if f.any()
    ]


def tell(rows: Table, predict: Callable[[NDArray[np.bool_]], Array], flop: Array, size: Array,
         dtype: str) -> list[Series]:  # fmt: skip
    series = []
    for name in DEVICES:
        here = np.flatnonzero(rows["device"] == name)
        if not len(here):
            continue
        here = np.random.default_rng(0).permutation(here)[:1000]
        chosen = np.zeros(len(rows), dtype=bool)
        chosen[here] = True
        order = np.flatnonzero(chosen)
        mixed = np.random.default_rng(1).permutation(len(order))
        peak, _ = product_flop_per_s(find_device(name), dtype)
        expected = flop[order] / predict(chosen) / peak
        measured = flop[order] / rows["time_s"][order] / peak
        series.append(Series(name=name, size=size[order][mixed], measured=measured[mixed], expected=expected[mixed]))
    return series


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    shipped = _read_shipped()
    laws = load_learned().laws
    for dtype, short, key in (("bfloat16", "bf16", "products_half"), ("fp8", "fp8", "products_fp8")):
        rows = products.read_rows(DATA, dtype)
        predict = products.pose(rows, short).predict
        flop = 2.0 * rows["m"] * rows["n"] * rows["k"]
        series = tell(rows, partial(predict, shipped[key]), flop, flop, short)
        (out / f"utilisation-products-{short}.svg").write_text(draw(f"Products in {short}", "FLOP", series))
    rows = attention.read_rows(DATA)
    shape = attention.shape_of(rows)
    pairs = shape.sequences * shape.queries * mean_keys(shape)
    predict = attention.pose(rows, laws.half).predict
    series = tell(rows, partial(predict, shipped["attention"]), 4.0 * pairs * shape.size, shape.queries, "bf16")
    (out / "utilisation-attention.svg").write_text(draw("Attention forward, bf16", "tokens of a sequence", series))
    rows = experts.read_rows(DATA, "bfloat16")
    copies = rows["tokens"] * rows["top_k"]
    flop = 2.0 * copies * rows["hidden"] * rows["ffn"] / rows["tp"] * (2.0 + rows["gated"])
    predict = experts.pose(rows, laws.half, "bf16").predict
    values = {**experts.START, **shipped["groups"]}
    series = tell(rows, partial(predict, values), flop, copies / rows["experts"], "bf16")
    (out / "utilisation-experts.svg").write_text(draw("Layers with experts, bf16", "tokens of an expert", series))


def _read_shipped() -> Mapping[str, Constants]:
    values = json.loads(KERNELS.read_text(encoding="utf-8"))
    values["attention"] = {name: values["attention"][name] for name in attention.START}
    for key in ("products_half", "products_fp8"):
        values[key] = {name: values[key][name] for name in products.START}
    return {name: value for name, value in values.items() if isinstance(value, dict)}


if __name__ == "__main__":
    main()
