"""HTTP connections within bounds: heads in time and of a size, few at once of one address, answers that are read."""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from traincast.service._limits import Limits, spread_s

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
MOST_PIPELINED = 8
"""Requests of one connection that wait for the answers to those before them."""


class Bounded(HttpToolsProtocol):
    limits: Limits
    by_address: Counter[str]
    """Connections that are open."""
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _fields_bytes = 0
    _address = ""
    _answered: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.by_address[self._address] += 1
        if (
            len(self.connections) > self.limits.connections
            or self.by_address[self._address] > self.limits.client_connections
        ):
            self._end(_TOO_MANY)
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self.by_address[self._address] -= 1
        if self.by_address[self._address] <= 0:
            del self.by_address[self._address]
        self._disarm()
        if self._answered is not None:
            # The server knows only of the request that came last.
            self._answered.disconnected = True
            self._answered.message_event.set()
        self.resume_writing()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._is_reading_body():
            # The head of a request, be it one that comes before the answer to the last one is out.
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._arm()
        super().data_received(data)
        if self._is_reading_body():
            self._disarm()
        elif self._head_bytes > self.limits.header_bytes:
            self._end(_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._fields_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # 32 more for each field, as HTTP/2 counts them (RFC 9113, 6.5.2): thousands of short ones hold the event loop too.
        self._fields_bytes += len(name) + len(value) + 32
        if self._fields_bytes > self.limits.header_bytes:
            raise ValueError("more header fields than are read")
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        if self._fields_bytes > self.limits.header_bytes:
            self._end(_TOO_LARGE)
        else:
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if len(self.pipeline) > MOST_PIPELINED:
            raise ValueError("more requests at once than are read")

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_bytes = 0
        self._disarm()

    def _is_reading_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(spread_s(self.limits.header_s), self._expire)

    def _disarm(self) -> None:
        timer, self._head_timer = self._head_timer, None
        if timer is not None:
            timer.cancel()

    def _expire(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self._end(_TOO_LATE)
        elif self._head_bytes:
            # The answer to the request before is still being made; the rest of this head is waited for after it.
            self._arm()

    def _end(self, words: bytes) -> None:
        self._disarm()
        if not self.transport.is_closing():
            # In the middle of a body that was refused, the answer is out already.
            if self.cycle is None or not self.cycle.more_body:
                self.transport.write(words)
            self.transport.close()
            self.loop.call_later(self.limits.write_s, self._give_up)

    # A client that does not read what it asked for.

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(spread_s(self.limits.write_s), self._give_up)

    def resume_writing(self) -> None:
        timer, self._write_timer = self._write_timer, None
        if timer is not None:
            timer.cancel()
        super().resume_writing()

    def _give_up(self) -> None:
        """Let go of what was not read, in the kernel too."""
        found = self.transport.get_extra_info("socket")
        if found is not None:
            # It may have ended already.
            with contextlib.suppress(OSError, ValueError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.limits.write_s, self._give_up)


def make_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """A protocol class with these limits; the server makes one object for each connection."""
    return type("Limited", (Bounded,), {"limits": limits, "by_address": Counter()})
