"""A large JSON body to a checked request, inside a worker: nothing here may slow the event loop."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from traincast.errors import InvalidInput
from traincast.service._uploads import parse_json

Report = Callable[..., None]


def open_body(task: Mapping[str, Any], blob: bytes, _report: Report) -> bytes:
    """The request as one line of JSON; after it the graph, config or trace that it carries, as JSON of its own."""
    from pydantic import ValidationError

    from traincast.service import _bodies as bodies
    from traincast.service._sentences import say_invalid

    document = parse_body(blob, depth=task["limits"]["json_depth"])
    inner = _take_content(document)
    try:
        checked = getattr(bodies, task["model"]).model_validate(document)
    except ValidationError as error:
        raise InvalidInput(say_invalid([dict(each) for each in error.errors()], None)) from error
    given = checked.given()
    trace = given.get("trace") or {}
    if trace.get("text"):
        inner = json.dumps(trace["text"]).encode()
        trace["text"] = ""
    return json.dumps(given).encode() + (b"\n" + inner if inner else b"")


def parse_body(content: bytes, *, depth: int) -> Any:
    """JSON of a request: bounded, finite, with whole characters."""
    document = parse_json(content, depth=depth)
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("the request has half a character in a text") from error
    return document


def _take_content(document: Any) -> bytes:
    """The graph or config of a request, which is checked where it is read; an empty table stays in its place."""
    workload = document.get("workload") if isinstance(document, dict) else None
    if not isinstance(workload, dict):
        return b""
    inner = b""
    for key in ("config", "graph"):
        if isinstance(workload.get(key), dict):
            inner = json.dumps(workload[key], sort_keys=True).encode()
            workload[key] = {}
    return inner
