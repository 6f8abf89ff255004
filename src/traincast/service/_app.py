"""Routes: HTTP requests to the dispatcher, its answers and errors to JSON."""

import contextlib
import json
from collections.abc import AsyncIterator
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from traincast import __version__
from traincast.catalog import KINDS, entry_names, find_record, list_records, plural_kind
from traincast.errors import InvalidInput, TraincastError, UnknownName
from traincast.service import _bodies as bodies
from traincast.service._access import Tokens
from traincast.service._dispatch import Dispatcher
from traincast.service._faults import RETRY_AFTER_S, Busy, InternalError, Interrupted, Malformed, NotFound, StorageFault
from traincast.service._guard import MEDIA_TYPE, Guard, problem
from traincast.service._limits import Settings
from traincast.service._page import add_pages
from traincast.service._requests import BODIES, say_invalid
from traincast.spec import Forecast

DESCRIPTION = """Forecasts the time, memory, resource use and cost of distributed deep-learning training before it runs.

A question may be short, as on the command line: `{"model": "llama-3-8b", "gpus": "8xh100", "tokens": "15B"}`. A workload is a
name of the catalogue, a saved graph, a Hugging Face config or an ONNX upload; no request can name a file or bring code. Errors
are RFC 9457 problem details; `detail` is the sentence of the command line."""


def make_app(settings: Settings) -> FastAPI:
    dispatcher = Dispatcher(settings)
    tokens = Tokens(settings, partial(dispatcher.storage.read, dispatcher.state.list_tokens))

    @contextlib.asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        await tokens.refresh()
        await dispatcher.start()
        try:
            yield
        finally:
            await dispatcher.close()

    # The framework's own documentation pages fetch scripts from elsewhere; this service sends nobody anywhere.
    app = FastAPI(
        title="traincast", version=__version__, description=DESCRIPTION, lifespan=live, docs_url=None, redoc_url=None
    )
    app.state.dispatcher = dispatcher
    _add_errors(app)
    add_pages(app)
    _add_checks(app, dispatcher)
    _add_catalogue(app)
    _add_asking(app, dispatcher)
    _add_jobs(app, dispatcher)
    app.add_middleware(Guard, dispatcher=dispatcher, tokens=tokens)
    return app


def _only(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


READ = _only(401, 403, 405, 429)
FOUND = _only(401, 403, 404, 405, 422, 429, 503)
ASKED = _only(400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 503)
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (Busy, 429), (StorageFault, 503), (Interrupted, 503), (NotFound, 404), (Malformed, 400), (TraincastError, 422),
    (InternalError, 500),
)  # fmt: skip


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> Response:
        return problem(422, say_invalid(error.errors()))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        where = f"at {request.url.path[:100]!r}; see /docs"
        known = {404: f"there is nothing {where}", 405: f"{request.method[:20]} is not answered {where}"}
        words = known.get(error.status_code, str(error.detail))
        return problem(error.status_code, words, error.headers)

    @app.exception_handler(InternalError)
    @app.exception_handler(TraincastError)
    async def on_mistake(_: Request, error: Exception) -> Response:
        words = " ".join(str(error).split())
        status = next(status for kind, status in STATUSES if isinstance(error, kind))
        wait_s = error.retry_after_s if isinstance(error, Busy) else RETRY_AFTER_S if status == 503 else None
        headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
        return problem(status, words, headers, **({"reason": error.kind} if isinstance(error, StorageFault) else {}))


