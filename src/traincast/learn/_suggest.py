"""Which workloads to run next on a cluster of one's own: D-optimal over what the known runs leave open."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincast.design import d_optimal, explain
from traincast.embed import load_atlas, summarize
from traincast.errors import InvalidInput
from traincast.spec import MeasuredRun

MOST_SUGGESTED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One workload that is worth a run."""

    name: str
    dataset_type: str
    gain: float
    """Increase of the log-determinant of the information, in nats."""


def suggest_runs(runs: Sequence[MeasuredRun], count: int) -> tuple[Suggestion, ...]:
    """Workloads of the catalogue, of the types of data that were run, that tell most beside the runs (D-optimal design)."""
    if not 1 <= count <= MOST_SUGGESTED:
        raise InvalidInput(f"{count} suggestions; ask for 1 to {MOST_SUGGESTED}")
    atlas = load_atlas()
    graphs = {id(run.job.graph): run.job.graph for run in runs}
    summaries = [summarize(graph) for graph in graphs.values()]
    types = {summary.dataset_type for summary in summaries}
    own = {summary.name for summary in summaries}
    places: dict[str, int] = {}
    for place, workload in enumerate(atlas.workloads):
        if workload.source == "catalogue" and workload.dataset_type in types and workload.name not in own:
            places.setdefault(workload.name, place)
    if not places:
        return ()
    candidates = np.column_stack([np.ones(len(places)), atlas.points[list(places.values())]])
    matrix = np.concatenate([candidates, atlas.features(summaries)])
    known = list(range(len(places), len(matrix)))
    # Without exchanges: names beyond the first hundred candidates would take minutes for no visible gain.
    rows = d_optimal(matrix, budget=count, ridge=1.0, measured=known, exchange=False)
    names = list(places)
    return tuple(
        Suggestion(
            name=names[one.row], dataset_type=atlas.workloads[places[names[one.row]]].dataset_type, gain=one.gain
        )
        for one in explain(matrix, rows, ridge=1.0, measured=known)
    )
