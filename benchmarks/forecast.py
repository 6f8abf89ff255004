"""CPU milliseconds of one forecast from a loaded graph: python benchmarks/forecast.py [REPEATS]."""

import sys
import tempfile
import time
from pathlib import Path

from traincast import catalog
from traincast.catalog.workloads import workload
from traincast.files import load_graph, save_graph
from traincast.forecast import forecast
from traincast.spec import Graph, Job, Parallelism

JOBS = {
    "resnet50, 1 device": ("resnet50", 1, Parallelism(), 20),
    "gpt2-xl, data 16": ("gpt2-xl", 2, Parallelism(data=16), 20),
    "llama-3-70b, tensor 8 x pipeline 8": (
        "llama-3-70b",
        8,
        Parallelism(tensor=8, pipeline=8, micro_batches=64, sequence_parallel=True),
        20,
    ),
    "gpt3-175b, 512 devices": (
        "gpt3-175b",
        64,
        Parallelism(data=8, tensor=8, pipeline=8, micro_batches=64, sequence_parallel=True),
        50,
    ),
    "gpt3-175b, 100,352 devices": (
        "gpt3-175b",
        12_544,
        Parallelism(data=784, tensor=8, pipeline=16, micro_batches=32, zero=1),
        1000,
    ),
}


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'job':<38}{'load':>8}{'forecast':>10}{'aim':>8}{'file':>10}   CPU milliseconds, best of {repeats}")
    for name, (model, nodes, plan, aim_ms) in JOBS.items():
        graph = workload(model, batch=4, precision="bf16")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "graph.json.gz"
            save_graph(graph, file)
            load_ms = min(_milliseconds(lambda file=file: load_graph(file)) for _ in range(repeats))
            loaded, size = load_graph(file), file.stat().st_size
        if not isinstance(loaded, Graph):
            raise SystemExit(f"{model} was not saved as one graph")
        per_node = max(1, plan.num_devices // nodes)
        cluster = catalog.cluster(device="h100", nodes=plan.num_devices // per_node, devices_per_node=per_node)
        job = Job(graph=loaded)
        forecast(job, cluster, plan)
        best_ms = min(
            _milliseconds(lambda job=job, at=cluster, plan=plan: forecast(job, at, plan)) for _ in range(repeats)
        )
        print(f"{name:<38}{load_ms:>8.1f}{best_ms:>10.1f}{aim_ms:>8.0f}{size / 1024:>7.0f} KB")


def _milliseconds(work: object) -> float:
    started = time.process_time()
    work()  # type: ignore[operator]
    return (time.process_time() - started) * 1e3


if __name__ == "__main__":
    main()
