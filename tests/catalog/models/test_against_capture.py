"""Two independent ways to the same step: built from a shape, and recorded from the real model, optimizer and memory included."""

from typing import Any

import pytest

from traincast.catalog._workloads import from_shape
from traincast.simulate._memory import replay_memory
from traincast.spec import Stage
from traincast.spec._graph import Graph

torch = pytest.importorskip("torch", reason="recording needs PyTorch")
transformers = pytest.importorskip("transformers", reason="the recorded models are Hugging Face's")

BATCH, SEQ, VOCAB, LAYERS, HIDDEN = 4, 128, 1000, 3, 128
SHAPE: dict[str, Any] = {"n_layers": LAYERS, "hidden": HIDDEN, "heads": 4, "vocab": VOCAB, "seq": SEQ, "batch": BATCH}


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=LAYERS, n_embd=HIDDEN, n_head=4, vocab_size=VOCAB, n_positions=SEQ, attn_implementation="eager",
            use_cache=False, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, intermediate_size=320,
            vocab_size=VOCAB, max_position_embeddings=SEQ, use_cache=False, tie_word_embeddings=False,
        )
    )  # fmt: skip


def inputs() -> dict[str, Any]:
    ids = torch.zeros(BATCH, SEQ, dtype=torch.long)
    return {"input_ids": ids, "labels": ids, "position_ids": torch.arange(SEQ)[None]}


def record(build: Any, precision: str) -> Graph:
    from traincast.capture import capture

    return capture(build, inputs, batch_size=BATCH, precision=precision, optimizer="adamw", holds_output=False)


PAIRS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "gpt2": (gpt2, "fp32", {"arch": "gpt2", "attention": "eager", "style": {"mask": "add"}}),
    "gpt2 under autocast": (
        gpt2,
        "bf16-amp",
        {"arch": "gpt2", "attention": "eager", "style": {"mask": "add"}, "precision": "bf16-amp"},
    ),
    "llama in bf16": (llama, "bf16", {"arch": "llama", "kv_heads": 2, "ffn": 320, "precision": "bf16"}),
    "llama all in bf16": (llama, "bf16-pure", {"arch": "llama", "kv_heads": 2, "ffn": 320, "precision": "bf16-pure"}),
}


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[Graph, Graph]:
    build, precision, fields = PAIRS[request.param]
    return record(build, precision), from_shape(**SHAPE, **fields)


def peak_bytes(graph: Graph) -> float:
    stage = Stage(tasks=graph.ops, repeats=graph.repeats, tensors=graph.tensors)
    return replay_memory(stage, capacity_bytes=1e15).peak_bytes


def kernels(graph: Graph) -> int:
    return sum(op.num_kernels * count for op, count in zip(graph.ops, graph.counts(), strict=True))


def calls(graph: Graph) -> int:
    return sum(op.num_calls * count for op, count in zip(graph.ops, graph.counts(), strict=True))


def test_both_have_the_same_weights_and_arithmetic(pair: tuple[Graph, Graph]) -> None:
    recorded, built = pair
    assert built.num_parameters == recorded.num_parameters
    assert built.flop == pytest.approx(recorded.flop, rel=0.01)


def test_both_move_the_same_bytes(pair: tuple[Graph, Graph]) -> None:
    recorded, built = pair
    assert built.num_bytes == pytest.approx(recorded.num_bytes, rel=0.05)


def test_both_launch_the_same_kernels_and_calls(pair: tuple[Graph, Graph]) -> None:
    recorded, built = pair
    assert kernels(built) == pytest.approx(kernels(recorded), rel=0.1)
    assert calls(built) == pytest.approx(calls(recorded), rel=0.15)


def test_both_need_the_same_peak_memory(pair: tuple[Graph, Graph]) -> None:
    recorded, built = pair
    assert peak_bytes(built) == pytest.approx(peak_bytes(recorded), rel=0.03)
