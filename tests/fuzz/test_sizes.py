"""Files that ask for sizes that nothing has: refused in a sentence, before they are walked."""

import dataclasses
import itertools
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import make_mlp
from traincast.__main__ import main
from traincast.errors import InvalidInput
from traincast.files import save_graph
from traincast.schedule._layout import combine
from traincast.spec._graph import Op, Repeat, Scalable, Tensor


def set_in(path: tuple[Any, ...], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize("command", ["forecast", "similar", "fit"])
@pytest.mark.parametrize(
    "change",
    [
        set_in(("graph", "tensors", 0, "shape"), [10**200, 10**200]),
        set_in(("graph", "tensors", 0, "copies"), 10**400),
        set_in(("graph", "ops", 0, "flop"), 10**400),
        set_in(("graph", "ops", 0, "bytes_read"), 1e300),
        set_in(("graph", "batch_size"), 10**300),
        set_in(("graph", "repeats"), [{"start": 0, "stop": 1, "count": 10**300}]),
    ],
)
def test_a_graph_with_sizes_that_have_no_number_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, change: Callable[[dict[str, Any]], None]
) -> None:
    path = tmp_path / "g.json"
    save_graph(make_mlp(layers=2), path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    options = [] if command == "similar" else ["--gpus", "1xa100-80g"]
    assert main([command, str(path), *options]) == 2
    said = capsys.readouterr().err
    assert "internal error" not in said
    assert said.count("\n") == 1


def test_the_two_batches_of_a_graph_must_have_the_same_tensors() -> None:
    small, large = make_mlp(layers=1, batch=2), make_mlp(layers=1, batch=4)
    Scalable(small=small, large=large)
    flat = (dataclasses.replace(large.tensors[0], shape=(8,)), *large.tensors[1:])
    other_rank = (dataclasses.replace(large.tensors[0], shape=(2, 2, 2, 2)), *large.tensors[1:])
    for tensors in (large.tensors[:-1], flat if len(large.tensors[0].shape) != 1 else other_rank):
        with pytest.raises(InvalidInput):
            Scalable(small=small, large=dataclasses.replace(large, tensors=tensors))


def test_amounts_of_an_op_and_a_tensor_end_somewhere() -> None:
    Tensor(shape=(2**30, 2**30), dtype="fp32", role="activation")
    with pytest.raises(InvalidInput, match="elements"):
        Tensor(shape=(2**40, 2**40), dtype="fp32", role="activation")
    for amount in (float("nan"), float("inf"), -1.0, 1e31, 10**500):
        with pytest.raises(InvalidInput, match="amount"):
            Op(name="x", kind="other", flop=amount, bytes_read=0, bytes_written=0)
    with pytest.raises(InvalidInput, match="repeats"):
        dataclasses.replace(make_mlp(layers=1), repeats=(Repeat(start=0, stop=1, count=2**40),))


def test_columns_of_any_numbers_are_combined() -> None:
    """Jobs that ask for less than nothing, or for more GPUs than a product of two numbers can hold."""
    first = np.array([0, -3, 2**62, 0], dtype=np.int64)
    second = np.array([2**62, 1, 2**62, 2**62], dtype=np.int64)
    found = combine([first, second])
    assert found[0] == found[3]
    assert len(set(found.tolist())) == 3


def write_onnx(kind: str) -> bytes:
    """A file of some hundred bytes whose nodes ask for gigabytes or for a billion steps."""
    from onnx import TensorProto, helper

    whole = TensorProto.INT64
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    functions, tensors = [], [helper.make_tensor("w", TensorProto.FLOAT, [8, 8], [0.1] * 64)]
    tensors.append(helper.make_tensor("one", whole, [1], [1]))
    first = [helper.make_node("Identity", ["x"], ["y"])]
    if kind == "functions that call the next one twice":
        first = [helper.make_node("F0", ["x"], ["y"], domain="f")]
        for level in range(40):
            last = level == 39
            called, domain = ("Relu", "") if last else (f"F{level + 1}", "f")
            body = [helper.make_node(called, [a], [b], domain=domain) for a, b in (("a", "b"), ("b", "c"))]
            functions.append(helper.make_function("f", f"F{level}", ["a"], ["c"], body, opsets))
    elif kind == "a function that calls itself":
        first = [helper.make_node("F", ["x"], ["y"], domain="f")]
        body = [helper.make_node("F", ["a"], ["c"], domain="f")]
        functions.append(helper.make_function("f", "F", ["a"], ["c"], body, opsets))
    elif kind == "a billion outputs":
        first = [helper.make_node("Split", ["x"], ["y"], axis=1, num_outputs=10**9)]
    elif kind == "doubled again and again":
        names = ["one", *(f"c{level}" for level in range(34))]
        grow = [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in itertools.pairwise(names)]
        first += [*grow, helper.make_node("ReduceSum", [names[-1]], ["unused"], keepdims=0)]
    else:
        sizes = {"Expand": [60_000, 60_000], "Tile": [2_000_000_000]}[kind]
        tensors.append(helper.make_tensor("s", whole, [len(sizes)], sizes))
        first += [helper.make_node(kind, ["one", "s"], ["big"]), helper.make_node("ReduceSum", ["big"], ["unused"])]
    nodes = [*first, helper.make_node("MatMul", ["y", "w"], ["out"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)], tensors,
    )  # fmt: skip
    return bytes(helper.make_model(graph, functions=functions, opset_imports=opsets).SerializeToString())


ONNX_KINDS = ("functions that call the next one twice", "a function that calls itself", "a billion outputs",
              "doubled again and again", "Expand", "Tile")  # fmt: skip
BOUNDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
from traincast.__main__ import main
sys.exit(max(main(["capture", each, "-o", each + ".json"]) for each in sys.argv[1:]))
"""


def test_a_small_onnx_file_cannot_ask_for_gigabytes_or_for_ever(tmp_path: Path) -> None:
    """All of them in one process of 30 s of CPU time and 2 GiB."""
    pytest.importorskip("onnx")
    pytest.importorskip("torch")
    paths = []
    for number, kind in enumerate(ONNX_KINDS):
        paths.append(tmp_path / f"{number}.onnx")
        paths[-1].write_bytes(write_onnx(kind))
        assert len(paths[-1].read_bytes()) < 4000
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 2), (done.returncode, done.stderr)
    assert "internal error" not in done.stderr
    assert "MemoryError" not in done.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 30
