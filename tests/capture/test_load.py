"""Every form in which a user may name a model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from traincast.capture import load_source
from traincast.cli import run
from traincast.errors import CaptureFailed, InvalidInput, TraincastError
from traincast.files import load_graph
from traincast.resolve._precision import written_precision
from traincast.spec._graph import Graph, Scalable

MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), make_inputs

def make_inputs(batch):
    return torch.zeros(batch, 8)

def loss(output):
    return output.square().mean()

def fixed():
    return build()[0], torch.zeros(3, 8)

def alone():
    return nn.Linear(8, 4)

def broken():
    raise RuntimeError("out of\\nideas")

def not_a_model():
    return 42, torch.zeros(2, 2)
"""

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_model.py"
    path.write_text(MODEL)
    return path


def test_a_python_file_is_recorded_at_the_asked_batch(file: Path) -> None:
    graph = load_source(f"{file}:build", batch=6, optimizer="sgd")
    assert isinstance(graph, Graph)
    assert (graph.batch_size, graph.name) == (6, "my_model")
    assert graph.assumptions == ()
    assert next(op for op in graph.ops if op.kind == "optimizer").attrs["algorithm"] == "sgd"


def test_build_is_the_default_name_and_inputs_may_stand_beside(file: Path) -> None:
    assert load_source(str(file)).ops == load_source(f"{file}:build", batch=1).ops  # type: ignore[union-attr]
    graph = load_source(f"{file}:alone", batch=5)
    assert isinstance(graph, Graph)
    assert graph.batch_size == 5


def test_no_optimizer_means_forward_and_backward(file: Path) -> None:
    graph = load_source(f"{file}:build", optimizer="none")
    assert isinstance(graph, Graph)
    assert graph.mode == "forward_backward"


