"""What three minutes of measuring bring: the error of steps of models that were not fitted, before and after.

    python benchmarks/calibrate.py                       # one node: about 6 minutes
    python benchmarks/calibrate.py --budget 20 --models 12 --tests 6 --rounds 1      # a short look

One node: `calibrate_machine` chooses, measures and fits within the budget; whole architectures are kept back by name, and what
they take is measured on time of its own. Machines drift: after the calibration the steps kept back are measured again, in
rounds in which they alternate with steps that were fitted. What the fitted ones have gained or lost in common since they were
fitted is the drift; errors are stated as measured, and with that one factor of each round removed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from traincast.learn import CalibrationLoad, MeasuringSetup, calibrate_machine, corpus_candidates
from traincast.learn._loads import observed_seconds
from traincast.profile import Protocol, Steadiness, describe, make_canary, measure, steady, subject_of
from traincast.spec import MachineRates, Measurement
from traincast.store import Store

QUICK = Protocol(num_rounds=3, block_s=0.03, warm_up_s=0.005)
NUM_MARKERS = 8


def score(predicted: "Sequence[float]", measured: "Sequence[float]") -> dict[str, float]:
    errors = np.abs(np.asarray(predicted) / np.asarray(measured) - 1)
    return {
        "cases": float(len(errors)), "mean": float(errors.mean()), "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
    }  # fmt: skip


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def one_node(options: argparse.Namespace) -> dict[str, object]:
    tell("recording the steps of our architectures")
    candidates = corpus_candidates(num_models=options.models, num_held_out=options.tests)
    with (
        tempfile.TemporaryDirectory() as folder,
        steady(Steadiness(cores=(max(os.sched_getaffinity(0)),), num_threads=1)) as steadiness,
        Store(Path(folder) / "measured.db") as store,
    ):
        environment = describe(steadiness=steadiness)
        setup = MeasuringSetup(
            store=store, environment=environment, protocol=QUICK, canary=make_canary(),
            prepare=lambda loads: [subject_of(load.experiment, device="cpu") for load in loads],
        )  # fmt: skip
        outcome = calibrate_machine(candidates, setup, name="benchmark", budget_s=options.budget, say=tell)
        found = {each.experiment.key: observed_seconds(each) for each in store.measurements(subject="step")}
        markers = [load for load in candidates.loads if load.is_step and load.experiment.key in found][:NUM_MARKERS]
        raw: dict[str, list[float]] = {load.experiment.key: [] for load in candidates.held_out}
        steadied: dict[str, list[float]] = {key: [] for key in raw}
        drifts = []
        for number in range(options.rounds):
            tell(f"round {number + 1} of {options.rounds}: steps kept back, between steps that were fitted")
            subjects = [subject_of(load.experiment, device="cpu") for load in (*markers, *candidates.held_out)]
            visits = measure(subjects, protocol=Protocol(num_rounds=1, block_s=0.1, warm_up_s=0.005, seed=number))
            took = {
                visit.experiment.key: observed_seconds(
                    Measurement(experiment=visit.experiment, environment=environment, blocks=(visit.block,))
                )
                for visit in visits
                if visit.block is not None
            }
            changes = [took[load.experiment.key] / found[load.experiment.key] for load in markers]
            drifts.append(statistics.median(changes))
            for key in raw:
                if key in took:
                    raw[key].append(took[key])
                    steadied[key].append(took[key] / drifts[-1])
    checked = [load for load in candidates.held_out if raw[load.experiment.key]]
    predicted = forecasts(outcome.calibration, checked)
    return {
        "measuring_s": outcome.measuring_s,
        "operators": outcome.num_operators,
        "steps": outcome.num_steps,
        "before, during the calibration": {
            "cases": outcome.before.num_cases,
            "mean": outcome.before.mean,
            "median": outcome.before.median,
        },
        "after, during the calibration": {
            "cases": outcome.after.num_cases,
            "mean": outcome.after.mean,
            "median": outcome.after.median,
        },
        "after, measured later": score(predicted, [statistics.median(raw[each.experiment.key]) for each in checked]),
        "after, drift removed": score(
            predicted, [statistics.median(steadied[each.experiment.key]) for each in checked]
        ),
        "drift of each round": drifts,
    }


def forecasts(calibration: MachineRates, loads: "Sequence[CalibrationLoad]") -> list[float]:
    return [calibration.step_seconds(load.ops, load.counts) for load in loads]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=180.0, help="seconds of measuring")
    parser.add_argument("--models", type=int, default=96)
    parser.add_argument("--tests", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    answer: dict[str, object] = {"one node": one_node(options)}
    if options.json:
        print(json.dumps(answer, indent=1))
        return 0
    for part, lines in answer.items():
        print(part)
        for name, value in dict(lines).items():  # type: ignore[call-overload]
            if isinstance(value, dict) and "mean" in value:
                rest = "".join(f"  {key} {each:6.1%}" for key, each in value.items() if key != "cases")
                print(f"  {name:38} n {value['cases']:3.0f}{rest}")
            elif name == "each":
                print(*(f"    {step:56} {off}" for step, off in value.items()), sep="\n")
            else:
                print(f"  {name:38} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
