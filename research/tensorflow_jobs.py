"""DeletePop on its own ground: a static TensorFlow graph in, the time of a real distributed TensorFlow job out.

    python -m research.tensorflow_jobs measure [--models mlp,cnn] [--steps 20]     # root, the extra tensorflow-tests
    python -m research.tensorflow_jobs report

`measure` runs real jobs on the test-bed (nodes are network namespaces with shaped links and a share of the CPU each):
synchronous training by MultiWorkerMirroredStrategy, and a parameter server with asynchronous workers; equal and unequal nodes.
Every model is also written as the static graph of its step. `report` reads these graphs as `traincast capture` does, and
forecasts every job from the jobs of the *other* models: seconds per FLOP, per byte and per operation by non-negative least
squares, start-up by their median, traffic from the sizes of the gradients and the rates of the links.
Accuracy is 1 - |forecast / measured - 1|.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from research.output import say
from traincast.capture import load_source
from traincast.profile import EmulatedCluster, EmulatedNode, emulated, start_in_node, stop_all
from traincast.spec import Graph

MEASURED = Path(__file__).parent / "results" / "tensorflow_jobs.json"
WORKER = Path(__file__).with_name("tensorflow_worker.py")
MODELS = ("mlp", "cnn", "wide", "rnn")
BATCH = 32
BEDS: dict[str, tuple[EmulatedNode, ...]] = {
    "equal": (EmulatedNode(bits_per_s=2e8, cpu_share=0.4),) * 3,
    "unequal": (
        EmulatedNode(bits_per_s=2e8, cpu_share=0.5), EmulatedNode(bits_per_s=2e8, cpu_share=0.4),
        EmulatedNode(bits_per_s=1e8, cpu_share=0.25),
    ),
}  # fmt: skip
STRATEGIES = ("mirrored", "server")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowJob:
    """A job that ran from launch to exit."""

    model: str
    bed: str
    strategy: str
    num_steps: int
    wall_s: float
    step_s: float
    load: float
    """Processes that waited for this machine when the job began: others ran beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """What the static graph of one step says."""

    flop: float
    num_bytes: float
    num_ops: float
    gradient_bytes: float
    pulled_bytes: float
    """Of variables that its nodes read, each time they do: what a server sends."""
    pushed_bytes: float


def measure(models: Sequence[str], num_steps: int) -> None:
    known = [TensorFlowJob(**entry) for entry in json.loads(MEASURED.read_text())] if MEASURED.is_file() else []
    done = {(job.model, job.bed, job.strategy): job for job in known}
    graphs = MEASURED.parent / "tensorflow_graphs"
    graphs.mkdir(parents=True, exist_ok=True)
    for model in models:
        if not (graphs / f"{model}.pb").exists():
            command = [sys.executable, str(WORKER), "write", model, str(BATCH), str(graphs / f"{model}.pb")]
            subprocess.run(command, check=True, capture_output=True)
        for bed, nodes in BEDS.items():
            for strategy in STRATEGIES:
                job = _run_job(model, bed, nodes, strategy, num_steps)
                done[model, bed, strategy] = job
                say(f"{model} {bed} {strategy}: {job.wall_s:.1f} s, {job.step_s * 1e3:.0f} ms per step")
                MEASURED.write_text(json.dumps([_plain(job) for job in done.values()], indent=1) + "\n")


def _plain(job: TensorFlowJob) -> dict[str, Any]:
    return {key: getattr(job, key) for key in TensorFlowJob.__slots__}


