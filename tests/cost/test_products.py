import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_device, make_matmul
from traincast.catalog import device as find_device
from traincast.catalog import workload
from traincast.cost._alignment import warn_alignment
from traincast.cost._attention import AttentionShape, mean_keys, time_attention
from traincast.cost._bounds import UNKNOWN, find_silicon, name_unknown_silicon
from traincast.cost._laws import load_laws
from traincast.cost._learned import load_learned
from traincast.cost._pricing import mark_software
from traincast.cost._products import CONSTANTS, ProductShape, easy_gain, held_share, time_groups, time_products
from traincast.errors import InvalidInput
from traincast.lower import lower
from traincast.spec import Device, Op, Parallelism, Stack

SILICON = ["Ampere GA100", "Ada AD102", "Hopper GH100", "Blackwell GB100", "Turing TU104", "CDNA3", "Rubin", ""]
RAISED = ["matrix", "memory", "cache", "clock", "power"]

devices = st.builds(
    lambda peak, dram, sm, clock, cache, watts, architecture: make_device(
        matrix_flop_per_s={"bf16": peak, "fp8": 2 * peak}, memory_bytes_per_s=dram, num_sm=sm, clock_hz=clock,
        l2_bytes=cache, power_watts=watts, architecture=architecture,
    ),
    st.floats(2e13, 5e15), st.floats(1e11, 2e13), st.integers(8, 320), st.floats(8e8, 3e9), st.floats(1e6, 3e8),
    st.one_of(st.none(), st.floats(60, 1500)), st.sampled_from(SILICON),
)  # fmt: skip


def raise_one(device: Device, what: str, factor: float) -> Device:
    if what == "matrix":
        rates = {dtype: rate * factor for dtype, rate in device.matrix_flop_per_s.items()}
        return replace(device, matrix_flop_per_s=rates)
    names = {"memory": "memory_bytes_per_s", "cache": "l2_bytes", "clock": "clock_hz", "power": "power_watts"}
    value = getattr(device, names[what])
    return device if value is None else replace(device, **{names[what]: value * factor})


def some_products(seed: int, size: int = 300) -> ProductShape:
    rng = np.random.default_rng(seed)
    m, n, k = (np.ceil(2.0 ** rng.uniform(0, 16, size)) for _ in range(3))
    batch = np.ceil(2.0 ** rng.uniform(0, 7, size))
    num_bytes = 2.0 * batch * (m * k + k * n + m * n)
    return ProductShape(batch=batch, m=m, n=n, k=k, num_bytes=num_bytes, resident=None)


def some_attention(seed: int, size: int = 300) -> AttentionShape:
    rng = np.random.default_rng(seed)
    queries = np.ceil(2.0 ** rng.uniform(0, 16, size))
    keys = queries * rng.integers(1, 3, size)
    head = rng.choice([32.0, 64, 72, 80, 96, 128, 150, 192, 256], size)
    sequences = np.ceil(2.0 ** rng.uniform(0, 9, size))
    window = np.where(rng.random(size) < 0.3, np.minimum(256.0, keys), keys)
    flags = (rng.random((4, size)) < 0.5).astype(np.float64)
    moved = 8.0 * sequences * keys * head
    return AttentionShape(sequences, queries, keys, head, flags[0], window, flags[1], 1.0 + flags[2], flags[3], moved)


@settings(max_examples=100, deadline=None)
@given(
    device=devices, what=st.sampled_from(RAISED), factor=st.floats(1.0, 4.0), seed=st.integers(0, 10_000), lone=st.booleans(),
    dtype=st.sampled_from(["bf16", "fp8"]),
)  # fmt: skip
def test_no_product_is_slower_on_a_device_that_is_faster_in_one_respect(
    device: Device, what: str, factor: float, seed: int, lone: bool, dtype: str
) -> None:
    law, shape = load_laws().product(dtype), some_products(seed)
    before, after = (
        time_products(law, shape, one, dtype, lone=lone).seconds for one in (device, raise_one(device, what, factor))
    )
    assert (after <= before * (1 + 1e-9)).all()


