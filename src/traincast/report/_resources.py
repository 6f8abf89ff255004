"""Resource profiles to a text table."""

from collections.abc import Mapping, Sequence

from traincast.report._paint import Paint
from traincast.report._table import PLAIN, Table, format_table
from traincast.resources import grounds_of
from traincast.spec import RESOURCES, Activity, ResourceProfile
from traincast.units import show_bytes, show_count, show_seconds

NAMES: Mapping[str, str] = {
    "gpu": "GPU utilisation",
    "memory": "GPU memory bandwidth",
    "received": "network in",
    "sent": "network out",
}
MAX_RANKS = 4
BASES: Mapping[str, str] = {
    "derived": "derived from the timeline; no run of such a setting was measured",
    "corrected": "corrected by measured runs of such a setting; in brackets the range of nine runs in ten",
    "learned": "learned from measured runs where they exist; in brackets nine runs in ten, or as sure as the step",
}
RESIDENT = "resident memory"
"""What the memory numbers of a corrected CPU setting are: there is no counter of memory traffic to learn from."""


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
