"""What every request passes before it is read: who asks, from where, how often, and how much it carries."""

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from traincast.service._access import Rates, Tokens, allows, is_allowed_host, needed_scope
from traincast.service._audit import AuditLog
from traincast.service._dispatch import CLIENT, LARGE_BODY, Dispatcher
from traincast.service._limits import spread_s
from traincast.service._pool import Busy
from traincast.units import MIB, show_bytes

log = logging.getLogger("traincast.service")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = ("/", "/health", "/ready", "/live", "/favicon.ico")
"""Readable without a token: they say nothing about anybody's models."""
RECALLED = {"/forecast": "forecast", "/fit": "fit", "/similar": "similar"}
"""Paths whose answers depend on the body alone."""
JSON_BYTES = 6 * MIB
"""Of a body that is read as JSON; uploads may be larger."""
SLOWEST_BYTES_PER_S = 32 * 1024
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
API_HEADERS = (
    *HEADERS,
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""Of answers that are no page: no browser shows or keeps them."""


class Refused(Exception):
    """A request that is answered without being read."""

    def __init__(self, status: int, words: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(words)
        self.status, self.retry_after_s = status, retry_after_s


class Guard:
    """An ASGI layer around the service."""

    def __init__(self, app: App, *, dispatcher: Dispatcher, tokens: Tokens, audit: AuditLog) -> None:
        self._app, self._dispatcher, self._tokens, self._audit = app, dispatcher, tokens, audit
        self._settings, self._meter = dispatcher.settings, dispatcher.meter
        self._rates = Rates(self._settings.rate_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        # What answers GET answers HEAD; the server leaves the body out.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        status = 500
        begun = False

        async def answer(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                found = [*message.get("headers", ())]
                is_page = any(key == b"content-security-policy" for key, _ in found)
                message["headers"] = [*found, *(HEADERS if is_page else API_HEADERS), *self._cors(origin)]
            await send(message)

        who = ""
        try:
            who = await self._admit(inner, headers, origin)
            CLIENT.set(who)
            if inner["method"] == "OPTIONS" and self._cors(origin):
                await _say(answer, 200, None)
            else:
                await self._pass_on(inner, headers, receive, answer)
        except Refused as refusal:
            if not begun:
                if refusal.status == 413:
                    await _drain(receive, most=2 * self._settings.limits.body_bytes)
                await _say(answer, refusal.status, str(refusal), retry_after_s=refusal.retry_after_s)
        except HTTPException as refusal:
            if not begun:
                await _say(answer, refusal.status_code, str(refusal.detail))
        except ClientDisconnect:
            status = 499
        except Exception:
            number = secrets.token_hex(4)
            log.exception("internal error %s at %s %s", number, inner["method"], inner["path"][:200])
            if not begun:
                words = f"internal error; please report it with the lines of the service's log that name {number}"
                await _say(answer, 500, words)
        finally:
            seconds = time.perf_counter() - started
            self._count(inner, status, seconds)
            if inner["method"] not in ("GET", "OPTIONS") or status in (401, 403, 429):
                self._note(scope, who, status, seconds)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        found = getattr(scope.get("route"), "path", scope.get("recalled", "none"))
        route = "refused" if status in (401, 403) else str(found)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._meter.count(method=method, route=route, status=status, seconds=seconds)

    def _note(self, scope: Scope, who: str, status: int, seconds: float) -> None:
        self._audit.note(
            client=who or _address(scope), address=_address(scope), method=scope["method"][:20], path=scope["path"][:200],
            status=status, seconds=round(seconds, 4),
        )  # fmt: skip

    async def _admit(self, scope: Scope, headers: dict[bytes, bytes], origin: str) -> str:
        """The name of the client; what may not pass is refused."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not host:
            raise Refused(400, "the request does not say in its Host header whom it asks")
        if not is_allowed_host(host, self._settings):
            raise Refused(
                403, f"this service does not answer to the name {host[:100]!r}; start it with --allow-host to allow one"
            )
        self._check_origin(scope, headers, origin, host)
        address = _address(scope)
        if scope["method"] == "OPTIONS":
            return address
        wait_s = self._rates.wait_s(address)
        if wait_s:
            raise Refused(
                429, f"more than {self._settings.rate_per_s:g} requests a second from {address}", retry_after_s=wait_s
            )
        who = await self._identify(scope, headers) or address
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > self._most(scope["path"]):
            raise Refused(413, self._too_large(scope["path"]))
        return who

    def _check_origin(self, scope: Scope, headers: dict[bytes, bytes], origin: str, host: str) -> None:
        """A page of another site may send simple requests without asking; it cannot hide where it comes from."""
        if self._cors(origin):
            return
        if origin and urlsplit(origin).netloc != host:
            raise Refused(
                403, f"requests from {origin[:100]} are not answered; start with --cors {origin[:100]} to allow"
            )
        is_visit = headers.get(b"sec-fetch-mode") == b"navigate" and scope["path"] == "/" and scope["method"] == "GET"
        if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and not is_visit:
            raise Refused(403, "requests from pages of other sites are not answered")

    async def _identify(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """Whose token the request carries; '' where none is needed."""
        await self._tokens.refresh()
        path = scope["path"]
        if path in OPEN_PATHS or not self._tokens.are_needed:
            return ""
        found = await self._tokens.find(headers.get(b"authorization", b""))
        if found is None:
            raise Refused(401, "a token is needed: send the header 'Authorization: Bearer TOKEN'")
        needed = needed_scope(scope["method"], path)
        if not allows(found.scope, needed):
            raise Refused(403, f"the token {found.name!r} has the scope {found.scope}; this needs {needed}")
        return found.name

    async def _pass_on(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        bounded = self._bound(receive, scope["path"])
        task = RECALLED.get(scope["path"])
        if task is None or scope["method"] != "POST" or int(headers.get(b"content-length", b"0")) > LARGE_BODY:
            await self._app(scope, bounded, send)
            return
        messages = [await bounded()]
        while messages[-1].get("more_body"):
            messages.append(await bounded())
        known = self._dispatcher.recall(task, b"".join(message.get("body", b"") for message in messages))
        is_json = headers.get(b"content-type", b"").startswith(b"application/json")
        if known is not None and is_json:
            scope["recalled"] = scope["path"]
            await _send_json(send, 200, known)
            return
        try:
            self._dispatcher.check_room()
        except Busy as busy:
            raise Refused(429, str(busy), retry_after_s=busy.retry_after_s) from busy
        waiting = iter(messages)

        async def again() -> Message:
            return next(waiting, None) or await receive()

        await self._app(scope, again, send)

    def _cors(self, origin: str) -> list[tuple[bytes, bytes]]:
        allowed = self._settings.cors_origin
        if not origin or allowed is None or allowed not in ("*", origin):
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-allow-headers", b"authorization, content-type"),
            (b"vary", b"origin"),
        ]

    def _most(self, path: str) -> int:
        most = self._settings.limits.body_bytes
        return most if path == "/models" else min(most, JSON_BYTES)

    def _too_large(self, path: str) -> str:
        return f"the request has more than {show_bytes(self._most(path))}, the most that is read here"

    def _bound(self, receive: Receive, path: str) -> Receive:
        """The body up to its limit, and no slower than a caller who means it."""
        seen, began_s, patience_s = 0, time.monotonic(), spread_s(self._settings.limits.body_s)
        is_over = False

        async def bounded() -> Message:
            nonlocal seen, is_over
            if is_over:
                return await receive()
            try:
                async with asyncio.timeout(patience_s):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(status_code=408, detail=f"the body paused for {patience_s:.2g} s") from error
            seen += len(message.get("body", b""))
            is_over = not message.get("more_body", False)
            if seen > self._most(path):
                # This rises through the framework, which knows only its own exceptions.
                raise HTTPException(status_code=413, detail=self._too_large(path))
            if not is_over and seen < (time.monotonic() - began_s - patience_s) * SLOWEST_BYTES_PER_S:
                raise HTTPException(status_code=408, detail="the body comes too slowly")
            return message

        return bounded


_METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH")


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


async def _drain(receive: Receive, *, most: int) -> None:
    """Let a caller finish what it sends, so that it reads the answer; what never ends is cut off."""
    seen = 0
    try:
        async with asyncio.timeout(5):
            while seen <= most:
                message = await receive()
                seen += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
    except TimeoutError:
        return


async def _say(send: Send, status: int, words: str | None, *, retry_after_s: float | None = None) -> None:
    headers = []
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(retry_after_s))).encode()))
    body = b"" if words is None else json.dumps({"error": words}).encode()
    await _send_json(send, status, body, *headers)


async def _send_json(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    shown = [(b"content-length", str(len(body)).encode()), *headers]
    if body:
        shown.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": status, "headers": shown})
    await send({"type": "http.response.body", "body": body})
