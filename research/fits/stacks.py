"""Fits the constants of each software stack in case tables and writes them into the stack documents that ship with the package.

Run: make fit-stacks, or python -m research.fits.stacks CASES...
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from research.fits.tune import KnownStep, know_step, tune
from traincast.accuracy import hide_results, parse_case, read_rows, translate
from traincast.accuracy._cases import Case, Measured, parse_observation
from traincast.accuracy._translate import read_stack
from traincast.catalog import read_stack as read_document
from traincast.catalog import stack, stack_names
from traincast.catalog._stacks import DOCUMENTS
from traincast.cost import TUNABLE, Pricing, default_ops, read_constants
from traincast.errors import TraincastError
from traincast.files import write_whole
from traincast.spec import Stack
from traincast.units import NORMAL_90

MAX_ROWS = 160
FOLD_ROWS = 90
ROUNDS, FOLD_ROUNDS = 12, 8
"""With fewer, latencies and rates of links are still on their way from the prior when the fit stops (nanotron)."""
MAX_FOLDS = 6
MOVED = 0.05
"""Of the log of a constant."""
UNMEASURED = ("deepspeed", "hf-trainer", "large-models", "lightning", "litgpt", "torchtune")
"""Frameworks around PyTorch's own calls without runs of their own."""
GRAPH_RUNTIMES = ("maxtext", "nvidia-dle-tensorflow", "tensorflow")
"""Programs whose hosts run graphs; they say nothing about what a framework adds to PyTorch's calls."""
MIN_ROWS = 4
UNTRUSTED_SOURCES, UNTRUSTED_MODELS = ("sia_azure",), ("yolov3",)
"""Rows that teach no constants: findings/distributed.md calls this cluster unlike all others and this model noisy."""
FITTED = {name: width for name, width in TUNABLE.items() if not name.endswith("_factor")}
"""A document of the catalogue says what a stack's host and library cost. It may not make kernels or links faster or slower: those
factors are left to what is learnt from a user's own runs."""


def load_measured(paths: Sequence[str]) -> list[Measured]:
    """Every clean row with a step time; rows that cannot be read are left to `traincast accuracy` to name."""
    found: list[Measured] = []
    for path in paths:
        rows = read_rows(path)
        for row, hidden in zip(rows, hide_results(rows), strict=True):
            try:
                observation = parse_observation(row)
                case = parse_case(hidden)
                trusted = case.source not in UNTRUSTED_SOURCES and case.model not in UNTRUSTED_MODELS
                if observation.scores_time and observation.step_s and trusted:
                    found.append(Measured(case=case, step_s=observation.step_s))
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
    tuned = tune(Stack(), [step for _, step in known], rounds=ROUNDS, max_steps=MAX_ROWS, spreads=FITTED)
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
        left += _errors(
            tune(Stack(), rest, rounds=FOLD_ROUNDS, max_steps=FOLD_ROWS, spreads=FITTED) if rest else Stack(), own
        )
    own_folds = [(case, step) for case, step in known if (case.model or "") in folds]
    untuned = _errors(Stack(), own_folds)
    if _mean_error(left) >= _mean_error(untuned):
        # Constants that do not carry over to a model left out are not shipped.
        tuned, left = Stack(), untuned
    # Wide enough for a model never seen: the constants know nothing about its own error.
    log_sigma = float(np.quantile(np.abs(left), 0.9)) / NORMAL_90
    return {
        **{name: value for name, value in read_constants(tuned).items() if name in FITTED},
        "log_sigma": max(0.05, log_sigma),
        "num_steps": len(known),
        "provenance": f"{len(known)} clean rows of {len(models)} models; mean error with a model left out "
        f"{_mean_error(left):.1%}, before the fit {_mean_error(before):.1%}",
    }


def expect_constants(measured: Sequence[Stack]) -> dict[str, float]:
    """Host constants of a framework that nobody measured: the geometric mean of the prior and of those stacks whose runs moved
    them from it. Runs that wait for the device say nothing about the host, and leave its constants at the prior."""
    prior = read_constants(Stack())
    # Documents that start from a measured one have its constants, which count once; what was expected says nothing.
    found = {
        tuple(sorted(read_constants(each).items()))
        for each in measured
        if each.num_steps and each.name not in GRAPH_RUNTIMES
    }
    moved = [
        dict(constants)
        for constants in sorted(found)
        if abs(math.log(dict(constants)["forward_call_s"] / prior["forward_call_s"])) > MOVED
    ]
    return {name: math.exp(float(np.mean([math.log(one[name]) for one in (prior, *moved)]))) for name in FITTED}


def _errors(stack: Stack, known: Sequence[tuple[Case, KnownStep]]) -> list[float]:
    """Logarithms of measured over predicted."""
    return [math.log(step.seconds / step.predict(stack)) for _, step in known]


def _mean_error(errors: Sequence[float]) -> float:
    """The mean of |predicted - measured| / measured."""
    return float(np.mean(np.abs(np.expm1(-np.array(errors)))))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("-o", "--output", type=Path, default=DOCUMENTS, help="Folder of stack documents.")
    parser.add_argument("--only", nargs="*", default=(), help="Stacks to fit; all if none is named.")
    options = parser.parse_args(arguments)
    groups: dict[str, list[Measured]] = {}
    for row in load_measured(options.cases):
        found = read_stack(row.case, [])
        if not found.is_plain and (not options.only or found.name in options.only):
            # Plain PyTorch is what the op models themselves are fitted to; its constants stay at their priors.
            groups.setdefault(found.name, []).append(row)
    for name, rows in sorted(groups.items()):
        if len(rows) >= MIN_ROWS:
            costs = fit_stack(thin(rows))
            sys.stdout.write(f"{name}: {costs}\n")
            sys.stdout.flush()
            write_costs(options.output / f"{name}.toml", costs)
    if not options.only or set(options.only) & set(UNMEASURED):
        write_expected(options.output)


def write_expected(documents: Path) -> None:
    """What frameworks are expected to cost, into the documents of those that nobody measured. Documents are read afresh."""
    expected = expect_constants(
        [
            each
            for name in stack_names()
            if (each := read_document(DOCUMENTS / f"{name}.toml", name=name)).num_steps and name not in UNMEASURED
        ]
    )
    source = "host costs expected of a framework (python -m research.fits.stacks); habits from its documentation"
    for name in UNMEASURED:
        costs = {**expected, "log_sigma": stack(name).log_sigma, "provenance": f"{source}; no step of it was measured"}
        write_costs(documents / f"{name}.toml", costs)


def write_costs(document: Path, costs: Mapping[str, object]) -> None:
    """Put new constants in the place of a stack document's own."""
    habits = document.read_text().partition("[costs]")[0]
    lines = [f"{name} = {json.dumps(value)}" for name, value in costs.items()]
    write_whole(document, habits + "\n".join(["[costs]", *lines]) + "\n")


if __name__ == "__main__":
    main()
