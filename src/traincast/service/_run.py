"""Settings to a running server."""

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable

import uvicorn

from traincast.errors import InvalidInput
from traincast.service._app import make_app
from traincast.service._dispatch import Dispatcher
from traincast.service._limits import Settings
from traincast.service._protocol import make_protocol
from traincast.service._ray import connect
from traincast.service._state import State


def run_service(settings: Settings, *, port: int, announce: Callable[[str], None]) -> None:
    """Serve until interrupted; `announce` is called with the address once requests are answered."""
    raise_open_files()
    if settings.ray:
        # Where there is no Ray, it is better said now than with the first job.
        connect()
    host = settings.host
    app = make_app(settings)
    try:
        _refuse_open_door(settings, app.state.dispatcher.state)
        listener = _listen(host, port)
    except InvalidInput:
        app.state.dispatcher.state.close()
        raise
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        # Whoever connects is whoever asks: a header must not choose whose rate limit counts.
        proxy_headers=False,
        http=make_protocol(settings.limits),
        timeout_keep_alive=15,
        timeout_graceful_shutdown=5,
        backlog=2048,
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

    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve())


def run_jobs(settings: Settings, *, announce: Callable[[], None]) -> None:
    """Run jobs of a shared database until interrupted, without answering anybody."""
    if settings.ray:
        connect()

    async def run() -> None:
        dispatcher = Dispatcher(settings)
        stop = asyncio.Event()
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
        try:
            await dispatcher.runner.start()
            announce()
            await stop.wait()
        finally:
            await dispatcher.close()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


def _refuse_open_door(settings: Settings, state: State) -> None:
    if not settings.is_local and settings.token is None and not state.list_tokens():
        raise InvalidInput(
            f"anybody who reaches {settings.host} could ask this service; set TRAINCAST_TOKEN, or add a token with "
            "'traincast token add NAME', or listen on 127.0.0.1"
        )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def raise_open_files() -> None:
    """Let as many connections be open as the system allows."""
    with contextlib.suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
