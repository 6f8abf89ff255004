"""Models and optimizers that were refused once."""

import copy
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from traincast.capture import capture, load_source
from traincast.capture._extras import need
from traincast.errors import CaptureFailed, MissingExtra
from traincast.spec import Graph

TEXT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 200,
    "num_key_value_heads": 2,
}  # fmt: skip


def tokens() -> torch.Tensor:
    """Places 2 to 5 stand for an image."""
    ids = torch.full((1, 16), 9)
    ids[:, 2:6] = 5
    return ids


def qwen2_vl(transformers: Any) -> tuple[Any, Any]:
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 14, "mlp_ratio": 2},
        image_token_id=5, video_token_id=6, vision_start_token_id=7, vision_end_token_id=8,
    )  # fmt: skip

    def inputs() -> dict[str, torch.Tensor]:
        ids = tokens()
        ids[:, 1], ids[:, 6] = 7, 8
        return {
            "input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone(),
            "pixel_values": torch.zeros(16, 1176), "image_grid_thw": torch.tensor([[1, 4, 4]]),
            "mm_token_type_ids": (ids == 5).int(),
        }  # fmt: skip

    return lambda: transformers.Qwen2VLForConditionalGeneration(config), inputs


def smolvlm(transformers: Any) -> tuple[Any, Any]:
    config = transformers.SmolVLMConfig(
        text_config={**TEXT, "model_type": "llama"}, image_token_id=5, scale_factor=2,
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32,
            "patch_size": 8,
        },
    )  # fmt: skip

    def inputs() -> dict[str, torch.Tensor]:
        ids = tokens()
        images = torch.ones(1, 1, 3, 32, 32)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": ids.clone(),
            "pixel_values": images,
        }

    return lambda: transformers.SmolVLMForConditionalGeneration(config), inputs


def detr(transformers: Any) -> tuple[Any, Any]:
    backbone = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )  # fmt: skip
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, use_pretrained_backbone=False, backbone=None, d_model=32,
        encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64, encoder_attention_heads=2,
        decoder_attention_heads=2, num_queries=10, num_labels=4,
    )  # fmt: skip

    def inputs() -> dict[str, Any]:
        targets = [{"class_labels": torch.tensor([1, 2]), "boxes": torch.full((2, 4), 0.4)} for _ in range(2)]
        return {"pixel_values": torch.zeros(2, 3, 64, 64), "labels": targets}

    return lambda: transformers.DetrForObjectDetection(config), inputs


@pytest.mark.parametrize("family", [qwen2_vl, smolvlm, detr])
def test_a_model_that_looks_at_its_data_is_recorded(family: Any) -> None:
    transformers = pytest.importorskip("transformers")
    build, inputs = family(transformers)
    graph = capture(build, inputs, batch_size=1)
    assert graph.num_parameters == sum(parameter.numel() for parameter in build().parameters())
    assert graph.unknown_ops() == ()


def test_boxes_are_kept_as_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's own function, of which only the compiled part decides."""

    def nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
        raise RuntimeError("Couldn't load custom C++ ops")

    home = types.ModuleType("torchvision.ops.boxes")
    home.nms = nms  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision.ops.boxes", home)

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.head(x)
            kept = sys.modules["torchvision.ops.boxes"].nms(found[:, :4], found[:, 4], 0.5)  # type: ignore[attr-defined]
            return found[kept]  # type: ignore[no-any-return]

    for density, count in ((0.5, 50), (0.2, 20)):
        graph = capture(Detector, lambda: torch.zeros(100, 8), mask_density=density, mode="inference")
        assert any(tensor.shape == (count, 5) for tensor in graph.tensors)
        assert any(f"keep {density:.0%} of the boxes" in sentence for sentence in graph.assumptions)


