"""Requests as columns: what the engine, the kernels and the metrics read."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput, UnknownName
from traincast.spec import Request, Schedule

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NUMBERS: Mapping[str, float] = {
    "duration_s": math.nan,
    "deadline_s": math.nan,
    "priority": 0.0,
    "steps": math.nan,
    "min_gpus": math.nan,
    "max_gpus": math.nan,
    "limit_s": math.nan,
    "started_s": math.nan,
    "ran_s": math.nan,
    "num_nodes": math.nan,
    "num_cpus": math.nan,
    "memory_bytes": math.nan,
    "exclusive": 0.0,
    "array_limit": math.nan,
}
"""Columns of numbers that a table may lack, with what then stands there; a request has a field of the same name."""
NAMES: Mapping[str, str] = {
    "workloads": "workload",
    "gpu_types": "gpu_type",
    "users": "user",
    "tenants": "tenant",
    "partitions": "partition",
    "qos": "qos",
    "dependencies": "dependency",
    "constraints": "constraint",
}
"""Columns of names, with the field of a request."""


class Numbered(Sequence[str]):
    """Numbers as names, which are written when they are asked for."""

    def __init__(self, numbers: Ints) -> None:
        self._numbers = numbers.astype(np.int32)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        return list(map(str, self._numbers[at].tolist())) if isinstance(at, slice) else str(self._numbers[at])

    def __iter__(self) -> Iterator[str]:
        return map(str, self._numbers.tolist())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobTable:
    """Jobs in order of submission; NaN stands for an unknown number, None for an unknown name."""

    job_ids: Sequence[str]
    submit_s: Floats
    num_gpus: Floats
    duration_s: Floats
    deadline_s: Floats
    priority: Floats
    steps: Floats
    min_gpus: Floats
    max_gpus: Floats
    limit_s: Floats
    started_s: Floats
    ran_s: Floats
    num_nodes: Floats
    num_cpus: Floats
    memory_bytes: Floats
    exclusive: Floats
    array_limit: Floats
    workloads: Sequence[str | None]
    gpu_types: Sequence[str | None]
    users: Sequence[str | None]
    tenants: Sequence[str | None]
    partitions: Sequence[str | None]
    qos: Sequence[str | None]
    dependencies: Sequence[str | None]
    constraints: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.job_ids)

    def __post_init__(self) -> None:
        count = len(self.job_ids)
        for name in self.__slots__:
            if len(getattr(self, name)) != count:
                raise InvalidInput(f"column {name} has {len(getattr(self, name))} entries for {count} jobs")
        if count and not np.all(np.diff(self.submit_s) >= 0):
            raise InvalidInput("jobs must be in order of submission; build the table with JobTable.build")
        if count and not (np.all(np.isfinite(self.submit_s)) and np.all(self.num_gpus >= 1)):
            raise InvalidInput("every job needs a finite submission time and at least one GPU")

    @classmethod
    def build(
        cls,
        *,
        submit_s: Sequence[float] | Floats,
        num_gpus: Sequence[float] | Floats,
        job_ids: Sequence[str] | None = None,
        **columns: Sequence[Any] | Floats | None,
    ) -> "JobTable":
        """Columns in any order of jobs; sorted by submission, equal times keep their order. What is left out is unknown."""
        unknown = columns.keys() - {*NUMBERS, *NAMES}
        if unknown:
            raise UnknownName("column of jobs", min(unknown), [*NUMBERS, *NAMES], plural="columns of jobs")
        submit = np.asarray(submit_s, dtype=np.float64)
        order = np.argsort(submit, kind="stable")
        in_order = bool(np.all(order[1:] > order[:-1])) if len(order) else True

        nobody = (None,) * len(submit)

        def numbers(column: Sequence[float] | Floats | None, default: float = math.nan) -> Floats:
            if column is None:  # one number stands for all, so that a column nobody gave takes no memory
                return np.broadcast_to(np.float64(default), len(submit))
            values = np.asarray(column, dtype=np.float64)
            return values if in_order else values[order]

        def names(column: Sequence[Any] | Floats | None) -> Sequence[Any]:
            if column is None:
                return nobody
            return list(column) if in_order else [column[i] for i in order]

        rest: dict[str, Any] = {name: numbers(columns.get(name), default) for name, default in NUMBERS.items()}
        rest |= {name: names(columns.get(name)) for name in NAMES}
        return cls(
            job_ids=names(job_ids) if job_ids is not None else Numbered(order),
            submit_s=numbers(submit),
            num_gpus=numbers(num_gpus),
            **rest,
        )

    @classmethod
    def from_requests(cls, requests: Iterable[Request]) -> "JobTable":
        rows = list(requests)

        def numbers(name: str) -> list[float]:
            return [math.nan if (value := getattr(row, name)) is None else float(value) for row in rows]

        return cls.build(
            job_ids=[row.job_id for row in rows],
            submit_s=[row.submit_s for row in rows],
            num_gpus=[row.num_gpus for row in rows],
            **{name: numbers(name) for name in NUMBERS},
            **{name: [getattr(row, field) for row in rows] for name, field in NAMES.items()},
        )

    def with_durations(self, duration_s: Floats) -> "JobTable":
        return replace(self, duration_s=duration_s)

    def select(self, jobs: Sequence[int] | Ints) -> "JobTable":
        """The same table with only these rows, which must be in order of submission."""
        index = np.asarray(jobs, dtype=np.int64)
        columns: dict[str, Any] = {}
        for name in self.__slots__:
            column = getattr(self, name)
            columns[name] = column[index] if isinstance(column, np.ndarray) else [column[i] for i in index.tolist()]
        return JobTable(**columns)

    def from_zero(self) -> "JobTable":
        """The same jobs with the first submission at time 0; deadlines move along."""
        if not len(self):
            return self
        origin = float(self.submit_s[0])
        return replace(
            self,
            submit_s=self.submit_s - origin,
            deadline_s=self.deadline_s - origin,
            started_s=self.started_s - origin,
        )

    def scheduled(self, **became: Any) -> Schedule:
        """These jobs and what became of them: the other fields of a schedule."""
        return Schedule(
            job_ids=self.job_ids,
            submit_s=self.submit_s,
            num_gpus=self.num_gpus,
            duration_s=self.duration_s,
            deadline_s=self.deadline_s,
            tenants=self.tenants,
            **became,
        )


def _find_rows(job_ids: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The rows of a name: of a job, or of all tasks of an array."""
    found: dict[str, tuple[int, ...]] = {name: (row,) for row, name in enumerate(job_ids)}
    if len(found) == len(job_ids) and not any("_" in name for name in job_ids):
        return found
    rows: dict[str, list[int]] = {}
    for job, name in enumerate(job_ids):
        rows.setdefault(name, []).append(job)
        array, _, task = name.partition("_")
        if task:
            rows.setdefault(array, []).append(job)
    return {name: tuple(numbers) for name, numbers in rows.items()}


def find_parents(jobs: JobTable) -> dict[int, tuple[int, ...]]:
    """The earlier jobs whose end each job waits for, by `afterok:17`, `afterany:17_3:18` and their like.

    A dependency on a whole array is one on all of its tasks. Jobs that the table does not have are not waited for.
    """
    return _find_parents(tuple(jobs.job_ids), tuple(jobs.dependencies)) if any(jobs.dependencies) else {}


@lru_cache(maxsize=4)
def _find_parents(job_ids: tuple[str, ...], dependencies: tuple[str | None, ...]) -> dict[int, tuple[int, ...]]:
    """Policies that are compared run the same jobs."""
    asking = {job: text for job, text in enumerate(dependencies) if text}
    rows_of = _find_rows(job_ids)
    found = {}
    for job, text in asking.items():
        parts = re.split(r"[,?]", text) if "," in text or "?" in text else (text,)
        names = [name for part in parts for name in part.split(":")[1:]]
        parents = {parent for name in names for parent in rows_of.get(name.partition("+")[0], ()) if parent < job}
        if parents:
            found[job] = tuple(sorted(parents))
    return found
