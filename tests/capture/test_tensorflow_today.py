"""Graphs that TensorFlow 2 writes, against what Keras says of its own models and counts by hand."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from traincast.capture import load_source
from traincast.errors import CaptureFailed, InvalidInput
from traincast.spec._graph import Graph

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed (extra `tensorflow-tests`)"
)

BATCH, SEQ, VOCAB, HIDDEN, DEPTH = 4, 16, 100, 32, 2
MODELS = ("bert", "gpt", "lstm", "gru", "dlrm", "mobilenetv2")
TOKENS = BATCH * SEQ
LAYER = TOKENS * 2 * (4 * HIDDEN * HIDDEN + 8 * HIDDEN * HIDDEN) + 2 * 2 * BATCH * SEQ * SEQ * HIDDEN
FORWARD_FLOP = {
    "bert": DEPTH * LAYER + 2 * BATCH * HIDDEN * 3,
    "gpt": DEPTH * LAYER + 2 * TOKENS * HIDDEN * VOCAB,
    "lstm": 2 * TOKENS * 2 * (2 * HIDDEN) * 4 * HIDDEN + 2 * BATCH * HIDDEN * 3,
    "gru": 2 * TOKENS * 2 * (2 * HIDDEN) * 3 * HIDDEN + 2 * BATCH * HIDDEN * 3,
    "dlrm": 2 * BATCH * (13 * HIDDEN + 4 * 4 * HIDDEN + (HIDDEN + 16) * 3),
}
"""Products counted by hand."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A process of its own writes the files, as a user's TensorFlow would."""
    directory = tmp_path_factory.mktemp("tensorflow")
    script = Path(__file__).with_name("write_tensorflow.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    command = [sys.executable, str(script), str(directory), ",".join(MODELS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return directory


def read(path: Path, **options: Any) -> Graph:
    graph = load_source(str(path), **options)
    assert isinstance(graph, Graph)
    return graph


def products(graph: Graph, phase: str) -> float:
    kinds = ("matmul", "conv", "attention", "rnn")
    pairs = zip(graph.ops, graph.counts(), strict=True)
    return sum((op.flop or 0) * count for op, count in pairs if op.kind in kinds and op.phase == phase)


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{model}.adam" for model in MODELS] + ["bert.adamw", "bert.sgd", "mixed.adam"])
def test_a_traced_step_has_the_weights_and_the_state_that_keras_counts(written: Path, name: str) -> None:
    facts = json.loads((written / f"{name}.json").read_text())
    graph = read(written / f"{name}.step.pb")
    assert (graph.mode, graph.batch_size, graph.unknown_ops()) == ("training_step", BATCH, ())
    assert graph.num_parameters == facts["trainable"]
    assert graph.role_bytes("optimizer_state") == facts["state_bytes"]
    (update,) = [op for op in graph.ops if op.kind == "optimizer"]
    assert update.attrs["numel"] == facts["trainable"]
    # The data themselves need no gradient, so the first products have one gradient each.
    assert 1.6 < products(graph, "backward") / products(graph, "forward") <= 2.0
    assert {op.dtype for op in graph.ops if op.kind == "matmul"} == {"fp16" if "mixed" in name else "fp32"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORWARD_FLOP)
def test_products_of_a_traced_step_are_those_counted_by_hand(written: Path, name: str) -> None:
    graph = read(written / f"{name}.adam.step.pb")
    assert products(graph, "forward") == FORWARD_FLOP[name]


@pytest.mark.slow
def test_the_step_of_fit_is_the_traced_one(written: Path) -> None:
    for name in ("bert", "lstm"):
        fitted, traced = read(written / f"{name}.adam.fit.pb"), read(written / f"{name}.adam.step.pb")
        assert fitted.num_parameters == traced.num_parameters
        assert fitted.role_bytes("optimizer_state") == traced.role_bytes("optimizer_state")
        assert products(fitted, "backward") == products(traced, "backward")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["export", "saved"])
@pytest.mark.parametrize("name", ["bert", "lstm"])
def test_a_saved_model_is_counted_once(written: Path, name: str, form: str) -> None:
    facts = json.loads((written / f"{name}.adam.json").read_text())
    graph = read(written / f"{name}.adam.{form}", batch=BATCH)
    assert graph.mode == "inference"
    assert graph.num_parameters == facts["trainable"]
    assert products(graph, "forward") == FORWARD_FLOP[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "lstm"])
