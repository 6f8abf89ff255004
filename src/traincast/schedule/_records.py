"""The log of the event loop to columns: who held which nodes when."""

from typing import Any

import numpy as np

from traincast.schedule._jobs import Floats, Ints
from traincast.schedule._kernels import tables
from traincast.schedule._occupations import Occupations

Runs = tuple[Ints, Floats, Ints, Ints, Floats]
"""Runs from start to stop: jobs, (start, end), number of parts, and the node and GPUs of each part."""


def empty_log(log: tables.Log, counts: Any) -> Runs:
    """What the log holds; it is empty then."""
    runs, used = counts[tables.LOGGED], counts[tables.LOGGED_NODES]
    firsts = np.append(np.array(log.first[:runs], dtype=np.int64), used)
    found = (
        np.array(log.jobs[:runs], dtype=np.int64),
        np.array(log.spans[: 2 * runs], dtype=np.float64).reshape(-1, 2),
        np.diff(firsts),
        np.array(log.nodes[:used], dtype=np.int64),
        np.array(log.gpus[:used], dtype=np.float64),
    )
    counts[tables.LOGGED] = counts[tables.LOGGED_NODES] = 0
    return found


def join_logs(kept: list[Runs]) -> Occupations:
    """The runs of all logs as columns; every run has at least one part."""
    who, spans, parts, nodes, counts = (np.concatenate(column) for column in zip(*kept, strict=True))
    first = np.concatenate([[0], np.cumsum(parts)]).astype(np.int64)
    return Occupations(
        jobs=who,
        start_s=spans[:, 0],
        end_s=spans[:, 1],
        num_gpus=np.add.reduceat(counts, first[:-1]) if len(who) else counts,
        first=first,
        nodes=nodes,
        counts=counts,
    )
