"""Case tables to a study: every row answered as `forecast` would, then scored as a whole and by group."""

import contextlib
from collections.abc import Mapping, Sequence

from traincast.accuracy._batch import Progress, answer_rows
from traincast.accuracy._cases import Row, parse_case, parse_observation
from traincast.accuracy._excused import find_excused
from traincast.accuracy._scores import GROUPINGS, Accuracy, Scored, assess, break_down, find_constant
from traincast.errors import TraincastError
from traincast.noun import noun
from traincast.spec import Calibration


@noun
class Study:
    """Everything `traincast accuracy` says."""

    num_rows: int
    whole: Accuracy
    parts: Mapping[str, Mapping[str, Accuracy]]
    """By grouping, then by value."""
    refusals: Mapping[str, int]
    """Why rows were not answered, with how often."""


def score_rows(
    rows: Sequence[Row],
    *,
    given: Sequence[Row] = (),
    calibration: Calibration | None = None,
    progress: Progress | None = None,
    workers: int = 1,
) -> list[Scored]:
    """Answer all rows without their results, then put the results beside; rows that cannot be read are left out."""
    predictions = answer_rows(rows, given=given, calibration=calibration, progress=progress, workers=workers)
    excused = find_excused(rows)
    scored: list[Scored] = []
    for place, (row, prediction) in enumerate(zip(rows, predictions, strict=True)):
        with contextlib.suppress(TraincastError):
            case, seen = parse_case(row), parse_observation(row)
            scored.append(Scored(case=case, prediction=prediction, observation=seen, excused=place in excused))
    return scored


def study(scored: Sequence[Scored]) -> Study:
    """All figures about scored rows."""
    refusals: dict[str, int] = {}
    for row in scored:
        if not row.prediction.answered:
            refusals[row.prediction.reason] = refusals.get(row.prediction.reason, 0) + 1
    return Study(
        num_rows=len(scored),
        whole=assess(scored, constant=find_constant(scored)),
        parts={by: break_down(scored, by) for by in GROUPINGS},
        refusals=dict(sorted(refusals.items(), key=lambda item: -item[1])),
    )
