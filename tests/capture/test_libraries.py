"""Kernels of libraries that need CUDA. None of them can be installed here, so stand-ins of the same qualified names and
signatures take their place; like the originals they cannot run on a CPU."""
# ruff: noqa: N803

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from traincast.capture import capture
from traincast.capture._libraries import evaluate, operator_rules
from traincast.catalog import kernel_rules
from traincast.errors import CaptureFailed
from traincast.spec import Graph

B, L, D, N, H = 2, 16, 32, 8, 4


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("this kernel needs CUDA")


@pytest.fixture
def library() -> Iterator[Callable[..., types.ModuleType]]:
    made: list[str] = []

    def make(name: str, **content: Any) -> types.ModuleType:
        module = types.ModuleType(name)
        for key, item in content.items():
            if isinstance(item, type):
                item.__module__ = name
            setattr(module, key, item)
        made.append(name)
        sys.modules[name] = module
        return module

    yield make
    for name in made:
        del sys.modules[name]


def selective_scan_fn(u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, delta_bias: Any = None,
                      delta_softplus: bool = False, return_last_state: bool = False) -> Any:  # fmt: skip
    return refuse()


def causal_conv1d_fn(x: Any, weight: Any, bias: Any = None, seq_idx: Any = None, initial_states: Any = None,
                     return_final_states: bool = False, final_states_out: Any = None, activation: Any = None) -> Any:  # fmt: skip
    return refuse()


def chunk_gla(q: Any, k: Any, v: Any, g: Any, scale: Any = None, initial_state: Any = None,
              output_final_state: bool = False) -> Any:  # fmt: skip
    return refuse()


def memory_efficient_attention(query: Any, key: Any, value: Any, attn_bias: Any = None, p: float = 0.0, scale: Any = None,
                               *, op: Any = None, output_dtype: Any = None) -> Any:  # fmt: skip
    return refuse()


class Mamba(nn.Module):
    """One mixer as the library's own module calls its kernels, imported by name."""

    def __init__(self, scan: Any, conv: Any) -> None:
        super().__init__()
        self.scan, self.conv = scan, conv
        self.proj, self.weight = nn.Linear(D, D), nn.Parameter(torch.zeros(D, 4))
        self.A, self.mix = nn.Parameter(torch.zeros(D, N)), nn.Linear(D, 2 * N)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = sys.modules["my_model"].causal_conv1d_fn(self.proj(x).mT, self.weight, None, activation="silu")  # type: ignore[attr-defined]
        left, right = self.mix(hidden.mT).mT.chunk(2, 1)
        return sys.modules["my_model"].selective_scan_fn(hidden, hidden, self.A, left, right)  # type: ignore[attr-defined,no-any-return]


def kernels(graph: Graph) -> dict[tuple[str, str], float]:
    return {
        (str(op.attrs.get("function")), op.phase): op.flop or 0.0
        for op in graph.ops if op.name.startswith("traincast_kernels")
    }  # fmt: skip


def test_a_scan_and_a_convolution_that_were_imported_by_name_are_their_kernels(library: Any) -> None:
    scans = library("mamba_ssm.ops.selective_scan_interface", selective_scan_fn=selective_scan_fn)
    convs = library("causal_conv1d.causal_conv1d_interface", causal_conv1d_fn=causal_conv1d_fn)
    library("my_model", selective_scan_fn=scans.selective_scan_fn, causal_conv1d_fn=convs.causal_conv1d_fn)
    graph = capture(lambda: Mamba(None, None), lambda: torch.zeros(B, L, D))
    assert kernels(graph) == {
        ("causal-conv1d", "forward"): 2.0 * B * L * D * 4, ("causal-conv1d", "backward"): 4.0 * B * L * D * 4,
        ("mamba-ssm", "forward"): 9.0 * B * L * D * N, ("mamba-ssm", "backward"): 18.0 * B * L * D * N,
    }  # fmt: skip
    assert any("selective_scan_fn is counted as the kernel of mamba-ssm" in text for text in graph.assumptions)
    assert sys.modules["my_model"].selective_scan_fn is selective_scan_fn  # type: ignore[attr-defined]
    with pytest.raises(CaptureFailed, match="needs CUDA"):
        capture(lambda: Mamba(None, None), lambda: torch.zeros(B, L, D), kernels="plain")


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, H, D // H)).unbind(-3)
        return self.attend(query, key, value)

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        return sys.modules["xformers.ops"].memory_efficient_attention(query, key, value)  # type: ignore[attr-defined]


