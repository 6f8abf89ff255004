"""A table of cases to a table of answers; a bad row is answered with its reason and never stops the others."""

import functools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Protocol

from traincast.accuracy.anchor import Learned
from traincast.accuracy.cases import Case, Measured, Observation, Row, hide_results, parse_case, parse_observation
from traincast.accuracy.given import Known, blend, correct
from traincast.accuracy.grant import Grant, OneAnswer, Verdict, weigh
from traincast.accuracy.predictions import Prediction, refuse, summarize
from traincast.accuracy.remember import Remembering
from traincast.accuracy.retune import Tuned, prepare
from traincast.accuracy.translate import Question, translate
from traincast.cost.pricing import Pricing, default_ops
from traincast.cost.stack import Stack
from traincast.errors import IllegalPlan, TraincastError, UnknownName
from traincast.forecast import forecast
from traincast.forecast.device_memory import watch_device
from traincast.spec import Forecast
from traincast.workers import ENGINES, deliver

Answer = Callable[[Question], Forecast]
Progress = Callable[[Sequence[Row]], Iterable[Row]]


class Stacks(Protocol):
    """Says which constants a case is answered with."""

    def stack_of(self, case: Case, name: str) -> Stack: ...


CHUNK = 16
LONG_TABLE = 400
_LABELS = frozenset({"case_id", "group", "source"})
"""Columns that name a case and do not change its answer."""


def answer_rows(
    rows: Sequence[Row],
    *,
    given: Sequence[Row] = (),
    answer: Answer | None = None,
    progress: Progress | None = None,
    workers: int = 1,
    engine: str = "processes",
    prior: Stack | None = None,
) -> list[Prediction]:
    """One prediction per row, in order. Results in `rows` are dropped unseen; those in `given` may be learnt from.

    Given rows move the constants of the stacks that ran them (from `prior`, or from what ships for each) and correct the cases
    near them, each as far as it proves itself on the given rows (see `grant`).
    With more than one worker the distinct questions are shared between processes; the answers are the same.
    """
    asked = hide_results(rows)
    watched: Iterable[Row] = progress(asked) if progress is not None else asked
    lessons = prepare(_measured(given), ops=_op_model(), prior=prior) if answer is None else []
    cases = [case for row in asked if isinstance(case := _read_case(row), Case)] if lessons else []
    grant = weigh(lessons, cases, prior=prior) if lessons else Grant(plain=Learned(tuned=Tuned(start=prior)))
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    if answer is not None:
        alone = _Alone(answer, grant)
        predictions = [alone.answer(row) for row in watched]
        known = _learn(given, [alone.answer(row) for row in hide_results(given)])
        places = [index for index, prediction in enumerate(predictions) if prediction.answered]
        return _correct(asked, predictions, places, known)

    def ask(rows: Iterable[Row], all_rows: Sequence[Row], stacks: Stacks) -> list[Prediction]:
        if workers == 1:
            memory: _Alone | _Shared = _Alone(None, stacks)
        else:
            chunks = deliver(_answer_chunk, _chunk(all_rows), shared=(stacks,), engine=engine, workers=workers)
            memory = _Shared(answers for _, answers in chunks)
        return [memory.answer(row) for row in rows]

    predictions = ask(watched, asked, grant)
    verdicts = [
        grant.verdict_of(parse_case(row)) if prediction.answered else Verdict()
        for row, prediction in zip(asked, predictions, strict=True)
    ]
    for constants in (False, True):
        places = [place for place, one in enumerate(verdicts) if one.near and one.constants == constants]
        if places:
            predictions = _correct(asked, predictions, places, grant.teach(lessons, constants=constants))
    others: dict[int, list[Prediction]] = {}
    for verdict in dict.fromkeys(other for one in verdicts for other in one.also):
        places = [place for place, one in enumerate(verdicts) if verdict in one.also]
        again = [asked[place] for place in places]
        answers = ask(again, again, OneAnswer(grant=grant, verdict=verdict))
        if verdict.near:
            answers = _correct(again, answers, range(len(again)), grant.teach(lessons, constants=verdict.constants))
        for place, prediction in zip(places, answers, strict=True):
            others.setdefault(place, []).append(prediction)
    return [
        verdict.doubt(blend([prediction, *others.get(place, ())]))
        for place, (verdict, prediction) in enumerate(zip(verdicts, predictions, strict=True))
    ]


def _correct(
    asked: Sequence[Row], predictions: Sequence[Prediction], places: Sequence[int], known: Sequence[Known]
) -> list[Prediction]:
    """The predictions with those at some places moved towards what is known of their frameworks."""
    cases = [parse_case(asked[index]) for index in places]
    frameworks = {case.framework for case in cases}
    own = [row for row in known if row.case.framework in frameworks]
    moved = dict(zip(places, correct(cases, [predictions[index] for index in places], own), strict=True))
    return [moved.get(index, prediction) for index, prediction in enumerate(predictions)]


def choose_workers(num_rows: int) -> int:
    """One process for a short table; for a long one as many as there are processors, up to eight."""
    return min(8, os.cpu_count() or 1) if num_rows >= LONG_TABLE else 1


