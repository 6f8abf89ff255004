"""Names of machines, or a device and a few numbers, to clusters with links and prices."""

import dataclasses
import datetime
import functools
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from traincast.catalog._devices import device as find_device
from traincast.catalog._devices import device_entry
from traincast.catalog._links import LinkLike, bundle, link, make_link
from traincast.catalog._names import load_facts, make_entry
from traincast.errors import InvalidInput, UnknownName, did_you_mean
from traincast.files import decode, read_json, read_toml
from traincast.noun import noun
from traincast.spec import Cluster, Device, Domain, Link, NodeGroup

Price = float | None | Literal["catalogue"]
DomainLike = Domain | Mapping[str, Any]

_GROUP_KEYS = ("node", "device", "num_nodes", "devices_per_node", "intra", "inter", "usd_per_hour", "speed", "domains",
               "nvme_bytes_per_s", "host_memory_bytes", "power_limit_watts")  # fmt: skip
CURRENT_DAYS = 183
_CLUSTER_KEYS = ("name", "groups", "price_date", "price_source")
# The keywords of `cluster` are shorter than the fields of the nouns; both are allowed in files.
_SHORT_KEYS = {"nodes": "num_nodes", "price": "usd_per_hour"}


@noun
class NodeType:
    """A machine that can be rented or bought: a cloud instance, a TPU slice, a known system."""

    name: str
    provider: str
    instance: str
    kind: str
    device: Device
    devices_per_node: int
    intra: Link
    inter: Link
    """All ports of the node together."""
    domains: tuple[Domain, ...]
    """Links that join more than one host, or fewer devices than it has."""
    network_source: str
    network_confidence: str
    num_vcpu: int | None = None
    ram_bytes: float | None = None
    usd_per_hour: float | None = None
    """On demand, of the whole node."""
    price_region: str = ""
    price_date: str = ""
    price_source: str = ""
    price_confidence: str = ""
    confidence: str = ""
    notes: str = ""
    corrected: str = ""
    aliases: tuple[str, ...] = ()


@noun
class Offer:
    """A price with where and when it was asked."""

    usd_per_hour: float | None = None
    date: str = ""
    source: str = ""


@noun
class Quote:
    """What one provider asks for one machine."""

    machine: str
    provider: str
    usd_per_hour: float
    """Of so many devices as were asked for."""
    terms: str = "on-demand"
    """on-demand, spot or reserved."""
    region: str = ""
    date: str = ""
    source: str = ""
    interruptions_per_day: float = 0.0
    """Of one node, where it may be taken away (spot)."""


def node(name: str) -> NodeType:
    """A machine by name or any known spelling: 'aws-p4d.24xlarge', 'p4d.24xlarge', 'dgx-h100'."""
    return _build(load_facts("node").find(name))


def nodes() -> tuple[NodeType, ...]:
    return tuple(_build(name) for name in load_facts("node").entries)


def cluster(
    machine: str | None = None, *, device: str | Device | None = None, nodes: int = 1, devices_per_node: int | None = None,
    intra: LinkLike | None = None, inter: LinkLike | None = None, price: Price = "catalogue", speed: float = 1.0,
    domains: Sequence[DomainLike] | None = None, name: str | None = None,
) -> Cluster:  # fmt: skip
    """Equal nodes: of a known machine (`cluster("aws-p4d.24xlarge", nodes=2)`) or around a device.

    What is left out comes from the machine, or from the node in which the device is most often found. `price` is
    that of one whole node in USD per hour; "catalogue" looks it up and None leaves it unknown. `domains` are levels beside
    the host and the cluster, such as Domain(num_devices=72, link=...) for hosts that share an NVLink rack.
    """
    group, offer = _make_group(
        machine, device=device, num_nodes=nodes, devices_per_node=devices_per_node, intra=intra, inter=inter, price=price,
        speed=speed, domains=domains,
    )  # fmt: skip
    title = name or f"{group.num_nodes} x {machine or f'{group.devices_per_node} {group.device.name}'}"
    return Cluster(name=title, groups=(group,), price_date=offer.date, price_source=offer.source)


