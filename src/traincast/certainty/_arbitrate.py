"""How sure an answer is of a workload unlike those that are known: its interval widens with the distance from all of them."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.memo import Remember, compute
from traincast.noun import noun
from traincast.spec import Estimate, Graph, Parallelism

if TYPE_CHECKING:
    from traincast.embed import Summary

_NUM_KEPT = 16


@noun
class Answer:
    """The step time that is given, and what a user must hear about it."""

    step: Estimate
    notes: tuple[str, ...] = ()
    is_unlike: bool = False
    """Unlike every workload that we know, so its interval is wider."""


def choose_answer(graph: Graph, step: Estimate, *, remember: Remember = compute) -> Answer:
    """`step` is what the cost model says. Nothing is embedded where it could change nothing."""
    novelty = remember(measure_novelty, graph)
    if novelty <= 1:
        return Answer(step=step)
    return Answer(step=_widen(step, novelty), notes=(advise_measuring(graph, novelty),), is_unlike=True)


def is_plainly_replicated(plan: Parallelism) -> bool:
    """Replicas and nothing else, however they reduce their gradients."""
    plain = Parallelism(
        data=plan.data, overlap=plan.overlap, bucket_bytes=plan.bucket_bytes, bucket_copies=plan.bucket_copies
    )
    return plan == plain


def measure_novelty(graph: Graph) -> float:
    """From everything known, in ordinary distances between known workloads; 0 for what the catalogue knows by name."""
    from traincast.catalog import load_facts

    if graph.mode != "training_step" or load_facts("model").get(graph.name) is not None or not graph.ops:
        return 0.0
    from traincast.embed import KNOWN, load_atlas

    return load_atlas().farness(_summarize(graph)) if KNOWN.is_file() else 0.0


def advise_measuring(graph: Graph, novelty: float) -> str:
    from traincast.embed import load_atlas, widen

    nearest = load_atlas().nearest(_summarize(graph), count=1, others=True)[0].workload.name
    return (
        f"unlike every workload we know ({novelty:.1f} times the ordinary distance to its nearest, {nearest}), so the interval "
        f"is {widen(novelty):.1f} times as wide; to narrow it, measure its operators (traincast capture MODEL -o step.json; "
        "traincast profile operators step.json) and a few steps (traincast profile steps MODEL), then traincast calibrate; "
        "traincast design says which operators first"
    )


def _widen(step: Estimate, novelty: float) -> Estimate:
    from traincast.embed import widen

    factor = widen(novelty)
    if factor == 1.0 or step.low_s <= 0:
        return step
    low, high = math.log(step.seconds / step.low_s), math.log(step.high_s / step.seconds)
    return replace(step, low_s=step.seconds * math.exp(-factor * low), high_s=step.seconds * math.exp(factor * high))


_SUMMARIES: dict[int, "tuple[Graph, Summary]"] = {}


def _summarize(graph: Graph) -> "Summary":
    """Of the last graphs asked for: one graph is forecast on many clusters and plans."""
    found = _SUMMARIES.get(id(graph))
    if found is None:
        from traincast.embed import summarize

        while len(_SUMMARIES) >= _NUM_KEPT:
            _SUMMARIES.pop(next(iter(_SUMMARIES)))
        # The graph is kept with its summary, so no other can come by its identity.
        found = _SUMMARIES[id(graph)] = graph, summarize(graph)
    return found[1]
