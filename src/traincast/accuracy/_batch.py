"""A table of cases to a table of answers; a bad row is answered with its reason and never stops the others."""

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, replace

from traincast.accuracy._cases import Case, Row, hide_results, parse_case
from traincast.accuracy._journal import Journal
from traincast.accuracy._predictions import Prediction, refuse, summarize
from traincast.accuracy._runs import read_runs
from traincast.accuracy._translate import CaseQuestion, translate
from traincast.errors import IllegalPlan, TraincastError, UnknownName
from traincast.forecast import answer as answer_question
from traincast.forecast import watch_device
from traincast.learn import learn
from traincast.spec import Calibration, Forecast
from traincast.workers import ENGINES, deliver

Progress = Callable[[Sequence[Row]], Iterable[Row]]


CHUNK = 16
LONG_TABLE = 400
_LABELS = frozenset({"case_id", "group", "source"})
"""Columns that name a case and do not change its answer."""


def answer_rows(
    rows: Sequence[Row],
    *,
    given: Sequence[Row] = (),
    calibration: Calibration | None = None,
    progress: Progress | None = None,
    workers: int = 1,
    engine: str = "processes",
    journal: Journal | None = None,
) -> list[Prediction]:
    """One prediction per row, in order. Results in `rows` are dropped unseen; those in `given` are learnt from, for these rows.

    Every row is answered as `forecast` would, with the calibration or with what the given rows taught, whatever the other rows
    are. With more than one worker the distinct questions are shared between processes; the answers are the same. `journal`: keeps
    each answer as it is made, and those that it already has are not worked out again.
    """
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    asked = hide_results(rows)
    watched: Iterable[Row] = progress(asked) if progress is not None else asked
    if given:
        calibration = learn_rows(given)
    if workers == 1:
        memory: _Alone | _Shared = _Alone(calibration, journal)
    else:
        chunks = deliver(_answer_chunk, _chunk(asked, journal), shared=(calibration,), engine=engine, workers=workers)
        memory = _Shared((answers for _, answers in chunks), journal)
    return [memory.answer(row) for row in watched]


def learn_rows(given: Sequence[Row]) -> Calibration | None:
    """What the given rows teach; None where nothing can be learnt."""
    runs = read_runs(given)
    return learn(runs) if runs else None


def choose_workers(num_rows: int) -> int:
    """One process for a short table; for a long one as many as there are processors, up to eight."""
    return min(8, os.cpu_count() or 1) if num_rows >= LONG_TABLE else 1


class _Alone:
    """Answers in this process, each distinct question once."""

    def __init__(self, calibration: Calibration | None, journal: Journal | None = None) -> None:
        self._calibration, self._journal = calibration, journal
        self._memory: dict[Hashable, Prediction] = {}

    def answer(self, row: Row) -> Prediction:
        case = _read_case(row)
        if isinstance(case, Prediction):
            return case
        key = question_key(case)
        if key not in self._memory:
            kept = self._journal.find(key) if self._journal is not None else None
            self._memory[key] = kept or _answer_case(case, self._calibration)
            if self._journal is not None:
                self._journal.keep(key, self._memory[key])
        return replace(self._memory[key], case_id=case.case_id)


class _Shared:
    """Answers as the workers deliver them."""

    def __init__(self, delivered: Iterator[dict[Hashable, Prediction]], journal: Journal | None = None) -> None:
        self._delivered, self._journal = delivered, journal
        self._memory: dict[Hashable, Prediction] = {}

    def answer(self, row: Row) -> Prediction:
        case = _read_case(row)
        if isinstance(case, Prediction):
            return case
        key = question_key(case)
        kept = self._journal.find(key) if self._journal is not None else None
        if kept is not None:
            return replace(kept, case_id=case.case_id)
        while key not in self._memory:
            answers = next(self._delivered)
            self._memory.update(answers)
            if self._journal is not None:
                for one, answer in answers.items():
                    self._journal.keep(one, answer)
        return replace(self._memory[key], case_id=case.case_id)


def _chunk(rows: Sequence[Row], journal: Journal | None = None) -> list[list[Case]]:
    """The distinct questions that are still open, those of one model together, so that a worker builds few graphs."""
    distinct: dict[Hashable, Case] = {}
    for row in rows:
        case = _read_case(row)
        if isinstance(case, Case) and (journal is None or journal.find(question_key(case)) is None):
            distinct.setdefault(question_key(case), case)
    ordered = sorted(distinct.values(), key=lambda case: (case.model or "", case.dtype or "", case.micro_batch or 0.0))
    return [ordered[start : start + CHUNK] for start in range(0, len(ordered), CHUNK)]


def _answer_chunk(cases: Sequence[Case], calibration: Calibration | None) -> dict[Hashable, Prediction]:
    return {question_key(case): _answer_case(case, calibration) for case in cases}


def _read_case(row: Row) -> Case | Prediction:
    try:
        return parse_case(row)
    except TraincastError as error:
        return refuse(str(row.get("case_id") or ""), str(error))


def _answer_case(case: Case, calibration: Calibration | None) -> Prediction:
    try:
        question = translate(case)
        found = _forecast(question, calibration)
        return summarize(
            found,
            case_id=case.case_id,
            assumptions=tuple(
                dict.fromkeys([*question.assumptions, *found.assumptions, *([found.learned] if found.learned else [])])
            ),
            logs=question.logs,
            device_bytes=_used_bytes(question),
        )
    except IllegalPlan as error:
        # A plan that cannot be built does not run on any device.
        return refuse(case.case_id, str(error), fits=False)
    except TraincastError as error:
        return refuse(case.case_id, str(error))
    except Exception as error:
        # A table of thousands must not die of one row that finds a hole in the model; the hole is named instead.
        return refuse(case.case_id, f"internal error: {type(error).__name__}: {error}")


def _used_bytes(question: CaseQuestion) -> float | None:
    """What the device's meter shows, where the source read it."""
    if not question.counts_device:
        return None
    watched = question.logs.watched_stage
    return watch_device(question.job, question.cluster, question.parallelism, watched=watched).used_bytes


def question_key(case: Case) -> Hashable:
    """Equal for cases that ask the same."""
    return tuple(getattr(case, item.name) for item in fields(Case) if item.name not in _LABELS)


def _forecast(question: CaseQuestion, calibration: Calibration | None) -> Forecast:
    # A calibration that the row itself names is closer to it than that of the whole table.
    return answer_question(question.resolved, calibration=question.resolved.calibration or calibration)