@settings(max_examples=100, deadline=None)
@given(
    device=devices, what=st.sampled_from(RAISED), factor=st.floats(1.0, 4.0), seed=st.integers(0, 10_000), lone=st.booleans()
)  # fmt: skip
def test_no_attention_is_slower_on_a_device_that_is_faster_in_one_respect(
    device: Device, what: str, factor: float, seed: int, lone: bool
) -> None:
    laws, shape = load_laws(), some_attention(seed)
    before, after = (
        time_attention(laws.attention, laws.half, shape, one, "bf16", lone=lone).seconds
        for one in (device, raise_one(device, what, factor))
    )
    assert (after <= before * (1 + 1e-9)).all()


@settings(max_examples=60, deadline=None)
@given(
    device=devices, what=st.sampled_from(RAISED), factor=st.floats(1.0, 4.0), seed=st.integers(0, 10_000), lone=st.booleans(),
    dtype=st.sampled_from(["bf16", "fp8"]),
)  # fmt: skip
def test_no_products_of_experts_are_slower_on_a_device_that_is_faster_in_one_respect(
    device: Device, what: str, factor: float, seed: int, lone: bool, dtype: str
) -> None:
    laws, shape = load_laws(), some_products(seed)
    uneven = (np.arange(len(shape.m)) % 2).astype(np.float64)
    before, after = (
        time_groups(laws.groups, laws.product(dtype), shape, one, dtype, uneven=uneven, lone=lone).seconds
        for one in (device, raise_one(device, what, factor))
    )
    assert (after <= before * (1 + 1e-9)).all()


@pytest.mark.parametrize("architecture", ["Ampere GA100", "Hopper GH100"])
def test_an_unfilled_wave_costs_a_board_less_whose_power_limits_its_clock(architecture: str) -> None:
    law, ones = load_laws().half, np.ones(2)
    # 108 and 108 + 20 tiles of the largest size on 108 multiprocessors.
    m = np.array([108.0, 128.0]) * 256
    shape = ProductShape(batch=ones, m=m, n=128 * ones, k=8192 * ones, num_bytes=1.0 * ones, resident=None)
    losses = []
    for watts in (None, 120.0):
        device = make_device(
            matrix_flop_per_s={"bf16": 3e14}, num_sm=108, clock_hz=1.4e9, power_watts=watts, architecture=architecture
        )
        whole, part = time_products(law, shape, device, "bf16", lone=True).compute_s
        losses.append(part / whole)
    free, limited = losses
    assert 1.0 < limited < free


def test_units_fed_from_registers_lose_more_of_a_wave_than_those_that_read_shared_memory() -> None:
    law = load_laws().half
    assert law.registers.wave_loss > law.shared.wave_loss
    fed = {
        name: find_silicon(find_device(name)).register_fed
        for name in ("a100-sxm4-80g", "l40s", "h100-sxm-80g", "tpu-v5p")
    }
    assert fed == {"a100-sxm4-80g": True, "l40s": True, "h100-sxm-80g": False, "tpu-v5p": False}


def test_experts_with_unequal_numbers_of_tokens_fill_fewer_tiles_than_one_product_of_all_tokens() -> None:
    laws, device = load_laws(), find_device("h100-sxm-80g")
    ones = np.ones(1)
    experts = ProductShape(
        batch=64 * ones, m=512 * ones, n=4096 * ones, k=2048 * ones, num_bytes=1e8 * ones, resident=None
    )
    whole = replace(experts, batch=ones, m=64 * 512 * ones)
    one_s = time_products(laws.half, whole, device, "bf16").seconds
    even_s, uneven_s = (
        time_groups(laws.groups, laws.half, experts, device, "bf16", uneven=share * ones).seconds
        for share in (0.0, 1.0)
    )
    assert one_s < even_s < uneven_s < 2.0 * one_s


