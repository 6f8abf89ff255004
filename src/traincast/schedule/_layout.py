"""Jobs and conditions to the records of the event loop: jobs of one kind ask for the same, and wait in one line."""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.schedule._estimators import Beliefs, Fixed
from traincast.schedule._jobs import Floats, Ints, JobTable
from traincast.schedule._loop import ASKED, BY_REMAINING, BY_SERVICE, EASY, FUTURE, HEAD, REJECTED
from traincast.schedule._placement import CONSOLIDATED, NODE, NodeMap
from traincast.schedule._protocols import Conditions
from traincast.schedule._rules import Rule
from traincast.schedule._speeds import SameSpeed, TypeSpeeds, is_by_kind

JOB = np.dtype(
    [
        (name, np.float64)
        for name in ("submit", "gpus", "left", "guess", "limit", "key", "start", "end", "since", "attained")
    ]
    + [(name, np.float64) for name in ("rate", "expect", "sinks", "position")]
    + [(name, np.int32) for name in ("kind", "line", "head", "preemptions", "rank", "leaf")]
    + [(name, np.int8) for name in ("state", "killed", "level")]
)
"""`left` and `guess` are what still has to be done and what is believed about it, at rate 1. A run began or changed its rate at
`since`; it ends at `expect` and sinks a level at `sinks`, -1 if it does not. `position` is its number among those who run."""
KIND = np.dtype(
    [("gpus", np.int64), ("cost", np.float64), ("first", np.int64), ("last", np.int64), ("widest", np.int64)]
)
LINE = np.dtype(
    [(name, np.int64) for name in ("base", "size", "dead", "top", "tree", "leaves", "aside", "aside_version")]
)
RUN = np.dtype(
    [(name, np.int64) for name in ("fit", "order", "moving", "by_gpu", "counted", "one_by_one", "num_jobs", "cursor")]
    + [(name, np.int64) for name in ("waiting", "running", "passes", "ended", "events", "version", "part_free")]
    + [(name, np.int64) for name in ("reserved", "spots", "event_base", "nobody")]
    + [(name, np.float64) for name in ("reserved_s", "until_s", "lag_s")]
)


def _make_record(name: str, fields: Iterable[str], more: Iterable[str] = ()) -> Any:
    """A class with these attributes, which a row of an array with the same fields can be read into."""
    names = tuple(fields)

    def fill(self: Any, *values: Any) -> None:
        for field, value in zip(names, values, strict=True):
            setattr(self, field, value)

    return type(name, (), {"__slots__": (*names, *more), "__init__": fill})


Job, Kind, Run = (_make_record(*pair) for pair in (("Job", JOB.names), ("Kind", KIND.names), ("Run", RUN.names)))  # type: ignore[arg-type]
Line = _make_record("Line", LINE.names, ("heap",))  # type: ignore[arg-type]


@dataclass(slots=True, kw_only=True)
class Kinds:
    """Kinds of jobs, and beside each pool of a kind, the fastest first, its rate."""

    of_job: Ints
    gpus: list[float]
    cost: list[float]
    first: list[int]
    pools: list[int]
    rates: list[float]
    widest: list[int]
    same_speed: bool

    def pools_of(self, kind: int) -> tuple[int, ...]:
        return tuple(self.pools[self.first[kind] : self.first[kind + 1]])


def is_placed(rule: Rule, given: Conditions) -> bool:
    """Whether nodes are found by Python objects: a rule of placement of another kind, speeds that depend on the place, or a
    policy that places jobs itself."""
    if rule.fit == ASKED:
        return True
    plain = given.placer is CONSOLIDATED or given.placer.name == "count"
    return not (plain and isinstance(given.perf, (SameSpeed, TypeSpeeds)))


