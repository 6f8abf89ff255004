"""A memory profile to a stand-alone SVG drawing: what is always there, what comes and goes, and the device's limit."""

from traincast.errors import InvalidInput
from traincast.report._svg import _document as document
from traincast.report._svg import _text as text
from traincast.spec import MemoryProfile
from traincast.units import show_bytes

STEADY = ("parameter", "buffer", "input", "optimizer_state", "gradient")
"""Roles drawn as bands under the curve, from the bottom."""
COLOURS = {
    "parameter": "#2b8cbe",
    "buffer": "#7bccc4",
    "input": "#a8ddb5",
    "optimizer_state": "#b04a9c",
    "gradient": "#d9a404",
    "live": "#3a923a",
}
_LEFT_PX, _TOP_PX, _BOTTOM_PX = 90, 50, 70


def draw_memory(profile: MemoryProfile, *, title: str = "", width: int = 1000, height: int = 420) -> str:
    """Bytes in use over the ops of one pass; needs a profile replayed with its curve."""
    if not profile.curve:
        raise InvalidInput("this memory profile has no curve; replay it with with_curve=True")
    highest = max(profile.capacity_bytes, max(level for _, level in profile.curve)) * 1.05
    inner_w, inner_h = width - _LEFT_PX - 20, height - _TOP_PX - _BOTTOM_PX

    def x(place: int) -> float:
        return _LEFT_PX + inner_w * place / len(profile.curve)

    def y(amount: float) -> float:
        return _TOP_PX + inner_h * (1 - amount / highest)

    body = [text(10, 24, title, size=15, weight="bold")]
    corners = [f"{x(0):.1f},{y(0):.1f}"]
    for place, (_, level) in enumerate(profile.curve):
        corners += [f"{x(place):.1f},{y(level):.1f}", f"{x(place + 1):.1f},{y(level):.1f}"]
    corners.append(f"{x(len(profile.curve)):.1f},{y(0):.1f}")
    body.append(f'<polygon points="{" ".join(corners)}" fill="{COLOURS["live"]}" fill-opacity="0.75"/>')
    # A gradient that appears during the pass is part of the curve; only what is there from the start is a band.
    floor, base = 0.0, min(level for _, level in profile.curve)
    shown = []
    for role in STEADY:
        amount = min(profile.by_role.get(role, 0.0), base - floor)
        if amount > 0:
            top = y(floor + amount)
            body.append(
                f'<rect x="{_LEFT_PX}" y="{top:.1f}" width="{inner_w}" height="{y(floor) - top:.1f}" fill="{COLOURS[role]}"/>'
            )
            floor += amount
            shown.append((role.replace("_", " "), COLOURS[role], amount))
    shown.append(("activations", COLOURS["live"], max(level for _, level in profile.curve) - floor))
    limit = y(profile.capacity_bytes)
    body.append(
        f'<line x1="{_LEFT_PX}" y1="{limit:.1f}" x2="{width - 20}" y2="{limit:.1f}" stroke="#c0392b" stroke-dasharray="6 4"/>'
    )
    body.append(text(width - 22, limit - 5, f"device {show_bytes(profile.capacity_bytes)}", anchor="end"))
    for tick in range(6):
        amount = highest * tick / 5
        body.append(text(_LEFT_PX - 6, y(amount) + 4, show_bytes(amount), anchor="end"))
    at = float(_LEFT_PX)
    for name, colour, amount in shown:
        words = f"{name} {show_bytes(amount)}"
        body.append(f'<rect x="{at}" y="{height - 44}" width="11" height="11" fill="{colour}"/>')
        body.append(text(at + 16, height - 34, words))
        at += 34 + 6.4 * len(words)
    body.append(text(_LEFT_PX, height - 12, f"ops of one pass in order; the peak is in {profile.peak_where}"))
    return document(width, height, body)
