from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.accuracy.anchor import anchor, choose_telling, is_profile, job_of
from traincast.accuracy.cases import Case
from traincast.accuracy.retune import Lesson, Tuned, retune_network
from traincast.cost.pricing import Pricing
from traincast.cost.roofline import Roofline
from traincast.cost.stack import with_constants
from traincast.forecast.tune import know_step, slow_down
from traincast.spec import Job, Parallelism, Stack

PLAIN = Tuned(start=Stack())


def make_lesson(*, times: float = 1.0, batch: float = 8, devices: int = 1, width: int = 512) -> Lesson:
    """A step that took so many times what we think."""
    case = Case(case_id="x", gpu="t4", model="mlp", n_gpus=devices, n_nodes=1, micro_batch=batch)
    job = Job(graph=make_mlp(layers=4, width=width, batch=64 * int(batch)))
    cluster = make_cluster(devices_per_node=devices)
    step = know_step(job, cluster, Parallelism(data=devices), 1.0, costs=Pricing(ops=Roofline()))
    return Lesson(case=case, step=replace(step, seconds=times * step.predict(Stack())), start=Stack())


@given(st.floats(0.1, 10.0), st.sampled_from((64, 512, 2048)))
def test_a_step_of_one_device_takes_exactly_as_many_times_as_long(factor: float, width: int) -> None:
    step = make_lesson(width=width).step
    assert step.predict(slow_down(Stack(memory_factor=1.1), factor)) == pytest.approx(
        factor * step.predict(Stack(memory_factor=1.1))
    )
    assert replace(step, slowness=factor).predict(Stack()) == pytest.approx(factor * step.predict(Stack()))


def test_slower_computation_leaves_communication_alone() -> None:
    step = make_lesson(devices=4, batch=1, width=2048).step
    whole, hidden = step.simulate(Stack()), step.simulate(slow_down(Stack(), 20.0))
    assert whole.shares["communication"] > 0.2
    assert hidden.duration_s < 20 * whole.duration_s
    assert hidden.shares["communication"] < whole.shares["communication"]


def test_a_profile_is_believed_at_its_batches_and_interpolated_between_them() -> None:
    anchors = anchor([make_lesson(times=2.0, batch=4), make_lesson(times=4.0, batch=16)], PLAIN)
    case = make_lesson().case
    found = [anchors.slowness_of(replace(case, micro_batch=size)) for size in (1.0, 4.0, 8.0, 16.0, 64.0)]
    assert found == pytest.approx([2.0, 2.0, 8**0.5, 4.0, 4.0])


def test_repeats_count_once() -> None:
    anchors = anchor([make_lesson(times=1.0), make_lesson(times=4.0)], PLAIN)
    assert anchors.slowness_of(make_lesson().case) == pytest.approx(2.0)


def test_steps_of_many_devices_and_of_other_jobs_are_no_profile() -> None:
    anchors = anchor([make_lesson(times=3.0, devices=4)], PLAIN)
    assert anchors.slowness_of(make_lesson().case) == 1.0
    anchors = anchor([make_lesson(times=3.0)], PLAIN)
    assert anchors.slowness_of(replace(make_lesson().case, model="other")) == 1.0
    assert anchors.slowness_of(replace(make_lesson().case, gpu="p100-pcie-16g")) == 1.0


def test_a_link_that_computation_is_thought_to_hide_is_found_slow_beside_a_profile() -> None:
    slow = with_constants(Stack(), {"intra_factor": 8.0})
    lessons = [make_lesson(batch=batch, devices=devices, width=2048) for batch in (8, 16) for devices in (1, 2, 4)]
    measured = [replace(one, step=replace(one.step, seconds=one.step.predict(slow))) for one in lessons]
    beside = [one for one in measured if not is_profile(one.case)]
    assert lessons[-1].step.predict(Stack()) < 0.8 * measured[-1].step.seconds
    found = retune_network(Tuned(groups={(None, None): Stack()}), beside).groups[None, None]
    assert found.intra_factor == pytest.approx(8.0, rel=0.2)
    assert found.inter_factor == 1.0


def cases_of(model: str, count: int, *, devices: int, nodes: int = 1) -> list[Case]:
    return [
        Case(case_id=f"{model}-{devices}-{place}", gpu="t4", model=model, n_gpus=devices, n_nodes=nodes)
        for place in range(count)
    ]


def test_thinning_never_drops_the_profile_of_an_asked_job() -> None:
    many = cases_of("a", 900, devices=16, nodes=4)
    profile = cases_of("b", 7, devices=1)
    known = [*many, *profile, *cases_of("c", 900, devices=1)]
    chosen = [known[place] for place in choose_telling(known, cases_of("b", 3, devices=8), 20)]
    assert set(profile) <= set(chosen)
    assert len(chosen) <= 20 + len(profile)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from((1, 4, 16))), max_size=60), st.integers(0, 80))
def test_every_job_and_scale_keeps_an_equal_voice(rows: list[tuple[str, int]], most: int) -> None:
    known = [
        Case(case_id=str(place), gpu="t4", model=model, n_gpus=devices, n_nodes=max(1, devices // 4))
        for place, (model, devices) in enumerate(rows)
    ]
    places = choose_telling(known, [], most)
    assert places == sorted(set(places))
    assert len(places) == min(most, len(known))
    groups: dict[object, list[int]] = {}
    for place, case in enumerate(known):
        groups.setdefault((job_of(case), is_profile(case), (case.n_nodes or 1) > 1), []).append(place)
    shares = {key: len(set(group) & set(places)) for key, group in groups.items()}
    cut = [share for key, share in shares.items() if share < len(groups[key])]
    if cut:
        assert max(cut) - min(cut) <= 1
        assert max(shares.values()) <= max(cut) + 1