def test_scales_of_blocks_cost_time_where_matrix_units_do_not_apply_them() -> None:
    plain = make_matmul(m=8192, n=8192, k=8192, dtype="fp8")
    scaled = replace(plain, attrs={**plain.attrs, "scale_block": 128})
    for name, least, most in (("h100-sxm-80g", 1.15, 1.5), ("b200-sxm-180g", 1.0, 1.0), ("a100-sxm4-80g", 1.0, 1.0)):
        seconds = load_learned().predict([plain, scaled], find_device(name)).seconds
        assert least <= seconds[1] / seconds[0] <= most


def test_the_backward_pass_of_attention_is_priced_apart() -> None:
    """Short heads wait for exponentials, of which the backward pass has no more than the forward."""
    laws, device = load_laws(), find_device("b200-sxm-180g")
    forward = some_attention(0)
    ratios = {}
    for head in (64.0, 128.0):
        shape = replace(
            forward, queries=0 * forward.queries + 8192, keys=0 * forward.keys + 8192, window=0 * forward.keys + 8192,
            sequences=0 * forward.size + 64, size=0 * forward.size + head, register_fed=0 * forward.size,
        )  # fmt: skip
        times = [
            time_attention(
                laws.attention, laws.half, replace(shape, backward=0 * shape.size + back), device, "bf16"
            ).seconds[0]
            for back in (0.0, 1.0)
        ]
        ratios[head] = times[1] / times[0]
    assert 1.5 < ratios[64.0] < ratios[128.0] < 3.3


@settings(max_examples=30, deadline=None)
@given(device=devices, seed=st.integers(0, 10_000))
def test_products_and_attention_stay_below_the_peak_of_their_units(device: Device, seed: int) -> None:
    laws = load_laws()
    peak = device.matrix_flop_per_s["bf16"] * (CONSTANTS.boost if easy_gain(device, "bf16", 0.9) > 1 else 1.0)
    shape = some_products(seed)
    flop = 2.0 * shape.batch * shape.m * shape.n * shape.k
    assert (flop / time_products(laws.half, shape, device, "bf16", lone=True).seconds <= peak).all()
    fused = some_attention(seed)
    flop = 4.0 * fused.sequences * fused.queries * mean_keys(fused) * fused.size
    assert (flop / time_attention(laws.attention, laws.half, fused, device, "bf16", lone=True).seconds <= peak).all()


