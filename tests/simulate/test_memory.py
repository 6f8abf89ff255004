from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_mlp
from traincast.catalog._workloads import from_shape
from traincast.errors import IllegalPlan
from traincast.lower import lower
from traincast.lower._rewrite import as_stage
from traincast.simulate import UPDATE, Overheads, replay_memory, replay_stages
from traincast.simulate._memory import Gathers, add_up, replay_pass
from traincast.spec import Graph, LogErrors, Op, Parallelism, Program, Stage
from traincast.spec._result import FIT_CONFIDENCE

ERRORS = LogErrors(levels=(0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99), values=(-0.2, -0.1, -0.03, 0.0, 0.03, 0.1, 0.2))


@settings(max_examples=30, deadline=None)
@given(layers=st.integers(2, 9), width=st.integers(8, 64), batch=st.integers(1, 512))
def test_a_folded_graph_has_the_peak_of_the_unfolded_one(layers: int, width: int, batch: int) -> None:
    def peak(*, folded: bool) -> float:
        graph = make_mlp(layers=layers, width=width, batch=batch, folded=folded)
        return replay_memory(as_stage(graph), capacity_bytes=1e9).peak_bytes

    # Folding cannot tell the input of the first layer, which is resident, from those of the others.
    assert peak(folded=True) == pytest.approx(peak(folded=False), abs=2.01 * batch * width * 4)


def test_parts_of_the_peak_add_up() -> None:
    profile = replay_memory(as_stage(make_mlp()), capacity_bytes=1e9, overhead_bytes=5e6, overheads=Overheads.usual())
    assert sum(profile.by_role.values()) == pytest.approx(profile.peak_bytes)
    assert profile.by_role["workspace"] == Overheads.usual().workspace_bytes


def test_what_lies_outside_the_allocator_must_fit_but_is_no_part_of_the_peak() -> None:
    stage = as_stage(make_mlp())
    alone = replay_memory(stage, capacity_bytes=1e9)
    beside = replay_memory(stage, capacity_bytes=alone.peak_bytes, overhead_bytes=1.0)
    assert beside.peak_bytes == alone.peak_bytes
    assert not beside.fits


def test_the_probability_to_fit_is_a_half_where_the_need_equals_the_device() -> None:
    stage = as_stage(make_mlp())
    need = replay_memory(stage, capacity_bytes=1e9).peak_bytes
    chances = [
        replace(replay_memory(stage, capacity_bytes=share * need), errors=ERRORS).fit_probability
        for share in (0.8, 1, 1.1, 1.5)
    ]
    assert chances[1] == pytest.approx(0.5)
    assert chances == sorted(chances)
    assert chances[0] < 0.05
    assert chances[-1] > 0.99
    assert not replay_memory(stage, capacity_bytes=0.8 * need).fit_probability


def test_a_run_is_said_to_fit_only_where_that_is_likely() -> None:
    stage = as_stage(make_mlp())
    need = replay_memory(stage, capacity_bytes=1e9).peak_bytes
    profiles = [replace(replay_memory(stage, capacity_bytes=share * need), errors=ERRORS) for share in (1.01, 1.1)]
    assert [profile.fits for profile in profiles] == [False, True]
    assert 0.5 < profiles[0].fit_probability < FIT_CONFIDENCE <= profiles[1].fit_probability
    # Nothing is known of the error: the need alone decides.
    assert replay_memory(stage, capacity_bytes=need).fits


def test_the_interval_of_the_peak_holds_nine_in_ten() -> None:
    profile = replace(replay_memory(as_stage(make_mlp()), capacity_bytes=1e9), errors=ERRORS)
    tight, loose = (replace(profile, capacity_bytes=end) for end in (profile.peak_range.low, profile.peak_range.high))
    assert loose.fit_probability - tight.fit_probability == pytest.approx(0.9, abs=1e-3)


def test_the_peak_is_never_below_what_is_resident() -> None:
    graph = make_mlp(batch=1)
    profile = replay_memory(as_stage(graph), capacity_bytes=1e9)
    assert profile.peak_bytes >= graph.role_bytes("parameter")


