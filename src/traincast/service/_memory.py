"""A process to the memory it holds."""

import resource
from pathlib import Path


def resident_bytes(pid: int | None = None) -> float:
    """Of a process; where /proc is absent the peak of this one, and nan for others."""
    try:
        fields = Path(f"/proc/{pid or 'self'}/statm").read_text().split()
        return float(fields[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0 if pid is None else float("nan")
