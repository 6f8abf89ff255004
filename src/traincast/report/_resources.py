"""Resource profiles to a text table, and levels over time to a stand-alone SVG drawing of idle times and bursts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from traincast.errors import InvalidInput
from traincast.report._paint import Paint
from traincast.report._svg import _document, _text
from traincast.report._table import PLAIN, Table, format_table
from traincast.resources import Signal, burst_level, find_bursts, grounds_of
from traincast.spec import RESOURCES, Activity, ResourceProfile
from traincast.units import show_bytes, show_count, show_seconds

NAMES: Mapping[str, str] = {
    "gpu": "GPU utilisation",
    "memory": "GPU memory bandwidth",
    "received": "network in",
    "sent": "network out",
}
COLOURS: Mapping[str, str] = {"gpu": "#3a923a", "memory": "#2b8cbe", "received": "#d95f0e", "sent": "#b04a9c"}
MAX_RANKS = 4
BASES: Mapping[str, str] = {
    "derived": "derived from the timeline; no run of such a setting was measured",
    "corrected": "corrected by measured runs of such a setting; in brackets the range of nine runs in ten",
    "learned": "learned from measured runs where they exist; in brackets nine runs in ten, or as sure as the step",
}
RESIDENT = "resident memory"
"""What the memory numbers of a corrected CPU setting are: there is no counter of memory traffic to learn from."""
_LEFT_PX, _LANE_PX, _PLOT_PX = 170, 110, 72


def format_resources(profiles: Sequence[ResourceProfile], *, run_utilization: float | None = None,
                     paint: Paint = PLAIN) -> str:  # fmt: skip
    """Idle time, burst time and peak of each resource; of many ranks the first and the last are shown.

    `run_utilization`: of the GPU over a whole run, where it is known.
    """
    if not profiles:
        return ""
    shown = list(profiles) if len(profiles) <= MAX_RANKS else [profiles[0], profiles[-1]]
    rows = [row for profile in shown for row in _rows(profile, with_rank=len(profiles) > 1)]
    table = Table(
        headings=("resource", "idle", "burst", "peak", "mean", "per step"),
        rows=tuple(rows),
        left=frozenset({"resource"}),
        title=f"Resources of one rank in one step (sampled every {show_seconds(profiles[0].window_s)})",
    )
    energy = profiles[0].energy_joules
    lines = [format_table(table, paint=paint), BASES[profiles[0].basis]]
    if profiles[0].basis == "learned":
        lines.append(f"rests on: {_grounds(profiles[0])}")
    if run_utilization is not None:
        lines.append(
            f"over a whole run nvidia-smi would show about {run_utilization:.0%}: "
            "input pipeline, evaluation and start-up included"
        )
    if energy is not None:
        lines.append(f"energy of one device: {show_count(energy, 'J')} per step")
    return "\n".join(lines)


GROUNDS: Mapping[str, str] = {
    "GPU runs": "runs that nvidia-smi watched",
    "CPU test-bed": "our test-bed of CPU nodes",
    "own runs": "your own runs",
    "timeline": "the simulated timeline, as nobody measured it",
}
_PARTS: Mapping[str, str] = {"idle_s": "idle", "burst_s": "burst", "peak": "peak"}


def _grounds(profile: ResourceProfile) -> str:
    """Which of the twelve numbers rest on what."""
    found: dict[str, list[str]] = {}
    for name, ground in grounds_of(profile).items():
        found.setdefault(ground, []).append(name)
    parts = []
    for ground, names in sorted(found.items(), key=lambda one: list(GROUNDS).index(one[0])):
        words = []
        for resource in RESOURCES:
            own = [_PARTS[name.removeprefix(f"{resource}_")] for name in names if name.startswith(resource)]
            if own:
                words.append(NAMES[resource] + ("" if len(own) == len(_PARTS) else f" ({', '.join(own)})"))
        parts.append(f"{'; '.join(words)}: {GROUNDS[ground]}")
    return " | ".join(parts)


def show_level(resource: str, level: float) -> str:
    return f"{level:.0%}" if resource in ("gpu", "memory") else f"{show_count(level, 'B')}/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One resource of a drawing: its true level where it is known, what a sampler sees, and what follows from that."""

    resource: str
    sampled: Signal
    activity: Activity
    exact: Signal | None = None
    floor: float = 0.0


