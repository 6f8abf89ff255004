import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.lower import lower
from traincast.simulate import _draw as draw
from traincast.simulate import simulate_step
from traincast.simulate._order import finish_times, place_passes
from traincast.spec import Parallelism, Timeline

seconds = st.lists(st.floats(0.01, 10.0), min_size=4, max_size=4)
orders = st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"])


def draw_step(*, pipeline: int = 2, data: int = 1, micro_batches: int = 4, **changes: object) -> Timeline:
    plan = Parallelism(pipeline=pipeline, data=data, micro_batches=micro_batches, **changes)  # type: ignore[arg-type]
    cluster = make_cluster(nodes=pipeline, devices_per_node=data)
    program = lower(make_mlp(layers=8), plan)
    model = Pricing(ops=Roofline())
    return simulate_step(program, [model.estimate(stage, cluster) for stage in program.stages], draw=True)


@given(forward_s=seconds, backward_s=seconds, hop_s=st.floats(0, 1), micro_batches=st.integers(1, 12), order=orders)
def test_placed_passes_end_when_the_order_says_and_never_overlap(forward_s, backward_s, hop_s, micro_batches, order):
    stages = {"forward_s": forward_s, "backward_s": backward_s, "hop_s": hop_s, "micro_batches": micro_batches}
    placed = place_passes(order, **stages)
    ends = finish_times(order, **stages)
    for passes, end_s, forward, backward in zip(placed, ends, forward_s, backward_s, strict=True):
        assert [kind for kind, _, _ in passes].count("F") == micro_batches
        busy_s = micro_batches * (forward + backward)
        assert passes[-1][2] == pytest.approx(max(end_s, busy_s))
        assert all(one[2] <= two[1] + 1e-9 for one, two in itertools.pairwise(passes))


@settings(max_examples=20, deadline=None)
@given(
    micro_batches=st.integers(1, 6),
    data=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1, 3]),
    order=st.sampled_from(["gpipe", "1f1b"]),
)
def test_a_drawn_pipeline_fills_the_step_and_no_two_spans_share_a_stream(micro_batches, data, zero, order):
    timeline = draw_step(micro_batches=micro_batches, data=data, zero=zero, order=order)
    lanes: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for span in timeline.spans:
        lanes.setdefault((span.rank, span.stream), []).append((span.start_s, span.end_s))
    assert {rank for rank, _ in lanes} == {0, 1}
    for lane in lanes.values():
        assert all(one[1] <= two[0] + 1e-12 for one, two in itertools.pairwise(sorted(lane)))
    last_s = max(span.end_s for span in timeline.spans if span.stream == "device")
    assert last_s == pytest.approx(timeline.duration_s, rel=1e-6)


def test_passes_drawn_as_a_whole_move_the_same_bytes(monkeypatch):
    fine = draw_step(data=2)
    monkeypatch.setattr(draw, "MAX_SPANS", 0)
    coarse = draw_step(data=2)
    assert len(coarse.spans) < len(fine.spans) / 2
    for amount in (
        lambda span: span.num_bytes,
        lambda span: span.collective.num_bytes if span.collective else 0.0,
    ):
        assert sum(map(amount, coarse.spans)) == pytest.approx(sum(map(amount, fine.spans)))


def test_passes_drawn_by_their_sorts_of_work_take_as_long_as_their_tasks(monkeypatch):
    def add_up(timeline: Timeline, stream: str) -> dict[str, float]:
        totals: dict[str, float] = {}
        for span in timeline.spans:
            if span.rank == 0 and (span.stream == "device") == (stream == "device"):
                totals[span.category] = totals.get(span.category, 0.0) + span.end_s - span.start_s
        return totals

    fine = draw_step(data=2)
    monkeypatch.setattr(draw, "MAX_SPANS", 0)
    coarse = draw_step(data=2)
    for stream in ("device", "network"):
        assert add_up(coarse, stream) == pytest.approx(add_up(fine, stream))


def test_what_one_stage_sends_the_next_receives():
    timeline = draw_step(micro_batches=3)
    hops = [span for span in timeline.spans if span.collective and span.collective.axis == "pipeline"]
    assert len(hops) == 2 * 3 * 2
    assert sum(span.direction == "out" for span in hops if span.rank == 0) == 3
    assert sum(span.direction == "in" for span in hops if span.rank == 0) == 3
