import itertools
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.cost._pricing import Pricing
from traincast.lower import lower
from traincast.simulate import simulate_step
from traincast.spec import Estimate, Graph, Op, Parallelism, PlanHabits, Program, Span, Task, Timeline


def price(program: Program, device_s: list[float], host_s: list[float], network_s: float) -> list[tuple[Estimate, ...]]:
    """Hand-made durations, cycled over the tasks."""

    def one(index: int, kind: str) -> Estimate:
        seconds = network_s if kind == "Collective" else device_s[index % len(device_s)]
        return Estimate(seconds=seconds, low_s=seconds, high_s=seconds, host_s=host_s[index % len(host_s)])

    return [tuple(one(i, type(task).__name__) for i, task in enumerate(stage.tasks)) for stage in program.stages]


durations = st.lists(st.floats(0.001, 10.0), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(
    device_s=durations,
    host_s=durations,
    network_s=st.floats(0.0, 20.0),
    layers=st.integers(1, 9),
    rounds=st.integers(1, 6),
)
def test_the_closed_form_of_a_repeated_layer_equals_running_it_task_by_task(
    device_s: list[float], host_s: list[float], network_s: float, layers: int, rounds: int
) -> None:
    program = lower(make_mlp(layers=layers), Parallelism(micro_batches=rounds))
    estimates = price(program, device_s, host_s, network_s)
    drawn = simulate_step(program, estimates, draw=True)
    assert simulate_step(program, estimates).duration_s == pytest.approx(drawn.duration_s, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(device_s=durations, network_s=st.floats(0.0, 20.0), layers=st.integers(1, 9), zero=st.sampled_from([0, 1, 3]))
def test_with_a_fast_host_gradients_in_closed_form_end_when_the_drawn_ones_do(
    device_s: list[float], network_s: float, layers: int, zero: int
) -> None:
    program = lower(make_mlp(layers=layers), Parallelism(data=2, zero=zero))
    estimates = price(program, device_s, [0.0], network_s)
    drawn = simulate_step(program, estimates, draw=True)
    assert simulate_step(program, estimates).duration_s == pytest.approx(drawn.duration_s, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(device_s=durations, host_s=durations, network_s=st.floats(0.0, 20.0), zero=st.sampled_from([0, 1, 3]))
def test_spans_on_one_stream_never_overlap(
    device_s: list[float], host_s: list[float], network_s: float, zero: int
) -> None:
    program = lower(make_mlp(layers=3), Parallelism(data=2, zero=zero))
    timeline = simulate_step(program, price(program, device_s, host_s, network_s), draw=True)
    streams: dict[tuple[int, str], list[Span]] = {}
    for span in timeline.spans:
        streams.setdefault((span.rank, span.stream), []).append(span)
    for spans in streams.values():
        ordered = sorted(spans, key=lambda span: span.start_s)
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(ordered))
        assert all(span.start_s <= span.end_s <= timeline.duration_s + 1e-9 for span in ordered)


def test_shares_of_the_step_add_up_to_one() -> None:
    program = lower(make_mlp(), Parallelism(data=4))
    cluster = make_cluster(nodes=2, devices_per_node=2)
    timeline = simulate_step(program, [Pricing().estimate(stage, cluster) for stage in program.stages])
    assert sum(timeline.shares.values()) == pytest.approx(1)


def test_a_host_slower_than_the_device_sets_the_pace() -> None:
    program = lower(make_mlp(layers=5), Parallelism())
    num_tasks = sum(program.stages[0].counts())
    timeline = simulate_step(program, price(program, [1.0], [10.0], 0.0))
    assert timeline.duration_s == pytest.approx(10.0 * num_tasks + 1.0)
    assert timeline.shares["host"] > 0.8


def test_gradient_reduction_that_fits_under_the_backward_costs_only_its_last_bucket() -> None:
    def reduce(bucket_bytes: float) -> tuple[float, float]:
        program = lower(make_mlp(layers=5), Parallelism(data=2, bucket_bytes=bucket_bytes))
        alone = simulate_step(program, price(program, [1.0], [0.0], 0.0)).duration_s
        timeline = simulate_step(program, price(program, [1.0], [0.0], 0.5))
        return timeline.duration_s - alone, timeline.communication_s

    tail_s, _ = reduce(1.0)
    assert tail_s == pytest.approx(0.0, abs=1e-4)
    # A bucket that holds all gradients leaves when the last of them is there, one task before the update.
    tail_s, sent_s = reduce(1e9)
    assert sent_s - 1.0 <= tail_s <= sent_s


@given(rounds=st.integers(1, 40))
def test_skipping_the_middle_micro_batches_changes_nothing(rounds: int) -> None:
    program = lower(make_mlp(layers=2), Parallelism(data=2, micro_batches=rounds))
    estimates = price(program, [1.0, 2.0], [0.1], 3.0)
    drawn = simulate_step(program, estimates, draw=True)
    assert simulate_step(program, estimates).duration_s == pytest.approx(drawn.duration_s)


def test_gradients_that_are_not_overlapped_are_reduced_once_after_the_last_backward() -> None:
    def run(*, rounds: int, network_s: float) -> float:
        program = lower(make_mlp(layers=3), Parallelism(data=2, micro_batches=rounds, overlap=False))
        return simulate_step(program, price(program, [1.0], [0.0], network_s)).duration_s

    for rounds in (1, 2, 8):
        assert run(rounds=rounds, network_s=5.0) == pytest.approx(run(rounds=rounds, network_s=0.0) + 3 * 5.0)


@settings(max_examples=30, deadline=None)
@given(device_s=durations, network_s=st.floats(0.0, 20.0), slowdown=st.floats(0.0, 1.0), zero=st.sampled_from([0, 3]))
def test_kernels_beside_collectives_take_longer_by_no_more_than_these_take_and_never_twice_as_long(
    device_s: list[float], network_s: float, slowdown: float, zero: int
) -> None:
    program = lower(make_mlp(layers=4), Parallelism(data=2, zero=zero))

    def run(share: float, *, draw: bool = False) -> Timeline:
        priced = [
            tuple(replace(estimate, slowdown=share) for estimate in stage)
            for stage in price(program, device_s, [0.0], network_s)
        ]
        return simulate_step(program, priced, draw=draw)

    free, slowed = run(0.0), run(slowdown)
    most_s = min(slowdown * free.communication_s, free.busy_s)
    assert free.duration_s - 1e-9 <= slowed.duration_s <= free.duration_s + most_s + 1e-9
    assert run(slowdown, draw=True).duration_s == pytest.approx(slowed.duration_s, rel=1e-9)


@cache
def gpt(layers: int) -> Graph:
    shape = TransformerShape(n_layers=layers, hidden=64, heads=4, vocab=128, seq=16)
    return build_transformer(shape, Recipe(precision="bf16", attention="flash", implementation="fused"), batch=1)


def price_links(
    program: Program, *, device_s: float, tensor_s: float, data_s: float, data_link: str
) -> list[tuple[Estimate, ...]]:
    """Collectives of the tensor axis on the link 'inter', those of the data axis on a link to choose."""

    def one(task: Task) -> Estimate:
        if isinstance(task, Op):
            return Estimate(seconds=device_s, low_s=device_s, high_s=device_s)
        seconds, link = (tensor_s, "inter") if task.axis == "tensor" else (data_s, data_link)
        return Estimate(seconds=seconds, low_s=seconds, high_s=seconds, link=link)

    return [tuple(one(task) for task in stage.tasks) for stage in program.stages]


@settings(max_examples=60, deadline=None)
@given(
    device_s=st.floats(0.0, 2.0), tensor_s=st.floats(0.0, 5.0), data_s=st.floats(0.0, 20.0), layers=st.integers(1, 9),
    rounds=st.integers(1, 4),
)  # fmt: skip
def test_rings_of_two_axes_on_one_link_never_get_more_of_it_than_there_is(
    device_s: float, tensor_s: float, data_s: float, layers: int, rounds: int
) -> None:
    program = lower(gpt(layers), Parallelism(data=2, tensor=2, micro_batches=rounds))
    alone, shared = (
        price_links(program, device_s=device_s, tensor_s=tensor_s, data_s=data_s, data_link=link)
        for link in ("intra", "inter")
    )
    stage = program.stages[0]
    tasks = list(zip(stage.tasks, stage.counts(), strict=True))
    assert any(task.name.endswith("[tensor]") for task, _ in tasks)
    waited_s = rounds * sum(tensor_s * count for task, count in tasks if task.name.endswith("[tensor]"))
    hidden_s = sum(data_s * count for task, count in tasks if task.name.endswith("[data]"))
    apart, together = simulate_step(program, alone).duration_s, simulate_step(program, shared).duration_s
    assert apart - 1e-9 <= together <= apart + min(waited_s, hidden_s) + 1e-9
    assert together >= waited_s + hidden_s - 1e-9
    assert together == pytest.approx(simulate_step(program, shared, draw=True).duration_s, rel=1e-9)


def test_a_network_under_both_axes_is_shared_and_one_under_each_is_not() -> None:
    program = lower(gpt(2), Parallelism(data=4, tensor=2))
    wide = make_cluster(nodes=1, devices_per_node=8)
    across = make_cluster(nodes=8, devices_per_node=1)
    links = {
        (task.axis, estimate.link)
        for cluster in (wide, across)
        for task, estimate in zip(program.stages[0].tasks, Pricing().estimate(program.stages[0], cluster), strict=True)
        if not isinstance(task, Op)
    }
    assert links == {("tensor", "intra"), ("tensor", "inter"), ("data", "intra"), ("data", "inter")}


def test_a_host_that_reads_gradients_back_cannot_issue_the_update_early() -> None:
    program = lower(make_mlp(), Parallelism())
    # Kernels take as long as the host needs for them, but the update: 1 s on the device, 5 s of calls.
    estimates = [
        tuple(
            Estimate(seconds=1.0, low_s=1.0, high_s=1.0, host_s=5.0 if task.phase == "optimizer" else 0.5)
            for task in program.stages[0].tasks
        )
    ]
    ahead = simulate_step(program, estimates).duration_s
    waits = simulate_step(program, estimates, reads_back=True).duration_s
    before = sum(
        n
        for n, task in zip(program.stages[0].counts(), program.stages[0].tasks, strict=True)
        if task.phase != "optimizer"
    )
    assert waits == pytest.approx(0.5 + before + 5.0 + 1.0)
    assert ahead < waits
    assert simulate_step(program, estimates, reads_back=True, draw=True).duration_s == pytest.approx(waits)


def test_what_a_stack_sends_last_is_all_that_a_long_backward_does_not_hide() -> None:
    def step(habits: PlanHabits, bucket: float) -> float:
        program = lower(make_mlp(layers=6), Parallelism(data=2, bucket_bytes=bucket), habits=habits)
        estimates = [
            tuple(
                Estimate(seconds=s, low_s=s, high_s=s)
                for task in program.stages[0].tasks
                for s in [1.0 if isinstance(task, Op) else 0.9]
            )
        ]
        return simulate_step(program, estimates).duration_s

    total = sum(tensor.num_bytes * tensor.copies for tensor in make_mlp(layers=6).tensors if tensor.role == "gradient")
    chance, small, whole = (
        PlanHabits(),
        *(PlanHabits(amounts=(("last_bucket_bytes", last),)) for last in (total / 100, 1.0)),
    )
    assert step(small, total / 2) < step(chance, total / 2)
    # Gradients that fill no more than one bucket leave together, whatever its first part would hold.
    assert step(whole, 2 * total) == pytest.approx(step(chance, 2 * total))


def test_a_host_that_awaits_inputs_issues_nothing_ahead_of_a_micro_batch() -> None:
    program = lower(make_mlp(), Parallelism(micro_batches=4))
    # The host is slower than the device in the forward pass and faster in the backward pass, where it could run ahead.
    estimates = [
        tuple(
            Estimate(seconds=1.0, low_s=1.0, high_s=1.0, host_s=1.5 if task.phase == "forward" else 0.1)
            for task in program.stages[0].tasks
        )
    ]
    ahead = simulate_step(program, estimates).duration_s
    waits = simulate_step(program, estimates, awaits_inputs=True).duration_s
    one = simulate_step(lower(make_mlp(), Parallelism()), estimates).duration_s
    update = sum(task.phase == "optimizer" for task in program.stages[0].tasks)
    assert ahead < waits
    # Every micro-batch then takes as long as one that starts a step.
    assert waits == pytest.approx(4 * (one - update) + update)
    assert simulate_step(program, estimates, awaits_inputs=True, draw=True).duration_s == pytest.approx(waits)
