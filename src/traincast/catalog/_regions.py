"""Names of countries, states and providers' regions to the CO2 of a kilowatt-hour there."""

import functools

from traincast.catalog._names import load_facts
from traincast.spec import Region


def region(name: str | Region) -> Region:
    """'france', 'FRA', 'us-ohio', 'eu-west-1' or 'gcp-us-central1'."""
    return name if isinstance(name, Region) else _build(load_facts("region").find(name))


@functools.cache
def find_region(provider: str, name: str) -> Region | None:
    """What a provider calls a region; None where it is not known where that is."""
    found = load_facts("region").get(f"{provider}-{name}") if name else None
    return None if found is None else _build(found)


def _build(name: str) -> Region:
    facts = load_facts("region")
    entry = facts.entries[name]
    source = facts.sources[entry["source"]]
    place = f" ({entry['place']})" if "place" in entry else ""
    return Region(
        name=name, grams_co2_per_kwh=entry["grams_co2_per_kwh"], date=entry["date"], source=f"{source}{place}"
    )
