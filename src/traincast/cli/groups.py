"""Groups of options to command-line options and back: a command takes one frozen noun for the options that belong together."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any

Command = Callable[..., None]


def takes_groups(function: Command) -> Command:
    """A command whose parameters that are dataclasses stand for one option for each of their fields."""
    declared = read_parameters(function)
    groups = find_groups(declared)

    @functools.wraps(function)
    def run(**values: Any) -> None:
        made = make_groups(groups, values)
        function(**made, **values)

    return with_parameters(run, [part for each in declared for part in expand(each)])


def read_parameters(function: Command) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def find_groups(parameters: Collection[inspect.Parameter], *, but: Collection[str] = ()) -> dict[str, type]:
    """The dataclasses among the annotations, by the name of their parameter."""
    return {each.name: each.annotation for each in parameters if each.name not in but and _is_group(each.annotation)}


def expand(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """A parameter, or one for each field of the group of options that it is."""
    if not _is_group(parameter.annotation):
        return [parameter]
    hints = typing.get_type_hints(parameter.annotation, include_extras=True)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if item.default is dataclasses.MISSING else item.default,
            annotation=hints[item.name],
        )
        for item in dataclasses.fields(parameter.annotation)
    ]


def make_groups(groups: Mapping[str, type], values: MutableMapping[str, Any]) -> dict[str, Any]:
    """The nouns, made of values that are taken out of `values`."""
    return {
        name: kind(**{item.name: values.pop(item.name) for item in dataclasses.fields(kind)})
        for name, kind in groups.items()
    }


def with_parameters(run: Command, parameters: Collection[inspect.Parameter]) -> Command:
    """The wrapper as typer shall see it: with these parameters, all by keyword."""
    whole = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = inspect.Signature(whole)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in whole}
    # typer reads the signature of what a wrapper wraps; this one has its own.
    del run.__wrapped__  # type: ignore[attr-defined]
    return run