def _as_one_group(data: Mapping[str, Any]) -> dict[str, Any]:
    whole = {key: value for key, value in data.items() if key in _CLUSTER_KEYS}
    return {**whole, "groups": [{key: value for key, value in data.items() if key not in _CLUSTER_KEYS}]}


def cluster_from(data: Mapping[str, Any], *, where: str = "cluster") -> Cluster:
    """A cluster from plain data: one group, or several under `groups`; each names a machine or a device."""
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{where} must be a table, not {data!r}")
    data = data if "groups" in data else _as_one_group(data)
    _check_keys(data, _CLUSTER_KEYS, where)
    listed = data["groups"]
    if not isinstance(listed, (list, tuple)) or not listed:
        raise InvalidInput(f"{where}.groups must be a list with at least one group of nodes")
    made = [_group_from(group, where=f"{where}.groups[{index}]") for index, group in enumerate(listed)]
    offers = [offer for _, offer in made]
    texts = {key: _text(data, key, where) for key in ("name", "price_date", "price_source")}
    groups = tuple(group for group, _ in made)
    return Cluster(
        name=texts["name"] or " + ".join(f"{g.num_nodes} x {g.devices_per_node} {g.device.name}" for g in groups),
        groups=groups,
        price_date=texts["price_date"] or min((offer.date for offer in offers if offer.date), default=""),
        price_source=texts["price_source"] or "; ".join(dict.fromkeys(o.source for o in offers if o.source)),
    )


def read_cluster(path: str | os.PathLike[str]) -> Cluster:
    """A cluster from a TOML or JSON file, at its top or under the key `cluster`."""
    data = read_json(path) if Path(path).suffix == ".json" else read_toml(path)
    inner = data.get("cluster", data) if isinstance(data, Mapping) else data
    return cluster_from(inner, where=f"{path}: cluster")


def find_offer(device: Device, *, devices_per_node: int) -> Offer:
    """The middle price of catalogue nodes with this device: of the same size, else by device from the nearest size."""
    return _find_offer(device.name, devices_per_node)


def list_quotes(device_name: str, *, devices_per_node: int) -> tuple[Quote, ...]:
    """The catalogue's prices of nodes with this device, of the same size or of the nearest, cheapest first."""
    nearest, chosen = _priced_nodes(device_name, devices_per_node)
    sources = load_facts("node").sources
    found = [
        Quote(
            machine=name, provider=entry["provider"], usd_per_hour=asked["usd_per_hour"] * devices_per_node / nearest,
            terms=asked["terms"], region=entry.get("price_region", ""), date=asked["date"],
            source=sources.get(asked["source"], ""),
        )
        for name, entry in chosen
        for asked in (_on_demand(entry), *entry.get("other_terms", ()))
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda quote: quote.usd_per_hour))


def _on_demand(entry: Mapping[str, Any]) -> dict[str, Any]:
    source, date = entry.get("price_source", ""), entry.get("price_date", "")
    return {"terms": "on-demand", "usd_per_hour": entry["usd_per_hour"], "date": date, "source": source}


def _priced_nodes(device_name: str, devices_per_node: int) -> tuple[int, list[tuple[str, Any]]]:
    """(devices of a node, names and entries of the machines that have a price and so many devices)."""
    priced = [
        (name, entry)
        for name, entry in load_facts("node").entries.items()
        if entry["device"] == device_name and "usd_per_hour" in entry
    ]
    sizes = {entry["devices_per_node"] for _, entry in priced}
    nearest = min(sizes, key=lambda size: _distance(size, devices_per_node), default=devices_per_node)
    return nearest, [(name, entry) for name, entry in priced if entry["devices_per_node"] == nearest]


@functools.cache
def newest_price() -> datetime.date:
    """The day of the newest price of the catalogue; prices of half a year before it are old."""
    dates = (entry["price_date"] for entry in load_facts("node").entries.values() if entry.get("price_date"))
    return datetime.date.fromisoformat(max(dates))


def is_current(date: str) -> bool:
    """Whether a price is of the same half year as the newest that ships."""
    return not date or (newest_price() - datetime.date.fromisoformat(date)).days <= CURRENT_DAYS


