"""`traincast capture`: records the training step of a model as a graph file."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli.groups import takes_groups
from traincast.cli.options import Attention, Batch, Json, Mode, Optimizer, Precision, Seq
from traincast.noun import noun

if TYPE_CHECKING:
    from traincast.spec import Graph, Scalable


@noun
class Recording:
    """Which step is recorded, and how."""

    batch: Batch = None
    seq: Seq = None
    precision: Precision = None
    mode: Mode = None
    optimizer: Optimizer = None
    attention: Attention = None
    accumulate: Annotated[
        int | None, typer.Option("--accumulate", help="Passes whose gradients are added before one update.")
    ] = None
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Turn on the activation checkpointing of a Hugging Face model.")
    ] = False
    kernels: Annotated[
        str | None,
        typer.Option(
            "--kernels",
            help="fast: kernels that people install in the place of loops; plain: what the code itself runs.",
            show_default=False,
        ),
    ] = None
    mask_density: Annotated[
        float | None,
        typer.Option(
            "--mask-density", help="Share of masks and boxes that hold where the data decide.", show_default=False
        ),
    ] = None
    loop_length: Annotated[
        int | None,
        typer.Option(
            "--loop-length", help="Rounds of a loop of a TensorFlow graph that the data end.", show_default=False
        ),
    ] = None


@takes_groups
def capture(
    source: Annotated[
        str,
        typer.Argument(
            help="my_file.py:build, model.onnx, model.keras, a Hugging Face config.json, or a TensorFlow saved_model/, graph.pb "
            "or model.meta.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Graph file to write, for instance graph.json.gz.", show_default=False),
    ] = None,
    *,
    any_batch: Annotated[
        bool, typer.Option("--any-batch", help="Record two batch sizes, so that a forecast may use any.")
    ] = False,
    recording: Recording,
    json: Json = False,
) -> None:
    """Record the whole training step of a model, without a GPU and without allocating its weights.

    A Python file defines build(), which returns a model, (model, inputs) or (model, make_inputs) with make_inputs(batch);
    a function loss(output) and a name `optimizer` beside it are used too.
    """
    from traincast.cli.output import lead_to, say
    from traincast.errors import InvalidInput

    if any_batch and recording.batch is not None:
        raise InvalidInput(f"--batch {recording.batch} and --any-batch exclude each other; leave one out")
    if output is not None and not output.name.endswith((".json", ".json.gz")):
        raise InvalidInput(f"the graph file {output} must end in .json or .json.gz")
    if output is not None and not output.resolve().parent.is_dir():
        raise InvalidInput(f"there is no directory {output.resolve().parent} to write {output.name} to")
    from traincast.cli.progress import waiting

    with waiting("recording the step"):
        from traincast.capture import load_source
        from traincast.files import save_graph

        recorded = load_source(source, scalable=any_batch, **dataclasses.asdict(recording))
    if output is not None:
        save_graph(recorded, output)
    summary = _summary(recorded, output)
    if json:
        from json import dumps

        say(dumps(summary, indent=2))
    else:
        say(_text(summary))
        lead_to("forecast", output or source, "--gpus", "8xh100")


def _summary(recorded: "Graph | Scalable", output: Path | None) -> dict[str, Any]:
    from traincast.spec import Scalable

    is_scalable = isinstance(recorded, Scalable)
    graph: Graph = recorded.small if isinstance(recorded, Scalable) else recorded
    counts = graph.counts()
    by_phase: dict[str, dict[str, float]] = {}
    for op, count in zip(graph.ops, counts, strict=True):
        entry = by_phase.setdefault(op.phase, {"ops": 0, "flop": 0.0, "bytes": 0.0})
        entry["ops"] += count
        entry["flop"] += (op.flop or 0.0) * count
        entry["bytes"] += op.num_bytes * count
    return {
        "name": graph.name, "source": graph.source, "mode": graph.mode, "batch_size": graph.batch_size,
        "any_batch": is_scalable, "parameters": graph.num_parameters, "ops": sum(counts),
        "ops_written": len(graph.ops), "flop": graph.flop, "bytes": graph.num_bytes, "phases": by_phase,
        "unknown_ops": list(graph.unknown_ops()), "assumptions": list(graph.assumptions),
        "file": None if output is None else str(output),
        "file_bytes": None if output is None else output.stat().st_size,
    }  # fmt: skip


def _text(summary: dict[str, Any]) -> str:
    from traincast.units import show_bytes, show_count

    lines = [
        f"{summary['name']}: {show_count(summary['parameters'])} parameters, batch {summary['batch_size']}"
        + (" (any batch can be forecast)" if summary["any_batch"] else ""),
        f"{summary['ops']:,} operations, folded to {summary['ops_written']:,}; "
        f"{show_count(summary['flop'], 'FLOP')}, {show_bytes(summary['bytes'])} moved",
    ]
    for phase, entry in summary["phases"].items():
        moved = show_bytes(entry["bytes"])
        lines.append(
            f"  {phase:<10} {entry['ops']:>8,} operations  {show_count(entry['flop'], 'FLOP'):>12}  {moved:>10}"
        )
    if summary["unknown_ops"]:
        lines.append(f"without a FLOP formula: {', '.join(summary['unknown_ops'])}")
    lines += [f"assumed: {sentence}" for sentence in summary["assumptions"]]
    if summary["file"]:
        lines.append(f"written to {summary['file']} ({show_bytes(summary['file_bytes'])})")
    return "\n".join(lines)
