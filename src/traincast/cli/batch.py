"""`traincast batch`: a table of cases in, a table of answers out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli import options
from traincast.cli.learned import CalibrationOption, GivenOption, load_learned
from traincast.cli.output import lead_to, say

if TYPE_CHECKING:
    from traincast.accuracy import Journal, Prediction


def batch(
    cases: Annotated[Path, typer.Argument(help="Case table (.parquet or .csv).", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the predictions go (.parquet or .csv).", show_default=False)
    ],
    calibration: CalibrationOption = None,
    given: GivenOption = None,
    commands: Annotated[
        Path | None,
        typer.Option(
            "--commands",
            help="Write the `traincast forecast` command that asks the same, a line for each row.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run that was stopped left off (OUTPUT.partial).")
    ] = False,
    source: options.OnlySources = None,
    method: options.Method = None,
    workers: options.Workers = 0,
    engine: options.Engine = "processes",
    json: options.Json = False,
) -> None:
    """Answer a whole table of cases: one row each with step time, 90% interval, memory, fits, status and shares.

    Columns named measured_* are never looked at. A row that cannot be answered says why and stops no other. Answers are kept in
    OUTPUT.partial as they are made, and --resume takes them over after a kill.
    """
    from traincast.accuracy import check_target

    check_target(output)

    from traincast.accuracy import keep_sources, read_rows, write_predictions

    rows = options.ask_method(keep_sources(read_rows(cases), source or ()), method)
    learned = options.given(calibration=calibration, given=given)
    journal = _open_journal(output, learned, resume=resume)
    predictions = _answer(rows, learned, journal, workers=workers, engine=engine)
    write_predictions(predictions, output)
    journal.close(done=True)
    if commands is not None:
        _write_commands(rows, commands, [word for name, value in learned.items() for word in (f"--{name}", str(value))])
    _say_outcome(predictions, output, json=json)
    if not json:
        is_measured = any(row.get("measured_step_s") is not None for row in rows)
        lead_to(*(("accuracy", cases) if is_measured else ("batch", cases, "-o", output, "--commands", "commands.txt")))


def _say_outcome(predictions: "Sequence[Prediction]", output: Path, *, json: bool) -> None:
    from traincast.accuracy import OK, UNSUPPORTED
    from traincast.report import format_json

    statuses = Counter(prediction.status for prediction in predictions)
    reasons = Counter(prediction.reason for prediction in predictions if prediction.status == UNSUPPORTED)
    if json:
        say(
            format_json(
                {
                    "output": str(output),
                    "rows": len(predictions),
                    "ok": statuses[OK],
                    "unsupported": statuses[UNSUPPORTED],
                    "reasons": dict(reasons.most_common()),
                }
            )
        )
        return
    say(f"{len(predictions):,} cases: {statuses[OK]:,} answered, {statuses[UNSUPPORTED]:,} unsupported -> {output}")
    for reason, count in reasons.most_common(5):
        say(f"  {count:>6,} x {reason[:140]}")


def _open_journal(output: Path, learned: Mapping[str, Any], *, resume: bool) -> "Journal":
    """What the run learnt from is part of what it answers: a file by its content."""
    import hashlib

    from traincast import __version__
    from traincast.accuracy import Journal, journal_of

    taught = hashlib.sha256()
    for name, value in sorted(learned.items()):
        file = Path(str(value))
        taught.update(f"{name}={value}".encode() + (file.read_bytes() if file.is_file() else b""))
    return Journal(journal_of(output), answers_of=f"traincast {__version__} {taught.hexdigest()[:16]}", resume=resume)


def _answer(
    rows: Sequence[Mapping[str, Any]], learned: Mapping[str, Any], journal: "Journal", *, workers: int, engine: str
) -> "list[Prediction]":
    from traincast.accuracy import answer_rows, choose_workers
    from traincast.cli.progress import watch

    try:
        return answer_rows(
            rows,
            calibration=load_learned(learned.get("calibration"), learned.get("given")),
            progress=lambda items: watch(items, label="cases"),
            workers=workers or choose_workers(len(rows)),
            engine=engine,
            journal=journal,
        )
    except BaseException:
        journal.close(done=False)
        raise


def _write_commands(rows: Sequence[Mapping[str, Any]], file: Path, learned: Sequence[str]) -> None:
    """One line for each row, in order; a row that cannot be asked says why behind a #. `learned`: ends every line."""
    import shlex

    from traincast.accuracy import hide_results, parse_case, translate
    from traincast.cli.questions import write_command
    from traincast.errors import TraincastError
    from traincast.files import write_whole

    lines = []
    for row in hide_results(rows):
        try:
            words = write_command(translate(parse_case(row)).question)
            lines.append(shlex.join(words if "--calibration" in words else [*words, *learned]))
        except TraincastError as error:
            lines.append(f"# {' '.join(str(error).split())}")
    write_whole(file, "\n".join(lines) + "\n")
