"""Optimizers, against the state that PyTorch really makes and the passes of its multi-tensor kernels."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from traincast.capture import capture
from traincast.capture._optimizers import UPDATES
from traincast.errors import CaptureFailed, UnknownName
from traincast.spec._graph import Graph, Op

CLASSES = {
    name: item
    for name, item in vars(torch.optim).items()
    if inspect.isclass(item) and issubclass(item, torch.optim.Optimizer) and item is not torch.optim.Optimizer
}
RUN = sorted(set(CLASSES) - {"SparseAdam", "LBFGS", "Muon"})


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 4))


def record(optimizer: Any, built: nn.Module | None = None) -> Graph:
    return capture(built or model(), torch.zeros(2, 16), optimizer=optimizer, folded=False, holds_output=False)


def update_of(graph: Graph) -> Op:
    (op,) = [op for op in graph.ops if op.kind == "optimizer"]
    return op


def state_bytes(make: Callable[[Any], torch.optim.Optimizer], built: nn.Module) -> int:
    """Of two real steps."""
    optimizer = make(built.parameters())
    for _ in range(2):
        built(torch.zeros(2, 16)).square().mean().backward()
        optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in kept if tensor.dim())


OPTIONS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "amsgrad": lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    "centered with momentum": lambda parameters: torch.optim.RMSprop(parameters, momentum=0.9, centered=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "fused": lambda parameters: torch.optim.Adam(parameters, fused=True),
}


@pytest.mark.parametrize("name", RUN)
def test_every_class_of_pytorch_keeps_the_state_it_really_makes(name: str) -> None:
    assert record(name.lower()).role_bytes("optimizer_state") == state_bytes(CLASSES[name], model())


@pytest.mark.parametrize("name", OPTIONS)
def test_options_change_the_state_as_they_do_in_a_real_run(name: str) -> None:
    assert record(OPTIONS[name]).role_bytes("optimizer_state") == state_bytes(OPTIONS[name], model())


@pytest.mark.parametrize("name", ["adamw", "adam", "adagrad", "rmsprop", "sgd", "momentum"])
def test_the_counted_passes_of_a_run_are_those_of_the_table(name: str) -> None:
    make = OPTIONS["momentum"] if name == "momentum" else {key.lower(): item for key, item in CLASSES.items()}[name]
    ran, tabled, update = update_of(record(make)), update_of(record(name)), UPDATES[name]
    assert (ran.bytes_read, ran.bytes_written) == (tabled.bytes_read, tabled.bytes_written)
    assert (ran.num_kernels, ran.flop) == (update.passes, tabled.flop)


def test_a_subclass_is_run_like_any_other() -> None:
    class Mine(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    built = model()
    graph = record(Mine(built.parameters(), amsgrad=True), built)
    assert update_of(graph).attrs["algorithm"] == "mine"
    assert graph.role_bytes("optimizer_state") == 3 * graph.role_bytes("parameter")


def test_an_optimizer_of_another_instance_is_matched_and_said() -> None:
    graph = record(torch.optim.AdamW(model().parameters()))
    assert graph.role_bytes("optimizer_state") == 2 * graph.role_bytes("parameter")
    assert any("another instance" in sentence for sentence in graph.assumptions)


def test_an_optimizer_of_a_foreign_model_is_refused() -> None:
    with pytest.raises(CaptureFailed, match="updates none of the model's parameters"):
        record(torch.optim.AdamW(nn.Linear(3, 3).parameters()))


def test_two_optimizers_update_their_own_parts() -> None:
    built = model()
    parts: Any = built
    graph = record([torch.optim.SGD(parts[0].parameters(), lr=0.1), torch.optim.Adam(parts[2].parameters())], built)
    numels = {str(op.attrs["algorithm"]): op.attrs["numel"] for op in graph.ops if op.kind == "optimizer"}
    assert numels == {"sgd": 16 * 8 + 8, "adam": 8 * 4 + 4}


def test_muon_multiplies_matrices_and_leaves_the_rest_to_adamw() -> None:
    graph = record("muon")
    products = [op for op in graph.ops if op.phase == "optimizer" and op.kind == "matmul"]
    assert sum(op.flop or 0 for op in products) > 0
    assert {op.dtype for op in products} == {"bf16"}
    assert any("muon updates" in sentence for sentence in graph.assumptions)


def test_quantised_moments_have_one_scale_per_block() -> None:
    graph = capture(nn.Linear(128, 64), torch.zeros(2, 128), optimizer="adamw8bit")
    weight = 128 * 64
    assert graph.role_bytes("optimizer_state") == 2 * (weight + 4 * weight // 256) + 2 * 4 * 64


def test_a_fused_update_reads_each_value_once() -> None:
    op = update_of(record(OPTIONS["fused"]))
    numel = int(op.attrs["numel"])
    assert (op.bytes_read, op.bytes_written, op.num_kernels) == (16 * numel, 12 * numel, 1)
    assert op.attrs["implementation"] == "fused"


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(UnknownName, match="unknown optimizer 'adamv'"):
        record("adamv")


def test_the_output_is_held_through_the_backward_pass() -> None:
    linear = nn.Linear(8, 4096)
    held, dropped = (
        capture(linear, torch.zeros(64, 8), loss=lambda y: y.log_softmax(-1).mean(), holds_output=flag, folded=False)
        for flag in (True, False)
    )
    (extra,) = {*held.ops[-1].reads} - {*dropped.ops[-1].reads}
    assert held.tensors[extra].shape == (64, 4096)
    assert held.tensors[extra].role == "activation"
