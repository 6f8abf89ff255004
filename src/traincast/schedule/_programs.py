"""Programs of shares: rows built as a block per job, solved by `kernels.find_shares`, by Clarabel where that gets lost."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from traincast.errors import MissingExtra, TraincastError
from traincast.schedule import _kernels as kernels
from traincast.schedule._jobs import Floats
from traincast.schedule._rounds import Shareholders

_TIME, _OWN, _CONE = 0, 1, 2
"""Which local row of a job is what: its time, its own row, the first of its cone's three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareProgram:
    """Minimise `costs x` under the rows that `kernels.blocks` describes; `types` are the columns of the shares."""

    types: Any
    diag: Floats
    dense: Floats
    caps: Floats
    last: Floats
    costs: Floats
    bounds: Floats

    @classmethod
    def build(cls, holders: Shareholders, *, num_local: int, cones: bool = False) -> "ShareProgram":
        """No share below 0, a job's shares at most 1, those of a type at most what it holds; types that hold nothing
        have no part in it."""
        types = np.flatnonzero(holders.capacity > 0)
        num_jobs, num_types = len(holders.jobs), len(types)
        num_own = num_types + cones
        dense = np.zeros((num_jobs, num_local, num_own))
        dense[:, _TIME, :num_types] = 1.0
        bounds = np.zeros(num_jobs * (num_types + num_local) + num_types)
        bounds[num_types + _TIME : len(bounds) - num_types : num_types + num_local] = 1.0
        bounds[len(bounds) - num_types :] = holders.capacity[types]
        return cls(
            types=types,
            diag=np.full((num_jobs, num_types), -1.0),
            dense=dense,
            caps=np.repeat(holders.num_gpus, num_types).reshape(num_jobs, num_types),
            last=np.full(num_jobs, -1.0 if cones else 0.0),
            costs=np.zeros(num_jobs * num_own + cones),
            bounds=bounds,
        )

    @property
    def num_cones(self) -> int:
        return self.dense.shape[0] if self.dense.shape[2] > self.diag.shape[1] else 0

    def bound(self, local: int, values: Any) -> None:
        """Set the right side of one local row of every job."""
        num_types = self.diag.shape[1]
        stride = num_types + self.dense.shape[1]
        self.bounds[num_types + local : len(self.bounds) - num_types : stride] = values

    def solve(self) -> Floats | None:
        """Shares of every job on every type of `types`, or None if there are none."""
        x = self._find()
        if x is None:
            return None
        num_jobs, num_types = self.diag.shape
        own = x[: self.dense.shape[2] * num_jobs].reshape(num_jobs, -1)[:, :num_types]
        return np.asarray(own.clip(0.0, 1.0))

    def _find(self) -> Floats | None:
        num_jobs, num_local, num_own = self.dense.shape
        num_types = self.diag.shape[1]
        find, shell = kernels.pick("find_shares", (num_types, num_local, num_own), num_jobs)
        num_x, num_z, num_cones = len(self.costs), len(self.bounds), self.num_cones
        block = num_jobs * num_own * num_own
        small = 2 * num_own * (num_own + 1)
        sizes = (4 * num_cones, self.dense.size, block, block, num_jobs, small, num_jobs + num_own, num_z)
        room = np.ones(9 * num_x + 13 * num_z + sum(sizes))
        parts, begin = [], 0
        for size in (*(num_x,) * 9, *(num_z,) * 13, *sizes):
            parts.append(shell(room[begin : begin + size]))
            begin += size
        over_x, over_z, (cones, *factors) = parts[:9], parts[9:22], parts[22:]
        # The lengths of tuples are known to the compiler, which unrolls the loops over them.
        shape = (num_jobs, (0,) * num_types, (0,) * num_local, (0,) * (num_own - num_types))
        matrix = tuple(shell(part.ravel().copy()) for part in (self.diag, self.dense, self.caps, self.last))
        scales = (over_x[0], over_z[0], over_x[1], over_z[1])
        point = (over_x[2], over_z[2], over_z[3])
        work = (tuple(over_x[3:]), tuple(over_z[4:]), cones, tuple(factors))
        try:
            answer = find(shape, matrix, shell(self.costs.copy()), shell(self.bounds.copy()), scales, point, work)
        except (ZeroDivisionError, ValueError):  # in machine code these are not numbers, and end in LOST too
            answer = kernels.LOST
        if answer == kernels.IMPOSSIBLE:
            return None
        return np.asarray(over_x[2]) if answer == kernels.FOUND else self._ask_clarabel()

    def _ask_clarabel(self) -> Floats | None:
        try:
            import clarabel
            from scipy import sparse
        except ImportError as error:
            raise MissingExtra("clarabel", "schedule", "sharing by optimisation") from error
        num_jobs, num_local, num_own = self.dense.shape
        num_types = self.diag.shape[1]
        linear = num_local - (3 if self.num_cones else 0)
        first = num_own * np.arange(num_jobs)
        shares = (first[:, None] + np.arange(num_types)).ravel()
        rows = [np.arange(num_jobs * num_types), num_jobs * num_types + np.tile(np.arange(num_types), num_jobs)]
        cols, values = [shares, shares], [self.diag.ravel(), self.caps.ravel()]
        count = num_jobs * num_types + num_types
        bounds = self.bounds[: num_jobs * (num_types + num_local)].reshape(num_jobs, -1)
        order = [bounds[:, :num_types].ravel(), self.bounds[len(self.bounds) - num_types :]]
        for local in (range(linear), range(linear, num_local)):  # cones come last
            part = self.dense[:, local, :]
            height = len(local)
            rows.append(count + np.repeat(np.arange(num_jobs * height), num_own))
            cols.append((first[:, None, None] + np.broadcast_to(np.arange(num_own), part.shape)).ravel())
            values.append(part.ravel())
            if self.num_cones and not local.start:
                rows.append(count + np.arange(num_jobs) * height + _OWN)
                cols.append(np.full(num_jobs, len(self.costs) - 1))
                values.append(self.last)
            order.append(bounds[:, num_types + local.start : num_types + local.stop].ravel())
            count += num_jobs * height
        matrix = sparse.csc_matrix(
            (np.concatenate(values), (np.concatenate(rows), np.concatenate(cols))), shape=(count, len(self.costs))
        )
        kinds = [clarabel.NonnegativeConeT(count - 3 * self.num_cones)]
        kinds += [clarabel.SecondOrderConeT(3)] * self.num_cones
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        nothing = sparse.csc_matrix((len(self.costs), len(self.costs)))
        solution = clarabel.DefaultSolver(nothing, self.costs, matrix, np.concatenate(order), kinds, settings).solve()
        status = str(solution.status)
        if "Infeasible" in status:
            return None
        if "Solved" not in status and "Insufficient" not in status and "MaxIter" not in status:
            raise TraincastError(f"the solver ended with {status}; report this trace")
        return np.asarray(solution.x)


