"""A site as its scheduler sees it: nodes, partitions, QOS, shares and the parameters of slurmctld."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.schedule._jobs import JobTable
from traincast.schedule._slurm.accounting import (
    Association,
    Qos,
    read_associations,
    read_qos,
    read_table,
)
from traincast.schedule._slurm.conf import (
    ConfNode,
    ConfPartition,
    parse_slurm_time,
    read_conf,
    read_float,
    read_gres,
)
from traincast.schedule._slurm.unmodelled import name_unmodelled
from traincast.spec import Fleet, NodePool

DAY_S = 86400.0
Mask = NDArray[np.int64]


@noun
class Weights:
    """The multifactor priority: weights, the age that counts fully, and how usage is forgotten. `basic`: first come, first
    served."""

    basic: bool = True
    age: float = 0.0
    fair_share: float = 0.0
    job_size: float = 0.0
    partition: float = 0.0
    qos: float = 0.0
    max_age_s: float = 7 * DAY_S
    half_life_s: float = 7 * DAY_S
    period_s: float = 300.0
    favor_small: bool = False


@noun
class Cycle:
    """How slurmctld looks at its queue."""

    backfill: bool = True
    window_s: float = DAY_S
    interval_s: float = 30.0
    resolution_s: float = 60.0
    max_job_test: int = 500
    queue_depth: int = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    name: str
    nodes: Mask
    """1 for nodes that belong to it."""
    max_s: float = math.inf
    default_s: float = math.inf
    tier: int = 1
    job_factor: float = 1.0
    exclusive: bool = False
    max_nodes: float = math.inf
    qos: str | None = None
    preempt_mode: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlurmSite:
    """All rules of one site; arrays have an entry per node of the fleet, in its order."""

    fleet: Fleet
    node_names: tuple[str, ...]
    types: tuple[frozenset[str], ...]
    features: tuple[frozenset[str], ...]
    rank: Mask
    partitions: tuple[Partition, ...]
    default_partition: str
    qos: Mapping[str, Qos] = field(default_factory=dict)
    associations: tuple[Association, ...] = ()
    weights: Weights = field(default_factory=Weights)
    cycle: Cycle = field(default_factory=Cycle)
    whole_nodes: bool = False
    memory_counts: bool = True
    fullest_first: bool = True
    preempt_by: str = "none"
    preempt_mode: str = "OFF"
    notes: tuple[str, ...] = ()
    plain: bool = False
    """No slurm.conf was given: every partition of a log is the one that there is."""

    def partition_of(self, name: str | None) -> Partition | None:
        """The first of the partitions that a job names, or the default one."""
        names = [self.default_partition] if not name or self.plain else name.split(",")
        return next((part for wanted in names for part in self.partitions if part.name == wanted), None)

    def fill_limits(self, jobs: JobTable) -> JobTable:
        """Jobs without a limit of their own have that of their partition."""
        if not np.isnan(jobs.limit_s).any():
            return jobs
        limits = jobs.limit_s.copy()
        for job in np.flatnonzero(np.isnan(limits)).tolist():
            part = self.partition_of(jobs.partitions[job])
            seconds = math.inf if part is None else min(part.default_s, part.max_s)
            limits[job] = seconds if math.isfinite(seconds) else math.nan
        return replace(jobs, limit_s=limits)


def read_site(path: Path, *, qos: Path | None = None, accounts: Path | None = None) -> SlurmSite:
    """slurm.conf, and what `sacctmgr` says beside it."""
    conf = read_conf(path)
    nodes, notes = _usable_nodes(conf.nodes)
    names = tuple(node.name for node in nodes)
    parts = tuple(_read_partition(part, names) for part in conf.partitions.values())
    default = next((part.name for part in conf.partitions.values() if _says_yes(part.words, "default")), parts[0].name)
    by_qos, more = ({}, []) if qos is None else read_qos(qos)
    notes += more
    select = conf.words.get("selecttype", "select/cons_tres").lower()
    weights = sorted({node.weight for node in nodes})
    preempt = conf.words.get("preempttype", "preempt/none").lower().removeprefix("preempt/")
    return SlurmSite(
        fleet=_make_fleet(nodes),
        node_names=names,
        types=tuple(frozenset(kind for kind, _ in node.gpus if kind) for node in nodes),
        features=tuple(node.features for node in nodes),
        rank=np.array([weights.index(node.weight) for node in nodes], dtype=np.int64),
        partitions=parts,
        default_partition=default,
        qos=by_qos,
        associations=() if accounts is None else tuple(read_associations(accounts)),
        weights=_read_weights(conf.words),
        cycle=_read_cycle(conf.words),
        whole_nodes=select == "select/linear",
        memory_counts="memory" in conf.words.get("selecttypeparameters", "CR_Core_Memory").lower(),
        fullest_first="cr_lln" not in conf.words.get("selecttypeparameters", "").lower(),
        preempt_by={"qos": "qos", "partition_prio": "tier"}.get(preempt, "none"),
        preempt_mode=_first_mode(conf.words.get("preemptmode", "OFF")),
        notes=(*notes, *name_unmodelled(conf)),
    )


def read_sinfo(path: Path) -> Fleet:
    """The nodes in service that `sinfo -N -o "%N|%G|%c|%m|%T"` lists, as a fleet."""
    nodes = {}
    for row in read_table(path):
        if not {"NODELIST", "GRES", "STATE"} <= row.keys():
            break
        nodes[row["NODELIST"]] = ConfNode(
            name=row["NODELIST"],
            num_cpus=_count(row.get("CPUS", ""), 2**20),
            memory_bytes=_count(row.get("MEMORY", ""), 2**40) * 2.0**20,
            gpus=read_gres(row["GRES"]),
            features=frozenset(),
            weight=1,
            state=row["STATE"].upper(),
        )
    if not nodes:
        raise InvalidInput(f'{path} is not the output of sinfo -N -o "%N|%G|%c|%m|%T"')
    return _make_fleet(_usable_nodes(nodes)[0])


def _count(text: str, default: int) -> int:
    found = re.fullmatch(r"([0-9]{1,12})\+?", text.strip())
    return int(found[1]) if found else default


def plain_site(fleet: Fleet) -> SlurmSite:
    """Slurm as it comes, on any fleet: one partition, first come, first served, with backfill."""
    count = fleet.num_nodes
    types = tuple(frozenset([pool.device]) for pool in fleet.pools for _ in range(pool.num_nodes))
    return SlurmSite(
        plain=True,
        fleet=fleet,
        node_names=tuple(f"node{number}" for number in range(count)),
        types=types,
        features=(frozenset(),) * count,
        rank=np.zeros(count, dtype=np.int64),
        partitions=(Partition(name="all", nodes=np.ones(count, dtype=np.int64)),),
        default_partition="all",
    )


def _first_mode(text: str) -> str:
    words = [word for word in text.upper().replace(" ", "").split(",") if word != "GANG"]
    return words[0] if words else "SUSPEND"


def _says_yes(words: Mapping[str, str], key: str) -> bool:
    return words.get(key, "NO").upper().startswith("YES")


def _usable_nodes(listed: Mapping[str, ConfNode]) -> tuple[list[ConfNode], list[str]]:
    """Nodes with GPUs that are in service, those of one kind beside each other, and what is said about the others."""
    without = [node for node in listed.values() if not node.num_gpus]
    gone = [node for node in listed.values() if node.num_gpus and re.match("DOWN|DRAIN|FAIL|FUTURE", node.state)]
    notes = []
    if without:
        notes.append(f"{len(without):,} nodes without GPUs are not simulated")
    if gone:
        notes.append(f"{len(gone):,} nodes are not in service (State={gone[0].state}) and are not simulated")
    nodes = [node for node in listed.values() if node not in without and node not in gone]
    if not nodes:
        raise InvalidInput("no node with GPUs (Gres=gpu:...) is in service")
    kinds: dict[tuple[object, ...], int] = {}
    keyed = [(kinds.setdefault(_kind(node), len(kinds)), at, node) for at, node in enumerate(nodes)]
    return [node for _, _, node in sorted(keyed, key=lambda entry: entry[:2])], notes


def _kind(node: ConfNode) -> tuple[object, ...]:
    return (node.gpus, node.num_cpus, node.memory_bytes)


def _make_fleet(nodes: Sequence[ConfNode]) -> Fleet:
    """One pool for every run of equal nodes."""
    from traincast.schedule._study import device_watts

    pools: list[NodePool] = []
    last: tuple[object, ...] | None = None
    for node in nodes:
        if _kind(node) == last:
            pools[-1] = replace(pools[-1], num_nodes=pools[-1].num_nodes + 1)
            continue
        last = _kind(node)
        device = node.gpus[0][0] or "gpu"
        busy, idle = device_watts(device)
        pools.append(
            NodePool(
                device=device,
                num_nodes=1,
                gpus_per_node=node.num_gpus,
                busy_watts=busy,
                idle_watts=idle,
                cpus_per_node=node.num_cpus,
                memory_bytes_per_node=node.memory_bytes,
            )
        )
    return Fleet(pools=tuple(pools))


def _read_partition(part: ConfPartition, names: Sequence[str]) -> Partition:
    words = part.words
    members = set(part.nodes)
    max_s = parse_slurm_time(words.get("maxtime", "INFINITE"))
    default = words.get("defaulttime", "NONE")
    max_nodes = words.get("maxnodes", "UNLIMITED")
    priority = read_float(words, "priority", 1.0)
    return Partition(
        name=part.name,
        nodes=np.array([int(name in members) for name in names], dtype=np.int64),
        max_s=max_s,
        default_s=max_s if default.upper() == "NONE" else parse_slurm_time(default),
        tier=int(read_float(words, "prioritytier", priority)),
        job_factor=read_float(words, "priorityjobfactor", priority),
        exclusive=words.get("oversubscribe", words.get("shared", "NO")).upper().startswith("EXCLUSIVE"),
        max_nodes=float(max_nodes) if max_nodes.isdecimal() else math.inf,
        qos=words.get("qos"),
        preempt_mode=words["preemptmode"].upper() if "preemptmode" in words else None,
    )


def _read_weights(words: Mapping[str, str]) -> Weights:
    kind = words.get("prioritytype", "priority/multifactor").lower()

    def weight(key: str) -> float:
        return read_float(words, f"priorityweight{key}", 0.0)

    return Weights(
        basic=kind == "priority/basic",
        age=weight("age"),
        fair_share=weight("fairshare"),
        job_size=weight("jobsize"),
        partition=weight("partition"),
        qos=weight("qos"),
        max_age_s=parse_slurm_time(words.get("prioritymaxage", "7-0")),
        half_life_s=parse_slurm_time(words.get("prioritydecayhalflife", "7-0")),
        period_s=parse_slurm_time(words.get("prioritycalcperiod", "5")),
        favor_small=_says_yes(words, "priorityfavorsmall"),
    )


def _read_cycle(words: Mapping[str, str]) -> Cycle:
    given = dict(part.partition("=")[::2] for part in words.get("schedulerparameters", "").replace(" ", "").split(","))

    def number(key: str, default: float) -> float:
        text = given.get(key, "")
        return float(text) if re.fullmatch(r"\d{1,15}(\.\d{0,9})?", text) else default

    return Cycle(
        backfill=words.get("schedulertype", "sched/backfill").lower() == "sched/backfill",
        window_s=number("bf_window", 1440) * 60,
        interval_s=max(number("bf_interval", 30), 1.0),
        resolution_s=max(number("bf_resolution", 60), 1.0),
        max_job_test=int(number("bf_max_job_test", 500)),
        queue_depth=int(number("default_queue_depth", 100)),
    )
