"""What each part of the model says by itself, for a user who asks why: physics, layers, interaction, reuse."""

from dataclasses import replace

from traincast.certainty import ask_gpu_reuse
from traincast.cost import (
    WEIGHTS,
    Correction,
    CostModel,
    Interacting,
    Network,
    Pricing,
    Roofline,
    is_gpu,
    load_network,
    scale_estimates,
)
from traincast.embed import GpuAnswer
from traincast.forecast._engine import Engine, stack_of
from traincast.spec import Cluster, Estimate, Forecast, Job, Parallelism, Part

UNUSED = "not used: it proved better only above layers that never saw a whole step"
UNKNOWING = "it knows nothing like this workload and changes nothing"
UNMEASURED = "no program that is run so on such data was measured on a GPU"
MEMBER = {
    "kinds": "one factor for each class of operators",
    "operators": "a network on each operator alone",
    "graph": "a network on each operator and what its neighbours are",
}
"""What each member of the ensemble is, in words."""
MOST_CHANGED = 4


def explain_parts(
    answer: Forecast,
    job: Job,
    cluster: Cluster,
    plan: Parallelism,
    *,
    costs: CostModel | None = None,
    network: Network | None = None,
) -> tuple[Part, ...]:
    """Each part's own answer to a forecast's question, and why it is or is not the forecast's."""
    plain = answer if not answer.learned else Engine(costs=costs).forecast(job, cluster, plan)
    parts = _explain_plain(plain, job, cluster, plan, costs=costs, network=network)
    if plain.step.seconds == answer.step.seconds:
        return parts
    own = Part(name="own runs", step=answer.step, is_answer=True, says=f"what answered before, by {answer.learned}")
    return *(replace(part, is_answer=False) for part in parts), own


def _explain_plain(
    answer: Forecast, job: Job, cluster: Cluster, plan: Parallelism, *, costs: CostModel | None, network: Network | None
) -> tuple[Part, ...]:
    """Of a forecast that no run of one's own moved."""
    engine = Engine(costs=costs)
    fitted = "operator models fitted to measured kernels" if costs is None else "your calibration"
    if costs is None and job.cost_model is not None:
        costs, fitted = engine.own_costs(job), f"the cost model {job.cost_model!r}"
    used = engine.model(job)
    correction = engine.correct(job, cluster)
    layers = used.base if isinstance(used, Interacting) else used
    if isinstance(layers, Pricing):
        layers = replace(layers, interaction=None)
    question = job, cluster, plan
    bound_s = _ask(Pricing(ops=Roofline(), stack=stack_of(job), interaction=None), *question)
    layers_s = _ask(layers, *question)
    on_gpus = costs is None and all(is_gpu(group.device) for group in cluster.groups)
    nodes = correction.nodes if correction is not None else None
    gpu_reuse = ask_gpu_reuse(job.graph, compiled=job.compiled, nodes=nodes) if on_gpus else None
    corrects = answer.source == "interaction" or correction is not None
    return (
        Part(
            name="physics", step=_alone(bound_s), is_answer=False,
            says="each operator at fixed shares of the data sheet's rates (roofline), collectives by latency and bandwidth",
        ),
        Part(
            name="layers", step=_like(answer.step, layers_s), is_answer=not corrects,
            says=f"{fitted}, in the order of the program",
        ),
        *(
            _explain_ensemble(question, correction, answer, is_answer=corrects)
            if correction is not None
            else (_explain_interaction(question, used, layers_s, is_answer=corrects, network=network),)
        ),
        _explain_reuse(gpu_reuse, layers_s if gpu_reuse is None or gpu_reuse.on_layers else answer.step.seconds),
    )  # fmt: skip