def test_micro_batches_in_flight_hold_their_activations() -> None:
    stage = as_stage(make_mlp(batch=512, layers=6))
    one = replay_memory(stage, capacity_bytes=1e9)
    four = replay_memory(replace(stage, num_in_flight=4), capacity_bytes=1e9)
    saved = 6 * 2 * 512 * 256 * 4
    assert four.by_role["activation"] - one.by_role["activation"] == pytest.approx(3 * saved, rel=0.2)


def test_a_job_that_is_too_large_does_not_fit() -> None:
    assert not replay_memory(as_stage(make_mlp()), capacity_bytes=1e3).fits


def _lower_llama(**plan: object) -> Program:
    graph = from_shape(
        arch="llama", n_layers=8, hidden=512, heads=8, vocab=32_000, seq=512, ffn=2048, batch=2, precision="bf16",
        fused=True, fused_gate=False, accumulate=True, name="small",
    )  # fmt: skip
    return lower(graph, Parallelism(micro_batches=8, **plan))  # type: ignore[arg-type]


def test_a_transformer_keeps_the_activations_that_its_backward_pass_reads() -> None:
    (stage,) = _lower_llama().stages
    profile = replay_memory(stage, capacity_bytes=1e12, micro_batches=8)
    tokens, hidden, ffn, vocab, layers = 2 * 512, 512, 2048, 32_000, 8
    # Korthikanti et al. 2022 with flash attention, rms-norm and a gated MLP: 16 h + 8 f bytes per token and layer; the
    # loss of fused stacks holds two copies of the scores in fp32.
    kept = tokens * ((16 * hidden + 8 * ffn) * layers + 8 * vocab)
    assert profile.by_role["activation"] == pytest.approx(kept, rel=0.05)


def test_a_loss_of_one_kernel_keeps_the_scores_and_their_gradient_as_they_are() -> None:
    def activations(**recipe: Any) -> float:
        shape: dict[str, Any] = {"n_layers": 1, "hidden": 64, "heads": 2, "vocab": 32_000, "seq": 512, "batch": 2}
        graph = from_shape(arch="llama", precision="bf16", name="small", **shape, **recipe)
        return replay_memory(as_stage(graph), capacity_bytes=1e12).by_role["activation"] / (2 * 512 * 32_000)

    # bf16 scores and their gradient; else three copies in fp32, or two where the gradient is written over one.
    assert activations(fused_loss=True) == pytest.approx(4, rel=0.25)
    assert activations(fused=True) == pytest.approx(8, rel=0.25)
    assert activations() == pytest.approx(12, rel=0.25)


def test_zero_divides_the_optimizer_state() -> None:
    def state(zero: int) -> float:
        (stage,) = _lower_llama(data=4, zero=zero).stages
        return replay_memory(stage, capacity_bytes=1e12, micro_batches=8).by_role["optimizer_state"]

    assert state(1) == pytest.approx(state(0) / 4, rel=1e-3)


def test_fully_sharded_weights_are_whole_two_units_at_a_time() -> None:
    (whole,) = _lower_llama(data=1).stages
    (sharded,) = _lower_llama(data=8, zero=3).stages
    before = replay_memory(whole, capacity_bytes=1e12, micro_batches=8).by_role
    after = replay_memory(sharded, capacity_bytes=1e12, micro_batches=8).by_role
    assert after["optimizer_state"] == pytest.approx(before["optimizer_state"] / 8, rel=0.01)
    # The fp32 shards are the master weights; in bf16 a weight exists only while its unit is gathered.
    assert "parameter" not in after
    assert 0 < after["gathered weights"] < before["parameter"] + before["gradient"]


def test_sequence_parallelism_divides_what_tensor_parallelism_leaves_whole() -> None:
    def activations(*, sequence_parallel: bool) -> float:
        (stage,) = _lower_llama(tensor=4, sequence_parallel=sequence_parallel).stages
        return replay_memory(stage, capacity_bytes=1e12, micro_batches=8).by_role["activation"]

    # Inputs and outputs of the two norms, 2 bytes each, of which every rank keeps a quarter instead of all.
    saved = activations(sequence_parallel=False) - activations(sequence_parallel=True)
    assert saved == pytest.approx(0.75 * 8 * 512 * (2 * 512) * 8, rel=0.1)


