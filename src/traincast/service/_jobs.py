"""Routes of what takes long: plans and schedules are asked for, watched, read and cancelled."""

import dataclasses
import json
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Response

from traincast.service import _bodies as bodies
from traincast.service._dispatch import Dispatcher
from traincast.service._state import StoredJob

Responses = dict[int | str, dict[str, Any]]


def add_job_routes(app: FastAPI, dispatcher: Dispatcher, *, responses: Responses) -> None:
    JobId = Annotated[str, Path(max_length=64, examples=["0f8fad5bd9cb469fa16570867728950e"])]
    asked: Responses = {status: responses[status] for status in (400, 401, 403, 405, 408, 413, 422, 429, 503)}
    found: Responses = {status: responses[status] for status in (401, 403, 404, 405, 422, 429, 503)}

    @app.post("/schedule", status_code=202, summary="Simulate policies on a job trace, as a job", responses=asked)
    async def schedule(body: bodies.ScheduleBody) -> bodies.JobAnswer:
        return _answer(await dispatcher.ask_job("schedule", {"request": body.given()}))

    @app.post("/plan", status_code=202, summary="Search clusters and parallelisms, as a job", responses=asked)
    async def plan(body: bodies.PlanBody) -> bodies.JobAnswer:
        request, options = await dispatcher.settle(body)
        return _answer(await dispatcher.ask_job("plan", {"request": request, "options": options}))

    @app.get("/jobs", summary="The latest jobs", responses=found)
    async def jobs(limit: Annotated[int, Query(ge=1, le=500)] = 50) -> list[bodies.JobAnswer]:
        return [_answer(job) for job in await dispatcher.list_jobs(limit)]

    @app.get("/jobs/{job}", summary="One job with its result", responses={200: {"model": bodies.JobAnswer}, **found})
    async def job(job: JobId) -> Response:
        stored = await dispatcher.find_job(job)
        document = _answer(stored).model_dump()
        head = json.dumps({key: value for key, value in document.items() if key != "result"}).encode()
        result = await dispatcher.find_result(job) if stored.state == "done" else None
        # The result is kept as JSON; it is put in place without being read again.
        content = head[:-1] + b', "result": ' + (result or b"null") + b"}"
        return Response(content, media_type="application/json")

    @app.delete("/jobs/{job}", summary="Cancel a job; what has ended stays", responses=found)
    async def cancel(job: JobId) -> bodies.JobAnswer:
        return _answer(await dispatcher.cancel_job(job))


def _answer(job: StoredJob) -> bodies.JobAnswer:
    values = dataclasses.asdict(job)
    del values["request"]
    return bodies.JobAnswer(**values)