def some_image_ops(seed: int, size: int = 60) -> list[Op]:
    """Convolutions of all passes, layouts and groups, and norms."""
    rng = np.random.default_rng(seed)
    ops: list[Op] = []
    for _ in range(size):
        width, groups = int(2 ** rng.uniform(0, 7)), int(2 ** rng.integers(0, 7))
        channels, pixels, batch = width * groups, int(rng.integers(4, 60)), int(rng.integers(1, 129))
        taps = int(rng.choice([1, 3, 5]))
        numel = batch * channels * pixels**2
        attrs = {
            "batch": batch, "in_channels": channels, "out_channels": channels, "groups": groups,
            "in_size": f"{pixels}x{pixels}", "out_size": f"{pixels}x{pixels}", "kernel": f"{taps}x{taps}", "stride": "1x1",
            "pass": str(rng.choice(["forward", "grad_input", "grad_weight"])), "channels_last": bool(rng.random() < 0.5),
            "turned_images": bool(rng.random() < 0.5), "grouped_gradients_on_lanes": bool(rng.random() < 0.5),
        }  # fmt: skip
        ops.append(
            Op(name="c", kind="conv", flop=2.0 * numel * width * taps**2, bytes_read=2.0 * numel, bytes_written=2.0 * numel,
               dtype="bf16", attrs=attrs, reads=(0, 1, 2) if rng.random() < 0.5 else (0, 1))
        )  # fmt: skip
        function = str(rng.choice(["batch_norm", "layer_norm", "group_norm"]))
        norm = {"function": function, "rows": channels, "cols": numel // channels}
        ops.append(
            Op(name="n", kind="norm", flop=4.0 * numel, bytes_read=2.0 * numel, bytes_written=2.0 * numel, dtype="bf16",
               phase=str(rng.choice(["forward", "backward"])), attrs=norm)
        )  # fmt: skip
    return ops


def conv_of(channels: int, *, kernel: str = "3x3x3", stride: str = "1x1x1") -> Op:
    numel = 2 * channels * 64**3
    attrs = {
        "batch": 2, "in_channels": channels, "out_channels": channels, "groups": 1, "in_size": "64x64x64",
        "out_size": "64x64x64", "kernel": kernel, "stride": stride, "pass": "forward", "channels_last": True,
    }  # fmt: skip
    return Op(
        name="c", kind="conv", flop=2.0 * numel * channels * 27, bytes_read=2.0 * numel, bytes_written=2.0 * numel,
        dtype="fp16", attrs=attrs, reads=(0, 1),
    )  # fmt: skip


def rate_of(op: Op, device: Device) -> float:
    return float((op.flop or 0.0) / load_learned().predict([op], device).seconds[0])


def test_streams_of_halves_with_short_vectors_lose_more_where_memory_is_fast_beside_its_cores() -> None:
    numel = 2**28
    attrs = {"function": "add", "numel": numel, "num_inputs": 2}
    plain = Op(
        name="a", kind="elementwise", flop=numel, bytes_read=4.0 * numel, bytes_written=2.0 * numel, dtype="fp16", attrs=attrs
    )  # fmt: skip
    (short,) = mark_software((plain,), replace(Stack(), kernels=("short_vectors",)))
    lost = {}
    for name in ("rtx-4090", "a100-sxm4-40g", "a100-sxm4-80g"):
        seconds = load_learned().predict([plain, short], find_device(name)).seconds
        lost[name] = seconds[1] / seconds[0]
    assert 1.0 <= lost["rtx-4090"] < 1.02 < lost["a100-sxm4-40g"] < lost["a100-sxm4-80g"] < 1.25


def test_rows_of_tables_in_half_precision_have_the_least_in_flight() -> None:
    attrs = {"rows": 2**20, "cols": 64, "vocab": 2**20}
    rows = Op(
        name="e", kind="embedding", flop=0.0, bytes_read=2.0**27, bytes_written=2.0**27, dtype="fp16", attrs=attrs
    )
    stack = replace(Stack(), kernels=("short_vectors",))
    for phase, slower in (("forward", True), ("backward", False)):
        plain = replace(rows, phase=phase)
        (short,) = mark_software((plain,), stack)
        seconds = load_learned().predict([plain, short], find_device("a100-sxm4-80g")).seconds
        assert (seconds[1] > 1.5 * seconds[0]) == slower


def test_only_streams_of_half_precision_have_short_vectors() -> None:
    stack = replace(Stack(), kernels=("short_vectors",))
    wide = Op(name="a", kind="elementwise", flop=1.0, bytes_read=8.0, bytes_written=4.0, dtype="fp32",
              attrs={"function": "add", "numel": 1, "num_inputs": 2})  # fmt: skip
    assert mark_software((wide, conv_of(32)), stack) == (wide, conv_of(32))


def test_windows_of_few_channels_wait_for_l2_and_not_for_matrix_units() -> None:
    ampere, hopper = find_device("a100-sxm4-80g"), find_device("h100-sxm-80g")
    for device in (ampere, hopper):
        assert rate_of(conv_of(32), device) < 0.6 * rate_of(conv_of(128), device)
    # Hopper's units are three times as fast, its way from L2 to them is not.
    assert rate_of(conv_of(32), hopper) / rate_of(conv_of(32), ampere) < 2.3


def test_few_channels_take_longer_where_no_kernel_has_narrow_tiles() -> None:
    stack = replace(Stack(), kernels=("wide_tiles",))
    device = find_device("a100-sxm4-80g")
    for channels, slower in ((32, True), (64, False)):
        now = conv_of(channels)
        (before,) = mark_software((now,), stack)
        assert (rate_of(before, device) < rate_of(now, device)) == slower


def test_windows_that_do_not_overlap_fetch_nothing_twice() -> None:
    device = find_device("h100-sxm-80g")
    overlapping, apart = conv_of(32), conv_of(32, stride="3x3x3")
    seconds = load_learned().predict([overlapping, apart], device).seconds
    assert seconds[1] < seconds[0]


@settings(max_examples=60, deadline=None)
@given(
    device=devices, what=st.sampled_from([*RAISED, "lanes"]), factor=st.floats(1.0, 4.0), seed=st.integers(0, 10_000)
)
def test_no_convolution_or_norm_is_slower_on_a_device_that_is_faster_in_one_respect(
    device: Device, what: str, factor: float, seed: int
) -> None:
    if what == "lanes":
        rates = {dtype: rate * factor for dtype, rate in device.vector_flop_per_s.items()}
        faster = replace(device, vector_flop_per_s=rates)
    else:
        faster = raise_one(device, what, factor)
    ops = some_image_ops(seed)
    before, after = (load_learned().predict(ops, one).seconds for one in (device, faster))
    assert (after <= before * (1 + 1e-9)).all()


def test_a_causal_mask_halves_the_keys_and_a_window_bounds_them() -> None:
    def keys(causal: float, window: float) -> float:
        one, length = np.ones(1), np.full(1, 4096.0)
        shape = AttentionShape(one, length, length, 64 * one, causal * one, window * one, 0 * one, one, 0 * one, one)
        return float(mean_keys(shape)[0])

    assert keys(0.0, 4096) == 4096
    assert keys(1.0, 4096) == pytest.approx(4097 / 2)
    assert 120 < keys(1.0, 128) < 128


@pytest.mark.parametrize("name", ["a100-sxm4-80g", "h100-sxm-80g", "l40s", "b200-sxm-180g"])
def test_lasting_load_is_slower_than_a_lone_kernel_and_more_so_with_few_watts_per_flop(name: str) -> None:
    law, device = load_laws().half, find_device(name)
    lone, lasting = (float(held_share(law, device, "bf16", load=load)) for load in (0.0, 1.0))
    assert 0.5 < lasting < lone < 1.0
    a100 = find_device("a100-sxm4-80g")
    assert (
        lasting / lone
        <= float(held_share(law, a100, "bf16", load=1.0) / held_share(law, a100, "bf16", load=0.0)) + 1e-9
    )


def test_an_architecture_nobody_entered_is_named_and_widens() -> None:
    rubin = replace(find_device("b200-sxm-180g"), name="r100", architecture="Rubin")
    assert find_silicon(rubin) is UNKNOWN
    assert "r100" in (name_unknown_silicon(rubin) or "")
    assert name_unknown_silicon(find_device("b200-sxm-180g")) is None
    product = make_matmul(m=8192, n=8192, k=8192, dtype="bf16")
    known, unknown = (load_learned().predict([product], one) for one in (find_device("b300-sxm-270g"), rubin))
    assert unknown.log_sigma[0] > known.log_sigma[0] + 0.1


def test_a_law_that_would_slow_faster_units_down_is_refused() -> None:
    with pytest.raises(InvalidInput, match="slower"):
        replace(load_laws().half, power_exponent=1.1)


@pytest.mark.parametrize(("width", "slower"), [(4096, 1.0), (4100, 1.7), (4098, 2.4), (4097, 2.8)])
def test_widths_that_are_no_whole_vectors_cost_time(width: int, slower: float) -> None:
    device = find_device("a100-sxm4-80g")
    odd, even = (
        load_learned().predict([make_matmul(m=8192, n=4096, k=k, dtype="bf16")], device).seconds[0] / k
        for k in (width, 4096)
    )
    assert odd / even == pytest.approx(slower, rel=0.03)


def test_a_batch_of_matmuls_without_whole_vectors_loses_the_matrix_units() -> None:
    """DeiT's 197 tokens; on A100 a head of 150."""
    for device in ("a100-sxm4-80g", "v100-sxm2-32g"):
        plain = [make_matmul(m=2048, n=2048, k=k, dtype="fp16") for k in (150, 152)]
        batches = [replace(op, bytes_read=96 * op.bytes_read, attrs={**op.attrs, "batch": 96}) for op in plain]
        (alone, even), (odd, whole) = (
            load_learned().predict(ops, find_device(device)).seconds for ops in (plain, batches)
        )
        assert alone / even < 3.0 < 4.0 < odd / whole < 8.0


def make_attention(name: str = "aten._scaled_dot_product_flash_attention", **attrs: int | str | bool) -> Op:
    shape = {"batch": 4, "heads": 32, "kv_heads": 32, "q_len": 4096, "kv_len": 4096, "head_dim": 128, "causal": True}
    moved = 2.0 * 4 * 4096 * 32 * 128
    return Op(
        name=name, kind="attention", flop=1e12, bytes_read=3 * moved, bytes_written=moved, dtype="bf16",
        attrs={**shape, **attrs},
    )  # fmt: skip


def test_the_generation_of_an_attention_kernel_matters_on_hopper_and_not_on_ampere() -> None:
    def seconds(device: str, kernel: str) -> float:
        return float(load_learned().predict([make_attention(kernel=kernel)], find_device(device)).seconds[0])

    assert seconds("a100-sxm4-80g", "flash-2") == pytest.approx(seconds("a100-sxm4-80g", "flash-3"))
    assert 1.2 < seconds("h100-sxm-80g", "flash-2") / seconds("h100-sxm-80g", "flash-3") < 2.5


def test_chips_without_kernels_of_flash_attention_run_the_memory_efficient_one() -> None:
    asked = [
        dataclasses.replace(op, dtype="fp16")
        for op in (make_attention(), make_attention(kernel="efficient"), make_attention(kernel="flash-2"))
    ]

    def seconds(device: str) -> list[float]:
        return [float(x) for x in load_learned().predict(asked, find_device(device)).seconds]

    fused, efficient, second = seconds("v100-sxm2-32g")
    assert fused == efficient > second
    fused, efficient, second = seconds("a100-sxm4-80g")
    assert fused == second < efficient


def test_an_unknown_generation_of_attention_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="flash-9"):
        load_learned().predict([make_attention(kernel="flash-9")], find_device("h100-sxm-80g"))