def _held(stage: Stage, **how: bool) -> float:
    how = {"pipelined": False, "lone_pass": False, "replicated": False, **how}
    return Gathers.of(stage).num_held(Overheads.usual(), **how)


def test_gathers_are_held_more_by_longer_pipelines_and_never_more_than_once() -> None:
    shares = []
    for pipeline in (2, 4, 8):
        stage = _lower_llama(tensor=4, pipeline=pipeline, sequence_parallel=True).stages[0]
        shares.append(_held(stage, pipelined=True) / Gathers.of(stage).num_gathers)
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1


def test_a_host_is_ahead_by_a_number_of_gathers_and_not_by_a_share_of_the_model() -> None:
    (stage,) = _lower_llama(tensor=4, sequence_parallel=True).stages
    deep = replace(stage, repeats=tuple(replace(repeat, count=80) for repeat in stage.repeats))
    assert _held(deep) == _held(stage) == Overheads.usual().queued_gathers


def test_a_step_of_one_pass_holds_no_more_gathers_than_it_makes() -> None:
    (stage,) = _lower_llama(tensor=4, sequence_parallel=True).stages
    assert _held(stage, lone_pass=True) <= Gathers.of(stage).num_gathers < _held(stage)


def test_replicas_on_a_wide_tensor_axis_wait_for_large_gathers() -> None:
    (stage,) = _lower_llama(tensor=4, sequence_parallel=True).stages
    wide = replace(Gathers.of(stage), num_ranks=64, largest_bytes=1e9)
    alone = wide.num_held(Overheads.usual(), pipelined=False, lone_pass=False, replicated=False)
    together = wide.num_held(Overheads.usual(), pipelined=False, lone_pass=False, replicated=True)
    assert together < 0.01 * alone


def test_a_stage_without_split_products_holds_no_gathers() -> None:
    assert _held(as_stage(make_mlp())) == _held(as_stage(make_mlp()), pipelined=True) == 0


def test_what_a_wide_axis_holds_need_not_fit() -> None:
    (stage,) = _lower_llama(tensor=4, sequence_parallel=True).stages
    one = replay_pass(stage, accumulates=True)
    wide = replace(one, gathers=replace(one.gathers, num_ranks=64, largest_bytes=2e8, mean_bytes=2e8))
    how: dict[str, Any] = {"overhead_bytes": 0.0, "pipelined": False, "overheads": Overheads.usual()}
    roomy = add_up(stage, wide, capacity_bytes=1e12, **how)
    narrow = add_up(stage, replace(wide, gathers=replace(wide.gathers, num_ranks=4)), capacity_bytes=5e9, **how)
    tight = add_up(stage, wide, capacity_bytes=5e9, **how)
    assert roomy.by_role["gathered inputs"] == pytest.approx(Overheads.usual().queued_gathers * 2e8, rel=0.01)
    assert tight.needed_bytes < narrow.needed_bytes


def test_full_recomputation_needs_less_memory() -> None:
    def peak(how: str) -> float:
        (stage,) = _lower_llama(recompute=how).stages
        return replay_memory(stage, capacity_bytes=1e12, micro_batches=8).peak_bytes

    assert peak("full") < peak("none")


def test_a_pipeline_cut_by_products_gives_the_output_layer_its_share() -> None:
    stages = _lower_llama(pipeline=2, balance="matmuls").stages
    layers = [max((repeat.count for repeat in stage.repeats), default=0) for stage in stages]
    assert layers[0] > layers[1]
    assert sum(layers) == 8


def test_a_pipeline_that_leaves_a_stage_with_nothing_to_run_is_refused() -> None:
    with pytest.raises(IllegalPlan, match="nothing to run"):
        _lower_llama(pipeline=16, balance="matmuls")


