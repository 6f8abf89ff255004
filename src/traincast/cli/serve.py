"""`traincast serve`: the service and its page on a port."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from traincast.cli import options
from traincast.cli.groups import takes_groups
from traincast.cli.output import say
from traincast.noun import noun

State = Annotated[
    Path | None,
    typer.Option("--state", help="SQLite file for models, jobs and tokens; default: in the user's data folder."),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="TRAINCAST_DATABASE",
        help="postgresql://... instead of a file.",
    ),
]


@noun
class Access:
    """Where the service listens, and to whom."""

    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0: every one.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any free one.")] = 8400
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="TRAINCAST_TOKEN", help="Ask callers for it; better set as TRAINCAST_TOKEN."),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A name by which callers may reach this service; may be repeated."),
    ] = None
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0, help="Requests a second of one client; 0: any. Default: 100, on loopback any."),
    ] = None


@noun
class Capacity:
    """How much the service takes on at once."""

    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=256, help="Processes that answer forecasts; default: one a core."),
    ] = None
    job_workers: Annotated[
        int, typer.Option("--job-workers", min=0, max=64, help="Processes that work on plans and schedules.")
    ] = 2
    max_body: Annotated[str, typer.Option("--max-body", help="Largest upload, such as 32MiB.")] = "32MiB"
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that one forecast may take.")] = 20.0
    job_timeout: Annotated[float, typer.Option("--job-timeout", help="Seconds that one plan or schedule may take.")] = (
        900.0
    )


@takes_groups
def serve(
    *,
    access: Access,
    capacity: Capacity,
    state: State = None,
    database: Database = None,
    audit: Annotated[
        Path | None, typer.Option("--audit-log", help="File for a line about every change and refusal.")
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option("--calibration", help="NAME=FILE: what was learned, for callers to use by name; may be repeated."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Answer forecasts over HTTP, with a page.

    Example: TRAINCAST_TOKEN=... traincast serve --host 0.0.0.0 --port 8400, then open http://localhost:8400
    """
    from traincast.errors import InvalidInput, MissingExtra
    from traincast.units import parse_bytes

    try:
        from traincast.service import run_service
    except ImportError as error:
        raise MissingExtra("fastapi", "service", "the service") from error
    from traincast.service import LOOPBACK, Limits, Settings

    if access.token is not None and len(access.token) < 8:
        raise InvalidInput(f"the token has {len(access.token)} characters; use at least 8")
    usual_rate = 0.0 if access.host in LOOPBACK else 100.0
    body_bytes = int(parse_bytes(capacity.max_body))
    settings = Settings(
        state=find_state(state, database),
        token=access.token,
        host=access.host,
        allowed_hosts=tuple(name.lower() for name in access.allow_host or ()),
        workers=capacity.workers or count_cores(),
        job_workers=capacity.job_workers,
        rate_per_s=usual_rate if access.rate is None else access.rate,
        audit=audit,
        calibrations=_name_calibrations(calibration or ()),
        limits=Limits(body_bytes=body_bytes, request_s=capacity.timeout, job_s=capacity.job_timeout),
    )

    def announce(url: str) -> None:
        import json as encoder

        shown = {"url": url, "state": "postgresql" if database else settings.state}
        say(encoder.dumps(shown) if json else f"traincast answers at {url}")
        sys.stdout.flush()

    run_service(settings, port=access.port, announce=announce)


def find_state(state: Path | None, database: str | None) -> str:
    """The file or the URL that was asked for, or the user's own file."""
    from traincast.errors import InvalidInput
    from traincast.service import is_url

    if database is None:
        return str(state or default_state())
    if state is not None:
        raise InvalidInput("--state and --database both say where models and jobs are kept; give one of them")
    if not is_url(database):
        raise InvalidInput(
            f"--database {database.partition(':')[0]}:...; give postgresql://USER:PASSWORD@HOST:PORT/NAME"
        )
    return database


def _name_calibrations(pairs: Iterable[str]) -> dict[str, Path]:
    from traincast.errors import InvalidInput

    named: dict[str, Path] = {}
    for pair in pairs:
        name, equals, file = pair.partition("=")
        if not (name and equals and file) or name in named:
            raise InvalidInput(f"--calibration {pair}; give NAME=FILE, each name once")
        named[name] = Path(file)
    return named


def default_state() -> Path:
    """Where the user's programs keep data (XDG base directories)."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "traincast" / "service.db"


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
