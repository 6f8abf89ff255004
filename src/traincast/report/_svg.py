"""A timeline or a comparison of measured and forecast times to a stand-alone SVG drawing."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Span, Timeline
from traincast.units import show_seconds

CATEGORY_COLOURS = {
    "compute": "#3a923a",
    "memory": "#2b8cbe",
    "communication": "#b04a9c",
    "host": "#d9a404",
    "bubble": "#c0392b",
    "wait": "#b0b0b0",
}
_LANE_PX = 22
_LEFT_PX = 170
_RIGHT_PX = 45
_TOP_PX = 40


def draw_timeline(timeline: Timeline, *, title: str = "", width: int = 1000) -> str:
    """One lane per stream of each rank; spans narrower than a quarter pixel are merged with their neighbours."""
    if timeline.duration_s <= 0:
        raise InvalidInput("a timeline of no duration cannot be drawn")
    lanes = list(dict.fromkeys((span.rank, span.stream) for span in timeline.spans))
    height = _TOP_PX + _LANE_PX * len(lanes) + 50
    scale = (width - _LEFT_PX - _RIGHT_PX) / timeline.duration_s
    body: list[str] = [_text(10, 22, title, size=15, weight="bold")]
    for row, (rank, stream) in enumerate(lanes):
        top = _TOP_PX + row * _LANE_PX
        body.append(_text(10, top + 15, f"rank {rank} {stream}"))
        spans = [span for span in timeline.spans if (span.rank, span.stream) == (rank, stream)]
        body.extend(_draw_span(span, top=top, scale=scale) for span in _merge(spans, shortest_s=0.25 / scale))
    axis = _TOP_PX + _LANE_PX * len(lanes) + 14
    for tick in range(6):
        x = _LEFT_PX + (width - _LEFT_PX - _RIGHT_PX) * tick / 5
        body.append(_text(x, axis, show_seconds(timeline.duration_s * tick / 5), anchor="middle"))
    body.extend(_legend(_LEFT_PX, axis + 22, timeline))
    return _document(width, height, body)


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


def _merge(spans: Sequence[Span], *, shortest_s: float) -> Iterator[Span]:
    """Runs of spans of one category closer than `shortest_s` become one, so that a drawing stays small."""
    current: Span | None = None
    for span in sorted(spans, key=lambda one: one.start_s):
        if current is None:
            current = span
        elif (
            span.category == current.category
            and span.start_s - current.end_s < shortest_s
            and (min(span.end_s - span.start_s, current.end_s - current.start_s) < 4 * shortest_s)
        ):
            name = current.name if current.name == span.name else f"{current.name.split(' ...')[0]} ... {span.name}"
            current = Span(
                name=name, start_s=current.start_s, end_s=max(current.end_s, span.end_s), stream=span.stream,
                category=span.category, rank=span.rank,
            )  # fmt: skip
        else:
            yield current
            current = span
    if current is not None:
        yield current


def _draw_span(span: Span, *, top: float, scale: float) -> str:
    colour = CATEGORY_COLOURS.get(span.category, "#888888")
    seconds = span.end_s - span.start_s
    label = escape(f"{span.name} {span.layer} {show_seconds(seconds)}", quote=False)
    return (
        f'<rect x="{_LEFT_PX + span.start_s * scale:.2f}" y="{top + 2}" width="{seconds * scale:.2f}" '
        f'height="{_LANE_PX - 4}" fill="{colour}"><title>{label}</title></rect>'
    )


def _legend(left: float, y: float, timeline: Timeline) -> Iterator[str]:
    present = {span.category for span in timeline.spans}
    for index, name in enumerate(name for name in CATEGORY_COLOURS if name in present):
        x = left + 130 * index
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{CATEGORY_COLOURS[name]}"/>'
        yield _text(x + 17, y, name)


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