def share_by_rows(
    holders: Shareholders, *, worth: Floats | None = None, rates: Floats | None = None, least: Floats | None = None
) -> Floats | None:
    """Shares of the most `worth`; with `rates`, every job also reaches the rate of `least`. None if that cannot be."""
    program = ShareProgram.build(holders, num_local=1 if rates is None else 2)
    if worth is not None:
        program.costs[:] = -worth[:, program.types].ravel()
    if rates is not None and least is not None:
        program.dense[:, _OWN, :] = -rates[:, program.types]
        program.bound(_OWN, -least)
    return _spread(holders, program, program.solve())


def share_by_finish(holders: Shareholders, *, rates: Floats, work: Floats, begun: Floats) -> Floats | None:
    """Shares that make the largest `begun + work / rate` least.

    The time u a step takes is a variable of its own, with u * rate >= 1 as a second-order cone: (u + a, u - a, 2) in
    the cone means u * a >= 1. Rates stay in steps per second, as in Gavel: this cone's middle, unlike that of linear
    rows, depends on the units.
    """
    program = ShareProgram.build(holders, num_local=5, cones=True)
    num_types = len(program.types)
    program.dense[:, _OWN, num_types] = work
    program.bound(_OWN, -begun)
    program.dense[:, _CONE, :num_types] = -rates[:, program.types]
    program.dense[:, _CONE + 1, :num_types] = rates[:, program.types]
    program.dense[:, _CONE : _CONE + 2, num_types] = -1.0
    program.bound(_CONE + 2, 2.0)
    program.costs[-1] = 1.0
    return _spread(holders, program, program.solve())


def _spread(holders: Shareholders, program: ShareProgram, found: Floats | None) -> Floats | None:
    if found is None or len(program.types) == holders.rates.shape[1]:
        return found
    shares = np.zeros_like(holders.rates)
    shares[:, program.types] = found
    return shares
