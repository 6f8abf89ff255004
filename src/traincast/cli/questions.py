"""The fields of a question to command-line options and back: every command that asks takes the same words."""

import copy
import functools
import inspect
import os
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from traincast.cli import EVERY_OPTION, options
from traincast.cli.groups import Command, expand, find_groups, make_groups, read_parameters, with_parameters
from traincast.errors import InvalidInput
from traincast.resolve import is_hardware, read_hardware
from traincast.resolve import write_command as write_command
from traincast.spec import QUESTION_FIELDS, Asked, Question, WorkloadOptions
from traincast.units import READERS, parse_count

SECTIONS = ("workload", "cluster", "parallelism", "job", "")
"""Tables of a question; the last is the question itself."""
GPUS = "gpus"
CONFIGS = "config"
COMMON = frozenset({
    "source", CONFIGS, GPUS, "batch", "seq", "precision", "optimizer", "global_batch", "tokens", "steps", "epochs", "regime",
    "tensor", "pipeline", "context", "expert", "zero", "recompute", "stack",
})  # fmt: skip
"""The options that help shows at first; `--help all` shows the others."""
MOST_COUNTED = 1e18
"""Ten thousand times what anybody has trained on."""
_UNITS = {"count": "N", "length": "N", "bytes": "SIZE", "seconds": "TIME"}


def takes_question(
    *,
    without: Iterable[str] = (),
    sections: Iterable[str] = SECTIONS,
    lists: Iterable[str] = (),
    common: Iterable[str] | None = None,
) -> Callable[[Command], Command]:
    """Give a command the options of a question, which it gets as one `question`. `lists`: fields of which several values
    are given (1,2,4), which it gets as `choices`, by name. `common`: of the command's own options those that help shows at first;
    default: all."""
    listed, kept = frozenset(lists), frozenset(sections)
    fields = _fields_of(kept, but=frozenset(without))

    def decorate(function: Command) -> Command:
        declared = read_parameters(function)
        groups = find_groups(declared, but=_MADE)
        own = [part for each in declared if each.name not in _MADE for part in expand(each)]
        taken = {each.name for each in own}
        asked = [item for item in fields if item.name not in taken]
        parameters = [_source(), _config(), *(_parameter(item, many=item.name in listed) for item in asked)]
        if "cluster" in kept and GPUS not in taken:
            parameters.append(_gpus())

        @functools.wraps(function)
        def run(**values: Any) -> None:
            said = {item.name: values.pop(item.name) for item in asked}
            question = build_question(values.pop("source"), said, asked, values, lists=bool(listed))
            made: dict[str, Any] = {"question": question}
            if listed:
                made["choices"] = options.given(**{name: said.get(name) for name in listed})
            if GPUS not in taken:
                values.pop(GPUS, None)
            values.pop(CONFIGS, None)
            made |= make_groups(groups, values)
            function(**made, **values)

        first = [each for each in own if _is_argument(each)]
        whole = [*first, *parameters, *(each for each in own if each not in first)]
        return _show_common(run, whole, COMMON | (taken if common is None else frozenset(common)))

    return decorate


def _show_common(run: Command, parameters: list[inspect.Parameter], common: Collection[str]) -> Command:
    """The command with the rare options left out of its help, which says how many there are."""
    rare = set() if EVERY_OPTION in os.environ else {each.name for each in parameters} - set(common)
    made = with_parameters(run, [_hide(each) if each.name in rare else each for each in parameters])
    made.num_hidden = len(rare)  # type: ignore[attr-defined]
    return made


def _hide(parameter: inspect.Parameter) -> inspect.Parameter:
    """The same option, left out of the help."""
    kind, *notes = typing.get_args(parameter.annotation)
    quiet = [copy.copy(note) for note in notes]
    for note in quiet:
        note.hidden = True
    return parameter.replace(annotation=Annotated[(kind, *quiet)])


def _fields_of(sections: frozenset[str], *, but: frozenset[str]) -> list[Asked]:
    return [item for item in QUESTION_FIELDS if item.section in sections and item.name not in but]


_MADE = ("question", "choices")


def _is_argument(parameter: inspect.Parameter) -> bool:
    """Whether it is given by its place, before the source."""
    notes = typing.get_args(parameter.annotation)[1:]
    return any(isinstance(note, typer.models.ArgumentInfo) for note in notes)


