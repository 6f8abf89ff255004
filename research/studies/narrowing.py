"""Whether a measured run narrows an interval as far as the answer said: python -m research.studies.narrowing [--jobs N]

Of every source up to N jobs (a model on a device in a precision) with several runs are taken, evenly over the table. The
smallest run is given as `--given` gives it, and up to three others are asked about before and after. Needs the measured cases in
../shared.
"""

import argparse
import math
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from research.output import splice_into
from research.studies.given import load
from traincast.accuracy import (
    Prediction,
    Row,
    answer_rows,
    hide_results,
    learn_rows,
    parse_case,
    parse_observation,
    translate,
)
from traincast.errors import TraincastError
from traincast.forecast import GIVEN_JOB, Engine

MOST_ASKED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """One run that was asked about before and after another of the same job was given. Widths are shares of the forecast."""

    source: str
    before: float
    promised: float
    """As the answer says it; that before where it promises nothing."""
    after: float
    held_before: bool
    held_after: bool


BEGIN, END = "<!-- made by research.studies.narrowing -->", "<!-- end of what narrowing made -->"
QUESTIONS = (
    "gpt3-13b --gpus 64xa100-80g --stack megatron-deepspeed --tensor 8 -b 2",
    "resnet50 --gpus 4xmi300x -b 128",
    "mixtral-8x7b --gpus 16xh200 --stack megatron-core",
)
"""A new device, network and precision of a known stack; a new architecture; a new device."""
SURE = r"90% sure of.*?% wide"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--markdown", type=Path, help="page whose answers and table are made again")
    options = parser.parse_args(arguments)
    found = [one for own in list_jobs(options.jobs) for one in give(own)]
    text = f"{tabulate_answers()}\n\n{INTRODUCTION.format(jobs=options.jobs)}\n\n{tabulate(found)}"
    sys.stdout.write(f"{text}\n")
    if options.markdown:
        splice_into(options.markdown, text, begin=BEGIN, end=END)


INTRODUCTION = (
    "Against real runs (`python -m research.studies.narrowing --jobs {jobs} --markdown docs/theory/certainty.md`): the smallest "
    "run of a job is given as `--given` does it, others of the job are asked before and after. Widths are medians."
)


def tabulate_answers() -> str:
    """What the command says to each question."""
    rows = ["| question | says |", "|---|---|"]
    for words in QUESTIONS:
        command = [sys.executable, "-m", "traincast", "forecast", *words.split()]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        said = re.search(SURE, " ".join(printed.split()))
        rows.append(f"| `traincast forecast {words}` | {said.group() if said else '-'} |")
    return "\n".join(rows)


def tabulate(found: Sequence[Narrowed]) -> str:
    lines = [
        "| source | runs | width before | promised after | real after | holds before | holds after |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in [*sorted({one.source for one in found}), ""]:
        own = [one for one in found if not name or one.source == name]
        widths = " | ".join(
            f"{np.median([getattr(one, what) for one in own]):.0%}" for what in ("before", "promised", "after")
        )
        held = " | ".join(
            f"{np.mean([getattr(one, what) for one in own]):.0%}" for what in ("held_before", "held_after")
        )
        lines.append(f"| {name or 'all'} | {len(own)} | {widths} | {held} |")
    return "\n".join(lines)


def list_jobs(most: int) -> list[list[Row]]:
    """Runs of one job each, the smallest first."""
    measured, rows = load()
    jobs: dict[str, dict[tuple[str, ...], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for one in measured:
        case = one.case
        key = str(case.framework), str(case.model), str(case.gpu), str(case.dtype)
        jobs[case.source][key].append(rows[case.case_id])
    picked: list[list[Row]] = []
    for own in jobs.values():
        several = [runs for runs in own.values() if len({_size(run) for run in runs}) > 1]
        places = sorted({round(x) for x in np.linspace(0, len(several) - 1, most)}) if several else []
        picked += [sorted(several[place], key=_size) for place in places]
    return picked


def _size(row: Row) -> tuple[float, ...]:
    return tuple(float(row.get(name) or 0) for name in ("n_gpus", "global_batch", "seq_len"))


def give(runs: Sequence[Row]) -> list[Narrowed]:
    given, others = runs[0], [run for run in runs if _size(run) != _size(runs[0])]
    asked = [others[place] for place in sorted({round(x) for x in np.linspace(0, len(others) - 1, MOST_ASKED)})]
    try:
        before = answer_rows(asked)
        after = answer_rows(asked, calibration=learn_rows([given], asked))
        promised = [_promise(row) for row in asked]
    except TraincastError as error:
        sys.stderr.write(f"{given.get('case_id')}: {error}\n")
        return []
    return [
        Narrowed(
            source=str(row["source"]), before=_width(first), promised=_width(first) if math.isnan(said) else said,
            after=_width(second), held_before=_holds(row, first), held_after=_holds(row, second),
        )
        for row, first, second, said in zip(asked, before, after, promised, strict=True)
        if first.step_s and second.step_s
    ]  # fmt: skip


def _promise(row: Row) -> float:
    question = translate(parse_case(hide_results([row])[0]))
    answer = Engine().forecast(question.job, question.cluster, question.parallelism)
    return next((one.width_after for one in answer.narrowing if one.given == GIVEN_JOB), math.nan)


def _width(one: Prediction) -> float:
    return ((one.step_high_s or 0.0) - (one.step_low_s or 0.0)) / (one.step_s or 1.0)


def _holds(row: Row, one: Prediction) -> bool:
    measured = parse_observation(row).step_s or math.nan
    return (one.step_low_s or 0.0) <= measured <= (one.step_high_s or 0.0)


if __name__ == "__main__":
    main()
