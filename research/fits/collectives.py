"""Fits the constants of the collective model to measured collectives, towards physical priors.

Run: python -m research.fits.collectives ../shared/data/collectives/collectives.parquet
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import least_squares

from traincast.cost.collectives import LinkConstants, Pipelined, Route, constants_from

FITTED = (
    "launch_s", "switched_efficiency", "pcie_efficiency", "network_efficiency", "intra_hop_s", "inter_hop_s", "pipeline",
)  # fmt: skip
PRIOR_SPREAD: Mapping[str, float] = {
    "launch_s": 0.7, "switched_efficiency": 0.1, "pcie_efficiency": 0.3, "network_efficiency": 0.3, "intra_hop_s": 0.7,
    "inter_hop_s": 0.7, "pipeline": 0.7,
}  # fmt: skip
NOMINAL: Mapping[str, tuple[float, str, float, str]] = {
    # intra bytes/s, intra kind, inter bytes/s of the node, inter kind: data sheets of the machines in the table
    "A100-SXM4 x8 node": (300e9, "nvlink", 100e9, "infiniband"),
    "V100-SXM2 x8 node": (150e9, "hybrid-cube", 12.5e9, "ethernet"),
    "a100_dgx": (300e9, "nvlink", 12.5e9, "ethernet"),
    "h100_dgx": (450e9, "nvlink", 400e9, "infiniband"),
    "a100_pairwise_nvlink": (300e9, "pair", 12.5e9, "ethernet"),
    "AWS p4de.24xlarge x2": (300e9, "nvlink", 50e9, "infiniband"),
    "AWS p5.48xlarge x2": (450e9, "nvlink", 400e9, "infiniband"),
    "OCI BM.GPU.H100.8 x2": (450e9, "nvlink", 400e9, "infiniband"),
}
MIN_BYTES = 1e5
"""Smaller messages are latency and timer noise: the table repeats them by a factor of five."""


@dataclass(frozen=True, slots=True)
class Row:
    machine: str
    collective: str
    route: Route
    num_bytes: float
    time_s: float
    weight: float


def load_rows(path: str, *, per_curve: int = 40) -> list[Row]:
    """Evenly spread points of every curve of a machine whose links are known."""
    curves: dict[tuple[str, str, int, int], list[tuple[float, float]]] = {}
    for record in pq.read_table(path).to_pylist():
        if record["hardware"] not in NOMINAL or record["bytes"] < MIN_BYTES or record["trust"] == "C":
            continue
        if record["source"] == "vidur_network" and record["n_nodes"] > 1:
            continue  # between nodes whose network the source does not name
        key = (record["hardware"], record["collective"], record["n_gpus"], record["n_nodes"])
        curves.setdefault(key, []).append((float(record["bytes"]), float(record["time_s"])))
    rows: list[Row] = []
    for (machine, collective, ranks, nodes), points in sorted(curves.items()):
        points.sort()
        chosen = sorted({round(i) for i in np.linspace(0, len(points) - 1, per_curve)})
        route = _route(machine, ranks, nodes)
        rows += [Row(machine, collective, route, points[i][0], points[i][1], 1 / len(chosen)) for i in chosen]
    return rows


def _route(machine: str, ranks: int, nodes: int) -> Route:
    intra, kind, inter, inter_kind = NOMINAL[machine]
    per_node = ranks // nodes
    if kind == "pair":
        intra, kind = (intra, "nvlink") if per_node <= 2 else (31.5e9, "pcie")
    return Route(
        num_ranks=ranks,
        per_node=per_node,
        num_nodes=nodes,
        intra_bytes_per_s=intra,
        inter_bytes_per_s=inter,
        intra_kind=kind,
        inter_kind=inter_kind,
    )


def fit(rows: Sequence[Row]) -> LinkConstants:
    """Least squares on log time, every curve weighing the same, pulled to the defaults by their prior spread."""
    start = LinkConstants()
    prior = np.log([getattr(start, name) for name in FITTED])
    spreads = np.array([PRIOR_SPREAD[name] for name in FITTED])
    weights = np.sqrt([row.weight for row in rows])
    truth = np.log([row.time_s for row in rows])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        model = Pipelined(constants=_constants(logs))
        guess = np.log([model.seconds(row.collective, row.num_bytes, row.route) for row in rows])
        return np.concatenate([(guess - truth) * weights / 0.2, (logs - prior) / spreads])

    found = least_squares(residuals, prior, loss="soft_l1")
    return _constants(found.x)


def _constants(logs: NDArray[np.float64]) -> LinkConstants:
    values = {name: math.exp(value) for name, value in zip(FITTED, logs, strict=True)}
    for name in ("switched_efficiency", "pcie_efficiency", "network_efficiency"):
        values[name] = min(1.0, values[name])
    return constants_from(values)


def errors(rows: Sequence[Row], constants: LinkConstants) -> NDArray[np.float64]:
    model = Pipelined(constants=constants)
    return np.array([model.seconds(r.collective, r.num_bytes, r.route) / r.time_s - 1 for r in rows])


def leave_out(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Error on each machine, and each number of ranks, with constants fitted on the others."""
    report: dict[str, dict[str, float]] = {}
    for label, key in (("machine", lambda r: r.machine), ("ranks", lambda r: str(r.route.num_ranks))):
        for value in sorted({key(row) for row in rows}):
            test = [row for row in rows if key(row) == value]
            wrong = np.abs(errors(test, fit([row for row in rows if key(row) != value])))
            report[f"{label} {value}"] = {
                "n": len(test), "mean": float(wrong.mean()), "median": float(np.median(wrong)),
                "p90": float(np.percentile(wrong, 90)), "max": float(wrong.max()),
            }  # fmt: skip
    return report


def main(path: str) -> None:
    rows = load_rows(path)
    constants = fit(rows)
    report = leave_out(rows)
    sys.stdout.write(
        json.dumps({"constants": {n: getattr(constants, n) for n in FITTED}, "left out": report}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main(sys.argv[1])
