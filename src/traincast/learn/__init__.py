"""Measurements and measured runs to a calibration: of one machine, or of the stacks that ran."""

from traincast.cost.calibrated import Calibrated, choose_costs
from traincast.learn.calibrations import (
    calibrations_folder,
    load_calibration,
    rates_of,
    save_calibration,
    to_machine_rates,
)
from traincast.learn.choose import choose_loads, expected_cost_s, measuring_cost_s
from traincast.learn.collectives import fit_collectives
from traincast.learn.fit import Amounts, Fit, Peaks, refit, start_fit
from traincast.learn.loads import (
    Candidates,
    Load,
    capture_step,
    corpus_candidates,
    is_held_out,
    observed_seconds,
    operator_load,
    operators_of,
    step_load,
)
from traincast.learn.machine import (
    Outcome,
    Score,
    anchors,
    calibrate_machine,
    find_peaks,
    keep,
    run_subjects,
    seconds_by_key,
)
from traincast.learn.runs import learn, without_runs
from traincast.learn.synchronization import (
    CheckedStep,
    WorkerOutcome,
    calibrate_workers,
    find_worker_settings,
    gradients_of,
    synced_step,
    team_on_testbed,
)

__all__ = [
    "Amounts",
    "Calibrated",
    "Candidates",
    "CheckedStep",
    "Fit",
    "Load",
    "Outcome",
    "Peaks",
    "Score",
    "WorkerOutcome",
    "anchors",
    "calibrate_machine",
    "calibrate_workers",
    "calibrations_folder",
    "capture_step",
    "choose_costs",
    "choose_loads",
    "corpus_candidates",
    "expected_cost_s",
    "find_peaks",
    "find_worker_settings",
    "fit_collectives",
    "gradients_of",
    "is_held_out",
    "keep",
    "learn",
    "load_calibration",
    "measuring_cost_s",
    "observed_seconds",
    "operator_load",
    "operators_of",
    "rates_of",
    "refit",
    "run_subjects",
    "save_calibration",
    "seconds_by_key",
    "start_fit",
    "step_load",
    "synced_step",
    "team_on_testbed",
    "to_machine_rates",
    "without_runs",
]  # fmt: skip
