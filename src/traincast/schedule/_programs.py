"""Programs of shares, solved by Clarabel (Goulart and Chen, 2024): an interior point, which lies in the middle of many
optima."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from traincast.errors import MissingExtra, TraincastError
from traincast.schedule._jobs import Floats, Ints

if TYPE_CHECKING:
    from traincast.schedule._shares import Shareholders

Entries = tuple[Ints, Ints, Floats]
"""Rows, columns and values of a part of the matrix."""


class ShareProgram:
    """Shares of jobs on types that hold anything: none below 0, those of a job at most 1, those of a type at most what it holds.
    Behind the shares lie `num_more` variables. Rows `A x <= b` and cones of three rows are added part by part."""

    def __init__(self, holders: "Shareholders", *, num_more: int = 0) -> None:
        self.types = np.flatnonzero(holders.capacity > 0)
        self.num_jobs, self.num_types = len(holders.jobs), len(self.types)
        self.size = self.num_jobs * self.num_types
        self.costs = np.zeros(self.size + num_more)
        self._entries: list[Entries] = []
        self._bounds: list[Floats] = []
        self._num_rows = 0
        shares = np.arange(self.size)
        jobs = np.repeat(np.arange(self.num_jobs), self.num_types)
        self.add((shares, shares, np.full(self.size, -1.0)), bounds=np.zeros(self.size))
        self.add((jobs, shares, np.ones(self.size)), bounds=np.ones(self.num_jobs))
        held = np.repeat(holders.num_gpus, self.num_types)
        self.add((shares % self.num_types, shares, held), bounds=holders.capacity[self.types])

    def add(self, *parts: Entries, bounds: Floats) -> None:
        for rows, columns, values in parts:
            self._entries.append((rows + self._num_rows, columns, values))
        self._bounds.append(bounds)
        self._num_rows += len(bounds)

    def by_job(self, values: Floats, *, every: int = 1, offset: int = 0) -> Entries:
        """One row per job over its shares."""
        rows = offset + every * np.repeat(np.arange(self.num_jobs), self.num_types)
        return rows, np.arange(self.size), values[:, self.types].ravel()

    def solve(self, num_cones: int = 0) -> Floats | None:
        """All variables, or None if no shares meet the rows; the last rows are the cones."""
        try:
            import clarabel
            from scipy import sparse
        except ImportError as error:
            raise MissingExtra("clarabel", "schedule", "sharing by optimisation") from error
        rows, columns, values = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        matrix = sparse.csc_matrix((values, (rows, columns)), shape=(self._num_rows, len(self.costs)))
        cones: Sequence[object] = [clarabel.NonnegativeConeT(self._num_rows - 3 * num_cones)]
        cones = [*cones, *[clarabel.SecondOrderConeT(3)] * num_cones]
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        nothing = sparse.csc_matrix((len(self.costs), len(self.costs)))
        solver = clarabel.DefaultSolver(nothing, self.costs, matrix, np.concatenate(self._bounds), cones, settings)
        solution = solver.solve()
        status = str(solution.status)
        if "Infeasible" in status:
            return None
        if "Solved" not in status and "Insufficient" not in status and "MaxIter" not in status:
            raise TraincastError(f"the solver ended with {status}; report this trace")
        return np.asarray(solution.x)

    def shares(self, found: Floats | None, num_types: int) -> Floats | None:
        """What was found, by job and type; types that hold nothing have no shares."""
        if found is None:
            return None
        shares = np.zeros((self.num_jobs, num_types))
        shares[:, self.types] = found[: self.size].reshape(self.num_jobs, -1).clip(0.0, 1.0)
        return shares


def share_by_rows(
    holders: "Shareholders", *, worth: Floats | None = None, rates: Floats | None = None, least: Floats | None = None
) -> Floats | None:
    """Shares of the most `worth`; with `rates`, every job also reaches the rate of `least`. None if that cannot be."""
    program = ShareProgram(holders)
    if worth is not None:
        program.costs[:] = -worth[:, program.types].ravel()
    if rates is not None and least is not None:
        program.add(program.by_job(-rates), bounds=-least)
    num_types = holders.rates.shape[1]
    return program.shares(program.solve(), num_types)


def raise_level(holders: "Shareholders", worth: Floats) -> tuple[float, Floats]:
    """The largest level that `worth` times shares reaches for every job, and shares that reach it."""
    program = ShareProgram(holders, num_more=1)
    jobs = np.arange(program.num_jobs)
    level = (jobs, np.full(program.num_jobs, program.size), np.ones(program.num_jobs))
    program.add(program.by_job(-worth), level, bounds=np.zeros(program.num_jobs))
    program.costs[-1] = -1.0
    found = program.solve()
    shares = program.shares(found, worth.shape[1])
    if found is None or shares is None:
        raise TraincastError("no common level of the jobs was found; report this trace")
    return float(found[-1]), shares


def share_by_finish(holders: "Shareholders", *, rates: Floats, work: Floats, begun: Floats) -> Floats | None:
    """Shares that make the largest `begun + work / rate` least.

    The time u a step takes is a variable of its own, with u * rate >= 1 as a second-order cone: (u + a, u - a, 2) in
    the cone means u * a >= 1. Rates stay in steps per second, as in Gavel: this cone's middle, unlike that of linear
    rows, depends on the units.
    """
    program = ShareProgram(holders, num_more=len(holders.jobs) + 1)
    count = program.num_jobs
    jobs, times = np.arange(count), program.size + np.arange(count)
    last = np.full(count, program.size + count)
    program.add((jobs, times, work), (jobs, last, np.full(count, -1.0)), bounds=-begun)
    minus = np.full(count, -1.0)
    program.add(
        program.by_job(-rates, every=3), program.by_job(rates, every=3, offset=1),
        (3 * jobs, times, minus), (3 * jobs + 1, times, minus),
        bounds=np.tile([0.0, 0.0, 2.0], count),
    )  # fmt: skip
    program.costs[-1] = 1.0
    num_types = holders.rates.shape[1]
    return program.shares(program.solve(num_cones=count), num_types)
