"""Which part answers: physics and layers everywhere, the reuse predictor where it has proved better inside its range.

The rule, the same for every forecast:
1. A calibration was measured on the user's own machine, so it answers.
2. On clusters of CPU cores like those of our corpus, the reuse predictor answers where the workload and the machines lie inside
   what was measured and its left-out error, at the workload's distance, is below the measured error of physics and layers there.
3. Everywhere else physics and layers answer (with the interaction network above layers that never saw a step, ADR 14).
The interval widens with the distance from every known workload.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from traincast.cost import Correction, Nodes, describe_nodes
from traincast.memo import Remember, compute
from traincast.spec import Cluster, Estimate, Graph, Job, MachineRates, Op, Parallelism, Stage, Timeline

if TYPE_CHECKING:
    from traincast.embed import GpuAnswer, Ranks, Summary

CORE = "cpu"
"""The catalogue's device that is one core of a server: what the corpus was measured on."""
EXACT_TYPES = frozenset({"fp32", "int64", "int32", "bool"})
LAYERS = Path(__file__).parents[1] / "embed" / "weights" / "layers.json.gz"
"""Layer models fitted to the same corpus as the reuse predictor; they answer together."""
ANSWERING = ("layers", "interaction", "reuse")
"""The parts that may give the step time: operator models or a calibration, the interaction network above them, the reuse
predictor."""
_NUM_KEPT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What the reuse predictor has to say of a step."""

    gap: str
    """Why it has no ground here; empty inside of its range."""
    step: Estimate | None = None
    novelty: float = math.inf
    """The distance to the nearest measured workload over an ordinary one."""
    error: float | None = None
    """Its mean error on left-out data at such a distance."""
    rival_error: float | None = None
    """Mean error of physics and layers on the same measured steps."""
    is_better: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The step time that is given, which part gave it, and what a user must hear about it."""

    step: Estimate
    source: str
    """One of ANSWERING."""
    notes: tuple[str, ...] = ()
    is_unlike: bool = False
    """Unlike every workload that we know, so its interval is wider."""


def choose_answer(
    job: Job, cluster: Cluster, plan: Parallelism, step: Estimate, *, source: str = "layers",
    has_own_costs: bool = False, remember: Remember = compute,
) -> Answer:  # fmt: skip
    """`step` is what the cost model says, and `source` which part of it spoke last. Nothing is embedded where it could change
    nothing."""
    novelty = remember(measure_novelty, job.graph)
    notes: tuple[str, ...] = ()
    if novelty > 1:
        step, notes = _widen(step, novelty), (advise_measuring(job.graph, novelty),)
    if has_own_costs or find_gap(job, cluster, plan):
        return Answer(step=step, source=source, notes=notes, is_unlike=novelty > 1)
    reuse = ask_reuse(job, cluster, plan)
    if reuse.gap or not reuse.is_better or reuse.step is None:
        return Answer(step=step, source=source, notes=notes, is_unlike=novelty > 1)
    said = (
        "the step time is the reuse predictor's, fitted to measured steps of other workloads on such nodes: mean error "
        f"{reuse.error:.0%} on left-out ones, {reuse.rival_error:.0%} for physics and layers"
    )
    chosen = replace(reuse.step, limit=step.limit)
    return Answer(step=_widen(chosen, novelty), source="reuse", notes=(*notes, said), is_unlike=novelty > 1)


def stretch(timeline: Timeline, factor: float) -> Timeline:
    """The same step at another pace: everything takes `factor` times as long."""
    spans = tuple(replace(span, start_s=span.start_s * factor, end_s=span.end_s * factor) for span in timeline.spans)
    return replace(
        timeline, duration_s=timeline.duration_s * factor, spans=spans, busy_s=timeline.busy_s * factor,
        communication_s=timeline.communication_s * factor,
        exposed_by_axis={axis: seconds * factor for axis, seconds in timeline.exposed_by_axis.items()},
    )  # fmt: skip


