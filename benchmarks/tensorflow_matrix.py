"""Reads every form in which TensorFlow writes a model, and compares it with Keras' counts and TensorFlow's profiler.

    python benchmarks/tensorflow_matrix.py [--models bert,lstm,...] [--directory DIR] [-o benchmarks/tensorflow_matrix.md]

Needs `traincast[tensorflow-tests]`. TensorFlow runs in a process of its own, which writes the files; here they are only read.
Forms: a traced step with Adam, AdamW and SGD with momentum, the step of `model.fit`, `model.export`, `tf.saved_model.save`,
`.keras`, a GraphDef of TensorFlow 1 (frozen) and a `.meta` file. Products of the forward pass are compared with the profiler,
products of the backward pass with twice the forward ones; what lies below that is the gradient of the data, which nobody needs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"
os.environ.setdefault("OMP_NUM_THREADS", "1")

from traincast.capture import load_source
from traincast.spec import Graph

WRITER = Path(__file__).parents[1] / "tests" / "capture" / "write_tensorflow.py"
MODELS = "resnet50 mobilenetv2 efficientnetb0 densenet121 bert gpt lstm gru dlrm mixed_bert mixed_gpt mixed_mobilenetv2"
PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "Conv2D", "DepthwiseConv2dNative", "Einsum")
BATCH = 4


@dataclass(slots=True)
class Row:
    """One file."""

    model: str
    form: str
    error: str = ""
    mode: str = ""
    parameters: int = 0
    exact: bool = False
    forward_ratio: float | None = None
    backward_ratio: float | None = None
    state_exact: bool | None = None
    cpu_s: float = 0.0

    @property
    def is_right(self) -> bool:
        forward = self.forward_ratio is None or abs(self.forward_ratio - 1) <= 0.01
        return not self.error and self.exact and self.state_exact is not False and forward


def products(graph: Graph, phase: str) -> float:
    kinds = ("matmul", "conv", "attention", "rnn")
    total = 0.0
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        if op.phase == phase and op.kind in kinds:
            # A causal kernel skips half of its square; the profiler counts all of it.
            total += (op.flop or 0.0) * count * (2 if op.attrs.get("causal") else 1)
    return total


def forms(name: str) -> Iterator[tuple[str, str, str]]:
    """(form, file, whose facts)."""
    for kind in ("adam", "adamw", "sgd"):
        yield f"step, {kind}", f"{name}.{kind}.step.pb", f"{name}.{kind}"
    for form, file in (
        ("fit's step", "fit.pb"), ("model.export", "export"), ("saved_model.save", "saved"), (".keras", "keras"),
        ("frozen GraphDef", "frozen.pb"), (".meta", "meta"),
    ):  # fmt: skip
        yield form, f"{name}.adam.{file}", f"{name}.adam"


def read(directory: Path, model: str, form: str, file: str, facts: dict[str, Any], profiled: float | None) -> Row:
    row = Row(model=model, form=form)
    is_open = form in ("model.export", "saved_model.save", ".keras")
    started = time.process_time()
    try:
        graph = load_source(str(directory / file), **({"batch": BATCH} if is_open else {}))
    except Exception as error:
        row.error = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        return row
    row.cpu_s = time.process_time() - started
    if not isinstance(graph, Graph):
        row.error = "not one graph"
        return row
    row.mode, row.parameters = graph.mode, graph.num_parameters
    # Without a training step in the file, what is trained cannot be told from moving averages.
    row.exact = facts["trainable"] <= graph.num_parameters <= facts["trainable"] + facts["frozen"]
    forward = products(graph, "forward")
    row.forward_ratio = forward / profiled if profiled else None
    if graph.mode != "inference":
        row.exact = graph.num_parameters == facts["trainable"]
        row.state_exact = graph.role_bytes("optimizer_state") == facts["state_bytes"]
        row.backward_ratio = products(graph, "backward") / (2 * forward) if forward else None
    return row


def table(rows: list[Row]) -> str:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}"

    def word(value: bool | None) -> str:
        return {None: "", True: "yes", False: "no"}[value]

    right = sum(row.is_right for row in rows)
    ratios = [row.forward_ratio for row in rows if row.forward_ratio is not None]
    lines = [
        "# What TensorFlow writes, read",
        "",
        "Written by `python benchmarks/tensorflow_matrix.py`. Parameters and optimizer state are compared with Keras' own "
        "counts, matmuls of the forward pass with the profiler of TensorFlow, those of the backward pass with twice the "
        "forward ones. "
        "The profiler runs at `training=False`. Recurrent layers are loops, whose bodies the profiler counts once or never, "
        "so they are compared with a count by hand in `tests/capture/test_tensorflow_today.py`.",
        "",
        f"- read, and right in every column: {right} of {len(rows)}",
        f"- forward matmuls within 1% of the profiler: {sum(abs(r - 1) <= 0.01 for r in ratios)} of {len(ratios)}",
        "",
        "| model | form | mode | parameters | exact | forward / profiler | backward / 2x forward | state | CPU s | refused |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.model} | {row.form} | {row.mode} | {row.parameters:,} | {word(row.exact)} | {number(row.forward_ratio)} | "
        f"{number(row.backward_ratio)} | {word(row.state_exact)} | {row.cpu_s:.2f} | {row.error} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS.split()))
    parser.add_argument("--directory", default="", help="Where the files are, or shall be written.")
    parser.add_argument("-o", "--output", default="")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    directory = Path(arguments.directory or tempfile.mkdtemp(prefix="tensorflow_matrix_"))
    rows: list[Row] = []
    for model in arguments.models.split(","):
        if not (directory / f"{model}.sgd.json").exists():
            subprocess.run(
                [sys.executable, str(WRITER), str(directory), model, "--all"], check=True, capture_output=True
            )
        profile = json.loads((directory / f"{model}.adam.json").read_text())["profile"]
        profiled = float(sum(profile.get(kind, 0) for kind in PRODUCTS))
        for form, file, owner in forms(model):
            facts = json.loads((directory / f"{owner}.json").read_text())
            compared = None if model.removeprefix("mixed_") in ("lstm", "gru") else profiled
            rows.append(read(directory, model, form, file, facts, compared))
            print(rows[-1], flush=True)
        if arguments.output:
            Path(arguments.output).write_text(table(rows))
    print(table(rows).split("| model")[0])


if __name__ == "__main__":
    main()
