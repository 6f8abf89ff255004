"""Names, rates and tables to links inside and between nodes."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Any

from traincast.catalog._names import load_facts, make_entry
from traincast.errors import InvalidInput
from traincast.files import decode
from traincast.noun import noun
from traincast.spec import Link

LinkLike = Link | str | float | Mapping[str, Any]
"""A link, its name ('infiniband-ndr', '8x infiniband-ndr'), a rate ('100 Gb/s', 12.5e9 bytes/s) or its table."""

_PORTS = re.compile(r"(\d+)\s*[x*]\s*(\S.*)", re.IGNORECASE)
_RATE = re.compile(r"([0-9.]+(?:e[+-]?\d+)?)\s*([KMGT]?)(bit/s|bps|b/s|byte/s|B/s)", re.IGNORECASE)
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


@noun
class LinkEntry:
    """A link with what the catalogue knows beyond its rate."""

    link: Link
    scope: str
    """What the rate counts: all links of one 'device', one 'port', or one 'node'."""
    confidence: str
    latency_confidence: str
    notes: str = ""
    corrected: str = ""
    aliases: tuple[str, ...] = ()


def link(name: str | Link) -> Link:
    """A link by name or any known spelling; a leading count multiplies the ports: '8x infiniband-ndr'."""
    if isinstance(name, Link):
        return name
    facts = load_facts("link")
    counted = _PORTS.fullmatch(name.strip()) if isinstance(name, str) and facts.get(name) is None else None
    if counted is None:
        return link_entry(name).link
    if int(counted[1]) < 1:
        raise InvalidInput(f"link {name!r} has no ports; give at least 1")
    return bundle(link_entry(counted[2]).link, num_ports=int(counted[1]))


def links() -> tuple[Link, ...]:
    return tuple(link(name) for name in load_facts("link").entries)


def link_entry(name: str) -> LinkEntry:
    return _build(load_facts("link").find(name))


def bundle(one: Link, *, num_ports: int) -> Link:
    """Several ports used as one link: the rate adds up, the latency stays."""
    if num_ports == 1:
        return one
    return dataclasses.replace(
        one,
        name=f"{num_ports}x {one.name}",
        bytes_per_s=one.bytes_per_s * num_ports,
        num_ports=one.num_ports * num_ports,
    )


def make_link(given: LinkLike, *, like: Link, where: str = "link") -> Link:
    """Any way of naming a link as a link; what a bare rate or a table leaves open is taken from `like`, but for the transport of
    a network."""
    if isinstance(given, Link):
        return given
    if isinstance(given, str):
        rate = _RATE.fullmatch(given.strip())
        return link(given) if rate is None else _at_rate(_parse_rate(rate), like=like, where=where)
    if isinstance(given, Mapping):
        defaults = {"name": "custom", "latency_s": like.latency_s, **({} if "transport" in given else _kin(like))}
        return decode(Link, {**defaults, **given}, where=where)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return _at_rate(float(given), like=like, where=where)
    raise InvalidInput(
        f"{where} is {given!r}; give a name such as 'nvlink4', a rate such as '100 Gb/s' or a table with bytes_per_s"
    )


def _at_rate(bytes_per_s: float, *, like: Link, where: str) -> Link:
    if not (bytes_per_s > 0 and math.isfinite(bytes_per_s)):
        raise InvalidInput(f"{where} has a rate of {bytes_per_s} bytes/s; it must be a finite number above 0")
    return Link(name="custom", bytes_per_s=bytes_per_s, latency_s=like.latency_s, source="given", **_kin(like))


def _kin(like: Link) -> dict[str, Any]:
    """What a rate inside a node leaves as it is. A rate between nodes does not say whether sockets carry it."""
    return {} if like.is_network else {"kind": like.kind, "transport": like.transport, "reduces": like.reduces}


def _parse_rate(found: re.Match[str]) -> float:
    # Only the case of the letter tells bits from bytes, as networks are sold in Gb/s and memories in GB/s.
    in_bits = found[3].startswith("b") and not found[3].lower().startswith("byte")
    try:
        return float(found[1]) * _PREFIXES[found[2].lower()] / (8 if in_bits else 1)
    except ValueError as error:
        raise InvalidInput(f"{found[0]!r} is not a rate such as '100 Gb/s' or '12.5 GB/s'") from error


@functools.cache
def _build(name: str) -> LinkEntry:
    facts = load_facts("link").entries[name]
    return make_entry(LinkEntry, name, facts, link=make_entry(Link, name, facts))