def test_attention_of_a_library_is_fused_attention(library: Any) -> None:
    home = library("xformers.ops.fmha", memory_efficient_attention=memory_efficient_attention)
    library("xformers.ops", memory_efficient_attention=home.memory_efficient_attention)
    graph = capture(Attending, lambda: torch.zeros(B, L, D))
    (attention,) = [op for op in graph.ops if op.kind == "attention" and op.phase == "forward"]
    assert attention.flop == 4.0 * B * L * L * D
    assert not attention.attrs["causal"]


class LinearAttending(Attending):
    def attend(self, query: Any, key: Any, value: Any) -> Any:
        return sys.modules["fla.ops.gla.chunk"].chunk_gla(query, key, value, key)[0]  # type: ignore[attr-defined]


def test_linear_attention_returns_its_output_and_no_state(library: Any) -> None:
    library("fla.ops.gla.chunk", chunk_gla=chunk_gla)
    graph = capture(LinearAttending, lambda: torch.zeros(B, L, D))
    width = D // H
    assert kernels(graph)["flash-linear-attention", "forward"] == B * L * D * (4 * width + 128 * 2)


def standing_in(name: str, base: type = nn.Module) -> Any:
    """A class of a library: weights as the original has them, and a forward that needs the device."""

    class Module(base):  # type: ignore[misc]
        def __init__(self, **weights: Any) -> None:
            super().__init__()
            for key, shape in weights.items():
                if isinstance(shape, tuple):
                    self.register_parameter(key, nn.Parameter(torch.zeros(shape)))
                else:
                    setattr(self, key, shape)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return refuse()

    Module.__name__ = Module.__qualname__ = name
    return Module


