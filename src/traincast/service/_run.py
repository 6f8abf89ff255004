"""Settings to a running server."""

import contextlib
import logging.handlers
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from traincast.errors import InvalidInput
from traincast.service._app import make_app
from traincast.service._limits import Settings
from traincast.service._protocol import make_protocol


def run_service(settings: Settings, *, port: int, announce: Callable[[str], None]) -> None:
    """Serve until interrupted; `announce` is called with the address once requests are answered."""
    with contextlib.suppress(ValueError, OSError):
        # As many connections as the system allows.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _keep_audit(settings.audit)
    host, app = settings.host, make_app(settings)
    state = app.state.dispatcher.state
    try:
        if not settings.is_local and settings.token is None and not state.list_tokens():
            raise InvalidInput(
                f"anybody who reaches {host} could ask this service; set TRAINCAST_TOKEN, or add a token with "
                "'traincast token add NAME', or listen on 127.0.0.1"
            )
        listener = _listen(host, port)
    except InvalidInput:
        state.close()
        raise

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                announce(f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}")

    # No proxy headers: whoever connects is whoever asks, and a header must not choose whose rate limit counts. No warnings: a
    # line for each request that is no HTTP would let anybody fill the log.
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, proxy_headers=False,
        http=make_protocol(settings.limits), timeout_keep_alive=15, timeout_graceful_shutdown=5, backlog=2048,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):
        Server(config).run(sockets=[listener])


def _keep_audit(path: Path | None) -> None:
    """Who changed what and who was refused, in a file that rotates; a full disk loses lines and nothing else."""
    log = logging.getLogger("traincast.audit")
    log.propagate = False
    log.setLevel(logging.CRITICAL if path is None else logging.INFO)
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            log.addHandler(logging.handlers.RotatingFileHandler(path, maxBytes=16 * 2**20, backupCount=4))
            path.chmod(0o600)
        except OSError as error:
            raise InvalidInput(f"cannot keep the audit log in {path}: {error}") from error


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
        words = f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        raise InvalidInput(words) from error
    return listener
