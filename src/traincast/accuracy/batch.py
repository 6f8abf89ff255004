"""A table of cases to a table of answers; a bad row is answered with its reason and never stops the others."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from traincast.accuracy.cases import Case, Observation, Row, hide_results, parse_case, parse_observation
from traincast.accuracy.given import Known, correct
from traincast.accuracy.predictions import Prediction, refuse, summarize
from traincast.accuracy.translate import Question, translate
from traincast.errors import TraincastError
from traincast.spec import Forecast

Answer = Callable[[Question], Forecast]
Progress = Callable[[Sequence[Row]], Iterable[Row]]

_LABELS = frozenset({"case_id", "group", "family", "source", "dataset", "undetermined"})
"""Columns that name a case and do not change its answer; `undetermined` does, where it speaks of TF32."""


def answer_rows(
    rows: Sequence[Row],
    *,
    given: Sequence[Row] = (),
    answer: Answer | None = None,
    progress: Progress | None = None,
) -> list[Prediction]:
    """One prediction per row, in order. Results in `rows` are dropped unseen; those in `given` may be learnt from."""
    asked = hide_results(rows)
    chosen = answer or _forecast
    watched: Iterable[Row] = progress(asked) if progress is not None else asked
    memory: dict[Hashable, Prediction] = {}
    predictions = [_answer_row(row, chosen, memory) for row in watched]
    known = _learn(given, chosen, memory)
    if not known:
        return predictions
    places = [index for index, prediction in enumerate(predictions) if prediction.answered]
    moved = correct([parse_case(asked[index]) for index in places], [predictions[index] for index in places], known)
    for index, prediction in zip(places, moved, strict=True):
        predictions[index] = prediction
    return predictions


def _learn(given: Sequence[Row], answer: Answer, memory: dict[Hashable, Prediction]) -> list[Known]:
    known: list[Known] = []
    for row, hidden in zip(given, hide_results(given), strict=True):
        prediction = _answer_row(hidden, answer, memory)
        observation = _observe(row)
        if prediction.answered and observation is not None and observation.scores_time and observation.step_s:
            known.append(Known(case=parse_case(hidden), prediction=prediction, step_s=observation.step_s))
    return known


def _observe(row: Row) -> Observation | None:
    try:
        return parse_observation(row)
    except TraincastError:
        return None


def _answer_row(row: Row, answer: Answer, memory: dict[Hashable, Prediction]) -> Prediction:
    case_id = str(row.get("case_id") or "")
    try:
        case = parse_case(row)
        key = _question_key(case)
        if key not in memory:
            memory[key] = _answer_case(case, answer)
        return replace(memory[key], case_id=case.case_id)
    except TraincastError as error:
        return refuse(case_id, str(error))
    except Exception as error:
        # A table of thousands must not die of one row that finds a hole in the model; the hole is named instead.
        return refuse(case_id, f"internal error: {type(error).__name__}: {error}")


def _answer_case(case: Case, answer: Answer) -> Prediction:
    try:
        question = translate(case)
        return summarize(answer(question), case_id=case.case_id, assumptions=question.assumptions)
    except TraincastError as error:
        return refuse(case.case_id, str(error))


def _question_key(case: Case) -> Hashable:
    """Equal for cases that ask the same."""
    values: list[Any] = [getattr(case, item.name) for item in fields(Case) if item.name not in _LABELS]
    return (*values, "tf32" in (case.undetermined or ""))


def _forecast(question: Question) -> Forecast:
    from traincast.forecast import forecast

    return forecast(question.job, question.cluster, question.parallelism)
