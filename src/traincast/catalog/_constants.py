"""Documents of constants to frozen dataclasses: every number that was fitted, measured or looked up, beside where it is from."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from traincast.errors import InvalidInput, UnknownName
from traincast.files import decode, read_json
from traincast.noun import noun

DOCUMENTS = Path(__file__).parent / "data" / "constants"
KINDS = (
    "law", "fact", "fit to kernels", "fit to collectives", "fit to memory", "fit to whole steps", "belief",
)  # fmt: skip
"""What a constant rests on. A fact is in a data sheet or in a program's source; a belief is none of the others."""

T = TypeVar("T")


@noun
class Constant:
    """One entry of a document; what it does not say of itself the document says for all of them."""

    value: Any
    unit: str
    says: str
    kind: str
    source: str
    command: str = ""
    """What fits it; empty where nothing does."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"a constant of the kind {self.kind!r}; allowed: {', '.join(KINDS)}")


@functools.cache
def _document(group: str) -> Mapping[str, Any]:
    path = DOCUMENTS / f"{group}.json"
    if not path.is_file():
        raise UnknownName("group of constants", group, constant_groups())
    found: Mapping[str, Any] = read_json(path)
    return found


def constant_groups() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in DOCUMENTS.glob("*.json")))


def constants(group: str) -> Mapping[str, Constant]:
    """The constants of one document by name, with all that is said of them."""
    document = _document(group)
    return {
        name: decode(Constant, {**document["usual"], **entry}, where=f"{group}: {name}")
        for name, entry in document["constants"].items()
    }


def read_constants(kind: type[T], group: str) -> T:
    """A dataclass with a field for each constant of a document."""
    return decode(kind, _values(group), where=f"constants of {group}")


def read_constant_table(kind: type[T], group: str) -> Mapping[str, T]:
    """A document in which every constant is a record of its own: a transport, a chip, a kind of kernel."""
    return {name: decode(kind, value, where=f"{group}: {name}") for name, value in _values(group).items()}


def _values(group: str) -> dict[str, Any]:
    return {name: entry["value"] for name, entry in _document(group)["constants"].items()}
