"""JAX functions, counted by hand."""

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from traincast.capture._jax import capture_jax
from traincast.errors import CaptureFailed
from traincast.spec._graph import Graph


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


def test_a_weight_gradient_is_told_in_every_order_of_dims() -> None:
    def train(kernel: jax.Array, x: jax.Array) -> jax.Array:
        def loss(kernel: jax.Array) -> jax.Array:
            dims = ("NCHW", "OIHW", "NCHW")
            once = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)
            again = jax.lax.conv_general_dilated(
                once, kernel, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=dims
            )
            return again.sum()

        return kernel - jax.grad(loss)(kernel)

    graph = capture_jax(train, shape(8, 8, 3, 3), shape(2, 8, 32, 32))
    passes = [(str(op.attrs["pass"]), op.flop) for op in graph.ops if op.kind == "conv"]
    one = 2.0 * 2 * 32 * 32 * 9 * 8 * 8
    assert sorted(name for name, _ in passes) == ["forward", "forward", "grad_input", "grad_weight", "grad_weight"]
    assert {flop for _, flop in passes} == {one}


def test_the_gradients_of_a_transposed_convolution_do_its_work() -> None:
    def train(kernel: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(kernel: jax.Array, x: jax.Array) -> jax.Array:
            return jax.lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")).sum()

        return jax.grad(loss, argnums=(0, 1))(kernel, x)

    graph = capture_jax(train, shape(4, 8, 3, 3), shape(2, 8, 16, 16))
    assert {op.flop for op in graph.ops if op.kind == "conv"} == {2.0 * 2 * 16 * 16 * 9 * 8 * 4}


def test_names_of_scopes_become_layers() -> None:
    def named(w: jax.Array, x: jax.Array) -> jax.Array:
        with jax.named_scope("block_3"):
            return x @ w

    graph = capture_jax(lambda w, x: jax.grad(lambda w: named(w, x).sum())(w), shape(4, 4), shape(2, 4))
    assert {op.layer for op in graph.ops if op.kind == "matmul"} == {"block_3"}


def test_a_function_that_raises_is_told_in_one_line() -> None:
    with pytest.raises(CaptureFailed, match="cannot be traced by JAX"):
        capture_jax(lambda a, b: a @ b, shape(2, 3), shape(2, 3))


def adam_step(state: Any, x: jax.Array) -> Any:
    """Adam by hand over a state that holds weights, moments and a counter in one argument."""
    gradients = jax.grad(lambda w: (model(w, x) ** 2).mean())(state["weights"])
    tree = jax.tree_util
    first = tree.tree_map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = tree.tree_map(lambda v, g: 0.99 * v + 0.01 * g * g, state["second"], gradients)
    weights = tree.tree_map(lambda w, m, v: w - 0.1 * m / (jnp.sqrt(v) + 1e-8), state["weights"], first, second)
    return {"weights": weights, "first": first, "second": second, "count": state["count"] + 1}


@pytest.mark.parametrize("num_layers", [1, 4])
def test_moments_are_told_from_parameters_by_their_use_and_survive_folding(num_layers: int) -> None:
    layers = [(shape(64, 128), shape(128, 64)) for _ in range(num_layers)]
    state = {"weights": layers, "first": layers, "second": layers, "count": jax.ShapeDtypeStruct((), jnp.int32)}
    graph = capture_jax(adam_step, state, shape(8, 64))
    assert graph.num_parameters == num_layers * 2 * 64 * 128
    assert graph.role_bytes("optimizer_state") == 2 * graph.role_bytes("parameter")
    assert graph.role_bytes("gradient") == graph.role_bytes("parameter")
    assert graph.batch_size == 8


def test_statistics_that_the_passes_update_are_buffers() -> None:
    def step(weights: jax.Array, mean: jax.Array, x: jax.Array) -> Any:
        def loss(w: jax.Array) -> Any:
            y = x @ w
            return ((y - mean) ** 2).mean(), 0.9 * mean + 0.1 * y.mean(0)

        gradient, updated = jax.grad(loss, has_aux=True)(weights)
        return weights - 0.1 * gradient, updated

    graph = capture_jax(step, shape(16, 4), shape(4), shape(8, 16))
    assert (graph.num_parameters, graph.role_bytes("buffer"), graph.role_bytes("input")) == (64, 16, 4 * 8 * 16)


def test_stacked_weights_are_read_slice_by_slice() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return (jax.lax.scan(lambda carry, w: (jnp.tanh(carry @ w), None), x, weights)[0] ** 2).mean()

    graph = capture_jax(lambda w, x: w - 0.1 * jax.grad(loss)(w, x), shape(5, 8, 8), shape(2, 8))
    product = next(op for op in graph.ops if op.kind == "matmul" and op.phase == "forward")
    assert product.bytes_read == 4 * (8 * 8 + 2 * 8)
    assert graph.role_bytes("gradient") == graph.role_bytes("parameter") == 4 * 5 * 8 * 8


def test_a_counted_loop_repeats_and_an_open_one_is_refused() -> None:
    def counted(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 1, c[1] @ w), (0, x))[1]

    graph = capture_jax(counted, shape(4, 4), shape(2, 4))
    assert matmuls(graph, "forward") == 7 * 2 * 2 * 4 * 4
    with pytest.raises(CaptureFailed, match="no known length"):
        capture_jax(
            lambda w, x: jax.lax.while_loop(lambda c: c.sum() < 7, lambda c: c @ w, x), shape(4, 4), shape(2, 4)
        )