def test_odd_head_sizes_and_widths_are_warned_of_with_neighbours_that_cost_less() -> None:
    device, model = find_device("a100-sxm4-80g"), load_learned()
    odd = make_attention(head_dim=150)
    (sentence,) = warn_alignment([odd], device, model)
    assert sentence.startswith("head size 150 is no multiple of 8")
    assert "144 or 152 would not be" in sentence
    (sentence,) = warn_alignment([make_matmul(m=8192, n=4096, k=4098, dtype="bf16")], device, model)
    assert "width 4098" in sentence
    assert "140% slower" in sentence


def test_odd_widths_cost_graphics_chips_nothing_and_data_centre_chips_twice_the_time() -> None:
    def ratio(device: str) -> float:
        ops = [make_matmul(m=2048, n=4096, k=k, dtype="bf16") for k in (4098, 4096)]
        odd, even = load_learned().predict(ops, find_device(device)).seconds
        return float(odd / even)

    assert ratio("rtx-3090") < 1.05
    assert ratio("a100-sxm4-80g") > 1.5


def test_a_compiler_copies_odd_operands_where_that_is_quicker_than_an_odd_product() -> None:
    def seconds(device: str, *, n: int, **attrs: bool) -> float:
        op = make_matmul(m=16384, n=n, k=768, dtype="bf16")
        return float(load_learned().predict([replace(op, attrs={**op.attrs, **attrs})], find_device(device)).seconds[0])

    odd, copied, even = (
        seconds("a100-sxm4-80g", n=n, **marks) for n, marks in ((50257, {}), (50257, {"pads": True}), (50264, {}))
    )
    assert even < copied < 1.2 * even < odd
    narrow = [seconds("rtx-3090", n=17, **marks) for marks in ({}, {"pads": True})]
    assert narrow[1] <= narrow[0], "it takes the faster of both"
    assert seconds("a100-sxm4-80g", n=50264, pads=True) == even


