"""Small real models of many families: every step is complete, folded to the same step, and known in every op."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from capture.replay import peak_bytes
from traincast.capture import capture, fold

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

TINY = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def tokens(batch: int = 2, length: int = 16) -> torch.Tensor:
    return torch.arange(batch * length).reshape(batch, length) % 90


def language(model: str, config: str, **fields: Any) -> tuple[Callable[[], nn.Module], dict[str, Any]]:
    parsed = getattr(transformers, config)(**{**TINY, **fields})
    parsed.use_cache = False
    return lambda: getattr(transformers, model)(parsed), {"input_ids": tokens(), "labels": tokens()}


def vision(model: str, config: str, **fields: Any) -> tuple[Callable[[], nn.Module], dict[str, Any]]:
    parsed = getattr(transformers, config)(**fields)
    inputs = {"pixel_values": torch.zeros(2, 3, 32, 32), "labels": torch.zeros(2, dtype=torch.int64)}
    return lambda: getattr(transformers, model)(parsed), inputs


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 8), (8, 16), (16, 32)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in ((32, 16), (32, 8)))
        self.norm, self.head = nn.GroupNorm(4, 32), nn.Conv2d(16, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, layer in enumerate(self.down):
            x = F.silu(layer(x))
            if number < 2:
                kept.append(x)
                x = F.avg_pool2d(x, 2)
        x = self.norm(x)
        for layer in self.up:
            x = torch.cat([layer(x), kept.pop()], 1)
        return self.head(x)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, 16, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16))
        self.top = nn.Sequential(nn.Linear(16 + 36, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        low = self.bottom(dense)
        features = torch.stack([low, *(table(sparse[:, number]) for number, table in enumerate(self.tables))], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        rows, columns = torch.tril_indices(9, 9, -1)
        return F.binary_cross_entropy_with_logits(
            self.top(torch.cat([low, products[:, rows, columns]], 1)), torch.ones(dense.shape[0], 1)
        )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(100, 16), nn.LSTM(16, 24, 2, dropout=0.2), nn.Linear(24, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


def torch_model(model: Callable[[], nn.Module], *inputs: torch.Tensor) -> tuple[Callable[[], nn.Module], Any]:
    return model, inputs


FAMILIES: dict[str, Callable[[], tuple[Callable[[], nn.Module], Any]]] = {
    "mlp": lambda: torch_model(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.zeros(4, 8)),
    "unet": lambda: torch_model(UNet, torch.zeros(2, 3, 16, 16)),
    "dlrm": lambda: torch_model(Recommender, torch.zeros(4, 13), torch.zeros(4, 8, 3, dtype=torch.int64)),
    "lstm": lambda: torch_model(Recurrent, tokens(7, 3)),
    "resnet": lambda: vision(
        "ResNetForImageClassification", "ResNetConfig", embedding_size=16, hidden_sizes=[16, 32], depths=[3, 4],
        layer_type="basic",
    ),
    "mobilenet": lambda: vision("MobileNetV2ForImageClassification", "MobileNetV2Config", image_size=32),
    "convnext": lambda: vision(
        "ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[16, 32], depths=[3, 3], num_stages=2
    ),
    "vit": lambda: vision(
        "ViTForImageClassification", "ViTConfig", hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, image_size=32, patch_size=8,
    ),
    "swin": lambda: vision(
        "SwinForImageClassification", "SwinConfig", image_size=32, patch_size=2, embed_dim=16, depths=[2, 4], num_heads=[2, 4],
        window_size=4,
    ),
    "gpt2": lambda: language("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=4, n_head=4, n_positions=64),
    "bert": lambda: language("BertForMaskedLM", "BertConfig"),
    "llama": lambda: language("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2),
    "gemma2": lambda: language("Gemma2ForCausalLM", "Gemma2Config", num_key_value_heads=2, head_dim=8),
    "mixtral": lambda: language("MixtralForCausalLM", "MixtralConfig", num_key_value_heads=2, num_local_experts=4),
    "t5": lambda: language(
        "T5ForConditionalGeneration", "T5Config", d_model=32, d_ff=64, d_kv=8, num_layers=4, num_heads=4,
        decoder_start_token_id=0,
    ),
    "switch": lambda: language(
        "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", d_model=32, d_ff=64, d_kv=8, num_layers=2,
        num_heads=4, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, decoder_start_token_id=0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_the_family_is_complete_and_folds_to_itself(family: str) -> None:
    build, inputs = FAMILIES[family]()
    flat = capture(build, inputs, name=family, folded=False)
    assert {op.phase for op in flat.ops} == {"forward", "backward", "optimizer"}
    assert flat.unknown_ops() == ()
    real = build()
    assert flat.num_parameters == sum(parameter.numel() for parameter in real.parameters())
    gradients = sum(t.numel for t in flat.tensors if t.role == "gradient")
    trained = sum(t.numel for t in flat.tensors if t.role == "optimizer_state") // 2
    assert gradients == trained <= flat.num_parameters
    known = {name for name, _ in real.named_modules()} | {""}
    assert {op.layer for op in flat.ops} <= known
    products = {
        phase: {op.layer for op in flat.ops if op.phase == phase and op.kind in ("matmul", "conv", "attention")}
        for phase in ("forward", "backward")
    }
    assert products["backward"] <= products["forward"]

    folded = fold(flat)
    assert folded.flop == pytest.approx(flat.flop, rel=1e-12)
    assert folded.num_bytes == pytest.approx(flat.num_bytes, rel=1e-12)
    assert folded.num_parameters == flat.num_parameters
    assert peak_bytes(folded) == pytest.approx(peak_bytes(flat), rel=0.01)
    assert peak_bytes(folded) >= flat.role_bytes("parameter") + flat.role_bytes("gradient")


def test_a_causal_language_model_is_counted_by_hand() -> None:
    build, inputs = FAMILIES["llama"]()
    graph = capture(build, inputs, name="llama")
    rows, width, kv, inner, vocabulary, layers = 2 * 16, 32, 16, 64, 100, 4
    products = (
        2 * rows * layers * (2 * width * width + 2 * width * kv + 3 * width * inner) + 2 * rows * width * vocabulary
    )
    attention = layers * 4 * 2 * 4 * 16 * 16 * 8 / 2
    counted = zip(graph.ops, graph.counts(), strict=True)
    forward = sum(
        (op.flop or 0) * count for op, count in counted if op.phase == "forward" and op.kind in ("matmul", "attention")
    )
    # The rotary table is one more tiny product of (64 x 1) by (1 x 16).
    assert forward - products - attention == pytest.approx(0, abs=2 * 64 * 16)
    assert [op.attrs["causal"] for op in graph.ops if op.kind == "attention"] == [True, True]


def test_an_expert_of_a_mixture_sees_its_share_of_the_tokens() -> None:
    build, inputs = FAMILIES["mixtral"]()
    graph = capture(build, inputs, name="mixtral", folded=False)
    experts = [op for op in graph.ops if op.name == "aten._grouped_mm" and op.phase == "forward"]
    assert [op.flop for op in experts[:2]] == [2 * 64 * 32 * 128, 2 * 64 * 64 * 32]
    assert experts[0].attrs["batch"] == 4


@pytest.mark.filterwarnings("ignore:Module is None")
@pytest.mark.parametrize("holds_output", [True, False])
@pytest.mark.parametrize("family", ["mlp", "unet", "resnet", "bert"])
def test_memory_agrees_with_the_tracker_of_pytorch(family: str, holds_output: bool) -> None:
    """An independent oracle: torch's own MemTracker on the same step, under its own fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    make, inputs = FAMILIES[family]()

    def build() -> nn.Module:
        model = make()
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                # Dropout is one kernel on an accelerator and three on a CPU.
                part.p = 0.0
        return model

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = build()
        named = inputs if isinstance(inputs, dict) else {}
        fakes = [mode.from_tensor(value) for value in (named.values() if named else inputs)]
        tracker = MemTracker()
        tracker.track_external(model, *fakes)
        with tracker:
            output = model(**dict(zip(named, fakes, strict=True))) if named else model(*fakes)
            loss = output.loss if hasattr(output, "loss") else output.mean()
            if not holds_output:
                del output
            loss.backward()
        snapshot = tracker.get_tracker_snapshot("peak").values()
        peak = max(amount for part in snapshot for key, amount in part.items() if str(key) == "Total")
    graph = capture(build, inputs, mode="forward_backward", folded=False, holds_output=holds_output)
    assert peak_bytes(graph) == pytest.approx(peak, rel=0.02)
