"""`traincast store`: lists, imports, exports, merges and checks measurements."""

from pathlib import Path
from typing import Annotated

import typer

from traincast.cli.options import Json

ACTIONS = ("list", "import", "export", "merge", "check")


def store(
    action: Annotated[str, typer.Argument(help=f"{', '.join(ACTIONS)}.", show_default=False)],
    path: Annotated[Path, typer.Argument(help="The store.")] = Path("measurements.db"),
    other: Annotated[
        Path | None,
        typer.Argument(help="Import, export or merge: the other file (.csv, .parquet, .db).", show_default=False),
    ] = None,
    subject: Annotated[str | None, typer.Option("--subject", help="operator, collective or step.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only this name; * stands for anything.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Only from this source; * stands for anything.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Lines to list.")] = 40,
    json: Json = False,
) -> None:
    """Keep, list, import and export measurements.

    The store is one SQLite file to which blocks are only ever added. Importing or merging twice adds nothing.
    """
    from traincast.cli.output import say
    from traincast.errors import InvalidInput, UnknownName
    from traincast.report import format_json
    from traincast.store import Store, export_table, import_table

    if action not in ACTIONS:
        raise UnknownName("action", action, ACTIONS)
    if action in ("import", "export", "merge") and other is None:
        raise InvalidInput(f"`traincast store {action} {path}` needs a second file")
    with Store(path, create=action in ("import", "merge")) as kept:
        answer: dict[str, object] = {"store": str(path)}
        if action == "import" and other is not None:
            rows = import_table(other)
            answer["added"] = kept.append_all(rows)
            answer["known_already"] = len(rows) - int(str(answer["added"]))
        elif action == "export" and other is not None:
            answer["lines"] = export_table(kept.rows(subject=subject, name=name, source=source), other)
        elif action == "merge" and other is not None:
            answer["added"] = kept.merge(other)
        elif action == "check":
            kept.check()
            answer.update(kept.counts())
        else:
            _list(kept, answer, subject=subject, name=name, source=source, limit=limit, json=json)
            if not json:
                return
        say(format_json(answer) if json else ", ".join(f"{key}: {value}" for key, value in answer.items()))


def _list(
    kept: object,
    answer: dict[str, object],
    *,
    subject: str | None,
    name: str | None,
    source: str | None,
    limit: int,
    json: bool,
) -> None:
    from traincast.cli.output import lead_to, say
    from traincast.report import Table, format_table
    from traincast.store import Store
    from traincast.units import show_seconds

    if not isinstance(kept, Store):
        return
    found = kept.measurements(subject=subject, name=name, source=source)
    answer["measurements"] = [
        {
            "experiment": each.experiment.key,
            "device": each.environment.device,
            "machine": each.environment.machine,
            "seconds": each.seconds,
            "cpu_seconds": each.cpu_seconds,
            "num_blocks": len(each.blocks),
            "num_repeats": each.num_repeats,
            "spread": each.spread,
        }
        for each in found
    ]
    if json:
        return
    rows = tuple(
        (
            each.experiment.key[:80],
            each.environment.device[:24],
            show_seconds(each.seconds),
            "-" if each.spread is None else f"{each.spread:.1%}",
            f"{len(each.blocks)}",
            f"{each.num_repeats}",
        )
        for each in found[:limit]
    )
    headings = ("experiment", "device", "time", "spread", "blocks", "repeats")
    say(format_table(Table(headings=headings, rows=rows, left=frozenset({"experiment", "device"}))))
    say(f"{len(found)} measurements" + (f", {limit} shown" if len(found) > limit else ""))
    lead_to("learn", kept.path, "-o", "mine.json")