def test_of_a_condition_the_larger_branch_is_counted_and_said() -> None:
    def choosing(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.cond(x.sum() > 0, lambda: x @ w @ w, lambda: x)

    graph = capture_jax(choosing, shape(4, 4), shape(2, 4))
    assert matmuls(graph, "forward") == 2 * 2 * 2 * 4 * 4
    assert any("condition" in sentence for sentence in graph.assumptions)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax import shard_map
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from traincast.capture import capture_jax, read_jax_plan

mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("batch", "model"))
weights = {"a": jnp.zeros((16, 32)), "b": jnp.zeros((32, 16))}
data = jnp.zeros((8, 16))

def loss(p, x):
    return (jnp.tanh(x @ p["a"]) @ p["b"]).mean()

def step(p, x):
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, jax.grad(loss)(p, x))

def named(*spec):
    return NamedSharding(mesh, P(*spec))

columns = {"a": named(None, "model"), "b": named("model", None)}
spread = {"a": named("batch", "model"), "b": named("model", "batch")}
for shardings, wanted in ((columns, (4, 2, 0)), (spread, (4, 2, 3))):
    function = jax.jit(step, in_shardings=(shardings, named("batch")))
    plan = read_jax_plan(function, weights, data)
    assert (plan.data, plan.tensor, plan.zero) == wanted, plan
graph = capture_jax(function, weights, data)
assert (graph.plan, graph.batch_size) == (plan, 2), graph
products = sum(op.flop for op in graph.ops if op.kind == "matmul")
assert products == 5 * 2 * 2 * 16 * 32, products
assert graph.num_parameters == 2 * 16 * 32
assert any("--dp 4 --tp 2 --zero 3" in text for text in graph.assumptions), graph.assumptions

def local(p, x):
    return jax.lax.pmean(loss(p, x), "batch")

def mapped(p, x):
    return shard_map(local, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P())(p, x)

def manual(p, x):
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, jax.grad(mapped)(p, x))

plan = read_jax_plan(manual, weights, data)
assert (plan.data, plan.tensor, plan.zero) == (4, 1, 0), plan
graph = capture_jax(manual, weights, data)
assert (graph.plan, graph.batch_size) == (plan, 2), graph
print("read")
"""


def test_sharding_annotations_are_the_plan() -> None:
    """In a process of its own: the number of devices is fixed when JAX starts."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "read", done.stderr[-2000:]
