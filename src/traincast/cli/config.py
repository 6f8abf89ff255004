"""`traincast config`: what is read from configurations of other projects, key by key."""

import sys
from typing import Annotated

import typer

from traincast.cli import options
from traincast.cli.output import lead_to, say


def config(
    files: Annotated[
        list[str] | None,
        typer.Argument(help="FILE, format:FILE or FILE.py:function.", metavar="FILE", show_default=False),
    ] = None,
    formats: Annotated[bool, typer.Option("--formats", help="List the formats that are read and written.")] = False,
    json: options.Json = False,
    color: options.Color = "auto",
) -> None:
    """Show what configurations of other projects say: each field with its key, and every key that is not used.

    Example: traincast config llama3_8b.toml

    Example: traincast config deepspeed:ds_config.json training_args.json --json
    """
    from traincast.configs import FORMATS, read_config
    from traincast.errors import InvalidInput
    from traincast.report import Table, choose_paint, format_json, format_table

    if formats:
        lines = [f"{name:<16}{each.title} ({each.syntax})" for name, each in sorted(FORMATS.items())]
        say("\n".join(lines))
        return
    if not files:
        raise InvalidInput("give a configuration to read: traincast config FILE; or --formats")
    readings = [read_config(file) for file in files]
    if json:
        say(format_json({"files": [_document(reading) for reading in readings]}))
        return
    paint = choose_paint(sys.stdout, color=color)
    parts = []
    for reading in readings:
        rows = tuple(
            (name, str(setting.value), setting.origin if setting.strength else f"assumed: {setting.origin}")
            for name, setting in reading.settings.items()
        )
        table = Table(headings=("field", "value", "said by"), rows=rows, left=frozenset(("field", "value", "said by")))
        lines = [paint(f"{reading.name}: {reading.title}", "bold"), format_table(table, paint=paint)]
        lines += [f"  {note}" for note in reading.notes]
        lines.append(f"  not used: {', '.join(reading.unused) or 'nothing'}")
        lines.append(f"  without effect on time and memory: {', '.join(reading.harmless) or 'nothing'}")
        parts.append("\n".join(lines))
    say("\n\n".join(parts))
    lead_to("forecast", *(word for file in files for word in ("--config", file)))


def _document(reading: object) -> dict[str, object]:
    from traincast.report import plain_data

    found: dict[str, object] = plain_data(reading)
    return found
