"""Options that several commands share, so that one word means one thing everywhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from traincast.spec import METHODS


def complete_device(incomplete: str) -> list[str]:
    return _matching("device", incomplete)


def complete_source(incomplete: str) -> list[str]:
    """Catalogue workloads; the shell itself completes file names."""
    return _matching("model", incomplete)


def _matching(kind: str, incomplete: str) -> list[str]:
    # A shell that asks for completions must never see an error.
    try:
        from traincast.catalog import load_facts

        return sorted(name for name in load_facts(kind).entries if name.startswith(incomplete))
    except Exception:
        return []


def given(**values: Any) -> dict[str, Any]:
    """The options that were set."""
    return {name: value for name, value in values.items() if value is not None}


Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.", rich_help_panel="Output")]
Color = Annotated[
    str,
    typer.Option(
        "--color", help="auto, always or never; auto respects NO_COLOR and FORCE_COLOR.", rich_help_panel="Output"
    ),
]
PriceFile = Annotated[
    Path | None,
    typer.Option(
        "--price-file",
        help="Prices of your own (TOML): on-demand, spot, reserved, and CO2 by region. See docs/how-to/prices.md.",
        rich_help_panel="Cluster",
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        help="A catalogue workload, hf:org/name, timm:name, my_file.py:build, model.onnx, config.json, a saved graph or a job "
        "file (TOML).",
        autocompletion=complete_source,
        show_default=False,
    ),
]
Batch = Annotated[
    int | None, typer.Option("--batch", "-b", help="Micro-batch: samples that a device has in one forward pass.")
]
Seq = Annotated[int | None, typer.Option("--seq", help="Sequence length in tokens.")]
Precision = Annotated[
    str | None, typer.Option("--precision", help="fp32, tf32, fp16, fp16-amp, bf16, bf16-amp, fp8 ...")
]
Mode = Annotated[str | None, typer.Option("--mode", help="training_step, forward_backward or inference.")]
Optimizer = Annotated[str | None, typer.Option("--optimizer", help="adamw, adam, sgd, momentum, none ...")]
Attention = Annotated[str | None, typer.Option("--attention", help="eager or flash.")]
OnlySources = Annotated[
    list[str] | None,
    typer.Option(
        "--source", help="Only the rows of this source (column `source`); may be repeated.", show_default=False
    ),
]
ALL_METHODS = "all"
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        help=f"Which system answers rows that name none: {', '.join(METHODS)}.",
        rich_help_panel="Learned",
        show_default=False,
    ),
]


def ask_method(rows: Sequence[Mapping[str, Any]], method: str | None) -> list[dict[str, Any]]:
    """The rows of a table, asked of one system."""
    return [{"method": method, **row} if method is not None else dict(row) for row in rows]


Workers = Annotated[
    int, typer.Option("--workers", min=0, help="Processes; 0: one for a short table, more for a long one.")
]
Engine = Annotated[
    str,
    typer.Option("--engine", help="Who works: processes (of this machine) or none (this process)."),
]
TimeQuantile = Annotated[float, typer.Option("--time-quantile", help="The time limit holds with this probability.")]
