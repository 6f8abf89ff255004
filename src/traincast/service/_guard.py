"""What every request passes before it is read: who asks, from where, how often, and how much it carries."""

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from traincast.service._access import Denied, Rates, Tokens, is_allowed_host
from traincast.service._dispatch import ANSWERED, CLIENT, Dispatcher
from traincast.service._faults import Busy
from traincast.service._limits import Budget, spread_s
from traincast.service._page import DOCS_FILES
from traincast.service._state import SCOPES
from traincast.units import MIB, show_bytes

log = logging.getLogger("traincast.service")
audit = logging.getLogger("traincast.audit")
"""A line of JSON for every request that changed or refused something."""

MEDIA_TYPE = "application/problem+json"
OPEN_PATHS = ("/", "/health", "/ready", "/live", "/favicon.ico", "/docs", *(f"/docs/{name}" for name in DOCS_FILES))
"""Readable without a token: they say nothing about anybody's models."""
RECALLED = {f"/{name}": name for name in ANSWERED}
JSON_BYTES = 6 * MIB
"""Of a body that is read as JSON; uploads may be larger."""
LARGE_ANSWER = 64 * 1024
"""Larger ones are sent in pieces and counted while they are under way."""
SLOWEST_BYTES_PER_S = 32 * 1024
HEADERS = (
    (b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"DENY"), (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"), (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)  # fmt: skip
_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
API_HEADERS = (*HEADERS, _POLICY, (b"cache-control", b"no-store"))
"""Of answers that are no page: no browser shows or keeps them."""
_METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH")


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """What is wrong as RFC 9457 says it; `detail` is the sentence of the command line."""
    document = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}
    return Response(json.dumps(document, ensure_ascii=False).encode(errors="replace"), status, headers, MEDIA_TYPE)


class Guard:
    """An ASGI layer around the service. It reads the whole body, within its bounds, and hands it on in the scope."""

    def __init__(self, app: ASGIApp, *, dispatcher: Dispatcher, tokens: Tokens) -> None:
        self._app, self._dispatcher, self._tokens = app, dispatcher, tokens
        self._settings, self._meter, self._budget = dispatcher.settings, dispatcher.meter, dispatcher.budget
        self._rates = Rates(self._settings.rate_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = dict(scope["headers"])
        # What answers GET answers HEAD; the server leaves the body out.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        answer = _Answer(inner, receive, send, self._budget)
        address = str(scope["client"][0]) if scope.get("client") else "unknown"
        who = ""
        try:
            who = await self._admit(inner, headers, address)
            CLIENT.set(who)
            await self._pass_on(inner, headers, receive, answer, who)
        except ClientDisconnect:
            answer.status = 499
        except (Denied, Busy) as refusal:
            if refusal.status in (413, 415, 429):
                await _drain(receive)
            await answer.refuse(refusal)
        except Exception:
            number = secrets.token_hex(4)
            log.exception("internal error %s at %s %r", number, inner["method"], inner["path"][:200])
            words = f"internal error; please report it with the lines of the service's log that name {number}"
            await answer.refuse(Denied(500, words))
        finally:
            seconds = time.perf_counter() - started
            found = getattr(inner.get("route"), "path", inner.get("recalled", "none"))
            route = "refused" if answer.status in (401, 403) else str(found)
            method = inner["method"] if inner["method"] in _METHODS else "other"
            self._meter.count(method=method, route=route, status=answer.status, seconds=seconds)
            if inner["method"] != "GET" or answer.status in (401, 403, 429):
                told = {"at_s": round(time.time(), 3), "client": who or address, "address": address}
                told |= {"method": scope["method"][:20], "path": scope["path"][:200], "status": answer.status}
                # As ASCII, so that no character of a path can look like the end of a line.
                audit.info(json.dumps({**told, "seconds": round(seconds, 4)}))

    async def _admit(self, scope: Scope, headers: dict[bytes, bytes], address: str) -> str:
        """The name of the client; what may not pass is refused."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not host:
            raise Denied(400, "the request does not say in its Host header whom it asks")
        if not is_allowed_host(host, self._settings):
            raise Denied(
                403, f"this service does not answer to the name {host[:100]!r}; start it with --allow-host to allow one"
            )
        # A page of another site may send simple requests without asking; it cannot hide where it comes from.
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin.partition("://")[2] != host:
            raise Denied(403, f"requests from {origin[:100]!r} are not answered")
        is_visit = headers.get(b"sec-fetch-mode") == b"navigate" and scope["path"] == "/" and scope["method"] == "GET"
        if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and not is_visit:
            raise Denied(403, "requests from pages of other sites are not answered")
        wait_s = self._rates.wait_s(address)
        if wait_s:
            raise Denied(
                429, f"more than {self._settings.rate_per_s:g} requests a second from {address}", retry_after_s=wait_s
            )
        who = await self._identify(scope, headers) or address
        # The server has refused lengths that are no numbers.
        self._check_size(scope["path"], int(headers.get(b"content-length", b"0")))
        return who

    async def _identify(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """Whose token the request carries; '' where none is needed."""
        if scope["path"] in OPEN_PATHS:
            return ""
        found = await self._tokens.identify(headers.get(b"authorization", b""))
        if found is None:
            return ""
        needed = "admin" if scope["path"] == "/metrics" else "read" if scope["method"] == "GET" else "run"
        if SCOPES.index(found.scope) < SCOPES.index(needed):
            raise Denied(403, f"the token {found.name!r} has the scope {found.scope}; this needs {needed}")
        return found.name

    async def _pass_on(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, answer: "_Answer", who: str
    ) -> None:
        if scope["method"] in ("GET", "DELETE"):
            await self._app(scope, receive, answer)
            return
        path = scope["path"]
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if path != "/models" and kind != b"application/json":
            raise Denied(415, "send JSON with the header 'Content-Type: application/json'")
        with self._budget.hold(who) as take:
            content = await self._read(receive, path, take)
            known = self._dispatcher.recall(RECALLED[path], content) if path in RECALLED else None
            if known is not None:
                scope["recalled"] = path
                await Response(known, media_type="application/json")(scope, receive, answer)
            else:
                scope["content"] = content
                await self._app(scope, receive, answer)

    async def _read(self, receive: Receive, path: str, take: Callable[[int], None]) -> bytes:
        """The body up to its limit, and no slower than a caller who means it."""
        content = bytearray()
        began_s, patience_s = time.monotonic(), spread_s(self._settings.limits.body_s)
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    message = await receive()
            except TimeoutError as error:
                raise Denied(408, f"the body paused for {patience_s:.2g} s") from error
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece = message.get("body", b"")
            self._check_size(path, len(content) + len(piece))
            take(len(piece))
            content += piece
            if not message.get("more_body", False):
                return bytes(content) if len(content) <= LARGE_ANSWER else content  # type: ignore[return-value]
            if len(content) < (time.monotonic() - began_s - patience_s) * SLOWEST_BYTES_PER_S:
                raise Denied(408, "the body comes too slowly")

    def _check_size(self, path: str, size: int) -> None:
        most = self._settings.limits.body_bytes
        most = most if path in ("/models", "/compare") else min(most, JSON_BYTES)
        if size > most:
            raise Denied(413, f"the request has more than {show_bytes(most)}, the most that is read here")


class _Answer:
    """Where an answer is sent: with the headers that keep a browser in bounds, large ones in pieces within the budget."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, budget: Budget) -> None:
        self._scope, self._receive, self._send, self._budget = scope, receive, send, budget
        self._start: Message | None = None
        self._is_begun = False
        self.status = 500

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        body = message.get("body", b"")
        if len(body) <= LARGE_ANSWER:
            await self._begin()
            await self._send(message)
            return
        # Before the head is out: an answer that has no room in memory is refused like a request that has none.
        with self._budget.hold(CLIENT.get()) as take:
            try:
                take(len(body))
            except Busy as refusal:
                # Not raised: for the routes the answer is under way already.
                await self.refuse(refusal)
                return
            await self._begin()
            for at in range(0, len(body), LARGE_ANSWER):
                more = message.get("more_body", False) or at + LARGE_ANSWER < len(body)
                piece = body[at : at + LARGE_ANSWER]
                await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _begin(self) -> None:
        start, self._start = self._start, None
        if start is None:
            return
        self.status, self._is_begun = start["status"], True
        found = [*start.get("headers", ())]
        is_page = any(key == b"content-security-policy" for key, _ in found)
        await self._send({**start, "headers": [*found, *(HEADERS if is_page else API_HEADERS)]})

    async def refuse(self, refusal: Denied | Busy) -> None:
        if self._is_begun:
            return
        headers = {"connection": "close"} if refusal.status in (408, 413, 415, 429) else {}
        if refusal.status == 401:
            headers["www-authenticate"] = "Bearer"
        if refusal.retry_after_s is not None:
            headers["retry-after"] = str(max(1, round(refusal.retry_after_s + 0.5)))
        await problem(refusal.status, str(refusal), headers)(self._scope, self._receive, self)


async def _drain(receive: Receive, *, most: int = 8 * MIB) -> None:
    """Let a caller finish what it sends, so that it reads the answer; nothing of it is kept, and what never ends is cut off."""
    seen = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while seen <= most:
                message = await receive()
                seen += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
