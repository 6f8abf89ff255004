"""Settings to a running server."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import uvicorn

from traincast.errors import InvalidInput
from traincast.service.app import make_app
from traincast.service.limits import Settings


def run_service(settings: Settings, *, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve until interrupted; `announce` is called with the address once requests are answered."""
    app = make_app(settings)
    try:
        listener = _listen(host, port)
    except InvalidInput:
        app.state.dispatcher.state.close()
        raise
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)

    async def serve() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.02)
        if server.started:
            shown = f"[{host}]" if ":" in host else host
            announce(f"http://{shown}:{listener.getsockname()[1]}")
        await serving

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())


def _listen(host: str, port: int) -> socket.socket:
    listener = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol by name: asyncio lets small answers go at once only where it is told that this is TCP; else each would
        # wait 40 ms for the client's acknowledgement of its headers.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from error
    return listener
