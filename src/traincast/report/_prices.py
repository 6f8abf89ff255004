"""A job at every provider to a table with dates, and to a line that says how far prices lie apart."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from traincast.catalog import is_current
from traincast.report._paint import Paint
from traincast.report._table import PLAIN, Table, format_table
from traincast.units import HOUR_S, show_number, show_seconds, show_usd

if TYPE_CHECKING:
    from traincast.plan import JobPrice


def format_prices(prices: "Sequence[JobPrice]", *, paint: Paint = PLAIN, most: int = 8) -> str:
    """The cheapest first; empty where there are none."""
    if not prices:
        return ""
    shown = list(prices[:most])
    if prices[-1] not in shown:
        shown = [*shown[: most - 1], prices[-1]]
    has_co2 = any(each.kg_co2 is not None for each in shown)
    headings = (
        "  machine",
        "terms",
        "region",
        "per node-hour",
        "job",
        "cost",
        *(("CO2",) if has_co2 else ()),
        "price of",
    )
    rows = tuple(
        (
            f"  {each.quote.machine}",
            each.quote.terms,
            each.quote.region,
            show_usd(each.quote.usd_per_hour),
            show_seconds(each.hours * HOUR_S),
            show_usd(each.usd),
            *((("unknown" if each.kg_co2 is None else f"{show_number(each.kg_co2)} kg"),) if has_co2 else ()),
            f"{each.quote.date or 'unknown'}{' (old)' if each.is_stale else ''}",
        )
        for each in shown
    )
    left = frozenset({"  machine", "terms", "region", "price of"})
    lines = [format_table(Table(headings=headings, rows=rows, left=left, title="What providers ask"), paint=paint)]
    sources = ", ".join(dict.fromkeys(each.quote.source for each in shown if each.quote.source))
    if sources:
        wrapped = textwrap.wrap(f"Sources: {sources}.", width=paint.width, initial_indent="  ", subsequent_indent="  ")
        lines += [paint(line, "dim") for line in wrapped]
    lines += [paint(f"  {text}", "yellow") for text in _warn(prices)]
    return "\n".join(lines)


def _warn(prices: "Sequence[JobPrice]") -> list[str]:
    from traincast.plan import STALE_DAYS

    old = sum(each.is_stale for each in prices)
    said = []
    if old:
        said.append(
            f"{old} of {len(prices)} prices are older than {STALE_DAYS} days; give newer ones with --price-file prices.toml."
        )
    if any(each.checkpoint_every_s for each in prices):
        first = next(each for each in prices if each.checkpoint_every_s)
        said.append(
            f"Spot nodes may be taken away: a checkpoint every {show_seconds(first.checkpoint_every_s or 0.0)} loses least, and "
            "job and cost count what is lost."
        )
    return said


def describe_range(prices: "Sequence[JobPrice]") -> str:
    """'the job for $2,252 (nebius) to $7,190 (gcp)' on demand at today's prices; empty for one price."""
    on_demand = [each for each in prices if each.quote.terms == "on-demand" and is_current(each.quote.date)]
    if len(on_demand) < 2:
        return ""
    low, high = on_demand[0], on_demand[-1]
    return f"the job for {show_usd(low.usd)} ({low.quote.provider}) to {show_usd(high.usd)} ({high.quote.provider})"
