"""Fits the constants of the collective model to measured collectives, each cluster (inside a node: each device) left out.

Run: python -m research.fits.collectives ../shared/data [--shipped] [--markdown PAGE]
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import least_squares

from research.output import say, splice_into
from traincast.catalog import device, link
from traincast.cost import Pipelined
from traincast.cost._routes import CONSTANTS, Route, find_route
from traincast.spec import Cluster, Collective, NodeGroup

GPUS: dict[str, tuple[str, str]] = {
    # name in the tables: (device, link inside the node)
    "a100-40": ("a100-sxm4-40g", "nvswitch-a100"), "gh200": ("gh200-96g", "nvlink4"), "v100": ("v100-sxm2-32g", "nvswitch-v100"),
    "h100": ("h100-sxm-80g", "nvswitch-h100"), "h200": ("h200-sxm-141g", "nvswitch-h100"),
    "b200": ("b200-sxm-180g", "nvswitch-b200"), "b300": ("b300-sxm-288g", "nvswitch-b200"),
    "mi300x": ("mi300x", "infinity-fabric-mi300x"), "mi350x": ("mi355x", "infinity-fabric-mi355x"),
    "gb10": ("gh200-96g", "nvlink-c2c"),
}  # fmt: skip
MACHINES: dict[str, tuple[str, str]] = {
    "a100-sxm4-80g": ("a100-sxm4-80g", "nvswitch-a100"), "A100-SXM4 x8 node": ("a100-sxm4-80g", "nvswitch-a100"),
    "a100_dgx": ("a100-sxm4-80g", "nvswitch-a100"), "h100_dgx": ("h100-sxm-80g", "nvswitch-h100"),
    "h100-sxm-80g": ("h100-sxm-80g", "nvswitch-h100"), "b200-sxm-180g": ("b200-sxm-180g", "nvswitch-b200"),
    "gb200": ("gb200-186g", "nvswitch-nvl72"), "V100-SXM2 x8 node": ("v100-sxm2-32g", "nvlink2-hybrid-cube-mesh"),
    "a100_pairwise_nvlink": ("a100-pcie-80g", "nvlink3-pairs"),
}  # fmt: skip
LINKS = {
    "ib": "infiniband-ndr", "roce": "roce-400", "slingshot": "slingshot-11", "sockets": "ethernet-200g", "tcpx": "gcp-tcpx",
    "aws-p3dn-efa": "aws-efa-100", "aws-p5": "aws-efa-3200", "aws-p6-b300": "aws-efa-6400", "gcp-a3mega": "gcp-tcpxo",
}  # fmt: skip
"""Of the catalogue, for a family of clusters or for a transport: latency and transport; ports and rates are the table's."""
FAMILIES = ("cscs-alps", "alcf-polaris", "gcp-a3high", "gcp-a3mega", "xxrjun", "aws-p5")
FITTED_INSIDE = ("a100-sxm4-80g", "h100-sxm-80g", "b200-sxm-180g", "gb200-186g")
DIRECT = ("roce", "tcpxo")
"""Adapters that read and write device memory by themselves, as those of InfiniBand do."""
RINGS_ONLY = ("aws-p3dn-efa",)
"""The provider's guide to these nodes switches trees off (NCCL_TREE_THRESHOLD=0), and every node more adds as much."""
FORCED = {"ring": "ring", "tree": "tree", "nvlstree": "in-switch", "nvls": "in-switch"}
MAX_POINTS = 20
"""Of one curve; longer ones are thinned evenly in the logarithm of their size."""
PULL = 1.5
"""Weight of the priors beside a row of the usual weight."""
SIZES = (("< 1 MB", 0.0, 1e6, 0.1), ("1-32 MB", 1e6, 32e6, 0.3), (">= 32 MB", 32e6, math.inf, 1.0))
"""Ranges of sizes inside a node, and the weight of their rows: long messages decide steps."""
INSIDE: dict[str, tuple[float, float]] = {
    # constant: (prior, standard deviation of its log)
    "launch_s": (7.5e-6, 0.7), "nv.latency_s": (0.9e-6, 0.7), "nv.efficiency": (0.83, 0.1), "pipeline": (4.0, 0.7),
    "local_copy": (0.45, 0.5), "exchange_copy": (0.45, 0.5), "exchange_hop": (0.5, 0.7),
}  # fmt: skip
BETWEEN: dict[str, tuple[float, float]] = {
    "step_s": (2.0e-6, 0.5), "fill": (0.1, 0.7), "long_step_s": (3.4e-6, 0.3),
    "long_hop_s": (9e-6, 0.5), "short_share": (0.5, 0.3), "line_share": (0.92, 0.1),
    "line_hop_s": (1.3e-6, 0.5), "tree_share": (0.5, 0.3), "pair_gain": (1.8, 0.2),
    "switch_share": (0.93, 0.1), "switch_start_s": (20e-6, 0.5), "exchange_start_s": (23e-6, 0.5),
    "posting": (0.5, 0.5), "infiniband.efficiency": (0.9, 0.1), "infiniband.hop_s": (2e-6, 0.7),
    "efa.efficiency": (0.88, 0.1), "efa.hop_s": (4e-6, 0.5), "slingshot.efficiency": (0.8, 0.15),
    "slingshot.hop_s": (4e-6, 0.7), "tcpx.efficiency": (0.8, 0.15), "tcpx.hop_s": (15e-6, 0.7),
    "sockets.hop_s": (10e-6, 0.7), "sockets.flow_bytes_per_s": (2.5e9, 0.5), "infiniband.peer_s": (4.6e-6, 0.7),
    "slingshot.peer_s": (9e-6, 0.7), "sockets.peer_s": (9e-6, 0.7),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    family: str
    transport: str
    kind: str
    route: Route
    num_nodes: int
    num_bytes: float
    time_s: float
    algorithm: str = ""
    weight: float = 1.0


def read_inside(data: Path) -> list[Row]:
    """One row for each machine, kind, number of ranks and size inside a node: the median of repetitions and versions."""
    curves: dict[tuple[str, str, str, int], dict[float, list[float]]] = {}
    for record in pq.read_table(data / "kernels_half/collectives_one_node.parquet").to_pylist():
        if str(record["library"]).startswith("nccl") and record["device"] in MACHINES:
            kind = "all_to_all" if record["collective"] == "alltoall" else str(record["collective"])
            key = ("kernels_half", str(record["device"]), kind, int(record["ranks"]))
            curves.setdefault(key, {}).setdefault(float(record["bytes"]), []).append(float(record["time_s"]))
    for record in pq.read_table(data / "collectives/collectives.parquet").to_pylist():
        if int(record["n_nodes"]) == 1 and record["hardware"] in MACHINES and record["bytes"]:
            key = (str(record["source"]), str(record["hardware"]), str(record["collective"]), int(record["n_gpus"]))
            curves.setdefault(key, {}).setdefault(float(record["bytes"]), []).append(float(record["time_s"]))
    rows = []
    for (source, machine, kind, ranks), points in sorted(curves.items()):
        chip, intra = MACHINES[machine]
        host = 8 if machine.startswith("V100") else max(ranks, 4 if "pairwise" in machine else 2)
        route = _route(chip, intra, "infiniband-ndr", kind, nodes=1, host=host, ranks=ranks)
        family = chip if chip in FITTED_INSIDE else f"{chip} {source}"
        for size in _thin(sorted(points)):
            weight = next(weight for _, low, high, weight in SIZES if low <= size < high)
            rows.append(
                Row(family=family, transport="nvlink", kind=kind, route=route, num_nodes=1, num_bytes=size,
                    time_s=median(points[size]), weight=weight)
            )  # fmt: skip
    return _balanced(rows, lambda row: "")


def read_between(data: Path) -> list[Row]:
    """One row for each cluster, kind, number of ranks, algorithm and size between nodes: the median of repetitions and settings.

    Left out: what its collector distrusts (C), sizes or adapters that are guesses, switches in the network that add (two
    clusters, long messages only), racks of one NVLink domain, and settings that are no cluster's usual ones (variants;
    matching in software).
    """
    table = pq.read_table(data / "collectives/multi_node.parquet").to_pandas()
    note = table.note.fillna("")
    kept = (table.time_s > 0) & (table.bytes > 0) & (table.transport != "nvl72") & (table.trust != "C")
    kept &= ~note.str.contains("variant|not stated|setting 5") & (table.algorithm != "collnet") & table.nic_gbps.notna()
    table = table[kept].assign(algorithm=table.algorithm.fillna(""))
    keys = [
        "cluster",
        "gpu",
        "transport",
        "nics",
        "nic_gbps",
        "collective",
        "gpus_per_node",
        "n_nodes",
        "n_gpus",
        "algorithm",
    ]
    rows = []
    for key, curve in table.groupby(keys):
        cluster, gpu, transport, nics, gbps, kind, members, nodes, ranks, algorithm = key
        points = curve.groupby("bytes").time_s.median()
        family = next((name for name in FAMILIES if cluster.startswith(name)), cluster)
        name = LINKS.get(family, LINKS.get(transport, ""))
        host = max(8, int(members)) if cluster.startswith("xxrjun") else int(members)
        route = _route(
            *GPUS[gpu], name, kind, nodes=int(nodes), host=host, ranks=int(ranks), stride=host // int(members),
            rate=nics * gbps * 1e9 / 8, ports=int(nics),
        )  # fmt: skip
        rows += [
            Row(family=family + (" sockets" if transport == "sockets" else ""), transport=transport, kind=str(kind), route=route,
                num_nodes=int(nodes), num_bytes=float(size), time_s=float(points[size]),
                algorithm="ring" if family in RINGS_ONLY else FORCED.get(algorithm, ""))
            for size in _thin(sorted(points.index))
        ]  # fmt: skip
    return _balanced(rows, lambda row: f"{row.kind} {row.num_nodes}")


def _thin(sizes: Sequence[float]) -> list[float]:
    if len(sizes) <= MAX_POINTS:
        return list(sizes)
    return [sizes[place] for place in sorted({round(i) - 1 for i in np.geomspace(1, len(sizes), MAX_POINTS)})]


def _route(
    chip: str, intra: str, inter: str, kind: str, *, nodes: int, host: int, ranks: int, stride: int = 1,
    rate: float | None = None, ports: int = 1,
) -> Route:  # fmt: skip
    network = link(inter)
    if rate is not None:
        network = replace(network, bytes_per_s=rate, num_ports=ports)
    group = NodeGroup(
        device=device(chip), num_nodes=nodes, devices_per_node=host, intra=link(intra), inter=network, usd_per_hour=None
    )
    task = Collective(kind=kind, num_bytes=1.0, axis="data", num_ranks=ranks, stride=stride, phase="gradient")
    return find_route(task, Cluster(name=inter, groups=(group,)))


def _balanced(rows: Sequence[Row], cell_of: Callable[[Row], str]) -> list[Row]:
    """Every family weighs alike, and in it every cell."""
    sums: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row.family, cell_of(row))
        sums[key] = sums.get(key, 0.0) + row.weight
    cells = {family: sum(key[0] == family for key in sums) for family, _ in sums}
    return [replace(row, weight=row.weight / sums[row.family, cell_of(row)] / cells[row.family]) for row in rows]


