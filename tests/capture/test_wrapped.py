"""Modules that a library wrapped: replicas, weights spread over ranks, quantised weights; and steps of several parts."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from traincast.capture import capture
from traincast.spec import Graph

BATCH, WIDTH, HIDDEN = 8, 64, 128
PARAMETERS = 2 * WIDTH * HIDDEN + WIDTH + HIDDEN
PRODUCTS = 2.0 * BATCH * WIDTH * HIDDEN * 5
"""Two products forward, three backward: the data need no gradient."""


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))


def data() -> torch.Tensor:
    return torch.zeros(BATCH, WIDTH)


def products(graph: Graph) -> float:
    pairs = zip(graph.ops, graph.counts(), strict=True)
    return sum((op.flop or 0.0) * count for op, count in pairs if op.kind == "matmul")


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    distributed.destroy_process_group()


def sharded(mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@pytest.mark.parametrize("built", [False, True])
def test_a_fully_sharded_model_is_recorded_whole_and_said(mesh: Any, built: bool) -> None:
    graph = capture((lambda: sharded(mesh)) if built else sharded(mesh), data)
    assert graph.num_parameters == PARAMETERS
    assert graph.role_bytes("optimizer_state") == 8 * PARAMETERS
    assert products(graph) == PRODUCTS
    assert any("spread over ranks (dp 4 (shard))" in sentence for sentence in graph.assumptions)


def test_a_sharded_model_still_exchanges_its_weights_after_a_recording(mesh: Any) -> None:
    model = sharded(mesh)
    before = [dict(part._forward_pre_hooks) for part in model.modules()]
    capture(model, data)
    assert [dict(part._forward_pre_hooks) for part in model.modules()] == before
    assert type(next(model.parameters())).__name__ == "DTensor"


def test_layers_split_by_columns_and_rows_are_recorded_whole(mesh: Any) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    graph = capture(parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), data)
    assert (graph.num_parameters, products(graph)) == (PARAMETERS, PRODUCTS)


def test_replicas_are_recorded_as_their_module(mesh: Any) -> None:
    graph = capture(nn.parallel.DistributedDataParallel(mlp()), data)
    assert (graph.num_parameters, products(graph), graph.unknown_ops()) == (PARAMETERS, PRODUCTS, ())


class Quantised(torch.Tensor):
    """A weight in eight bits with a scale per row, wrapped as torchao wraps its own."""

    qdata: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, qdata: torch.Tensor, scale: torch.Tensor) -> "Quantised":
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=scale.dtype)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, qdata: torch.Tensor, scale: torch.Tensor) -> None:
        self.qdata, self.scale = qdata, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["qdata", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> "Quantised":
        return Quantised(inner["qdata"], inner["scale"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            data, weight, bias = (*args, None)[:3]
            return data @ weight.qdata.to(data.dtype).t() * weight.scale.t() + bias
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Quantised(args[0].qdata, args[0].scale)
        raise NotImplementedError(f"{func}")


def wrapped_by_hand() -> nn.Module:
    model = mlp()
    for layer in (model[0], model[2]):
        stored = Quantised(layer.weight.data.to(torch.int8), torch.ones(layer.out_features, 1))
        layer.weight = nn.Parameter(stored, requires_grad=False)
    return model


def wrapped_by_torchao() -> nn.Module:
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model = mlp()
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    return model


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("wrapped", [wrapped_by_hand, wrapped_by_torchao])
def test_quantised_weights_are_as_large_as_they_are_stored(wrapped: Any, built: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = capture(wrapped if built else wrapped(), data, mode="inference")
    assert graph.num_parameters == PARAMETERS
    weights = [tensor for tensor in graph.tensors if tensor.role == "parameter" and len(tensor.shape) == 2]
    assert {tensor.dtype for tensor in weights} == {"int8"}
    assert products(graph) == 2 * 2.0 * BATCH * WIDTH * HIDDEN


class _PerSample(nn.Module):
    """Gradients of single samples, as differential privacy takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def loss(parameters: Any, one: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(self.net, parameters, (one[None],)).square().mean()

        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(self.net.named_parameters()), x)
        return sum(gradient.square().mean() for gradient in per_sample.values())


class _Tangent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(self.net, (x,), (x,))[1]


@pytest.mark.parametrize("kind", [_PerSample, _Tangent])
def test_transformations_of_functions_are_recorded_as_they_run(kind: Any) -> None:
    graph = capture(kind, data)
    assert (graph.num_parameters, graph.unknown_ops()) == (PARAMETERS, ())
    assert products(graph) > PRODUCTS


class _Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = mlp(), nn.Linear(WIDTH, 1)

    def forward(self, real: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.generator(noise)
        critic_loss = self.critic(made.detach()).mean() - self.critic(real).mean()
        return critic_loss, -self.critic(made).mean()


def test_two_players_are_updated_by_their_own_optimizers() -> None:
    model = _Gan()
    optimizers = [
        torch.optim.Adam(model.generator.parameters()), torch.optim.SGD(model.critic.parameters(), lr=0.1, momentum=0.9),
    ]  # fmt: skip
    graph = capture(model, (data(), data()), optimizer=optimizers)
    assert graph.role_bytes("optimizer_state") == 4 * (2 * PARAMETERS + WIDTH + 1)
    assert "the model returned 2 losses: their sum is taken" in graph.assumptions


class _Losses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.shared(x)
        return {"loss_first": self.first(hidden).mean(), "loss_second": self.second(hidden).mean()}


def test_every_loss_trains_its_own_head() -> None:
    graph = capture(_Losses(), data())
    assert graph.role_bytes("gradient") == graph.role_bytes("parameter")


def test_a_scaled_loss_is_unscaled_before_the_update() -> None:
    graph = capture(mlp(), data(), precision="fp16-amp")
    assert [op.name for op in graph.ops if op.phase == "optimizer"] == ["unscale_gradients", "optimizer.adamw"]


def test_a_question_about_infinities_is_answered_with_no() -> None:
    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.net(x)
            return y.clamp(max=1e4) if torch.isinf(y).any() or torch.isnan(y).any() else y

    graph = capture(Clamped(), data())
    assert not any("clamp" in op.name for op in graph.ops)
    assert any("taken as finite" in sentence for sentence in graph.assumptions)
