"""What three minutes of measuring bring: the error of steps of models that were not fitted, before and after.

    python benchmarks/calibrate.py                       # one node: about 6 minutes
    python benchmarks/calibrate.py --workers             # and then DDP on the test-bed (root): about 10 minutes more
    python benchmarks/calibrate.py --budget 20 --models 12 --tests 6 --rounds 1      # a short look

One node: `calibrate_machine` chooses, measures and fits within the budget; whole architectures are kept back by name, and what
they take is measured on time of its own. Machines drift: after the calibration the steps kept back are measured again, in
rounds in which they alternate with steps that were fitted. What the fitted ones have gained or lost in common since they were
fitted is the drift; errors are stated as measured, and with that one factor of each round removed.

Workers: the calibration above prices the computing. In another budget of the same length DDP steps of fitted models run on 2 and
4 nodes of a quarter of a core each, joined by 1 Gbit/s, and show what synchronising costs. Models kept back are visited between
them, on time of their own, in six rounds (three passes over the settings); what a step took is the median of its rounds.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from traincast.learn import (
    Candidates,
    CheckedStep,
    Load,
    MeasuringSetup,
    Outcome,
    calibrate_machine,
    calibrate_workers,
    corpus_candidates,
    find_worker_settings,
    observed_seconds,
    save_calibration,
    team_on_testbed,
)
from traincast.profile import (
    TOO_LARGE,
    Protocol,
    Steadiness,
    describe,
    make_canary,
    measure,
    require_root,
    steady,
    subject_of,
)
from traincast.spec import Calibration, MachineRates, Measurement
from traincast.store import Store

QUICK = Protocol(num_rounds=3, block_s=0.03, warm_up_s=0.005)
NUM_MARKERS = 8
WORKER_SETTINGS = ("2x1gbit", "4x1gbit")


def score(predicted: "Sequence[float]", measured: "Sequence[float]") -> dict[str, float]:
    errors = np.abs(np.asarray(predicted) / np.asarray(measured) - 1)
    return {
        "cases": float(len(errors)), "mean": float(errors.mean()), "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
    }  # fmt: skip


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def one_node(options: argparse.Namespace) -> tuple[dict[str, object], Outcome, Candidates]:
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
    answer = {
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
    return answer, outcome, candidates


def forecasts(calibration: MachineRates, loads: "Sequence[Load]") -> list[float]:
    return [calibration.step_seconds(load.ops, load.counts) for load in loads]


def workers(options: argparse.Namespace, outcome: Outcome, candidates: Candidates) -> dict[str, object]:
    require_root()
    known = [load for load in candidates.loads if load.is_step and load.experiment.name not in TOO_LARGE]
    tests = [load for load in candidates.held_out if load.experiment.name not in TOO_LARGE][: options.worker_tests]
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store(options.store)) if options.store else None
        found = calibrate_workers(
            outcome.calibration, known, tests, settings=find_worker_settings(WORKER_SETTINGS),
            open_team=functools.partial(team_on_testbed, store=store), budget_s=options.budget,
            num_passes=options.passes, num_rounds=options.worker_rounds, say=tell,
        )  # fmt: skip
    if options.out:
        save_calibration(Calibration(name=found.calibration.name, machine=found.calibration), options.out)
    rates = found.calibration.collectives["all_reduce"]
    return {
        "fitted steps": found.num_steps,
        "measuring_s, and with the check": (round(found.measuring_s, 1), round(time.monotonic() - started, 1)),
        "in sample, one block each": {
            "cases": found.in_sample.num_cases, "mean": found.in_sample.mean, "median": found.in_sample.median,
        },
        "unseen models, before": {
            "cases": found.before.num_cases, "mean": found.before.mean, "median": found.before.median,
        },
        "unseen models": off_by(found.checked),
        **{
            f"unseen models, {setting}": off_by([step for step in found.checked if step.setting == setting])
            for setting in found.by_setting
        },
        "unseen models, their first block only": score(
            [step.forecast_s for step in found.checked], [step.blocks_s[0] for step in found.checked]
        ),
        "noise of what unseen models took": found.noise,
        "wall scale": found.calibration.step_wall_scale,
        "all-reduce": {
            "ms of a bucket": 1e3 * rates.call_s, "ms of a hop": 1e3 * rates.hop_s,
            "CPU ns of a byte": 1e9 * rates.cpu_s_per_byte, "CPU us of a tensor": 1e6 * rates.cpu_s_per_tensor,
            "share of the link": rates.link_efficiency,
        },
        "each": {
            f"{step.name} {step.setting}": f"{step.forecast_s / step.seconds - 1:+.1%} of {step.seconds * 1e3:.0f} ms"
            for step in found.checked
        },
        "not measured": found.unmeasured,
    }  # fmt: skip


def off_by(steps: Sequence[CheckedStep]) -> dict[str, float]:
    return score([step.forecast_s for step in steps], [step.seconds for step in steps])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=180.0, help="seconds of measuring")
    parser.add_argument("--models", type=int, default=96)
    parser.add_argument("--tests", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--workers", action="store_true", help="and DDP on the test-bed; needs root")
    parser.add_argument("--worker-tests", type=int, default=12, help="models kept back, each in every setting")
    parser.add_argument("--passes", type=int, default=3, help="over the settings of the test-bed")
    parser.add_argument("--worker-rounds", type=int, default=2, help="in each pass")
    parser.add_argument("--store", type=Path, help="keep the blocks of the test-bed")
    parser.add_argument("--out", type=Path, help="keep the calibration of the workers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    answer: dict[str, object] = {}
    answer["one node"], outcome, candidates = one_node(options)
    if options.workers:
        answer["workers"] = workers(options, outcome, candidates)
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
