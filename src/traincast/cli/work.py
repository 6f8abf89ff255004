"""`traincast work`: run jobs that services put into a shared database, on this machine."""

from typing import Annotated

import typer

from traincast.cli import serve as serving
from traincast.cli.output import say


def work(
    database: Annotated[
        str, typer.Option("--database", envvar="TRAINCAST_DATABASE", help="postgresql://... that the services use.")
    ],
    job_workers: Annotated[
        int | None, typer.Option("--job-workers", min=1, max=64, help="Processes; default: one a core.")
    ] = None,
    job_timeout: serving.JobTimeout = 900.0,
    ray: Annotated[bool, typer.Option("--ray", help="Run them on a Ray cluster (RAY_ADDRESS).")] = False,
) -> None:
    """Run plans and schedules for services that share a PostgreSQL database, without answering HTTP.

    Example: TRAINCAST_DATABASE=postgresql://... traincast work
    """
    from traincast.errors import MissingExtra

    try:
        from traincast.service import run_jobs
    except ImportError as error:
        raise MissingExtra("fastapi", "service", "the service") from error
    count = job_workers or serving.count_cores()
    settings = serving.make_work_settings(
        serving.find_state(None, database), job_workers=count, job_timeout_s=job_timeout, ray=ray
    )
    run_jobs(settings, announce=lambda: say(f"traincast runs jobs in {count} processes"))
