"""Every cost model we ship keeps the contract of its slot, on several workloads and devices."""

import pytest

from traincast import catalog
from traincast.catalog._stacks import stacks
from traincast.cost import CostModel
from traincast.cost._pricing import Pricing, default_ops
from traincast.cost._roofline import Roofline
from traincast.spec import Cluster, Estimate, Parallelism, Stage
from traincast.testing import BrokenContract, check_cost_model, check_lowering

MODELS: dict[str, CostModel] = {"roofline": Pricing(ops=Roofline()), "default": Pricing(ops=default_ops())} | {
    f"stack {stack.name}": Pricing(stack=stack) for stack in stacks() if stack.num_steps
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("workload", "device"), [("resnet50", "v100"), ("gpt2", "a100-80g"), ("bert-base", "mi250x-1gcd")]
)
def test_every_cost_model_keeps_its_contract(name: str, workload: str, device: str) -> None:
    cluster = catalog.cluster(device=device, nodes=2, devices_per_node=2)
    check_cost_model(MODELS[name], catalog.workload(workload, batch=4), cluster)


class TimeTravel:
    """Answers less than nothing for every task but the first."""

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]:
        return (Estimate(seconds=0.0, low_s=0.0, high_s=0.0),) * len(stage.tasks)


def test_a_model_that_moves_bytes_in_no_time_is_caught() -> None:
    with pytest.raises(BrokenContract, match="in no time"):
        check_cost_model(TimeTravel(), catalog.workload("resnet18", batch=2), catalog.cluster(device="t4", nodes=1))


@pytest.mark.parametrize("workload", ["gpt2", "llama-3-8b", "mixtral-8x7b", "resnet50", "t5-small"])
def test_lowering_keeps_its_contract_on(workload: str) -> None:
    plans = [
        Parallelism(),
        Parallelism(data=4),
        Parallelism(data=4, zero=1, micro_batches=2),
        Parallelism(data=8, zero=3),
        Parallelism(pipeline=4, micro_batches=8),
    ]
    if workload in ("gpt2", "llama-3-8b", "mixtral-8x7b"):
        plans += [
            Parallelism(tensor=4, sequence_parallel=True),
            Parallelism(tensor=2, pipeline=2, data=2, micro_batches=4, recompute="full"),
            Parallelism(context=2, tensor=2),
        ]
    if workload == "mixtral-8x7b":
        plans.append(Parallelism(data=8, expert=8))
    check_lowering(catalog.workload(workload, batch=1), plans)
