"""A forecast job to what it costs at each provider and under each terms, interruptions and checkpoints included."""

import datetime
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traincast.catalog import Quote, find_region, list_quotes, node
from traincast.errors import InvalidInput
from traincast.files import read_json, read_toml
from traincast.noun import noun
from traincast.spec import Cluster, Forecast, Job, Region
from traincast.units import DAY_S, HOUR_S, KWH_JOULES

TERMS = ("on-demand", "spot", "reserved")
STALE_DAYS = 90
"""A price that is older is said to be."""
_KEYS = ("machine", "usd_per_hour", "terms", "region", "date", "source", "interruptions_per_day")
_REGION_KEYS = ("name", "grams_co2_per_kwh", "date", "source")


@noun
class PriceList:
    """Prices of one's own, which come before those of the catalogue."""

    quotes: tuple[Quote, ...] = ()
    """Each for one whole machine."""
    regions: tuple[Region, ...] = ()


@noun
class JobPrice:
    """A job at one quote."""

    quote: Quote
    hours: float
    """With interruptions and the checkpoints against them."""
    usd: float
    checkpoint_every_s: float | None
    """Between two checkpoints that lose least (Young 1974); None: nothing is taken away."""
    kg_co2: float | None
    """None: the region's share is not known."""
    is_stale: bool


def read_prices(path: str | os.PathLike[str]) -> PriceList:
    """TOML or JSON: a table [[prices]] for each machine and terms, a table [[regions]] for each region's CO2."""
    data = read_json(path) if Path(path).suffix == ".json" else read_toml(path)
    if not isinstance(data, Mapping) or not (data.get("prices") or data.get("regions")):
        raise InvalidInput(f"{path} has no prices; write a table [[prices]] for each machine and terms")
    unknown = sorted(set(data) - {"prices", "regions"})
    if unknown:
        raise InvalidInput(f"{path} has the unknown key {unknown[0]!r}; allowed: prices, regions")
    quotes = [_read_quote(entry, f"{path}: prices[{place}]") for place, entry in enumerate(data.get("prices", []))]
    regions = [_read_region(entry, f"{path}: regions[{place}]") for place, entry in enumerate(data.get("regions", []))]
    return PriceList(quotes=tuple(quotes), regions=tuple(regions))


def _read_quote(entry: Any, where: str) -> Quote:
    values = _check_table(entry, _KEYS, ("machine", "usd_per_hour"), where)
    terms = values.get("terms", "on-demand")
    if terms not in TERMS:
        raise InvalidInput(f"{where}.terms is {terms!r}; allowed: {', '.join(TERMS)}")
    machine = node(str(values["machine"]))
    for key in ("usd_per_hour", "interruptions_per_day"):
        _check_amount(values.get(key, 0.0), f"{where}.{key}")
    _check_date(values.get("date", ""), f"{where}.date")
    texts = {key: str(values.get(key, "")) for key in ("region", "date", "source")}
    return Quote(
        machine=machine.name, provider=machine.provider, usd_per_hour=float(values["usd_per_hour"]), terms=terms,
        interruptions_per_day=float(values.get("interruptions_per_day", 0.0)), **texts,
    )  # fmt: skip


def _read_region(entry: Any, where: str) -> Region:
    values = _check_table(entry, _REGION_KEYS, ("name", "grams_co2_per_kwh"), where)
    _check_amount(values["grams_co2_per_kwh"], f"{where}.grams_co2_per_kwh")
    texts = {key: str(values.get(key, "")) for key in ("name", "date", "source")}
    return Region(grams_co2_per_kwh=float(values["grams_co2_per_kwh"]), **texts)


def _check_table(entry: Any, keys: Sequence[str], needed: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise InvalidInput(f"{where} must be a table, not {entry!r}")
    for key in entry:
        if key not in keys:
            raise InvalidInput(f"{where} has the unknown key {key!r}; allowed: {', '.join(keys)}")
    for key in needed:
        if key not in entry:
            raise InvalidInput(f"{where} lacks {key}")
    return entry


def _check_amount(amount: Any, where: str) -> None:
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < math.inf:
        raise InvalidInput(f"{where} is {amount!r}; it must be a finite number of at least 0")


def _check_date(text: Any, where: str) -> None:
    if text and _read_date(str(text)) is None:
        raise InvalidInput(f"{where} is {text!r}; write it as 2026-11-17")


def _read_date(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        return None


def price_everywhere(
    answer: Forecast, job: Job, cluster: Cluster, *, prices: PriceList | None = None, today: datetime.date | None = None
) -> tuple[JobPrice, ...]:
    """The job at every quote for such nodes, cheapest first; empty for a cluster of mixed nodes or a job without a length."""
    if len(cluster.groups) != 1 or answer.job.num_steps <= 1:
        return ()
    group, listed = cluster.groups[0], prices or PriceList()
    own = [
        quote
        for quote in listed.quotes
        if (machine := node(quote.machine)).device.name == group.device.name
        and machine.devices_per_node == group.devices_per_node
    ]
    taken = {(quote.machine, quote.terms) for quote in own}
    known = list_quotes(group.device.name, devices_per_node=group.devices_per_node)
    quotes = [*own, *(quote for quote in known if (quote.machine, quote.terms) not in taken)]
    day = today or datetime.date.today()
    made = [_price(answer, job, cluster, quote, listed.regions, day) for quote in quotes]
    return tuple(sorted(made, key=lambda each: each.usd))


def _price(
    answer: Forecast, job: Job, cluster: Cluster, quote: Quote, regions: Sequence[Region], today: datetime.date
) -> JobPrice:
    hours, every_s = _with_interruptions(answer, job, cluster, quote)
    own = (each for each in regions if quote.region and quote.region.startswith(each.name))
    region = next(own, None) or find_region(quote.provider, quote.region)
    longer = hours / (answer.job.total.seconds / HOUR_S)
    kg = None
    if region is not None and answer.energy_joules is not None:
        kg = answer.energy_joules * longer / KWH_JOULES * region.grams_co2_per_kwh / 1000
    return JobPrice(
        quote=quote, hours=hours, usd=hours * quote.usd_per_hour * cluster.num_nodes, checkpoint_every_s=every_s, kg_co2=kg,
        is_stale=is_stale(quote.date, today=today),
    )  # fmt: skip


def _with_interruptions(answer: Forecast, job: Job, cluster: Cluster, quote: Quote) -> tuple[float, float | None]:
    """(hours of the job, seconds between checkpoints). Each interruption of any node costs a start and half of what lies between
    two checkpoints; checkpoints are written as often as loses least (Young 1974)."""
    whole_s = answer.job.total.seconds
    rate = quote.interruptions_per_day / DAY_S * cluster.num_nodes
    if rate <= 0:
        return whole_s / HOUR_S, None
    saved = job.graph.role_bytes("parameter") + job.graph.role_bytes("optimizer_state")
    write_s = saved / job.checkpoint_bytes_per_s
    every_s = max(math.sqrt(2 * write_s / rate), write_s)
    lost = write_s / every_s + rate * (job.startup_s + answer.job.compile_s + every_s / 2)
    # Time that is lost is interrupted too; above one half of it a job hardly ends.
    return whole_s / max(1 - lost, 0.05) / HOUR_S, every_s


def is_stale(date: str, *, today: datetime.date | None = None) -> bool:
    """Whether a price is older than a quarter of a year; one without a date is not said to be."""
    asked = _read_date(date)
    return asked is not None and ((today or datetime.date.today()) - asked).days > STALE_DAYS
