"""The arrays on which the event loop works: jobs, nodes of several pools, lines, promises, events and the log."""

import math
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincast.schedule._estimators import Beliefs, Fixed, History
from traincast.schedule._hazards import Overheads
from traincast.schedule._jobs import Floats, Ints, JobTable, find_beside, find_parents
from traincast.schedule._kernels import lines, links, loop, order, reserve, residents, shadow, tables
from traincast.schedule._kernels.ends import Ends
from traincast.schedule._kernels.nodes import BITS, CONSOLIDATED, SPREAD, TOPOLOGY, Ground, Kinds, Nodes, recount_class
from traincast.schedule._kinds import combine, find_kinds, number
from traincast.schedule._network import find_traffic
from traincast.schedule._placement import AnyGpus, Consolidated, NodeMap
from traincast.schedule._protocols import Conditions

_RUNS_AT_ONCE = 65536
_MOST_CLASSES = 16
"""Every class is counted at every start and end; beyond this many a look at the nodes costs less."""
_RULES = {"consolidated": CONSOLIDATED, "count": CONSOLIDATED, "spread": SPREAD, "topology": TOPOLOGY}


Shell = Callable[[Any], Any]
"""Makes a column of an array: a list where the loop is interpreted."""


class State(NamedTuple):
    """What the loop is called with, but for its rules and the failures."""

    jobs: tables.Jobs
    nodes: Nodes
    kinds: Kinds
    beliefs: tables.Beliefs
    lines: loop.Lines
    promises: links.Promises
    events: tables.Events
    log: tables.Log


