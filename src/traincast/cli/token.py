"""`traincast token`: who may ask a service for what."""

import time
from typing import Annotated

import typer

from traincast.cli import options
from traincast.cli import serve as serving
from traincast.cli.output import say


def token(
    action: Annotated[str, typer.Argument(help="add, list or remove.")],
    name: Annotated[str | None, typer.Argument(help="Whose token it is.")] = None,
    scope: Annotated[
        str, typer.Option("--scope", help="read, run (also ask and cancel) or admin (also metrics).")
    ] = "run",
    state: serving.State = None,
    database: serving.Database = None,
    json: options.Json = False,
) -> None:
    """Add, list or remove the tokens of a service; a token is shown once and kept only as its digest.

    Example: traincast token add ci --scope run
    """
    import json as encoder

    from traincast.errors import InvalidInput, UnknownName
    from traincast.service import State, open_database

    if action not in ("add", "list", "remove"):
        raise UnknownName("action", action, ("add", "list", "remove"))
    if (name is None) != (action == "list"):
        raise InvalidInput("add and remove take the name of a token, list takes none")
    kept = State(open_database(serving.find_state(state, database), is_owner=False))
    try:
        if action == "add":
            secret = kept.add_token(name or "", scope)
            say(encoder.dumps({"name": name, "scope": scope, "token": secret}) if json else secret)
        elif action == "remove":
            if not kept.remove_token(name or ""):
                raise UnknownName("token", name or "", [each.name for each in kept.list_tokens()])
            say(encoder.dumps({"removed": name}) if json else f"removed {name}; services forget it within 2 s")
        else:
            found = kept.list_tokens()
            if json:
                shown = [{"name": each.name, "scope": each.scope, "created_s": each.created_s} for each in found]
                say(encoder.dumps(shown))
            for each in () if json else found:
                say(f"{each.name:30} {each.scope:6} {time.strftime('%Y-%m-%d', time.gmtime(each.created_s))}")
    finally:
        kept.close()