def _run_job(model: str, bed: str, nodes: tuple[EmulatedNode, ...], strategy: str, num_steps: int) -> TensorFlowJob:
    cluster = EmulatedCluster(name="tf", nodes=nodes)
    addresses = [f"{cluster.address(node)}:{29_600 + node}" for node in range(len(nodes))]
    if strategy == "mirrored":
        roles = [("worker", node) for node in range(len(nodes))]
        members = {"worker": addresses}
    else:
        # The first node serves the parameters and leads; the others work.
        roles = [("ps", 0), *(("worker", node) for node in range(len(nodes) - 1)), ("chief", 0)]
        members = {"chief": [f"{cluster.address(0)}:29700"], "ps": addresses[:1], "worker": addresses[1:]}
    load = os.getloadavg()[0]
    with emulated(cluster), tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        started = time.monotonic()
        processes = []
        for role, index in roles:
            node = index + 1 if strategy == "server" and role == "worker" else index
            setting = {"cluster": members, "task": {"type": role, "index": index}}
            command = [sys.executable, str(WORKER), strategy, model, str(BATCH), str(num_steps), str(result)]
            processes.append(
                start_in_node(
                    cluster, node, command, environment={"TF_CONFIG": json.dumps(setting)}, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        last = processes[-1] if strategy == "server" else processes[0]
        try:
            code = last.wait(timeout=240)
        finally:
            stop_all(processes)
        wall_s = time.monotonic() - started
        if code:
            raise SystemExit(f"the job {model} {bed} {strategy} ended with {code}")
        step_s = float(json.loads(result.read_text())["step_s"])
    return TensorFlowJob(
        model=model, bed=bed, strategy=strategy, num_steps=num_steps, wall_s=wall_s, step_s=step_s, load=load
    )


def read_static(path: Path) -> Static:
    graph = load_source(str(path))
    if not isinstance(graph, Graph):
        raise SystemExit(f"{path} holds no step")
    pairs = list(zip(graph.ops, graph.counts(), strict=True))
    pulled, pushed = _variable_traffic(path)
    return Static(
        pulled_bytes=pulled,
        pushed_bytes=pushed,
        flop=sum((op.flop or 0.0) * count for op, count in pairs),
        num_bytes=sum(op.num_bytes * count for op, count in pairs),
        num_ops=float(sum(count for _, count in pairs)),
        gradient_bytes=graph.role_bytes("parameter"),
    )


def _variable_traffic(path: Path) -> tuple[float, float]:
    """Bytes of all reads and of all writes of variables."""
    from tensorboard.compat.proto import graph_pb2

    definition = graph_pb2.GraphDef()
    definition.ParseFromString(path.read_bytes())
    size: dict[str, float] = {}
    pulled = pushed = 0.0
    for node in definition.node:
        if node.op == "ReadVariableOp":
            shape = node.attr["_output_shapes"].list.shape[0]
            size[node.input[0]] = 4.0 * math.prod(dim.size for dim in shape.dim)
            pulled += size[node.input[0]]
    for node in definition.node:
        if node.op.startswith("Assign"):
            pushed += size.get(node.input[0], 0.0)
    return pulled, pushed


def _exchange_s(static: Static, bed: str, strategy: str) -> float:
    """A ring passes every link twice; a server sends what a step reads of variables and takes what it writes."""
    nodes = BEDS[bed]
    slowest = min(node.bits_per_s for node in nodes) / 8
    if strategy == "mirrored":
        return 2 * (len(nodes) - 1) / len(nodes) * static.gradient_bytes / slowest
    # Links run both ways at once, so the busier direction counts; a step here is one of any worker.
    server = nodes[0].bits_per_s / 8
    return max(static.pulled_bytes, static.pushed_bytes) / server


def _compute_share(bed: str, strategy: str) -> float:
    """Cores at work per step: the slowest node of a synchronous step, all workers of an asynchronous one."""
    shares = [node.cpu_share for node in BEDS[bed]]
    return min(shares) if strategy == "mirrored" else sum(shares[1:])


def forecast(job: TensorFlowJob, others: Sequence[TensorFlowJob], statics: dict[str, Static]) -> float:
    """From the jobs of other models."""
    alike = [other for other in others if other.strategy == job.strategy]
    rows, targets = [], []
    for other in alike:
        static = statics[other.model]
        share = _compute_share(other.bed, other.strategy)
        rest = max(0.0, other.step_s - _exchange_s(static, other.bed, other.strategy))
        rows.append(np.array([static.flop, static.num_bytes, static.num_ops, 1.0]) / share / other.step_s)
        targets.append(rest / other.step_s)
    matrix = np.array(rows)
    scale = np.maximum(matrix.max(axis=0), 1e-30)
    weights = nnls(matrix / scale, np.array(targets))[0] / scale
    static = statics[job.model]
    features = np.array([static.flop, static.num_bytes, static.num_ops, 1.0])
    step_s = float(features @ weights) / _compute_share(job.bed, job.strategy) + _exchange_s(
        static, job.bed, job.strategy
    )
    startup = [(other.wall_s - other.num_steps * other.step_s) / _starts(other.bed, other.strategy) for other in alike]
    return statistics.median(startup) * _starts(job.bed, job.strategy) + job.num_steps * step_s


def _starts(bed: str, strategy: str) -> float:
    """How long the last process takes to start, in seconds of a whole core: the first node of a server starts two."""
    shares = [node.cpu_share for node in BEDS[bed]]
    return 1 / min(shares) if strategy == "mirrored" else max(2 / shares[0], 1 / min(shares[1:]))


def report() -> None:
    jobs = [TensorFlowJob(**entry) for entry in json.loads(MEASURED.read_text())]
    graphs = MEASURED.parent / "tensorflow_graphs"
    statics = {model: read_static(graphs / f"{model}.pb") for model in {job.model for job in jobs}}
    say("| model | nodes | strategy | steps | measured s | forecast s | accuracy | load |")
    say("|---|---|---|---|---|---|---|---|")
    accuracies: dict[str, list[float]] = {}
    for job in jobs:
        predicted = forecast(job, [other for other in jobs if other.model != job.model], statics)
        accuracy = 1 - abs(predicted / job.wall_s - 1)
        for group in ("all", job.strategy, job.bed):
            accuracies.setdefault(group, []).append(accuracy)
        say(
            f"| {job.model} | {job.bed} | {job.strategy} | {job.num_steps} | {job.wall_s:.1f} | {predicted:.1f} | "
            f"{accuracy:.1%} | {job.load:.1f} |"
        )
    for group, found in accuracies.items():
        say(f"{group}: n {len(found)}, mean {statistics.mean(found):.1%}, worst {min(found):.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("measure", "report"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.action == "measure":
        measure(arguments.models.split(","), arguments.steps)
    else:
        report()


if __name__ == "__main__":
    main()