def test_whole_vectors_and_other_formats_are_not_warned_of() -> None:
    device, model = find_device("a100-sxm4-80g"), load_learned()
    assert warn_alignment([make_attention(), make_matmul(m=8192, n=4096, k=4096, dtype="bf16")], device, model) == ()
    assert warn_alignment([make_matmul(m=8192, n=4096, k=4098)], device, model) == ()


@pytest.mark.parametrize(
    ("name", "published"),
    [("a100-sxm4-80g", 0.869), ("h100-sxm-80g", 0.803), ("mi300x", 0.514), ("mi325x", 0.604), ("mi355x", 0.621)],
)
def test_the_fastest_large_product_reaches_the_published_share_of_the_peak(name: str, published: float) -> None:
    """stas00/ml-engineering's MAMF (744d01e): the best of many sizes, repeated alone."""
    law, sizes = load_learned().laws.half, np.array([1024.0, 2048.0, 4096.0, 8192.0, 16384.0])
    m, n, k = (axis.ravel() for axis in np.meshgrid(sizes, sizes, sizes))
    shape = ProductShape(
        batch=np.ones_like(m), m=m, n=n, k=k, num_bytes=2 * (m * k + k * n + m * n), resident=None
    )  # fmt: skip
    sheet = find_device(name)
    seconds = time_products(law, shape, sheet, "bf16", lone=True).seconds
    best = float((2 * m * n * k / seconds).max()) / sheet.matrix_flop_per_s["bf16"]
    assert best == pytest.approx(published, rel=0.06)