def build_model(values: Mapping[str, float]) -> Pipelined:
    transports = dict(CONSTANTS.transports)
    plain: dict[str, Any] = {}
    for name, value in values.items():
        owner, _, part = name.rpartition(".")
        if not owner:
            plain[name] = value
        for known in transports:
            family = "infiniband" if known in DIRECT or (known == "efa" and part == "peer_s") else known
            if owner and part != "latency_s" and (family == owner or (owner == "nv" and known[:2] == "nv")):
                change: dict[str, Any] = {part: value}
                transports[known] = replace(transports[known], **change)
    return Pipelined(constants=replace(CONSTANTS, transports=transports, **plain))


def predict(values: Mapping[str, float], rows: Sequence[Row]) -> NDArray[np.float64]:
    model, hop_s = build_model(values), values.get("nv.latency_s")
    return np.array([
        model.seconds(row.kind, row.num_bytes, row.route if hop_s is None else _with_latency(row.route, hop_s), row.algorithm)
        for row in rows
    ])  # fmt: skip


def _with_latency(route: Route, hop_s: float) -> Route:
    levels = (
        level
        if level.is_network or level.link.transport[:2] != "nv"
        else replace(level, link=replace(level.link, latency_s=hop_s))
        for level in route.levels
    )
    return replace(route, levels=tuple(levels))


