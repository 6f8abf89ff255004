"""How much one request may ask, and how the service is set up."""

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.service._faults import Busy
from traincast.units import MIB, show_bytes


@noun
class Limits:
    """What one request may cost; each is checked before the work it bounds."""

    body_bytes: int = 32 * MIB
    """Of an upload; other bodies have at most 6 MiB."""
    inflight_bytes: int = 128 * MIB
    """Of all bodies and large answers that are in memory at once, half-sent ones included."""
    client_bytes: int = 64 * MIB
    """The same of one client."""
    json_depth: int = 40
    graph_ops: int = 50_000
    """Of an uploaded graph, folded repetitions counted once."""
    devices: int = 65_536
    micro_batches: int = 4_096
    plans: int = 30_000
    """That one search may try; about as many as are tried in two minutes."""
    schedule_jobs: int = 20_000
    schedule_gpus: int = 65_536
    request_s: float = 20.0
    """A forecast or a fit that needs longer, by the clock or of CPU time, is stopped."""
    capture_s: float = 60.0
    capture_cpu_s: float = 30.0
    job_s: float = 900.0
    """A plan or a schedule that needs longer is stopped."""
    waiting_requests: int = 256
    patience_s: float = 0.5
    """A request that would wait longer than about this for a worker is refused with 429."""
    header_s: float = 10.0
    """A connection that does not send the whole head of a request within this is closed."""
    body_s: float = 10.0
    """A body may pause for so long, and must come at 32 KiB/s after that."""
    write_s: float = 20.0
    """A client that reads nothing for so long is cut off."""
    header_bytes: int = 32 * 1024
    connections: int = 4_096
    client_connections: int = 1_024
    """Of one address."""
    waiting_jobs: int = 64
    client_jobs: int = 16
    """Places in the queue of one client."""
    kept_jobs: int = 2_000
    """Finished ones; the oldest go first."""
    kept_models: int = 200
    cache_bytes: int = 64 * MIB
    """Answers kept in memory."""
    worker_bytes: int = 2048 * MIB
    rest_bytes: int = 1024 * MIB
    """A worker that holds more than this after its task is replaced by a new one; what libraries keep does not add up."""
    capture_bytes: int = 8192 * MIB
    """Writable memory of a worker, and of the one that records models with PyTorch."""

    def __post_init__(self) -> None:
        for name in self.__annotations__:
            if getattr(self, name) <= 0:
                raise InvalidInput(f"{name} = {getattr(self, name)}; a limit must be above 0")


class Budget:
    """Bytes that are in memory for clients: so many for all, so many for each."""

    def __init__(self, most: int, most_of_client: int) -> None:
        self._most, self._most_of_client = most, most_of_client
        self._held: Counter[str] = Counter()
        self.num_bytes = 0

    @contextlib.contextmanager
    def hold(self, client: str) -> Iterator[Callable[[int], None]]:
        """What takes bytes of a client, which are all given back in the end."""
        taken = 0

        def take(amount: int) -> None:
            nonlocal taken
            if self._held[client] + amount > self._most_of_client:
                most = show_bytes(self._most_of_client)
                raise Busy(f"more than {most} of this client are under way; ask again later")
            if self.num_bytes + amount > self._most:
                raise Busy(f"more than {show_bytes(self._most)} of requests are under way; ask again later")
            taken += amount
            self._held[client] += amount
            self.num_bytes += amount

        try:
            yield take
        finally:
            self.num_bytes -= taken
            self._held[client] -= taken
            if not self._held[client]:
                del self._held[client]


def spread_s(limit_s: float) -> float:
    """A little less than the limit, never the same twice: a thousand callers who came at once are not all ended at once."""
    return limit_s * random.uniform(0.8, 1.0)


LOOPBACK = ("127.0.0.1", "::1", "localhost")


@noun
class Settings:
    """How one service is run."""

    state: str
    """The SQLite file, or the URL of the PostgreSQL database, that holds models, jobs and tokens."""
    token: str | None = None
    """Callers who send it may do everything."""
    host: str = "127.0.0.1"
    """The address that is listened on; callers of any other than the loopback need a token."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides those of the loopback and the address itself, by which callers may know this service."""
    workers: int = 2
    job_workers: int = 2
    """With two or more, one client never holds all of them."""
    rate_per_s: float = 0.0
    """Requests that one client may send in a second; twice as many at once. 0: no limit."""
    audit: Path | None = None
    """A file that gets a line of JSON for every request that changed or refused something."""
    calibrations: Mapping[str, Path] = field(default_factory=dict)
    """What was learnt, by the names that callers may use; no caller can name a file."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if "*" in self.allowed_hosts:
            raise InvalidInput("a service that answers to every name can be reached by any web page; name the hosts")
        if self.workers < 1 or self.job_workers < 0 or self.rate_per_s < 0:
            raise InvalidInput(
                f"workers = {self.workers}, job_workers = {self.job_workers}, rate = {self.rate_per_s:g}; there is at least "
                "one worker, and the others are at least 0"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the port."""
        return self.host in LOOPBACK
