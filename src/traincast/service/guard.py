"""What every request passes before it is read: who asks, from where, and how much it carries."""

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from traincast.service.limits import Settings
from traincast.service.metrics import Meter
from traincast.units import MIB, show_bytes

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = ("/", "/health", "/favicon.ico")
"""Readable without a token: they say nothing about anybody's models."""
JSON_BYTES = 6 * MIB
"""Of a body that is read as JSON in the service itself; uploads go to a worker and may be larger."""
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Refused(Exception):
    """A request that is answered without being read."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Guard:
    """An ASGI layer around the service."""

    def __init__(self, app: App, *, settings: Settings, meter: Meter) -> None:
        self._app, self._settings, self._meter = app, settings, meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = {key.lower(): value for key, value in scope["headers"]}
        origin = headers.get(b"origin", b"").decode("latin-1")
        status = 500
        begun = False

        async def answer(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                message["headers"] = [*message.get("headers", ()), *HEADERS, *self._cors(origin)]
            await send(message)

        try:
            if scope["method"] == "OPTIONS" and self._cors(origin):
                await _say(answer, 200, None)
            else:
                self._check(scope, headers, origin)
                await self._app(scope, self._count(receive, scope["path"]), answer)
        except Refused as refusal:
            if not begun:
                if refusal.status == 413:
                    await _drain(receive, most=2 * self._settings.limits.body_bytes)
                await _say(answer, refusal.status, str(refusal))
        finally:
            route = getattr(scope.get("route"), "path", "none") if status not in (401, 403) else "refused"
            self._meter.count(
                method=scope["method"] if scope["method"] in _METHODS else "other",
                route=route,
                status=status,
                seconds=time.perf_counter() - started,
            )

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

    def _check(self, scope: Scope, headers: dict[bytes, bytes], origin: str) -> None:
        path = scope["path"]
        host = headers.get(b"host", b"").decode("latin-1")
        # A page of another site may send simple requests without asking; it cannot hide where it comes from.
        if origin and urlsplit(origin).netloc != host and not self._cors(origin):
            raise Refused(
                403, f"requests from {origin[:100]} are not answered; start with --cors {origin[:100]} to allow"
            )
        token = self._settings.token
        if token is not None and path not in OPEN_PATHS:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                raise Refused(401, "a token is needed: send the header 'Authorization: Bearer TOKEN'")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._most(path):
            raise Refused(413, self._too_large(path))

    def _most(self, path: str) -> int:
        most = self._settings.limits.body_bytes
        return most if path == "/models" else min(most, JSON_BYTES)

    def _too_large(self, path: str) -> str:
        return f"the request has more than {show_bytes(self._most(path))}, the most that is read here"

    def _count(self, receive: Receive, path: str) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._most(path):
                # This rises through the framework, which knows only its own exceptions.
                raise HTTPException(status_code=413, detail=self._too_large(path))
            return message

        return counted


_METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH")


async def _drain(receive: Receive, *, most: int) -> None:
    """Let a caller finish what it sends, so that it reads the answer; what never ends is cut off."""
    seen = 0
    while seen <= most:
        message = await receive()
        seen += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return


async def _say(send: Send, status: int, words: str | None) -> None:
    body = b"" if words is None else json.dumps({"error": words}).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    if words is not None:
        headers.append((b"content-type", b"application/json"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