def test_behind_the_last_product_the_wide_scores_and_the_loss_may_have_stages_of_their_own() -> None:
    stages = _lower_llama(pipeline=8, balance="matmuls").stages
    own = [{task.layer for task in stage.tasks if isinstance(task, Op) and task.phase == "forward"} for stage in stages]
    assert own[-3] == {"head.norm", "head.decoder"}
    assert own[-2] == own[-1] == {"loss"}
    scores = [task.name for task in stages[-2].tasks if isinstance(task, Op) and task.phase == "forward"]
    assert scores == ["aten._to_copy"]
    assert sum(stage.repeats[0].count for stage in stages if stage.repeats) == 8
    peaks = [profile.peak_bytes for profile in replay_stages(stages, capacity_bytes=1e11, micro_batches=8)]
    assert all(peak > 0 for peak in peaks)


def test_stages_replayed_together_are_the_stages_replayed_alone() -> None:
    stages = _lower_llama(tensor=2, pipeline=4, sequence_parallel=True).stages
    together = replay_stages(stages, capacity_bytes=1e11, micro_batches=8, overheads=Overheads.usual())
    for stage, profile in zip(stages, together, strict=True):
        alone = replay_memory(
            stage, capacity_bytes=1e11, micro_batches=8, overheads=Overheads.usual(), pipelined=True
        )  # fmt: skip
        assert profile.peak_bytes == pytest.approx(alone.peak_bytes)
        assert profile.by_role == pytest.approx(alone.by_role)


def test_frozen_weights_have_no_gradients_and_no_optimizer_state() -> None:
    def build(**more: Any) -> Graph:
        return from_shape(
            arch="llama", n_layers=4, hidden=256, heads=8, vocab=512, seq=64, batch=2, precision="bf16-pure", **more
        )

    full, adapted = build(), build(adapter_rank=4)
    quantized = build(adapter_rank=4, frozen_dtype="fp4")
    assert adapted.role_bytes("optimizer_state") < 0.1 * full.role_bytes("optimizer_state")
    assert adapted.role_bytes("gradient") < 0.1 * full.role_bytes("gradient")
    assert adapted.role_bytes("parameter") > full.role_bytes("parameter")
    # Dense layers shrink to a quarter of bf16, embeddings and norms do not.
    dense = 4 * (4 * 256**2 + 3 * 256 * 1024)
    saved = adapted.role_bytes("parameter") - quantized.role_bytes("parameter")
    assert saved == pytest.approx(1.5 * dense, rel=0.5)
    assert quantized.role_bytes("buffer") >= 4 * dense / 64 * 0.5


def test_replicas_hold_their_trained_gradients_twice_where_buckets_are_copies() -> None:
    stage = as_stage(make_mlp())
    plain = replay_memory(stage, capacity_bytes=1e9)
    copied = replay_memory(stage, capacity_bytes=1e9, bucket_copies=True)
    parameters = sum(tensor.num_bytes * tensor.copies for tensor in stage.tensors if tensor.role == "parameter")
    assert copied.peak_bytes - plain.peak_bytes == pytest.approx(parameters)


def _make_half_llama() -> Graph:
    shape: dict[str, Any] = {"n_layers": 8, "hidden": 512, "heads": 8, "vocab": 32_000, "seq": 64, "ffn": 2048}
    return from_shape(arch="llama", batch=1, precision="fp16", name="small", **shape)


def test_no_pass_is_in_flight_while_weights_are_updated() -> None:
    graph = _make_half_llama()
    weights = graph.role_bytes("parameter") / 2
    stage = as_stage(graph)
    one, four = (replay_memory(replace(stage, num_in_flight=n), capacity_bytes=1e12) for n in (1, 4))
    # Denominators of all weights at once, and their gradients in fp32.
    assert one.by_role[UPDATE] == four.by_role[UPDATE] == pytest.approx(8 * weights)
    assert one.peak_bytes == four.peak_bytes
    assert "optimizer" in four.peak_at


def test_stages_of_a_pipeline_share_what_the_update_makes_and_forgets() -> None:
    graph = _make_half_llama()
    stages = lower(graph, Parallelism(pipeline=4, micro_batches=4)).stages
    made = [replay_memory(stage, capacity_bytes=1e12).by_role[UPDATE] for stage in stages]
    assert sum(made) == pytest.approx(4 * graph.role_bytes("parameter"), rel=0.01)
