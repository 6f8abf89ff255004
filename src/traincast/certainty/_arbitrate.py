"""Which part answers: layers, or the interaction network above them, and how much measured programs on GPUs correct either.

A calibration was measured on the user's own machine, so it answers. Everywhere else physics and layers answer (with the
interaction network above layers that never saw a step, ADR 14). The interval widens with the distance from every known workload.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.cost import Correction, Nodes, describe_nodes
from traincast.memo import Remember, compute
from traincast.noun import noun
from traincast.spec import Estimate, Graph, Parallelism, Stage

if TYPE_CHECKING:
    from traincast.embed import GpuAnswer, Summary

ANSWERING = ("layers", "interaction")
"""The parts that may give the step time: operator models or a calibration, and the interaction network above them."""
_NUM_KEPT = 16


@noun
class Answer:
    """The step time that is given, which part gave it, and what a user must hear about it."""

    step: Estimate
    source: str
    """One of ANSWERING."""
    notes: tuple[str, ...] = ()
    is_unlike: bool = False
    """Unlike every workload that we know, so its interval is wider."""


def choose_answer(graph: Graph, step: Estimate, *, source: str = "layers", remember: Remember = compute) -> Answer:
    """`step` is what the cost model says, and `source` which part of it spoke last. Nothing is embedded where it could change
    nothing."""
    novelty = remember(measure_novelty, graph)
    if novelty <= 1:
        return Answer(step=step, source=source)
    return Answer(step=_widen(step, novelty), source=source, notes=(advise_measuring(graph, novelty),), is_unlike=True)


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


def ask_gpu_reuse(graph: Graph, *, compiled: bool, nodes: Nodes | None = None) -> "GpuAnswer | None":
    """What measured programs say of the step of another on a GPU; None where none that is run so was measured. `nodes`: its
    operators as the ensemble sees them."""
    from traincast.embed import ON_GPUS, load_gpu_reuse

    if not ON_GPUS.is_file():
        return None
    return load_gpu_reuse().answer(
        describe_run(graph, compiled=compiled), vector=lambda: _summarize(graph).vector,
        shares=nodes.shares() if nodes is not None else None,
    )  # fmt: skip


def describe_run(graph: Graph, *, compiled: bool) -> str:
    """How a program is run and on what type of data, as the reuse predictors are named."""
    from traincast.embed import data_type

    mode = "inference" if graph.mode == "inference" else "training"
    return f"{'compiled ' if compiled else ''}{mode} on {data_type(graph)}"


def prefer_reuse(correction: Correction, graph: Graph, compiled: bool) -> Correction:
    """The ensemble's factors with as much of the reuse predictor's as helped what was left out, at this distance."""
    if not _reuse_weight(graph, compiled):
        return correction
    found = ask_gpu_reuse(graph, compiled=compiled, nodes=correction.nodes)
    if found is None or not found.weight:
        return correction
    # On the layers it answers instead of the ensemble, by its weight; on the whole forecast it is one more factor.
    kept = 1.0 - found.weight if found.on_layers else 1.0
    factors = {
        name: correction.factors.get(name, 1.0) ** kept * found.factor**found.weight for name in correction.nodes.names
    }
    return replace(correction, factors=factors)


def _reuse_weight(graph: Graph, compiled: bool) -> float:
    """The most that the reuse predictor may weigh in such a run."""
    from traincast.embed import ON_GPUS, load_gpu_reuse

    known = load_gpu_reuse().known.get(describe_run(graph, compiled=compiled)) if ON_GPUS.is_file() else None
    return known.weight if known is not None else 0.0


def correct_by_reuse(whole: Stage, graph: Graph, compiled: bool) -> Correction | None:
    """One factor for all operators of a program that the ensemble has nothing to say of, where the reuse predictor's helped."""
    if not _reuse_weight(graph, compiled):
        return None
    nodes = describe_nodes(whole)
    found = ask_gpu_reuse(graph, compiled=compiled, nodes=nodes)
    if found is None or not found.weight:
        return None
    return Correction(
        factors=dict.fromkeys(nodes.names, found.factor**found.weight), weights={"layers": 1.0}, fade=1.0,
        distance=0.0, nearest=((found.nearest, found.farness),), nodes=nodes, members={},
    )  # fmt: skip


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
