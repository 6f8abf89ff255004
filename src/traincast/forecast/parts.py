"""What each part of the model says by itself, for a user who asks why."""

from traincast.cost import CostModel
from traincast.cost.interaction import WEIGHTS, Interacting, Network, load_network
from traincast.lower import lower
from traincast.simulate import simulate_step
from traincast.spec import Cluster, Job, Parallelism
from traincast.units import show_seconds

UNUSED = "it is used only above layers that never saw a whole step, where it proved better"


def explain_interaction(
    job: Job, cluster: Cluster, plan: Parallelism, costs: CostModel, *, network: Network | None = None
) -> str:
    """One sentence: the step by physics and layers, the step with the interaction network, and which one is the answer."""
    if network is None and not WEIGHTS.is_file():
        return "interaction between tasks: no weights are installed, so physics and layers answer alone"
    program = lower(job.graph, plan, compiled=job.compiled)
    used = isinstance(costs, Interacting)
    layers = costs.base if isinstance(costs, Interacting) else costs
    corrected = costs if used else Interacting(base=costs, network=network or load_network())
    layers_s, both_s = (
        simulate_step(program, [model.estimate(stage, cluster) for stage in program.stages]).duration_s
        for model in (layers, corrected)
    )
    said = f"physics and layers say {show_seconds(layers_s)} for a step"
    if both_s == layers_s:
        return f"{said}; the interaction network knows nothing like this workload and changes nothing"
    if used:
        return f"{said}; with the interaction network it is {show_seconds(both_s)}, which is the answer"
    return f"{said}, which is the answer; with the interaction network it would be {show_seconds(both_s)} ({UNUSED})"
