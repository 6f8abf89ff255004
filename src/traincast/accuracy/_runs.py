"""Rows of a case table to measured runs: what learning and forecasting speak instead of columns."""

from collections.abc import Sequence

from traincast.accuracy._cases import Case, Observation, Row, parse_case, parse_observation
from traincast.accuracy._translate import translate
from traincast.certainty import label_run
from traincast.errors import TraincastError
from traincast.spec import MeasuredRun


def read_runs(rows: Sequence[Row]) -> list[MeasuredRun]:
    """The rows whose step time may be trusted and which can be posed at all."""
    found: list[MeasuredRun] = []
    for row in rows:
        try:
            case, observation = parse_case(row), parse_observation(row)
            if observation.scores_time and observation.step_s:
                found.append(measured_run(case, observation))
        except TraincastError:
            continue
    return found


def measured_run(case: Case, observation: Observation) -> MeasuredRun:
    question = translate(case)
    told = observation.scores_memory or observation.status is None
    # A device's own meter counts what no allocator does; forecasts of peaks are of the allocator.
    memory_bytes = observation.memory_bytes if told and not question.counts_device else None
    return MeasuredRun(
        labels=label_run(question.job, question.cluster, question.parallelism),
        job=question.job,
        cluster=question.cluster,
        parallelism=question.parallelism,
        step_s=observation.step_s or 0.0,
        name=case.case_id,
        memory_bytes=memory_bytes * question.logs.memory_unit if memory_bytes else None,
        numbers=observation.numbers,
    )