def test_a_keras_file_is_recorded_without_tensorflow(written: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    facts = json.loads((written / f"{name}.adam.json").read_text())
    graph = read(written / f"{name}.adam.keras", batch=BATCH)
    assert graph.num_parameters == facts["trainable"]
    assert graph.role_bytes("optimizer_state") == facts["state_bytes"]
    assert products(graph, "forward") == pytest.approx(FORWARD_FLOP[name], rel=0.01)
    assert "tensorflow" not in sys.modules


@pytest.mark.slow
def test_an_old_meta_graph_is_a_training_step(written: Path) -> None:
    graph = read(written / "old.meta", batch=BATCH)
    assert (graph.mode, graph.num_parameters) == ("training_step", 3 * 3 * 3 * 8 + 128 * 10)
    assert graph.role_bytes("optimizer_state") == 2 * graph.role_bytes("parameter")
    assert products(graph, "forward") == 2 * BATCH * (4 * 4 * 9 * 3 * 8 + 128 * 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "lstm"])
def test_a_frozen_graph_has_its_weights_and_loops(written: Path, name: str) -> None:
    """Freezing turns variables into constants, and loops into the five kinds of nodes of TensorFlow 1."""
    facts = json.loads((written / f"{name}.adam.json").read_text())
    graph = read(written / f"{name}.adam.frozen.pb")
    assert (graph.mode, graph.num_parameters) == ("inference", facts["trainable"])
    assert products(graph, "forward") == FORWARD_FLOP[name]


@pytest.mark.slow
def test_a_meta_file_of_today_is_the_traced_step(written: Path) -> None:
    meta, traced = read(written / "bert.adam.meta"), read(written / "bert.adam.step.pb")
    assert meta.num_parameters == traced.num_parameters
    assert meta.role_bytes("optimizer_state") == traced.role_bytes("optimizer_state")
    assert products(meta, "backward") == products(traced, "backward")


@pytest.mark.slow
def test_products_are_those_of_the_profiler_of_tensorflow(written: Path) -> None:
    profile = json.loads((written / "bert.adam.json").read_text())["profile"]
    counted = sum(profile[kind] for kind in ("MatMul", "BatchMatMulV2", "Einsum"))
    assert products(read(written / "bert.adam.step.pb"), "forward") == counted


@pytest.mark.slow
def test_a_loop_of_tensorflow_1_is_trained_through_its_stacks_and_arrays(written: Path) -> None:
    graph = read(written / "loop.meta")
    forward = 2 * BATCH * (SEQ * 2 * HIDDEN * HIDDEN + HIDDEN * 10)
    assert (graph.mode, graph.num_parameters) == ("training_step", 2 * HIDDEN * HIDDEN + HIDDEN * 10)
    assert graph.role_bytes("optimizer_state") == 2 * graph.role_bytes("parameter")
    assert products(graph, "forward") == forward
    assert products(graph, "backward") == 2 * forward
    assert graph.unknown_ops() == ()


@pytest.mark.slow
def test_convolutions_of_keras_are_channels_last(written: Path) -> None:
    graph = read(written / "mobilenetv2.adam.step.pb")
    assert {op.attrs.get("channels_last") for op in graph.ops if op.kind == "conv"} == {True}


@pytest.mark.slow
def test_another_batch_than_the_traced_one_is_refused(written: Path) -> None:
    with pytest.raises(InvalidInput, match="has a fixed batch of 4, not 9"):
        read(written / "bert.adam.step.pb", batch=9)


@pytest.mark.slow
def test_a_missing_signature_is_named(written: Path) -> None:
    from traincast.capture._tensorflow import read_tensorflow

    with pytest.raises(InvalidInput, match=r"no signature 'train'; it has: .*serving_default"):
        read_tensorflow(written / "bert.adam.export", signature="train")


def test_a_loop_that_the_data_end_is_asked_for_by_name(tmp_path: Path) -> None:
    """Written node by node: Keras has no such loop."""
    from tensorboard.compat.proto import graph_pb2

    graph = graph_pb2.GraphDef()
    node = graph.node.add(op="Placeholder", name="x")
    node.attr["dtype"].type = 1
    for size in (2, 4):
        node.attr["shape"].shape.dim.add(size=size)
    loop = graph.node.add(op="While", name="until", input=["x"])
    loop.attr["cond"].func.name, loop.attr["body"].func.name = "again", "halve"
    for name, operation in (("again", "IsFinite"), ("halve", "Square")):
        function = graph.library.function.add()
        function.signature.name = name
        function.signature.input_arg.add(name="x")
        function.signature.output_arg.add(name="y")
        function.node_def.add(op=operation, name="work", input=["x"])
        function.ret["y"] = "work:y:0"
    path = tmp_path / "loop.pb"
    path.write_bytes(graph.SerializeToString())
    with pytest.raises(CaptureFailed, match="the loop 'until' runs as often as the data say"):
        read(path)
    bounded = read(path, loop_length=3)
    assert sum(bounded.counts()) == 3
    assert any("taken to run 3 times" in sentence for sentence in bounded.assumptions)
