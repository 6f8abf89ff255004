"""`traincast serve`: the service and its page on a port."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from traincast.cli import options
from traincast.cli.output import say


def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0: every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any free one.")] = 8400,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="SQLite file for models and jobs; default: in the user's data folder."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="TRAINCAST_TOKEN", help="Ask callers for it; better set as TRAINCAST_TOKEN."),
    ] = None,
    cors: Annotated[
        str | None, typer.Option("--cors", help="A web origin whose pages may call, such as https://example.org.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Processes that answer forecasts.")] = 2,
    job_workers: Annotated[
        int, typer.Option("--job-workers", min=1, max=64, help="Processes that work on plans and schedules.")
    ] = 1,
    max_body: Annotated[str, typer.Option("--max-body", help="Largest upload, such as 32MiB.")] = "32MiB",
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that one forecast may take.")] = 20.0,
    job_timeout: Annotated[
        float, typer.Option("--job-timeout", help="Seconds that one plan or schedule may take.")
    ] = 900.0,
    json: options.Json = False,
) -> None:
    """Answer forecasts over HTTP, with a page.

    Example: TRAINCAST_TOKEN=... traincast serve --host 0.0.0.0 --port 8400, then open http://localhost:8400
    """
    from traincast.errors import InvalidInput, MissingExtra
    from traincast.units import parse_bytes

    try:
        from traincast.service.run import run_service
    except ImportError as error:
        raise MissingExtra("fastapi", "service", "the service") from error
    from traincast.service.limits import Limits, Settings

    if token is not None and len(token) < 8:
        raise InvalidInput(f"the token has {len(token)} characters; use at least 8")
    settings = Settings(
        state=state or default_state(),
        token=token,
        cors_origin=cors,
        workers=workers,
        job_workers=job_workers,
        limits=Limits(body_bytes=int(parse_bytes(max_body)), request_s=timeout, job_s=job_timeout),
    )
    if host not in ("127.0.0.1", "::1", "localhost") and token is None:
        sys.stderr.write(
            f"traincast: anybody who reaches {host}:{port} may ask; set TRAINCAST_TOKEN to ask for a token\n"
        )

    def announce(url: str) -> None:
        import json as encoder

        say(encoder.dumps({"url": url, "state": str(settings.state)}) if json else f"traincast answers at {url}")
        sys.stdout.flush()

    run_service(settings, host=host, port=port, announce=announce)


def default_state() -> Path:
    """Where the user's programs keep data (XDG base directories)."""
    import os

    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "traincast" / "service.db"