MODULES: dict[str, tuple[str, str, dict[str, Any], float]] = {
    "linear": ("transformer_engine.pytorch.module.linear", "Linear", {"weight": (D, D), "bias": (D,)}, 2.0 * B * L * D * D),
    "norm_linear": (
        "transformer_engine.pytorch.module.layernorm_linear", "LayerNormLinear",
        {"layer_norm_weight": (D,), "layer_norm_bias": (D,), "weight": (D, D), "bias": (D,)}, 2.0 * B * L * D * D,
    ),
    "norm_mlp": (
        "transformer_engine.pytorch.module.layernorm_mlp", "LayerNormMLP",
        {"layer_norm_weight": (D,), "fc1_weight": (8 * D, D), "fc2_weight": (D, 4 * D)}, 2.0 * B * L * D * 12 * D,
    ),
    "apex_norm": ("apex.normalization.fused_layer_norm", "FusedLayerNorm", {"weight": (D,), "bias": (D,)}, 0.0),
    "liger_norm": ("liger_kernel.transformers.rms_norm", "LigerRMSNorm", {"weight": (D,)}, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODULES)
def test_a_module_of_a_library_is_recorded_by_its_weights(library: Any, kind: str) -> None:
    home, name, weights, flop = MODULES[kind]
    made = standing_in(name)
    library(home, **{name: made})
    graph = capture(lambda: made(**weights), lambda: torch.zeros(B, L, D))
    assert graph.num_parameters == sum(torch.Size(shape).numel() for shape in weights.values())
    assert sum(op.flop or 0.0 for op in graph.ops if op.kind == "matmul" and op.phase == "forward") == flop
    assert graph.role_bytes("gradient") == graph.role_bytes("parameter")
    assert any(f"{name} is counted as the kernel of" in text for text in graph.assumptions)


def test_a_weight_in_four_bits_is_multiplied_as_it_is_stored(library: Any) -> None:
    made = standing_in("Linear4bit", nn.Linear)
    library("bitsandbytes.nn.modules", Linear4bit=made)

    def build() -> nn.Module:
        layer = nn.Linear.__new__(made)
        nn.Module.__init__(layer)
        layer.in_features, layer.out_features, layer.bias = D, 2 * D, None
        layer.weight = nn.Parameter(torch.zeros(D * D, 1, dtype=torch.uint8), requires_grad=False)
        return nn.Sequential(nn.Linear(D, D), layer)

    graph = capture(build, lambda: torch.zeros(B, L, D))
    assert kernels(graph)["bitsandbytes", "forward"] == 2.0 * B * L * D * 2 * D
    assert {t.dtype for t in graph.tensors if t.shape == (D * D, 1)} == {"uint8"}


def test_scores_of_a_fused_loss_are_never_written(library: Any) -> None:
    vocabulary = 500
    made = standing_in("LigerFusedLinearCrossEntropyLoss")
    library("liger_kernel.transformers.fused_linear_cross_entropy", LigerFusedLinearCrossEntropyLoss=made)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.loss = nn.Linear(D, D), nn.Linear(D, vocabulary, bias=False), made()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            target = torch.zeros(B * L, dtype=torch.long)
            return self.loss(self.head.weight, self.body(x).flatten(0, 1), target)  # type: ignore[no-any-return]

    graph = capture(Head, lambda: torch.zeros(B, L, D))
    assert kernels(graph)["Liger", "forward"] == 2.0 * B * L * D * vocabulary
    assert not any(tensor.shape == (B * L, vocabulary) for tensor in graph.tensors)


def test_an_optimizer_of_a_library_is_fused_and_has_its_state(library: Any) -> None:
    class FusedAdam(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float = 1e-3) -> None:
            super().__init__(params, {"lr": lr})

        def step(self, closure: Any = None) -> Any:
            return refuse()

    library("apex.optimizers.fused_adam", FusedAdam=FusedAdam)
    graph = capture(lambda: nn.Linear(D, D), lambda: torch.zeros(B, D), optimizer=FusedAdam)
    (update,) = [op for op in graph.ops if op.kind == "optimizer"]
    assert graph.role_bytes("optimizer_state") == 2 * graph.role_bytes("parameter")
    assert (update.attrs["implementation"], update.num_kernels) == ("fused", 1)


def test_a_triton_function_registered_as_an_operation_takes_the_rule_of_its_name() -> None:
    """What the decorator of Triton registers is an operation of PyTorch with a fake implementation."""

    @torch.library.custom_op("mamba_ssm::selective_scan_fwd", mutates_args=())
    def scan(u: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
        return refuse()  # type: ignore[no-any-return]

    scan.register_fake(lambda u, A: torch.empty_like(u))

    class Scanning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.A = nn.Parameter(torch.zeros(D, N))

        def forward(self, u: torch.Tensor) -> torch.Tensor:
            return torch.ops.mamba_ssm.selective_scan_fwd(u, self.A)  # type: ignore[no-any-return]

    graph = capture(Scanning, lambda: torch.zeros(B, D, L), mode="inference")
    assert [(op.name, op.flop) for op in graph.ops] == [("mamba_ssm.selective_scan_fwd", 9.0 * B * D * L * N)]


def test_every_rule_of_the_document_can_be_read() -> None:
    rules = kernel_rules()
    assert {rule["library"] for kind in ("functions", "modules") for rule in rules[kind]} >= {
        "mamba-ssm", "causal-conv1d", "flash-linear-attention", "xformers", "Liger", "Apex", "Transformer Engine", "bitsandbytes",
    }  # fmt: skip
    assert all("flop" in rule or "form" in rule for rule in rules["functions"])
    assert set(operator_rules()) == {rule["name"] for rule in rules["operators"]}
    assert (
        evaluate("2 * numel(x) / size(x, -1) + where(causal, 0.5, 1)", {"x": torch.zeros(3, 4), "causal": True}) == 6.5
    )
    with pytest.raises(CaptureFailed, match="which the call does not have"):
        evaluate("__import__('os')", {})
