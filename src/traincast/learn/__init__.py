"""Measurements and measured runs to a calibration: of one machine, or of the stacks that ran."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.learn._calibrations import calibrations_folder, rates_of, save_calibration, to_machine_rates
    from traincast.learn._choose import choose_loads, expected_cost_s
    from traincast.learn._fit import RatesFit, refit, start_fit
    from traincast.learn._levels import learn_levels, parse_product, read_products
    from traincast.learn._loads import (
        CalibrationCandidates,
        CalibrationLoad,
        corpus_candidates,
        operator_load,
        operators_of,
        step_load,
    )
    from traincast.learn._machine import (
        MeasuringSetup,
        Outcome,
        anchors,
        calibrate_machine,
        find_peaks,
        run_subjects,
        seconds_by_key,
    )
    from traincast.learn._runs import LearnedStack, describe_stacks, learn
    from traincast.learn._stored import keep_graph, read_stored
    from traincast.learn._suggest import suggest_runs

__getattr__ = load_lazily(__name__)
