"""Scored rows to comparisons: the baselines of each split, published methods and the nominal memory formula beside ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from research.baselines import nominal_memory_bytes
from research.baselines.memory import FAILS_ABOVE_BYTES
from research.splits import SPLITS, Split, answer_split, folds
from traincast.accuracy import (
    Case,
    Confusion,
    Measured,
    Row,
    Score,
    Scored,
    Study,
    answer_rows,
    confuse,
    label_row,
    label_rows,
    learn_rows,
    parse_case,
    parse_observation,
    score,
    score_memory,
    score_time,
    study,
)
from traincast.learn import choose_informative, without_runs
from traincast.spec import Stack

T = TypeVar("T")

OURS, OURS_GIVEN = "traincast, nothing granted", "traincast, known rows granted"
OURS_IGNORING = "traincast, the same without them"
SHIPPED_GIVEN = "traincast from shipped constants, known rows granted"
SHIPPED_IGNORING = "traincast from shipped constants, the same without them"
"""What a user gets; but shipped constants have seen the asked rows, so that only these two may be compared with each other."""
UNTOUCHED = Stack()
"""Constants that no case has touched."""
MOST_KNOWN, MOST_ASKED = 250, 120
MOST_FOLDS, MOST_KNOWN_OF_A_FOLD, MOST_ASKED_OF_A_FOLD = 6, 120, 30
"""Rows of a split with known rows given: each costs a forecast and a place in the process that corrects it."""
MEMORY_SPLITS: Mapping[str, Callable[[Case], bool]] = {
    "nanotron: all": lambda case: case.source == "hf_ultrascale",
    "nanotron: 8.86B": lambda case: case.source == "hf_ultrascale" and case.model == "llama-8.86b",
    "nanotron: 8 and 16 nodes": lambda case: case.source == "hf_ultrascale" and (case.n_nodes or 1) >= 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One method on the asked rows of one split."""

    split: str
    method: str
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class FitComparison:
    method: str
    confusion: Confusion


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStudy:
    """Everything `python -m research.splits` says."""

    study: Study
    baselines: tuple[Comparison, ...]
    peers: tuple[Comparison, ...]
    memory: tuple[Comparison, ...]
    fit: tuple[FitComparison, ...]


def compare(scored: Sequence[Scored], *, granted: Sequence[Row] = ()) -> SplitStudy:
    """All comparisons. `granted`: the rows with their results, to score each split again with its known rows given."""
    return SplitStudy(
        study=study(scored),
        baselines=tuple(_compare_splits(scored, granted)),
        peers=tuple(_compare_peers(scored)),
        memory=tuple(_compare_memory(scored)),
        fit=tuple(_compare_fit(scored)),
    )


def _compare_splits(scored: Sequence[Scored], rows: Sequence[Row]) -> list[Comparison]:
    """Baselines see the known rows; we are asked without them and, on an even choice of rows, with them."""
    by_id = {str(row.get("case_id")): row for row in rows}
    timed = [row for row in scored if row.observation.scores_time]
    by_case = {id(row.case): row for row in timed}
    measured = [Measured(case=row.case, step_s=row.observation.step_s or 0.0) for row in timed]
    found: list[Comparison] = []
    for split in SPLITS:
        answers = answer_split(split, measured)
        if not answers:
            continue
        asked = [by_case[id(row.case)] for row in answers[0].asked]
        for one in answers:
            truth = [row.step_s for row in one.asked]
            found.append(Comparison(split=split.name, method=one.method, score=score(truth, list(one.steps_s))))
        found.append(Comparison(split=split.name, method=OURS, score=score_time(asked)))
        if by_id:
            found.extend(compare_granted(split, measured, by_id))
    return found


