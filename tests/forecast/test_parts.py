"""Each part of the model says its own answer, and exactly one of them is the forecast's."""

from dataclasses import replace

import numpy as np

from tests.builders import make_cluster, make_mlp
from traincast import catalog
from traincast.catalog._workloads import workload
from traincast.cost._interaction import Interacting, Network, load_network
from traincast.cost._interaction.ensemble import MEMBERS
from traincast.cost._pricing import Pricing
from traincast.forecast import forecast
from traincast.forecast._parts import UNKNOWING, UNMEASURED, explain_parts
from traincast.spec import Cluster, Job, Parallelism, Part


def explain(job: Job, cluster: Cluster, costs: Pricing | Interacting | None = None, *,
            network: Network | None = None) -> dict[str, Part]:  # fmt: skip
    plan = Parallelism(data=cluster.num_devices)
    answer = forecast(job, cluster, plan, costs=costs)
    return {part.name: part for part in explain_parts(answer, job, cluster, plan, costs=costs, network=network)}


def everywhere() -> Network:
    """The shipped network as if it had seen every sort of workload."""
    known = load_network()
    return replace(
        known, low=np.full_like(known.low, -np.inf), high=np.full_like(known.high, np.inf),
        known_sorts=np.ones_like(known.known_sorts),
    )  # fmt: skip


def test_a_workload_far_from_the_corpus_is_not_corrected() -> None:
    parts = explain(Job(graph=make_mlp(width=8192, layers=48, batch=4096)), make_cluster())
    assert parts["interaction"].says == UNKNOWING
    assert parts["interaction"].step == replace(
        parts["interaction"].step, seconds=parts["layers"].step.seconds  # type: ignore[type-var, union-attr]
    )  # fmt: skip


def test_layers_answer_on_a_gpu_and_the_reuse_predictor_says_why_it_does_not() -> None:
    cluster = make_cluster()
    job = Job(graph=make_mlp())
    parts = explain(job, cluster)
    assert [name for name, part in parts.items() if part.is_answer] == ["layers"]
    assert parts["reuse"].step is None
    assert parts["reuse"].says == UNMEASURED
    assert parts["layers"].step is not None
    assert parts["layers"].step.seconds == forecast(job, cluster).step.seconds


def test_the_network_answers_where_it_is_the_cost_model() -> None:
    job, cluster = Job(graph=make_mlp()), make_cluster()
    used = explain(job, cluster, Interacting(base=Pricing(), network=everywhere()))
    assert [name for name, part in used.items() if part.is_answer] == ["interaction"]
    unused = explain(job, cluster, network=everywhere())
    assert "not used" in unused["interaction"].says
    assert unused["interaction"].step != unused["layers"].step


def test_on_a_gpu_each_member_of_the_ensemble_says_its_answer_weight_and_neighbours() -> None:
    job = Job(graph=workload("resnet50", batch=16, precision="fp16-amp"))
    cluster = catalog.cluster(device="rtx-3090", devices_per_node=1)
    parts = explain(job, cluster)
    assert [name for name, part in parts.items() if part.is_answer] == ["interaction"]
    members = [f"interaction: {name}" for name in MEMBERS]
    assert set(members) <= set(parts)
    assert all("weight 0." in parts[name].says or "weight 1." in parts[name].says for name in members)
    says = parts["interaction"].says
    assert "measured steps of" in says
    assert "mean distance" in says
    assert "changed most" in says
    step = parts["interaction"].step
    assert step is not None
    assert step.seconds == forecast(job, cluster).step.seconds
    assert "architectures left out" in parts["reuse"].says
