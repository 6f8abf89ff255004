"""Scores what people type: rows of case tables asked by the `traincast forecast` command that `batch --commands` writes.

Run: python benchmarks/commands.py [ROWS_PER_FRAMEWORK]
"""

import contextlib
import io
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from traincast.__main__ import main
from traincast.accuracy import hide_results, parse_case, read_rows, translate
from traincast.accuracy._cases import parse_observation
from traincast.cli.questions import write_command

CASES = Path(__file__).parents[2] / "shared" / "cases"
SCORED = ("nanotron", "Megatron-Core", "torchtitan", "Megatron-DeepSpeed", "Composer-FSDP")


def ask(row: dict[str, Any]) -> dict[str, Any]:
    words = write_command(translate(parse_case(row)).question)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([*words[1:], "--json"])
    if code:
        raise SystemExit(f"{' '.join(words)} ended with {code}")
    return json.loads(printed.getvalue())  # type: ignore[no-any-return]


def score(num_rows: int) -> None:
    rows = defaultdict(list)
    for path in sorted(CASES.glob("*.parquet")):
        for row in read_rows(path):
            if parse_observation(row).scores_time:
                rows[row["framework"]].append(row)
    print(f"{'framework':20} rows  mean error  interval holds  said to fit")
    for name in SCORED:
        own = sorted(rows[name], key=lambda row: str(row["case_id"]))
        picked = own[:: max(1, len(own) // num_rows)][:num_rows]
        answers = [ask(row) for row in hide_results(picked)]
        steps = [parse_observation(row).step_s or 0.0 for row in picked]
        errors = [abs(one["step"]["seconds"] / step - 1) for one, step in zip(answers, steps, strict=True)]
        holds = [
            one["step"]["low_s"] <= step <= one["step"]["high_s"] for one, step in zip(answers, steps, strict=True)
        ]
        fits = [one["memory"]["fits"] for one in answers]
        shares = [sum(values) / len(picked) for values in (errors, holds, fits)]
        print(f"{name:20} {len(picked):4}  {shares[0]:10.1%}  {shares[1]:14.0%}  {shares[2]:11.0%}")


if __name__ == "__main__":
    score(int(sys.argv[1]) if len(sys.argv) > 1 else 24)