class Shampoo(torch.optim.Optimizer):
    """A preconditioner per side, made anew every second step: an optimizer that no list knows."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "precondition_freq": 2})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    for dim, size in enumerate(parameter.shape):
                        state[f"gram_{dim}"] = torch.eye(size)
                        state[f"root_{dim}"] = torch.eye(size)
                state["step"] += 1
                update = parameter.grad
                for dim in range(parameter.dim()):
                    flat = update.transpose(0, dim).flatten(1) if parameter.dim() > 1 else update[:, None]
                    state[f"gram_{dim}"].add_(flat @ flat.T)
                    if state["step"] % group["precondition_freq"] == 0:
                        values, vectors = torch.linalg.eigh(state[f"gram_{dim}"])
                        state[f"root_{dim}"] = vectors @ torch.diag(values.clamp(min=1e-6) ** -0.25) @ vectors.T
                    if parameter.dim() > 1:
                        update = (state[f"root_{dim}"] @ flat).reshape(update.transpose(0, dim).shape).transpose(0, dim)
                parameter.add_(update, alpha=-group["lr"])


def test_an_optimizer_that_no_list_knows_is_run() -> None:
    graph = capture(lambda: nn.Linear(32, 16), lambda: torch.zeros(4, 32), optimizer=Shampoo)
    # Two matrices for each side of the weight and of the bias.
    assert graph.role_bytes("optimizer_state") == 4 * 2 * (32 * 32 + 16 * 16 + 16 * 16)
    products = [op for op in graph.ops if op.phase == "optimizer" and op.kind == "matmul"]
    assert products
    assert any("eigh" in op.name for op in graph.ops)


def test_a_package_that_is_broken_is_the_environments_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_extra.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        CaptureFailed, match="installed but cannot be imported here: RuntimeError: operator torchvision"
    ):
        need("broken_extra", extra="timm", purpose="building a model")
    with pytest.raises(MissingExtra, match="traincast\\[timm\\]"):
        need("absent_extra", extra="timm", purpose="building a model")


def test_an_unknown_kind_of_model_says_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "lama", "hidden_size": 32}')
    with pytest.raises(
        CaptureFailed, match=r"no model_type 'lama' \(did you mean 'llama'\?\); install .* record its code"
    ):
        load_source(str(path))


class Sparse(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.tensor([[0, 1, 2], [1, 2, 3]])
        return torch.sparse.mm(torch.sparse_coo_tensor(places, torch.ones(3), (4, 4)), super().forward(x))


class Jagged(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.nested.nested_tensor([x[0], x[1][:2]], layout=torch.jagged)).values()


@pytest.mark.parametrize(
    ("kind", "x", "advice"),
    [(Sparse, torch.zeros(4, 8), "index_add"), (Jagged, torch.zeros(2, 4, 8), "pad the samples")],
)
def test_what_cannot_be_recorded_says_what_to_write_and_where(
    kind: type[nn.Linear], x: torch.Tensor, advice: str
) -> None:
    with pytest.raises(CaptureFailed, match=rf"\(at test_refusals.py:\d+\): .*{advice}"):
        capture(lambda: kind(8, 8), x)


@pytest.mark.parametrize("length", [32, 64, 80])
def test_attention_in_windows_has_the_products_of_its_real_run(length: int) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LongformerConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=128,
        attention_window=16, max_position_embeddings=130, pad_token_id=1, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    ids = torch.full((2, length), 5)
    graph = capture(lambda: transformers.LongformerForMaskedLM(config), {"input_ids": ids, "labels": ids})
    forward = [
        (op.flop or 0.0) * count
        for op, count in zip(graph.ops, graph.counts(), strict=True)
        if op.phase == "forward" and op.kind == "matmul"
    ]
    with FlopCounterMode(display=False) as counter:
        transformers.LongformerForMaskedLM(config)(input_ids=ids, labels=ids)
    assert sum(forward) == counter.get_total_flops()


def test_a_model_that_copies_its_own_layers_is_recorded() -> None:
    class Teacher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.student(x) - self.teacher(x)).square().mean()

    graph = capture(Teacher, lambda: torch.zeros(4, 8))
    assert graph.num_parameters == 2 * (72 + 16)
    assert graph.role_bytes("gradient") == 4 * (72 + 16)


def test_a_pattern_of_layers_in_a_config_is_the_models() -> None:
    pytest.importorskip("transformers")
    config = {
        "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16,
        "ssm_state_size": 16, "n_groups": 2, "vocab_size": 128,
    }  # fmt: skip
    graph = load_source(config, batch=1, seq=32)
    assert isinstance(graph, Graph)
    # Two state space layers, two perceptrons and one of attention, not the four layers of a bare configuration.
    names = [tensor.name for tensor in graph.tensors if tensor.role == "parameter"]
    assert {name.split(".")[2] for name in names if name.startswith("model.layers.")} == set("01234")