def _explain_ensemble(
    question: tuple[Job, Cluster, Parallelism], correction: Correction, answer: Forecast, *, is_answer: bool
) -> tuple[Part, ...]:
    """The ensemble above the layers, then each of its members as if it alone answered."""
    job, cluster, plan = question
    plain = Engine(costs=Pricing(stack=stack_of(job), interaction=None))
    program = plain.lower(job, cluster, plan)
    priced = plain.cost(program, job, cluster)

    def alone(name: str) -> Part:
        factors = correction.factors_of(name)
        scaled = tuple(
            scale_estimates(factors, stage.tasks, each) for stage, each in zip(program.stages, priced, strict=True)
        )
        step_s = plain.simulate(program, scaled, job, cluster).duration_s
        says = f"{MEMBER[name]}; weight {correction.weights[name]:.2f}"
        return Part(name=f"interaction: {name}", step=_alone(step_s), is_answer=False, says=says)

    near = ", ".join(f"{name} ({apart:.2f})" for name, apart in correction.nearest)
    says = (
        f"operators corrected by measured steps of {near}; mean distance {correction.distance:.2f}, {correction.fade:.0%} of the "
        f"correction is left there; weight of the layers {correction.weights['layers']:.2f}; changed most: "
        f"{_name_changes(correction)}"
    )
    whole = Part(name="interaction", step=_like(answer.step, answer.step.seconds), is_answer=is_answer, says=says)
    return whole, *(alone(name) for name in correction.members)


def _name_changes(correction: Correction) -> str:
    """The classes whose change moves the step most, each with its factor and its share of the operators' time."""
    shares = correction.nodes.shares()
    moved = sorted(correction.factors, key=lambda name: -abs(correction.factors[name] - 1) * shares[name])
    return ", ".join(
        f"{name} x{correction.factors[name]:.2f} ({shares[name]:.0%} of the time)" for name in moved[:MOST_CHANGED]
    )


def _explain_interaction(
    question: tuple[Job, Cluster, Parallelism], used: CostModel, layers_s: float, *, is_answer: bool,
    network: Network | None,
) -> Part:  # fmt: skip
    if network is None and not WEIGHTS.is_file():
        return Part(name="interaction", step=None, is_answer=False, says="no weights are installed")
    wrapped = used if isinstance(used, Interacting) else Interacting(base=used, network=network or load_network())
    both_s = _ask(wrapped, *question)
    says = UNKNOWING if both_s == layers_s else "above the layers" if is_answer else f"above the layers; {UNUSED}"
    return Part(name="interaction", step=_alone(both_s), is_answer=is_answer, says=says)


def _explain_reuse(found: GpuAnswer | None, anchor_s: float) -> Part:
    """The answer of measured programs on GPUs, above the step it is anchored on."""
    if found is None:
        return Part(name="reuse", step=None, is_answer=False, says=UNMEASURED)
    anchor = "the layers" if found.on_layers else "the forecast"
    weight = (
        f"blended in with weight {found.weight:.2f}"
        if found.weight
        else "weight 0, as it did not help what was left out"
    )
    says = (
        f"{anchor} times what measured programs like it missed, by {found.num_steps} steps; {found.farness:.1f} ordinary "
        f"distances from the nearest measured workload ({found.nearest}); mean error {found.error:.1%} on {found.left_out} left "
        f"out against {found.rival_error:.1%} without it: {weight}"
    )
    return Part(name="reuse", step=_alone(anchor_s * found.factor), is_answer=False, says=says)


def _ask(model: CostModel, job: Job, cluster: Cluster, plan: Parallelism) -> float:
    """The step as one cost model alone prices it."""
    engine = Engine(costs=model)
    program = engine.lower(job, cluster, plan)
    return engine.simulate(program, engine.cost(program, job, cluster), job, cluster).duration_s


def _alone(seconds: float) -> Estimate:
    return Estimate(seconds=seconds, low_s=seconds, high_s=seconds)


def _like(step: Estimate, seconds: float) -> Estimate:
    """With the relative interval of the answer."""
    return step.scaled(seconds / step.seconds) if step.seconds else _alone(seconds)
