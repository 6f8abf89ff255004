"""What a body breaks, as one sentence: what came, what is allowed, how to fix it."""

from collections.abc import Mapping, Sequence
from typing import Any

from traincast.errors import did_you_mean
from traincast.service import _bodies as bodies

_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "dict_type": "a table of names and values",
    "list_type": "a list",
    "model_type": "a table of names and values",
    "model_attributes_type": "a table of names and values",
    "int_parsing": "a whole number",
    "bool_parsing": "true or false",
}
_KEYS = {
    name: tuple(kind.model_fields)
    for name, kind in (
        ("workload", bodies.WorkloadBody),
        ("cluster", bodies.ClusterBody),
        ("groups", bodies.GroupBody),
        ("parallelism", bodies.ParallelismBody),
        ("job", bodies.JobBody),
        ("space", bodies.SpaceBody),
        ("trace", bodies.TraceBody),
    )
}


def say_invalid(problems: Sequence[Mapping[str, Any]], body: Any) -> str:
    """The first problem; the others would repeat it."""
    problem = problems[0]
    place = [part for part in problem["loc"] if part not in ("body", "query", "path")]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "the request"
    kind, came = problem["type"], problem.get("input")
    if kind == "missing":
        if where == "the request":
            return "the request has no body; send JSON with the header 'Content-Type: application/json'"
        return f"the request lacks {where}"
    if kind == "extra_forbidden":
        owner = next((part for part in reversed(place[:-1]) if isinstance(part, str)), "")
        allowed = _KEYS.get(owner, ())
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