@pytest.mark.parametrize("name", ["gaudi2", "tpu-v4", "tpu-v5e"])
def test_a_systolic_array_works_on_whole_tiles_and_streams_beside(name: str) -> None:
    sheet = find_device(name)
    full, narrow, thin = (make_matmul(m=8192, n=size, k=8192, dtype="bf16") for size in (128, 96, 64))
    whole_s, narrow_s, thin_s = (one.seconds for one in load_learned().estimate_ops((full, narrow, thin), sheet))
    assert narrow_s == pytest.approx(whole_s, rel=0.05)
    assert thin_s > 0.9 * whole_s
    # A product of few columns is as long as its bytes take, and no longer by half.
    long = make_matmul(m=800_000, n=128, k=128, dtype="bf16")
    (streamed,) = load_learned().estimate_ops((long,), sheet)
    assert 1 < streamed.seconds * sheet.memory_bytes_per_s / long.num_bytes < 1.5


def test_sums_of_a_norm_are_made_in_the_scratchpad_of_a_systolic_device() -> None:
    norm = Op(
        name="fused[native_batch_norm]", kind="norm", flop=1e9, bytes_read=4e8, bytes_written=4e8, dtype="bf16",
        attrs={"function": "batch_norm", "rows": 64, "cols": 3_125_000, "compiled": True},
    )  # fmt: skip
    twin = make_device(memory_bytes_per_s=2.45e12, architecture="Gaudi2", num_sm=24)
    gpu = replace(twin, architecture="Ampere GA100")
    (on_array,), (on_gpu,) = (load_learned().estimate_ops((norm,), one) for one in (twin, gpu))
    assert on_array.seconds < 0.8 * on_gpu.seconds


def test_a_convolution_on_systolic_arrays_takes_what_was_just_made_from_the_scratchpad() -> None:
    graph = workload("resnet50", batch=64, precision="bf16-amp", channels_last=True)
    ops = [task for task in lower(graph, Parallelism(), compiled=True).stages[0].tasks if isinstance(task, Op)]
    place = next(
        index for index, op in enumerate(ops)
        if index and op.kind == "conv" and set(ops[index - 1].writes) & set(op.reads) and "compiled" in ops[index - 1].attrs
    )  # fmt: skip
    sheet = find_device("tpu-v4")
    alone = load_learned().estimate_ops((ops[place],), sheet)[0]
    after = load_learned().estimate_ops((ops[place - 1], ops[place]), sheet)[1]
    assert after.seconds < alone.seconds
