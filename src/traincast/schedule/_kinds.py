"""Jobs that ask for the same, as one kind: where they may run, how fast, and what of a node they can use."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from traincast.schedule._jobs import Floats, Ints, JobTable
from traincast.schedule._placement import NODE, Consolidated, NodeMap
from traincast.schedule._protocols import Conditions
from traincast.schedule._speeds import SameSpeed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindTable:
    """Columns by kind, and by kind and pool; `schedule.kernels.nodes.Kinds` says what they mean."""

    of_job: Ints
    gpus: Ints
    pool_first: Ints
    pools: Ints
    usable: Ints
    rate: Floats
    widest: Ints
    cpus: Floats
    memory: Floats
    scanned: Ints

    @property
    def same_speed(self) -> bool:
        return bool((self.rate == self.rate[0]).all())

    @property
    def impossible(self) -> Ints:
        """Kinds that no pool can ever give what they ask for."""
        return np.flatnonzero(np.diff(self.pool_first) == 0)


def find_kinds(jobs: JobTable, given: Conditions, nodes: NodeMap, beside: tuple[Floats, Floats]) -> KindTable:
    """Kinds by GPUs and, where it makes a difference, GPU type, workload, CPUs and memory (`beside` each GPU). What the first job
    of each kind asks for is told to the nodes."""
    codes = [np.asarray(jobs.num_gpus, dtype=np.int64)]
    if len(given.fleet.pools) > 1:
        codes.append(number(jobs.gpu_types))
    if not isinstance(given.perf, SameSpeed):
        codes.append(number(jobs.workloads))
    codes += [np.unique(column, return_inverse=True)[1] for column in beside if column.any()]
    of_job = combine(codes)
    first = np.zeros(int(of_job.max(initial=-1)) + 1, dtype=np.int64)
    first[of_job[::-1]] = np.arange(len(jobs))[::-1]
    nodes.per_gpu = _ask_beside(first, beside)
    found = [_describe(int(job), jobs, given, nodes) for job in first]
    entries = [entry for entries, _, _ in found for entry in entries]
    extra = [nodes.per_gpu.get(int(job), (0.0, 0.0)) for job in first]
    # One entry more, so that the first entry of a kind without pools can be read.
    padded = [*entries, (0, 1, 1.0, 1.0, 1.0)]
    return KindTable(
        of_job=of_job,
        gpus=np.array([int(jobs.num_gpus[job]) for job in first], dtype=np.int64),
        pool_first=np.cumsum([0, *(len(entries) for entries, _, _ in found)]).astype(np.int64),
        pools=np.array([entry[0] for entry in padded], dtype=np.int64),
        usable=np.array([entry[1] for entry in padded], dtype=np.int64),
        rate=np.array([entry[2:] for entry in padded], dtype=np.float64).reshape(-1),
        widest=np.array([widest for _, widest, _ in found], dtype=np.int64),
        cpus=np.array([cpus for cpus, _ in extra], dtype=np.float64),
        memory=np.array([memory for _, memory in extra], dtype=np.float64),
        scanned=np.array([scanned for _, _, scanned in found], dtype=np.int64),
    )


def _ask_beside(first: Ints, beside: tuple[Floats, Floats]) -> dict[int, tuple[float, float]]:
    """CPUs and memory beside each GPU, of the first jobs of their kinds that ask for any."""
    if not len(beside[0]):
        return {}
    asked = {int(job): (float(beside[0][job]), float(beside[1][job])) for job in first}
    return {job: pair for job, pair in asked.items() if pair != (0.0, 0.0)}


def number(names: Iterable[Hashable]) -> Ints:
    """Equal names get equal numbers, from 0 on."""
    listed = list(names)
    numbers = {name: at for at, name in enumerate(dict.fromkeys(listed))}
    return np.array(list(map(numbers.__getitem__, listed)), dtype=np.int64)


def combine(codes: list[Ints]) -> Ints:
    """Rows that are equal in all columns get equal numbers, from 0 on, in order of the columns."""
    group = codes[0]
    for column in codes[1:]:
        group = _squeeze(group) * (int(column.max(initial=0)) + 1) + column
    return _squeeze(group)


def _squeeze(column: Ints) -> Ints:
    """The same numbers without gaps."""
    top = int(column.max(initial=0)) + 1
    if top > 4 * len(column) + 1024:
        return np.unique(column, return_inverse=True)[1].astype(np.int64)
    used = np.zeros(top, dtype=np.int64)
    used[column] = 1
    return (np.cumsum(used) - 1)[column]


Entry = tuple[int, int, float, float, float]
"""A pool, the GPUs of an empty node that can be used, and the rates on one node, in one rack and across racks."""


def _describe(job: int, jobs: JobTable, given: Conditions, nodes: NodeMap) -> tuple[list[Entry], int, bool]:
    """The pools of a job's kind, the fastest first; GPUs of the widest node; and whether nodes must be looked at one by one."""
    gpus = int(jobs.num_gpus[job])
    wanted, pools = jobs.gpu_types[job], given.fleet.pools
    consolidated = nodes.by_count or isinstance(given.placer, Consolidated)
    found, scanned = [], job in nodes.per_gpu or not consolidated
    for index, pool in enumerate(pools):
        if wanted is not None and len(pools) > 1 and pool.device != wanted:
            continue
        if not pool.num_nodes or not given.placer.could_ever(nodes, gpus, index):
            continue
        width = nodes.width_for(job, index)
        rate = given.perf.rate(job, index, gpus, NODE if gpus <= width else 1)
        if gpus > width * len(nodes.nodes_in_pool[index]) or rate <= 0:
            continue
        rates = _find_rates(job, gpus, index, width, given, nodes)
        scanned |= gpus > width and rates[1] != rates[2]
        found.append((-rate, index, (index, width, *rates)))
    widest = max((nodes.width_for(job, pool) for pool in range(len(pools))), default=0)
    return [entry for _, _, entry in sorted(found)], widest, scanned


def _find_rates(
    job: int, gpus: int, pool: int, width: int, given: Conditions, nodes: NodeMap
) -> tuple[float, float, float]:
    """Rates by distance; where a distance cannot happen, no forecast is made for it and the nearest one stands there."""
    consolidated = nodes.by_count or isinstance(given.placer, Consolidated)
    nearest = NODE if gpus <= width else 1
    span = nodes.nodes_in_pool[pool]
    racks = nodes.rack_of[span.stop - 1] > nodes.rack_of[span.start]
    apart = gpus > 1 and (nearest == 1 or not consolidated)
    at = [nearest, 1 if apart else nearest, (2 if racks else 1) if apart else nearest]
    useful = given.overheads.useful_share
    known = {locality: given.perf.rate(job, pool, gpus, locality) * useful for locality in set(at)}
    return known[at[0]], known[at[1]], known[at[2]]
