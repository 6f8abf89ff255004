import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.catalog._names import load_facts
from traincast.catalog._workloads import BUILDERS, from_shape, workload, workloads
from traincast.errors import InvalidInput, UnknownName
from traincast.spec._graph import DYNAMIC, Graph

FACTS = load_facts("model").entries
NAMES = [entry.name for entry in workloads() if FACTS[entry.name]["builder"] != "recorded"]
SHARED = Path(__file__).resolve().parents[3] / "shared"
PRODUCTS = ("matmul", "conv", "attention", "rnn")


def product_flop(graph: Graph, phase: str) -> float:
    pairs = zip(graph.ops, graph.counts(), strict=True)
    return sum((op.flop or 0.0) * count for op, count in pairs if op.phase == phase and op.kind in PRODUCTS)


def test_the_catalogue_knows_workloads_of_every_family() -> None:
    families = {entry.family for entry in workloads()}
    assert families >= {
        "cnn", "detection", "segmentation", "speech-rnn", "recsys", "diffusion", "vision-transformer", "encoder-decoder",
        "transformer-lm", "transformer-enc", "transformer-moe",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_has_its_published_weights_and_multiply_adds(name: str) -> None:
    entry = FACTS[name]
    graph = workload(name, batch=2, mode="forward_backward")
    published = entry.get("parameters")
    if published is not None:
        # Fractions mark figures that were published rounded.
        assert graph.num_parameters == pytest.approx(published, rel=0.03 if isinstance(published, float) else 0.012)
    else:
        assert graph.num_parameters == entry["built_parameters"]
    forward = product_flop(graph, "forward")
    if "gmacs" in entry:
        assert forward / 2 / graph.batch_size / 1e9 == pytest.approx(entry["gmacs"], rel=0.02)
    # The features of a graph's nodes are fixed, so its widest layer has no gradient of its input.
    least = 1.0 if entry["family"] == "gnn" else 1.75
    # A fifth of fused attention's backward products are its scores, made again.
    again = sum(
        0.2 * (op.flop or 0.0) * count
        for op, count in zip(graph.ops, graph.counts(), strict=True)
        if op.kind == "attention" and op.phase == "backward"
    )
    assert least < (product_flop(graph, "backward") - again) / forward < 2.1


@pytest.mark.parametrize("name", [name for name in NAMES if FACTS[name]["builder"] != "transformer"])
@pytest.mark.parametrize("precision", ["fp16-amp", "bf16"])
def test_a_workload_runs_in_half_precision(name: str, precision: str) -> None:
    graph = workload(name, precision=precision)
    half = {op.dtype for op in graph.ops if op.kind in PRODUCTS}
    assert half == {"fp16" if precision == "fp16-amp" else "bf16"}
    assert graph.ops[-1].phase == "optimizer"


@pytest.mark.parametrize(
    "name", ["gpt2", "bert-large", "llama-3-8b", "resnet50", "t5-base", "ssd300", "dlrm", "unet3d", "whisper-small"]
)
def test_twice_the_batch_is_twice_the_products_and_the_same_weights(name: str) -> None:
    small, large = workload(name, batch=4), workload(name, batch=8)
    assert product_flop(large, "forward") == pytest.approx(2 * product_flop(small, "forward"), rel=1e-3)
    assert large.num_parameters == small.num_parameters
    assert large.batch_size == 2 * small.batch_size


def test_a_training_step_of_a_dense_model_costs_six_flop_per_weight_and_token() -> None:
    graph = workload("llama-3-8b", batch=1, seq=512, mode="forward_backward")
    dense = graph.num_parameters - 128256 * 4096  # the input table is looked up, not multiplied
    products = sum(product_flop(graph, phase) for phase in ("forward", "backward"))
    assert products == pytest.approx(6 * dense * 512, rel=0.02)


def test_experts_cost_what_a_token_uses_and_weigh_what_exists() -> None:
    graph = workload("mixtral-8x7b", batch=1, seq=512, mode="inference")
    assert product_flop(graph, "forward") == pytest.approx(2 * 12.88e9 * 512, rel=0.05)
    assert any("share of the tokens" in sentence for sentence in graph.assumptions)


def test_a_sliding_window_costs_less_than_full_attention() -> None:
    near = workload("mistral-7b", seq=16384, mode="inference")
    full = workload("mistral-7b-v0.3", seq=16384, mode="inference")
    assert product_flop(near, "forward") < product_flop(full, "forward")


def test_longer_sequences_cost_more_than_in_proportion() -> None:
    short, long = workload("gpt2", seq=512), workload("gpt2", seq=1024)
    assert product_flop(long, "forward") > 2 * product_flop(short, "forward")


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("gpt2_large", "gpt2-large"), ("bert_large", "bert-large-uncased"), ("llama3_70b", "llama-3-70b"),
        ("ResNet-50", "resnet50"),
        ("mask-rcnn", "maskrcnn"), ("gptoss120b", "gpt-oss-120b"), ("stable-diffusion", "sd-1.5-unet"), ("neumf", "ncf-ml20m"),
    ],
)  # fmt: skip
def test_other_spellings_are_understood(alias: str, name: str) -> None:
    assert workload(alias, mode="inference").name == name


