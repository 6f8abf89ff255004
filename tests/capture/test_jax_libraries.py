"""Training steps as users of Flax, Haiku, Equinox and optax write them: weights, state and products, counted beside."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from traincast.capture._jax import capture_jax
from traincast.spec._graph import Graph

optax = pytest.importorskip("optax", reason="optax is not installed (extra `jax-tests`)")

BATCH, WIDTH, HIDDEN, CLASSES = 8, 32, 64, 10
Built = tuple[Callable[..., Any], tuple[Any, ...], int, int]
"""The step, its arguments, the elements of its parameters, the bytes of its state."""


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


DATA = (shape(BATCH, WIDTH), shape(BATCH, dtype=jnp.int32))


def elements(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree_util.tree_leaves(tree) if leaf.shape)


def cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def updated(transform: Any, loss: Callable[[Any], jax.Array], parameters: Any, state: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(parameters)
    updates, state = transform.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, value


def linen_train_state() -> Built:
    linen = pytest.importorskip("flax.linen")
    training = pytest.importorskip("flax.training.train_state")

    class Net(linen.Module):  # type: ignore[misc]
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return linen.Dense(CLASSES)(linen.relu(linen.Dense(HIDDEN)(x)))

    net = Net()

    def create() -> Any:
        weights = net.init(jax.random.key(0), jnp.zeros((1, WIDTH)))
        return training.TrainState.create(apply_fn=net.apply, params=weights, tx=optax.adamw(1e-3))

    state = jax.eval_shape(create)

    @jax.jit
    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(lambda p: cross_entropy(state.apply_fn(p, x), y))(state.params)
        return state.apply_gradients(grads=gradients), value

    count = elements(state.params)
    return step, (state, *DATA), count, 8 * count


def nnx_optimizer() -> Built:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.first, self.second = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

        def __call__(self, x: jax.Array) -> Any:
            return self.second(nnx.relu(self.first(x)))

    def create() -> Any:
        net = Net(nnx.Rngs(0))
        return net, nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)

    definition, state = nnx.split(nnx.eval_shape(create))

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        net, optimizer = nnx.merge(definition, state)
        value, gradients = nnx.value_and_grad(lambda net: cross_entropy(net(x), y))(net)
        optimizer.update(net, gradients)
        return nnx.split((net, optimizer))[1], value

    count = WIDTH * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
    return step, (state, *DATA), count, 8 * count


def haiku_chain() -> Built:
    haiku = pytest.importorskip("haiku")
    net = haiku.transform(lambda x: haiku.nets.MLP([HIDDEN, CLASSES])(x))
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
    weights = jax.eval_shape(lambda: net.init(jax.random.key(0), jnp.zeros((1, WIDTH))))
    state = jax.eval_shape(transform.init, weights)

    def step(weights: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        return updated(transform, lambda w: cross_entropy(net.apply(w, None, x), y), weights, state)

    return step, (weights, state, *DATA), elements(weights), 4 * elements(weights)


def equinox_lion() -> Built:
    equinox = pytest.importorskip("equinox")
    net = equinox.filter_eval_shape(lambda: equinox.nn.MLP(WIDTH, CLASSES, HIDDEN, 1, key=jax.random.key(0)))
    arrays, rest = equinox.partition(net, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    transform = optax.lion(1e-4)
    state = jax.eval_shape(transform.init, arrays)

    def step(arrays: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(arrays: Any) -> jax.Array:
            return cross_entropy(jax.vmap(equinox.combine(arrays, rest))(x), y)

        return updated(transform, loss, arrays, state)

    return step, (arrays, state, *DATA), elements(arrays), 4 * elements(arrays)


def scanned_layers() -> Built:
    transform = optax.adamw(1e-3)
    weights = {"in": shape(WIDTH, HIDDEN), "layers": shape(5, HIDDEN, HIDDEN), "out": shape(HIDDEN, CLASSES)}
    state = jax.eval_shape(transform.init, weights)

    def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        layer = jax.checkpoint(lambda hidden, w: (hidden + jnp.tanh(hidden @ w), None))
        return cross_entropy(jax.lax.scan(layer, x @ weights["in"], weights["layers"])[0] @ weights["out"], y)

    def step(weights: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        return updated(transform, lambda w: loss(w, x, y), weights, state)

    return step, (weights, state, *DATA), elements(weights), 8 * elements(weights)


STEPS = {step.__name__: step for step in (linen_train_state, nnx_optimizer, haiku_chain, equinox_lion, scanned_layers)}


def products(graph: Graph, phase: str) -> float:
    pairs = zip(graph.ops, graph.counts(), strict=True)
    return sum((op.flop or 0) * count for op, count in pairs if op.kind == "matmul" and op.phase == phase)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", STEPS)
def test_weights_state_and_products_of_a_library_are_told_apart(name: str) -> None:
    step, arguments, count, state_bytes = STEPS[name]()
    graph = capture_jax(step, *arguments)
    assert (graph.mode, graph.batch_size, graph.unknown_ops()) == ("training_step", BATCH, ())
    assert graph.num_parameters == count
    assert graph.role_bytes("optimizer_state") == state_bytes
    assert graph.role_bytes("gradient") == 4 * count
    layers = 5 * HIDDEN * HIDDEN if name == "scanned_layers" else 0
    forward = 2 * BATCH * (WIDTH * HIDDEN + layers + HIDDEN * CLASSES)
    assert products(graph, "forward") == forward
    assert products(graph, "backward") == 2 * forward - 2 * BATCH * WIDTH * HIDDEN
