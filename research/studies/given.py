"""What granting measurements is worth on single splits: python -m research.studies.given [WORDS OF A SPLIT'S NAME]...

Without words every split, as `python -m research.splits --granted` scores it. Needs the measured cases in ../shared.
"""

import sys
import time
from pathlib import Path

from research.splits import SPLITS
from research.splits.study import compare_granted
from traincast.accuracy import Measured, Row, parse_case, parse_observation, read_rows
from traincast.errors import TraincastError

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
TABLES = ("single_gpu", "dp", "llm", "memory")


def load() -> tuple[list[Measured], dict[str, Row]]:
    measured: list[Measured] = []
    rows: dict[str, Row] = {}
    for name in TABLES:
        for row in read_rows(str(CASES / f"{name}.parquet")):
            try:
                case, observation = parse_case(row), parse_observation(row)
            except TraincastError:
                continue
            if observation.scores_time and observation.step_s and case.case_id not in rows:
                measured.append(Measured(case=case, step_s=observation.step_s))
                rows[case.case_id] = row
    return measured, rows


def main(words: list[str]) -> None:
    measured, rows = load()
    for split in SPLITS:
        if words and not any(word.lower() in split.name.lower() for word in words):
            continue
        started = time.process_time()
        for one in compare_granted(split, measured, rows):
            found = one.score
            sys.stdout.write(
                f"{split.name} | {one.method} | n {found.num_answered} | mean {found.mean:.1%} | median {found.median:.1%} | "
                f"bias {found.bias:+.1%} | coverage {found.coverage:.0%}\n"
            )
        sys.stdout.write(f"{time.process_time() - started:.0f} CPU s\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
