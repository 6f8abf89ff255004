"""Ways to train a model and what a device must hold to two tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from traincast.report._paint import Paint
from traincast.report._table import PLAIN, Table, format_table
from traincast.spec import SAFE_CONFIDENCE
from traincast.units import show_bytes, show_usd

if TYPE_CHECKING:
    from traincast.plan import Held, Way

SHOWN = {"weights": ("parameter",), "gradients": ("gradient",),
         "optimizer and update": ("optimizer_state", "temporaries of the update")}  # fmt: skip


def format_ways(ways: "Sequence[Way]", *, title: str, unit: str, paint: Paint = PLAIN) -> str:
    """Devices x methods: how many devices it takes, and USD for a million of `unit`."""
    methods = list(dict.fromkeys(way.method for way in ways))
    cells = {(way.device, way.method): _say(way) for way in ways}
    rows = tuple(
        (name, *(cells[name, method] for method in methods)) for name in dict.fromkeys(way.device for way in ways)
    )
    headings = ("device", *methods)
    table = Table(headings=headings, rows=rows, left=frozenset(headings), title=f"{title} (USD per million {unit})")
    return format_table(table, paint=paint)


def _say(way: "Way") -> str:
    if way.count is None:
        return "-"
    price = "" if way.usd_per_million is None else f", {show_usd(way.usd_per_million)}"
    chance = "" if way.fit_probability >= SAFE_CONFIDENCE else f" ({way.fit_probability:.0%} likely)"
    return f"{way.count} device{'s' if way.count > 1 else ''}{chance}{price}"


def format_held(held: "Sequence[Held]", *, title: str, paint: Paint = PLAIN) -> str:
    """Methods x parts of the memory."""
    rows = []
    for each in held:
        parts = [sum(each.by_role.get(role, 0.0) for role in roles) for roles in SHOWN.values()]
        rest = max(0.0, each.needed_bytes - sum(parts))
        shown = [show_bytes(amount) if amount else "-" for amount in (*parts, rest)]
        rows.append((each.method, each.precision, *shown, show_bytes(each.needed_bytes)))
    headings = ("method", "precision", *SHOWN, "activations and rest", "needed")
    return format_table(
        Table(headings=headings, rows=tuple(rows), left=frozenset(headings[:2]), title=title), paint=paint
    )
