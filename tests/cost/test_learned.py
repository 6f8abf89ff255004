from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_device, make_matmul
from traincast.catalog import device as find_device
from traincast.cost._learned import Learned, load_learned
from traincast.errors import InvalidInput
from traincast.files import read_safetensors, write_safetensors
from traincast.spec import KINDS, Op

SAMPLES: dict[str, dict[str, int | str | bool]] = {
    "matmul": {"batch": 1, "m": 1024, "n": 1024, "k": 1024, "layout": "tn"},
    "attention": {
        "batch": 4, "heads": 16, "kv_heads": 16, "q_len": 1024, "kv_len": 1024, "head_dim": 64, "causal": True,
    },
    "conv": {
        "batch": 32, "in_channels": 64, "out_channels": 64, "groups": 1, "in_size": "56x56", "out_size": "56x56",
        "kernel": "3x3", "stride": "1x1", "pass": "forward",
    },
    "elementwise": {"function": "add", "numel": 1 << 22, "num_inputs": 2},
    "softmax": {"rows": 1 << 13, "cols": 512},
    "norm": {"function": "layer_norm", "rows": 1 << 12, "cols": 1024},
    "reduce": {"function": "sum", "rows": 1024, "cols": 4096},
    "embedding": {"rows": 4096, "cols": 1024, "vocab": 30522},
    "index": {"function": "gather", "numel": 1 << 20},
    "pool": {"function": "max", "numel": 1 << 20, "kernel": "3x3"},
    "rnn": {"cell": "lstm", "batch": 32, "length": 100, "inputs": 512, "hidden": 512, "layers": 1, "directions": 1},
    "optimizer": {"algorithm": "adam", "numel": 1 << 24, "num_tensors": 100, "implementation": "foreach"},
    "dropout": {"numel": 1 << 22},
    "copy": {"function": "contiguous", "numel": 1 << 22},
    "sort": {"rows": 1024, "cols": 1024},
    "random": {"numel": 1 << 20},
    "other": {},
}  # fmt: skip


def make_op(kind: str, **changes: object) -> Op:
    values: dict[str, object] = {
        "name": kind, "kind": kind, "flop": 1e9, "bytes_read": 3e7, "bytes_written": 3e7, "attrs": SAMPLES[kind],
    }  # fmt: skip
    return Op(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def learned() -> Learned:
    return load_learned()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("name", ["p4", "v100-pcie-32g", "h100-sxm-80g", "mi250"])
def test_every_kind_has_a_finite_price_on_every_device(learned: Learned, kind: str, phase: str, name: str) -> None:
    costs = learned.predict([make_op(kind, phase=phase)], find_device(name))
    assert 1e-7 < costs.seconds[0] < 10
    assert 0 < costs.log_sigma[0] < 2
    assert costs.limit[0] in ("compute", "memory")
    assert costs.ground[0] in ("measured", "transfer", "bound")


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16", "fp8"])
def test_every_precision_has_a_price_where_the_device_lacks_it_too(learned: Learned, dtype: str) -> None:
    op = make_op("matmul", dtype=dtype, attrs={**SAMPLES["matmul"], "m": 8192})
    assert learned.predict([op], find_device("p4")).seconds[0] > 0
    assert learned.predict([op], find_device("h100-sxm-80g")).seconds[0] > 0


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 60_000),
    n=st.integers(1, 60_000),
    k=st.integers(1, 60_000),
    name=st.sampled_from(["t4", "h100-sxm-80g", "l4"]),
)
def test_utilisation_stays_between_zero_and_one(m: int, n: int, k: int, name: str) -> None:
    device = find_device(name)
    op = make_op("matmul", flop=2.0 * m * n * k, attrs={**SAMPLES["matmul"], "m": m, "n": n, "k": k})
    seconds = load_learned().predict([op], device).seconds[0]
    assert 0 < 2.0 * m * n * k / seconds / device.vector_flop_per_s["fp32"] <= 1.0


def test_half_precision_is_faster_than_fp32_on_matrix_units(learned: Learned) -> None:
    device = find_device("a100-sxm-80g")
    shape = {**SAMPLES["matmul"], "m": 8192, "n": 4096, "k": 4096}
    wide, half = (
        learned.predict([make_op("matmul", dtype=dtype, attrs=shape)], device).seconds[0] for dtype in ("fp32", "bf16")
    )
    assert 5 < wide / half < 16