@functools.cache
def _find_offer(device_name: str, devices_per_node: int) -> Offer:
    nearest, priced = _priced_nodes(device_name, devices_per_node)
    if not priced:
        return Offer()
    # An old price is shown where there is no other.
    chosen = [each for each in priced if is_current(each[1]["price_date"])] or priced
    middle = statistics.median_low(entry["usd_per_hour"] for _, entry in chosen)
    scaled = "" if nearest == devices_per_node else f", scaled from {nearest} to {devices_per_node} devices"
    names = ", ".join(name for name, _ in chosen)
    return Offer(
        usd_per_hour=middle * devices_per_node / nearest,
        date=min(entry["price_date"] for _, entry in chosen),
        source=f"{'median ' if len(chosen) > 1 else ''}on-demand price of {names}{scaled}",
    )


@functools.cache
def usual_threads(device_name: str) -> float | None:
    """Hardware threads that a host has for each device of this type, in the middle of the machines with such devices; None: the
    catalogue has none."""
    found = [
        entry["num_vcpu"] / entry["devices_per_node"]
        for entry in load_facts("node").entries.values()
        if entry["device"] == device_name and entry.get("num_vcpu")
    ]
    return statistics.median(found) if found else None


def _distance(size: int, wanted: int) -> tuple[bool, float]:
    """The smallest machine that serves; where none has so many devices, several of the largest."""
    return size < wanted, size if size >= wanted else -size


def _make_group(
    machine: str | None, *, device: str | Device | None, num_nodes: int, devices_per_node: int | None, intra: LinkLike | None,
    inter: LinkLike | None, price: Price, speed: float, domains: Sequence[DomainLike] | None = None,
) -> tuple[NodeGroup, Offer]:  # fmt: skip
    if machine is not None and device is not None:
        raise InvalidInput(f"give the machine {machine!r} or a device, not both; a machine has its own devices")
    if machine is None and device is None:
        raise InvalidInput("give a machine such as 'aws-p4d.24xlarge' or a device such as 'h100'")
    _check_count("nodes", num_nodes)
    if devices_per_node is not None:
        _check_count("devices_per_node", devices_per_node)
    made = _of_machine(machine, devices_per_node) if machine is not None else None
    if made is None:
        made = _of_device(find_device(device if device is not None else str(machine)), devices_per_node)
    chip, count, usual_intra, usual_inter, usual_domains, offer = made
    if price != "catalogue":
        offer = Offer(usd_per_hour=_check_price(price), source="given" if price is not None else "")
    group = NodeGroup(
        device=chip, num_nodes=num_nodes, devices_per_node=count,
        intra=usual_intra if intra is None else make_link(intra, like=usual_intra, where="intra"),
        inter=usual_inter if inter is None else make_link(inter, like=usual_inter, where="inter"),
        usd_per_hour=offer.usd_per_hour, speed=speed, host_memory_bytes=_host_memory(machine, count),
        domains=usual_domains if domains is None else read_domains(domains, like=usual_intra, where="domains"),
    )  # fmt: skip
    return group, offer


def _split_domains(text: str, where: str) -> list[DomainLike]:
    found: list[DomainLike] = []
    for part in text.split(","):
        size, _, name = part.strip().partition(":")
        if not size.isdigit() or not name.strip():
            raise InvalidInput(f"{where} = {text!r}; write sizes and links such as 2:nvlink3-pairs,72:900GB/s")
        found.append({"num_devices": int(size), "link": name.strip()})
    return found


def read_domains(given: Sequence[DomainLike] | str, *, like: Link, where: str) -> tuple[Domain, ...]:
    """Domains as values, as tables with `num_devices` and a `link` in any way of naming one, or as words: 2:nvlink3-pairs."""
    if isinstance(given, str):
        given = _split_domains(given, where)
    if not isinstance(given, (list, tuple)):
        raise InvalidInput(f"{where} must be a list of tables with num_devices and link, not {given!r}")
    made: list[Domain] = []
    for index, each in enumerate(given):
        at = f"{where}[{index}]"
        if isinstance(each, Domain):
            made.append(each)
            continue
        if not isinstance(each, Mapping):
            raise InvalidInput(f"{at} must be a table with num_devices and link, not {each!r}")
        _check_keys(each, ("num_devices", "link"), at)
        _check_count(f"{at}.num_devices", each.get("num_devices"))
        made.append(
            Domain(
                num_devices=each["num_devices"], link=make_link(each.get("link", like), like=like, where=f"{at}.link")
            )
        )
    return tuple(made)