def _add_checks(app: FastAPI, dispatcher: Dispatcher) -> None:
    checks: dict[int | str, dict[str, Any]] = {
        503: {"model": bodies.HealthAnswer, "description": "Something fails; the problems say what."},
        **_only(403, 405, 429),
    }

    @app.get("/live", summary="Whether the process answers at all", responses=_only(403, 405, 429))
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    def add(path: str, summary: str, *, warm: bool) -> None:
        @app.get(path, summary=summary, responses=checks, response_model=bodies.HealthAnswer)
        async def check() -> Any:
            found = await dispatcher.check_health()
            if warm and not dispatcher.is_ready:
                found["problems"].append("the workers are not warm yet")
            status, headers = (503, {"Retry-After": str(RETRY_AFTER_S)}) if found["problems"] else (200, None)
            words = "ok" if status == 200 else "failing"
            return JSONResponse({"status": words, **found, "version": __version__}, status, headers)

    add("/health", "Whether storage can be written and the job runners are alive", warm=False)
    add("/ready", "Whether requests will be answered: what /health says, and warm workers", warm=True)

    @app.get("/metrics", summary="Counts and durations for Prometheus", responses=READ, response_class=Response)
    async def metrics() -> Response:
        await dispatcher.storage.check()
        return Response(dispatcher.meter.format(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _add_catalogue(app: FastAPI) -> None:
    @app.get("/catalog", summary="How many entries of each kind are known", responses=READ)
    async def catalogue() -> dict[str, int]:
        return {kind: len(entry_names(kind)) for kind in KINDS}

    Kind = Annotated[str, Path(description=", ".join(KINDS), max_length=40, examples=["devices"])]
    Words = Annotated[
        str | None, Query(alias="filter", max_length=200, description="Only entries with all these words.")
    ]
    Brief = Annotated[bool, Query(description="Only what a list shows.")]
    entries = {200: {"model": list[dict[str, Any]]}, **FOUND}

    @app.get("/catalog/{kind}", summary="Entries of one kind", responses=entries)
    async def listed(kind: Kind, words: Words = None, brief: Brief = False) -> Response:
        return Response(_records(_kind(kind), words, brief=brief), media_type="application/json")

    @app.get(
        "/catalog/{kind}/{name}",
        summary="One entry with its sources",
        responses={200: {"model": dict[str, Any]}, **FOUND},
    )
    async def entry(kind: Kind, name: Annotated[str, Path(max_length=200, examples=["h100"])]) -> Response:
        try:
            return JSONResponse(find_record(_kind(kind), name))
        except UnknownName as error:
            raise NotFound(str(error)) from error


def _kind(kind: str) -> str:
    found = plural_kind(kind)
    if found is None:
        raise NotFound(str(UnknownName("kind of entry", kind, KINDS, plural="kinds")))
    return found


_BRIEF = (
    *("name", "title", "family", "parameters", "seq", "aliases", "nominal_memory_bytes", "year", "vendor", "provider"),
    *("device", "devices_per_node", "usd_per_hour", "price_region"),
)


@lru_cache(maxsize=16)
def _records(kind: str, words: str | None, *, brief: bool) -> bytes:
    found = list_records(kind, text=words)
    if brief:
        found = [{key: record[key] for key in _BRIEF if key in record} for record in found]
    return json.dumps(found, ensure_ascii=False).encode()


def _takes(name: str) -> dict[str, Any]:
    """A body in the OpenAPI document; workers read it, so the framework does not."""
    schema = {"$ref": f"#/components/schemas/{BODIES[name].__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _add_asking(app: FastAPI, dispatcher: Dispatcher) -> None:
    def add(name: str, answer: Any, summary: str) -> None:
        @app.post(
            f"/{name}",
            name=name,
            summary=summary,
            openapi_extra=_takes(name),
            responses={200: {"model": answer}, **ASKED},
        )
        async def ask(request: Request) -> Response:
            found = await dispatcher.answer(name, request.scope["content"])
            return Response(found, media_type="application/json")

    add("forecast", Forecast, "Time, memory and cost of a job")
    add("fit", dict[str, Any], "The largest batch and sequence that fit, and what to change first")
    add("advise", bodies.AdviceAnswer, "What dominates a job and what would help, in sentences")
    add("compare", dict[str, Any], "A trace of torch.profiler beside its forecast")
    upload = {
        "requestBody": {
            "required": True,
            "description": "A saved graph, a Hugging Face config.json or an ONNX file, as it is or packed with gzip.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    }

    @app.post("/models", summary="Upload a model to forecast it by its id", responses=ASKED, openapi_extra=upload)
    async def models(request: Request) -> bodies.ModelAnswer:
        content = request.scope["content"]
        if not content:
            raise InvalidInput("the upload is empty; send a saved graph, a Hugging Face config.json or an ONNX file")
        return bodies.ModelAnswer(**await dispatcher.upload(content))

    draw = app.openapi

    def describe() -> dict[str, Any]:
        """The OpenAPI document with the bodies that workers read."""
        is_new, document = app.openapi_schema is None, draw()
        if is_new:
            schemas = document["components"]["schemas"]
            kinds: list[type[BaseModel]] = [*BODIES.values(), bodies.Problem]
            for kind in kinds:
                schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas |= {**schema.pop("$defs", {}), kind.__name__: schema}
        return document

    app.openapi = describe  # type: ignore[method-assign]


def _add_jobs(app: FastAPI, dispatcher: Dispatcher) -> None:
    JobId = Annotated[str, Path(max_length=64, examples=["0f8fad5bd9cb469fa16570867728950e"])]

    def add(name: str, summary: str) -> None:
        @app.post(
            f"/{name}", name=name, status_code=202, summary=summary, responses=ASKED, openapi_extra=_takes(name),
            response_model=bodies.JobAnswer,
        )  # fmt: skip
        async def ask(request: Request) -> Any:
            return await dispatcher.ask_job(name, request.scope["content"])

    add("plan", "Search clusters and parallelisms, as a job")
    add("schedule", "Simulate policies on a job trace, as a job")

    @app.get("/jobs", summary="The latest jobs", responses=FOUND, response_model=list[bodies.JobAnswer])
    async def jobs(limit: Annotated[int, Query(ge=1, le=500)] = 50) -> Any:
        return await dispatcher.storage.read(dispatcher.state.list_jobs, limit=limit)

    @app.get("/jobs/{job}", summary="One job with its result", responses={200: {"model": bodies.JobAnswer}, **FOUND})
    async def job(job: JobId) -> Response:
        stored = await dispatcher.find_job(job)
        head = (
            bodies.JobAnswer.model_validate(stored, from_attributes=True).model_dump_json(exclude={"result"}).encode()
        )
        result = await dispatcher.storage.read(dispatcher.state.find_result, job)
        # The result is kept as JSON; it is put in place without being read again.
        content = head[:-1] + b', "result": ' + (result or b"null") + b"}"
        return Response(content, media_type="application/json")

    @app.delete(
        "/jobs/{job}", summary="Cancel a job; what has ended stays", responses=FOUND, response_model=bodies.JobAnswer
    )
    async def cancel(job: JobId) -> Any:
        return await dispatcher.cancel_job(job)
