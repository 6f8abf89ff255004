"""A jaxpr as text is the same step as the jaxpr in the process that made it."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from traincast.capture import capture_jax, load_source
from traincast.errors import CaptureFailed, InvalidInput, TraincastError
from traincast.files import save_graph
from traincast.forecast import resolve
from traincast.spec import Graph, Parallelism, Question

jax = pytest.importorskip("jax")
jnp: Any = jax.numpy


def shape(*sizes: int, dtype: str = "float32") -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)


def layers(p: Any, x: Any, y: Any) -> Any:
    def body(h: Any, w: Any) -> Any:
        return jax.nn.relu(h @ w), None

    h, _ = jax.lax.scan(jax.checkpoint(body), x, p["layers"])
    scores = jax.nn.log_softmax(h @ p["head"])
    return -jnp.mean(jnp.take_along_axis(scores, y[:, None], 1))


def images(p: Any, x: Any, y: Any) -> Any:
    h = jax.lax.conv_general_dilated(x, p["kernel"], (2, 2), "SAME")
    h = (h - h.mean((0, 2, 3), keepdims=True)) * jax.lax.rsqrt(h.var((0, 2, 3), keepdims=True) + 1e-5)
    h = jax.nn.relu(h * p["scale"][:, None, None])
    return jnp.mean((h.mean((2, 3)) @ p["head"]).sum(1) * y)


def adam(loss: Callable[..., Any], *, returns_loss: bool = True, clips: bool = False) -> Callable[..., Any]:
    def step(p: Any, m: Any, v: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p, x, y)
        if clips:
            norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(g)))
            g = jax.tree.map(lambda leaf: leaf / jnp.maximum(1.0, norm), g)
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b * b, v, g)
        p = jax.tree.map(lambda a, b, c: a - 0.1 * b / (jnp.sqrt(c) + 1e-8), p, m, v)
        return (p, m, v, value) if returns_loss else (p, m, v)

    return step


def amounts(graph: Graph) -> dict[str, float]:
    found = {role: graph.role_bytes(role) for role in ("parameter", "gradient", "optimizer_state")}
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        if op.kind in ("matmul", "conv"):
            found[op.phase] = found.get(op.phase, 0.0) + (op.flop or 0.0) * count
    return {**found, "flop": graph.flop, "bytes": graph.num_bytes, "batch": graph.batch_size}


TEXT = {"layers": shape(3, 16, 16), "head": shape(16, 10)}
IMAGES = {"kernel": shape(8, 3, 3, 3), "scale": shape(8), "head": shape(8, 4)}


@pytest.mark.parametrize("returns_loss", [True, False])
@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize(
    ("loss", "weights", "data"),
    [
        (layers, TEXT, (shape(6, 16), shape(6, dtype="int32"))),
        (images, IMAGES, (shape(6, 3, 12, 12), shape(6))),
    ],
)
def test_text_with_and_without_scopes_is_the_step_that_jax_holds(
    tmp_path: Path, loss: Any, weights: Any, data: Any, clips: bool, returns_loss: bool
) -> None:
    step, given = adam(loss, returns_loss=returns_loss, clips=clips), (weights, weights, weights, *data)
    known = amounts(capture_jax(step, *given))
    printed = jax.make_jaxpr(jax.jit(step))(*given)
    for number, text in enumerate((str(printed), printed.pretty_print(name_stack=True))):
        file = tmp_path / f"step{number}.jaxpr"
        file.write_text(text)
        read = load_source(str(file))
        assert isinstance(read, Graph)
        assert (read.mode, read.source) == ("training_step", "jax")
        assert amounts(read) == known
        assert any("names no scopes" in sentence for sentence in read.assumptions) == (number == 0)


def test_the_state_of_equal_layers_is_exact_after_folding(tmp_path: Path) -> None:
    def deep(p: Any, x: Any, y: Any) -> Any:
        for weight in p:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x.sum(1) * y)

    weights = [shape(8, 8)] * 12
    step = adam(deep)
    file = tmp_path / "step.jaxpr"
    file.write_text(str(jax.make_jaxpr(step)(weights, weights, weights, shape(4, 8), shape(4))))
    read = load_source(str(file))
    assert isinstance(read, Graph)
    assert (read.num_parameters, read.role_bytes("optimizer_state")) == (12 * 64, 2 * 12 * 64 * 4)


def test_loops_and_conditions_of_the_text_are_counted(tmp_path: Path) -> None:
    def run(w: Any, x: Any) -> Any:
        x = jax.lax.fori_loop(0, 7, lambda _, c: c @ w, x)
        return jax.lax.cond(x.sum() > 0, lambda: x @ w @ w, lambda: x)

    file = tmp_path / "step.jaxpr"
    file.write_text(str(jax.make_jaxpr(run)(shape(4, 4), shape(2, 4))))
    read = load_source(str(file))
    assert isinstance(read, Graph)
    assert amounts(read)["forward"] == 9 * 2 * 2 * 4 * 4
    assert any("condition" in sentence for sentence in read.assumptions)
    assert any("taken as a forward pass" in sentence for sentence in read.assumptions)


ANNOTATED = """{ lambda ; a:f32[32,64] b:f32[64,32] c:f32[16,32]. let
    d:f32[16,32] = jit[
      name=run
      in_shardings=(NamedSharding(mesh=Mesh('batch': 4, 'model': 2, axis_types=(Auto, Auto)), spec=P(None, 'model'),
        memory_kind=device), NamedSharding(mesh=Mesh('batch': 4, 'model': 2, axis_types=(Auto, Auto)), spec=P('model', None),
        memory_kind=device), NamedSharding(mesh=Mesh('batch': 4, 'model': 2, axis_types=(Auto, Auto)), spec=P('batch',),
        memory_kind=device))
      jaxpr={ lambda ; a:f32[32,64] b:f32[64,32] c:f32[16,32]. let
          e:f32[16,64] = dot_general[dimension_numbers=(([1], [0]), ([], []))] c a
          d:f32[16,32] = dot_general[dimension_numbers=(([1], [0]), ([], []))] e b
        in (d,) }
    ] a b c
  in (d,) }
