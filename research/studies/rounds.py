"""MLPerf by family as shipped, without its round, and without all rounds: python -m research.studies.rounds [CASES]...

What is fitted to whole runs is fitted again without the rows of the round that is asked about (or of any round): host constants
of the stack, to runs of the same stack in other rounds, else those that a framework is expected to have by the stacks of others.
The two constants of sustained kernels were chosen without a row of MLPerf. Every clean row is asked with nothing given.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from research.fits.stacks import load_measured
from research.fits.untaught import fit_without, forget, publisher_of
from research.studies.left_out import CASES, TABLES
from traincast.accuracy import Measured, hide_results, parse_case, parse_observation, read_rows, translate
from traincast.errors import TraincastError
from traincast.forecast import Engine
from traincast.spec import Stack

PUBLISHER = "mlperf"
WAYS = ("shipped", "round", "publisher")
FAMILIES = {
    "transformer-lm": "LLM and LoRA", "transformer-enc": "BERT", "cnn": "vision and speech", "detection": "vision and speech",
    "segmentation": "vision and speech", "speech-rnn": "vision and speech",
    "recsys": "DLRM", "diffusion": "diffusion", "gnn": "GNN",
}  # fmt: skip
AIMS = {"LLM and LoRA": 0.12, "BERT": 0.20, "vision and speech": 0.30, "DLRM": 0.40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One row, by how its stack was fitted: forecast over measured, minus one."""

    source: str
    family: str
    model: str
    errors: Mapping[str, float]


def ask_rows(rows: Sequence[Mapping[str, Any]], measured: Sequence[Measured]) -> list[Scored]:
    engine = Engine()
    stacks: dict[tuple[str, str, str], Stack] = {}
    scored = []
    for row, hidden in zip(rows, hide_results(rows), strict=True):
        try:
            seen = parse_observation(row)
            if not (seen.scores_time and seen.step_s):
                continue
            question = translate(parse_case(hidden))
            source = str(row["source"])
            errors = {}
            for way in WAYS:
                key = way, source if way == "round" else "", question.job.stack.name
                if key not in stacks:
                    stacks[key] = _refit(question.job.stack, way, source, measured)
                job = forget(question.job, stacks[key], PUBLISHER)
                program = engine.lower(job, question.cluster, question.parallelism)
                estimates = engine.cost(program, job, question.cluster)
                timeline = engine.simulate(program, estimates, job, question.cluster)
                errors[way] = timeline.duration_s / seen.step_s - 1
        except TraincastError as error:
            sys.stderr.write(f"{row.get('case_id')}: {error}\n")
            continue
        family = FAMILIES.get(str(row["family"]), str(row["family"]))
        scored.append(Scored(source=source, family=family, model=str(row["model"]), errors=errors))
    return scored


def _refit(stack: Stack, way: str, source: str, measured: Sequence[Measured]) -> Stack:
    if way == "shipped" or not stack.num_steps:
        return stack
    if way == "publisher":
        return fit_without(stack, PUBLISHER, measured)
    return fit_without(stack, "", [row for row in measured if row.case.source != source])


def table(scored: Sequence[Scored]) -> list[str]:
    """Medians of |error| by family and by model, with the round's own n, mean, p90 and bias where it was left out."""
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for one in scored:
        groups[one.family, ""].append(one)
        groups[one.family, one.model].append(one)
        groups["all", ""].append(one)
    lines = [
        "| family | model | n | aim | median shipped | round left out | all left out | mean, round left out | p90 | bias |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (family, model), own in sorted(groups.items()):
        aim = AIMS.get(family)
        medians = [float(np.median(np.abs([one.errors[way] for one in own]))) for way in WAYS]
        left = np.array([one.errors["round"] for one in own])
        lines.append(
            f"| {family} | {model or 'all'} | {len(own)} | {'' if aim is None else f'{aim:.0%}'} | "
            + " | ".join(f"{median:.1%}" for median in medians)
            + f" | {np.mean(np.abs(left)):.1%} | {np.quantile(np.abs(left), 0.9):.1%} | {np.mean(left):+.1%} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[str(CASES / f"{name}.parquet") for name in TABLES])
    options = parser.parse_args(arguments)
    measured = load_measured(options.cases)
    rows = [
        row for path in options.cases for row in read_rows(path) if publisher_of(str(row.get("source"))) == PUBLISHER
    ]
    sys.stdout.write("\n".join(table(ask_rows(rows, measured))) + "\n")


if __name__ == "__main__":
    main()