_Parts = tuple[Device, int, Link, Link, tuple[Domain, ...], Offer]


def _of_machine(name: str, devices_per_node: int | None) -> _Parts | None:
    """The parts of a known machine; None where the name is that of a device."""
    facts = load_facts("node")
    if isinstance(name, str) and facts.get(name) is None:
        chips = load_facts("device")
        if chips.get(name) is not None:
            return None
        raise UnknownName("machine", name, facts.entries, also=(*facts.aliases(), *chips.entries, *chips.aliases()))
    found = node(name)
    if devices_per_node is not None and devices_per_node > found.devices_per_node:
        raise InvalidInput(
            f"devices_per_node is {devices_per_node}; {found.name} has {found.devices_per_node}, so ask for at most that"
        )
    offer = Offer(usd_per_hour=found.usd_per_hour, date=found.price_date, source=found.price_source)
    count = devices_per_node or found.devices_per_node
    # A host of which a job uses only some devices leaves its domain as it is.
    domains = tuple(each for each in found.domains if each.num_devices % count == 0 or count % each.num_devices == 0)
    return found.device, count, found.intra, found.inter, domains, offer


def _host_memory(machine: str | None, count: int) -> float | None:
    """Of a known machine; a job that uses some of its devices is given their share."""
    if machine is None or load_facts("node").get(machine) is None:
        return None
    found = node(machine)
    return None if found.ram_bytes is None else found.ram_bytes * count / found.devices_per_node


def _of_device(chip: Device, devices_per_node: int | None) -> _Parts:
    """The parts of the node in which a device is most often found, scaled to the number of devices asked for."""
    facts = load_facts("device")
    if facts.get(chip.name) is None:
        raise InvalidInput(
            f"device {chip.name!r} is not in the catalogue, so its typical node is not known; "
            "give it the name of a similar device, or build the NodeGroup with both links"
        )
    typical = device_entry(chip.name).typical_node
    count = devices_per_node or typical.devices_per_node
    # Ports go with devices: half a node of eight devices and eight ports has four, a slice of 32 hosts those of all hosts.
    most_hosts = max(1.0, (typical.domain or 0) / typical.devices_per_node)
    num_ports = max(1, round(typical.num_ports * min(most_hosts, count / typical.devices_per_node)))
    usual_intra, usual_inter = link(typical.intra), bundle(link(typical.inter), num_ports=num_ports)
    # Hosts of the usual size share the links that reach beyond them; a larger "node" is a whole slice or rack by itself.
    shares = typical.domain is not None and count <= typical.devices_per_node and typical.domain % count == 0
    domains = (Domain(num_devices=typical.domain, link=usual_intra),) if shares and typical.domain else ()
    return chip, count, usual_intra, usual_inter, domains, find_offer(chip, devices_per_node=count)


def _group_from(data: Any, *, where: str) -> tuple[NodeGroup, Offer]:
    """Equal nodes as a table describes them."""
    group, offer = _read_group(data, where=where)
    limit = data.get("power_limit_watts")
    if limit is not None:
        group = dataclasses.replace(group, power_limit_watts=_check_number("power_limit_watts", limit))
    drives, memory = data.get("nvme_bytes_per_s"), data.get("host_memory_bytes")
    if drives is not None:
        group = dataclasses.replace(group, nvme_bytes_per_s=_check_number("nvme_bytes_per_s", drives))
    if memory is not None:
        group = dataclasses.replace(group, host_memory_bytes=_check_number("host_memory_bytes", memory))
    return group, offer


