"""`python -m research.papers`: the comparisons of the source papers on our corpus and on measured GPU steps (minutes)."""

import argparse
import sys
from pathlib import Path

from research.corpus import load_corpus
from research.output import say, splice_into
from research.papers import compare_papers
from research.papers.gpu_steps import CASES, gpu_steps_are_here, read_gpu_steps
from research.papers.report import format_papers, format_papers_markdown
from traincast.report import format_json


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m research.papers", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--markdown", type=Path, help="write the tables into the marked part of this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    steps = read_gpu_steps() if gpu_steps_are_here() else []
    if not steps:
        sys.stderr.write(f"measured GPU steps are left out: there is no {CASES}\n")
    found = compare_papers(load_corpus(), seeds=range(options.seeds), gpu_steps=steps, say=_tell)
    if options.markdown is not None:
        splice_into(options.markdown, format_papers_markdown(found))
    say(format_json(found) if options.json else format_papers(found))
    return 0


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
