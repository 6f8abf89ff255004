"""Who may ask, under which name of this machine, and how often."""

import asyncio
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from traincast.service._faults import StorageFault
from traincast.service._limits import LOOPBACK, Settings
from traincast.service._state import SCOPES, StoredToken, digest_token

REFRESH_S = 2.0
"""A token that was added or removed counts after at most this."""
MOST_CLIENTS = 20_000

ReadTokens = Callable[[], Awaitable[Sequence[StoredToken]]]


def is_allowed_host(host: str, settings: Settings) -> bool:
    """Whether a Host header names this service. A web page that points its own name at this machine cannot hide that name."""
    name = _without_port(host).lower().rstrip(".")
    if name in LOOPBACK or name in settings.allowed_hosts or name == settings.host.lower():
        return True
    if settings.is_local:
        return False
    # A service for other machines is reached by its addresses too, and an address is no name that a page could take.
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class Tokens:
    """The tokens of the state and the one of the settings, as digests in memory."""

    def __init__(self, settings: Settings, read: ReadTokens) -> None:
        self._read = read
        self._fixed = None if settings.token is None else digest_token(settings.token)
        self._found: dict[str, StoredToken] = {}
        self._read_s = -REFRESH_S
        self._reading: asyncio.Task[None] | None = None

    @property
    def are_needed(self) -> bool:
        return self._fixed is not None or bool(self._found)

    async def find(self, header: bytes) -> StoredToken | None:
        """Whose token an Authorization header carries."""
        await self.refresh()
        scheme, _, token = header.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        digest = digest_token(token.strip())
        if self._fixed is not None and hmac.compare_digest(digest, self._fixed):
            return StoredToken(name="TRAINCAST_TOKEN", digest=digest, scope="admin", created_s=0.0)
        return self._found.get(digest)

    async def refresh(self) -> None:
        """Read the tokens again every few seconds; while the state cannot be read, those known last count."""
        if time.monotonic() - self._read_s < REFRESH_S:
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh())
        await asyncio.shield(self._reading)

    async def _refresh(self) -> None:
        try:
            self._found = {each.digest: each for each in await self._read()}
        except StorageFault:
            # Tokens that were read before stay valid while the storage is away; one that was never read is not let in.
            pass
        finally:
            self._read_s = time.monotonic()
            self._reading = None


def allows(scope: str, needed: str) -> bool:
    return SCOPES.index(scope) >= SCOPES.index(needed)


def needed_scope(method: str, path: str) -> str:
    if path == "/metrics":
        return "admin"
    return "read" if method in ("GET", "HEAD") else "run"


class Rates:
    """A token bucket for each client: so many requests a second, twice as many at once."""

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, client: str) -> float:
        """0 where the client may ask now, else how long it should wait."""
        if self._rate_per_s <= 0:
            return 0.0
        now_s, most = time.monotonic(), max(1.0, 2 * self._rate_per_s)
        left, seen_s = self._buckets.pop(client, (most, now_s))
        left = min(most, left + (now_s - seen_s) * self._rate_per_s)
        if left >= 1:
            self._buckets[client] = (left - 1, now_s)
        else:
            self._buckets[client] = (left, now_s)
        while len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._rate_per_s
