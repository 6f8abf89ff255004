"""What each part of the model says by itself, for a user who asks why: physics, layers, factors of classes of operators."""

from dataclasses import replace

from traincast.cost import ClassFactors, CostModel, Pricing, Roofline, describe_nodes
from traincast.forecast._engine import Engine, stack_of
from traincast.lower import split_model
from traincast.spec import Cluster, Estimate, Forecast, Job, Parallelism, Part

MOST_CHANGED = 4


def explain_parts(
    answer: Forecast, job: Job, cluster: Cluster, plan: Parallelism, *, costs: CostModel | None = None
) -> tuple[Part, ...]:
    """Each part's own answer to a forecast's question, and why it is or is not the forecast's."""
    plain = answer if not answer.learned else Engine(costs=costs).forecast(job, cluster, plan)
    parts = _explain_plain(plain, job, cluster, plan, costs=costs)
    if plain.step.seconds == answer.step.seconds:
        return parts
    own = Part(name="own runs", step=answer.step, is_answer=True, says=f"what answered before, by {answer.learned}")
    return *(replace(part, is_answer=False) for part in parts), own


def _explain_plain(
    answer: Forecast, job: Job, cluster: Cluster, plan: Parallelism, *, costs: CostModel | None
) -> tuple[Part, ...]:
    """Of a forecast that no run of one's own moved."""
    engine = Engine(costs=costs)
    fitted = "operator models fitted to measured kernels" if costs is None else "your calibration"
    if costs is None and job.cost_model is not None:
        costs, fitted = engine.own_costs(job), f"the cost model {job.cost_model!r}"
    correction, layers = engine.correct(job, cluster), engine.model(job)
    if isinstance(layers, Pricing):
        layers = replace(layers, interaction=None)
    question = job, cluster, plan
    bound_s = _ask(Pricing(ops=Roofline(), stack=stack_of(job), interaction=None), *question)
    layers_s = _ask(layers, *question)
    parts = (
        Part(
            name="physics", step=_alone(bound_s), is_answer=False,
            says="each operator at fixed shares of the data sheet's rates (roofline), collectives by latency and bandwidth",
        ),
        Part(
            name="layers", step=_like(answer.step, layers_s), is_answer=correction is None,
            says=f"{fitted}, in the order of the program",
        ),
    )  # fmt: skip
    if correction is None:
        return parts
    says = "the same with one factor for each class of operators, by measured inference of image models; changed most: "
    says += _name_changes(job, correction)
    return *parts, Part(name="classes", step=answer.step, is_answer=True, says=says)


def _name_changes(job: Job, correction: ClassFactors) -> str:
    """The classes whose change moves the step most, each with its factor and its share of the operators' time."""
    shares = describe_nodes(split_model(job.graph, Parallelism(), compiled=job.compiled)).shares()
    factors = {name: correction.factors.get(name, 1.0) for name in shares}
    moved = sorted(shares, key=lambda name: -abs(factors[name] - 1) * shares[name])
    return ", ".join(f"{name} x{factors[name]:.2f} ({shares[name]:.0%} of the time)" for name in moved[:MOST_CHANGED])


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