def build_question(
    source: str, said: Mapping[str, Any], asked: Iterable[Asked], others: Mapping[str, Any], *, lists: bool = False
) -> Question:
    """The question that a command line asks; what was not said is left out."""
    parts: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for item in asked:
        value = said[item.name]
        if value is not None and not isinstance(value, tuple):
            parts[item.section][item.name] = value
    stack = parts["job"].get("stack")
    if isinstance(stack, str) and stack.endswith(".toml"):
        from traincast.catalog import read_stack

        parts["job"]["stack"] = read_stack(Path(stack))
    gpus = others.get(GPUS)
    if isinstance(gpus, str) and (is_hardware(gpus) or not lists):
        parts["cluster"] = {**read_hardware(gpus, parts["cluster"]), **parts["cluster"]}
    workload = WorkloadOptions(**parts.pop("workload"))
    configs = tuple(others.get(CONFIGS) or ())
    if not source and not configs and not workload.has_shape:
        raise InvalidInput(
            "name a model: a catalogue workload, hf:org/name, a model file or a job file; or give --config FILE"
        )
    return Question(
        source=source, workload=workload, configs=configs, cluster=parts["cluster"], parallelism=parts["parallelism"],
        job=parts["job"], calibration=parts[""].get("calibration"),
    )  # fmt: skip


def _parameter(item: Asked, *, many: bool) -> inspect.Parameter:
    declared = list(item.flags)
    if item.kind is bool:
        declared = [f"{flag}/--no-{flag.removeprefix('--')}" for flag in item.flags]
    settings: dict[str, Any] = {"help": item.description, "rich_help_panel": item.panel, "show_default": False}
    kind: Any = item.kind
    if many:
        settings |= {"help": f"{item.description} Several to try: 1,2,4.", "parser": _many(item), "metavar": "LIST"}
        kind = tuple
    elif item.unit:
        settings |= {"parser": _reader(item), "metavar": _UNITS[item.unit]}
    if item.name == "device":
        settings["autocompletion"] = options.complete_device
    annotation = Annotated[kind | None, typer.Option(*declared, **settings)]
    return inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _reader(item: Asked) -> Callable[[str], Any]:
    def read(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        try:
            amount = float(text)
        except ValueError:
            amount = _read_unit(item, text)
        if amount > MOST_COUNTED:
            raise InvalidInput(f"{item.flags[0]} {text} is more than anybody trains on; 15T are 15 trillion")
        if amount < 1 and item.section == "workload" and item.kind is int:
            raise InvalidInput(f"{item.name} = {text}; it must be a whole number of at least 1")
        if item.kind is not int:
            return amount
        if not amount.is_integer():
            raise InvalidInput(f"{item.flags[0]} = {text}; it must be a whole number")
        return int(amount)

    return read


def _read_unit(item: Asked, text: str) -> float:
    try:
        return READERS[item.unit](text)
    except InvalidInput as error:
        raise InvalidInput(f"{item.flags[0]}: {error}") from error


def _many(item: Asked) -> Callable[[str], Any]:
    def read(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if item.kind is str:
            return tuple(parts)
        try:
            return tuple(int(parse_count(part)) for part in parts)
        except InvalidInput:
            raise InvalidInput(f"{item.name} = {text!r}; give whole numbers such as 1,2,4") from None

    return read


def _source() -> inspect.Parameter:
    return inspect.Parameter("source", inspect.Parameter.KEYWORD_ONLY, default="", annotation=options.Source)


def _config() -> inspect.Parameter:
    option = typer.Option(
        "--config", help="A configuration of your trainer (FILE or format:FILE), see docs/how-to/configs.md; may be repeated. "
        "What flags say wins.", rich_help_panel="Model", show_default=False,
    )  # fmt: skip
    return inspect.Parameter(
        CONFIGS, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[list[str] | None, option]
    )


def _gpus() -> inspect.Parameter:
    option = typer.Option(
        "--gpus", help="Hardware in one word: 8xh100, 2x8xh100 (nodes x devices) or h100:8.", rich_help_panel="Cluster",
        show_default=False,
    )  # fmt: skip
    return inspect.Parameter(
        GPUS, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )
