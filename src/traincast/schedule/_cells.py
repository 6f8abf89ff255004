"""The cells of a row of somebody's log as numbers, names and moments."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

Row = Mapping[str, Any]


class Unusable(Exception):
    """Why one row cannot become a job."""


class NoGpu(Unusable):
    """A job without a GPU: it is counted, not listed."""


def read_number(row: Row, *names: str, default: float | None = None) -> float:
    for name in names:
        value = row.get(name)
        if value is not None and value != "" and value != "None":
            try:
                found = float(value)
            except (TypeError, ValueError):
                raise Unusable(f"{name} is {value!r}, not a number") from None
            if math.isfinite(found):
                return found
    if default is None:
        raise Unusable(f"no {' or '.join(names)}")
    return default


def read_name(row: Row, *names: str) -> str | None:
    for name in names:
        value = row.get(name)
        if value is not None and str(value).strip() not in ("", "None", "nan"):
            return str(value).strip()
    return None


def read_moment(row: Row, *names: str) -> float:
    """A time stamp or a number of seconds, as seconds of some fixed origin; a stamp without a zone is read as UTC."""
    text = read_name(row, *names)
    if text is None or text in ("Unknown", "None"):
        raise Unusable(f"no {' or '.join(names)}")
    try:
        return float(text)
    except ValueError:
        pass
    try:
        stamp = datetime.fromisoformat(text)
    except ValueError:
        raise Unusable(f"{names[0]} is {text!r}, not a time") from None
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()


def positive(value: float, what: str) -> float:
    if value <= 0:
        raise Unusable(f"{what} is {value:g}; it must be above 0")
    return value


def read_moment_if_any(row: Row, *names: str) -> float:
    """Not a number where the row does not say."""
    try:
        return read_moment(row, *names)
    except Unusable:
        return math.nan