class _Alone:
    """Answers in this process, each distinct question once."""

    def __init__(self, answer: Answer | None, stacks: Stacks) -> None:
        self._answer = answer
        self._stacks = stacks
        self._memory: dict[Hashable, Prediction] = {}

    def answer(self, row: Row) -> Prediction:
        case = _read_case(row)
        if isinstance(case, Prediction):
            return case
        key = question_key(case)
        if key not in self._memory:
            self._memory[key] = _answer_case(case, self._answer, self._stacks)
        return replace(self._memory[key], case_id=case.case_id)


class _Shared:
    """Answers as the workers deliver them."""

    def __init__(self, delivered: Iterator[dict[Hashable, Prediction]]) -> None:
        self._delivered = delivered
        self._memory: dict[Hashable, Prediction] = {}

    def answer(self, row: Row) -> Prediction:
        case = _read_case(row)
        if isinstance(case, Prediction):
            return case
        key = question_key(case)
        while key not in self._memory:
            self._memory.update(next(self._delivered))
        return replace(self._memory[key], case_id=case.case_id)


def _chunk(rows: Sequence[Row]) -> list[list[Case]]:
    """The distinct questions, those of one model together, so that a worker builds few graphs."""
    distinct: dict[Hashable, Case] = {}
    for row in rows:
        case = _read_case(row)
        if isinstance(case, Case):
            distinct.setdefault(question_key(case), case)
    ordered = sorted(distinct.values(), key=lambda case: (case.model or "", case.dtype or "", case.micro_batch or 0.0))
    return [ordered[start : start + CHUNK] for start in range(0, len(ordered), CHUNK)]


def _answer_chunk(cases: Sequence[Case], stacks: Stacks) -> dict[Hashable, Prediction]:
    return {question_key(case): _answer_case(case, None, stacks) for case in cases}


def _measured(given: Sequence[Row]) -> list[Measured]:
    """The given rows whose step time may be trusted."""
    found: list[Measured] = []
    for row in given:
        case, observation = _read_case(row), _observe(row)
        if isinstance(case, Case) and observation is not None and observation.scores_time and observation.step_s:
            found.append(Measured(case=case, step_s=observation.step_s))
    return found


def _learn(given: Sequence[Row], predictions: Sequence[Prediction]) -> list[Known]:
    known: list[Known] = []
    for row, prediction in zip(given, predictions, strict=True):
        observation = _observe(row)
        if prediction.answered and observation is not None and observation.scores_time and observation.step_s:
            known.append(Known(case=parse_case(row), prediction=prediction, step_s=observation.step_s))
    return known


def _observe(row: Row) -> Observation | None:
    try:
        return parse_observation(row)
    except TraincastError:
        return None


def _read_case(row: Row) -> Case | Prediction:
    try:
        return parse_case(row)
    except TraincastError as error:
        return refuse(str(row.get("case_id") or ""), str(error))


def _answer_case(case: Case, answer: Answer | None, stacks: Stacks) -> Prediction:
    try:
        question = translate(case)
        prediction = summarize(
            answer(question) if answer is not None else _forecast(question, stacks.stack_of(case, question.job.stack)),
            case_id=case.case_id,
            assumptions=question.assumptions,
            watched_stage=question.watched_stage,
            memory_unit=question.memory_unit,
            counts_reserved=question.counts_reserved,
            device_bytes=_used_bytes(question),
        )
        if case.act_ckpt == "unknown" and prediction.fits is False:
            return _recompute_to_fit(case, prediction, answer, stacks)
        return prediction
    except IllegalPlan as error:
        # A plan that cannot be built does not run on any device.
        return refuse(case.case_id, str(error), fits=False)
    except TraincastError as error:
        return refuse(case.case_id, str(error))
    except Exception as error:
        # A table of thousands must not die of one row that finds a hole in the model; the hole is named instead.
        return refuse(case.case_id, f"internal error: {type(error).__name__}: {error}")


def _used_bytes(question: Question) -> float | None:
    """What the device's meter shows, where the source read it."""
    if not question.counts_device:
        return None
    return watch_device(question.job, question.cluster, question.parallelism).used_bytes


def _recompute_to_fit(case: Case, prediction: Prediction, answer: Answer | None, stacks: Stacks) -> Prediction:
    """Where the source does not say what is run again, whoever is short of memory runs all layers again."""
    frugal = _answer_case(replace(case, act_ckpt="full"), answer, stacks)
    if not frugal.fits:
        return prediction
    reason = f"{prediction.reason}; it fits only if layers are run again, which is left open"
    return replace(prediction, fits=True, reason=reason)


def question_key(case: Case) -> Hashable:
    """Equal for cases that ask the same."""
    return tuple(getattr(case, item.name) for item in fields(Case) if item.name not in _LABELS)


@functools.cache
def _op_model() -> Remembering:
    return Remembering(base=default_ops())


def _forecast(question: Question, software: Stack) -> Forecast:
    costs = Pricing(ops=_op_model(), stack=software)
    return forecast(question.job, question.cluster, question.parallelism, costs=costs)
