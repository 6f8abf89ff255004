"""Routes: HTTP requests to the dispatcher, its answers and errors to JSON."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from traincast import __version__
from traincast.catalog import KINDS, entry_names, find_record, list_records, plural_kind
from traincast.errors import InvalidInput, TraincastError, UnknownName
from traincast.service import _bodies as bodies
from traincast.service._access import Tokens
from traincast.service._audit import AuditLog
from traincast.service._dispatch import LARGE_BODY, Dispatcher, NotFound
from traincast.service._faults import RETRY_AFTER_S, StorageFault
from traincast.service._guard import Guard
from traincast.service._limits import Settings
from traincast.service._opening import parse_body
from traincast.service._page import CONTENT_POLICY, compose_page
from traincast.service._pool import Busy, InternalError
from traincast.service._sentences import say_invalid
from traincast.service._state import StoredToken

PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": bodies.Problem, "description": "Not JSON, or not the right kind of it."},
    401: {"model": bodies.Problem, "description": "The token is missing or wrong."},
    403: {
        "model": bodies.Problem,
        "description": "A page of another site asks, by another name, or the token has too small a scope.",
    },
    404: {"model": bodies.Problem, "description": "There is no such thing."},
    405: {"model": bodies.Problem, "description": "This path is asked with another method."},
    408: {"model": bodies.Problem, "description": "The body came too slowly."},
    413: {"model": bodies.Problem, "description": "More than is read."},
    422: {"model": bodies.Problem, "description": "The request breaks a rule; the sentence says which."},
    429: {
        "model": bodies.Problem,
        "description": "Too many requests, of this caller or of all; Retry-After says when.",
    },
    503: {"model": bodies.Problem, "description": "The state cannot be read or written now; Retry-After says when."},
}
DESCRIPTION = """Forecasts the time, memory, resource use and cost of distributed deep-learning training before it runs.

A workload is a name of the catalogue, a saved graph, a Hugging Face config or an ONNX upload; no request can name a file or
bring code. Errors are the sentences of the command line as `{"error": ...}`."""


class _OpenedRequest(Request):
    """A request whose JSON was parsed before."""

    parsed: Any = None

    async def body(self) -> bytes:
        """The whole body, gathered where it grows: to join megabytes at the end would keep others waiting."""
        if not hasattr(self, "_body"):
            content = bytearray()
            async for piece in self.stream():
                content += piece
            self._body = bytes(content) if len(content) <= LARGE_BODY else content  # type: ignore[assignment]
        return self._body

    async def json(self) -> Any:
        return self.parsed


class BoundedRoute(APIRoute):
    """A route whose JSON is bounded in depth and holds only finite numbers and whole characters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model = str(getattr(self.body_field.field_info.annotation, "__name__", ""))

        async def handle_bounded(request: Request) -> Response:
            opened = _OpenedRequest(request.scope, request.receive)
            content = await opened.body()
            dispatcher: Dispatcher = request.app.state.dispatcher
            is_json = (request.headers.get("content-type") or "").startswith("application/json")
            if content and is_json and len(content) > LARGE_BODY:
                opened.parsed = await dispatcher.open_body(content, model)
            elif content:
                try:
                    opened.parsed = parse_body(content, depth=dispatcher.settings.limits.json_depth)
                except InvalidInput as error:
                    raise HTTPException(status_code=400, detail=str(error)) from error
            return await handle(opened)

        return handle_bounded


def make_app(settings: Settings) -> FastAPI:
    dispatcher = Dispatcher(settings)
    audit = AuditLog(settings.audit, dispatcher.meter)

    async def read_tokens() -> Sequence[StoredToken]:
        return await dispatcher.storage.read(dispatcher.state.list_tokens)

    @contextlib.asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        await dispatcher.start()
        try:
            yield
        finally:
            await dispatcher.close()
            audit.close()

    # The framework's own documentation pages fetch scripts from elsewhere; this service sends nobody anywhere.
    app = FastAPI(
        title="traincast", version=__version__, description=DESCRIPTION, lifespan=live, docs_url=None, redoc_url=None
    )
    app.state.settings = settings
    app.state.dispatcher = dispatcher
    app.router.route_class = BoundedRoute
    _add_errors(app)
    _add_page(app)
    _add_checks(app, dispatcher)
    _add_catalogue(app)
    _add_asking(app, dispatcher)
    _add_jobs(app, dispatcher)
    app.add_middleware(Guard, dispatcher=dispatcher, tokens=Tokens(settings, read_tokens), audit=audit)
    return app


def _add_errors(app: FastAPI) -> None:
    def problem(status: int, words: str, **headers: str) -> Response:
        return _json({"error": words}, status=status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> Response:
        return problem(422, say_invalid(error.errors(), error.body))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        words = str(error.detail)
        if error.status_code == 404:
            words = f"there is nothing at {request.url.path[:100]}; see /openapi.json"
        elif error.status_code == 405:
            words = f"{request.method[:20]} is not answered at {request.url.path[:100]}; see /openapi.json"
        return problem(error.status_code, words, **dict(error.headers or {}))

    @app.exception_handler(TraincastError)
    async def on_mistake(_: Request, error: TraincastError) -> Response:
        words = " ".join(str(error).split())
        if isinstance(error, Busy):
            return problem(429, words, **{"Retry-After": str(error.retry_after_s)})
        if isinstance(error, StorageFault):
            return _json(
                {"error": words, "reason": error.kind}, status=503, headers={"Retry-After": str(RETRY_AFTER_S)}
            )
        return problem(404 if isinstance(error, NotFound) else 422, words)

    @app.exception_handler(InternalError)
    async def on_fault(_: Request, error: InternalError) -> Response:
        return problem(500, str(error))


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        headers = {"Content-Security-Policy": CONTENT_POLICY, "Cache-Control": "no-cache"}
        return Response(compose_page(), media_type="text/html; charset=utf-8", headers=headers)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)