def test_a_file_recorded_for_any_batch_answers_every_batch(file: Path) -> None:
    scalable = load_source(f"{file}:build", scalable=True)
    assert isinstance(scalable, Scalable)
    single = load_source(f"{file}:build", batch=32)
    assert scalable.at(32).flop == single.flop  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("broken", {}, "it raised RuntimeError (at my_model.py:21): out of ideas"),
        ("not_a_model", {}, "a torch.nn.Module is needed"),
        ("missing", {}, "has no 'missing'; it defines: build, make_inputs, loss"),
        ("fixed", {"batch": 8}, "are 3 samples, not 8"),
        ("fixed", {"scalable": True}, "fixed batch"),
        ("build", {"batch": 0}, "a batch of 0"),
        ("build", {"precision": "fp31"}, "unknown precision 'fp31'"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(file: Path, name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(TraincastError) as raised:
        load_source(f"{file}:{name}", **options)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def build(:\n")
    with pytest.raises(CaptureFailed, match=r"SyntaxError .*line 1"):
        load_source(str(bad))
    with pytest.raises(InvalidInput, match="there is no file"):
        load_source(str(tmp_path / "absent.onnx"))
    (tmp_path / "weights.bin").write_bytes(b"123")
    with pytest.raises(InvalidInput, match="not a model that can be read"):
        load_source(str(tmp_path / "weights.bin"))
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(InvalidInput, match="not a Hugging Face config"):
        load_source(str(tmp_path / "other.json"))


def test_a_hugging_face_config_is_recorded_without_weights(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    graph = load_source(str(path), batch=2, seq=16, precision="bf16")
    assert isinstance(graph, Graph)
    width, kv, inner, vocabulary, layers = 32, 16, 64, 100, 6
    block = 2 * width * width + 2 * width * kv + 3 * width * inner + 2 * width
    assert graph.num_parameters == 2 * vocabulary * width + layers * block + width
    assert (graph.batch_size, graph.tokens_per_sample, graph.samples_unit) == (2, 16, "sequences")
    assert [repeat.count for repeat in graph.repeats] == [6, 6]
    assert load_source(CONFIG, batch=2, seq=16, precision="bf16").flop == graph.flop  # type: ignore[union-attr]


def test_checkpointing_of_a_config_recomputes_its_layers() -> None:
    pytest.importorskip("transformers")
    plain, kept = (load_source(CONFIG, batch=2, seq=16, checkpointing=flag) for flag in (False, True))
    assert isinstance(plain, Graph)
    assert isinstance(kept, Graph)
    assert {op.phase for op in kept.ops} - {op.phase for op in plain.ops} == {"recompute"}
    assert kept.flop > plain.flop


def test_a_jax_file_is_recorded(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    path = tmp_path / "step.py"
    path.write_text(
        "import jax, jax.numpy as jnp\n"
        "framework = 'jax'\n"
        "def build(batch=4):\n"
        "    step = lambda w, x: w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)\n"
        "    return step, (jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((batch, 8), jnp.float32))\n"
    )
    graph = load_source(str(path), batch=16)
    assert isinstance(graph, Graph)
    assert (graph.batch_size, graph.source, graph.num_parameters) == (16, "jax", 64)


def test_an_unknown_config_is_named() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(CaptureFailed, match="no_such_model"):
        load_source({"model_type": "no_such_model"})


def test_the_command_writes_a_graph_and_tells_about_it(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "graph.json.gz"
    assert run(["capture", f"{file}:build", "-o", str(target), "--batch", "4", "--json"]) == 0
    summary = json.loads(capfd.readouterr().out)
    assert summary["parameters"] == 8 * 16 + 16 + 16 * 4 + 4
    assert summary["file"] == str(target)
    graph = load_graph(target)
    assert isinstance(graph, Graph)
    assert graph.flop == summary["flop"]
    assert load_source(str(target)) == graph
    assert run(["capture", f"{file}:build", "--any-batch"]) == 0
    assert "any batch" in capfd.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--batch", "2", "--any-batch"], ["-o", "graph.txt"], ["-o", "/no/such/directory/graph.json"]]
)
def test_the_command_refuses_what_it_cannot_do(file: Path, arguments: list[str]) -> None:
    with pytest.raises(InvalidInput):
        run(["capture", f"{file}:build", *arguments])


def test_the_room_imports_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from traincast.capture import capture\n"
        "from traincast.errors import MissingExtra\n"
        "try:\n    capture(None)\nexcept MissingExtra as error:\n    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert "pip install 'traincast[torch]'" in answer.stdout


@pytest.mark.slow
def test_llama_3_70b_is_captured_in_seconds_without_its_weights(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {
        **CONFIG, "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    code = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from traincast.capture import load_source\n"
        "from traincast.files import save_graph\n"
        "graph = load_source(sys.argv[1], batch=1, seq=4096, precision='bf16')\n"
        "save_graph(graph, sys.argv[2])\n"
        # getrusage would count what this test process had taken when it started the other.
        "print(1024 * int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text()).group(1)))\n"
    )
    target = tmp_path / "graph.json.gz"
    answer = subprocess.run(
        [sys.executable, "-c", code, str(path), str(target)], capture_output=True, text=True, check=True
    )
    assert float(answer.stdout) < 2**30
    graph = load_graph(target)
    assert isinstance(graph, Graph)
    assert graph.num_parameters == 70_553_706_496
    assert target.stat().st_size < 100_000
    assert {repeat.count for repeat in graph.repeats} == {80}
    counted = list(zip(graph.ops, graph.counts(), strict=True))
    products = sum((op.flop or 0) * count for op, count in counted if op.kind == "matmul" and op.phase == "forward")
    weights = graph.num_parameters - 128256 * 8192 - 161 * 8192
    assert products == pytest.approx(2 * 4096 * weights, rel=1e-5)


def test_a_jaxpr_in_text_is_refused_with_the_way_that_works(tmp_path: Path) -> None:
    path = tmp_path / "step.jaxpr"
    path.write_text("{ lambda ; a:f32[8]. let b:f32[8] = mul a a in (b,) }")
    with pytest.raises(InvalidInput, match=r"as_text\(debug_info=True\)"):
        load_source(str(path))


NO_BATCH = """
import torch
from torch import nn

class Rays(nn.Module):
    def __init__(self):
        super().__init__()
        self.color = nn.Linear(3, 3)

    def forward(self, rays, *bags):
        return self.color(torch.cat([rays, *bags]))

def rays():
    return Rays(), lambda batch: (torch.zeros(64 * batch, 3),)

def bags():
    return Rays(), lambda batch: [torch.zeros(7, 3) for _ in range(batch)]

def by_build(batch=1):
    return Rays(), torch.zeros(64 * batch, 3)

def nodes():
    return Rays(), torch.zeros(200, 3)
"""


@pytest.mark.parametrize(("name", "rows"), [("rays", 64), ("bags", 7), ("by_build", 64)])
def test_a_batch_is_what_the_file_makes_for_it_whatever_the_first_dims_are(
    tmp_path: Path, name: str, rows: int
) -> None:
    (tmp_path / "scene.py").write_text(NO_BATCH)
    graph = load_source(f"{tmp_path / 'scene.py'}:{name}", batch=3)
    assert isinstance(graph, Graph)
    assert graph.batch_size == 3
    assert next(op for op in graph.ops if op.kind == "matmul").attrs["m"] == 3 * rows


def test_a_file_says_how_many_samples_its_inputs_are(tmp_path: Path) -> None:
    path = tmp_path / "graph.py"
    path.write_text(NO_BATCH)
    assert load_source(f"{path}:nodes").batch_size == 200  # type: ignore[union-attr]
    path.write_text(f"{NO_BATCH}\nbatch_size = 1\n")
    assert load_source(f"{path}:nodes").batch_size == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "bf16-amp", "fp16-amp"])
def test_a_recorded_step_knows_the_number_format_it_was_written_in(file: Path, precision: str) -> None:
    graph = load_source(f"{file}:build", batch=2, precision=precision)
    assert isinstance(graph, Graph)
    assert written_precision(graph) == precision


@pytest.mark.parametrize(("dim", "samples"), [("0", 12), ("1", 5), ("None", 1)])
def test_the_batch_is_the_dim_that_the_file_names(tmp_path: Path, dim: str, samples: int) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        f"import torch\nfrom torch import nn\nbatch_dim = {dim}\n"
        "def build():\n    return nn.Linear(8, 4), torch.zeros(12, 5, 8)\n"
    )
    graph = load_source(f"{path}:build")
    assert isinstance(graph, Graph)
    assert graph.batch_size == samples
    # Without a batch the inputs are as they are.
    assert next(op for op in graph.ops if op.kind == "matmul").attrs["m"] == 60


def test_given_inputs_grow_along_the_dim_that_is_the_batch(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nfrom torch import nn\nbatch_dim = 1\ndef build():\n    return nn.Linear(8, 4), torch.zeros(12, 5, 8)\n"
    )
    graph = load_source(f"{path}:build", batch=7)
    assert isinstance(graph, Graph)
    assert (graph.batch_size, next(op for op in graph.ops if op.kind == "matmul").attrs["m"]) == (7, 12 * 7)
    scalable = load_source(f"{path}:build", scalable=True)
    assert isinstance(scalable, Scalable)
    assert scalable.at(7) == graph


def test_a_list_of_tensors_is_as_many_samples_as_it_is_long(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nfrom torch import nn\nclass Bags(nn.Linear):\n    def forward(self, bags):\n"
        "        return torch.stack([super(Bags, self).forward(bag).mean(0) for bag in bags])\n"
        "def build():\n    return Bags(8, 4), ([torch.zeros(10, 8), torch.zeros(30, 8)],)\n"
    )
    assert load_source(f"{path}:build").batch_size == 2  # type: ignore[union-attr]


SCALING = """
import torch
from torch import nn

class Contrast(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y @ y.T

class Steps(nn.Linear):
    def forward(self, x):
        return super().forward(x[1:] - x[:-1])

def contrast():
    return Contrast(64, 64), lambda batch: torch.zeros(batch, 64)

def steps():
    return Steps(64, 64), lambda batch: torch.zeros(batch, 64)
"""


def test_a_model_that_grows_faster_than_its_batch_is_not_scaled(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(SCALING)
    with pytest.raises(CaptureFailed, match=r"does not scale with the batch: aten\.mm"):
        load_source(f"{path}:contrast", scalable=True)
    scalable = load_source(f"{path}:steps", scalable=True)
    assert isinstance(scalable, Scalable)
    recorded = load_source(f"{path}:steps", batch=32)
    assert isinstance(recorded, Graph)
    assert [op.flop for op in scalable.at(32).ops] == [op.flop for op in recorded.ops]