class Desk:
    """The columns of one run; `shell` makes them lists where the loop is interpreted."""

    def __init__(self, jobs: JobTable, given: Conditions, beliefs: Beliefs, *, lists: bool) -> None:
        self.jobs = jobs
        self.given = given
        self.shell: Shell = (lambda array: array.tolist()) if lists else (lambda array: array)
        self._beliefs = beliefs
        beside = find_beside(jobs, given.fleet)
        one_node = all(pool.num_nodes <= 1 for pool in given.fleet.pools)
        # Whole GPUs of one node need no place.
        by_count = isinstance(given.placer, AnyGpus) or (one_node and not len(beside[0]) and given.failures is None)
        self.node_map = NodeMap(given.fleet, by_count=by_count)
        self.kinds = find_kinds(jobs, given, self.node_map, beside)
        self.impossible = np.isin(self.kinds.of_job, self.kinds.impossible)
        self.estimate: Floats = beliefs.values_s if isinstance(beliefs, Fixed) else np.zeros(len(jobs))
        self.costs = _find_costs(given.overheads, self.kinds.gpus)[self.kinds.of_job]
        self._parents = find_parents(jobs)
        total = sum(self.node_map.up_in_pool)
        self.most_running = min(len(jobs), total) + 1

    @property
    def has_parents(self) -> bool:
        return bool(self._parents)

    def floats(self, count: int, value: float = 0.0) -> Any:
        return self.shell(np.full(count, value))

    def ints(self, count: int, value: int = 0) -> Any:
        return self.shell(np.full(count, value, dtype=np.int64))

    def lay_out(self, rules: tables.Rules, keys: Floats | None, *, fails: bool) -> State:
        """`keys` are numbers by which the line goes, the smallest first, where they are known before the run."""
        nodes = self._lay_nodes()
        self._count_classes(nodes)
        rank = None
        if rules.by_key and keys is not None:
            rank = np.empty(len(self.jobs), dtype=np.int64)
            rank[np.lexsort((np.arange(len(self.jobs)), self.jobs.submit_s, keys))] = np.arange(len(self.jobs))
        easy = rules.fit == tables.EASY
        demand, share = self._find_traffic()
        return State(
            jobs=self._lay_jobs(rules, rank),
            nodes=nodes,
            kinds=self._lay_kinds(),
            beliefs=self._lay_beliefs(rules),
            lines=loop.Lines(
                line=self._lay_line(rules, rank),
                waiting=self._lay_waiting(rules),
                running=self._lay_running(rules),
                news=tables.News(size=self.ints(1), what=self.ints(1), who=self.ints(1)),
            ),
            promises=links.Promises(
                ends=self._lay_ends(len(self.jobs) + 1 if easy else 1),
                shadow=self._lay_shadow(nodes, wanted=easy),
                profile=self._lay_profile(planned=rules.fit == tables.CONSERVATIVE),
                links=self._lay_links(demand, share),
            ),
            events=self._lay_events(rules, demand),
            log=lay_log(self.shell, self.most_running, len(nodes.part_node), wanted=self.given.record),
        )

    def _lay_jobs(self, rules: tables.Rules, rank: Ints | None) -> tables.Jobs:
        jobs, count, shell = self.jobs, len(self.jobs), self.shell
        stops = rules.fit == tables.PREEMPT
        limited = self.given.kill_at_limit
        parents, child_first, children = lay_parents(self._parents, count, shell)
        gpus, since = shell(self.kinds.gpus[self.kinds.of_job]), self.floats(count)
        # Only where speeds change on the way, a run has begun before its speed was last set.
        opened = since if self.given.network is None else self.floats(count)
        return tables.Jobs(
            # The loop is compiled for columns that can be written.
            submit=shell(np.require(jobs.submit_s, np.float64, ["C", "W"])),
            gpus=gpus,
            left=shell(jobs.duration_s.copy()),
            guess=shell(self.estimate.copy()),
            limit=shell(np.nan_to_num(jobs.limit_s, nan=math.inf) if limited else np.full(count, math.inf)),
            cost=shell(self.costs),
            keys=self.floats(count) if rank is None else shell(rank.astype(np.float64)),
            start=shell(np.where(self.impossible, -3.0, -1.0)),
            end=self.floats(count, math.nan),
            since=since,
            attained=self.floats(count),
            rate=self.floats(count, 1.0),
            killed=self.ints(count),
            preemptions=self.ints(count if stops else 0),
            level=self.ints(count if stops else 0),
            position=self.floats(count if stops else 0),
            parents=parents,
            child_first=child_first,
            children=children,
            pool_s=self.floats(len(self.given.fleet.pools)),
            opened=opened,
            held=gpus,
            charged=gpus,
            gpu_s=self.floats(0),
        )

    def _lay_kinds(self) -> Kinds:
        known, shell = self.kinds, self.shell
        return Kinds(
            of_job=shell(known.of_job),
            gpus=shell(known.gpus),
            pool_first=shell(known.pool_first),
            pools=shell(known.pools),
            usable=shell(known.usable),
            rate=shell(known.rate),
            widest=shell(known.widest),
            beside=shell(((known.cpus > 0) | (known.memory > 0)).astype(np.int64)),
            cpus=shell(known.cpus),
            memory=shell(known.memory),
            scanned=shell(known.scanned),
            of_class=shell(self._classes[0]),
        )

    def _lay_nodes(self) -> Nodes:
        known, shell = self.node_map, self.shell
        widths = [0] * len(known.width) if known.by_count else known.width
        spans = known.nodes_in_pool
        bits, bits_at, hist, hist_at, words = _lay_bitmaps(widths, [len(span) for span in spans], known.free_in_pool)
        parts = max(sum(known.up_in_pool), 1)
        beside = bool(known.per_gpu)
        num_nodes = len(known.free)
        # A node with no beginning stands for an empty pool.
        return Nodes(
            rule=_RULES[self.given.placer.name],
            free=shell(np.array(known.free, dtype=np.int64)),
            pool_of=shell(np.array(known.pool_of, dtype=np.int64)),
            rack_of=shell(np.array(known.rack_of, dtype=np.int64)),
            first=shell(np.array([span.start for span in spans] + [num_nodes], dtype=np.int64)),
            width=shell(np.array(widths, dtype=np.int64)),
            words=shell(words),
            bits_at=shell(bits_at),
            bits=shell(bits),
            hist_at=shell(hist_at),
            hist=shell(hist),
            room=shell(np.array([sum(known.free_in_pool)], dtype=np.int64)),
            head=self.ints(len(self.jobs), -1),
            part_node=self.ints(parts),
            part_gpus=self.ints(parts),
            part_next=shell(np.append(np.arange(1, parts), -1).astype(np.int64)),
            part_free=self.ints(1),
            cpus=shell(np.array(known.free_cpus if beside else [0.0], dtype=np.float64)),
            memory=shell(np.array(known.free_memory if beside else [0.0], dtype=np.float64)),
            spot_node=self.ints(num_nodes + 1),
            spot_gpus=self.ints(num_nodes + 1),
            spot_size=self.ints(1),
            spot_rate=self.floats(1),
            avail=self.ints(num_nodes + 1),
            levels=self.ints(max(known.width, default=0) + 2),
            in_rack=self.ints(max(known.rack_of, default=0) + 1),
            class_cpus=shell(self._classes[1]),
            class_memory=shell(self._classes[2]),
            seen=self.ints(len(self._classes[1]) * num_nodes),
            steps=self.ints(len(self._classes[1]) * len(known.width) * (max(known.width, default=0) + 2)),
        )

    @cached_property
    def _classes(self) -> tuple[Ints, Floats, Floats]:
        """What kinds ask for beside each GPU: the class of each kind, and the CPUs and memory of each class."""
        known = self.kinds
        pairs = list(zip(known.cpus.tolist(), known.memory.tolist(), strict=True))
        asked = sorted({pair for pair in pairs if pair != (0.0, 0.0)})
        if len(asked) > _MOST_CLASSES or self.node_map.by_count:
            asked = []
        of_kind = [asked.index(pair) if pair in asked else -1 for pair in pairs]
        cpus, memory = ([pair[which] for pair in asked] for which in (0, 1))
        return np.array(of_kind, dtype=np.int64), np.array(cpus, dtype=np.float64), np.array(memory, dtype=np.float64)

    def _count_classes(self, nodes: Nodes) -> None:
        """All nodes are empty at first."""
        for at in range(len(nodes.class_cpus)):
            for node, pool in enumerate(nodes.pool_of):
                nodes.steps[(at * len(nodes.width) + pool) * len(nodes.levels)] += 1
                recount_class(at, node, nodes)

    def _lay_beliefs(self, rules: tables.Rules) -> tables.Beliefs:
        """Nothing is learned for rules that never ask how long a job will run."""
        asks = rules.key != tables.GIVEN_KEY or rules.fit in (tables.EASY, tables.CONSERVATIVE)
        asks |= rules.fit == tables.PREEMPT and rules.order in (tables.BY_REMAINING, tables.BY_SERVICE)
        history = self._beliefs if isinstance(self._beliefs, History) and asks else None
        jobs = self.jobs
        if history is None:
            return tables.Beliefs(
                wanted=0, groups=self.ints(1), sums=self.floats(1), counts=self.ints(1), factor=self.floats(1), prior_s=0.0
            )  # fmt: skip
        who = number(user or tenant for user, tenant in zip(jobs.users, jobs.tenants, strict=True))
        work, gpus = number(jobs.workloads), np.asarray(jobs.num_gpus, dtype=np.int64)
        columns = [combine([who, work, gpus]), combine([who, gpus]), combine([gpus]), np.zeros(len(jobs), np.int64)]
        sizes = [int(column.max(initial=0)) + 1 for column in columns]
        starts = np.cumsum([0, *sizes])
        groups = np.stack([column + starts[at] for at, column in enumerate(columns)], axis=1).reshape(-1)
        return tables.Beliefs(
            wanted=1,
            groups=self.shell(groups),
            sums=self.floats(int(starts[-1])),
            counts=self.ints(int(starts[-1])),
            factor=self.shell(np.require(history.factors, np.float64, ["C", "W"])),
            prior_s=history.prior_s,
        )

    def _lay_line(self, rules: tables.Rules, rank: Ints | None) -> lines.Line:
        """Places in the line of a kind are known before the run; none where jobs are not kept by kind."""
        shell, count = self.shell, len(self.jobs)
        in_kinds = rules.fit in (tables.SKIP, tables.EASY)
        rank = np.arange(count) if rank is None else rank
        rank, of_job = (rank, self.kinds.of_job) if in_kinds else (rank[:0], self.kinds.of_job[:0])
        sizes = np.bincount(of_job, minlength=len(self.kinds.gpus))
        firsts = _offsets(sizes)
        job_at = np.lexsort((rank, of_job)).astype(np.int64)
        place_of = np.empty(len(rank), dtype=np.int64)
        place_of[job_at] = np.arange(len(rank)) - firsts[of_job[job_at]]
        leaves = np.array([1 << max(int(size) - 1, 0).bit_length() for size in sizes], dtype=np.int64)
        heap = count if rules.by_key and rules.fit == tables.HEAD_ONLY else 1
        return lines.Line(
            keys=self.floats(heap),
            jobs=self.ints(heap),
            size=self.ints(1),
            place_of=shell(place_of),
            job_at=shell(job_at),
            rank=shell(rank),
            base=shell(_offsets(2 * leaves)),
            leaves=shell(leaves),
            first=shell(firsts),
            tree=self.floats(int(2 * leaves.sum()), math.inf),
            failed=self.ints(len(sizes)),
            queue=self.ints(count + 1 if rules.fit == tables.CONSERVATIVE else 1),
        )

    def _lay_waiting(self, rules: tables.Rules) -> order.Waiting:
        stops = rules.fit == tables.PREEMPT
        sizes = np.bincount(self.kinds.of_job, minlength=len(self.kinds.gpus))
        room = len(self.jobs) if stops else 1
        return order.Waiting(
            base=self.shell(_offsets(sizes)),
            keys=self.floats(room),
            jobs=self.ints(room),
            size=self.ints(len(sizes)),
            dead=self.ints(len(sizes)),
        )

    def _lay_running(self, rules: tables.Rules) -> order.Running:
        most = self.most_running + 1
        stops = rules.fit == tables.PREEMPT
        parts = max(sum(self.node_map.up_in_pool), 1) + 1
        return order.Running(
            keys=self.floats(2 * most + 8),
            jobs=self.ints(2 * most + 8),
            begin=self.ints(1, most // 2),
            residents=self._lay_residents(parts, wanted=stops and not self.node_map.by_count),
            heap_keys=self.floats(parts if stops else 1),
            heap_jobs=self.ints(parts if stops else 1),
            heap_size=self.ints(1),
            losers=self.ints(most),
            chosen=self.ints(most),
            gain=self.ints(len(self.node_map.free)),
            quota=self.ints(len(self.given.fleet.pools)),
        )

    def _lay_residents(self, parts: int, *, wanted: bool) -> residents.Residents:
        """Who is on each node is known only where jobs make way for others; all nodes are empty at first."""
        count = len(self.node_map.free) if wanted else 0
        leaves = 1 << max(count - 1, 0).bit_length()
        tree = np.full(2 * leaves, -residents.BIG)
        tree[leaves : leaves + count] = residents.BIG
        for at in range(leaves - 1, 0, -1):
            tree[at] = max(tree[2 * at], tree[2 * at + 1])
        return residents.Residents(
            first=self.ints(count, -1),
            after=self.ints(parts if wanted else 0, -1),
            before=self.ints(parts if wanted else 0, -1),
            owner=self.ints(parts if wanted else 0),
            tree=self.shell(tree),
            stale=self.ints(1),
        )

    def _lay_ends(self, entries: int) -> Ends:
        """Believed ends are kept for backfill only."""
        return Ends(
            at=self.floats(entries),
            gpus=self.shell(self.kinds.gpus[self.kinds.of_job]),
            lower=self.ints(entries, -1),
            upper=self.ints(entries, -1),
            total=self.ints(entries),
            root=self.ints(1, -1),
            path=self.ints(self.most_running + 1),
        )

    def _lay_shadow(self, nodes: Nodes, *, wanted: bool) -> shadow.Shadow:
        count = len(nodes.free) + 1 if wanted else 1
        spare = Ground(
            free=self.ints(count),
            bits=self.ints(1),
            hist=self.ints(len(nodes.hist)),
            room=self.ints(1),
            cpus=self.floats(len(nodes.cpus)),
            memory=self.floats(len(nodes.memory)),
            seen=self.ints(len(nodes.seen) if wanted else 0),
            steps=self.ints(len(nodes.steps) if wanted else 0),
        )
        return shadow.Shadow(
            spare=spare,
            gain=self.ints(count),
            touched=self.ints(count),
            state=self.ints(4),
            begin=self.floats(1),
            node=self.ints(count),
            left=self.ints(count),
            cpus=self.floats(count),
            memory=self.floats(count),
            held=self.ints(count),
            whole=self.floats(2 * count),
            beside=self.ints(len(self.kinds.gpus)),
        )

    def _lay_profile(self, *, planned: bool) -> reserve.Profile:
        most, count = self.most_running + 1, len(self.jobs)
        return reserve.Profile(
            run_ends=self.floats(most if planned else 1),
            run_gpus=self.ints(most if planned else 1),
            times=self.floats(most + count + 1 if planned else 1),
            room=self.ints(most + count + 1 if planned else 1),
        )

    def _lay_events(self, rules: tables.Rules, demand: Floats) -> tables.Events:
        stops = rules.fit == tables.PREEMPT
        room = 6 * self.most_running + (2 * len(self.jobs) if stops else 0) + 64
        return tables.Events(
            keys=self.floats(room),
            tokens=self.ints(room),
            size=self.ints(1),
            expect=self.floats(2 * len(self.jobs) + 2, -1.0),
            moves=self._lay_moves(demand),
        )

    def _stay_on_one_node(self) -> NDArray[np.bool_]:
        """Kinds that never cross racks: of one GPU, or placed on one node wherever they may run."""
        known = self.kinds
        spans = zip(known.pool_first[:-1], known.pool_first[1:], strict=True)
        least = np.array([min(known.usable[first:last], default=0) for first, last in spans])
        alone: NDArray[np.bool_] = known.gpus == 1
        return alone | (known.gpus <= least) if isinstance(self.given.placer, Consolidated) else alone

    def _find_traffic(self) -> tuple[Floats, Floats]:
        """What jobs that may cross racks would send, and for which share of their time; nothing where links are not shared."""
        if self.given.network is None:
            return np.zeros(0), np.zeros(0)
        demand, share = find_traffic(self.given.network, self.jobs)
        return np.where(self._stay_on_one_node()[self.kinds.of_job], 0.0, demand), share

    def _lay_moves(self, demand: Floats) -> tables.Moves:
        room = 3 * self.most_running + 8 if len(demand) else 0
        return tables.Moves(size=self.ints(1), jobs=self.ints(room), demand=self.shell(demand))

    def _lay_links(self, demand: Floats, share: Floats) -> links.Links:
        """Uplinks of which nobody uses any yet."""
        wanted, count = len(demand) > 0, len(demand)
        racks = max(self.node_map.rack_of, default=0) + 1 if wanted else 0
        entries = sum(self.node_map.up_in_pool) + 1 if wanted else 0
        widths = np.array([self.node_map.width[pool] for pool in self.node_map.pool_of], dtype=np.int64)
        in_rack = np.bincount(self.node_map.rack_of, weights=widths, minlength=racks) if wanted else np.zeros(0)
        return links.Links(
            capacity=float(self.given.fleet.rack_uplink_bytes_per_s or 0.0),
            demand=self.shell(demand),
            share=self.shell(share),
            base=self.floats(count),
            path=self.ints(count, -1),
            entry_rack=self.ints(entries),
            entry_next=self.shell(np.append(np.arange(1, entries), -1).astype(np.int64)),
            free=self.ints(1),
            first=self.shell(_offsets(in_rack.astype(np.int64))),
            counts=self.ints(racks),
            members=self.ints(int(in_rack.sum()) + 1),
            group=self.ints(self.most_running if wanted else 0),
            grant=self.floats(self.most_running if wanted else 0),
            seen=self.ints(count),
            racks=self.ints(racks),
            num_racks=self.ints(1),
            rack_seen=self.ints(racks),
            left=self.floats(racks),
            users=self.ints(racks),
        )


def lay_log(shell: Shell, most_running: int, parts: int, *, wanted: bool) -> tables.Log:
    runs = _RUNS_AT_ONCE + 2 * most_running if wanted else 1
    places = 2 * runs + 2 * parts if wanted else 1
    return tables.Log(
        wanted=int(wanted),
        jobs=shell(np.zeros(runs, dtype=np.int64)),
        spans=shell(np.zeros(2 * runs)),
        first=shell(np.zeros(runs, dtype=np.int64)),
        nodes=shell(np.zeros(places, dtype=np.int64)),
        gpus=shell(np.zeros(places, dtype=np.int64)),
    )


def lay_parents(parents_of: Mapping[int, Collection[int]], count: int, shell: Shell) -> tuple[Any, Any, Any]:
    """How many jobs each waits for, and who waits for each: where its children begin, and the children."""
    waits = np.zeros(count, dtype=np.int64)
    pairs = sorted((parent, child) for child, parents in parents_of.items() for parent in parents)
    for child, parents in parents_of.items():
        waits[child] = len(parents)
    first = np.searchsorted([parent for parent, _ in pairs], np.arange(count + 1)) if pairs else np.zeros(1)
    children = np.array([child for _, child in pairs], dtype=np.int64)
    return shell(waits), shell(first.astype(np.int64)), shell(children)


def _lay_bitmaps(widths: list[int], counts: list[int], free: list[int]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Bitmaps of nodes by free GPUs and histograms, pool after pool, all nodes free; where each pool begins in both."""
    bits: list[Ints] = []
    hist: list[Ints] = []
    words = [max(-(-count // BITS), 1) for count in counts]
    for width, count, pool_words, total in zip(widths, counts, words, free, strict=True):
        tops = -(-pool_words // BITS)
        own = np.zeros((width + 1) * (pool_words + tops) if width else 1, dtype=np.int64)
        for node in range(count if width else 0):
            own[width * pool_words + node // BITS] |= 1 << (node % BITS)
        for word in np.flatnonzero(own[width * pool_words : (width + 1) * pool_words]).tolist() if width else ():
            own[(width + 1) * pool_words + width * tops + word // BITS] |= 1 << (word % BITS)
        bits.append(own)
        steps = np.zeros(width + 2, dtype=np.int64)
        steps[0] = total
        steps[1 + width] += count if width else 0
        hist.append(steps)
    starts = [_offsets(np.array([len(part) for part in column])) for column in (bits, hist)]
    return np.concatenate(bits), starts[0], np.concatenate(hist), starts[1], np.array(words, dtype=np.int64)


def _find_costs(overheads: Overheads, gpus: Ints) -> Floats:
    """Seconds that a preemption costs, by kind."""
    return np.array([overheads.preemption_s(float(count)) for count in gpus], dtype=np.float64)


def _offsets(sizes: Any) -> Ints:
    offsets = np.zeros(len(sizes), dtype=np.int64)
    np.cumsum(sizes[:-1], out=offsets[1:])
    return offsets
