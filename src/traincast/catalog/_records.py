"""Entries of the catalogue as plain data: listed, searched and shown, as `--json` and the service give them."""

from collections.abc import Mapping
from typing import Any

from traincast.catalog._datasets import dataset
from traincast.catalog._devices import device_entry
from traincast.catalog._links import link_entry
from traincast.catalog._names import load_facts
from traincast.catalog._nodes import node
from traincast.catalog._regions import region
from traincast.catalog._stacks import find_stack, stack, stack_names
from traincast.catalog._workloads import workloads
from traincast.errors import UnknownName
from traincast.files import encode

TABLES = {
    "devices": "device", "links": "link", "nodes": "node", "workloads": "model", "datasets": "dataset", "regions": "region",
}  # fmt: skip
"""Kind of entry to the table that holds it."""
KINDS = (*TABLES, "stacks")
_SEARCHED = (
    *("name", "title", "aliases", "vendor", "architecture", "provider", "instance", "kind", "device", "price_region"),
    *("family", "dataset"),
)


def plural_kind(kind: str) -> str | None:
    lower = kind.lower()
    return next((each for each in KINDS if lower in (each, each[:-1])), None)


def kind_of(name: str) -> str:
    """The kind of entry that a name of any kind means."""
    tables = {kind: load_facts(table) for kind, table in TABLES.items()}
    for kind, facts in tables.items():
        if facts.get(name) is not None:
            return kind
    if find_stack(name) is not None:
        return "stacks"
    known = [each for facts in tables.values() for each in (*facts.entries, *facts.aliases())]
    raise UnknownName("name", name, KINDS, plural="kinds of entries", also=known)


def entry_names(kind: str) -> tuple[str, ...]:
    return stack_names() if kind == "stacks" else tuple(load_facts(TABLES[kind]).entries)


def list_records(kind: str, *, text: str | None = None) -> list[dict[str, Any]]:
    """Every entry of a kind, or those that contain all the words of a text."""
    if kind == "workloads":
        records = [encode(each) for each in workloads()]
    else:
        records = [find_record(kind, name) for name in entry_names(kind)]
    return [record for record in records if _matches(record, text)]


def find_record(kind: str, name: str) -> dict[str, Any]:
    """One entry as plain data."""
    if kind == "workloads":
        found = load_facts(TABLES[kind]).find(name)
        return next(encode(each) for each in workloads() if each.name == found)
    if kind == "stacks":
        return {"name": stack(name).name, **encode(stack(name))}
    if kind in ("datasets", "regions"):
        record = encode(dataset(name) if kind == "datasets" else region(name))
    elif kind == "nodes":
        record = encode(node(name))
        record["device"] = record["device"]["name"]
    else:
        record = encode(device_entry(name) if kind == "devices" else link_entry(name))
        record = {**record.pop(kind[:-1]), **record}
    return dict(record)


def _matches(record: Mapping[str, Any], text: str | None) -> bool:
    if not text:
        return True
    values = [record.get(key, "") for key in _SEARCHED]
    words = [word for value in values for word in (value if isinstance(value, list) else [str(value)])]
    haystack = " ".join(words).lower()
    return all(word in haystack for word in text.lower().split())
