"""Documents of formats (formats/*.toml) to formats: tables say which key says which field, a function reads what no table can."""

import functools
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from traincast.configs._nouns import FIELDS, ConfigFormat, Draft, Sheet
from traincast.configs._trainer import read_launcher, read_model, read_optimizer
from traincast.configs._words import FOLDER, words_of
from traincast.files import decode
from traincast.noun import noun

ANYWHERE = "*."
"""What a key begins with that counts in whichever table it stands."""


@noun
class Document:
    """How one project writes its configurations, as far as tables can say it."""

    title: str
    syntax: str
    telling: tuple[str, ...] = ()
    sure: str = ""
    script: str = ""
    aliases: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    launcher: bool = True
    """A launcher's script may start it, so that its nodes and processes are said there."""
    model: tuple[str, ...] = ()
    """Keys that name the model."""
    optimizer: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    """Tables of which nothing else counts."""
    says: Mapping[str, Any] = field(default_factory=dict)
    """Fields that every such file says."""
    length: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields for the length of the job with their keys; the first that is said counts."""
    copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields with the keys whose value they take."""
    switches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys, with commas between spellings, and the fields that they say when they are true."""
    means: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields with `keys` and what their `words` mean; a text names words that projects share."""
    assumes: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """Fields that nothing says, with what the project does then and a sentence about it."""


def read_document(name: str) -> Document:
    """`like` names the document that this one starts from."""
    return decode(Document, _load(name), where=f"{name}.toml")


def _load(name: str) -> dict[str, Any]:
    data = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return {**_load(data.pop("like")), **data} if "like" in data else data


def make_format(
    name: str, read: Callable[[Draft], None] | None = None, write: Callable[[Sheet], None] | None = None
) -> ConfigFormat:
    """The format of a document. `read`: what no table says; it comes before what is assumed."""
    document = read_document(name)
    return ConfigFormat(
        name=name, title=document.title, syntax=document.syntax, telling=document.telling, sure=document.sure,
        script=document.script, aliases=document.aliases, harmless=document.harmless, write=write,
        read=functools.partial(_read, document, read),
    )  # fmt: skip


def _read(document: Document, rest: Callable[[Draft], None] | None, draft: Draft) -> None:
    if document.launcher:
        read_launcher(draft)
    for name, value in document.says.items():
        draft.put(name, value, f"a file of {document.title}")
    if document.model:
        read_model(draft, *document.model)
    for name, keys in document.copies.items():
        _copy(draft, name, keys)
    _read_length(draft, document.length)
    for spellings, fields in document.switches.items():
        for key in _find(draft, spellings.split(", ")):
            for name, value in fields.items() if draft.keys.flag(key) else ():
                draft.put(name, value, key)
    for name, meaning in document.means.items():
        draft.translate(name, words_of(meaning["words"]), *_find(draft, meaning["keys"]))
    if document.optimizer:
        read_optimizer(draft, *document.optimizer)
    if rest is not None:
        rest(draft)
    for name, (value, reason) in document.assumes.items():
        draft.assume(name, value, reason)
    for table in document.ignores:
        draft.keys.take(*draft.keys.under(table))


def _find(draft: Draft, keys: Iterable[str]) -> list[str]:
    """The keys themselves, or those of any table that end so."""
    return [
        found
        for key in keys
        for found in (draft.keys.ending(key.removeprefix(ANYWHERE)) if key.startswith(ANYWHERE) else [key])
    ]


def _copy(draft: Draft, name: str, keys: Iterable[str]) -> Any:
    """The value of the first key; a key that counts anywhere may also hold words, which say no number."""
    values = draft.keys.values
    found = [
        key
        for key in _find(draft, keys)
        if key in keys or (key in draft.keys and (not isinstance(values[key], str) or values[key].isdigit()))
    ]
    return draft.take(name, *found, least=_least(name)) if found else None


def _least(name: str) -> float | None:
    """A number below it says nothing: -1 and 0 are what projects write for that."""
    if name == "job.epochs":
        return 1e-9
    counted = FIELDS[name] is int and name != "parallelism.zero"
    return 1 if counted or name in ("job.samples", "job.tokens") else None


def _read_length(draft: Draft, length: Mapping[str, tuple[str, ...]]) -> None:
    said = False
    for name, keys in length.items():
        if said:
            draft.keys.take(*_find(draft, keys))
        else:
            said = _copy(draft, name, keys) is not None