def find_gap(job: Job, cluster: Cluster, plan: Parallelism) -> str:
    """What of machines and plan the reuse predictor never saw, in words; empty where it may be asked. Costs next to nothing."""
    strange = sorted({group.device.name for group in cluster.groups} - {CORE})
    if strange:
        return f"it was measured on CPU cores, not on {', '.join(strange)}"
    if any(group.devices_per_node > 1 for group in cluster.groups):
        return "it was measured with one rank in each node"
    if not is_plainly_replicated(plan):
        return "it was measured with plain data parallelism"
    if job.compiled or not job.stack.is_plain or job.graph.mode != "training_step":
        return "it was measured on training steps of PyTorch, not compiled"
    types = sorted({op.dtype for op in job.graph.ops} - EXACT_TYPES)
    if types:
        return f"it was measured in fp32, not in {', '.join(types)}"
    return ""


def is_plainly_replicated(plan: Parallelism) -> bool:
    """Replicas and nothing else, however they reduce their gradients."""
    plain = Parallelism(
        data=plan.data, overlap=plan.overlap, bucket_bytes=plan.bucket_bytes, bucket_copies=plan.bucket_copies
    )
    return plan == plain


def ask_reuse(job: Job, cluster: Cluster, plan: Parallelism) -> Reuse:
    """The reuse predictor's answer with its distance and cross-validated error, or why it has none."""
    from traincast.embed import PREDICTOR, load_predictor

    gap = find_gap(job, cluster, plan) or ("" if PREDICTOR.is_file() else "its weights are not installed")
    if gap:
        return Reuse(gap=gap)
    predictor, summary, ranks = load_predictor(), _summarize(job.graph), _ranks_of(cluster)
    gap = predictor.tested.find_gap(summary, ranks)
    novelty = predictor.farness(summary)
    if not gap and not math.isfinite(novelty):
        gap = f"no step on {summary.dataset_type} data was measured"
    proof = predictor.proof
    sigma = predictor.sigma_at(novelty)
    # Mean errors grow with the width of the errors: that of left-out architectures nearby, of left-out families far away.
    error = proof.architecture_error * sigma / max(predictor.sigma, 1e-9)
    step = predictor.predict(summary, ranks, layers_s=_price_layers(job.graph, cluster, plan))
    return Reuse(
        gap=gap, step=step, novelty=novelty, error=error, rival_error=proof.rival_error,
        is_better=not gap and proof.rival_sigma is not None and sigma < proof.rival_sigma,
    )  # fmt: skip


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
        f"is {widen(novelty):.1f} times as wide; measure these to be surer: its operators (traincast capture MODEL -o step.json; "
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


def _price_layers(graph: Graph, cluster: Cluster, plan: Parallelism) -> float | None:
    """The step by the layers that the corpus taught: operators one after the other, then synchronisation. None without them."""
    from traincast.cost import clock_scale, price_collectives
    from traincast.lower import lower

    if not LAYERS.is_file():
        return None
    layers = load_layers()
    stage = lower(graph, plan).stages[0]
    synced = price_collectives(stage, cluster, layers.collectives)
    computed_s = sum(
        layers.op_seconds_in_step(task) * count
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Op)
    )
    return computed_s * clock_scale(layers.step_wall_scale, cluster) + sum(
        seconds * count
        for seconds, count in zip(synced.values(), (stage.counts()[place] for place in synced), strict=True)
    )


@cache
def load_layers(path: Path = LAYERS) -> MachineRates:
    from traincast.files import decode, read_json

    return decode(MachineRates, read_json(path), where=path.name)


def _widen(step: Estimate, novelty: float) -> Estimate:
    from traincast.embed import widen

    factor = widen(novelty)
    if factor == 1.0 or step.low_s <= 0:
        return step
    low, high = math.log(step.seconds / step.low_s), math.log(step.high_s / step.seconds)
    return replace(step, low_s=step.seconds * math.exp(-factor * low), high_s=step.seconds * math.exp(factor * high))


def _ranks_of(cluster: Cluster) -> "Ranks":
    """A synchronous step waits for the weakest node and for the slowest link."""
    from traincast.embed import Ranks

    return Ranks(
        num_ranks=cluster.num_devices,
        bits_per_s=8 * min(group.inter.bytes_per_s for group in cluster.groups),
        share=min(group.speed for group in cluster.groups),
    )


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
