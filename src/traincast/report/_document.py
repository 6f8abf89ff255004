"""Nouns to plain JSON data with stable keys: every field is there, and what is unknown is null."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from traincast.report._text import dominant_share, say_dominant
from traincast.spec import Forecast


def document_forecast(forecast: Forecast) -> dict[str, Any]:
    """The whole answer without the spans and the memory curve, which `--trace` gives."""
    bare = dataclasses.replace(
        forecast,
        timeline=dataclasses.replace(forecast.timeline, spans=(), work=()),
        memory=dataclasses.replace(forecast.memory, curve=()),
        origin=None,
    )
    document: dict[str, Any] = plain_data(bare)
    del document["timeline"]["spans"], document["timeline"]["work"], document["memory"]["curve"], document["origin"]
    document["memory"]["fits"] = forecast.memory.fits
    document["memory"]["fit_probability"] = forecast.memory.fit_probability
    if forecast.memory.host is not None:
        document["memory"]["host"]["exceeds"] = forecast.memory.host.exceeds
    document["limit"] = {"share": dominant_share(forecast), "says": say_dominant(forecast)}
    return document


def plain_data(value: Any) -> Any:
    """Dataclasses, mappings and sequences as JSON data; numbers that JSON cannot hold become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain_data(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [plain_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def format_json(value: Any) -> str:
    return json.dumps(plain_data(value), indent=2, ensure_ascii=False, allow_nan=False)
