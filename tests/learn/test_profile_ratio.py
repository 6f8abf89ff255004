from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.certainty._labels import label_run
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.cost._stack import with_constants
from traincast.forecast._tune import know_step, slow_down
from traincast.learn._profile_ratio import choose_informative, fit_ratios
from traincast.learn._stack_fit import FittedStacks, MeasuredStep, fit_networks
from traincast.spec import Job, Parallelism, RunLabels, Stack

PLAIN = FittedStacks(prior=Stack())
LABELS = RunLabels(model="mlp", family="mlp", mode="training_step", precision="fp32", device="t4", stack="pytorch")


def make_step(*, times: float = 1.0, batch: float = 8, devices: int = 1, width: int = 512) -> MeasuredStep:
    """A step that took so many times what we think."""
    job = Job(graph=make_mlp(layers=4, width=width, batch=64 * int(batch)))
    cluster, plan = make_cluster(devices_per_node=devices), Parallelism(data=devices)
    step = know_step(job, cluster, plan, 1.0, costs=Pricing(ops=Roofline()))
    labels = replace(label_run(job, cluster, plan), pass_tokens=float(batch))
    return MeasuredStep(labels=labels, step=replace(step, seconds=times * step.predict(Stack())), start=Stack())


@given(st.floats(0.1, 10.0), st.sampled_from((64, 512, 2048)))
def test_a_step_of_one_device_takes_exactly_as_many_times_as_long(factor: float, width: int) -> None:
    step = make_step(width=width).step
    assert step.predict(slow_down(Stack(), factor)) == pytest.approx(factor * step.predict(Stack()))
    assert replace(step, slowness=factor).predict(Stack()) == pytest.approx(factor * step.predict(Stack()))


def test_slower_computation_leaves_communication_alone() -> None:
    step = make_step(devices=4, batch=1, width=2048).step
    whole, hidden = step.simulate(Stack()), step.simulate(slow_down(Stack(), 20.0))
    assert whole.shares["communication"] > 0.2
    assert hidden.duration_s < 20 * whole.duration_s
    assert hidden.shares["communication"] < whole.shares["communication"]


def test_a_profile_is_believed_at_its_batches_and_interpolated_between_them() -> None:
    ratios = fit_ratios([make_step(times=2.0, batch=4), make_step(times=4.0, batch=16)], PLAIN)
    labels = make_step().labels
    found = [ratios.ratio_of(replace(labels, pass_tokens=size)) for size in (1.0, 4.0, 8.0, 16.0, 64.0)]
    assert found == pytest.approx([2.0, 2.0, 8**0.5, 4.0, 4.0])


def test_repeats_count_once() -> None:
    ratios = fit_ratios([make_step(times=1.0), make_step(times=4.0)], PLAIN)
    assert ratios.ratio_of(make_step().labels) == pytest.approx(2.0)


def test_steps_of_many_devices_and_of_other_jobs_are_no_profile() -> None:
    ratios = fit_ratios([make_step(times=3.0, devices=4)], PLAIN)
    assert ratios.ratio_of(make_step().labels) == 1.0
    ratios = fit_ratios([make_step(times=3.0)], PLAIN)
    assert ratios.ratio_of(replace(make_step().labels, model="other")) == 1.0
    assert ratios.ratio_of(replace(make_step().labels, device="p100-pcie-16g")) == 1.0


def test_a_link_that_computation_is_thought_to_hide_is_found_slow_beside_a_profile() -> None:
    slow = with_constants(Stack(), {"intra_factor": 8.0})
    steps = [make_step(batch=batch, devices=devices, width=2048) for batch in (8, 16) for devices in (1, 2, 4)]
    measured = [replace(one, step=replace(one.step, seconds=one.step.predict(slow))) for one in steps]
    beside = [one for one in measured if not one.labels.is_profile]
    assert steps[-1].step.predict(Stack()) < 0.8 * measured[-1].step.seconds
    found = fit_networks(FittedStacks(groups={("pytorch", None): Stack()}), beside).groups["pytorch", None]
    assert found.intra_factor == pytest.approx(8.0, rel=0.2)
    assert found.inter_factor == 1.0


def runs_of(model: str, count: int, *, devices: int, nodes: int = 1) -> list[RunLabels]:
    return [
        replace(LABELS, model=model, num_devices=devices, num_nodes=nodes, pass_tokens=float(place + 1))
        for place in range(count)
    ]


def test_thinning_never_drops_the_profile_of_an_asked_job() -> None:
    many = runs_of("a", 900, devices=16, nodes=4)
    profile = runs_of("b", 7, devices=1)
    known = [*many, *profile, *runs_of("c", 900, devices=1)]
    chosen = [known[place] for place in choose_informative(known, runs_of("b", 3, devices=8), 20)]
    assert set(profile) <= set(chosen)
    assert len(chosen) <= 20 + len(profile)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from((1, 4, 16))), max_size=60), st.integers(0, 80))
def test_every_job_and_scale_has_equal_weight(rows: list[tuple[str, int]], most: int) -> None:
    known = [
        replace(LABELS, model=model, num_devices=devices, num_nodes=max(1, devices // 4)) for model, devices in rows
    ]
    places = choose_informative(known, [], most)
    assert places == sorted(set(places))
    assert len(places) == min(most, len(known))
    groups: dict[object, list[int]] = {}
    for place, labels in enumerate(known):
        groups.setdefault((labels.job, labels.is_profile, labels.num_nodes > 1), []).append(place)
    shares = {key: len(set(group) & set(places)) for key, group in groups.items()}
    cut = [share for key, share in shares.items() if share < len(groups[key])]
    if cut:
        assert max(cut) - min(cut) <= 1
        assert max(shares.values()) <= max(cut) + 1
