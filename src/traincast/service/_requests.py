"""The bytes of a request to what it asks, inside a worker: parsed, checked, its short words and configurations spelled out."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from traincast.errors import InvalidInput, UnknownName, did_you_mean
from traincast.files import read_json
from traincast.resolve import read_amount, read_hardware
from traincast.service import _bodies as bodies
from traincast.service._faults import Malformed, NotRecorded
from traincast.spec import WORKLOAD_FIELDS, Asked, ConfigText, Question, WorkloadOptions

OPTIONS = tuple(item.name for item in WORKLOAD_FIELDS)
CAPTURE_OPTIONS = ("seq", "precision", "mode", "optimizer", "attention")
"""What changes the recorded step of an upload; its batch is chosen later."""
BODIES: dict[str, type[bodies.Body]] = {
    "forecast": bodies.ForecastBody,
    "fit": bodies.FitBody,
    "advise": bodies.AdviseBody,
    "compare": bodies.CompareBody,
    "plan": bodies.PlanBody,
    "schedule": bodies.ScheduleBody,
}


_WANTED = {
    **dict.fromkeys(("int_type", "int_parsing"), "a whole number"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a table of names and values"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "float_type": "a number",
    "string_type": "a text",
    "list_type": "a list",
}
_TABLES: dict[str, Any] = {name: field.annotation for name, field in bodies.PlanBody.model_fields.items()}
_TABLES |= {"groups": bodies.GroupBody, "trace": bodies.TraceBody}


def read_request(task: Mapping[str, Any], blob: bytes, kind: str) -> dict[str, Any]:
    """The task with `request`, in its plainest form."""
    if not blob:
        raise Malformed("the request has no body; send JSON with the header 'Content-Type: application/json'")
    document = parse_json(blob, depth=task["limits"]["json_depth"])
    if not isinstance(document, dict):
        raise InvalidInput(f"the request must be a table of names and values, not {type(document).__name__}")
    document = spell_out_short(document, BODIES[kind])
    _check_workload(document)
    try:
        body = BODIES[kind].model_validate(document)
    except ValidationError as error:
        raise InvalidInput(say_invalid([dict(each) for each in error.errors()])) from error
    request = body.model_dump(exclude_none=True)
    if not isinstance(body, bodies.AskBody):
        return {**task, "request": request}
    if request.get("calibration") is not None:
        request["calibration"] = _find_calibration(request["calibration"], task.get("calibrations", {}))
    request = expand_configs(request)
    if "model" in request["workload"]:
        find_graph(task["folder"], request["workload"])
    return {**task, "request": request}


def spell_out_short(document: Mapping[str, Any], body: type[bodies.Body]) -> dict[str, Any]:
    """{"model": "llama-3-8b", "gpus": "8xh100", "tokens": "15B"} in tables, each word as the command means it."""
    whole = dict(document)
    if not issubclass(body, bodies.AskBody):
        return whole
    for section in ("workload", "cluster", "parallelism", "job"):
        if isinstance(whole.get(section, {}), dict):
            table = dict(whole.get(section, {}))
            known = {key: item for key, item in bodies.SHORT.items() if item.section == section}
            for key in known.keys() & (whole.keys() - body.own_fields()):
                table.setdefault(known[key].name, whole.pop(key))
            if section == "workload" and isinstance(whole.get("model"), str):
                table.setdefault("name", whole.pop("model"))
            if section == "cluster" and isinstance(whole.get("gpus"), str):
                table = {**read_hardware(whole.pop("gpus"), table), **table}
            named = {item.name: item for item in known.values()}
            whole[section] = {
                key: _read_value(named[key], value) if key in named else value for key, value in table.items()
            }
    return whole


def _read_value(item: Asked, value: Any) -> Any:
    """15B, 36h and 80GB as numbers, 15e9 as the whole number that it is, and 384 as the text that a command would have."""
    if item.kind is str and type(value) is int:
        return str(value)
    value = read_amount(item, value)
    return int(value) if item.kind is int and isinstance(value, float) and value.is_integer() else value


def parse_json(content: bytes, *, depth: int) -> Any:
    """JSON with finite numbers, whole characters and a bounded depth."""

    def refuse(text: str) -> float:
        raise Malformed(f"the number {text} is not allowed; every amount must be finite")

    try:
        value = json.loads(content, parse_constant=refuse)
    except ValueError as error:
        raise Malformed(f"the request is not valid JSON: {error}") from error
    except RecursionError as error:
        raise Malformed(f"the JSON is nested deeper than {depth} levels, the most that is read") from error
    level = -1
    inner: list[Any] = [[value]]
    while inner:
        level += 1
        if level > depth:
            raise Malformed(f"the JSON is nested deeper than {depth} levels, the most that is read")
        outer, inner = inner, []
        for item in outer:
            for child in (*item.keys(), *item.values()) if isinstance(item, dict) else item:
                if isinstance(child, str):
                    _check_text(child)
                elif isinstance(child, (dict, list)):
                    inner.append(child)
    return value


def _check_text(text: str) -> None:
    if "\0" in text:
        raise Malformed("a text has the character U+0000, which no database holds")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Malformed("the request has half a character in a text") from error


def _check_workload(document: Mapping[str, Any]) -> None:
    workload = document.get("workload")
    if isinstance(workload, dict):
        named = [key for key in ("name", "model") if workload.get(key) is not None]
        if len(named) > 1 or (not named and not document.get("configs") and "arch" not in workload):
            raise InvalidInput(
                f"the workload gives {' and '.join(named) or 'nothing'} to forecast; give a name, or the model of an upload"
            )


def find_graph(folder: str, workload: Mapping[str, Any]) -> Path:
    """The graph that was recorded of an uploaded model with these options; NotRecorded where it was not yet."""
    options = json.dumps({key: workload[key] for key in CAPTURE_OPTIONS if key in workload}, sort_keys=True)
    path = graph_file(folder, workload["model"], options)
    if not path.exists():
        raise NotRecorded(model=workload["model"], options=options)
    return path


def graph_file(folder: str, model: str, options: str) -> Path:
    """Where the service puts the recorded graph of a model for its workers."""
    digest = hashlib.sha256(f"{model} {options}".encode()).hexdigest()
    return Path(folder) / f"{digest[:32]}.graph.json"


def _find_calibration(asked: str | dict[str, Any], known: Mapping[str, str]) -> str:
    """The text of a calibration: of those that the service was started with, or of the request itself."""
    if isinstance(asked, dict):
        return json.dumps(asked, sort_keys=True)
    if asked not in known:
        raise UnknownName("calibration", asked, known)
    return _read_calibration(known[asked])


@lru_cache(maxsize=8)
def _read_calibration(path: str) -> str:
    return json.dumps(read_json(Path(path)), sort_keys=True)


def expand_configs(request: dict[str, Any]) -> dict[str, Any]:
    """A request with configurations of other projects in its own tables. What these say wins; what was not used is kept under
    `said`. Texts are read, no file is."""
    texts = request.get("configs") or ()
    name = request["workload"].get("name", "")
    if not texts and not name.startswith("hf:"):
        return request
    from traincast.configs import merge_configs

    workload = request["workload"]
    question = Question(
        source=name,
        workload=WorkloadOptions(**{key: workload.get(key) for key in OPTIONS}),
        cluster=request["cluster"],
        parallelism=request["parallelism"],
        job=request["job"],
        configs=tuple(ConfigText(**text) for text in texts),
    )
    merged = merge_configs(question, local=False)
    others = {key: value for key, value in workload.items() if key not in (*OPTIONS, "name")}
    named = {} if others else {"name": merged.source}
    return {
        **request,
        "configs": None,
        "workload": {**others, **named, **merged.workload.given()},
        "cluster": merged.cluster,
        "parallelism": merged.parallelism,
        "job": merged.job,
        "said": merged.said,
    }


def say_invalid(problems: Sequence[Mapping[str, Any]]) -> str:
    """What a body breaks, as one sentence: what came, what is allowed, how to fix it. The other problems would repeat it."""
    problem = problems[0]
    place = [part for part in problem["loc"] if part not in ("body", "query", "path")]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "the request"
    kind, came = problem["type"], problem.get("input")
    if kind == "missing":
        return f"the request lacks {where}"
    if kind == "extra_forbidden":
        owner = next((part for part in reversed(place[:-1]) if isinstance(part, str)), "")
        fields = getattr(_TABLES.get(owner), "model_fields", {})
        allowed = [field.alias or name for name, field in fields.items()]
        listed = f"; allowed: {', '.join(allowed)}" if allowed else ""
        return (
            f"{owner or 'the request'} has the unknown key {str(place[-1])[:60]!r}{listed}"
            f"{did_you_mean(str(place[-1]), allowed)}"
        )
    if kind in _WANTED:
        return f"{where} must be {_WANTED[kind]}, not {_describe(came)}"
    words = str(problem.get("msg", "is not allowed")).removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{where} is {_describe(came)}; it must be {words[:1].lower()}{words[1:]}"


def _describe(value: Any) -> str:
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return "nothing" if value is None else f"{type(value).__name__} {shown}"