def compare_granted(split: Split, measured: Sequence[Measured], rows: Mapping[str, Row]) -> list[Comparison]:
    """An even choice of the asked rows of a split with and without an even choice of the known ones. `rows`: by case."""
    answers: dict[str, list[Scored]] = {}
    one_fold = split.leave_out is None
    most_known, most = (MOST_KNOWN, MOST_ASKED) if one_fold else (MOST_KNOWN_OF_A_FOLD, MOST_ASKED_OF_A_FOLD)
    for known, rest in _thin(list(folds(split, measured)), MOST_FOLDS):
        asked = [row.case for row in _thin(rest, most)]
        asked_rows = [rows[case.case_id] for case in asked]
        labelled = [(row, labels) for one in known if (labels := label_row(row := rows[one.case.case_id])) is not None]
        places = choose_informative([labels for _, labels in labelled], label_rows(asked_rows), most_known)
        known_rows = [labelled[place][0] for place in places]
        answers.setdefault(OURS_GIVEN, []).extend(_grant(known_rows, asked_rows, prior=UNTOUCHED))
        answers.setdefault(OURS_IGNORING, []).extend(_grant([], asked_rows, prior=UNTOUCHED))
        if one_fold:
            answers.setdefault(SHIPPED_GIVEN, []).extend(_grant(known_rows, asked_rows, prior=None))
            answers.setdefault(SHIPPED_IGNORING, []).extend(_grant([], asked_rows, prior=None))
    return [Comparison(split=split.name, method=method, score=score_time(own)) for method, own in answers.items()]


def _grant(known: Sequence[Row], asked: Sequence[Row], *, prior: Stack | None) -> list[Scored]:
    """Asked again with the known rows given (or none), from a prior or, without one, from shipped constants."""
    calibration = learn_rows(known, asked, prior=prior) if known else None
    if calibration is None and prior is not None:
        calibration = without_runs(prior)
    predictions = answer_rows(asked, calibration=calibration)
    return [
        Scored(case=parse_case(row), prediction=prediction, observation=parse_observation(row))
        for row, prediction in zip(asked, predictions, strict=True)
    ]


def _thin(rows: Sequence[T], most: int) -> list[T]:
    """Evenly over the table, so that the long runs of one job do not crowd out the others."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(place * (len(rows) - 1) / (most - 1))] for place in range(most)]


def _compare_peers(scored: Sequence[Scored]) -> list[Comparison]:
    """Published methods on the rows for which their predictions are stored; we are scored on the same rows."""
    found: list[Comparison] = []
    for title, compiled in (("NeuSight rows, eager", False), ("NeuSight rows, torch.compile", True)):
        rows = [
            row
            for row in scored
            if row.observation.scores_time and row.observation.peers_s and bool(row.case.compiled) == compiled
        ]
        for name in sorted({name for row in rows for name in row.observation.peers_s}):
            own = [row for row in rows if name in row.observation.peers_s]
            truth = [row.observation.step_s or 0.0 for row in own]
            theirs = score(truth, [row.observation.peers_s[name] for row in own])
            found.append(Comparison(split=title, method=f"published: {name}", score=theirs))
            found.append(Comparison(split=title, method=f"{OURS} (rows of {name})", score=score_time(own)))
    return found


def _compare_memory(scored: Sequence[Scored]) -> list[Comparison]:
    found: list[Comparison] = []
    for name, choose in MEMORY_SPLITS.items():
        rows = [row for row in scored if choose(row.case) and row.observation.scores_memory]
        if rows:
            truth = [row.observation.memory_bytes or 0.0 for row in rows]
            nominal = score(truth, [nominal_memory_bytes(row.case) for row in rows])
            found.append(Comparison(split=name, method="nominal formula", score=nominal))
            found.append(Comparison(split=name, method=OURS, score=score_memory(rows)))
    return found


def _compare_fit(scored: Sequence[Scored]) -> list[FitComparison]:
    rows = [row for row in scored if row.case.source == "hf_ultrascale" and row.observation.scores_fit]
    if not rows:
        return []
    counts = {(says, went): 0 for says in (True, False) for went in (True, False)}
    for row in rows:
        nominal = nominal_memory_bytes(row.case)
        if nominal is not None:
            counts[nominal <= FAILS_ABOVE_BYTES, row.observation.status == "ok"] += 1
    nominal_fit = Confusion(
        true_fit=counts[True, True],
        true_fail=counts[False, False],
        false_safe=counts[True, False],
        false_alarm=counts[False, True],
    )
    return [
        FitComparison(method="nominal formula, above 75e9 bytes fails", confusion=nominal_fit),
        FitComparison(method=OURS, confusion=confuse(rows)),
    ]
