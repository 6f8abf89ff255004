"""Which workloads to run next on a cluster of one's own: those that most of the catalogue lies near, beside what ran.

D-optimal choice of whole models was worse than random on measured image models, medoids better (research.papers.whole_models).
"""

from collections.abc import Sequence

import numpy as np

from traincast.design import k_medoids, mean_distances
from traincast.embed import load_atlas, summarize
from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import MeasuredRun

MOST_SUGGESTED = 50
LARGEST = 2.0
"""A workload with more parameters than so many times the largest that ran may not fit where they ran."""


@noun
class SuggestedRun:
    """One workload that is worth a run."""

    name: str
    dataset_type: str
    gain: float
    """How much nearer a workload of the catalogue is on average to one that ran, as a share of how near it was before."""


def suggest_runs(runs: Sequence[MeasuredRun], count: int) -> tuple[SuggestedRun, ...]:
    """Workloads of the catalogue, of the types of data and sizes that ran, that most others are like and no run is."""
    if not 1 <= count <= MOST_SUGGESTED:
        raise InvalidInput(f"{count} suggestions; ask for 1 to {MOST_SUGGESTED}")
    atlas = load_atlas()
    graphs = {id(run.job.graph): run.job.graph for run in runs}
    summaries = [summarize(graph) for graph in graphs.values()]
    types = {summary.dataset_type for summary in summaries}
    own = {summary.name for summary in summaries}
    fits = atlas.num_parameters() <= LARGEST * max(graph.num_parameters for graph in graphs.values())
    listed = {one.name: place for place, one in enumerate(atlas.workloads) if one.source == "catalogue"}
    places = {
        name: place
        for name, place in listed.items()
        if name not in own and atlas.workloads[place].dataset_type in types and fits[place]
    }
    if not places:
        return ()
    # As the catalogue has them where it does, since precision and batch move a point.
    ran = [atlas.points[listed[one.name]] if one.name in listed else atlas.features([one])[0, 1:] for one in summaries]
    points = np.array([*atlas.points[list(places.values())], *ran])
    known = list(range(len(places), len(points)))
    rows = k_medoids(points, budget=count, measured=known)
    apart = mean_distances(points, rows, measured=known)
    names = list(places)
    return tuple(
        SuggestedRun(
            name=names[row], dataset_type=atlas.workloads[places[names[row]]].dataset_type,
            gain=(before - after) / max(before, 1e-12),
        )
        for row, before, after in zip(rows, apart, apart[1:], strict=False)
    )  # fmt: skip
