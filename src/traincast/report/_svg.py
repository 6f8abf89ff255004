"""Measured and forecast times to a stand-alone SVG drawing."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.units import show_seconds


@noun
class Point:
    """One case: what was measured, what was forecast, and the series it belongs to."""

    measured: float
    forecast: float
    series: str


def draw_agreement(
    points: Sequence[Point], *, title: str, size: int = 560, show: Callable[[float], str] = show_seconds
) -> str:
    """Forecast against measurement on logarithmic axes; the band is 10% to either side."""
    if not points:
        raise InvalidInput("there is no point to draw")
    values = [value for point in points for value in (point.measured, point.forecast)]
    if not all(value > 0 and math.isfinite(value) for value in values):
        raise InvalidInput("points on logarithmic axes must be finite and above 0")
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    span = max(1, high - low)
    inner = size - 110

    def x(value: float) -> float:
        return 70 + inner * (math.log10(value) - low) / span

    def y(value: float) -> float:
        return size - 60 - inner * (math.log10(value) - low) / span

    bottom, top = 10.0**low, 10.0 ** (low + span)
    band = " ".join(
        f"{x(a):.1f},{y(b):.1f}"
        for a, b in (
            (bottom, bottom),
            (bottom, bottom * 1.1),
            (top / 1.1, top),
            (top, top),
            (top, top / 1.1),
            (bottom * 1.1, bottom),
        )
    )
    body = [_text(10, 22, title, size=15, weight="bold"), f'<polygon points="{band}" fill="#dddddd"/>']
    for decade in range(low, low + span + 1):
        value = 10.0**decade
        body.append(_text(x(value), size - 42, show(value), anchor="middle"))
        body.append(_text(64, y(value) + 4, show(value), anchor="end"))
    body.append(_text(70 + inner / 2, size - 22, "measured", anchor="middle"))
    body.append(_text(70, 42, "forecast"))
    names = sorted({point.series for point in points})
    colours = dict(zip(names, _cycle(len(names)), strict=True))
    body.extend(
        f'<circle cx="{x(point.measured):.1f}" cy="{y(point.forecast):.1f}" r="2.5" fill="{colours[point.series]}" '
        'fill-opacity="0.6"/>'
        for point in points
    )
    for row, name in enumerate(names):
        body.append(f'<circle cx="84" cy="{56 + 16 * row}" r="4" fill="{colours[name]}"/>')
        body.append(_text(94, 60 + 16 * row, name))
    return _document(size, size, body)


def _cycle(count: int) -> Iterator[str]:
    palette = ("#2b8cbe", "#d95f0e", "#3a923a", "#b04a9c", "#8c6d31", "#c0392b", "#6b6ecf", "#17becf")
    return (palette[index % len(palette)] for index in range(count))


def _text(x: float, y: float, text: str, *, size: int = 12, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{escape(weight)}" text-anchor="{anchor}">'
        f"{escape(text, quote=False)}</text>"
    )


def _document(width: float, height: float, body: Sequence[str]) -> str:
    lines = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n{lines}\n</svg>\n'
    )