class Layout:
    """The beginning of a run, as arrays."""

    def __init__(self, jobs: JobTable, rule: Rule, given: Conditions, beliefs: Beliefs) -> None:
        self.jobs, self.rule, self.given = jobs, rule, given
        by_count = given.placer.name == "count"
        self.nodes = NodeMap(given.fleet, by_count=by_count)
        if by_count and (given.failures is not None or given.network is not None):
            raise InvalidInput("failures and networks act on nodes: use the placement consolidated, spread or topology")
        self.placed = is_placed(rule, given)
        self.counted = by_count or all(pool.num_nodes <= 1 for pool in given.fleet.pools)
        self.kinds = self._find_kinds(by_kind=is_by_kind(given.perf))
        self.impossible = (
            np.flatnonzero(np.diff(self.kinds.first)[self.kinds.of_job] == 0).tolist() if len(jobs) else []
        )
        self.estimate: Floats = beliefs.values_s if isinstance(beliefs, Fixed) else np.zeros(len(jobs))
        self._lay_lines()

    def _find_kinds(self, *, by_kind: bool) -> Kinds:
        jobs, given = self.jobs, self.given
        codes = [np.unique(jobs.num_gpus, return_inverse=True)[1].astype(np.int64)]
        if len(given.fleet.pools) > 1:
            codes.append(number(jobs.gpu_types))
        if not isinstance(given.perf, SameSpeed):
            codes.append(number(jobs.workloads) if by_kind else np.arange(len(jobs)))
        of_job: Any = combine(codes).astype(np.int32)
        found = Kinds(
            of_job=of_job, gpus=[], cost=[], first=[0], pools=[], rates=[], widest=[],
            same_speed=isinstance(given.perf, SameSpeed),
        )  # fmt: skip
        firsts = np.zeros(int(of_job.max(initial=-1)) + 1, dtype=np.int64)
        firsts[of_job[::-1]] = np.arange(len(jobs))[::-1]
        for job in firsts.tolist():
            self._add_kind(found, job)
        return found

    def _add_kind(self, found: Kinds, job: int) -> None:
        """The pools of a job's kind, the fastest first."""
        jobs, given, nodes = self.jobs, self.given, self.nodes
        gpus = float(jobs.num_gpus[job])
        wanted, pools = jobs.gpu_types[job], given.fleet.pools
        entries = []
        for index, pool in enumerate(pools):
            if not pool.num_nodes or (wanted is not None and len(pools) > 1 and pool.device != wanted):
                continue
            width = nodes.width[index]
            if gpus > width * len(nodes.nodes_in_pool[index]):
                continue
            rate = given.perf.rate(job, index, gpus, NODE if gpus <= width else 1)
            if rate > 0:
                entries.append((-rate, index))
        for minus, index in sorted(entries):
            found.pools.append(index)
            found.rates.append(-minus * given.overheads.useful_share)
        found.first.append(len(found.pools))
        found.gpus.append(int(gpus))
        found.cost.append(given.overheads.preemption_s(gpus))
        found.widest.append(max(nodes.width, default=0))

    def _lay_lines(self) -> None:
        """One line for all where the first job that does not fit blocks the rest, else one for every kind. Where later jobs
        may go first, a line is a tree of smallest estimates over its jobs in order."""
        rule, count = self.rule, len(self.jobs)
        self.line_of: Ints = np.broadcast_to(np.int32(0), count) if rule.fit == HEAD else self.kinds.of_job
        num_lines = 1 if rule.fit == HEAD else len(self.kinds.gpus)
        sizes = np.bincount(self.line_of, minlength=num_lines)
        self.lines = np.zeros(num_lines, dtype=LINE)
        self.lines["base"] = np.cumsum(sizes) - sizes
        self.lines["top"] = self.lines["aside"] = -1
        self.tree, self.leaf_job = np.zeros(0), np.zeros(0, dtype=np.int64)
        self.rank: Any = np.broadcast_to(np.int32(0), count)
        self.leaf: Any = self.rank
        if rule.fit != EASY:
            return
        self.rank, self.leaf = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int32)
        self.lines["leaves"] = leaves = 2 ** np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)
        self.lines["tree"] = np.cumsum(2 * leaves) - 2 * leaves
        self.tree = np.full(int(2 * leaves.sum()), math.inf)
        keys = self.jobs.submit_s if rule.column is None else rule.column
        order = np.lexsort((np.arange(count), self.jobs.submit_s, keys))
        self.rank[order] = np.arange(count)
        self.leaf_job = order[np.argsort(self.line_of[order], kind="stable")]
        self.leaf[self.leaf_job] = np.arange(count) - self.lines["base"][self.line_of[self.leaf_job]]

    def jobs_array(self) -> NDArray[Any]:
        jobs, given = self.jobs, self.given
        rows = np.zeros(len(jobs), dtype=JOB)
        rows["submit"], rows["gpus"], rows["left"], rows["guess"] = (
            jobs.submit_s, jobs.num_gpus, jobs.duration_s, self.estimate,
        )  # fmt: skip
        rows["limit"] = np.nan_to_num(jobs.limit_s, nan=math.inf) if given.kill_at_limit else math.inf
        rows["key"] = 0.0 if self.rule.column is None else self.rule.column
        rows["start"] = rows["expect"] = rows["sinks"] = -1.0
        rows["end"], rows["rate"] = math.nan, 1.0
        rows["kind"], rows["line"], rows["head"] = self.kinds.of_job, self.line_of, -1
        rows["state"], rows["rank"], rows["leaf"] = FUTURE, self.rank, self.leaf
        rows["state"][self.impossible] = REJECTED
        return rows

    def job_records(self) -> list[Any]:
        return [Job(*row) for row in self.jobs_array().tolist()]

    def kind_rows(self) -> list[tuple[Any, ...]]:
        kinds = self.kinds
        return list(zip(kinds.gpus, kinds.cost, kinds.first[:-1], kinds.first[1:], kinds.widest, strict=True))

    def kind_records(self) -> list[Any]:
        return [Kind(*row) for row in self.kind_rows()]

    def line_records(self) -> list[Any]:
        found = [Line(*row) for row in self.lines.tolist()]
        for line in found:
            line.heap = []
        return found

    def run_row(self) -> tuple[Any, ...]:
        rule, given = self.rule, self.given
        steady = self.kinds.same_speed and given.network is None and given.overheads.useful_share == 1.0
        known = {
            "fit": rule.fit,
            "order": rule.order,
            "moving": int(rule.order == BY_SERVICE or (rule.order == BY_REMAINING and not steady)),
            "by_gpu": rule.by_gpu,
            "counted": int(self.counted),
            "one_by_one": int(not given.compat.coalesce),
            "num_jobs": len(self.jobs),
            "reserved": -1,
            "nobody": -1,
            "until_s": float(given.until_s),
            "lag_s": float(given.compat.end_lag_s),
        }
        return tuple(known.get(name, 0) for name in RUN.names or ())

    def run_record(self) -> Any:
        return Run(*self.run_row())

    def refusal(self, job: int) -> str:
        return (
            f"needs {self.jobs.num_gpus[job]:g} GPUs of type {self.jobs.gpu_types[job] or 'any'}, "
            "which no pool of this fleet can ever give"
        )


def number(names: Iterable[Hashable]) -> Ints:
    """Equal names get equal numbers, from 0 on."""
    listed = list(names)
    numbers = {name: at for at, name in enumerate(dict.fromkeys(listed))}
    return np.array(list(map(numbers.__getitem__, listed)), dtype=np.int64)


def combine(codes: list[Ints]) -> Ints:
    """Rows that are equal in all columns get equal numbers, from 0 on, in order of the columns."""
    group = codes[0]
    for column in codes[1:]:
        group = group * (int(column.max(initial=0)) + 1) + column
        group = np.unique(group, return_inverse=True)[1].astype(np.int64)
    return group