def _add_checks(app: FastAPI, dispatcher: Dispatcher) -> None:
    checks: dict[int | str, dict[str, Any]] = {
        503: {"model": bodies.HealthAnswer, "description": "Something fails; the problems say what."},
        **_only(403, 405, 429),
    }

    @app.get("/live", summary="Whether the process answers at all", responses=_only(403, 405, 429))
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/health", summary="Whether storage can be written and the job runners are alive", responses=checks)
    async def health() -> bodies.HealthAnswer:
        return _health(await dispatcher.check_health())  # type: ignore[return-value]

    @app.get(
        "/ready", summary="Whether requests will be answered: what /health says, and warm workers", responses=checks
    )
    async def ready() -> bodies.HealthAnswer:
        found = await dispatcher.check_health()
        if not dispatcher.is_ready:
            found = {**found, "status": "failing", "problems": [*found["problems"], "the workers are not warm yet"]}
        return _health(found)  # type: ignore[return-value]

    @app.get("/metrics", summary="Counts and durations as Prometheus text", responses=_only(401, 403, 405, 429))
    async def metrics() -> Response:
        await dispatcher.storage.check()
        return Response(dispatcher.format_metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_catalogue(app: FastAPI) -> None:
    @app.get("/catalog", summary="How many entries of each kind are known", responses=_only(401, 403, 405, 429))
    async def catalogue() -> dict[str, int]:
        return {kind: len(entry_names(kind)) for kind in KINDS}

    Kind = Annotated[str, Path(description=", ".join(KINDS), max_length=40, examples=["devices"])]
    Words = Annotated[
        str | None, Query(alias="filter", max_length=200, description="Only entries with all these words.")
    ]
    Brief = Annotated[bool, Query(description="Only what a list shows.")]

    @app.get("/catalog/{kind}", summary="Entries of one kind", responses=_only(401, 403, 404, 405, 422, 429))
    async def listed(kind: Kind, words: Words = None, brief: Brief = False) -> Response:
        found = _kind(kind)
        if words is None:
            return Response(_all_records(found, brief=brief), media_type="application/json")
        return _json([_shorten(each) if brief else each for each in list_records(found, text=words)])

    @app.get(
        "/catalog/{kind}/{name}", summary="One entry with its sources", responses=_only(401, 403, 404, 405, 422, 429)
    )
    async def entry(kind: Kind, name: Annotated[str, Path(max_length=200, examples=["h100"])]) -> Response:
        try:
            return _json(find_record(_kind(kind), name))
        except UnknownName as error:
            raise NotFound(str(error)) from error


def _health(found: dict[str, Any]) -> Response:
    failing = found["status"] != "ok"
    headers = {"Retry-After": str(RETRY_AFTER_S)} if failing else None
    return _json({**found, "version": __version__}, status=503 if failing else 200, headers=headers)


def _kind(kind: str) -> str:
    found = plural_kind(kind)
    if found is None:
        raise NotFound(str(UnknownName("kind of entry", kind, KINDS, plural="kinds")))
    return found


_BRIEF = (
    *("name", "title", "family", "parameters", "seq", "aliases", "nominal_memory_bytes", "year", "vendor", "provider"),
    *("device", "devices_per_node", "usd_per_hour", "price_region"),
)


def _shorten(record: dict[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in _BRIEF if key in record}


@lru_cache(maxsize=16)
def _all_records(kind: str, *, brief: bool) -> bytes:
    found = list_records(kind)
    return json.dumps([_shorten(each) for each in found] if brief else found, ensure_ascii=False).encode()


def _add_asking(app: FastAPI, dispatcher: Dispatcher) -> None:
    asked = _only(400, 401, 403, 404, 405, 408, 413, 422, 429, 503)

    async def answer(task: str, body: bodies.AskBody, request: Request) -> Response:
        found = await dispatcher.answer(task, body, raw=await request.body())
        return Response(found, media_type="application/json")

    @app.post("/forecast", summary="Time, memory and cost of a job", responses=asked)
    async def forecast(body: bodies.ForecastBody, request: Request) -> Response:
        return await answer("forecast", body, request)

    @app.post("/fit", summary="The largest batch and sequence that fit, and what to change first", responses=asked)
    async def fit(body: bodies.FitBody, request: Request) -> Response:
        return await answer("fit", body, request)

    @app.post("/similar", summary="The known workloads most like this one", responses=asked)
    async def similar(body: bodies.SimilarBody, request: Request) -> Response:
        return await answer("similar", body, request)

    upload = {
        "requestBody": {
            "required": True,
            "description": "A saved graph, a Hugging Face config.json or an ONNX file, as it is.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    }

    @app.post("/models", summary="Upload a model to forecast it by its id", responses=asked, openapi_extra=upload)
    async def models(request: Request) -> bodies.ModelAnswer:
        content = await _OpenedRequest(request.scope, request.receive).body()
        if not content:
            raise InvalidInput("the upload is empty; send a saved graph, a Hugging Face config.json or an ONNX file")
        return bodies.ModelAnswer(**await dispatcher.upload(content))


def _add_jobs(app: FastAPI, dispatcher: Dispatcher) -> None:
    from traincast.service._jobs import add_job_routes

    add_job_routes(app, dispatcher, responses=PROBLEMS)


def _only(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: PROBLEMS[status] for status in statuses}


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    return Response(content, status_code=status, media_type="application/json", headers=headers)
