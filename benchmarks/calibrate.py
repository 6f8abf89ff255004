"""What three minutes of measuring bring: the error of steps of models that were not fitted, before and after.

    python benchmarks/calibrate.py                       # one node: about 6 minutes
    python benchmarks/calibrate.py --workers             # and then DDP on the test-bed (root): about 5 minutes more
    python benchmarks/calibrate.py --budget 20 --models 12 --tests 6 --rounds 1      # a short look

One node: `calibrate_machine` chooses, measures and fits within the budget; whole architectures are kept back by name, and what
they take is measured on time of its own. Machines drift: after the calibration the steps kept back are measured again, in
rounds in which they alternate with steps that were fitted. What the fitted ones have gained or lost in common since they were
fitted is the drift; errors are stated as measured, and with that one factor of each round removed.

Workers: the calibration above prices the computing. In another budget of the same length DDP steps of fitted models run on 2 and
4 nodes of a quarter of a core each, joined by 1 Gbit/s, and show what synchronising costs; then models kept back are measured,
and the first models once more, for the drift.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from traincast.accuracy.paper.stack import step_seconds, study_graph
from traincast.calibrate import Candidates, Load, Outcome, calibrate_machine, corpus_candidates, observed_seconds
from traincast.cost.sync import Synced, SyncedStep, fit_sync
from traincast.profile.corpus import SETTINGS, TOO_LARGE, Setting
from traincast.profile.machine import Steadiness, describe, make_canary, steady
from traincast.profile.protocol import Protocol, measure
from traincast.profile.remote import subject_of
from traincast.profile.steps import step_experiment
from traincast.profile.team import Team, team_in
from traincast.profile.testbed import EmulatedCluster, emulated, require_root
from traincast.spec.measurement import Calibration, Measurement
from traincast.spec.parallel import Parallelism
from traincast.store import Store

QUICK = Protocol(num_rounds=3, block_s=0.03, warm_up_s=0.005)
ON_TESTBED = Protocol(num_rounds=1, block_s=0.6, min_repeats=3, max_repeats=30, warm_up_runs=2)
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
        outcome = calibrate_machine(
            candidates, name="benchmark", store=store, environment=environment,
            prepare=lambda loads: [subject_of(load.experiment, device="cpu") for load in loads],
            budget_s=options.budget, protocol=QUICK, canary=make_canary(), say=tell,
        )  # fmt: skip
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


def forecasts(calibration: Calibration, loads: "Sequence[Load]") -> list[float]:
    return [calibration.step_seconds(load.ops, load.counts) for load in loads]


def synced_step(load: Load, setting: Setting, calibration: Calibration, seconds: float) -> SyncedStep:
    from traincast.capture.trace import capture
    from traincast.profile.architectures import build_architecture

    model, inputs = build_architecture(load.experiment.name)
    batch = int(load.experiment.attrs["batch"])
    graph = capture(model, inputs(batch), optimizer="adamw", name=load.experiment.name)
    workload = study_graph((load.experiment.name, batch), graph)
    return SyncedStep(
        seconds=seconds, compute_s=calibration.step_seconds(load.ops, load.counts), num_ranks=setting.num_ranks,
        speed=min(node.cpu_share for node in setting.nodes),
        link_bytes_per_s=min(node.bits_per_s for node in setting.nodes) / 8, gradient_bytes=workload.gradient_bytes,
        num_tensors=workload.num_gradients,
        num_buckets=max(1.0, workload.gradient_bytes / Parallelism().bucket_bytes),
    )  # fmt: skip


def visit(team: Team, load: Load, setting: Setting) -> float | None:
    experiment = step_experiment(
        load.experiment.name, batch=int(load.experiment.attrs["batch"]), num_ranks=setting.num_ranks, strategy="ddp",
        network=setting.network,
    )  # fmt: skip
    block = team.visit_watched(experiment, protocol=ON_TESTBED).block
    return None if block is None else statistics.median(block.wall_s)


def workers(options: argparse.Namespace, outcome: Outcome, candidates: Candidates) -> dict[str, object]:
    require_root()
    known = [load for load in candidates.loads if load.is_step and load.experiment.name not in TOO_LARGE]
    tests = [load for load in candidates.held_out if load.experiment.name not in TOO_LARGE][: options.worker_tests]
    fitted: list[SyncedStep] = []
    asked: list[tuple[SyncedStep, float]] = []
    drifts = {}
    for setting in (each for each in SETTINGS if each.name in WORKER_SETTINGS):
        cluster = EmulatedCluster(name=f"b{os.getpid()}"[:12], nodes=setting.nodes)
        with emulated(cluster), team_in(cluster) as team:
            first: list[tuple[Load, float]] = []
            started = time.monotonic()
            for load in known:
                if time.monotonic() - started > options.budget / len(WORKER_SETTINGS):
                    break
                seconds = visit(team, load, setting)
                if seconds is not None:
                    first.append((load, seconds))
            tell(f"{setting.name}: {len(first)} steps fitted; now {len(tests)} kept back")
            found = [(load, visit(team, load, setting)) for load in tests]
            again = [visit(team, load, setting) for load, _ in first[:NUM_MARKERS]]
        changes = [now / then for now, (_, then) in zip(again, first, strict=False) if now]
        # The steps kept back lie between both visits of the markers: half of the way is theirs.
        drifts[setting.name] = statistics.median(changes) ** 0.5
        fitted += [synced_step(load, setting, outcome.calibration, seconds) for load, seconds in first]
        asked += [
            (synced_step(load, setting, outcome.calibration, seconds), drifts[setting.name])
            for load, seconds in found
            if seconds
        ]
    synced = fit_sync(fitted)
    plain = Synced(wall_scale=1.0, rates=synced.rates)
    return {
        "fitted steps": len(fitted),
        "in sample": score([step_seconds(step, synced) for step in fitted], [step.seconds for step in fitted]),
        "unseen models": score([step_seconds(step, synced) for step, _ in asked], [step.seconds for step, _ in asked]),
        "unseen models, drift removed": score(
            [step_seconds(step, synced) for step, _ in asked], [step.seconds / drift for step, drift in asked]
        ),
        "unseen models, computing not scaled": score(
            [step_seconds(step, plain) for step, _ in asked], [step.seconds for step, _ in asked]
        ),
        "drift of each setting": drifts,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=180.0, help="seconds of measuring")
    parser.add_argument("--models", type=int, default=96)
    parser.add_argument("--tests", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--workers", action="store_true", help="and DDP on the test-bed; needs root")
    parser.add_argument("--worker-tests", type=int, default=12)
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
            else:
                print(f"  {name:38} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
