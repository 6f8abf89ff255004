"""A device that is faster in one respect never makes a step slower, whatever the plan and the model."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from traincast import catalog
from traincast.catalog._workloads import workload
from traincast.cost._pricing import Pricing
from traincast.errors import TraincastError
from traincast.forecast import forecast
from traincast.spec import Cluster, Device, Graph, Job, Parallelism

DEVICES = (
    "a100-sxm4-80g",
    "h100-sxm-80g",
    "rtx-4090",
    "l40s",
    "b200-sxm-180g",
    "t4",
    "v100-sxm2-32g",
    "mi300x",
    "rtx-3090",
)
MODELS = (
    ("gpt2", "bf16"),
    ("bert-base", "fp16-amp"),
    ("resnet50", "fp16-amp"),
    ("resnet50", "fp32"),
    ("gpt2", "fp32"),
    ("gpt2", "tf32"),
)
PLANS = (
    Parallelism(data=8), Parallelism(data=8, zero=3), Parallelism(data=2, tensor=4, sequence_parallel=True),
    Parallelism(data=4, pipeline=2, micro_batches=4), Parallelism(data=8, zero=1, recompute="full"),
)  # fmt: skip
RAISED = ("flop", "memory", "cache", "clock")
NUM_PLANS = 60


@cache
def graph(name: str, precision: str, batch: int) -> Graph:
    return workload(name, batch=batch, precision=precision)


def faster(device: Device, what: str, factor: float) -> Device:
    if what == "flop":
        return replace(
            device,
            matrix_flop_per_s={dtype: rate * factor for dtype, rate in device.matrix_flop_per_s.items()},
            vector_flop_per_s={dtype: rate * factor for dtype, rate in device.vector_flop_per_s.items()},
        )
    name = {"memory": "memory_bytes_per_s", "cache": "l2_bytes", "clock": "clock_hz"}[what]
    return replace(device, **{name: (getattr(device, name) or 1e9) * factor})


def step_s(job: Job, cluster: Cluster, plan: Parallelism) -> float:
    return forecast(job, cluster, plan, costs=Pricing()).step.seconds


@pytest.mark.parametrize("seed", range(NUM_PLANS))
def test_no_random_plan_is_slower_on_a_faster_device(seed: int) -> None:
    rng = np.random.default_rng(seed)
    name, precision = MODELS[rng.integers(len(MODELS))]
    plan = PLANS[rng.integers(len(PLANS))] if name != "resnet50" else PLANS[rng.integers(2)]
    job = Job(graph=graph(name, precision, int(rng.choice([1, 8]))), compiled=bool(rng.random() < 0.3))
    cluster = catalog.cluster(device=DEVICES[rng.integers(len(DEVICES))], nodes=1, devices_per_node=8)
    factor = float(rng.choice([1.05, 1.25, 2.0, 4.0]))
    try:
        before = step_s(job, cluster, plan)
    except TraincastError as error:
        pytest.skip(str(error))
    for what in RAISED:
        groups = tuple(replace(group, device=faster(group.device, what, factor)) for group in cluster.groups)
        assert step_s(job, replace(cluster, groups=groups), plan) <= before * (1 + 1e-6), (what, factor)


@pytest.mark.parametrize("factor", [1.1, 1.25, 1.6, 2.0])
def test_resnet_is_never_slower_with_a_higher_rate(factor: float) -> None:
    cluster = catalog.cluster(device="a100-sxm4-80g", nodes=1, devices_per_node=1)
    job, plan = Job(graph=graph("resnet50", "fp16-amp", 8)), Parallelism()
    groups = tuple(replace(group, device=faster(group.device, "flop", factor)) for group in cluster.groups)
    assert step_s(job, replace(cluster, groups=groups), plan) <= step_s(job, cluster, plan)
