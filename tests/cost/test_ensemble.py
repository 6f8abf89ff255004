"""The ensemble above the layers: a ratio to physics for each class of operators, from the program alone."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import make_mlp
from traincast import catalog
from traincast.catalog._workloads import workload
from traincast.certainty._arbitrate import prefer_reuse
from traincast.cost import Correction, Ensemble, Pricing, describe_nodes
from traincast.cost._interaction.ensemble import MEMBERS, Blend, KindTable, NodeNetwork, load_ensemble, mean_factors
from traincast.cost._interaction.nodes import classes_of
from traincast.forecast import Engine
from traincast.lower import lower
from traincast.spec import Graph, Job, Parallelism, Stage

GRAPHS = Path(__file__).resolve().parents[3] / "shared" / "data" / "timm" / "graphs"


def whole(graph: Graph) -> Stage:
    return lower(graph, Parallelism()).stages[0]


def resnet(precision: str = "fp16-amp") -> Graph:
    return workload("resnet50", batch=32, precision=precision)


@pytest.fixture(autouse=True)
def ensemble_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the reuse predictor, which is blended in near programs that were measured (tests/embed/test_on_gpus.py)."""
    monkeypatch.setattr(sys.modules[prefer_reuse.__module__], "_reuse_weight", lambda *_: 0.0)


def step_s(graph: Graph, ensemble: Ensemble | None, device: str = "rtx-3090", stack: str = "pytorch") -> float:
    software = catalog.stack(stack)
    engine = Engine(costs=Pricing(stack=software, interaction=ensemble))
    job, cluster = Job(graph=graph, stack=software), catalog.cluster(device=device, devices_per_node=1)
    return engine.forecast(job, cluster, Parallelism()).step.seconds


def zeroed() -> Ensemble:
    """The shipped ensemble with every weight of every member set to zero."""
    known = load_ensemble()
    members: dict[str, Any] = {"kinds": KindTable(logs={})}
    for name in MEMBERS[1:]:
        network = known.members[name]
        assert isinstance(network, NodeNetwork)
        arrays = ("enter", "enter_class", "middle", "middle_bias", "leave")
        members[name] = replace(network, **{key: np.zeros_like(getattr(network, key)) for key in arrays})
    return replace(known, members=members)


def correct(graph: Graph) -> Correction:
    found = load_ensemble().correct(whole(graph))
    assert found is not None
    return found


def test_zeroed_weights_change_the_forecast_of_a_gpu() -> None:
    graph = resnet()
    assert step_s(graph, load_ensemble()) == Engine().forecast(
        Job(graph=graph, stack=catalog.stack("pytorch")), catalog.cluster(device="rtx-3090", devices_per_node=1), Parallelism()
    ).step.seconds  # fmt: skip
    assert step_s(graph, zeroed()) == step_s(graph, None)
    assert step_s(graph, load_ensemble()) != step_s(graph, None)
    assert max(abs(math.log(factor)) for factor in correct(graph).factors.values()) > 0.02


@pytest.mark.skipif(not GRAPHS.is_dir(), reason="needs the measured steps of image models in ../shared/data/timm")
def test_zeroed_weights_make_forecasts_of_the_steps_that_taught_them_worse() -> None:
    """In sample, of the file that ships: families left out are tests/research/test_interaction_gpu.py's."""
    from pyarrow import parquet

    from traincast.files import load_graph

    errors: dict[str, list[float]] = {"with": [], "without": []}
    rows = parquet.read_table(GRAPHS / "train_index.parquet").to_pylist()
    for row in rows[:: len(rows) // 40]:
        graph = load_graph(GRAPHS / row["graph"])
        assert isinstance(graph, Graph)
        for name, ensemble in (("with", load_ensemble()), ("without", zeroed())):
            # They were measured with PyTorch 1.12.
            errors[name].append(abs(step_s(graph, ensemble, stack="pytorch-1") / row["nchw"] - 1))
    assert np.mean(errors["with"]) < 0.95 * np.mean(errors["without"])


def test_a_correction_is_the_same_on_every_gpu_and_none_on_a_processor() -> None:
    job, engine = Job(graph=resnet()), Engine()
    found = [
        engine.correct(job, catalog.cluster(device=name, devices_per_node=1))
        for name in ("t4", "h100-sxm-80g", "mi300x")
    ]
    assert found[0] is not None
    assert all(one is found[0] for one in found)
    assert engine.correct(job, catalog.cluster(device="cpu", devices_per_node=1)) is None
    assert engine.correct(job, catalog.cluster(device="tpu-v4", devices_per_node=1)) is None


def test_factors_are_within_bounds_and_leave_host_update_and_collectives_alone() -> None:
    graph = resnet()
    found = correct(graph)
    assert all(1 / math.e <= factor <= math.e for factor in found.factors.values())
    cluster = catalog.cluster(device="rtx-3090", devices_per_node=2)
    plan = Parallelism(data=2)
    job = Job(graph=graph)
    plain, both = (Engine(costs=Pricing(interaction=one)) for one in (None, load_ensemble()))
    program = plain.lower(job, cluster, plan)
    before, after = plain.cost(program, job, cluster)[0], both.cost(program, job, cluster)[0]
    tasks = program.stages[0].tasks
    assert [one.host_s for one in before] == [one.host_s for one in after]
    for name, one, other in zip(classes_of(tasks), before, after, strict=True):
        factor = 1.0 if name is None else found.factors.get(name, 1.0)
        assert other.seconds == pytest.approx(one.seconds * factor)


def test_tokens_and_vectors_are_left_to_physics() -> None:
    """Sources of language models were not better with any correction that was tried (docs/model-cards/interaction.md)."""
    assert load_ensemble().correct(whole(workload("gpt2", batch=2, precision="bf16"))) is None
    assert load_ensemble().correct(whole(make_mlp())) is None


def test_a_correction_fades_with_the_distance_from_what_was_learned() -> None:
    known = load_ensemble()
    nodes = describe_nodes(whole(resnet()))
    behaviour = nodes.behaviour
    far = replace(known, atlas=replace(known.atlas, shares={behaviour: known.atlas.shares[behaviour] + 3.0}))
    assert far.correct(whole(resnet())) is None or correct(resnet()).fade > 10 * far.correct(whole(resnet())).fade  # type: ignore[union-attr]
    blend = known.blends[behaviour]
    assert Blend(weights=blend.weights, reach=0.1).fade(0.1) == pytest.approx(0.5)
    assert Blend(weights=blend.weights, reach=0.1).fade(0.0) == 1.0


def test_a_class_nobody_measured_adds_to_the_distance() -> None:
    known = load_ensemble()
    nodes = describe_nodes(whole(resnet()))
    strange = replace(nodes, names=tuple(f"strange {name}" for name in nodes.names))
    assert known.atlas.nearest(strange)[0][1] > known.atlas.nearest(nodes)[0][1]


def test_the_mean_factor_of_a_class_is_weighed_by_time() -> None:
    nodes = describe_nodes(whole(resnet()))
    logs = np.zeros(len(nodes.classes))
    name = max(nodes.shares(), key=lambda one: nodes.shares()[one])
    places = [place for place, one in enumerate(nodes.classes) if one == name]
    largest = max(places, key=lambda place: nodes.reference_s[place])
    logs[largest] = math.log(2)
    share = nodes.reference_s[largest] / nodes.reference_s[places].sum()
    assert mean_factors(nodes, logs)[name] == pytest.approx(1 + share)
