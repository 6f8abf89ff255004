"""Draws how long collectives take over more and more nodes, and how tokens per second scale, with measured points.

Run: python docs/theory/draw_network.py [../shared] (without the measurements only the forecasts are drawn)
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from traincast.catalog import device, link
from traincast.cost import Pipelined, find_route
from traincast.errors import TraincastError
from traincast.plan import ask
from traincast.spec import Cluster, Collective, NodeGroup, Question, WorkloadOptions

HERE = Path(__file__).parent
SIZES = {"1 MB": 2**20, "64 MB": 2**26, "4 GB": 2**32}
NODES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
GPUS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
MODELS = {"llama-3-8b": (2048, "8b"), "llama-3.1-405b": (1152, "405b")}
"""Global batch of sequences of 8,192 tokens, and how tables call the model."""


def draw_exchanges(shared: Path) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    path = shared / "data/collectives/multi_node.parquet"
    rows = pd.read_parquet(path) if path.is_file() else None
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), ("all_reduce", "all_gather"), strict=True):
        for color, (label, size) in enumerate(SIZES.items()):
            times = [exchange_s(kind, size, nodes) for nodes in NODES]
            axes.loglog(NODES, times, color=f"C{color}", label=f"{label}, forecast")
            if rows is not None:
                near = rows[(rows.collective == kind) & rows.transport.isin(["ib", "roce"]) & (rows.n_nodes > 1)]
                near = near[near.bytes.between(size / 1.1, size * 1.1) & (near.gpus_per_node == 8)]  # fmt: skip
                axes.loglog(near.n_nodes, near.time_s, "o", color=f"C{color}", markersize=4, fillstyle="none")
        axes.set(title=kind.replace("_", "-"), xlabel="nodes of 8 H100, 400 Gb/s InfiniBand for each")
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].set_ylabel("seconds")
    figure.axes[0].legend(fontsize=8)
    return figure


def exchange_s(kind: str, size: float, nodes: int) -> float:
    port = link("infiniband-ndr")
    group = NodeGroup(
        device=device("h100-sxm-80g"), num_nodes=nodes, devices_per_node=8, intra=link("nvswitch-h100"),
        inter=replace(port, bytes_per_s=8 * port.bytes_per_s, num_ports=8), usd_per_hour=None,
    )  # fmt: skip
    task = Collective(kind=kind, num_bytes=size, axis="data", num_ranks=8 * nodes, stride=1, phase="gradient")
    return Pipelined().seconds(kind, size, find_route(task, Cluster(name="h100", groups=(group,))))


def draw_scaling(shared: Path) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    paths = [
        shared / "cases" / name for name in ("llm.parquet", "check/public_runs.parquet", "check/mlperf_later.parquet")
    ]
    rows = pd.concat([pd.read_parquet(path) for path in paths if path.is_file()] or [pd.DataFrame()])
    for axes, (model, (batch, word)) in zip(figure.subplots(1, 2), MODELS.items(), strict=True):
        found = [(gpus, rate) for gpus in GPUS if (rate := tokens_per_s(model, gpus, batch)) is not None]
        axes.loglog(*zip(*found, strict=True), label=f"forecast, H100 fp8, {batch} sequences a step")
        axes.loglog(GPUS, [found[0][1] / found[0][0] * gpus for gpus in GPUS], ":", color="grey", label="linear")
        if len(rows):
            own = rows[rows.model.str.contains(word) & rows.gpu.str.startswith("h100") & (rows.dtype == "fp8")]
            own = own[(own.quality == "clean") & (own.seq_len == 8192) & own.n_gpus.between(GPUS[0], GPUS[-1])]
            axes.loglog(
                own.n_gpus,
                own.global_batch * own.seq_len / own.measured_step_s,
                "o",
                fillstyle="none",
                label="measured",
            )
        axes.set(title=model, xlabel="GPUs", ylabel="tokens per second")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def tokens_per_s(model: str, gpus: int, batch: int) -> float | None:
    """Of the plan that is chosen where nobody names one; None where nothing fits."""
    question: dict[str, Any] = {"device": "h100-sxm-80g", "nodes": gpus // 8, "devices_per_node": 8}
    try:
        found = ask(
            Question(
                source=model, workload=WorkloadOptions(precision="fp8", seq=8192), cluster=question,
                job={"global_batch": batch, "stack": "megatron-core", "steps": 10},
            )
        )  # fmt: skip
    except TraincastError:
        return None
    return batch * 8192 / found.step.seconds


def main() -> None:
    shared = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "traincast"})
    for name, draw in (("network-exchange", draw_exchanges), ("network-scaling", draw_scaling)):
        draw(shared).savefig(HERE / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
