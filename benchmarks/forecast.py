"""CPU milliseconds of one forecast from a loaded graph: python benchmarks/forecast.py [REPEATS] [--beside FOLDER].

`again`: the engine has answered this very question before. `next`: it has answered for the same graph and now the plan differs
in one field, another one every time. `first`: a new engine. `--beside`: the source tree of another version (its src folder),
whose times are taken in turns with ours in the same run, so that the load of the machine does not matter.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from traincast import catalog
from traincast.catalog import workload
from traincast.files import load_graph, save_graph
from traincast.forecast import forecast
from traincast.spec import Cluster, Graph, Job, Parallelism

JOBS = {
    "resnet50, 1 device": ("resnet50", 1, Parallelism()),
    "gpt2-xl, data 16": ("gpt2-xl", 2, Parallelism(data=16)),
    "llama-2-7b, data 8": ("llama-2-7b", 1, Parallelism(data=8, zero=1)),
    "llama-3-70b, tensor 8 x pipeline 8": (
        "llama-3-70b",
        8,
        Parallelism(tensor=8, pipeline=8, micro_batches=64, sequence_parallel=True),
    ),
    "gpt3-175b, 512 devices": (
        "gpt3-175b",
        64,
        Parallelism(data=8, tensor=8, pipeline=8, micro_batches=64, sequence_parallel=True),
    ),
    "gpt3-175b, 100,352 devices": (
        "gpt3-175b",
        12_544,
        Parallelism(data=784, tensor=8, pipeline=16, micro_batches=32, zero=1),
    ),
}
AIM = 2.0
"""How many times as fast as the version it replaced."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repeats", nargs="?", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="the src folder of another version")
    parser.add_argument("--times", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.times:
        for name in JOBS:
            print(*measure(name, asked.repeats))
        return
    print(f"{'job':<38}{'load':>8}{'first':>8}{'next':>8}{'again':>8}", end="")
    print(f"{'other':>8}{'next':>8}{'again':>8}" if asked.beside else "", f"  CPU ms, best of {asked.repeats}")
    others = [line.split() for line in _run_beside(asked.beside, asked.repeats)] if asked.beside else []
    for place, name in enumerate(JOBS):
        load_ms, first_ms, next_ms, again_ms = measure(name, asked.repeats)
        print(f"{name:<38}{load_ms:>8.1f}{first_ms:>8.1f}{next_ms:>8.1f}{again_ms:>8.2f}", end="")
        if others:
            was_ms = float(others[place][2])
            print(f"{was_ms:>8.1f}{was_ms / next_ms:>7.1f}x{was_ms / again_ms:>7.1f}x", end="")
        print()


def measure(name: str, repeats: int) -> tuple[float, float, float, float]:
    """(load, first, next, again) in CPU milliseconds."""
    model, nodes, plan = JOBS[name]
    graph = workload(model, batch=4, precision="bf16")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.json.gz"
        save_graph(graph, file)
        load_ms = min(_milliseconds(lambda: load_graph(file)) for _ in range(repeats))
        loaded = load_graph(file)
    if not isinstance(loaded, Graph):
        raise SystemExit(f"{model} was not saved as one graph")
    per_node = max(1, plan.num_devices // nodes)
    cluster = catalog.cluster(device="h100", nodes=plan.num_devices // per_node, devices_per_node=per_node)
    job = Job(graph=loaded)
    forecast(job, cluster, plan)
    again_ms = min(_milliseconds(lambda: forecast(job, cluster, plan)) for _ in range(repeats))
    changed = [replace(plan, bucket_bytes=2e6 + number) for number in range(repeats)]
    next_ms = min(_milliseconds(lambda plan=one: forecast(job, cluster, plan)) for one in changed)
    first_ms = min(_milliseconds(_first(job, cluster, plan)) for _ in range(repeats))
    return load_ms, first_ms, next_ms, again_ms


def _first(job: Job, cluster: Cluster, plan: Parallelism) -> object:
    try:
        from traincast.forecast import Engine
    except ImportError:
        return lambda: forecast(job, cluster, plan)
    return lambda: Engine().forecast(job, cluster, plan)


def _run_beside(source: Path, repeats: int) -> list[str]:
    command = [sys.executable, __file__, str(repeats), "--times"]
    return subprocess.run(
        command, env={"PYTHONPATH": str(source)}, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def _milliseconds(work: object) -> float:
    started = time.process_time()
    work()  # type: ignore[operator]
    return (time.process_time() - started) * 1e3


if __name__ == "__main__":
    main()
