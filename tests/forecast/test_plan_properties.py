"""What must hold for every plan: a sample of all axes, orders and kinds of sharding."""

import itertools
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_device
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.errors import IllegalPlan
from traincast.forecast import forecast
from traincast.report._document import document_forecast, format_json
from traincast.resolve import complete_plan
from traincast.spec import Forecast, Graph, Job, Link, Parallelism, Span

PLANS = {
    "data": Parallelism(data=8),
    "fsdp": Parallelism(data=8, zero=3),
    "zero 1, accumulated": Parallelism(data=8, zero=1, micro_batches=4),
    "tensor": Parallelism(tensor=4, data=2, sequence_parallel=True),
    "1f1b": Parallelism(pipeline=4, data=2, micro_batches=8),
    "gpipe": Parallelism(pipeline=4, data=2, micro_batches=8, order="gpipe"),
    "interleaved": Parallelism(pipeline=2, data=4, micro_batches=4, virtual_stages=2, order="interleaved"),
    "zero-bubble": Parallelism(pipeline=4, data=2, micro_batches=8, order="zero-bubble"),
    "context": Parallelism(context=2, data=4, recompute="full"),
    "3d": Parallelism(data=2, tensor=2, pipeline=2, micro_batches=4, zero=1, recompute="selective"),
    "servers": Parallelism(data=8, servers=2),
    "offload": Parallelism(data=8, zero=2, offload_optimizer=True),
    "offload, pipeline": Parallelism(pipeline=4, data=2, micro_batches=4, offload_optimizer=True),
}
COSTS = Pricing(ops=Roofline())


@cache
def gpt() -> Graph:
    shape = TransformerShape(n_layers=8, hidden=256, heads=4, vocab=4096, seq=128)
    return build_transformer(shape, Recipe(precision="bf16", attention="flash", implementation="fused"), batch=2)


def ask(plan: Parallelism, *, faster: float = 1.0, draw: bool = False) -> Forecast:
    cluster = make_cluster(
        nodes=2,
        devices_per_node=4,
        device=make_device(pcie_bytes_per_s=1e10 * faster),
        intra=Link(name="intra", bytes_per_s=2e10 * faster, latency_s=2e-6),
        inter=Link(name="inter", bytes_per_s=2e9 * faster, latency_s=1e-5),
    )
    return forecast(Job(graph=gpt()), cluster, plan, costs=COSTS, draw=draw)


@settings(deadline=None, max_examples=30)
@given(name=st.sampled_from(sorted(PLANS)), factor=st.floats(1.0, 64.0))
def test_more_bandwidth_is_never_slower_under_any_plan(name: str, factor: float) -> None:
    assert ask(PLANS[name], faster=factor).step.seconds <= ask(PLANS[name]).step.seconds * (1 + 1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_spans_of_one_stream_never_overlap_and_end_with_the_step(name: str) -> None:
    timeline = ask(PLANS[name], draw=True).timeline
    streams: dict[tuple[int, str], list[Span]] = {}
    for span in timeline.spans:
        streams.setdefault((span.rank, span.stream), []).append(span)
    for spans in streams.values():
        ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s))
        assert all(one.end_s <= other.start_s + 1e-9 for one, other in itertools.pairwise(ordered))
        assert ordered[-1].end_s <= timeline.duration_s * (1 + 1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_drawing_a_step_does_not_change_it(name: str) -> None:
    assert ask(PLANS[name], draw=True).step.seconds == pytest.approx(ask(PLANS[name]).step.seconds, rel=1e-6)


@pytest.mark.parametrize("name", PLANS)
def test_the_same_question_has_the_same_answer_to_the_byte(name: str) -> None:
    first, second = (format_json(document_forecast(ask(PLANS[name], draw=True))) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("order", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
def test_a_pipeline_of_one_stage_is_no_pipeline(order: str) -> None:
    plain = ask(Parallelism(data=8, micro_batches=4))
    assert ask(Parallelism(data=8, micro_batches=4, pipeline=1, order=order)).step == plain.step


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zero-bubble", "3d"])
def test_what_one_stage_sends_the_next_receives(name: str) -> None:
    spans = [span for span in ask(PLANS[name], draw=True).timeline.spans if span.stream.startswith("pipeline")]
    sent, received = (
        sorted((span.start_s, span.end_s, span.collective.num_bytes) for span in spans
               if span.direction == way and span.collective is not None)
        for way in ("out", "in")
    )  # fmt: skip
    assert sent == received
    plan = PLANS[name]
    assert len(sent) == 2 * (plan.pipeline - 1) * plan.micro_batches


@pytest.mark.parametrize("name", PLANS)
def test_the_parts_of_a_step_add_up_to_it(name: str) -> None:
    timeline = ask(PLANS[name]).timeline
    assert sum(timeline.shares.values()) == pytest.approx(1.0)
    assert all(share >= 0 for share in timeline.shares.values())


@pytest.mark.parametrize("degrees", [{"expert": 4}, {"expert": 4, "expert_imbalance": 2.0}, {"zero": 3, "shard": 4}])
def test_what_divides_the_replicas_needs_no_named_number_of_them(degrees: dict[str, object]) -> None:
    assert complete_plan({"tensor": 2, **degrees}, num_devices=16).data == 8
    with pytest.raises(IllegalPlan):
        complete_plan({"tensor": 2, **degrees, next(iter({"expert", "shard"} & set(degrees))): 3}, num_devices=16)
