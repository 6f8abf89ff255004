"""`python -m research.splits CASES... [--granted]`: our errors beside those of baselines, split by split."""

import argparse
from pathlib import Path

from research.output import say, splice_into
from research.splits.report import format_splits, format_splits_markdown
from research.splits.study import compare
from traincast.accuracy import choose_workers, read_rows, score_rows
from traincast.files import write_whole
from traincast.report import Point, draw_agreement, format_json


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m research.splits", description=__doc__)
    parser.add_argument("cases", nargs="+", type=Path, help="case tables (.parquet or .csv)")
    parser.add_argument("--granted", action="store_true", help="score every split again with its known rows given")
    parser.add_argument("--markdown", type=Path, help="write the tables into the marked part of this file")
    parser.add_argument("--svg", type=Path, help="draw forecast against measurement to this file")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for path in options.cases for row in read_rows(path)]
    scored = score_rows(rows, workers=options.workers or choose_workers(len(rows)))
    found = compare(scored, granted=rows if options.granted else ())
    if options.svg is not None:
        points = [
            Point(measured=row.observation.step_s, forecast=row.prediction.step_s, series=row.case.group or "cases")
            for row in scored
            if row.observation.scores_time and row.observation.step_s and row.prediction.step_s
        ]
        write_whole(options.svg, draw_agreement(points, title="Step time: forecast against measurement"))
    if options.markdown is not None:
        names = ", ".join(path.name for path in options.cases)
        splice_into(
            options.markdown, f"Made by `python -m research.splits` from {names}.\n\n{format_splits_markdown(found)}"
        )
    say(format_json(found) if options.json else format_splits(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