def _read_group(data: Any, *, where: str) -> tuple[NodeGroup, Offer]:
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{where} must be a table, not {data!r}")
    for short, long in _SHORT_KEYS.items():
        if short in data and long in data:
            raise InvalidInput(f"{where} has both {short} and {long}, which mean the same; keep one")
    group: dict[str, Any] = {_SHORT_KEYS.get(str(key), str(key)): value for key, value in data.items()}
    _check_keys(group, _GROUP_KEYS, where)
    chip = group.get("device")
    if isinstance(chip, Mapping):
        chip = decode(Device, chip, where=f"{where}.device")
        known = load_facts("device").get(chip.name) is not None
        if not known and not {"devices_per_node", "intra", "inter"} <= set(group):
            raise InvalidInput(
                f"{where}: for its own device {chip.name!r} it must give devices_per_node, intra and inter"
            )
        if not known:
            return _own_group(chip, group, where)
    elif chip is not None and not isinstance(chip, (str, Device)):
        raise InvalidInput(f"{where}.device must be a name or a table, not {chip!r}")
    try:
        return _make_group(
            group.get("node"), device=chip, num_nodes=group.get("num_nodes", 1),
            devices_per_node=group.get("devices_per_node"), intra=group.get("intra"), inter=group.get("inter"),
            price=group.get("usd_per_hour", "catalogue"), speed=_check_number("speed", group.get("speed", 1.0)),
            domains=group.get("domains"),
        )  # fmt: skip
    except UnknownName:
        raise
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error


def _own_group(chip: Device, group: Mapping[str, Any], where: str) -> tuple[NodeGroup, Offer]:
    price = group.get("usd_per_hour")
    _check_count(f"{where}.num_nodes", group.get("num_nodes", 1))
    _check_count(f"{where}.devices_per_node", group["devices_per_node"])
    intra = make_link(group["intra"], like=link("pcie4-x16"), where=f"{where}.intra")
    made = NodeGroup(
        device=chip, num_nodes=group.get("num_nodes", 1), devices_per_node=group["devices_per_node"], intra=intra,
        domains=read_domains(group.get("domains", ()), like=intra, where=f"{where}.domains"),
        inter=make_link(group["inter"], like=link("ethernet-10g"), where=f"{where}.inter"),
        usd_per_hour=_check_price(price), speed=_check_number("speed", group.get("speed", 1.0)),
    )  # fmt: skip
    return made, Offer(usd_per_hour=made.usd_per_hour, source="given" if price is not None else "")


def _check_keys(data: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in allowed:
            raise InvalidInput(
                f"{where} has the unknown key {key!r}; allowed: {', '.join(allowed)}{did_you_mean(str(key), allowed)}"
            )


def _check_count(what: str, count: Any) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InvalidInput(f"{what} is {count!r}; it must be a whole number of at least 1")


def _check_number(what: str, amount: Any) -> float:
    if not isinstance(amount, (int, float)) or isinstance(amount, bool):
        raise InvalidInput(f"{what} is {amount!r}; it must be a number")
    return float(amount)


def _check_price(price: Any) -> float | None:
    return None if price is None else _check_number("price", price)


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    value = data.get(key, "")
    if not isinstance(value, str):
        raise InvalidInput(f"{where}.{key} must be a text, not {value!r}")
    return value


@functools.cache
def _build(name: str) -> NodeType:
    table = load_facts("node")
    facts = table.entries[name]
    chip = find_device(facts["device"])
    # A single device has no peer: its slot stands in for the link, so that a node is always complete.
    intra = facts.get("intra") or device_entry(chip.name).typical_node.intra
    port = link(facts["inter"])
    num_ports = max(1, round(facts["inter_bytes_per_s"] / port.bytes_per_s))
    inter = dataclasses.replace(bundle(port, num_ports=num_ports), bytes_per_s=facts["inter_bytes_per_s"])
    return make_entry(
        NodeType, name, facts, device=chip, intra=link(intra), inter=inter,
        domains=read_domains(facts.get("domains", ()), like=link(intra), where=f"machine {name}"),
        network_source=table.sources[facts["network_source"]],
        price_source=table.sources.get(facts.get("price_source", ""), ""),
    )  # fmt: skip
