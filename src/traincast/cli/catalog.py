"""`traincast catalog`: lists, filters and shows what is known by name, with its sources."""

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli.options import Color, Json

if TYPE_CHECKING:
    from traincast.report import Paint, Table

KINDS = ("devices", "links", "nodes", "workloads", "datasets", "regions", "stacks")


def _complete_kind(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def catalog(
    kind: Annotated[
        str | None,
        typer.Argument(
            help=f"{', '.join(KINDS)}; or any name, to show its entry.",
            autocompletion=_complete_kind,
            show_default=False,
        ),
    ] = None,
    name: Annotated[str | None, typer.Argument(help="One entry to show with its sources.", show_default=False)] = None,
    text: Annotated[
        str | None,
        typer.Option("--filter", "-f", help="List only entries that contain these words.", show_default=False),
    ] = None,
    json: Json = False,
    color: Color = "auto",
) -> None:
    """List and show known devices, links, nodes, prices, workloads, data sets, regions and stacks.

    `traincast catalog devices --filter hopper` lists, `traincast catalog devices h100` shows one entry with the source
    of each figure, `traincast catalog h100` finds a name of any kind.
    """
    from traincast.catalog import entry_names, find_record, kind_of, list_records, plural_kind
    from traincast.report import choose_paint

    paint = choose_paint(sys.stdout, color=color)
    if kind is None:
        counts = {each: len(entry_names(each)) for each in KINDS}
        _write(counts, _overview(counts, paint), json=json, colors=paint.colors)
        return
    if (plural := plural_kind(kind)) is None:
        if name is not None:
            from traincast.errors import UnknownName

            raise UnknownName("kind of entry", kind, KINDS, plural="kinds")
        plural, name = kind_of(kind), kind
    if name is None:
        listed = list_records(plural, text=text)
        _write(listed, _list(plural, listed, text, paint), json=json, colors=paint.colors)
    else:
        record = find_record(plural, name)
        _write(record, _show(plural, record, paint), json=json, colors=paint.colors)


def _write(record: Any, shown: str, *, json: bool, colors: bool) -> None:
    if json:
        from json import dumps

        shown = dumps(record, indent=2, ensure_ascii=False)
    # Without a word about colours, echo would drop them in a pipe even where FORCE_COLOR asks for them.
    typer.echo(shown, color=colors)


def _overview(counts: dict[str, int], paint: "Paint") -> str:
    from traincast.report import Table, format_table, say_next

    rows = tuple((kind, str(count), f"traincast catalog {kind}") for kind, count in counts.items())
    table = Table(headings=("kind", "entries", "list"), rows=rows, left=frozenset({"kind", "list"}))
    next_command = say_next("traincast catalog devices", paint=paint)
    return f"{format_table(table, paint=paint)}\n\nOne entry with its sources: traincast catalog NAME\n\n{next_command}"


def _list(kind: str, records: list[dict[str, Any]], text: str | None, paint: "Paint") -> str:
    from traincast.catalog import entry_names
    from traincast.report import format_table, say_next

    if not records:
        return f"no {kind} contain {text!r}\n\n{say_next(f'traincast catalog {kind}', paint=paint)}"
    shown = format_table(_TABLES[kind](records, paint), paint=paint)
    total = len(entry_names(kind))
    count = f"{total} {kind}" if len(records) == total else f"{len(records)} of {total} {kind}"
    next_command = say_next(shlex.join(["traincast", "catalog", kind, records[0]["name"]]), paint=paint)
    return f"{shown}\n\n{count}\n\n{next_command}"


def _device_table(records: list[dict[str, Any]], paint: "Paint") -> "Table":
    from traincast.report import Table
    from traincast.units import show_bytes, show_count

    def rate(record: dict[str, Any], *dtypes: str) -> str:
        found = [record.get(units, {}).get(dtype) for units in _UNITS for dtype in dtypes]
        best = max((each for each in found if each), default=None)
        return show_count(best) if best else paint("-", "dim")

    rows = tuple(
        (
            paint(record["name"], "cyan"),
            record["architecture"],
            str(record["year"]),
            show_bytes(record["nominal_memory_bytes"]),
            show_count(record["memory_bytes_per_s"], "B/s"),
            rate(record, "fp32"),
            rate(record, "tf32"),
            rate(record, "bf16", "fp16"),
            rate(record, "fp8"),
            f"{record['power_watts']:g} W" if "power_watts" in record else paint("-", "dim"),
            _confidence(record["confidence"], paint),
        )
        for record in records
    )
    headings = (
        *("device", "architecture", "year", "memory", "bandwidth"),
        *("fp32", "tf32", "16 bit", "fp8", "power", "confidence"),
    )
    return Table(
        headings=headings,
        rows=rows,
        left=frozenset({"device", "architecture", "confidence"}),
        title="Devices: peak FLOP/s by precision, dense",
    )


def _link_table(records: list[dict[str, Any]], paint: "Paint") -> "Table":
    from traincast.report import Table
    from traincast.units import show_count, show_seconds

    rows = tuple(
        (
            paint(record["name"], "cyan"),
            record["kind"],
            f"one {record['scope']}",
            show_count(record["bytes_per_s"], "B/s"),
            show_seconds(record["latency_s"]),
            _confidence(record["confidence"], paint),
            record.get("notes", ""),
        )
        for record in records
    )
    headings = ("link", "kind", "of", "rate", "latency", "confidence", "notes")
    left = frozenset({"link", "kind", "of", "confidence", "notes"})
    return Table(headings=headings, rows=rows, left=left, title="Links: one direction")


def _node_table(records: list[dict[str, Any]], paint: "Paint") -> "Table":
    from traincast.report import Table
    from traincast.units import show_count, show_usd

    rows = tuple(
        (
            paint(record["name"], "cyan"),
            f"{record['devices_per_node']} x {record['device']}",
            record["intra"]["name"] if record["devices_per_node"] > 1 else paint("-", "dim"),
            f"{show_count(record['inter']['bytes_per_s'] * 8, 'b/s')} {record['inter']['kind']}",
            show_usd(record["usd_per_hour"]) if "usd_per_hour" in record else paint("-", "dim"),
            show_usd(record["usd_per_hour"] / record["devices_per_node"])
            if "usd_per_hour" in record
            else paint("-", "dim"),
            record.get("price_region", ""),
            record.get("price_date", ""),
        )
        for record in records
    )
    headings = ("node", "devices", "inside", "network", "per hour", "per device", "region", "asked on")
    left = frozenset({"node", "devices", "inside", "network", "region", "asked on"})
    return Table(headings=headings, rows=rows, left=left, title="Nodes: on-demand prices in USD")


def _dataset_table(records: list[dict[str, Any]], paint: "Paint") -> "Table":
    from traincast.report import Table
    from traincast.units import show_bytes

    def count(record: dict[str, Any], key: str) -> str:
        return f"{record[key]:,}" if key in record else paint("-", "dim")

    rows = tuple(
        (
            paint(record["name"], "cyan"),
            record["kind"],
            count(record, "num_train_samples"),
            count(record, "num_eval_samples"),
            count(record, "num_tokens"),
            show_bytes(record["size_bytes"]) if "size_bytes" in record else paint("-", "dim"),
            _confidence(record["confidence"], paint),
        )
        for record in records
    )
    headings = ("data set", "kind", "train samples", "eval samples", "tokens", "size", "confidence")
    return Table(headings=headings, rows=rows, left=frozenset({"data set", "kind", "confidence"}), title="Data sets")


def _region_table(records: list[dict[str, Any]], paint: "Paint") -> "Table":
    from traincast.report import Table

    rows = tuple(
        (
            paint(record["name"], "cyan"),
            f"{record['grams_co2_per_kwh']:.0f} g",
            record.get("date") or paint("-", "dim"),
            record["source"],
        )
        for record in records
    )
    headings = ("region", "CO2 per kWh", "of", "source")
    return Table(headings=headings, rows=rows, left=frozenset({"region", "of", "source"}), title="Regions")


def _workload_table(records: list[dict[str, Any]], paint: "Paint") -> "Table":
    from traincast.report import Table
    from traincast.units import show_count

    rows = tuple(
        (
            paint(record["name"], "cyan"),
            record["family"],
            show_count(record["parameters"]) if record.get("parameters") else paint("-", "dim"),
            str(record.get("seq") or record.get("input_shape") or ""),
            record.get("dataset") or "",
            _confidence(record.get("confidence", ""), paint),
        )
        for record in records
    )
    headings = ("workload", "family", "parameters", "sample", "data set", "confidence")
    left = frozenset({"workload", "family", "data set", "confidence"})
    return Table(headings=headings, rows=rows, left=left, title="Workloads")


def _stack_table(records: list[dict[str, Any]], paint: "Paint") -> "Table":
    from traincast.report import Table

    rows = tuple(
        (
            paint(record["name"], "cyan"),
            record.get("title", ""),
            record.get("like", ""),
            str(record.get("num_steps") or paint("prior", "dim")),
            f"{record.get('log_sigma', 0.06):.0%}",
        )
        for record in records
    )
    headings = ("stack", "what it is", "like", "fitted to steps", "log sigma of a step")
    return Table(headings=headings, rows=rows, left=frozenset(headings[:3]), title="Software stacks")


_UNITS = ("matrix_flop_per_s", "vector_flop_per_s")
_TABLES = {
    "devices": _device_table,
    "links": _link_table,
    "nodes": _node_table,
    "workloads": _workload_table,
    "datasets": _dataset_table,
    "regions": _region_table,
    "stacks": _stack_table,
}


def _confidence(confidence: str, paint: "Paint") -> str:
    return paint(confidence, {"high": "green", "medium": "yellow", "low": "red"}.get(confidence, "dim"))


def _show(kind: str, record: dict[str, Any], paint: "Paint") -> str:
    """One entry: its figures, then where they come from."""
    import textwrap

    from traincast.report import say_next

    title = record.get("title") or record.get("instance") or ""
    lines = [paint(record["name"], "bold", "cyan") + (f"  {title}" if title else "")]
    figures = dict(_figures(record))
    width = max(map(len, figures), default=0)
    lines += [f"  {paint(key.ljust(width), 'dim')}  {value}" for key, value in figures.items()]
    for heading, words in _remarks(kind, record):
        wrapped = textwrap.wrap(words, paint.width - 4)
        lines += ["", paint(heading, "bold"), *(f"  {line}" for line in wrapped)]
    return "\n".join([*lines, "", say_next(shlex.join(_use(kind, record)), paint=paint)])


def _use(kind: str, record: dict[str, Any]) -> list[str]:
    """A forecast that uses the entry."""
    name = record["name"]
    if kind == "workloads":
        return ["traincast", "forecast", name, "--gpus", "8xh100"]
    if kind == "datasets":
        amount = record.get("num_train_samples") or record.get("num_tokens") or 10_000
        length = ["--samples", str(amount)] if "num_train_samples" in record else ["--tokens", str(amount)]
        model = "resnet50" if "num_train_samples" in record else "llama-3-8b"
        return ["traincast", "forecast", model, "--gpus", "8xh100", *length]
    machine = {
        "devices": ["--gpus", f"8x{name}"],
        "nodes": ["--machine", name],
        "links": ["--gpus", "2x8xh100", "--intra" if record.get("scope") == "device" else "--inter", name],
        "regions": ["--gpus", "8xh100", "--tokens", "15B", "--region", name],
        "stacks": ["--gpus", "8xh100", "--stack", name],
    }[kind]
    return ["traincast", "forecast", "llama-3-8b", *machine]


_HIDDEN = {
    "name",
    "title",
    "sources",
    "source",
    "notes",
    "corrected",
    "aliases",
    "network_source",
    "price_source",
    "provenance",
}


def _figures(record: dict[str, Any], prefix: str = "") -> "list[tuple[str, str]]":
    figures: list[tuple[str, str]] = []
    for key, value in record.items():
        if value in ("", None) or (key in _HIDDEN and not (key == "name" and prefix)):
            continue
        if isinstance(value, dict):
            figures += _figures(value, f"{prefix}{key}.")
        else:
            figures.append((f"{prefix}{key}", _amount(f"{prefix}{key}", value)))
    return figures


def _amount(key: str, value: Any) -> str:
    from traincast.units import show_bytes, show_count, show_seconds, show_usd

    if isinstance(value, str) or key in ("year",):
        return str(value)
    if "_bytes_per_s" in key or key.endswith("bytes_per_s"):
        return show_count(value, "B/s")
    if "flop_per_s" in key:
        return show_count(value, "FLOP/s")
    if key.endswith("bits_per_s"):
        return show_count(value, "b/s")
    if key.endswith("_bytes"):
        return f"{show_bytes(value)} ({value:,.0f} B)"
    if key.endswith("_s"):
        return show_seconds(value)
    if key.endswith("_hz"):
        return show_count(value, "Hz")
    if key.startswith("usd_"):
        return show_usd(value)
    if key.endswith("_watts"):
        return f"{value:g} W"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _remarks(kind: str, record: dict[str, Any]) -> "list[tuple[str, str]]":
    remarks: list[tuple[str, str]] = []
    if record.get("aliases"):
        remarks.append(("also known as", ", ".join(record["aliases"])))
    if record.get("notes"):
        remarks.append(("notes", record["notes"]))
    if record.get("corrected"):
        remarks.append(("corrected", record["corrected"]))
    if kind == "devices":
        own = record["sources"]
        remarks += [(f"source of {'all other figures' if k == '*' else k}", v) for k, v in sorted(own.items())[::-1]]
    elif record.get("source"):
        remarks.append(("source", record["source"]))
    if record.get("provenance"):
        remarks.append(("where it comes from", record["provenance"]))
    if record.get("network_source"):
        remarks.append(("source of the network", record["network_source"]))
    if record.get("price_source"):
        where = ", ".join(filter(None, (record.get("price_region"), record.get("price_date"))))
        remarks.append(("source of the price", f"{record['price_source']} ({where})"))
    return remarks
