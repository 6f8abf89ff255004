"""How much one request may ask, and how the service is set up."""

from dataclasses import dataclass
from pathlib import Path

from traincast.errors import InvalidInput
from traincast.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may cost; each is checked before the work it bounds."""

    body_bytes: int = 32 * MIB
    json_depth: int = 40
    graph_ops: int = 50_000
    """Of an uploaded graph, folded repetitions counted once."""
    devices: int = 65_536
    micro_batches: int = 4_096
    plans: int = 100_000
    schedule_jobs: int = 20_000
    schedule_gpus: int = 65_536
    request_s: float = 20.0
    """A forecast or a fit that needs longer is stopped."""
    capture_s: float = 90.0
    job_s: float = 900.0
    """A plan or a schedule that needs longer is stopped."""
    waiting_requests: int = 256
    waiting_jobs: int = 64
    kept_jobs: int = 2_000
    """Finished ones; the oldest go first."""
    kept_models: int = 200
    cache_bytes: int = 64 * MIB
    """Answers kept in memory."""
    worker_bytes: int = 2048 * MIB
    capture_bytes: int = 8192 * MIB
    """Writable memory of a worker, and of the one that records models with PyTorch."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidInput(f"{name} = {getattr(self, name)}; a limit must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one service is run."""

    state: Path
    """The SQLite file that holds models and jobs."""
    token: str | None = None
    """Callers must send it; None: anybody who reaches the port may ask."""
    cors_origin: str | None = None
    """The one foreign web origin that may call; None: none."""
    workers: int = 2
    job_workers: int = 1
    limits: Limits = Limits()
