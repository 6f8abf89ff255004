"""TensorFlow graphs built node by node, as a training program exports them, and counted by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto import graph_pb2, meta_graph_pb2

from traincast.__main__ import main
from traincast.capture import load_source
from traincast.capture._tensorflow import read_tensorflow
from traincast.errors import CaptureFailed, InvalidInput
from traincast.lower import lower
from traincast.spec import Collective, Parallelism
from traincast.spec._graph import Graph

FLOAT, INT = 1, 3


def add(graph: Any, op: str, name: str, inputs: Sequence[str] = (), **attributes: Any) -> str:
    node = graph.node.add(op=op, name=name, input=list(inputs))
    for key, value in attributes.items():
        target = node.attr[key]
        if key == "shape":
            target.shape.SetInParent()
            for size in value:
                target.shape.dim.add(size=size)
        elif key == "dtype":
            target.type = value
        elif key == "f":
            target.func.name = value
        elif isinstance(value, bool):
            target.b = value
        elif isinstance(value, int):
            target.i = value
        elif isinstance(value, str):
            target.s = value.encode()
        else:
            target.list.i.extend(value)
    return name


def constant(graph: Any, name: str, value: Any) -> str:
    array = np.asarray(value, dtype=np.int32)
    tensor = graph.node.add(op="Const", name=name).attr["value"].tensor
    tensor.dtype = INT
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = array.tobytes()
    return name


def forward(graph: Any) -> str:
    add(graph, "Placeholder", "images", shape=[-1, 16, 16, 3], dtype=FLOAT)
    add(graph, "VarHandleOp", "conv/kernel", shape=[3, 3, 3, 8], dtype=FLOAT)
    add(graph, "VarHandleOp", "conv/bias", shape=[8], dtype=FLOAT)
    add(graph, "ReadVariableOp", "conv/read", ["conv/kernel"])
    add(graph, "ReadVariableOp", "conv/read_bias", ["conv/bias"])
    add(graph, "Conv2D", "conv/Conv2D", ["images", "conv/read"], strides=[1, 2, 2, 1], padding="SAME")
    add(graph, "BiasAdd", "conv/BiasAdd", ["conv/Conv2D", "conv/read_bias"])
    add(graph, "Relu", "conv/Relu", ["conv/BiasAdd"])
    add(graph, "MaxPool", "pool/MaxPool", ["conv/Relu"], ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
    add(graph, "Shape", "flat/Shape", ["pool/MaxPool"])
    for name, value in (("flat/begin", [0]), ("flat/end", [1]), ("flat/step", [1])):
        constant(graph, name, value)
    add(graph, "StridedSlice", "flat/batch", ["flat/Shape", "flat/begin", "flat/end", "flat/step"], shrink_axis_mask=1)
    constant(graph, "flat/rest", -1)
    add(graph, "Pack", "flat/sizes", ["flat/batch", "flat/rest"], axis=0)
    add(graph, "Reshape", "flat/Reshape", ["pool/MaxPool", "flat/sizes"])
    add(graph, "VarHandleOp", "dense/kernel", shape=[128, 10], dtype=FLOAT)
    add(graph, "ReadVariableOp", "dense/read", ["dense/kernel"])
    return add(graph, "MatMul", "dense/MatMul", ["flat/Reshape", "dense/read"])


def training() -> Any:
    graph = graph_pb2.GraphDef()
    forward(graph)
    add(graph, "Placeholder", "labels", shape=[-1], dtype=INT)
    add(graph, "SparseSoftmaxCrossEntropyWithLogits", "loss/xent", ["dense/MatMul", "labels"])
    scope = "gradients/dense/MatMul_grad"
    add(graph, "MatMul", f"{scope}/MatMul", ["loss/xent:1", "dense/read"], transpose_b=True)
    add(graph, "MatMul", f"{scope}/MatMul_1", ["flat/Reshape", "loss/xent:1"], transpose_a=True)
    add(graph, "Reshape", "gradients/flat_grad/Reshape", [f"{scope}/MatMul", "flat/Shape"])
    add(
        graph, "MaxPoolGrad", "gradients/pool_grad/MaxPoolGrad", ["conv/Relu", "pool/MaxPool", "gradients/flat_grad/Reshape"],
        ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID",
    )  # fmt: skip
    add(graph, "ReluGrad", "gradients/conv/Relu_grad/ReluGrad", ["gradients/pool_grad/MaxPoolGrad", "conv/Relu"])
    add(graph, "BiasAddGrad", "gradients/conv/BiasAdd_grad/BiasAddGrad", ["gradients/conv/Relu_grad/ReluGrad"])
    constant(graph, "gradients/conv/sizes", [3, 3, 3, 8])
    add(
        graph, "Conv2DBackpropFilter", "gradients/conv/Conv2D_grad/Filter",
        ["images", "gradients/conv/sizes", "gradients/conv/Relu_grad/ReluGrad"], strides=[1, 2, 2, 1], padding="SAME",
    )  # fmt: skip
    gradients = {
        "conv/kernel": ("gradients/conv/Conv2D_grad/Filter", [3, 3, 3, 8]),
        "conv/bias": ("gradients/conv/BiasAdd_grad/BiasAddGrad", [8]),
        "dense/kernel": (f"{scope}/MatMul_1", [128, 10]),
    }
    for number, (variable, (gradient, shape)) in enumerate(gradients.items()):
        for slot in ("m", "v"):
            add(graph, "VarHandleOp", f"{variable}/Adam_{slot}", shape=shape, dtype=FLOAT)
        add(
            graph, "ResourceApplyAdam", f"update_{number}",
            [variable, f"{variable}/Adam_m", f"{variable}/Adam_v", gradient],
        )  # fmt: skip
    return graph


def save(graph: Any, path: Path) -> str:
    path.write_bytes(graph.SerializeToString())
    return str(path)


def test_a_frozen_graph_is_counted_by_hand(tmp_path: Path) -> None:
    graph_definition = graph_pb2.GraphDef()
    forward(graph_definition)
    graph = load_source(save(graph_definition, tmp_path / "model.pb"), batch=4)
    assert isinstance(graph, Graph)
    flop = {op.kind: op.flop for op in graph.ops}
    assert flop["conv"] == 2 * 4 * 8 * 8 * 9 * 3 * 8
    assert flop["matmul"] == 2 * 4 * 128 * 10
    assert (graph.mode, graph.batch_size, graph.unknown_ops()) == ("inference", 4, ())
    assert graph.num_parameters == 9 * 3 * 8 + 8 + 1280


def test_a_training_graph_has_backward_and_optimizer(tmp_path: Path) -> None:
    graph = read_tensorflow(save(training(), tmp_path / "train.pb"), batch=2)
    assert graph.mode == "training_step"
    convolutions = [(op.phase, op.attrs["pass"], op.flop) for op in graph.ops if op.kind == "conv"]
    flop = 2 * 2 * 8 * 8 * 9 * 3 * 8
    assert convolutions == [("forward", "forward", flop), ("backward", "grad_weight", flop)]
    products = [(op.phase, op.attrs["layout"], op.flop) for op in graph.ops if op.kind == "matmul"]
    assert products == [("forward", "nn", 5120), ("backward", "tn", 5120), ("backward", "nt", 5120)]
    (update,) = [op for op in graph.ops if op.kind == "optimizer"]
    assert update.attrs["algorithm"] == "adam"
    assert update.attrs["numel"] == graph.num_parameters == 216 + 8 + 1280
    assert graph.role_bytes("optimizer_state") == 2 * graph.role_bytes("parameter") == 2 * graph.role_bytes("gradient")
    layers = {op.layer for op in graph.ops if op.kind == "matmul"}
    assert layers == {"dense", "dense.MatMul"}


def test_a_saved_model_with_a_function_is_read(tmp_path: Path) -> None:
    definition = graph_pb2.GraphDef()
    add(definition, "Placeholder", "x", shape=[-1, 32], dtype=FLOAT)
    add(definition, "VarHandleOp", "kernel", shape=[32, 16], dtype=FLOAT)
    add(definition, "StatefulPartitionedCall", "call", ["x", "kernel"], f="inner")
    function = definition.library.function.add()
    function.signature.name = "inner"
    for name in ("x", "kernel"):
        function.signature.input_arg.add(name=name)
    function.signature.output_arg.add(name="out")
    for op, name, inputs in (
        ("ReadVariableOp", "read", ["kernel"]),
        ("MatMul", "product", ["x", "read:value:0"]),
        ("Relu", "relu", ["product:product:0"]),
    ):
        function.node_def.add(op=op, name=name, input=inputs)
    function.ret["out"] = "relu:activations:0"
    meta = meta_graph_pb2.MetaGraphDef(graph_def=definition).SerializeToString()
    assert len(meta) < 2**14
    length = bytes([len(meta) & 127 | 128, len(meta) >> 7])
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01\x12" + length + meta)
    graph = load_source(str(tmp_path), batch=8)
    assert isinstance(graph, Graph)
    assert [(op.name, op.flop) for op in graph.ops] == [("tf.MatMul", 2 * 8 * 32 * 16), ("tf.Relu", 8 * 16)]


GRAPHS = Path(__file__).parents[2] / "research" / "results" / "tensorflow_graphs"


@pytest.mark.parametrize(("model", "reads"), [("mlp", 3), ("rnn", None)])
def test_servers_move_what_a_graph_reads_and_writes_of_variables(model: str, reads: int | None) -> None:
    """Momentum that is written out reads a weight once or once per round, its moment twice, and writes both."""
    graph = load_source(str(GRAPHS / f"{model}.pb"))
    assert isinstance(graph, Graph)
    weights = graph.role_bytes("parameter")
    plan = Parallelism(data=2, servers=1, asynchronous=True)
    moved = {task.kind: task.num_bytes for task in lower(graph, plan).stages[0].tasks if isinstance(task, Collective)}
    assert moved["push"] == 2 * weights
    assert moved["pull"] == (reads * weights if reads else 2_760_192)


def test_an_unknown_operation_is_named(tmp_path: Path) -> None:
    graph = graph_pb2.GraphDef()
    add(graph, "Placeholder", "x", shape=[-1, 4], dtype=FLOAT)
    add(graph, "MysteryOp", "odd", ["x"])
    with pytest.raises(CaptureFailed, match=r"MysteryOp \(node 'odd'\)"):
        read_tensorflow(save(graph, tmp_path / "odd.pb"))


def test_open_sizes_and_damaged_files_are_told(tmp_path: Path) -> None:
    graph = graph_pb2.GraphDef()
    add(graph, "Placeholder", "x", shape=[-1, -1], dtype=FLOAT)
    add(graph, "Relu", "relu", ["x"])
    with pytest.raises(CaptureFailed, match="'x' has open dims"):
        read_tensorflow(save(graph, tmp_path / "open.pb"))
    (tmp_path / "bad.pb").write_bytes(b"\xff\xff\xff\xff")
    with pytest.raises(InvalidInput, match="TensorFlow graph"):
        read_tensorflow(tmp_path / "bad.pb")


def test_the_plain_command_takes_the_number_format_and_the_framework_of_the_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = graph_pb2.GraphDef()
    forward(graph)
    path = tmp_path / "step.pb"
    path.write_bytes(graph.SerializeToString())
    assert main(["forecast", str(path), "--gpus", "1xh100", "--batch", "8", "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["precision"], settings["stack"], settings["batch"]) == ("fp32", "tensorflow", 8)