def fit(
    rows: Sequence[Row], priors: Mapping[str, tuple[float, float]], *, start: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Robust least squares on log time, pulled to the priors."""
    names = list(priors)
    prior, widths = np.log([priors[name][0] for name in names]), np.array([priors[name][1] for name in names])
    weights, truth = np.array([row.weight for row in rows]), np.log([row.time_s for row in rows])
    weights = np.sqrt(weights / weights.mean())
    # A constant of one transport moves only its rows.
    touched = {name: np.array([_touches(name, row) for row in rows]) for name in names}

    def logs_of(logs: NDArray[np.float64], some: Sequence[Row]) -> NDArray[np.float64]:
        return np.log(predict(dict(zip(names, np.exp(logs).tolist(), strict=True)), some))

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([weights * (logs_of(logs, rows) - truth), PULL * (logs - prior) / widths])

    def jacobian(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        base, slopes = logs_of(logs, rows), np.zeros((len(rows) + len(names), len(names)))
        for place, name in enumerate(names):
            moved = logs.copy()
            moved[place] += 1e-3
            mask = touched[name]
            some = [row for row, counts in zip(rows, mask, strict=True) if counts]
            slopes[: len(rows)][mask, place] = weights[mask] * (logs_of(moved, some) - base[mask]) / 1e-3
            slopes[len(rows) + place, place] = PULL / widths[place]
        return slopes

    first = prior if start is None else np.log([start[name] for name in names])
    found = least_squares(
        residuals, first, jac=jacobian, loss="soft_l1", f_scale=0.15, xtol=1e-3, ftol=1e-3, max_nfev=25
    )
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def _touches(name: str, row: Row) -> bool:
    owner = name.rpartition(".")[0]
    used = row.route.levels[-1].link.transport
    if name.endswith("peer_s") or name in ("exchange_start_s", "posting"):
        return row.kind == "all_to_all"
    if owner == "nv":
        return True
    return not owner or used == owner or (owner == "infiniband" and used in DIRECT)


def leave_out(rows: Sequence[Row], priors: Mapping[str, tuple[float, float]], families: Sequence[str]) -> str:
    """The constants of all these families, and tables of the rows' log errors by constants that have not seen their family."""
    seen = [row for row in rows if row.family in families]
    values = fit(seen, priors)
    errors = errors_of(values, rows)
    for family in families:
        others = fit([row for row in seen if row.family != family], priors, start=values)
        mask = np.array([row.family == family for row in rows])
        errors[mask] = errors_of(others, [row for row in rows if row.family == family])
    named = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    return f"Constants: {named}.\n\n{make_tables(rows, errors)}"


def errors_of(values: Mapping[str, float], rows: Sequence[Row]) -> NDArray[np.float64]:
    return np.asarray(np.log(predict(values, rows)) - np.log([row.time_s for row in rows]))


def make_tables(rows: Sequence[Row], errors: NDArray[np.float64]) -> str:
    """Mean absolute log error and bias, families weighing alike, by whatever a row is."""
    table = pd.DataFrame({
        "family": [row.family for row in rows], "transport": [row.transport for row in rows], "kind": [row.kind for row in rows],
        "size": [f"1e{math.floor(math.log10(row.num_bytes)):02d} B" for row in rows],
        "nodes": pd.cut([row.num_nodes for row in rows], [0, 1, 2, 4, 16, 64, 9999]),
        "error": errors, "weight": [row.weight for row in rows],
    })  # fmt: skip
    table["network"] = table.transport.replace({"ib": "InfiniBand and RoCE", "roce": "InfiniBand and RoCE"})
    lines = []
    for by in ("network", "transport", "kind", "size", "nodes", "family"):
        lines += [f"| {by} | rows | mean abs log error | bias |", "|---|--:|--:|--:|"]
        for name, part in table.groupby(by, observed=True):
            mean, bias = (np.average(values, weights=part.weight) for values in (part.error.abs(), part.error))
            lines.append(f"| {name} | {len(part)} | {mean:.3f} | {bias:+.3f} |")
        lines.append("")
    mean, bias = (np.average(values, weights=table.weight) for values in (table.error.abs(), table.error))
    return "\n".join([*lines, f"Over all {mean:.3f}, bias {bias:+.3f}.\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--shipped", action="store_true", help="score the shipped constants instead of fitting")
    parser.add_argument("--markdown", type=Path, help="write the tables into the marked part of this page")
    asked = parser.parse_args()
    pages = []
    for title, rows, priors in (
        ("Between nodes", read_between(asked.data), BETWEEN),
        ("Inside a node", read_inside(asked.data), INSIDE),
    ):
        if asked.shipped:
            found = make_tables(rows, errors_of({}, rows))
        else:
            found = leave_out(rows, priors, FITTED_INSIDE if priors is INSIDE else sorted({row.family for row in rows}))
        pages.append(f"## {title}\n{found}")
    if asked.markdown:
        marks = {
            "begin": "<!-- made by research.fits.collectives -->",
            "end": "<!-- end of what research.fits.collectives made -->",
        }
        splice_into(asked.markdown, "\n".join(pages), **marks)
    say("\n".join(pages))


if __name__ == "__main__":
    main()
