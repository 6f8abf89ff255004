"""Shows that a refactoring changed no forecast: the same questions to two versions, compared number by number.

python benchmarks/same_answers.py record OUT.jsonl [--source DIR]   answers of the package in DIR/src (default: this tree)
python benchmarks/same_answers.py compare BEFORE.jsonl AFTER.jsonl   numbers must be equal; changed words are counted

Questions: every line of `research/studies/asked.txt`, and twenty rows of each framework of ../shared/cases.
"""

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
CASES = TREE.parent / "shared" / "cases"
ROWS_PER_FRAMEWORK = 20
# A change of words is not a change of forecast: keys and texts of the older version are compared in these words.
RENAMED: dict[str, str] = {}


def sampled_rows() -> "object":
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: dict[str, list[dict]] = {}
    for path in sorted(CASES.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            rows.setdefault(str(row["framework"]), []).append(row)
    chosen = []
    for framework in sorted(rows):
        of_framework = sorted(rows[framework], key=lambda row: str(row["case_id"]))
        stride = max(1, len(of_framework) // ROWS_PER_FRAMEWORK)
        chosen += of_framework[::stride][:ROWS_PER_FRAMEWORK]
    keys = sorted({key for row in chosen for key in row if not key.startswith("measured_")})
    return pa.Table.from_pylist([{key: row.get(key) for key in keys} for row in chosen])


def answers() -> list[dict]:
    import pyarrow.parquet as pq

    from traincast.__main__ import main as traincast

    found = []
    for line in (TREE / "research" / "studies" / "asked.txt").read_text().splitlines():
        command = line.split("|")[0].strip()
        if not command or command.startswith("#"):
            continue
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = traincast([*shlex.split(f"forecast {command}"), "--json"])
        found.append({"question": command, "answer": json.loads(out.getvalue()) if code == 0 else err.getvalue()})
    if CASES.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            table, output = Path(folder, "rows.parquet"), Path(folder, "out.parquet")
            pq.write_table(sampled_rows(), table)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                traincast(["batch", str(table), "-o", str(output), "--workers", "1"])
            found += [{"question": row.get("case_id"), "answer": row} for row in pq.read_table(output).to_pylist()]
    return found


def flat(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{path}/{in_new_words(key)}").items()}
    if isinstance(value, list) and any(isinstance(item, dict | list | int | float) for item in value):
        return {k: v for index, item in enumerate(value) for k, v in flat(item, f"{path}/{index}").items()}
    if isinstance(value, list):
        return {path: in_new_words(json.dumps(value))}
    return {path: in_new_words(value) if isinstance(value, str) else value}


def in_new_words(text: str) -> str:
    for old, new in RENAMED.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text


def compare(before: Path, after: Path) -> int:
    old, new = ([json.loads(line) for line in path.read_text().splitlines()] for path in (before, after))
    by_question = {item["question"]: item["answer"] for item in new}
    numbers, words, same = Counter(), Counter(), 0
    for item in old:
        first, second = flat(item["answer"]), flat(by_question.get(item["question"], "not asked"))
        differing = [path for path in {**first, **second} if first.get(path, "absent") != second.get(path, "absent")]
        text = [path for path in differing if all(isinstance(side.get(path, ""), str) for side in (first, second))]
        values = [path for path in differing if path not in set(text)]
        words.update(re.sub(r"/\d+", "/N", path) for path in text)
        numbers.update(re.sub(r"/\d+", "/N", path) for path in values)
        same += not values
        for path in values[:3]:
            print(f"{item['question']}: {path}: {first.get(path, 'absent')!r} -> {second.get(path, 'absent')!r}")
    print(f"{same} of {len(old)} answers have equal numbers; changed numbers {dict(numbers.most_common(12))}")
    print(f"changed words {dict(words.most_common(12))}")
    return 0 if same == len(old) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("record", "compare", "answer"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--source", type=Path, default=TREE)
    arguments = parser.parse_args()
    if arguments.verb == "compare":
        return compare(*arguments.files)
    if arguments.verb == "record":
        # A child, so that the package of the other tree is the one that is imported.
        environment = {**os.environ, "PYTHONPATH": str(arguments.source.resolve() / "src")}
        command = [sys.executable, __file__, "answer", str(arguments.files[0].resolve())]
        return subprocess.run(command, env=environment, cwd=TREE, check=False).returncode
    arguments.files[0].write_text("".join(json.dumps(item, default=str) + "\n" for item in answers()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
