"""JAX functions, counted by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from traincast.capture.jax import capture_jax
from traincast.errors import CaptureFailed
from traincast.spec.graph import Graph


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def model(weights: Any, x: jax.Array) -> jax.Array:
    for first, second in weights:
        x = x + jnp.tanh(x @ first) @ second
    return x


def train(weights: Any, x: jax.Array) -> Any:
    gradients = jax.grad(lambda w: (model(w, x) ** 2).mean())(weights)
    return jax.tree_util.tree_map(lambda w, g: w - 0.1 * g, weights, gradients)


def matmuls(graph: Graph, phase: str) -> float:
    pairs = zip(graph.ops, graph.counts(), strict=True)
    return sum((op.flop or 0) * count for op, count in pairs if op.kind == "matmul" and op.phase == phase)


def test_a_training_step_has_its_three_phases() -> None:
    layers = [(shape(16, 32), shape(32, 16)) for _ in range(3)]
    graph = capture_jax(train, layers, shape(8, 16))
    forward = 3 * 2 * 2 * 8 * 16 * 32
    assert matmuls(graph, "forward") == forward
    # The first layer's input needs no gradient.
    assert matmuls(graph, "backward") == 2 * forward - 2 * 8 * 16 * 32
    assert any(op.phase == "optimizer" for op in graph.ops)
    assert graph.num_parameters == 3 * 2 * 16 * 32
    assert (graph.batch_size, graph.mode, graph.unknown_ops()) == (8, "training_step", ())


def test_a_forward_function_is_inference() -> None:
    assert capture_jax(model, [(shape(4, 4), shape(4, 4))], shape(2, 4)).mode == "inference"


def test_a_scan_repeats_its_body() -> None:
    def scanned(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, w: (jnp.tanh(carry @ w), None), x, weights)[0]

    graph = capture_jax(scanned, shape(5, 8, 8), shape(2, 8))
    assert [repeat.count for repeat in graph.repeats] == [5]
    assert matmuls(graph, "forward") == 5 * 2 * 2 * 8 * 8


def test_a_convolution_and_both_gradients_do_the_same_work() -> None:
    def loss(kernel: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).sum()

    graph = capture_jax(lambda k, x: jax.grad(loss, argnums=(0, 1))(k, x), shape(3, 3, 4, 8), shape(2, 16, 16, 4))
    convolutions = {str(op.attrs["pass"]): op for op in graph.ops if op.kind == "conv"}
    flop = 2 * 2 * 8 * 8 * 9 * 4 * 8
    assert {name: op.flop for name, op in convolutions.items() if name != "forward"} == {
        "grad_weight": flop,
        "grad_input": flop,
    }
    for op in convolutions.values():
        assert (op.attrs["in_channels"], op.attrs["out_channels"], op.attrs["kernel"]) == (4, 8, "3x3")
        assert op.attrs["stride"] == "2x2"


def test_names_of_scopes_become_layers() -> None:
    def named(w: jax.Array, x: jax.Array) -> jax.Array:
        with jax.named_scope("block_3"):
            return x @ w

    graph = capture_jax(lambda w, x: jax.grad(lambda w: named(w, x).sum())(w), shape(4, 4), shape(2, 4))
    assert {op.layer for op in graph.ops if op.kind == "matmul"} == {"block_3"}


def test_a_function_that_raises_is_told_in_one_line() -> None:
    with pytest.raises(CaptureFailed, match="cannot be traced by JAX"):
        capture_jax(lambda a, b: a @ b, shape(2, 3), shape(2, 3))
