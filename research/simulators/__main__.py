"""`python -m research.simulators`: our schedules beside those of published simulators, job by job."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from research.output import say, splice_into
from traincast.errors import TraincastError
from traincast.report.document import format_json
from traincast.report.schedule import format_agreement, format_agreement_markdown
from traincast.schedule.agreement import not_replayed, reference_runs


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m research.simulators", description=__doc__)
    parser.add_argument("--references", type=Path, default=Path("../shared/data/sched_refs"), help="reference runs")
    parser.add_argument("--markdown", type=Path, help="write the table into the marked part of this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        rows = [run() for run in reference_runs(options.references)]
    except TraincastError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.markdown is not None:
        splice_into(options.markdown, format_agreement_markdown(rows))
    say(format_json(rows) if options.json else format_agreement(rows, not_replayed(options.references)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