def test_twice_the_work_takes_about_twice_as_long_once_it_is_large(learned: Learned) -> None:
    device = find_device("v100-pcie-32g")
    once, twice = (
        learned.predict([make_op("matmul", attrs={**SAMPLES["matmul"], "m": m, "n": 4096})], device).seconds[0]
        for m in (8192, 16384)
    )
    assert 1.8 < twice / once < 2.2


def test_a_measured_device_says_so_and_an_unseen_one_does_not(learned: Learned) -> None:
    op = make_op("matmul")
    assert learned.predict([op], find_device("v100-pcie-32g")).ground[0] == "measured"
    seen = learned.predict([op], find_device("v100-pcie-32g")).log_sigma[0]
    unseen = learned.predict([op], find_device("h100-sxm-80g"))
    assert unseen.ground[0] == "transfer"
    assert unseen.log_sigma[0] > seen


def test_an_op_without_a_formula_rests_on_the_bound_and_has_a_wide_interval(learned: Learned) -> None:
    costs = learned.predict([make_op("other", flop=None)], find_device("v100-pcie-32g"))
    assert costs.ground[0] == "bound"
    assert costs.log_sigma[0] >= 0.8


def test_prices_do_not_depend_on_the_order_or_the_company_of_unrelated_ops(learned: Learned) -> None:
    ops = [make_op(kind) for kind in KINDS]
    together = learned.predict(ops, find_device("t4")).seconds
    backwards = learned.predict(ops[::-1], find_device("t4")).seconds[::-1]
    alone = [learned.predict([op], find_device("t4")).seconds[0] for op in ops]
    assert together == pytest.approx(backwards)
    assert together == pytest.approx(alone)


def test_softmax_backward_costs_its_two_kernels(learned: Learned) -> None:
    device = find_device("v100-pcie-32g")
    shape = {"rows": 65536, "cols": 512}
    forward, backward = (
        learned.predict([make_op("softmax", phase=phase, attrs=shape, num_kernels=2)], device).seconds[0]
        for phase in ("forward", "backward")
    )
    assert 2.0 < backward / forward < 4.0


def test_estimates_carry_the_interval_and_leave_the_host_to_the_stack(learned: Learned) -> None:
    estimate = learned.estimate_ops([make_op("matmul")], find_device("h100-sxm-80g"))[0]
    assert estimate.low_s < estimate.seconds < estimate.high_s
    assert estimate.host_s == 0


def test_ten_thousand_distinct_ops_are_priced_in_one_go(learned: Learned) -> None:
    ops = [make_matmul(m=64 + i, n=1024 + i % 7, k=512) for i in range(10_000)]
    device = find_device("h100-sxm-80g")
    costs = learned.predict(ops, device)
    assert len(np.unique(costs.seconds)) > 9000


def test_weights_survive_writing_and_reading(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float64).reshape(2, 3), "b": np.array([1.5])}
    write_safetensors(tmp_path / "w.safetensors", arrays, {"note": "x"})
    found, notes = read_safetensors(tmp_path / "w.safetensors")
    assert notes == {"note": "x"}
    assert all((found[name] == arrays[name]).all() for name in arrays)


def test_the_file_is_the_public_format(tmp_path: Path) -> None:
    numpy_reader = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "w.safetensors"
    write_safetensors(path, {"a": np.ones((2, 2))}, {"note": "x"})
    assert (numpy_reader.load_file(path)["a"] == 1).all()


def test_missing_weights_are_named_with_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="fit-operators"):
        load_learned(tmp_path / "none.safetensors")


def test_without_its_own_voice_a_device_is_answered_by_the_others(learned: Learned) -> None:
    name = "v100-pcie-32g"
    families = {}
    for family, voices in learned.families.items():
        keep = np.array([voice != name for voice in voices.names])
        families[family] = replace(
            voices,
            names=tuple(voice for voice in voices.names if voice != name),
            places=voices.places[keep],
            handicap=voices.handicap[keep],
            layers=tuple(layer[keep] for layer in voices.layers),
        )
    blind = replace(learned, families=families)
    op = make_op("matmul", attrs={**SAMPLES["matmul"], "m": 4096, "n": 4096})
    seen, unseen = learned.predict([op], find_device(name)), blind.predict([op], find_device(name))
    assert unseen.ground[0] == "transfer"
    assert abs(np.log(unseen.seconds[0] / seen.seconds[0])) < 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_op_costs_a_launch_and_not_a_nan(learned: Learned, kind: str) -> None:
    empty = {
        key: 0 if isinstance(value, int) and not isinstance(value, bool) else value
        for key, value in SAMPLES[kind].items()
    }
    if kind == "conv":
        empty |= {"groups": 1, "in_channels": 1, "out_channels": 1}
    op = make_op(kind, flop=0.0, bytes_read=0.0, bytes_written=0.0, attrs=empty)
    costs = learned.predict([op], find_device("a100-sxm-80g"))
    assert 0 <= costs.seconds[0] < 1e-3


