"""`traincast catalog`: lists, filters and shows what is known by name, with its sources."""

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli.options import Color, Json
from traincast.units import show_bytes, show_count, show_seconds, show_usd

if TYPE_CHECKING:
    from traincast.report import Paint, Table

KINDS = ("devices", "links", "nodes", "workloads", "datasets", "regions", "stacks")
PRICES = "prices"
"""The machines that have a price, the cheapest device first."""


def _complete_kind(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def catalog(
    kind: Annotated[
        str | None,
        typer.Argument(
            help=f"{', '.join(KINDS)}, {PRICES}; or any name, to show its entry.",
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
    if kind == PRICES and name is None:
        listed = [record for record in list_records("nodes", text=text) if record.get("usd_per_hour") is not None]
        listed.sort(key=lambda record: (record["device"], record["usd_per_hour"] / record["devices_per_node"]))
        _write(listed, _list("nodes", listed, text, paint), json=json, colors=paint.colors)
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
    shown = format_table(_LISTINGS[kind].table(records, paint), paint=paint)
    total = len(entry_names(kind))
    count = f"{total} {kind}" if len(records) == total else f"{len(records)} of {total} {kind}"
    next_command = say_next(shlex.join(["traincast", "catalog", kind, records[0]["name"]]), paint=paint)
    return f"{shown}\n\n{count}\n\n{next_command}"


@dataclass(frozen=True, slots=True)
class _Listing:
    """The table of one kind: its title and its columns, each with the words of a record or its key; `left` are texts."""

    title: str
    columns: Mapping[str, Callable[[dict[str, Any]], str] | str]
    left: tuple[str, ...]

    def table(self, records: list[dict[str, Any]], paint: "Paint") -> "Table":
        from traincast.report import Table

        def cell(heading: str, words: Callable[[dict[str, Any]], str] | str, record: dict[str, Any]) -> str:
            said = words(record) if callable(words) else str(record.get(words) or "")
            if heading == "confidence":
                return _confidence(said, paint)
            if words == "name":
                return paint(said, "cyan")
            return said or (paint("-", "dim") if callable(words) else "")

        rows = tuple(tuple(cell(*column, record) for column in self.columns.items()) for record in records)
        left = frozenset({next(iter(self.columns)), *self.left})
        return Table(headings=tuple(self.columns), rows=rows, left=left, title=self.title)


def _rate(*dtypes: str) -> Callable[[dict[str, Any]], str]:
    units = ("matrix_flop_per_s", "vector_flop_per_s")

    def words(record: dict[str, Any]) -> str:
        best = max((record.get(unit, {}).get(dtype) or 0 for unit in units for dtype in dtypes), default=0)
        return show_count(best) if best else ""

    return words


def _shown(key: str, show: Callable[[Any], str]) -> Callable[[dict[str, Any]], str]:
    return lambda record: show(record[key]) if record.get(key) is not None else ""


def _per_device(record: dict[str, Any]) -> str:
    return show_usd(record["usd_per_hour"] / record["devices_per_node"]) if "usd_per_hour" in record else ""


def _price_date(record: dict[str, Any]) -> str:
    from traincast.catalog import is_current

    date = str(record.get("price_date") or "")
    return date if is_current(date) else f"{date} (old)"


_LISTINGS = {
    "devices": _Listing(
        "Devices: peak FLOP/s by precision, dense",
        {
            "device": "name", "architecture": "architecture", "year": "year",
            "memory": _shown("nominal_memory_bytes", show_bytes),
            "bandwidth": _shown("memory_bytes_per_s", lambda rate: show_count(rate, "B/s")), "fp32": _rate("fp32"),
            "tf32": _rate("tf32"), "16 bit": _rate("bf16", "fp16"), "fp8": _rate("fp8"),
            "power": _shown("power_watts", lambda watts: f"{watts:g} W"), "confidence": "confidence",
        },
        ("architecture", "confidence"),
    ),
    "links": _Listing(
        "Links: one direction",
        {
            "link": "name", "kind": "kind", "of": lambda record: f"one {record['scope']}",
            "rate": _shown("bytes_per_s", lambda rate: show_count(rate, "B/s")), "latency": _shown("latency_s", show_seconds),
            "confidence": "confidence", "notes": "notes",
        },
        ("kind", "of", "confidence", "notes"),
    ),
    "nodes": _Listing(
        "Nodes: on-demand prices in USD",
        {
            "node": "name", "devices": lambda record: f"{record['devices_per_node']} x {record['device']}",
            "inside": lambda record: record["intra"]["name"] if record["devices_per_node"] > 1 else "",
            "network": lambda record: f"{show_count(record['inter']['bytes_per_s'] * 8, 'b/s')} {record['inter']['kind']}",
            "per hour": _shown("usd_per_hour", show_usd), "per device": _per_device, "region": "price_region",
            "asked on": _price_date,
        },
        ("devices", "inside", "network", "region", "asked on"),
    ),
    "workloads": _Listing(
        "Workloads",
        {
            "workload": "name", "family": "family", "parameters": _shown("parameters", show_count),
            "sample": lambda record: str(record.get("seq") or record.get("input_shape") or ""), "data set": "dataset",
            "confidence": "confidence",
        },
        ("family", "data set", "confidence"),
    ),
    "datasets": _Listing(
        "Data sets",
        {
            "data set": "name", "kind": "kind", "train samples": _shown("num_train_samples", "{:,}".format),
            "eval samples": _shown("num_eval_samples", "{:,}".format), "tokens": _shown("num_tokens", "{:,}".format),
            "size": _shown("size_bytes", show_bytes), "confidence": "confidence",
        },
        ("kind", "confidence"),
    ),
    "regions": _Listing(
        "Regions",
        {
            "region": "name", "CO2 per kWh": _shown("grams_co2_per_kwh", "{:.0f} g".format), "of": _shown("date", str),
            "source": "source",
        },
        ("of", "source"),
    ),
    "stacks": _Listing(
        "Software stacks",
        {
            "stack": "name", "what it is": "title", "like": "like",
            "fitted to steps": lambda record: str(record.get("num_steps") or "prior"),
            "log sigma of a step": lambda record: f"{record.get('log_sigma', 0.06):.0%}",
        },
        ("what it is", "like"),
    ),
}  # fmt: skip


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
        "stacks": ["--gpus", "8xh100", "--framework", name],
    }[kind]
    return ["traincast", "forecast", "llama-3-8b", *machine]


_HIDDEN = {
    "name", "title", "sources", "source", "notes", "corrected", "aliases", "network_source", "price_source",
    "provenance",
}  # fmt: skip


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
