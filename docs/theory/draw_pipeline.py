"""Exports the step of distributed.md for Perfetto: python docs/theory/draw_pipeline.py"""

import gzip
import json
from pathlib import Path

from traincast import catalog, forecast
from traincast.catalog import workload
from traincast.files import write_whole
from traincast.report import trace_forecast
from traincast.spec import Job, Parallelism

HERE = Path(__file__).parent


def main() -> None:
    """GPT-2 over eight nodes with one A100 each: four stages, two replicas, six micro-batches, 100 Gb/s each."""
    cluster = catalog.cluster(device="a100-80g", nodes=8, devices_per_node=1, inter="roce-100")
    plan = Parallelism(pipeline=4, data=2, micro_batches=6, zero=1)
    graph = workload("gpt2", batch=4, seq=1024, precision="bf16")
    answer = forecast(Job(graph=graph), cluster, plan, draw=True)
    # No time stamp inside, so that the same step gives the same file.
    raw = json.dumps(trace_forecast(answer), separators=(",", ":")).encode()
    write_whole(HERE / "pipeline-step.trace.json.gz", gzip.compress(raw, mtime=0))


if __name__ == "__main__":
    main()
