"""The Python of docs/how-to/capture.md runs as it stands, in the order of the page."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

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
    for file in ("step.mlir", "step.jaxpr"):
        from_file = load_source(file)
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