def test_a_device_with_a_bare_data_sheet_still_gets_an_answer(learned: Learned) -> None:
    bare = make_device(
        num_sm=None, lanes_per_sm=None, clock_hz=None, l2_bytes=None, power_watts=None, matrix_flop_per_s={}
    )
    costs = learned.predict([make_op(kind) for kind in KINDS], bare)
    assert np.isfinite(costs.seconds).all()
    assert (costs.ground != "measured").all()


def test_no_op_at_all_is_an_empty_answer(learned: Learned) -> None:
    assert len(learned.predict([], find_device("t4")).seconds) == 0


def make_conv(dtype: str, *, batch: int = 64, channels: int = 256, **more: int | str | bool) -> Op:
    numel = batch * channels * 28 * 28
    item = 2 if dtype == "fp16" else 4
    return Op(
        name="conv", kind="conv", flop=2.0 * numel * channels * 9, bytes_read=item * numel, bytes_written=item * numel,
        dtype=dtype,
        attrs={
            "batch": batch, "in_channels": channels, "out_channels": channels, "groups": 1, "in_size": "28x28",
            "out_size": "28x28", "kernel": "3x3", "stride": "1x1", "pass": "forward", **more,
        },
    )  # fmt: skip


def seconds(learned: Learned, op: Op, name: str) -> float:
    return float(learned.predict([op], find_device(name)).seconds[0])


def test_matrix_units_do_not_mind_the_layout_of_a_product(learned: Learned) -> None:
    either = [
        make_matmul(
            m=2048,
            n=6144,
            k=12288,
            dtype="fp16",
            attrs={"batch": 1, "m": 2048, "n": 6144, "k": 12288, "layout": layout},
        )
        for layout in ("tn", "nn")
    ]
    assert seconds(learned, either[0], "a100-sxm4-80g") == seconds(learned, either[1], "a100-sxm4-80g")


def test_a_long_sum_is_split_over_a_device_that_its_few_outputs_leave_idle(learned: Learned) -> None:
    tall = make_matmul(m=256, n=256, k=1 << 22, dtype="fp16")
    streamed_s = tall.num_bytes / find_device("a100-sxm4-40g").memory_bytes_per_s
    assert streamed_s < seconds(learned, tall, "a100-sxm4-40g") < 2 * streamed_s


def test_a_matrix_times_a_vector_is_read_at_the_rate_of_memory(learned: Learned) -> None:
    thin = make_matmul(m=1 << 22, n=1, k=128)
    streamed_s = thin.num_bytes / find_device("a100-sxm4-40g").memory_bytes_per_s
    assert streamed_s < seconds(learned, thin, "a100-sxm4-40g") < 2 * streamed_s


@pytest.mark.parametrize("name", ["v100-sxm2-32g", "a100-sxm4-40g", "h100-sxm-80g"])
def test_gradients_of_half_precision_convolutions_that_find_channels_last_turn_nothing_round(
    learned: Learned, name: str
) -> None:
    turned, taken, stays = (
        make_conv("fp16", **{"pass": "grad_input"}, **more)
        for more in ({"turned_images": True}, {}, {"channels_last": True})
    )
    moved_s = 2 * turned.num_bytes / find_device(name).memory_bytes_per_s
    assert seconds(learned, turned, name) >= seconds(learned, stays, name) + moved_s
    assert seconds(learned, taken, name) > seconds(learned, stays, name)


def test_a_bias_is_added_by_a_kernel_of_its_own_unless_a_compiler_fuses_it(learned: Learned) -> None:
    plain = make_conv("fp16", kernel="1x1")
    biased = replace(plain, reads=(0, 1, 2))
    fused = replace(biased, attrs={**biased.attrs, "fused_bias": True})
    added_s = 2 * plain.bytes_written / find_device("rtx-3090").memory_bytes_per_s
    assert seconds(learned, biased, "rtx-3090") >= seconds(learned, plain, "rtx-3090") + added_s
    assert seconds(learned, fused, "rtx-3090") == seconds(learned, plain, "rtx-3090")


