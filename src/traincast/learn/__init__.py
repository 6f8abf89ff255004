"""Measurements and measured runs to a calibration: of one machine, or of the stacks that ran."""

from typing import TYPE_CHECKING

from traincast.cost import Calibrated, choose_costs
from traincast.facade import load_lazily
from traincast.learn._calibrations import (
    calibrations_folder,
    load_calibration,
    rates_of,
    save_calibration,
    to_machine_rates,
)
from traincast.learn._choose import choose_loads, expected_cost_s, measuring_cost_s
from traincast.learn._collectives import fit_collectives
from traincast.learn._fit import Amounts, Fit, Peaks, refit, start_fit
from traincast.learn._loads import (
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
from traincast.learn._machine import (
    MeasuringSetup,
    Outcome,
    Score,
    anchors,
    calibrate_machine,
    find_peaks,
    keep,
    run_subjects,
    seconds_by_key,
)
from traincast.learn._runs import learn, without_runs
from traincast.learn._synchronization import (
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
    "MeasuringSetup",
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

if TYPE_CHECKING:
    from traincast.learn._levels import MeasuredProduct as MeasuredProduct
    from traincast.learn._levels import believe as believe
    from traincast.learn._levels import learn_levels as learn_levels
    from traincast.learn._levels import parse_product as parse_product
    from traincast.learn._levels import read_products as read_products
    from traincast.learn._profile_ratio import choose_informative as choose_informative
    from traincast.learn._stack_fit import MeasuredStep as MeasuredStep
    from traincast.learn._stack_fit import measure_steps as measure_steps
    from traincast.learn._stored import keep_graph as keep_graph
    from traincast.learn._stored import read_stored as read_stored
    from traincast.learn._suggest import Suggestion as Suggestion
    from traincast.learn._suggest import suggest_runs as suggest_runs

__getattr__ = load_lazily(
    __name__,
    {
        "_levels": (
            "MeasuredProduct",
            "believe",
            "learn_levels",
            "parse_product",
            "read_products",
        ),
        "_profile_ratio": ("choose_informative",),
        "_stack_fit": (
            "MeasuredStep",
            "measure_steps",
        ),
        "_stored": (
            "keep_graph",
            "read_stored",
        ),
        "_suggest": (
            "Suggestion",
            "suggest_runs",
        ),
    },
)
