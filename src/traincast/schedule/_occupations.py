"""Who held which GPUs when, as columns."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from traincast.schedule._jobs import Floats, Ints
from traincast.spec import Occupation


class Occupations(NamedTuple):
    """One entry for every node that a run of a job held between start and stop; `entry` is the number of the run."""

    entry: Ints
    jobs: Ints
    start_s: Floats
    end_s: Floats
    nodes: Ints
    counts: Floats

    @classmethod
    def collect(cls, runs: Sequence[Occupation]) -> "Occupations":
        rows = [(at, r.job, r.start_s, r.end_s, *pair) for at, r in enumerate(runs) for pair in r.nodes]
        table = np.array(rows, dtype=np.float64).reshape(-1, 6)
        entry, jobs, nodes = (table[:, at].astype(np.int64) for at in (0, 1, 4))
        return cls(entry, jobs, table[:, 2], table[:, 3], nodes, table[:, 5])
