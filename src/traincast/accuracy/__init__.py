"""Compares forecasts with measurements and with published baselines."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

if TYPE_CHECKING:
    from traincast.accuracy._batch import LONG_TABLE as LONG_TABLE
    from traincast.accuracy._batch import answer_rows as answer_rows
    from traincast.accuracy._batch import choose_workers as choose_workers
    from traincast.accuracy._batch import learn_rows as learn_rows
    from traincast.accuracy._cases import Case as Case
    from traincast.accuracy._cases import Measured as Measured
    from traincast.accuracy._cases import Observation as Observation
    from traincast.accuracy._cases import Row as Row
    from traincast.accuracy._cases import hide_results as hide_results
    from traincast.accuracy._cases import keep_sources as keep_sources
    from traincast.accuracy._cases import parse_case as parse_case
    from traincast.accuracy._cases import parse_observation as parse_observation
    from traincast.accuracy._cases import read_rows as read_rows
    from traincast.accuracy._excused import find_excused as find_excused
    from traincast.accuracy._journal import Journal as Journal
    from traincast.accuracy._journal import journal_of as journal_of
    from traincast.accuracy._predictions import OK as OK
    from traincast.accuracy._predictions import UNSUPPORTED as UNSUPPORTED
    from traincast.accuracy._predictions import Prediction as Prediction
    from traincast.accuracy._predictions import check_target as check_target
    from traincast.accuracy._predictions import write_predictions as write_predictions
    from traincast.accuracy._runs import label_row as label_row
    from traincast.accuracy._runs import label_rows as label_rows
    from traincast.accuracy._runs import measured_run as measured_run
    from traincast.accuracy._runs import read_runs as read_runs
    from traincast.accuracy._scores import Accuracy as Accuracy
    from traincast.accuracy._scores import Confusion as Confusion
    from traincast.accuracy._scores import Score as Score
    from traincast.accuracy._scores import Scored as Scored
    from traincast.accuracy._scores import confuse as confuse
    from traincast.accuracy._scores import score as score
    from traincast.accuracy._scores import score_memory as score_memory
    from traincast.accuracy._scores import score_time as score_time
    from traincast.accuracy._steps import as_case_row as as_case_row
    from traincast.accuracy._steps import read_number as read_number
    from traincast.accuracy._study import Study as Study
    from traincast.accuracy._study import score_rows as score_rows
    from traincast.accuracy._study import study as study
    from traincast.accuracy._traces import OpDifference as OpDifference
    from traincast.accuracy._traces import TraceComparison as TraceComparison
    from traincast.accuracy._traces import compare_trace as compare_trace
    from traincast.accuracy._traces import device_of_trace as device_of_trace
    from traincast.accuracy._translate import CaseQuestion as CaseQuestion
    from traincast.accuracy._translate import read_stack as read_stack
    from traincast.accuracy._translate import translate as translate

__getattr__ = load_lazily(
    __name__,
    {
        "_journal": (
            "Journal",
            "journal_of",
        ),
        "_batch": (
            "LONG_TABLE",
            "answer_rows",
            "choose_workers",
            "learn_rows",
        ),
        "_cases": (
            "Case",
            "Measured",
            "Observation",
            "Row",
            "hide_results",
            "keep_sources",
            "parse_case",
            "parse_observation",
            "read_rows",
        ),
        "_excused": ("find_excused",),
        "_predictions": (
            "OK",
            "UNSUPPORTED",
            "Prediction",
            "check_target",
            "write_predictions",
        ),
        "_runs": (
            "label_row",
            "label_rows",
            "measured_run",
            "read_runs",
        ),
        "_scores": (
            "Accuracy",
            "Confusion",
            "Score",
            "Scored",
            "confuse",
            "score",
            "score_memory",
            "score_time",
        ),
        "_steps": (
            "as_case_row",
            "read_number",
        ),
        "_study": (
            "Study",
            "score_rows",
            "study",
        ),
        "_traces": (
            "OpDifference",
            "TraceComparison",
            "compare_trace",
            "device_of_trace",
        ),
        "_translate": (
            "CaseQuestion",
            "read_stack",
            "translate",
        ),
    },
)
