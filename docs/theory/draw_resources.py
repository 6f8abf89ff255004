"""Draws the pictures of resources.md: python docs/theory/draw_resources.py"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from traincast import catalog, forecast
from traincast.catalog import workload
from traincast.files import write_whole
from traincast.noun import noun
from traincast.report._resources import NAMES, show_level
from traincast.report._svg import _document, _text
from traincast.resources._profile import FLOORS, WINDOWS_PER_STEP, trace_levels
from traincast.resources._signal import Signal, burst_level, find_bursts, from_pieces, repeat, sample, summarize
from traincast.spec import RESOURCES, Activity, Job, Parallelism
from traincast.units import show_seconds

HERE = Path(__file__).parent


COLOURS: Mapping[str, str] = {"gpu": "#3a923a", "memory": "#2b8cbe", "received": "#d95f0e", "sent": "#b04a9c"}
_LEFT_PX, _LANE_PX, _PLOT_PX = 170, 110, 72


@noun
class Lane:
    """One resource of a drawing: its true level where it is known, what a sampler sees, and what follows from that."""

    resource: str
    sampled: Signal
    activity: Activity
    exact: Signal | None = None
    floor: float = 0.0


def draw_lanes(lanes: Sequence[Lane], *, title: str, width: int = 1000) -> str:
    """Levels over time; bursts are shaded, the threshold and the peak are dashed."""
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


def draw_definition() -> str:
    """A made-up signal of three steps of 1 s, and what a sampler of 20 Hz makes of it."""
    pieces = [(0.23, 0.42, 0.9), (0.45, 0.71, 1.0), (0.71, 0.83, 0.4)]
    exact = repeat(from_pieces(pieces, duration_s=1.0), 3)
    sampled = sample(exact, window_s=0.05)
    lane = Lane(resource="gpu", exact=exact, sampled=sampled, activity=summarize(sampled, num_cycles=3))
    return draw_lanes([lane], title="Three steps of 1 s: true level (grey), samples at 20 Hz (green), bursts (shaded)")


def draw_step() -> str:
    """A step of ResNet-50 on four nodes with one V100 each and a slow network."""
    cluster = catalog.cluster(device="v100-sxm2-16g", nodes=4, devices_per_node=1, inter="ethernet-10g")
    graph = workload("resnet50", batch=32)
    answer = forecast(Job(graph=graph), cluster, Parallelism(data=4), draw=True)
    step_s = answer.step.seconds
    levels = trace_levels(answer.timeline.spans, step_s, cluster, device=cluster.groups[0].device)
    profile = answer.resources[0]
    lanes = [
        Lane(
            resource=name,
            sampled=sample(levels[name], window_s=step_s / WINDOWS_PER_STEP),
            activity=getattr(profile, name),
            floor=FLOORS[name],
        )
        for name in RESOURCES
    ]
    return draw_lanes(lanes, title=f"One forecast step: {answer.workload}, batch 32 on each of {answer.cluster}")


if __name__ == "__main__":
    write_whole(HERE / "resources-definition.svg", draw_definition())
    write_whole(HERE / "resources-step.svg", draw_step())