def make_batch_norm(channels: int, numel: int, **more: int | str | bool) -> Op:
    attrs: dict[str, int | str | bool] = {"function": "batch_norm", "rows": channels, "cols": numel // channels, **more}
    return Op(
        name="n",
        kind="norm",
        flop=4.0 * numel,
        bytes_read=2.0 * numel,
        bytes_written=2.0 * numel,
        dtype="fp16",
        attrs=attrs,
    )


def test_batch_norm_of_few_channels_leaves_multiprocessors_idle_in_training_only(learned: Learned) -> None:
    few, many = (make_batch_norm(channels, 1 << 26) for channels in (16, 256))
    assert seconds(learned, few, "rtx-3090") > 2 * seconds(learned, many, "rtx-3090")
    few, many = (make_batch_norm(channels, 1 << 26, training=False) for channels in (16, 256))
    assert seconds(learned, few, "rtx-3090") == pytest.approx(seconds(learned, many, "rtx-3090"))


def test_a_short_stream_in_a_queue_loses_its_start_and_no_bandwidth(learned: Learned) -> None:
    numel = 1 << 24
    op = Op(
        name="add", kind="elementwise", flop=float(numel), bytes_read=4.0 * numel, bytes_written=2.0 * numel, dtype="fp16",
        attrs={"function": "add", "numel": numel, "num_inputs": 2},
    )  # fmt: skip
    streamed_s = op.num_bytes / find_device("rtx-3090").memory_bytes_per_s
    assert streamed_s / 0.92 < seconds(learned, op, "rtx-3090") < streamed_s / 0.86


def test_tf32_convolutions_run_on_the_lanes_where_matrix_units_are_hardly_faster(learned: Learned) -> None:
    for name, same in (("rtx-3090", True), ("a100-sxm4-40g", False)):
        tf32, fp32 = seconds(learned, make_conv("tf32"), name), seconds(learned, make_conv("fp32"), name)
        assert (tf32 == pytest.approx(fp32)) == same
        assert tf32 <= fp32 * (1 + 1e-9)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_fused_norm_reads_a_wide_row_once(learned: Learned, phase: str) -> None:
    shape: dict[str, int | str | bool] = {"function": "layer_norm", "rows": 8192, "cols": 12288}
    num_bytes = 2.0 * 8192 * 12288
    plain, fused = (
        Op(
            name="norm", kind="norm", phase=phase, flop=num_bytes, bytes_read=num_bytes, bytes_written=num_bytes,
            dtype="fp16", attrs=attrs,
        )
        for attrs in (shape, {**shape, "fused": True})
    )  # fmt: skip
    assert seconds(learned, fused, "a100-sxm4-80g") < seconds(learned, plain, "a100-sxm4-80g")


def test_the_gradient_of_an_embedding_grows_with_its_rows_and_pays_for_the_empty_table(learned: Learned) -> None:
    def gradient(rows: int, vocab: int) -> float:
        attrs: dict[str, int | str | bool] = {"rows": rows, "cols": 128, "vocab": vocab}
        op = Op(name="e", kind="embedding", phase="backward", flop=0.0, bytes_read=1.0, bytes_written=1.0, attrs=attrs)
        return seconds(learned, op, "v100-sxm2-32g")

    assert gradient(1 << 20, 1000) < gradient(1 << 21, 1000) < 2.1 * gradient(1 << 20, 1000)
    assert gradient(1 << 20, 1 << 22) > gradient(1 << 20, 1000)


def make_lstm(phase: str = "forward", **sizes: int) -> Op:
    attrs = {"cell": "lstm", "batch": 16, "length": 400, "inputs": 1024, "hidden": 1024, "layers": 1, "directions": 1}
    return make_op("rnn", phase=phase, dtype="fp16", attrs=attrs | sizes)


def test_layers_of_a_small_batch_step_side_by_side(learned: Learned) -> None:
    few, many = (seconds(learned, make_lstm(layers=layers), "h100-sxm-80g") for layers in (1, 2))
    assert many < 1.8 * few
    few, many = (seconds(learned, make_lstm(layers=layers, batch=512), "h100-sxm-80g") for layers in (1, 2))
    assert many > 1.9 * few


def test_gradients_of_recurrent_weights_need_no_steps(learned: Learned) -> None:
    ahead, back = (seconds(learned, make_lstm(phase), "h100-sxm-80g") for phase in ("forward", "backward"))
    assert ahead < back < 1.6 * ahead


def test_steps_find_weights_in_a_larger_cache(learned: Learned) -> None:
    small = find_device("l4")
    costs = [
        float(learned.predict([make_lstm()], replace(small, l2_bytes=size)).seconds[0]) for size in (4e6, 48e6, 96e6)
    ]
    assert costs[0] > costs[1] >= costs[2]
