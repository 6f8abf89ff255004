"""What each part of the model says by itself, for a user who asks why."""

from traincast.cost import CostModel
from traincast.cost.interaction import WEIGHTS, Interacting, Network, load_network
from traincast.lower import lower
from traincast.simulate import simulate_step
from traincast.spec import Cluster, Job, Parallelism
from traincast.units import show_seconds

UNUSED = "off by default: it has not proved better on workloads left out"


def explain_interaction(
    job: Job, cluster: Cluster, plan: Parallelism, costs: CostModel, *, network: Network | None = None
) -> str:
    """One sentence: the step by physics and layers, the step with the interaction network, and which one is the answer."""
    if network is None and not WEIGHTS.is_file():
        return "interaction between tasks: no weights are installed, so physics and layers answer alone"
    program = lower(job.graph, plan, compiled=job.compiled)
    corrected = Interacting(base=costs, network=network or load_network())
    layers_s, both_s = (
        simulate_step(program, [model.estimate(stage, cluster) for stage in program.stages]).duration_s
        for model in (costs, corrected)
    )
    if both_s == layers_s:
        return (
            f"physics and layers say {show_seconds(layers_s)} for a step; the interaction network knows nothing like this "
            f"workload and changes nothing ({UNUSED})"
        )
    return (
        f"physics and layers say {show_seconds(layers_s)} for a step, which is the answer; with the interaction network it "
        f"would be {show_seconds(both_s)} ({UNUSED})"
    )
