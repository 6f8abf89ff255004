"""What each part of the model says by itself, for a user who asks why: physics, layers, interaction, reuse."""

from dataclasses import replace

from traincast.cost import CostModel
from traincast.cost.interaction import WEIGHTS, Interacting, Network, load_network
from traincast.cost.pricing import Pricing
from traincast.cost.roofline import Roofline
from traincast.forecast.choose import Reuse, ask_reuse
from traincast.lower import lower
from traincast.simulate import simulate_step
from traincast.spec import Cluster, Estimate, Forecast, Job, Parallelism, Part, Program

UNUSED = "not used: it proved better only above layers that never saw a whole step"
UNKNOWING = "it knows nothing like this workload and changes nothing"


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
    program = lower(job.graph, plan, compiled=job.compiled)
    software = job.stack
    used = costs or Pricing(stack=software)
    layers = used.base if isinstance(used, Interacting) else used
    bound_s = _simulate(program, cluster, Pricing(ops=Roofline(), stack=software), job)
    layers_s = _simulate(program, cluster, layers, job)
    reuse = ask_reuse(job, cluster, plan)
    # The step is the reuse predictor's exactly where the forecast took it; nothing else gives the same number.
    reused = costs is None and reuse.step is not None and reuse.step.seconds == answer.step.seconds
    corrects = isinstance(used, Interacting) and not reused
    fitted = "your calibration" if costs is not None else "operator models fitted to measured kernels"
    return (
        Part(
            name="physics", step=_alone(bound_s), is_answer=False,
            says="each operator at fixed shares of the data sheet's rates (roofline), collectives by latency and bandwidth",
        ),
        Part(
            name="layers", step=_like(answer.step, layers_s) if not reused else _alone(layers_s),
            is_answer=not reused and not corrects,
            says=f"{fitted}, in the order of the program"
            + (f"; mean error {reuse.rival_error:.0%} on our measured steps on such nodes" if reused else ""),
        ),
        _explain_interaction(program, cluster, used, layers_s, job, is_answer=corrects, network=network),
        Part(name="reuse", step=reuse.step, is_answer=reused, says=_explain_reuse(reuse, is_answer=reused, costs=costs)),
    )  # fmt: skip


def _explain_interaction(
    program: Program, cluster: Cluster, used: CostModel, layers_s: float, job: Job, *, is_answer: bool,
    network: Network | None,
) -> Part:  # fmt: skip
    if network is None and not WEIGHTS.is_file():
        return Part(name="interaction", step=None, is_answer=False, says="no weights are installed")
    wrapped = used if isinstance(used, Interacting) else Interacting(base=used, network=network or load_network())
    both_s = _simulate(program, cluster, wrapped, job)
    says = UNKNOWING if both_s == layers_s else "above the layers" if is_answer else f"above the layers; {UNUSED}"
    return Part(name="interaction", step=_alone(both_s), is_answer=is_answer, says=says)


def _explain_reuse(reuse: Reuse, *, is_answer: bool, costs: CostModel | None) -> str:
    if reuse.gap:
        return f"outside its range: {reuse.gap}"
    known = (
        f"{reuse.farness:.1f} ordinary distances from the nearest measured workload, mean error there {reuse.error:.0%}"
    )
    if reuse.rival_error is not None:
        known += f" against {reuse.rival_error:.0%} for the layers"
    if is_answer:
        return f"{known}: chosen"
    return f"{known}; not used: " + ("your calibration answers" if costs is not None else "it is no better here")


def _simulate(program: Program, cluster: Cluster, model: CostModel, job: Job) -> float:
    priced = [model.estimate(stage, cluster) for stage in program.stages]
    if job.cuda_graphs:
        priced = [tuple(replace(estimate, host_s=0.0) for estimate in row) for row in priced]
    return simulate_step(program, priced).duration_s


def _alone(seconds: float) -> Estimate:
    return Estimate(seconds=seconds, low_s=seconds, high_s=seconds)


def _like(step: Estimate, seconds: float) -> Estimate:
    """With the relative interval of the answer."""
    return step.scaled(seconds / step.seconds) if step.seconds else _alone(seconds)
