"""Slurm's multifactor priority: age, fair share with a half-life, job size, partition and QOS."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from traincast.schedule._jobs import Floats, Ints, JobTable
from traincast.schedule._slurm.accounting import ROOT, Association
from traincast.schedule._slurm.site import Partition, SlurmSite

Leaf = tuple[str, str]


class ShareTree:
    """Accounts below root and users below accounts, with shares and decayed usage in billed seconds."""

    def __init__(self, known: Iterable[Association], leaves: Sequence[Leaf], *, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._parent: dict[object, object] = {}
        self._shares: dict[object, float] = {}
        self._children: dict[object, list[object]] = {ROOT: []}
        for entry in known:
            node: object = entry.account if entry.user is None else (entry.account, entry.user)
            self._add(node, entry.parent or ROOT, entry.shares)
        for account, user in leaves:  # whoever the accounts do not name has one share
            if account not in self._parent:
                self._add(account, ROOT, 1.0)
            if (account, user) not in self._parent:
                self._add((account, user), account, 1.0)
        self._usage: dict[object, float] = dict.fromkeys([*self._parent, ROOT], 0.0)
        self._at_s = 0.0
        self.leaves = [node for node in self._parent if isinstance(node, tuple)]

    def _add(self, node: object, parent: object, shares: float) -> None:
        if node in self._parent or node == ROOT:
            return
        self._parent[node] = parent
        self._shares[node] = shares
        self._children.setdefault(parent, []).append(node)
        if parent != ROOT and parent not in self._parent:
            self._add(parent, ROOT, 1.0)

    def decay(self, now_s: float) -> None:
        if math.isfinite(self._half_life_s) and self._half_life_s > 0:
            factor = 0.5 ** ((now_s - self._at_s) / self._half_life_s)
            self._usage = {node: used * factor for node, used in self._usage.items()}
        self._at_s = now_s

    def charge(self, leaf: Leaf, billed_s: float) -> None:
        node: object = leaf
        while node != ROOT:
            self._usage[node] += billed_s
            node = self._parent[node]
        self._usage[ROOT] += billed_s

    def fair_tree(self) -> dict[object, float]:
        """The rank of every user by level fair share, from 1 down; equals share a rank (Fair Tree, Cox and Morrison, 2014)."""
        ranked: list[object] = []
        ties: dict[object, object] = {}
        self._walk([ROOT], ranked, ties)
        count = len(ranked)
        factor: dict[object, float] = {}
        for at, leaf in enumerate(ranked):
            same = ties.get(leaf)
            factor[leaf] = factor[same] if same in factor else (count - at) / max(count, 1)
        return factor

    def _walk(self, parents: Sequence[object], ranked: list[object], ties: dict[object, object]) -> None:
        """Children of tied parents are ranked as siblings of one family."""
        level = []
        for parent in parents:
            family = self._children.get(parent, [])
            shares = sum(self._shares[node] for node in family) or 1.0
            used = sum(self._usage[node] for node in family)
            for node in family:
                share, usage = self._shares[node] / shares, self._usage[node] / used if used else 0.0
                level.append((math.inf if usage == 0 and share > 0 else share / usage if usage else 0.0, node))
        # Users stand before accounts of the same level fair share.
        level.sort(key=lambda entry: (-entry[0], not isinstance(entry[1], tuple)))
        at = 0
        while at < len(level):
            last = at
            while last < len(level) and level[last][0] == level[at][0]:
                last += 1
            users = [node for _, node in level[at:last] if isinstance(node, tuple)]
            for user in users:
                ties[user] = users[0]
                ranked.append(user)
            accounts = [node for _, node in level[at:last] if not isinstance(node, tuple)]
            if accounts:
                self._walk(accounts, ranked, ties)
            at = last


class Priorities:
    """The priority of every job as of the last recalculation, which comes once in a `PriorityCalcPeriod`."""

    def __init__(self, site: SlurmSite, jobs: JobTable, parts: Sequence[Partition], nodes: Ints) -> None:
        self._site, self._weights = site, site.weights
        self._submit_s = jobs.submit_s.copy()
        self._leaf_of: list[Leaf] = [
            (tenant or ROOT, user or "nobody") for tenant, user in zip(jobs.tenants, jobs.users, strict=True)
        ]
        self.tree = ShareTree(site.associations, self._leaf_of, half_life_s=site.weights.half_life_s)
        self._fixed = self._count_fixed(jobs, parts, nodes)
        self.billing = _bill(site, jobs)
        self.values = np.zeros(len(jobs))
        self._fair: dict[object, float] = {}
        self.calculated_s = -math.inf

    def _count_fixed(self, jobs: JobTable, parts: Sequence[Partition], nodes: Ints) -> Floats:
        """The factors that do not change while a job waits."""
        site, weights = self._site, self._weights
        factors = np.array([part.job_factor for part in parts])
        most = max((part.job_factor for part in site.partitions), default=1.0) or 1.0
        qos = np.array([site.qos[name].priority if name and name in site.qos else 0.0 for name in jobs.qos])
        most_qos = max((entry.priority for entry in site.qos.values()), default=0.0) or 1.0
        all_cpus = float(sum((pool.cpus_per_node or 0) * pool.num_nodes for pool in site.fleet.pools)) or 1.0
        cpus = np.nan_to_num(jobs.num_cpus)
        width = max(pool.gpus_per_node for pool in site.fleet.pools)
        part_of_cpus = np.where(cpus > 0, cpus / all_cpus, jobs.num_gpus / max(site.fleet.num_gpus, width))
        size = (nodes / max(site.fleet.num_nodes, 1) + part_of_cpus) / 2
        size = 1 - size if weights.favor_small else size
        found = weights.partition * factors / most + weights.qos * qos / most_qos + weights.job_size * size
        return np.asarray(found, dtype=np.float64)

    def recalculate(self, now_s: float) -> None:
        """To be called with usage charged until now."""
        self.calculated_s = now_s
        if self._weights.fair_share:
            self.tree.decay(now_s)
            self._fair = self.tree.fair_tree()

    def requeue(self, job: int, now_s: float) -> None:
        """Its age counts from now on."""
        self._submit_s[job] = now_s

    def charge(self, job: int, seconds: float) -> None:
        if self._weights.fair_share:
            self.tree.charge(self._leaf_of[job], seconds * self.billing[job])

    def of(self, job: int) -> float:
        weights = self._weights
        if weights.basic:
            return 0.0
        age = min(max(self.calculated_s - self._submit_s[job], 0.0) / weights.max_age_s, 1.0) if weights.age else 0.0
        fair = self._fair.get(self._leaf_of[job], 1.0) if weights.fair_share else 0.0
        return float(int(self._fixed[job] + weights.age * age + weights.fair_share * fair))


def _bill(site: SlurmSite, jobs: JobTable) -> Floats:
    """Billed units a second: CPUs, or GPUs where a log has no CPUs."""
    cpus = np.nan_to_num(jobs.num_cpus)
    factor = np.array([site.qos[name].usage_factor if name and name in site.qos else 1.0 for name in jobs.qos])
    return np.asarray(np.where(cpus > 0, cpus, jobs.num_gpus) * factor)
