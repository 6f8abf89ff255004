"""`traincast learn`: measured runs to a calibration that every command takes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traincast.spec import Calibration, MeasuredRun


def learn(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Tables of measured cases (.parquet, .csv) or stores of measured and watched steps (.db).",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File that keeps the calibration.", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", "-n", help="Name of the calibration; without -o it is kept under it.", show_default=False
        ),
    ] = None,
    suggest: Annotated[
        int,
        typer.Option("--suggest", help="Also name so many workloads that are worth a run next.", show_default=False),
    ] = 0,
    method: Annotated[
        str,
        typer.Option(
            "--method", help="best: a calibration; driple: the graph network of the twelve resource numbers, adapted."
        ),
    ] = "best",
    json: options.Json = False,
) -> None:
    """Learn from measured runs of your own, so that forecasts for such jobs become sharp.

    What forecasts of the runs miss is shared out between framework, device, kinds of operators, model and job, and believed as
    far as the runs foretell each other. Memory, GPU utilisation and network numbers of the runs move those of forecasts too. Use
    the result with --calibration NAME or FILE in any command.

    Example: traincast learn my_runs.csv -o mine.json && traincast forecast gpt2-xl --device a100-80g --calibration mine.json
    """
    from traincast.errors import InvalidInput

    if output is None and name is None:
        raise InvalidInput("nowhere to keep what is learned; give a file (-o mine.json) or a name (--name mine)")
    if method != "best":
        _adapt(method, runs, output, json=json)
        return
    _learn_best(runs, output, name, suggest=suggest, json=json)


def _learn_best(runs: "Sequence[Path]", output: Path | None, name: str | None, *, suggest: int, json: bool) -> None:
    from traincast.cli.learned import read_measured_runs
    from traincast.cli.output import lead_to, say
    from traincast.files import encode
    from traincast.learn import learn as learn_runs
    from traincast.learn import suggest_runs
    from traincast.report import format_json

    title = name or (output.name.partition(".")[0] if output else "")
    measured = read_measured_runs(runs)
    found = learn_runs(measured, name=title, sources=tuple(map(str, runs)))
    next_runs = suggest_runs(measured, suggest) if suggest else ()
    file = _keep(found, output, title)
    if json:
        suggestions = [encode(one) for one in next_runs]
        say(format_json({"calibration": str(file), **_document(found), "suggestions": suggestions}))
        return
    for line in _lines(found):
        say(line)
    for one in next_runs:
        say(f"worth a run next: {one.name} (the catalogue lies {one.gain:.0%} nearer to what ran)")
    say(f"kept in {file}; use it with --calibration {name or file}")
    lead_to("forecast", *_first_asked(measured), "--calibration", name or file)


def _adapt(method: str, runs: "Sequence[Path]", output: Path | None, *, json: bool) -> None:
    from traincast.cli.learned import read_measured_runs
    from traincast.cli.output import lead_to, say
    from traincast.errors import InvalidInput, UnknownName
    from traincast.forecast import adapt_twelve
    from traincast.report import format_json
    from traincast.resources import save_twelve

    if method != "driple":
        raise UnknownName("method to adapt", method, ("best", "driple"), plural="methods to adapt")
    if output is None:
        raise InvalidInput("the adapted network is kept in a file; give -o cluster.safetensors")
    measured = read_measured_runs(runs)
    found = adapt_twelve(measured)
    save_twelve(found.network, output)
    if json:
        say(format_json({"network": str(output), "runs": len(measured), "before": found.before, "after": found.after}))
        return
    moved = f"moved the layers above the graph in {found.seconds:.3f} CPU s"
    said = moved if found.after < found.before else "say nothing of each other, so the network stays as it ships"
    say(f"{len(measured)} runs {said}")
    say(f"mean error of their steps, each left out in turn: {found.before:.1%} before, {found.after:.1%} after")
    say(f"kept in {output}; use it with --method driple --activity {output}")
    lead_to("forecast", *_first_asked(measured), "--method", "driple", "--activity", output)


def _first_asked(runs: "Sequence[MeasuredRun]") -> list[str]:
    """The first run, as one would ask for its like."""
    from traincast.catalog import entry_names

    model, group = runs[0].job.graph.name, runs[0].cluster.groups[0]
    model = model if model in entry_names("workloads") else "resnet50"
    return [model, "--gpus", f"{group.devices_per_node}x{group.device.name}"]


def _keep(found: "Calibration", output: Path | None, title: str) -> Path:
    """In the file that was named, or under its name in the user's own folder."""
    from traincast.learn import calibrations_folder, save_calibration

    if output is None:
        folder = calibrations_folder()
        folder.mkdir(parents=True, exist_ok=True)
        output = folder / f"{title}.json"
    save_calibration(found, output)
    return output


def _document(found: "Calibration") -> dict[str, object]:
    from traincast.files import encode
    from traincast.learn import describe_stacks

    return {
        "name": found.name,
        "stacks": [encode(one) for one in describe_stacks(found)],
        "numbers": len(found.runs.numbers) if found.runs else 0,
        "notes": list(found.notes),
    }


def _lines(found: "Calibration") -> list[str]:
    """What was learnt and how much it is worth, a line for each framework."""
    from traincast.learn import describe_stacks

    lines = list(found.notes)
    runs = found.runs
    lines += [
        f"{one.stack}: {one.num_runs} runs of {len(one.models)} models on {', '.join(one.devices)}, up to {one.most_devices} "
        f"devices; mean error {one.error_without:.1%} without runs, {one.error_with:.1%} with the others, each left out in turn"
        for one in describe_stacks(found)
    ]
    if runs and runs.numbers:
        counts = {
            words: sum(any(name.startswith(start) for name in one.gaps) for one in runs.numbers)
            for words, start in (
                ("memory", "memory"),
                ("GPU utilisation", "gpu_mean"),
                ("network", ("received", "sent")),
            )
        }
        told = ", ".join(f"{words} of {count} runs" for words, count in counts.items() if count)
        lines.append(f"also learned, pooled: {told}")
    return lines
