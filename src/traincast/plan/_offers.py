"""What can be rented or is owned (one cluster, the catalogue, a price list) to clusters of every allowed size."""

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from traincast import catalog
from traincast.errors import InvalidInput, did_you_mean
from traincast.files import read_json, read_toml
from traincast.noun import noun
from traincast.resolve import place
from traincast.spec import Cluster, Question

_OWN_KEYS = ("region", "max_nodes", "provider")


@noun
class Offer:
    """A machine that can be had: one node of it, where, and how many at most."""

    node: Cluster
    """One node with its links and price."""
    region: str = ""
    provider: str = ""
    max_nodes: int | None = None

    def __post_init__(self) -> None:
        if self.node.num_nodes != 1:
            raise InvalidInput(f"the offer {self.node.name!r} describes {self.node.num_nodes} nodes; describe one")
        if self.max_nodes is not None and self.max_nodes < 1:
            raise InvalidInput(f"max_nodes = {self.max_nodes}; it must be at least 1")


@noun
class Wanted:
    """Which offers count; empty: all."""

    min_devices: int = 1
    max_devices: int = 64
    regions: tuple[str, ...] = ()
    """Each a region or the beginning of one: 'us' takes us-east-1 too."""
    devices: tuple[str, ...] = ()
    node_counts: tuple[int, ...] | None = None
    """None: powers of two, and three times them."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_devices <= self.max_devices:
            raise InvalidInput(
                f"from {self.min_devices} to {self.max_devices} devices; give a range such as 8..64, smaller end first"
            )
        if self.node_counts is not None and (not self.node_counts or min(self.node_counts) < 1):
            raise InvalidInput(f"node counts {self.node_counts}; give whole numbers above 0")


@noun
class Chosen:
    """The clusters that count, and how many offers each wish left out."""

    clusters: tuple[Cluster, ...]
    left_out: Mapping[str, int]


def choose_machines(
    question: Question, wanted: Wanted | None, *, listed: Sequence[Offer] | None = None, source: str = ""
) -> Chosen:
    """The clusters of every allowed size: of the offers that are `listed` (`source`: where), else of the machine in the cluster
    part of a question. `wanted` None: that cluster as it is."""
    table = question.cluster
    named = [key for key in table if key != "price_per_device"]
    if listed is not None and wanted is not None:
        if named:
            raise InvalidInput(f"the machines come from {source}; leave out {', '.join(named)}")
        check_regions(listed, wanted.regions)
        chosen = size_offers(listed, wanted)
    else:
        cluster, _ = place(question)
        if isinstance(table.get("node"), str):
            cluster = dataclasses.replace(cluster, name=f"{cluster.num_nodes} x {table['node']}")
        if wanted is None or len(cluster.groups) > 1:
            return Chosen(clusters=(cluster,), left_out={})
        chosen = size_offers([offer_of(cluster)], wanted)
    if not chosen.clusters:
        reasons = ", ".join(f"{name} left out {count}" for name, count in chosen.left_out.items())
        raise InvalidInput(f"no machine is left to plan for ({reasons}); widen the GPUs, regions or devices")
    return chosen


def catalogue_offers(*, kinds: Sequence[str] = ("cloud",)) -> tuple[Offer, ...]:
    """Every machine of the catalogue that has a price."""
    return tuple(
        Offer(node=catalog.cluster(node.name), region=node.price_region, provider=node.provider)
        for node in catalog.nodes()
        if node.kind in kinds and node.usd_per_hour is not None
    )


def read_offers(path: str | os.PathLike[str]) -> tuple[Offer, ...]:
    """A price list: TOML or JSON with a list `offers`; each names a `node` or a `device`, its `usd_per_hour` and, if you
    like, `region`, `provider`, `max_nodes`, `devices_per_node`, `intra` and `inter`."""
    data = read_json(path) if Path(path).suffix == ".json" else read_toml(path)
    listed = data.get("offers") if isinstance(data, Mapping) else data
    if not isinstance(listed, list) or not listed:
        raise InvalidInput(f"{path} has no list 'offers'; write one table [[offers]] for each machine")
    return tuple(_read_offer(entry, where=f"{path}: offers[{index}]") for index, entry in enumerate(listed))


def _read_offer(entry: Any, *, where: str) -> Offer:
    if not isinstance(entry, Mapping):
        raise InvalidInput(f"{where} must be a table, not {entry!r}")
    own = {key: entry[key] for key in _OWN_KEYS if key in entry}
    for key in ("num_nodes", "nodes"):
        if key in entry:
            raise InvalidInput(f"{where} has {key}; an offer is one node, and max_nodes says how many there are")
    for key in ("region", "provider"):
        if not isinstance(own.get(key, ""), str):
            raise InvalidInput(f"{where}.{key} is {own[key]!r}; it must be a text")
    most = own.get("max_nodes")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool)):
        raise InvalidInput(f"{where}.max_nodes is {most!r}; it must be a whole number")
    cluster = catalog.cluster_from({key: value for key, value in entry.items() if key not in _OWN_KEYS}, where=where)
    name = entry.get("name") or entry.get("node")
    if isinstance(name, str):
        cluster = dataclasses.replace(cluster, name=f"1 x {name}")
    return Offer(node=cluster, **own)


def offer_of(cluster: Cluster) -> Offer:
    """One node of a cluster of equal nodes."""
    if len(cluster.groups) != 1:
        raise InvalidInput("a cluster of mixed nodes cannot be made larger or smaller; plan for it as it is")
    group = dataclasses.replace(cluster.groups[0], num_nodes=1)
    return Offer(node=dataclasses.replace(cluster, groups=(group,)))


def size_offers(offers: Iterable[Offer], wanted: Wanted) -> Chosen:
    """Clusters of every allowed size of every offer that is wanted."""
    clusters: list[Cluster] = []
    left_out: dict[str, int] = {}
    names = _device_names(wanted.devices)
    wanted_ones = [(offer, _refuse(offer, wanted, names)) for offer in offers]
    cheapest = _cheapest([offer for offer, reason in wanted_ones if not reason])
    for offer, refused in wanted_ones:
        dearer = (
            "" if refused or cheapest[hardware_of(offer.node)] is offer else "dearer than the same hardware elsewhere"
        )
        reason = refused or dearer
        sizes = [] if reason else list(_sizes(offer, wanted))
        if not sizes:
            reason = reason or "number of devices"
            left_out[reason] = left_out.get(reason, 0) + 1
        clusters.extend(_grow(offer.node, count) for count in sizes)
    return Chosen(clusters=tuple(clusters), left_out=left_out)


def hardware_of(cluster: Cluster) -> str:
    """What of a cluster says how fast it is; machines that are alike in it differ only in name and price."""
    return repr([dataclasses.replace(group, usd_per_hour=None) for group in cluster.groups])


def _cheapest(offers: Sequence[Offer]) -> dict[str, Offer]:
    """Of machines of equal hardware the one that costs least; an old price only where there is no other."""
    found: dict[str, Offer] = {}
    for offer in sorted(offers, key=_by_price):
        found.setdefault(hardware_of(offer.node), offer)
    return found


def _by_price(offer: Offer) -> tuple[bool, float]:
    usd = offer.node.usd_per_hour
    return not catalog.is_current(offer.node.price_date), math.inf if usd is None else usd


def _device_names(asked: Sequence[str]) -> frozenset[str]:
    return frozenset(catalog.device(name).name for name in asked)


def _refuse(offer: Offer, wanted: Wanted, names: frozenset[str]) -> str:
    if wanted.regions and not any(offer.region.lower().startswith(region.lower()) for region in wanted.regions):
        return "region"
    if names and not any(group.device.name in names for group in offer.node.groups):
        return "device"
    return ""


def _sizes(offer: Offer, wanted: Wanted) -> Iterator[int]:
    per_node = offer.node.num_devices
    most = wanted.max_devices // per_node
    if offer.max_nodes is not None:
        most = min(most, offer.max_nodes)
    counts = wanted.node_counts
    if counts is None:
        counts = tuple(sorted({times * 2**power for power in range(16) for times in (1, 3)}))
    yield from (count for count in counts if count <= most and count * per_node >= wanted.min_devices)


def _grow(node: Cluster, count: int) -> Cluster:
    group = dataclasses.replace(node.groups[0], num_nodes=count)
    return dataclasses.replace(node, name=f"{count} x {node.name.removeprefix('1 x ')}", groups=(group,))


def check_regions(offers: Iterable[Offer], regions: Sequence[str]) -> None:
    """Refuse a region that no offer has."""
    known = sorted({offer.region for offer in offers if offer.region})
    for region in regions:
        if not any(name.lower().startswith(region.lower()) for name in known):
            raise InvalidInput(
                f"no offer is in the region {region!r}; known: {', '.join(known)}{did_you_mean(region, known)}"
            )
