"""StableHLO files that JAX writes, read without JAX, against the recording of the same step from its jaxpr."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from traincast.capture import load_source
from traincast.capture._jax import capture_jax
from traincast.capture._stablehlo import read_stablehlo
from traincast.errors import CaptureFailed, InvalidInput
from traincast.spec._graph import Graph


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


LAYERS, BATCH, WIDTH = 6, 16, 64
WEIGHTS = {"kernel": shape(3, 3, 3, 8), "layers": shape(LAYERS, WIDTH, WIDTH), "out": shape(WIDTH, 10)}
STATE = {"weights": WEIGHTS, "moments": WEIGHTS}
DATA = (shape(BATCH, 8, 8, 3), shape(BATCH, WIDTH))


def step(state: Any, images: jax.Array, x: jax.Array) -> Any:
    def loss(weights: Any) -> jax.Array:
        hidden = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights["layers"])[0]
        layout = ("NHWC", "HWIO", "NHWC")
        seen = jax.lax.conv_general_dilated(images, weights["kernel"], (2, 2), "SAME", dimension_numbers=layout)
        return (hidden @ weights["out"]).mean() ** 2 + jnp.tanh(seen).mean()

    gradients = jax.grad(loss)(state["weights"])
    moments = jax.tree_util.tree_map(lambda m, g: 0.9 * m + g, state["moments"], gradients)
    return {
        "weights": jax.tree_util.tree_map(lambda w, m: w - 0.1 * m, state["weights"], moments),
        "moments": moments,
    }


@pytest.fixture(scope="module")
def lowered() -> Any:
    return jax.jit(step).lower(STATE, *DATA)


def products(graph: Graph) -> dict[tuple[str, str], float]:
    totals: dict[tuple[str, str], float] = {}
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        if op.kind in ("matmul", "conv"):
            key = (op.phase, op.kind)
            totals[key] = totals.get(key, 0.0) + (op.flop or 0.0) * count
    return totals


def test_a_file_has_the_weights_state_and_products_of_its_step(tmp_path: Path, lowered: Any) -> None:
    path = tmp_path / "step.mlir"
    path.write_text(lowered.as_text(debug_info=True))
    graph = load_source(str(path))
    assert isinstance(graph, Graph)
    count = 3 * 3 * 3 * 8 + LAYERS * WIDTH * WIDTH + WIDTH * 10
    assert (graph.mode, graph.batch_size, graph.num_parameters) == ("training_step", BATCH, count)
    assert graph.role_bytes("optimizer_state") == graph.role_bytes("gradient") == 4 * count
    assert [repeat.count for repeat in graph.repeats] == [LAYERS, LAYERS]
    assert products(graph) == products(capture_jax(step, STATE, *DATA))
    assert graph.unknown_ops() == ()


def test_a_file_without_locations_and_other_text_are_told(tmp_path: Path, lowered: Any) -> None:
    path = tmp_path / "plain.mlir"
    path.write_text(lowered.as_text())
    with pytest.raises(CaptureFailed, match=r"as_text\(debug_info=True\)"):
        load_source(str(path))
    path.write_text("not a program")
    with pytest.raises(InvalidInput, match="no StableHLO function @main"):
        load_source(str(path))


def test_a_checkpointed_scan_has_the_products_of_its_live_recording(tmp_path: Path) -> None:
    def scanned(weights: Any, x: jax.Array) -> Any:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.checkpoint(lambda value: jnp.tanh(value @ weights))(carry), None

        return jax.lax.scan(body, x, None, length=5)[0].sum()

    def train(weights: Any, x: jax.Array) -> Any:
        return weights - 0.1 * jax.grad(scanned)(weights, x)

    arguments = (shape(64, 64), shape(8, 64))
    path = tmp_path / "scan.mlir"
    path.write_text(jax.jit(train).lower(*arguments).as_text(debug_info=True))
    assert products(read_stablehlo(path)) == products(capture_jax(train, *arguments))


def test_a_shard_map_is_what_one_device_runs(tmp_path: Path) -> None:
    """Written by a process with four devices; this one has one."""
    source = tmp_path / "spread.py"
    source.write_text(SPREAD)
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, str(source), str(tmp_path / "step.mlir")], check=True, env=environment)
    graph = read_stablehlo(tmp_path / "step.mlir")
    each = 2 * (16 / 4) * 32
    assert products(graph) == {
        ("forward", "matmul"): each * (64 + 64 / 2),
        ("backward", "matmul"): each * (64 + 2 * 64 / 2),
    }
    assert graph.num_parameters == 32 * 64 + 64 * 16
    assert graph.batch_size == 4
    assert graph.plan is not None
    assert graph.plan.data == 4
    assert any("for one device" in sentence for sentence in graph.assumptions)


SPREAD = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("data",))

def loss(weights, x):
    def body(weights, x):
        return jax.lax.pmean(jnp.mean((jnp.tanh(x @ weights["a"]) @ weights["b"]) ** 2), "data")
    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(weights, x)

def step(weights, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
lowered = jax.jit(step).lower({"a": shape(32, 64), "b": shape(64, 16)}, shape(16, 32))
open(sys.argv[1], "w").write(lowered.as_text(debug_info=True))
"""
