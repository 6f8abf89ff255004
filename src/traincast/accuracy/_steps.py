"""Tables of measured steps as their sources print them (throughput, memory in GB) to rows of a case table."""

import math
from collections.abc import Mapping
from typing import Any

from traincast.units import GIGA

MARKS = ("source_row", "step_time_s", "tflops_per_gpu")
"""Columns by which such a table is known."""

_RENAMED = {
    "step_time_s": "measured_step_s",
    "sync_time_s": "measured_sync_s",
    "gpu_util_pct": "measured_gpu_util_pct",
    "status": "measured_status",
}
_DTYPES = {"amp": "fp16_amp", "float8": "fp8", "float8_rowwise": "fp8"}
_RESULTS = ("throughput", "throughput_unit", "tokens_per_s", "tflops_per_gpu", "mfu", "mem_gb_per_gpu", "note", "trust")
"""What tells the result in another unit, or judges it."""


def is_step_table(row: Mapping[str, Any]) -> bool:
    return all(name in row for name in MARKS) and "case_id" not in row


def as_case_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row in the columns of a case; a row whose workload is not known keeps what it has and is refused when asked."""
    known = {_RENAMED.get(name, name): value for name, value in row.items() if name not in _RESULTS}
    known["case_id"] = f"{row['source']}:{row['source_row']}"
    known["dtype"] = _DTYPES.get(str(row.get("dtype")), row.get("dtype"))
    memory_gb = read_number(row, "mem_gb_per_gpu")
    known["measured_memory_bytes"] = memory_gb * GIGA if memory_gb else None
    # C: "known problems, use for smoke tests only".
    known["quality"] = "suspect" if "C" in str(row.get("trust") or "") else "clean"
    return known


def read_number(row: Mapping[str, Any], name: str) -> float | None:
    """A number of a raw table; None where the cell is empty or holds something else."""
    try:
        number = float(row.get(name) or math.nan)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
