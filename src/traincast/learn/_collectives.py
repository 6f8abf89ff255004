"""Measured collectives to the latency of a hop and the rate of the payload."""

from collections.abc import Sequence

import numpy as np

from traincast.cost import num_hops, wire_bytes
from traincast.spec import CollectiveRates, Measurement


def fit_collectives(measurements: Sequence[Measurement]) -> dict[str, CollectiveRates]:
    """Latency per hop and payload rate of each kind, by least squares on relative errors, neither below zero."""
    by_kind: dict[str, list[tuple[float, float, float]]] = {}
    for found in measurements:
        if found.experiment.subject != "collective":
            continue
        kind, attrs = found.experiment.name, found.experiment.attrs
        ranks, amount = int(attrs["num_ranks"]), float(attrs["num_bytes"])
        hops, wire = num_hops(kind, num_ranks=ranks), wire_bytes(kind, num_ranks=ranks, num_bytes=amount)
        by_kind.setdefault(kind, []).append((hops, wire, found.seconds))
    return {kind: _fit_line(rows) for kind, rows in by_kind.items() if len({wire for _, wire, _ in rows}) >= 2}


def _fit_line(rows: Sequence[tuple[float, float, float]]) -> CollectiveRates:
    hops, wire, seconds = (np.array(column) for column in zip(*rows, strict=True))
    matrix = np.stack([hops / seconds, wire / seconds], axis=1)
    both = np.linalg.lstsq(matrix, np.ones(len(seconds)), rcond=None)[0]
    if both[0] < 0:
        both = np.array([0.0, float((matrix[:, 1]).sum() / (matrix[:, 1] ** 2).sum())])
    elif both[1] <= 0:
        both = np.array([float(matrix[:, 0].sum() / (matrix[:, 0] ** 2).sum()), 1e-15])
    ratio = np.log(matrix @ both)
    return CollectiveRates(
        hop_s=float(both[0]), bytes_per_s=float(1 / both[1]), log_spread=float(np.sqrt((ratio**2).mean())),
        num_measurements=len(rows),
    )  # fmt: skip
