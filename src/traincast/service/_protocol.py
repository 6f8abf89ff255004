"""HTTP connections that must send the head of a request in time, and not too much of it."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from traincast.service._limits import Limits, spread_s

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def make_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """A protocol class with these limits; the server makes one object for each connection."""

    class Bounded(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _head_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                self._end(_TOO_MANY)
                return
            self._arm()

        def data_received(self, data: bytes) -> None:
            if self._timer is None and not self._is_answering():
                self._arm()
            if self._timer is not None:
                self._head_bytes += len(data)
            super().data_received(data)
            if self._is_answering():
                self._disarm()
            elif self._head_bytes > limits.header_bytes:
                self._end(_TOO_LARGE)

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _arm(self) -> None:
            self._head_bytes = 0
            self._timer = self.loop.call_later(spread_s(limits.header_s), self._expire)

        def _disarm(self) -> None:
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()

        def _expire(self) -> None:
            self._timer = None
            if not self._is_answering():
                self._end(_TOO_LATE)

        def _end(self, words: bytes) -> None:
            self._disarm()
            if not self.transport.is_closing():
                self.transport.write(words)
                self.transport.close()

    return Bounded
