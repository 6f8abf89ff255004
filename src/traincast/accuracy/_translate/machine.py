"""The hardware columns of a case to the cluster part of a question."""

import math
import re
from typing import Any

from traincast import catalog
from traincast.accuracy._cases import Case
from traincast.errors import InvalidInput


def read_cluster(case: Case, said: list[str]) -> dict[str, Any]:
    """Device, nodes and links as a person would name them; uneven placements stay uneven."""
    counts = read_placement(case, said)
    table: dict[str, Any] = {"device": catalog.device(case.gpu).name}
    if len(set(counts)) == 1:
        table |= {"nodes": len(counts), "devices_per_node": counts[0]}
    else:
        table["placement"] = ",".join(map(str, sorted(counts, reverse=True)))
    if case.intra_bw_GBps is not None:
        _require_rate("intra_bw_GBps", case.intra_bw_GBps)
        table["intra"] = f"{case.intra_bw_GBps!r}GB/s"
    elif case.placement == "nvlink":
        table["intra"] = "bridge"
    if case.inter_bw_Gbps is not None:
        _require_rate("inter_bw_Gbps", case.inter_bw_Gbps)
        table["inter"] = f"{case.inter_bw_Gbps!r}Gb/s"
    return table


def read_placement(case: Case, said: list[str]) -> list[int]:
    """Devices in use on each node."""
    num_gpus = case.n_gpus or 1
    text = (case.placement or "").strip()
    if re.fullmatch(r"[1-9]+", text) and sum(map(int, text)) == num_gpus:
        return [int(digit) for digit in text]
    spread = re.fullmatch(r"([0-9]+)@([0-9]+)", text)
    if spread and int(spread[1]) == num_gpus and int(spread[2]) >= 1:
        return _spread_evenly(num_gpus, int(spread[2]), said)
    return _spread_evenly(num_gpus, _count_nodes(case, text, said), said)


def _count_nodes(case: Case, placement: str, said: list[str]) -> int:
    num_gpus = case.n_gpus or 1
    if case.n_nodes is not None:
        if case.n_nodes < 1:
            raise InvalidInput(f"n_nodes is {case.n_nodes}; it must be at least 1")
        return min(case.n_nodes, num_gpus)
    if num_gpus == 1:
        return 1
    if case.gpus_per_node:
        return math.ceil(num_gpus / case.gpus_per_node)
    size = 1 if placement == "unconsolidated" else catalog.usual_node_size(case.gpu, num_gpus)
    num_nodes = math.ceil(num_gpus / size)
    said.append(f"the number of nodes is not known; {num_nodes} assumed")
    return num_nodes


def _spread_evenly(num_gpus: int, num_nodes: int, said: list[str]) -> list[int]:
    if num_nodes > num_gpus:
        raise InvalidInput(f"{num_gpus} GPUs cannot be spread over {num_nodes} nodes")
    each, more = divmod(num_gpus, num_nodes)
    if more:
        said.append(f"{num_gpus} GPUs are assumed to be spread evenly over {num_nodes} nodes")
    return [each + 1] * more + [each] * (num_nodes - more)


def _require_rate(name: str, rate: float) -> None:
    if not rate > 0:
        raise InvalidInput(f"{name} is {rate:g}; it must be above 0")
