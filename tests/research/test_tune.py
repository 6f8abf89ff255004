import math
from dataclasses import replace

import pytest

from builders import make_cluster, make_mlp
from research.fits.tune import know_step, tune
from traincast.catalog import workload
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.cost._stack import read_constants, with_constants
from traincast.forecast import Engine
from traincast.resolve import build_cluster
from traincast.spec import Job, Parallelism, PlanHabits, Question, Stack


def known_steps(
    truth: Stack, *, widths: tuple[int, ...] = (64, 512, 2048, 4096), batches: tuple[int, ...] = (1, 64, 1024)
):
    """Steps as a machine with these constants would run them."""
    costs = Pricing(ops=Roofline())
    steps = []
    for width in widths:
        for batch in batches:
            for devices in (1, 4):
                graph = make_mlp(layers=6, width=width, batch=batch)
                cluster = make_cluster(devices_per_node=devices)
                step = know_step(Job(graph=graph), cluster, Parallelism(data=devices), 1.0, costs=costs)
                steps.append(
                    know_step(Job(graph=graph), cluster, Parallelism(data=devices), step.predict(truth), costs=costs)
                )
    return steps


def test_constants_of_a_made_up_machine_are_found_again() -> None:
    truth = with_constants(Stack(), {"forward_call_s": 2e-5, "product_factor": 1.3, "intra_factor": 0.7})
    tuned = read_constants(tune(Stack(), known_steps(truth)))
    assert tuned["product_factor"] == pytest.approx(1.3, rel=0.05)
    assert tuned["intra_factor"] == pytest.approx(0.7, rel=0.15)
    assert tuned["forward_call_s"] == pytest.approx(2e-5, rel=0.35)


def test_a_known_step_is_the_step_that_is_forecast_with_what_the_libraries_of_its_stack_do() -> None:
    cluster = build_cluster(Question(cluster={"device": "a100-sxm4-80g"}))
    graph = workload("resnet18", batch=64, precision="fp16")
    turned = replace(
        Stack(),
        kernels=(
            "turned_images",
            "grouped_gradients_on_lanes",
        ),
    )
    seconds = {}
    for software in (Stack(), turned):
        job = Job(graph=graph, stack=software)
        engine = Engine()
        program = engine.lower(job, cluster, Parallelism())
        timeline = engine.simulate(program, engine.cost(program, job, cluster), job, cluster)
        known = know_step(job, cluster, Parallelism(), 1.0)
        assert known.predict(software) == pytest.approx(timeline.duration_s, rel=1e-9)
        seconds["turned_images" in software.kernels] = timeline.duration_s
    assert seconds[True] != seconds[False]


def test_a_known_step_of_replicas_in_containers_of_their_own_sends_through_the_adapters() -> None:
    graph, cluster, plan = make_mlp(layers=6, width=2048), make_cluster(devices_per_node=4), Parallelism(data=4)
    apart = Stack(name="pods", plan=PlanHabits(runs=("own_containers",)))
    alone, together = (
        know_step(Job(graph=graph, stack=stack), cluster, plan, 1.0, costs=Pricing(ops=Roofline())).predict(Stack())
        for stack in (apart, Stack())
    )
    assert alone > together
    forecast = Engine(costs=Pricing(ops=Roofline(), stack=apart)).forecast(Job(graph=graph, stack=apart), cluster, plan)
    assert forecast.step.seconds == pytest.approx(alone, rel=0.02)
    assert any("container of its own" in note for note in forecast.notes)


def test_measurements_that_agree_with_the_prior_move_nothing() -> None:
    tuned = read_constants(tune(Stack(), known_steps(Stack())))
    for name, value in read_constants(Stack()).items():
        assert tuned[name] == pytest.approx(value, rel=1e-3)


def test_without_measurements_the_stack_is_unchanged() -> None:
    assert tune(Stack(), []) == Stack()


def test_one_wild_measurement_does_not_carry_the_others_away() -> None:
    truth = with_constants(Stack(), {"product_factor": 1.2})
    steps = known_steps(truth)
    wild = know_step(
        Job(graph=make_mlp(width=2048, batch=512)), make_cluster(), Parallelism(), 50.0, costs=Pricing(ops=Roofline())
    )
    tuned = tune(Stack(), [*steps, wild])
    assert tuned.product_factor == pytest.approx(1.2, rel=0.08)


def test_what_no_measurement_touches_stays_at_its_prior() -> None:
    truth = with_constants(Stack(), {"product_factor": 1.4})
    assert tune(Stack(), known_steps(truth)).inter_factor == pytest.approx(1.0)


def test_the_spread_tells_how_well_the_constants_fit() -> None:
    steps = known_steps(Stack())
    assert tune(Stack(), steps).log_sigma == pytest.approx(0.03)
    assert math.isfinite(tune(Stack(), steps[:1]).log_sigma)
