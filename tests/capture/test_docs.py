"""The Python of docs/how-to/capture.md runs as it stands, in the order of the page."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

from traincast.__main__ import main
from traincast.capture import load_source
from traincast.spec._graph import Graph, Scalable

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "capture.md"


class MyModel(nn.Module):
    def __init__(self, huge: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(4096 if huge else 224, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) if x.shape[-1] == self.body.in_features else self.body(x[..., :224])


def train_step(state: Any, batch: jax.Array) -> Any:
    gradients = jax.grad(lambda w: jnp.tanh(batch @ w).mean())(state["weights"])
    moments = 0.9 * state["moments"] + gradients
    return {"weights": state["weights"] - 0.1 * moments, "moments": moments}


def blocks() -> list[str]:
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(found) >= 6
    # The one that needs TensorFlow runs in a process of its own, below.
    return [block for block in found if "get_concrete_function" not in block]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(16, 4)
    shapes = {"weights": jax.ShapeDtypeStruct((8, 4), jnp.float32)}
    names: dict[str, Any] = {
        "torch": torch, "jax": jax, "MyModel": MyModel, "model": model, "inputs": torch.zeros(2, 16), "build": lambda: model,
        "first": torch.optim.SGD([model.weight], lr=0.1), "second": torch.optim.Adam([model.bias]), "train_step": train_step,
        "state": {**shapes, "moments": shapes["weights"]}, "batch": jax.ShapeDtypeStruct((2, 8), jnp.float32),
    }  # fmt: skip
    for block in blocks():
        exec(block, names)  # the page itself is what is tested
        if "MyModel(), make_inputs" in block:
            names["build"] = lambda: model
    assert isinstance(names["scalable"], Scalable)
    assert isinstance(names["graph"], Graph)
    assert names["graph"].num_parameters == 32
    from_file = load_source("step.mlir")
    assert isinstance(from_file, Graph)
    assert from_file.role_bytes("optimizer_state") == 4 * 32


def test_a_file_as_the_page_writes_it_is_recorded(tmp_path: Path) -> None:
    source = next(block for block in blocks() if "# my_file.py" in block)
    model = "class MyModel(torch.nn.Conv2d):\n    def __init__(self):\n        super().__init__(3, 4, 3)\n"
    path = tmp_path / "my_file.py"
    path.write_text(source.replace("import torch\n", f"import torch\n\n\n{model}", 1))
    graph = load_source(f"{path}:build", batch=2)
    assert isinstance(graph, Graph)
    assert graph.batch_size == 2
    assert [op.attrs["algorithm"] for op in graph.ops if op.kind == "optimizer"] == ["momentum"]


SMALL_STEP = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["CUDA_VISIBLE_DEVICES"] = "3", ""
from pathlib import Path
import tensorflow as tf
weights = tf.Variable(tf.zeros((8, 4)))
images, labels = tf.zeros((2, 8)), tf.zeros((2, 4))

@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((images @ weights - labels) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss

"""


def test_the_lines_for_tensorflow_run(tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    block = next(each for each in found if "get_concrete_function" in each)
    done = subprocess.run(
        [sys.executable, "-c", SMALL_STEP + block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    graph = load_source(tmp_path / "step.pb")
    assert isinstance(graph, Graph)
    assert graph.num_parameters == 32
    assert graph.batch_size == 2


SAVED = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["CUDA_VISIBLE_DEVICES"], os.environ["KERAS_BACKEND"] = "3", "", "tensorflow"
import keras
import tensorflow as tf
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
model.save("model.keras")
model.export("saved_model", verbose=False)
weights = tf.Variable(tf.zeros((8, 4)))
step = tf.function(lambda x: weights.assign_sub(tf.linalg.matmul(x, tf.linalg.matmul(x, weights), transpose_a=True)))
found = step.get_concrete_function(tf.zeros((2, 8))).graph.as_graph_def(add_shapes=True)
open("step.pb", "wb").write(found.SerializeToString())
"""


def write_onnx(path: Path) -> None:
    """A dense layer for any batch."""
    onnx = pytest.importorskip("onnx", reason="needs traincast[onnx]")
    given, made = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", width])
        for name, width in (("x", 8), ("y", 4))
    )
    weights = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [8, 4], [0.0] * 32)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "dense", [given], [made], [weights])), str(path))


def write_sources(folder: Path) -> None:
    """A small one of every sort that the page's commands name."""
    source = next(block for block in blocks() if "# my_file.py" in block)
    model = "class MyModel(torch.nn.Conv2d):\n    def __init__(self):\n        super().__init__(3, 4, 3)\n"
    (folder / "my_file.py").write_text(source.replace("import torch\n", f"import torch\n\n\n{model}", 1))
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 128,
    }
    config = {"model_type": "llama", "max_position_embeddings": 4096, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    write_onnx(folder / "model.onnx")
    arguments = {"weights": jnp.zeros((8, 4)), "moments": jnp.zeros((8, 4))}, jnp.zeros((2, 8))
    (folder / "step.mlir").write_text(jax.jit(train_step).lower(*arguments).as_text(debug_info=True))
    command = [sys.executable, "-c", SAVED]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    lines = [line.partition("#")[0] for line in PAGE.read_text().splitlines() if line.startswith("traincast capture ")]
    assert lines
    write_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)
        assert "Next: traincast forecast" in capsys.readouterr().out