"""


def test_annotations_of_the_text_are_the_plan_of_a_forecast(tmp_path: Path) -> None:
    file = tmp_path / "step.jaxpr"
    file.write_text(ANNOTATED)
    graph = load_source(str(file))
    assert isinstance(graph, Graph)
    assert (graph.num_parameters, graph.plan) == (2 * 32 * 64, Parallelism(data=4, tensor=2))
    found = resolve(Question(source=str(file), cluster={"device": "h100"}))
    assert found.cluster.num_devices == found.parallelism.num_devices == 8
    assert any("own sharding annotations" in sentence for sentence in found.assumptions)


@pytest.fixture
def annotated(tmp_path: Path) -> str:
    file = tmp_path / "step.jaxpr"
    file.write_text(ANNOTATED)
    graph = load_source(str(file))
    assert isinstance(graph, Graph)
    saved = str(tmp_path / "step.json")
    save_graph(replace(graph, plan=Parallelism(data=4, tensor=2, zero=3)), saved)
    return saved


def test_a_plan_that_is_said_wins_over_the_annotations(annotated: str) -> None:
    own = resolve(Question(source=annotated, cluster={"device": "h100"}))
    assert (own.parallelism.data, own.parallelism.tensor, own.parallelism.zero) == (4, 2, 3)
    said = resolve(Question(source=annotated, cluster={"device": "h100"}, parallelism={"data": 2}))
    assert (said.parallelism.data, said.parallelism.tensor, said.parallelism.zero) == (2, 1, 0)
    assert not any("annotations" in sentence for sentence in said.assumptions)


@pytest.mark.parametrize(("devices", "wanted", "words"), [(16, (8, 2), "with 8 replicas"), (3, (3, 1), "not used")])
def test_annotations_for_other_devices_are_fitted_or_left_with_a_word(
    annotated: str, devices: int, wanted: tuple[int, int], words: str
) -> None:
    found = resolve(
        Question(
            source=annotated,
            cluster={
                "device": "h100",
                "devices_per_node": devices // (devices // 8 or 1),
                "num_nodes": devices // 8 or 1,
            },
        )
    )
    assert (found.parallelism.data, found.parallelism.tensor) == wanted
    assert any(words in sentence for sentence in found.assumptions)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "holds no jaxpr"),
        ("{ lambda ; a:f32[4]. let b:f32[4] = sin c in (b,) }", "'c in"),
        ("{ lambda ; a:f32[n]. let b:f32[n] = sin a in (b,) }", "every size must be a number"),
        ("{ lambda ; a:f32[4]. let b:f32[4] = dot_general a a in (b,) }", "cannot be read"),
        ("{ lambda ; a:f32[99999999999,99999999999]. let b:f32[] = sin a in (b,) }", "elements"),
        ("{ lambda ; . let in () }", "computes nothing"),
        ("{ lambda ; a:f32[4]. let b:f32[4] = jit[jaxpr=" * 200, "nests"),
    ],
)
def test_text_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "step.jaxpr"
    file.write_text(text)
    with pytest.raises((CaptureFailed, InvalidInput)) as caught:
        load_source(str(file))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_text_is_refused_and_never_breaks(tmp_path: Path) -> None:
    given = (TEXT, TEXT, TEXT, shape(6, 16), shape(6, dtype="int32"))
    text = str(jax.make_jaxpr(adam(layers))(*given))
    draw = random.Random(0)
    file = tmp_path / "step.jaxpr"
    refused: list[str] = []
    for _ in range(150):
        at, length = draw.randrange(len(text)), draw.randrange(1, 20)
        put = draw.choice(["", "{", "]", ")", "0", "in (", "jit[", text[at : at + 30], "\x00", "f32[9]"])
        file.write_text(text[:at] + put + text[at + length :])
        try:
            load_source(str(file))
        except TraincastError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert not any("\n" in message for message in refused)


def test_a_step_has_the_formats_that_it_was_written_in(tmp_path: Path) -> None:
    file = tmp_path / "step.jaxpr"
    file.write_text(ANNOTATED)
    with pytest.raises(InvalidInput, match="number formats"):
        load_source(str(file), precision="bf16")
    assert resolve(Question(source=str(file), cluster={"device": "h100"})).settings["precision"] == "fp32"
