"""Compares forecasts with measurements and with published baselines."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.accuracy._batch import answer_rows, choose_workers
    from traincast.accuracy._cases import hide_results, keep_sources, parse_case, read_rows
    from traincast.accuracy._journal import Journal, journal_of
    from traincast.accuracy._logs import keep_run, measure_step
    from traincast.accuracy._predictions import OK, UNSUPPORTED, Prediction, check_target, write_predictions
    from traincast.accuracy._runs import read_runs
    from traincast.accuracy._scores import Accuracy, Confusion, Score, Scored
    from traincast.accuracy._study import Study, score_rows, study
    from traincast.accuracy._traces import OpDifference, TraceComparison, compare_trace, device_of_trace
    from traincast.accuracy._translate import translate

__getattr__ = load_lazily(__name__)
