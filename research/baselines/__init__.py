"""Simple and published methods on the same rows: what an honest forecast must beat.

Each is a function of known rows and asked rows that answers the asked ones, or None where it cannot. Nothing is tuned.
"""

from research.baselines.ernest import ernest_by_batch, ernest_by_flop
from research.baselines.memory import nominal_memory_bytes
from research.baselines.ratio import scale_by_peak_and_bandwidth
from research.baselines.scaling import no_scaling
from research.baselines.utilization import constant_utilization

__all__ = [
    "constant_utilization",
    "ernest_by_batch",
    "ernest_by_flop",
    "no_scaling",
    "nominal_memory_bytes",
    "scale_by_peak_and_bandwidth",
]