def test_an_unknown_name_says_what_is_near() -> None:
    with pytest.raises(UnknownName, match="did you mean"):
        workload("resnet5o")


@pytest.mark.parametrize(
    "fields", [{"batch": 0}, {"batch": -3}, {"batch": 1.5}, {"seq": 0}, {"input_size": 0}, {"batch": True}]
)
def test_sizes_below_one_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="whole number"):
        workload("resnet50", **fields)  # type: ignore[arg-type]


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(UnknownName, match="inplace"):
        workload("resnet50", inplaced=True)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(UnknownName, match="famil"):
        workloads("cnns")


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(UnknownName, match="llama"):
        from_shape(arch="lama", n_layers=1, hidden=8, heads=1, vocab=8, seq=8, batch=1)


def test_precisions_of_the_case_tables_are_understood() -> None:
    for spelling in ("fp32", "tf32", "fp16_amp", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"):
        assert workload("gpt2", precision=spelling).ops


def test_every_registered_builder_is_used() -> None:
    used = {entry["builder"] for entry in FACTS.values()}
    assert set(BUILDERS) - used == {"vit-shape", "t5-shape"}


def test_megatron_names_are_fused_and_hugging_face_names_are_not() -> None:
    assert any(op.name.startswith("megatron.") for op in workload("gpt3-xl", attention="eager").ops)
    assert not any(op.name.startswith("megatron.") for op in workload("gpt2", attention="eager").ops)


@pytest.mark.parametrize(
    "arch", ["gpt2", "gpt", "bert", "opt", "mpt", "llama", "qwen3-moe", "gpt-oss", "deepseek-v3", "switch", "t5", "vit"]
)
def test_every_architecture_of_the_case_tables_is_built_from_its_columns(arch: str) -> None:
    experts = (
        {"experts": 8, "experts_per_token": 2, "moe_ffn": 64}
        if arch in ("qwen3-moe", "gpt-oss", "deepseek-v3", "switch")
        else {}
    )
    graph = from_shape(
        arch=arch, n_layers=4, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, gated=False, vocab=1000, seq=64, tied=True,
        batch=2, precision="bf16", optimizer="adam", recompute="full", **experts,
    )  # fmt: skip
    assert {op.phase for op in graph.ops} == {"forward", "recompute", "backward", "optimizer"}


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 64),
    seq=st.integers(1, 300),
    name=st.sampled_from(["gpt2", "bert-base", "llama-3.2-1b", "opt-125m"]),
)
def test_any_batch_and_length_gives_a_whole_graph(batch: int, seq: int, name: str) -> None:
    graph = workload(name, batch=batch, seq=seq, attention="eager")
    assert graph.batch_size == batch
    assert graph.flop > 0


