"""Cases whose model, name or shape the catalogue does not hold."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.accuracy._batch import answer_rows
from traincast.accuracy._cases import parse_case
from traincast.accuracy._translate import translate
from traincast.accuracy._translate.workload import read_size
from traincast.resolve._shape import draw_layers

ROW: dict[str, Any] = {
    "case_id": "x", "gpu": "h100-sxm-80g", "n_gpus": 1, "family": "transformer-lm", "arch": "llm", "model": "llama-2-7b",
    "dtype": "bf16", "micro_batch": 1, "grad_accum": 1, "framework": "pytorch", "optimizer": "adamw", "act_ckpt": "none",
}  # fmt: skip


def parameters_of(**columns: Any) -> tuple[float, str]:
    question = translate(parse_case({**ROW, **columns}))
    return question.job.graph.num_parameters, " ".join(question.assumptions)


@pytest.mark.parametrize(
    ("spelling", "billions"),
    [
        ("meta-llama/Llama-2-7b-hf", 6.74), ("vicuna-7b", 6.74), ("llama31_405b", 405.9), ("Mistral-7B-Instruct-v0.2", 7.24),
        ("deepseekv3(tokendrop)", 671.0), ("bert-large-pretraining", 0.335), ("qwen2_5_72b", 72.7),
    ],
)  # fmt: skip
def test_words_about_owner_and_training_do_not_hide_a_model(spelling: str, billions: float) -> None:
    assert parameters_of(model=spelling)[0] == pytest.approx(billions * 1e9, rel=0.02)


@settings(max_examples=25, deadline=None)
@given(billions=st.floats(0.1, 1000.0))
def test_a_drawn_stack_has_about_the_parameters_asked_for(billions: float) -> None:
    layers, hidden = draw_layers(billions * 1e9, vocab=32_000)
    assert 12 * layers * hidden**2 + 2 * 32_000 * hidden == pytest.approx(billions * 1e9, rel=0.3)
    assert hidden // (128 if hidden >= 2048 else 64) % 8 == 0


def test_an_unknown_model_with_its_size_in_the_name_is_answered_and_says_so() -> None:
    count, assumed = parameters_of(model="never-heard-of-13b")
    assert count == pytest.approx(13e9, rel=0.25)
    assert "never-heard-of-13b is not known" in assumed


def test_the_column_of_parameters_counts_where_the_name_says_nothing() -> None:
    assert parameters_of(model="mystery", params=3e9)[0] == pytest.approx(3e9, rel=0.25)


def test_layers_and_width_alone_are_enough() -> None:
    count, assumed = parameters_of(model="own", arch="gpt", n_layers=24, hidden=2048)
    assert count == pytest.approx(12 * 24 * 2048**2 + 51_200 * 2048, rel=0.02)
    assert "24 layers of 2048" in assumed


def test_a_shape_in_the_name_is_read() -> None:
    assert parameters_of(model="gpt-h4096-l32", arch="gpt")[0] == pytest.approx(12 * 32 * 4096**2, rel=0.05)


def test_an_image_transformer_needs_no_vocabulary() -> None:
    count, _ = parameters_of(
        model="own-vit", arch="vit", family="transformer-enc", n_layers=24, hidden=1024, n_heads=16, seq_len=197
    )
    assert count == pytest.approx(304e6, rel=0.02)


def test_a_larger_architecture_of_a_known_kind_says_what_was_taken() -> None:
    _, assumed = parameters_of(model="resnet-of-ours", arch="resnet50", family="cnn", dtype="fp32", framework=None)
    assert "resnet-of-ours is not known; resnet50 taken" in assumed


@pytest.mark.parametrize("family", ["transformer-lm", "cnn", "recsys", None])
def test_a_name_that_says_nothing_is_refused(family: str | None) -> None:
    prediction = answer_rows([{**ROW, "model": "mystery", "arch": "mystery", "family": family}])[0]
    assert not prediction.answered
    assert "unknown model 'mystery'" in prediction.reason


@pytest.mark.parametrize(
    ("name", "size"), [("nous-hermes-13b", 13e9), ("custom 350M", 350e6), ("x-1.5b-chat", 1.5e9), ("bert", None), ("b2b", None)]
)  # fmt: skip
def test_sizes_are_read_from_names(name: str, size: float | None) -> None:
    assert read_size(name) == size


def test_an_adapter_trains_little() -> None:
    plain = translate(parse_case({**ROW, "framework": "LitGPT", "strategy": "full"})).job.graph
    frozen = translate(parse_case({**ROW, "framework": "LitGPT", "strategy": "adapter_v2"})).job.graph
    assert frozen.role_bytes("optimizer_state") < 0.01 * plain.role_bytes("optimizer_state")


@pytest.mark.parametrize(
    ("columns", "same_as"),
    [
        ({"dtype": "bfloat16"}, {"dtype": "bf16"}),
        ({"dtype": "FP8-CS"}, {"dtype": "fp8"}),
        ({"dtype": "amp"}, {"dtype": "fp16_amp"}),
        ({"attention": "flash3"}, {"attention": "flash-3"}),
        ({"attention": "cudnn_flash_te"}, {"attention": "cudnn"}),
        ({"attention": "te-flash"}, {"attention": "flash"}),
    ],
)
def test_other_words_for_a_value_mean_the_same(columns: dict[str, str], same_as: dict[str, str]) -> None:
    first, second = (translate(parse_case({**ROW, **given})).job.graph for given in (columns, same_as))
    assert first == second


@pytest.mark.parametrize(
    ("column", "allowed"), [("dtype", "bf16"), ("attention", "flash"), ("act_ckpt", "selective"), ("mode", "inference")]
)
def test_a_word_that_means_nothing_is_refused_with_what_is_allowed(column: str, allowed: str) -> None:
    prediction = answer_rows([{**ROW, column: "gibberish"}])[0]
    assert not prediction.answered
    assert "gibberish" in prediction.reason
    assert allowed in prediction.reason


@pytest.mark.parametrize("arch", ["llama4", "kimi", "nemotronh", None])
def test_a_whole_shape_is_answered_whatever_the_architecture_is_called(arch: str | None) -> None:
    columns = {"n_layers": 8, "hidden": 1024, "n_heads": 8, "vocab": 32_000, "seq_len": 512, "ffn": 4096}
    count, assumed = parameters_of(model="own", arch=arch, ffn_gated=True, **columns)
    assert count == pytest.approx(8 * (4 * 1024**2 + 3 * 1024 * 4096) + 2 * 32_000 * 1024, rel=0.02)
    assert ("the architecture" in assumed) == (arch is not None)


def test_experts_of_an_unknown_architecture_count() -> None:
    columns = {"n_layers": 4, "hidden": 512, "n_heads": 8, "vocab": 1000, "seq_len": 256, "ffn": 2048}
    dense, _ = parameters_of(model="own", arch="new-moe", ffn_gated=True, **columns)
    sparse, _ = parameters_of(
        model="own", arch="new-moe", ffn_gated=True, n_experts=8, experts_per_token=2, moe_ffn=2048, **columns
    )
    assert sparse > 4 * dense
