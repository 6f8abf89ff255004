"""`traincast batch`: a table of cases in, a table of answers out."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from traincast.cli import options
from traincast.cli.learned import CalibrationOption, GivenOption, load_learned
from traincast.cli.output import say


def batch(
    cases: Annotated[Path, typer.Argument(help="Case table (.parquet or .csv).", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the predictions go (.parquet or .csv).", show_default=False)
    ],
    calibration: CalibrationOption = None,
    given: GivenOption = None,
    source: options.OnlySources = None,
    workers: options.Workers = 0,
    engine: options.Engine = "processes",
    json: options.Json = False,
) -> None:
    """Answer a whole table of cases: one row each with step time, 90% interval, memory, fits, status and shares.

    Columns named measured_* are never looked at. A row that cannot be answered says why and stops no other.
    """
    from traincast.accuracy.predictions import check_target

    check_target(output)

    from traincast.accuracy.batch import LONG_TABLE, answer_rows, choose_workers
    from traincast.accuracy.cases import hide_results, keep_sources, read_rows
    from traincast.accuracy.predictions import OK, UNSUPPORTED, write_predictions
    from traincast.accuracy.runs import label_rows
    from traincast.cli.progress import watch
    from traincast.report.document import format_json

    rows = keep_sources(read_rows(cases), source or ())
    asked = label_rows(hide_results(rows)) if given is not None and len(rows) < LONG_TABLE else None
    predictions = answer_rows(
        rows,
        calibration=load_learned(calibration, given, asked=asked),
        progress=lambda items: watch(items, label="cases"),
        workers=workers if engine == "ray" else workers or choose_workers(len(rows)),
        engine=engine,
    )
    write_predictions(predictions, output)
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
