"""Who may ask, under which name of this machine, and how often."""

import asyncio
import contextlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from traincast.service._faults import StorageFault
from traincast.service._limits import LOOPBACK, Settings
from traincast.service._state import StoredToken, digest_token

REFRESH_S = 2.0
"""A token that was added or removed counts after at most this."""
MOST_CLIENTS = 20_000

ReadTokens = Callable[[], Awaitable[Sequence[StoredToken]]]


def is_allowed_host(host: str, settings: Settings) -> bool:
    """Whether a Host header names this service. A web page that points its own name at this machine cannot hide that name."""
    name = (host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]).lower().rstrip(".")
    if name in LOOPBACK or name in settings.allowed_hosts or name == settings.host.lower():
        return True
    if settings.is_local:
        return False
    # A service for other machines is reached by its addresses too, and an address is no name that a page could take.
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return False


class Denied(Exception):
    """Whoever asks may not, or it cannot be told now whether they may."""

    def __init__(self, status: int, words: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(words)
        self.status, self.retry_after_s = status, retry_after_s


class Tokens:
    """The tokens of the state and the one of the settings, as digests in memory.

    Closed unless it is known to be open: on any address but the loopback a token is always needed; on the loopback it is
    needed as soon as one was ever seen, and while none could ever be read. Tokens that cannot be read now admit nobody.
    """

    def __init__(self, settings: Settings, read: ReadTokens) -> None:
        self._read, self._is_local = read, settings.is_local
        self._fixed = None if settings.token is None else digest_token(settings.token)
        self._found: dict[str, StoredToken] | None = None
        self._are_known = False
        self._were_seen = False
        self._read_s = -REFRESH_S
        self._reading: asyncio.Task[None] | None = None

    async def identify(self, header: bytes) -> StoredToken | None:
        """Whose token an Authorization header carries; None where none is needed."""
        await self.refresh()
        if self._is_local and self._fixed is None and self._found is not None and not self._were_seen:
            return None
        scheme, _, token = header.decode("latin-1").partition(" ")
        digest = digest_token(token.strip()) if scheme.lower() == "bearer" and token else ""
        if self._fixed is not None and hmac.compare_digest(digest, self._fixed):
            return StoredToken(name="TRAINCAST_TOKEN", digest=digest, scope="admin", created_s=0.0)
        if not self._are_known:
            raise Denied(503, "who may ask cannot be read from the state now; ask again later", retry_after_s=1)
        found = (self._found or {}).get(digest)
        if found is None:
            raise Denied(401, "a token is needed: send the header 'Authorization: Bearer TOKEN'")
        return found

    async def refresh(self) -> None:
        """Read the tokens again every few seconds."""
        if time.monotonic() - self._read_s < REFRESH_S:
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh())
        await asyncio.shield(self._reading)

    async def _refresh(self) -> None:
        try:
            self._found = {each.digest: each for each in await self._read()}
            self._are_known = True
            self._were_seen = self._were_seen or bool(self._found)
        except StorageFault:
            self._are_known = False
        finally:
            self._read_s = time.monotonic()
            self._reading = None


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
        self._buckets[client] = (left - 1 if left >= 1 else left, now_s)
        while len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._rate_per_s
