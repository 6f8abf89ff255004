"""Fits the constants of each software stack in case tables and writes the file that ships with the package.

Run: make fit-stacks, or python -m research.fits.stacks CASES... -o src/traincast/cost/weights/stacks.json
"""

import argparse
import math
import sys
from collections.abc import Sequence

import numpy as np

from traincast.accuracy.cases import Case, Measured, hide_results, parse_case, parse_observation, read_rows
from traincast.accuracy.translate import translate
from traincast.accuracy.translate.workload import stack_name
from traincast.cost.pricing import Pricing, default_ops
from traincast.cost.stack import Stack, read_constants
from traincast.errors import TraincastError
from traincast.files import write_json
from traincast.forecast.tune import KnownStep, know_step, tune

MAX_ROWS = 160
FOLD_ROWS = 90
ROUNDS, FOLD_ROUNDS = 12, 8
"""With fewer, latencies and rates of links are still on their way from the prior when the fit stops (nanotron)."""
MAX_FOLDS = 6
MIN_ROWS = 4


def load_measured(paths: Sequence[str]) -> list[Measured]:
    """Every clean row with a step time; rows that cannot be read are left to `traincast accuracy` to name."""
    found: list[Measured] = []
    for path in paths:
        rows = read_rows(path)
        for row, hidden in zip(rows, hide_results(rows), strict=True):
            try:
                observation = parse_observation(row)
                if observation.scores_time and observation.step_s:
                    found.append(Measured(case=parse_case(hidden), step_s=observation.step_s))
            except TraincastError:
                continue
    return found


def thin(rows: Sequence[Measured]) -> list[Measured]:
    """Evenly over models and devices first, then over the table."""
    groups: dict[tuple[str | None, str | None], list[Measured]] = {}
    for row in rows:
        groups.setdefault((row.case.model, row.case.gpu), []).append(row)
    share = max(1, MAX_ROWS // len(groups))
    picked: list[Measured] = []
    for own in groups.values():
        places = np.linspace(0, len(own) - 1, min(share, len(own))).round().astype(int)
        picked += [own[place] for place in dict.fromkeys(places.tolist())]
    return picked


def fit_stack(rows: Sequence[Measured]) -> dict[str, object]:
    """Constants fitted to the rows, with the error left by folds over models: how they do on a model never seen."""
    known: list[tuple[Case, KnownStep]] = []
    for row in rows:
        try:
            asked = translate(row.case)
            step = know_step(asked.job, asked.cluster, asked.parallelism, row.step_s, costs=Pricing(ops=default_ops()))
        except TraincastError:
            continue
        known.append((row.case, step))
    tuned = tune(Stack(), [step for _, step in known], rounds=ROUNDS, max_steps=MAX_ROWS)
    before = _errors(Stack(), known)
    models = sorted({case.model or "" for case, _ in known})
    folds = (
        models
        if len(models) <= MAX_FOLDS
        else [models[i] for i in np.linspace(0, len(models) - 1, MAX_FOLDS).round().astype(int)]
    )
    left: list[float] = []
    for model in folds:
        rest = [step for case, step in known if (case.model or "") != model]
        own = [(case, step) for case, step in known if (case.model or "") == model]
        left += _errors(tune(Stack(), rest, rounds=FOLD_ROUNDS, max_steps=FOLD_ROWS) if rest else Stack(), own)
    own_folds = [(case, step) for case, step in known if (case.model or "") in folds]
    untuned = _errors(Stack(), own_folds)
    if _mean_error(left) >= _mean_error(untuned):
        # Constants that do not carry over to a model left out are not shipped.
        tuned, left = Stack(), untuned
    # Wide enough for a model never seen: the constants know nothing about its own error.
    spread = float(np.quantile(np.abs(left), 0.9)) / 1.645
    return {
        **read_constants(tuned),
        "pass_s": 0.0,
        "spread": max(0.05, spread),
        "num_steps": len(known),
        "mean_error_before": _mean_error(before),
        "mean_error_model_left_out": _mean_error(left),
        "models": len(models),
    }


def _errors(stack: Stack, known: Sequence[tuple[Case, KnownStep]]) -> list[float]:
    """Logarithms of measured over predicted."""
    return [math.log(step.seconds / step.predict(stack)) for _, step in known]


def _mean_error(errors: Sequence[float]) -> float:
    """The mean of |predicted - measured| / measured."""
    return float(np.mean(np.abs(np.expm1(-np.array(errors)))))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("-o", "--output", required=True)
    options = parser.parse_args(arguments)
    groups: dict[str, list[Measured]] = {}
    for row in load_measured(options.cases):
        name = stack_name(row.case)
        if name != "pytorch":
            # Plain PyTorch is what the op models themselves are fitted to; its constants stay at their priors.
            groups.setdefault(name, []).append(row)
    stacks: dict[str, object] = {}
    for name, rows in sorted(groups.items()):
        if len(rows) >= MIN_ROWS:
            stacks[name] = fit_stack(thin(rows))
            sys.stdout.write(f"{name}: {stacks[name]}\n")
            sys.stdout.flush()
    write_json(options.output, {"fitted_by": "python -m research.fits.stacks", "stacks": stacks}, indent=1)


if __name__ == "__main__":
    main()
