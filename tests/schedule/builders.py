"""Small real traces and fleets for the tests of the scheduler."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from traincast.schedule._floor import Floor
from traincast.schedule._jobs import NAMES, NUMBERS, JobTable
from traincast.schedule._lines import Line
from traincast.schedule._traces import write_columns
from traincast.spec._fleet import Fleet, NodePool, Schedule


def table(*rows: tuple[float, float, float], **columns: object) -> JobTable:
    """Rows of (submit, GPUs, duration)."""
    return JobTable.build(
        submit_s=[row[0] for row in rows],
        num_gpus=[row[1] for row in rows],
        duration_s=[row[2] for row in rows],
        **columns,  # type: ignore[arg-type]
    )


def fleet(num_nodes: int = 2, gpus_per_node: int = 4, **more: object) -> Fleet:
    return Fleet(pools=(NodePool(num_nodes=num_nodes, gpus_per_node=gpus_per_node),), **more)  # type: ignore[arg-type]


@st.composite
def job_tables(draw: st.DrawFn, *, max_jobs: int = 25, sizes: tuple[int, ...] = (1, 2, 3, 4, 8)) -> JobTable:
    count = draw(st.integers(1, max_jobs))
    rows = [
        (float(draw(st.integers(0, 60))), float(draw(st.sampled_from(sizes))), float(draw(st.integers(1, 80))))
        for _ in range(count)
    ]
    return table(*rows)


def gpus_in_use_are_possible(schedule: Schedule) -> bool:
    """At no moment does a node hold more GPUs than it has."""
    width: list[int] = []
    for pool in schedule.fleet.pools:
        width += [pool.gpus_per_node] * pool.num_nodes
    changes: dict[int, list[tuple[float, int, float]]] = {}
    for held in schedule.occupations:
        for node, count in held.nodes:
            changes.setdefault(node, []).extend([(held.start_s, 1, count), (held.end_s, 0, -count)])
    for node, events in changes.items():
        used = 0.0
        for _, _, change in sorted(events):
            used += change
            if used > width[node] + 1e-9 or used < -1e-9:
                return False
    return True


@dataclass(frozen=True)
class Called:
    """A policy that says the order of all waiting jobs at every look."""

    order: Callable[[Floor, float], list[int]]
    name: str = "called"
    fit: str = "skip"
    preemptive: bool = False

    def line(self, floor: Floor) -> Line:
        return Line(lambda now_s: self.order(floor, now_s))


def write_trace(jobs: JobTable, path: Path) -> None:
    """All columns of a table of jobs as a log of our own: parquet, or CSV by the ending."""
    columns: dict[str, list[Any]] = {
        "job_id": list(jobs.job_ids),
        "submit_s": jobs.submit_s.tolist(),
        "num_gpus": jobs.num_gpus.tolist(),
    }
    for name in NUMBERS:
        columns[name] = [None if math.isnan(value) else value for value in getattr(jobs, name).tolist()]
    for name, request_field in NAMES.items():
        columns[request_field] = list(getattr(jobs, name))
    write_columns(columns, path)