def test_building_a_workload_imports_no_torch_and_no_numpy() -> None:
    code = (
        "import sys; from traincast.catalog._workloads import workload; workload('llama-3-70b'); workload('resnet50'); "
        "print([name for name in ('torch', 'numpy', 'pandas') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.skipif(not (SHARED / "cases").exists(), reason="the case tables are not beside the repository")
def test_every_model_of_the_case_tables_is_known() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    names: set[str] = set()
    for path in sorted((SHARED / "cases").glob("*.parquet")):
        for column in ("model", "arch"):
            names.update(parquet.read_table(path, columns=[column]).column(column).to_pylist())
    # Names of stacks rather than of models.
    names -= {"gpt", "llama", "llm", "mpt", "opt", "qwen3-moe", "gpt-oss", "deepseek-v3", "switch"}
    unknown = [name for name in sorted(names) if load_facts("model").get(name) is None]
    assert unknown == []


def test_scales_of_frozen_weights_that_are_quantised_too_take_a_quarter() -> None:
    plain, double = (
        workload("llama-2-7b", seq=512, precision="bf16-pure", adapter_rank=8, frozen_dtype=dtype)
        for dtype in ("nf4", "nf4-dq")
    )
    # fp32 for 64 weights against a byte, and fp32 for 256 of these.
    assert double.role_bytes("buffer") == pytest.approx((1 / 4 + 1 / 256) * plain.role_bytes("buffer"), rel=0.01)
    assert double.role_bytes("parameter") == plain.role_bytes("parameter")


@pytest.mark.parametrize("dtype", ["fp4", "nf4-dq", "int8"])
def test_products_with_frozen_weights_run_in_the_precision_of_the_activations_both_ways(dtype: str) -> None:
    graph = workload("llama-2-7b", seq=512, precision="bf16-pure", adapter_rank=8, frozen_dtype=dtype)
    assert {op.dtype for op in graph.ops if op.kind == "matmul" and op.layer != "rotary"} == {"bf16"}
    written_out = [op for op in graph.ops if op.attrs.get("function") == "dequantize"]
    assert {op.phase for op in written_out} == {"forward", "backward"}


def test_fused_kernels_of_a_detector_take_all_images_at_once() -> None:
    plain, fused = (workload("maskrcnn", batch=8, fused=fused) for fused in (False, True))
    kernels = [sum(op.num_kernels for op in graph.ops if op.attrs.get(DYNAMIC)) for graph in (plain, fused)]
    assert kernels[1] < kernels[0] / 3


def test_images_of_a_large_batch_are_padded_further_than_those_of_a_small_one() -> None:
    sizes = [workload("maskrcnn", batch=batch).tensors for batch in (1, 4, 32)]
    pixels = [max(math.prod(t.shape) / t.shape[0] for t in found if t.name == "images") for found in sizes]
    assert pixels[0] < pixels[1] < pixels[2] == 3 * 800 * 1344
    captured = workload("maskrcnn", batch=1, one_size=True).tensors
    assert max(math.prod(t.shape) for t in captured if t.name == "images") == 3 * 800 * 1344


def test_masks_that_the_host_cuts_make_the_device_wait_and_more_so_behind_wrappers() -> None:
    plain = workload("maskrcnn", batch=2)
    wide, wrapped = (
        workload("maskrcnn", batch=2, host_masks=True, precision=precision) for precision in ("fp32", "fp16-amp")
    )
    assert plain.preparation_s == 0.0
    assert wrapped.preparation_s > wide.preparation_s > 0.0


def test_programs_of_fixed_shapes_pad_images_and_regions_to_the_most() -> None:
    varying, fixed = (workload("maskrcnn", batch=1, one_size=fixed) for fixed in (False, True))
    assert product_flop(varying, "forward") < 0.9 * product_flop(fixed, "forward")


@pytest.mark.parametrize(
    ("name", "giga_flop"), [("yolov8n", 8.9), ("yolov8x", 258.5), ("yolo11n", 6.6), ("yolo11x", 196.0)]
)
def test_a_list_of_layers_has_the_products_that_its_project_publishes(name: str, giga_flop: float) -> None:
    assert product_flop(workload(name, mode="inference"), "forward") / 1e9 == pytest.approx(giga_flop, rel=0.03)


@pytest.mark.parametrize(("name", "tokens"), [("wan2.1-t2v-14b", 21 * 30 * 52), ("cogvideox-5b", 226 + 13 * 30 * 45)])
def test_a_video_is_as_long_as_its_frames_and_pixels(name: str, tokens: int) -> None:
    graph = workload(name, mode="inference")
    assert max(int(op.attrs["q_len"]) for op in graph.ops if op.kind == "attention") == tokens
    assert any("frames of 480" in sentence for sentence in graph.assumptions)
    wider = workload(name, mode="inference", input_size="960x1664")
    assert product_flop(wider, "forward") > 4 * product_flop(graph, "forward")


def test_layers_that_share_their_modulation_have_it_once() -> None:
    shared = FACTS["flux2-klein-4b"]["config"]
    assert shared["shared_modulation"]
    graph = workload("flux2-klein-4b", mode="inference")
    assert sum("modulation" in tensor.name for tensor in graph.tensors if tensor.role == "parameter") == 4
