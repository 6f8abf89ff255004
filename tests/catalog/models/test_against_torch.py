"""The builders against what PyTorch and Hugging Face really run: FLOP, bytes, kernels, saved activations, weights."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traincast.catalog._models.encoder_decoder import build_t5
from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import Recipe, Sizes
from traincast.catalog._models.vision_transformers import build_vit
from traincast.catalog._workloads import from_shape, workload
from traincast.spec._graph import Graph

torch = pytest.importorskip("torch", reason="PyTorch is the ground truth here")
transformers = pytest.importorskip("transformers", reason="Hugging Face models are the ground truth here")

sys.path.insert(0, str(Path(__file__).parent))
from recorder import Record, product_flop, record_step, saved_bytes  # noqa: E402

BATCH, SEQ, VOCAB, LAYERS = 2, 64, 500, 3
EAGER = Recipe(mode="forward_backward", attention="eager", dropout=0.0)
SHAPE: dict[str, Any] = {
    "n_layers": LAYERS, "hidden": 64, "heads": 4, "vocab": VOCAB, "seq": SEQ, "batch": BATCH,
    "mode": "forward_backward", "attention": "eager", "dropout": 0.0,
}  # fmt: skip


def token_ids() -> Any:
    return torch.zeros(BATCH, SEQ, dtype=torch.long)


def language_loss(model: Any) -> Any:
    return model(input_ids=token_ids(), labels=token_ids(), position_ids=torch.arange(SEQ)[None]).loss


def gpt2(*, checkpointed: bool = False) -> Any:
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=64, n_head=4, vocab_size=VOCAB, n_positions=SEQ, attn_implementation="eager", use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    if checkpointed:
        if hasattr(model, "activation_checkpointing_enable"):
            model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def bert() -> Any:
    return transformers.BertForPreTraining(
        transformers.BertConfig(
            num_hidden_layers=LAYERS, hidden_size=64, num_attention_heads=4, intermediate_size=256, vocab_size=VOCAB,
            max_position_embeddings=SEQ, attn_implementation="eager", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def bert_loss(model: Any) -> Any:
    return model(
        input_ids=token_ids(), labels=token_ids(), next_sentence_label=torch.zeros(BATCH, dtype=torch.long)
    ).loss


def llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=LAYERS, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=160,
            vocab_size=VOCAB, max_position_embeddings=SEQ, attn_implementation="eager", use_cache=False,
            tie_word_embeddings=False,
        )
    )  # fmt: skip


def t5() -> Any:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCAB, d_model=64, d_kv=16, d_ff=256, num_layers=LAYERS, num_decoder_layers=LAYERS, num_heads=4,
            dropout_rate=0.0, use_cache=False, decoder_start_token_id=0, pad_token_id=0, attn_implementation="eager",
        )
    )  # fmt: skip


def t5_loss(model: Any) -> Any:
    return model(input_ids=token_ids(), labels=torch.zeros(BATCH, 32, dtype=torch.long)).loss


def t5_graph() -> Graph:
    config = {
        "hidden": 64,
        "head_dim": 16,
        "ffn": 256,
        "n_layers": LAYERS,
        "heads": 4,
        "vocab": VOCAB,
        "seq": SEQ,
        "target_seq": 32,
    }
    return build_t5(Net(EAGER, name="t5", source="test", batch=BATCH), config, Sizes(batch=BATCH))


class Residual(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(outputs)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(outputs)
        self.relu = torch.nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            projection = torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = torch.nn.Sequential(projection, torch.nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


def resnet18() -> Any:
    layers: list[Any] = [
        torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(inplace=True),
        torch.nn.MaxPool2d(3, 2, 1),
    ]
    width = 64
    for stage, channels in enumerate((64, 128, 256, 512)):
        for block in range(2):
            layers.append(Residual(width, channels, 2 if stage and not block else 1))
            width = channels
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(512, 1000))


def image_loss(model: Any) -> Any:
    return torch.nn.functional.cross_entropy(
        model(torch.empty(BATCH, 3, 224, 224)), torch.zeros(BATCH, dtype=torch.long)
    )


def vit_graph() -> Graph:
    config = {
        "hidden": 64, "n_layers": LAYERS, "heads": 4, "patch": 8, "image_size": 64, "num_classes": 10, "merged_qkv": False,
    }  # fmt: skip
    return build_vit(Net(EAGER, name="vit", source="test", batch=BATCH), config, Sizes(batch=BATCH))


def vit() -> Any:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=64, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=256, image_size=64, patch_size=8,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager", num_labels=10,
        )
    )  # fmt: skip


def vit_loss(model: Any) -> Any:
    return model(pixel_values=torch.empty(BATCH, 3, 64, 64), labels=torch.zeros(BATCH, dtype=torch.long)).loss


Pair = tuple[Callable[[], Any], Callable[[Any], Any], Callable[[], Graph]]
PAIRS: dict[str, Pair] = {
    "gpt2": (gpt2, language_loss, lambda: from_shape(arch="gpt2", style={"mask": "add"}, **SHAPE)),
    "gpt2 with checkpoints": (
        lambda: gpt2(checkpointed=True),
        language_loss,
        lambda: from_shape(arch="gpt2", style={"mask": "add"}, recompute="full", **SHAPE),
    ),
    "bert": (bert, bert_loss, lambda: from_shape(arch="bert", style={"mask": ""}, **SHAPE)),
    "llama": (llama, language_loss, lambda: from_shape(arch="llama", kv_heads=2, ffn=160, **SHAPE)),
    "t5": (t5, t5_loss, t5_graph),
    "vit": (vit, vit_loss, vit_graph),
    "resnet18": (resnet18, image_loss, lambda: workload("resnet18", batch=BATCH, mode="forward_backward")),
}


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[Record, Graph]:
    build, run, make = PAIRS[request.param]
    patch = pytest.MonkeyPatch()
    # Truncated normal draws look at values, which fake tensors do not have.
    patch.setattr(transformers.ViTPreTrainedModel, "_init_weights", lambda self, module: None)
    try:
        return record_step(build, run), make()
    finally:
        patch.undo()


def test_weights_are_those_of_the_real_model(pair: tuple[Record, Graph]) -> None:
    record, graph = pair
    assert graph.num_parameters == record.num_parameters


def test_products_cost_exactly_what_pytorch_counts(pair: tuple[Record, Graph]) -> None:
    record, graph = pair
    assert product_flop(graph) == pytest.approx(record.flop, rel=1e-3)


def test_the_step_moves_the_bytes_pytorch_moves(pair: tuple[Record, Graph]) -> None:
    record, graph = pair
    assert graph.num_bytes == pytest.approx(record.num_bytes, rel=0.1)


def test_the_step_launches_the_kernels_pytorch_launches(pair: tuple[Record, Graph]) -> None:
    record, graph = pair
    assert sum(graph.counts()) == pytest.approx(record.num_kernels, rel=0.12)


def test_the_forward_pass_keeps_what_autograd_keeps(pair: tuple[Record, Graph]) -> None:
    record, graph = pair
    inputs = sum(tensor.num_bytes for tensor in graph.tensors if tensor.role in ("input", "buffer"))
    assert saved_bytes(graph) <= record.saved_bytes * 1.03
    assert saved_bytes(graph) + inputs >= record.saved_bytes * 0.97