def draw_lanes(lanes: Sequence[Lane], *, title: str, width: int = 1000) -> str:
    """Levels over time; bursts are shaded, the threshold and the peak are dashed."""
    if not lanes:
        raise InvalidInput("there is no resource to draw")
    start_s = float(lanes[0].sampled.edges_s[0])
    duration_s = max(lane.sampled.duration_s for lane in lanes)
    scale = (width - _LEFT_PX - 20) / duration_s
    body = [_text(10, 22, title, size=15, weight="bold")]
    for number, lane in enumerate(lanes):
        body.extend(_draw_lane(lane, top=40 + number * _LANE_PX, scale=scale, start_s=start_s, width=width))
    bottom = 40 + len(lanes) * _LANE_PX
    for tick in range(6):
        x = _LEFT_PX + (width - _LEFT_PX - 20) * tick / 5
        body.append(_text(x, bottom + 6, show_seconds(duration_s * tick / 5), anchor="middle"))
    return _document(width, bottom + 24, body)


def _rows(profile: ResourceProfile, *, with_rank: bool) -> list[tuple[str, ...]]:
    amounts = {"memory": profile.memory_bytes, "received": profile.received_bytes, "sent": profile.sent_bytes}
    rows: list[tuple[str, ...]] = []
    for resource in RESOURCES:
        activity: Activity = getattr(profile, resource)
        amount = amounts.get(resource)
        name = RESIDENT if resource == "memory" and profile.basis == "corrected" else NAMES[resource]
        rows.append(
            (
                name + (f", stage {profile.rank}" if with_rank else ""),
                show_seconds(activity.idle_s) + _range(profile, f"{resource}_idle_s"),
                show_seconds(activity.burst_s) + _range(profile, f"{resource}_burst_s"),
                show_level(resource, activity.peak) + _range(profile, f"{resource}_peak"),
                show_level(resource, activity.mean),
                "" if amount is None else show_bytes(amount),
            )
        )
    return rows


def _range(profile: ResourceProfile, name: str) -> str:
    if name not in profile.ranges:
        return ""
    resource = name.partition("_")[0]
    low, high = (
        show_seconds(each) if name.endswith("_s") else show_level(resource, each) for each in profile.ranges[name]
    )
    return f" ({low} - {high})"


def _draw_lane(lane: Lane, *, top: float, scale: float, start_s: float, width: int) -> list[str]:
    base = top + _PLOT_PX
    signals = [lane.sampled] if lane.exact is None else [lane.sampled, lane.exact]
    highest = max((float(signal.levels.max()) for signal in signals), default=0.0) or 1.0
    colour = COLOURS.get(lane.resource, "#888888")
    activity = lane.activity

    def x(at_s: float) -> float:
        return _LEFT_PX + (at_s - start_s) * scale

    def y(level: float) -> float:
        return base - _PLOT_PX * 0.92 * level / highest

    def path(signal: Signal) -> str:
        points = [f"{x(signal.edges_s[0]):.1f},{base:.1f}"]
        for begin, end, level in zip(signal.edges_s[:-1], signal.edges_s[1:], signal.levels, strict=True):
            points.extend((f"{x(begin):.1f},{y(level):.1f}", f"{x(end):.1f},{y(level):.1f}"))
        return " ".join([*points, f"{x(signal.edges_s[-1]):.1f},{base:.1f}"])

    body = [
        f'<rect x="{x(begin):.1f}" y="{top:.1f}" width="{(end - begin) * scale:.1f}" height="{_PLOT_PX}" fill="{colour}" '
        'fill-opacity="0.13"/>'
        for begin, end in find_bursts(lane.sampled, floor=lane.floor)
    ]
    if lane.exact is not None:
        body.append(f'<polyline points="{path(lane.exact)}" fill="none" stroke="#999999" stroke-width="0.7"/>')
    body.append(f'<polyline points="{path(lane.sampled)}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    right = width - 20
    body.append(f'<line x1="{_LEFT_PX}" y1="{base}" x2="{right}" y2="{base}" stroke="#444444"/>')
    marks = {"threshold": burst_level(lane.sampled, floor=lane.floor), "peak": activity.peak}
    for name, level in marks.items():
        if 0 < level <= highest:
            body.append(
                f'<line x1="{_LEFT_PX}" y1="{y(level):.1f}" x2="{right}" y2="{y(level):.1f}" stroke="#444444" '
                f'stroke-dasharray="4 3" stroke-width="0.7"><title>{escape(name, quote=False)}</title></line>'
            )
            body.append(_text(_LEFT_PX - 6, y(level) + 4, name, size=10, anchor="end"))
    says = (
        f"idle {show_seconds(activity.idle_s)}   burst {show_seconds(activity.burst_s)}   "
        f"peak {show_level(lane.resource, activity.peak)}   mean {show_level(lane.resource, activity.mean)}"
    )
    body.append(_text(10, base + 15, NAMES.get(lane.resource, lane.resource), weight="bold"))
    body.append(_text(_LEFT_PX, base + 15, says, size=11))
    return body
