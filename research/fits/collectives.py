"""Fits the constants of the collective model to measured collectives, towards physical priors, device by device left out.

Run: python -m research.fits.collectives ../shared/data
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import least_squares

from traincast.catalog import device, link
from traincast.cost import TRANSPORT_CONSTANTS, LinkConstants, Pipelined
from traincast.cost._routes import Level, Route, find_route
from traincast.spec import Cluster, Collective, Link, NodeGroup

PRIORS: dict[str, tuple[float, float]] = {
    # constant: (prior, standard deviation of its log)
    "launch_s": (7.5e-6, 0.7), "hop_s": (0.9e-6, 0.7), "efficiency": (0.83, 0.1), "pipeline": (4.0, 0.7),
    "local_copy": (0.45, 0.5), "exchange_copy": (0.45, 0.5), "exchange_hop": (0.5, 0.7),
}  # fmt: skip
MACHINES: dict[str, tuple[str, str]] = {
    # name in the tables: (device, link inside the node)
    "a100-sxm4-80g": ("a100-sxm4-80g", "nvswitch-a100"), "A100-SXM4 x8 node": ("a100-sxm4-80g", "nvswitch-a100"),
    "a100_dgx": ("a100-sxm4-80g", "nvswitch-a100"), "h100_dgx": ("h100-sxm-80g", "nvswitch-h100"),
    "h100-sxm-80g": ("h100-sxm-80g", "nvswitch-h100"), "b200-sxm-180g": ("b200-sxm-180g", "nvswitch-b200"),
    "gb200": ("gb200-186g", "nvswitch-nvl72"), "V100-SXM2 x8 node": ("v100-sxm2-32g", "nvlink2-hybrid-cube-mesh"),
    "a100_pairwise_nvlink": ("a100-pcie-80g", "nvlink3-pairs"),
}  # fmt: skip
NETWORKS: dict[str, tuple[str, str, str]] = {
    "AWS p4de.24xlarge x2": ("a100-sxm4-80g", "nvswitch-a100", "aws-efa-400"),
    "AWS p5.48xlarge x2": ("h100-sxm-80g", "nvswitch-h100", "aws-efa-3200"),
    "OCI BM.GPU.H100.8 x2": ("h100-sxm-80g", "nvswitch-h100", "8x roce-400"),
}
FITTED_ON = ("a100-sxm4-80g", "h100-sxm-80g", "b200-sxm-180g", "gb200-186g")
MAX_POINTS = 60
"""Points of one curve; longer ones are thinned evenly in the logarithm of their size."""
SIZES = {">= 32 MB": (32e6, math.inf, 1.0), "1-32 MB": (1e6, 32e6, 0.3), "< 1 MB": (0.0, 1e6, 0.1)}
"""Bounds of each range of sizes, and the weight of its rows in the fit: long messages decide steps."""


@dataclass(frozen=True, slots=True)
class Row:
    source: str
    device: str
    collective: str
    route: Route
    num_bytes: float
    time_s: float

    @property
    def size(self) -> str:
        return next(name for name, (low, high, _) in SIZES.items() if low <= self.num_bytes < high)


def load_rows(data: Path) -> list[Row]:
    """One row for each machine, kind, number of ranks and size: the median of repetitions and library versions."""
    curves: dict[tuple[str, str, str, int, int], dict[float, list[float]]] = {}
    table = pq.read_table(data / "kernels_half/collectives_one_node.parquet").to_pylist()
    for record in table:
        if str(record["library"]).startswith("nccl") and record["device"] in MACHINES:
            kind = "all_to_all" if record["collective"] == "alltoall" else str(record["collective"])
            key = ("kernels_half", str(record["device"]), kind, int(record["ranks"]), 1)
            curves.setdefault(key, {}).setdefault(float(record["bytes"]), []).append(float(record["time_s"]))
    for record in pq.read_table(data / "collectives/collectives.parquet").to_pylist():
        machine, nodes = str(record["hardware"]), int(record["n_nodes"])
        if (nodes == 1 and machine in MACHINES) or machine in NETWORKS:
            key = (str(record["source"]), machine, str(record["collective"]), int(record["n_gpus"]), nodes)
            if record["bytes"]:
                curves.setdefault(key, {}).setdefault(float(record["bytes"]), []).append(float(record["time_s"]))
    rows: list[Row] = []
    for (source, machine, kind, ranks, nodes), points in sorted(curves.items()):
        name, route = _route(machine, kind, ranks, nodes)
        sizes = sorted(points)
        chosen: Sequence[int] = range(len(sizes))
        if len(sizes) > MAX_POINTS:
            chosen = sorted({round(i) - 1 for i in np.geomspace(1, len(sizes), 25)})
        rows += [Row(source, name, kind, route, sizes[i], median(points[sizes[i]])) for i in chosen]
    return rows


def _route(machine: str, kind: str, ranks: int, nodes: int) -> tuple[str, Route]:
    chip, intra = MACHINES[machine] if nodes == 1 else NETWORKS[machine][:2]
    inter = link(NETWORKS[machine][2]) if nodes > 1 else link("infiniband-hdr")
    whole = 8 if machine.startswith("V100") else max(ranks // nodes, 4 if "pairwise" in machine else 2)
    group = NodeGroup(
        device=device(chip), num_nodes=nodes, devices_per_node=whole, intra=link(intra), inter=inter, usd_per_hour=None
    )
    task = Collective(kind=kind, num_bytes=1.0, axis="data", num_ranks=ranks, stride=1, phase="gradient")
    return chip, find_route(task, Cluster(name=machine, groups=(group,)))


def predict(values: dict[str, float], rows: Iterable[Row]) -> NDArray[np.float64]:
    known = {name: value for name, value in values.items() if name not in ("hop_s", "efficiency")}
    transports = {
        name: replace(constants, efficiency=values["efficiency"]) if name.startswith("nv") else constants
        for name, constants in TRANSPORT_CONSTANTS.items()
    }
    model = Pipelined(constants=LinkConstants(transports=transports, **known))
    return np.array(
        [model.seconds(row.collective, row.num_bytes, _with_latency(row.route, values["hop_s"])) for row in rows]
    )


def _with_latency(route: Route, hop_s: float) -> Route:
    def changed(level: Level) -> Level:
        inside: Link = replace(level.link, latency_s=hop_s)
        return level if level.is_network or not level.link.transport.startswith("nv") else replace(level, link=inside)

    return replace(route, levels=tuple(map(changed, route.levels)))


def fit(rows: Sequence[Row]) -> dict[str, float]:
    """Robust least squares on log time, every device weighing the same, pulled to the priors."""
    names = list(PRIORS)
    prior = np.log([PRIORS[name][0] for name in names])
    widths = np.array([PRIORS[name][1] for name in names])
    counts = {name: sum(row.device == name for row in rows) for name in {row.device for row in rows}}
    weights = np.sqrt([SIZES[row.size][2] * len(rows) / counts[row.device] for row in rows])
    truth = np.log([row.time_s for row in rows])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        values = dict(zip(names, np.exp(logs).tolist(), strict=True))
        return np.concatenate([weights * (np.log(predict(values, rows)) - truth), 0.1 * (logs - prior) / widths])

    found = least_squares(residuals, prior, loss="soft_l1", f_scale=0.1, diff_step=1e-4)
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def score(error: NDArray[np.float64]) -> dict[str, float]:
    wrong = np.abs(error)
    return {
        "n": len(error), "mean": float(wrong.mean()), "median": float(np.median(wrong)),
        "p90": float(np.quantile(wrong, 0.9)), "bias": float(np.median(error)),
    }  # fmt: skip


def leave_devices_out(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The error on each device, by size, with constants that have seen only the others."""
    inside = [row for row in rows if row.device in FITTED_ON and not row.route.crosses_network]
    report: dict[str, dict[str, float]] = {}
    for name in FITTED_ON:
        values = fit([row for row in inside if row.device != name])
        report |= _by_size(name, values, lambda row, name=name: row.device == name, inside)  # type: ignore[misc]
    values = fit(inside)
    unseen = [row for row in rows if row not in inside]
    for name in sorted({f"{row.device} {row.source}" for row in unseen}):
        label = f"never fitted: {name}"
        report |= _by_size(label, values, lambda row, name=name: f"{row.device} {row.source}" == name, unseen)  # type: ignore[misc]
    return report


def _by_size(
    label: str, values: dict[str, float], belongs: Callable[[Row], bool], rows: Sequence[Row]
) -> dict[str, dict[str, float]]:
    report = {}
    for size in SIZES:
        test = [row for row in rows if belongs(row) and row.size == size]
        if test:
            report[f"{label}, {size}"] = score(predict(values, test) / np.array([row.time_s for row in test]) - 1)
    return report


def main(data: str) -> None:
    rows = load_rows(Path(data))
    inside = [row for row in rows if row.device in FITTED_ON and not row.route.crosses_network]
    report = {"constants": fit(inside), "left out": leave_devices_out(rows)}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
