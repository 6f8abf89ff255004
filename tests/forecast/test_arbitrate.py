"""Which part answers: the reuse predictor inside its range, physics and layers elsewhere, wider where nothing is known."""

import math
from dataclasses import replace
from functools import cache

import pytest

from research.corpus import FOLDER, GRAPHS, corpus_is_here, load_graphs
from tests.builders import make_cluster, make_mlp
from traincast import catalog
from traincast.cost._pricing import Pricing
from traincast.embed import load_predictor, summarize
from traincast.embed._summary import Ranks
from traincast.forecast import forecast
from traincast.forecast._arbitrate import (
    ask_reuse,
    choose_answer,
    find_gap,
    load_layers,
    measure_novelty,
    stretch,
)
from traincast.forecast._parts import explain_parts
from traincast.learn import Calibrated
from traincast.lower import lower
from traincast.simulate import simulate_step
from traincast.spec import Cluster, Estimate, Graph, Job, Parallelism


@cache
def known_graph() -> Graph:
    if not corpus_is_here():
        pytest.skip("the corpus comes with a checkout of the repository")
    return load_graphs(FOLDER / GRAPHS)["resnet(depth=2,width=16)", 4]


def cores(num_nodes: int = 2, *, share: float = 0.25, inter: str = "1gbe", devices_per_node: int = 1) -> Cluster:
    return catalog.cluster(
        device="cpu", nodes=num_nodes, devices_per_node=devices_per_node, inter=inter, speed=share, price=None
    )


def spread(step: Estimate) -> float:
    return math.log(step.high_s / step.low_s)


def test_inside_its_range_the_reuse_predictor_answers_and_says_so() -> None:
    graph, cluster = known_graph(), cores(4)
    answer = forecast(Job(graph=graph), cluster, draw=True)
    link = cluster.groups[0].inter.bytes_per_s * 8
    program = lower(graph, Parallelism(data=4, overlap=False))
    layers = Calibrated(rates=load_layers())
    layers_s = simulate_step(program, [layers.estimate(stage, cluster) for stage in program.stages]).duration_s
    ranks = Ranks(num_ranks=4, bits_per_s=link, share=0.25)
    said = load_predictor().predict(summarize(graph), ranks, layers_s=layers_s)
    alone = load_predictor().predict(summarize(graph), ranks)
    apart = math.log(alone.seconds / layers_s)
    most = load_predictor().most_apart
    assert said.seconds == pytest.approx(layers_s * math.exp(min(max(apart, -most), most) / 2))
    assert answer.step.seconds == pytest.approx(said.seconds)
    assert answer.timeline.duration_s == pytest.approx(said.seconds)
    assert max(span.end_s for span in answer.timeline.spans) <= said.seconds * (1 + 1e-9)
    assert any("reuse predictor" in note for note in answer.notes)
    parts = explain_parts(answer, Job(graph=graph), cluster, Parallelism(data=4))
    assert [part.name for part in parts if part.is_answer] == ["reuse"]
    assert "ordinary distances from the nearest measured workload, mean error there" in parts[-1].says


def test_a_calibration_of_the_users_own_machine_answers_before_it() -> None:
    answer = forecast(Job(graph=known_graph()), cores(), costs=Pricing())
    assert not any("reuse predictor" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("cluster", "plan", "words"),
    [
        (make_cluster(), Parallelism(), "not on testium"),
        (cores(devices_per_node=2), Parallelism(data=4), "one rank in each node"),
        (cores(), Parallelism(data=2, zero=1), "plain data parallelism"),
        (cores(), Parallelism(data=2, micro_batches=2), "plain data parallelism"),
    ],
)
def test_machines_and_plans_that_were_never_measured_are_named(cluster: Cluster, plan: Parallelism, words: str) -> None:
    assert words in find_gap(Job(graph=make_mlp()), cluster, plan)


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (cores(share=1.0), "1 of a core"),
        (cores(5), "5 ranks; steps of 1 to 4 were measured"),
        (cores(inter="ethernet-100g"), "links of 100 Gbit/s"),
    ],
)
def test_sizes_that_were_never_measured_are_named_and_layers_answer(cluster: Cluster, words: str) -> None:
    job = Job(graph=known_graph())
    reuse = ask_reuse(job, cluster, Parallelism(data=cluster.num_devices))
    assert words in reuse.gap
    assert not reuse.is_better
    assert not any("reuse predictor" in note for note in forecast(job, cluster).notes)


def test_half_precision_is_no_ground_for_it() -> None:
    graph = catalog.workload("resnet50", batch=4, precision="bf16")
    assert "fp32" in find_gap(Job(graph=graph), cores(), Parallelism(data=2))


def test_what_the_catalogue_builds_by_name_is_familiar_at_any_batch() -> None:
    for batch in (1, 512):
        assert measure_novelty(catalog.workload("resnet50", batch=batch)) == 0.0
        renamed = replace(catalog.workload("resnet50", batch=batch), name="mine")
        assert measure_novelty(renamed) < 1.5


def test_far_from_everything_known_the_interval_is_wider_and_measuring_is_advised() -> None:
    graph = make_mlp(layers=64, width=8192, batch=4096)
    assert measure_novelty(graph) > 2
    step = Estimate(seconds=1.0, low_s=0.9, high_s=1.2)
    answer = choose_answer(Job(graph=graph), make_cluster(), Parallelism(), step)
    assert answer.step.seconds == 1.0
    assert spread(answer.step) == pytest.approx(2 * spread(step))
    assert "traincast profile operators" in answer.notes[0]
    assert "traincast design" in answer.notes[0]


def test_words_and_promises_of_what_is_unlike_everything_known_have_the_width_of_its_interval() -> None:
    job = Job(graph=make_mlp(layers=64, width=8192, batch=4096), stack=catalog.stack("lightning"))
    answer = forecast(job, make_cluster())
    low, high = (end / answer.step.seconds - 1 for end in (answer.step.low_s, answer.step.high_s))
    said = next(note for note in answer.notes if note.startswith("90% sure"))
    assert f"{low:+.0%} to {high:+.0%}" in said
    assert "unlike every workload we know" in said
    assert answer.narrowing
    for one in answer.narrowing:
        assert one.width_now == pytest.approx(high - low)
        assert one.width_after == pytest.approx(one.after[1] - one.after[0])
        assert one.width_after < one.width_now


def test_a_stretched_timeline_keeps_its_shares() -> None:
    timeline = forecast(Job(graph=make_mlp()), make_cluster(nodes=2), draw=True).timeline
    slow = stretch(timeline, 3.0)
    assert slow.duration_s == pytest.approx(3 * timeline.duration_s)
    assert slow.shares == timeline.shares
    assert [span.end_s for span in slow.spans] == pytest.approx([3 * span.end_s for span in timeline.spans])
