"""DeletePop on its own ground: a static TensorFlow graph in, the time of a real distributed TensorFlow job out.

    python -m research.tensorflow_jobs measure [--models mlp,cnn] [--steps 20]     # root, the extra tensorflow-tests
    python -m research.tensorflow_jobs report

`measure` runs real jobs on the test-bed (nodes are network namespaces with shaped links and a share of the CPU each):
synchronous training by MultiWorkerMirroredStrategy, and a parameter server with asynchronous workers; equal and unequal nodes.
Every model is also written as the static graph of its step. `report` forecasts every job as `traincast forecast` does: the graph
file, the nodes with their shaped links and shares of a core, the plan (replicas, or a server with asynchronous workers), and the
calibration that `traincast learn` makes of the jobs of the *other* models under the same strategy. Start-up is the median of
these jobs, and what tracing a graph costs for each of its nodes. Accuracy is 1 - |forecast / measured - 1|.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from research.corpus.testbed import EmulatedCluster, EmulatedNode, emulated, start_in_node, stop_all
from research.output import say
from traincast.capture import load_source
from traincast.catalog import device, plain_stack
from traincast.certainty._labels import label_run
from traincast.forecast import forecast as answer
from traincast.learn import learn
from traincast.spec import Cluster, Graph, Job, Link, MeasuredRun, NodeGroup, Parallelism

MEASURED = Path(__file__).parent / "results" / "tensorflow_jobs.json"
GRAPHS = MEASURED.parent / "tensorflow_graphs"
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
TRACE_S_PER_NODE = 8.5e-4
"""CPU seconds of the first call of a function for each node of its graph: products and tanh in chains of 5 to 120, one process
of MultiWorkerMirroredStrategy, 46 to 736 nodes (0.04, 0.18, 0.44, 0.63 s). Measured by itself, not on these jobs."""


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


def measure(models: Sequence[str], num_steps: int) -> None:
    known = [TensorFlowJob(**entry) for entry in json.loads(MEASURED.read_text())] if MEASURED.is_file() else []
    done = {(job.model, job.bed, job.strategy): job for job in known}
    graphs = GRAPHS
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


def pose(job: TensorFlowJob, graph: Graph) -> tuple[Job, Cluster, Parallelism]:
    """As a user would ask: the static graph, nodes with their links and shares of a core, and the strategy as a plan."""
    # The first node of a server holds the variables.
    nodes = BEDS[job.bed] if job.strategy == "mirrored" else BEDS[job.bed][1:]
    groups = []
    for node in nodes:
        link = Link(name="shaped", bytes_per_s=node.bits_per_s / 8, latency_s=node.latency_s, kind="ethernet")
        groups.append(
            NodeGroup(
                device=device("cpu"), num_nodes=1, devices_per_node=1, intra=link, inter=link, speed=node.cpu_share
            )
        )
    is_mirrored = job.strategy == "mirrored"
    plan = Parallelism(data=len(nodes), servers=0 if is_mirrored else 1, asynchronous=not is_mirrored)
    # Steps of any worker are counted; a plan counts those of each.
    asked = Job(graph=graph, stack=plain_stack(), steps=round(job.num_steps / _workers(job)), startup_s=0.0)
    return asked, Cluster(name=job.bed, groups=tuple(groups)), plan


def _workers(job: TensorFlowJob) -> int:
    return 1 if job.strategy == "mirrored" else len(BEDS[job.bed]) - 1


def _as_run(job: TensorFlowJob, graph: Graph) -> MeasuredRun:
    asked, cluster, plan = pose(job, graph)
    return MeasuredRun(
        labels=label_run(asked, cluster, plan), job=asked, cluster=cluster, parallelism=plan,
        step_s=job.step_s * _workers(job), name=f"{job.model} {job.bed}",
    )  # fmt: skip


def forecast(job: TensorFlowJob, others: Sequence[TensorFlowJob], graphs: dict[str, Graph]) -> tuple[float, float]:
    """Seconds of the job and of one of its steps: `traincast forecast` with what `traincast learn` took from the other jobs. How
    long a job starts is that of the others on the same nodes, where there are some."""
    alike = [other for other in others if other.strategy == job.strategy]
    calibration = learn([_as_run(other, graphs[other.model]) for other in alike])
    asked, cluster, plan = pose(job, graphs[job.model])
    spent = [
        (other.wall_s - other.num_steps * other.step_s) / _starts(other.bed, other.strategy) - _trace_s(other.model)
        for other in [other for other in alike if other.bed == job.bed] or alike
    ]
    startup_s = (statistics.median(spent) + _trace_s(job.model)) * _starts(job.bed, job.strategy)
    found = answer(replace(asked, startup_s=startup_s), cluster, plan, calibration=calibration)
    return found.job.total.seconds, found.step.seconds / _workers(job)


def _trace_s(model: str) -> float:
    """Of a whole core, before the first step."""
    return TRACE_S_PER_NODE * count_nodes(GRAPHS / f"{model}.pb")


@functools.cache
def count_nodes(path: Path) -> int:
    from tensorboard.compat.proto import graph_pb2

    definition = graph_pb2.GraphDef()
    definition.ParseFromString(path.read_bytes())
    return len(definition.node)


def _starts(bed: str, strategy: str) -> float:
    """How long the last process takes to start, in seconds of a whole core: the first node of a server starts two."""
    shares = [node.cpu_share for node in BEDS[bed]]
    return 1 / min(shares) if strategy == "mirrored" else max(2 / shares[0], 1 / min(shares[1:]))


def read_graph(path: Path) -> Graph:
    graph = load_source(str(path))
    if not isinstance(graph, Graph):
        raise SystemExit(f"{path} holds no step")
    return graph


def report() -> None:
    jobs = [TensorFlowJob(**entry) for entry in json.loads(MEASURED.read_text())]
    graphs = {model: read_graph(GRAPHS / f"{model}.pb") for model in {job.model for job in jobs}}
    say("A model left out: its jobs are forecast from those of the other models.")
    _tabulate(jobs, graphs, lambda job, other: other.model != job.model)
    say("A model and a setting left out: from those of the other models on the other nodes.")
    _tabulate(jobs, graphs, lambda job, other: other.model != job.model and other.bed != job.bed)


def _tabulate(
    jobs: Sequence[TensorFlowJob], graphs: dict[str, Graph], may_teach: Callable[[TensorFlowJob, TensorFlowJob], bool]
) -> None:
    say(
        "| model | nodes | strategy | step, measured ms | forecast ms | job, measured s | forecast s | accuracy | load |"
    )
    say("|---|---|---|---|---|---|---|---|---|")
    accuracies: dict[str, list[float]] = {}
    for job in jobs:
        predicted, step_s = forecast(job, [other for other in jobs if may_teach(job, other)], graphs)
        accuracy = 1 - abs(predicted / job.wall_s - 1)
        for group in ("all", job.strategy, job.bed):
            accuracies.setdefault(group, []).append(accuracy)
        say(
            f"| {job.model} | {job.bed} | {job.strategy} | {job.step_s * 1e3:.0f} | {step_s * 1e3:.0f} | {job.wall_s:.1f} | "
            f"{predicted:.1f} | {accuracy:.1%} | {job.load:.1f} |"
        )
    for group, found in accuracies.items():
        say(f"- {group}: n {len(found)}, mean {statistics.mean(found):.1%}, worst {min(found):.1%}")


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
