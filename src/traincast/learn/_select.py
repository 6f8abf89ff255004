"""How far measured runs may move a forecast: never further than they prove themselves on each other.

For every question there are five answers, from the simplest: ignore the runs; let the job's own one-device steps say how slow its
computation is; also use constants fitted to its stack; also correct it by the errors of near runs; or pool the errors of all
runs as far as they agree. Which one is used is decided by the runs alone, before any question is answered:

1. What is new about the question beside the runs of its stack: the device, the model, a larger model, more devices or nodes than
   any run, than any run of its device, or than any run of its model.
2. The runs are left out in the same way (one device, one model, the largest models, the largest scales, the larger scales of one
   device or model) and each answer is scored by its absolute log error on them (cross-validation).
3. An answer is preferred to a simpler one where its gain is larger than one standard error, between runs and between what was
   left out together. Answers that cannot be told from the preferred one in this way are averaged with it: a choice between
   them would be a draw, and the error of their mean is never larger than the mean of their errors. To a strange device or
   model nothing is carried over where the simplest is already within the noise of one measurement.
4. What could not be cross-validated for want of a second device teaches nothing about another one; for want of a second model,
   only constants, by their errors on blocks of runs. Near runs of a strange model at a strange scale do not exist.

A question of a stack that is not among the runs is answered as if there were none. With fewer than MIN_RUNS runs groups cannot be
left out: the constants stay, and the runs are pooled. So they are where nothing else proved itself.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from traincast.certainty import NOISE, Array, condition, correct
from traincast.forecast import IGNORE, Novelty, is_beyond, largest_of, novelty_of, shares_of
from traincast.learn._profile_ratio import LearnedRatio, choose_informative, fit_all, fit_ratios
from traincast.learn._stack_fit import FittedStacks, MeasuredStep
from traincast.noun import noun
from traincast.spec import NOVELTIES, Choice, MeasuredForecast, RunLabels, Scale, Scope, Selection
from traincast.units import NORMAL_90

MIN_RUNS = 6
MIN_GROUP = 2
"""Runs that make a device, model or scale worth leaving out."""
MAX_FOLDS = 3
FOLD_RUNS, FOLD_ASKED = 100, 30
FOLD_STEPS, FOLD_ROUNDS = 32, 3
"""Cross-validation fits constants to fewer runs and in fewer rounds than the real fit."""
MAX_STRETCH = 3.0

CHOICES = (
    IGNORE,
    Choice(profile=True),
    Choice(profile=True, constants=True),
    Choice(profile=True, constants=True, near=True),
    Choice(pooled=True),
)
"""From the simplest; the last is partial pooling, which starts from what ships and proves itself on the runs one by one. Near
runs without fitted constants are no choice: errors of one node that are really the host's would be carried to many nodes as if
they were the device's, and no run of one node could tell."""
POOLED = CHOICES[-1]


@noun
class Fold:
    """Runs left out together."""

    errors: tuple[Array, ...]
    """Log errors, for each of CHOICES."""
    log_sigmas: Array
    """What the last of them expects."""


def select(steps: Sequence[MeasuredStep], asked: Sequence[RunLabels] | None = None) -> tuple[Selection, ...]:
    """The choice for every sort of question: of those asked, or of all that there can be."""
    found: list[Selection] = []
    for name in dict.fromkeys(one.labels.stack for one in steps):
        own = [one for one in steps if one.labels.stack == name]
        scope = read_scope([one.labels for one in own])
        if asked is None:
            novelties = list(possible_novelties(scope))
        else:
            novelties = list(dict.fromkeys(novelty_of(scope, labels) for labels in asked if labels.stack == name))
        known: dict[object, list[Fold]] = {}
        for novelty in novelties:
            choice, folds = select_correction(own, novelty, known)
            without, with_ = (_mean_error(CHOICES[0], folds), _mean_error(choice, folds)) if folds else (None, None)
            found.append(
                Selection(
                    stack=name, novelties=tuple(sorted(novelty.kinds)), reach=novelty.reach, choice=choice,
                    error_without=without, error_with=with_,
                )
            )  # fmt: skip
    return tuple(found)


def read_scope(runs: Sequence[RunLabels]) -> Scope:
    """What runs of one stack hold."""
    models: dict[str, list[Scale]] = {}
    devices: dict[str, list[Scale]] = {}
    families: dict[str, float] = {}
    for labels in runs:
        models.setdefault(labels.model, []).append(labels.scale)
        devices.setdefault(labels.device, []).append(labels.scale)
        families[labels.family] = max(families.get(labels.family, 0.0), labels.num_parameters)
    return Scope(
        stack=runs[0].stack,
        models={name: largest_of(scales) for name, scales in models.items()},
        devices={name: largest_of(scales) for name, scales in devices.items()},
        families=families,
        num_runs=len(runs),
    )


def possible_novelties(scope: Scope) -> Iterator[Novelty]:
    """Everything that can be new about a question beside these runs."""
    for device, model, scale in product((None, "device"), (None, "size", "model"), (None, "scale")):
        yield Novelty(kinds=frozenset(kind for kind in (device, model, scale) if kind is not None))
    for kind, reaches in (("device scale", scope.devices.values()), ("model scale", scope.models.values())):
        for reach in dict.fromkeys(reaches):
            yield Novelty(kinds=frozenset({kind}), reach=reach)


def select_correction(
    steps: Sequence[MeasuredStep], novelty: Novelty, known: dict[object, list[Fold]]
) -> tuple[Choice, list[Fold]]:
    """What may be used for questions of one novelty, and the folds that decided it. `known`: keeps what was cross-validated, for
    the next novelty that is left out in the same way."""
    if len(steps) < MIN_RUNS:
        return POOLED, []
    tried = [kind for kind in NOVELTIES if kind in novelty.kinds and len(_groups(steps, kind, novelty.reach)) > 1]
    if "device" in novelty.kinds and "device" not in tried:
        # Runs of one device cannot tell which of its constants are its own.
        return IGNORE, []
    how = tried[0] if tried else "block"
    key = how, novelty.reach
    if key not in known:
        known[key] = _cross_validate(steps, how, novelty.reach)
    folds = known[key]
    may_correct = novelty.strange <= set(tried[:1]) and not (novelty.strange and "scale" in novelty.kinds)
    # Blocks of runs take a job's profile away with the job, and so say nothing against it.
    floor = NOISE if novelty.strange else 0.0
    choice = choose(folds, first=0 if tried else 1, may_correct=may_correct, floor=floor)
    return (widen(choice, folds) if tried else choice), folds


def choose(folds: Sequence[Fold], *, first: int = 0, may_correct: bool = True, floor: float = 0.0) -> Choice:
    """The most elaborate of CHOICES from the first that is surely better than the simpler ones; the first where its errors are
    on average below the floor."""
    best = first
    if folds and float(np.abs(np.concatenate([fold.errors[first] for fold in folds])).mean()) < floor:
        return CHOICES[first]
    tried = len(folds[0].errors) if folds else len(CHOICES) - 1
    allowed = [place for place in range(first, tried) if may_correct or not CHOICES[place].near]
    for place in allowed[1:]:
        if _surely_better(folds, place, best):
            best = place
    last = len(CHOICES) - 1
    if best == first and last in allowed and _mean_error(CHOICES[last], folds) < _mean_error(CHOICES[best], folds):
        # Nothing surely proved itself; pooled, the runs are believed as far as each is foretold by the others.
        return POOLED
    return replace(CHOICES[best], also=tuple(CHOICES[place] for place in _alike(folds, allowed, best)))


def _alike(folds: Sequence[Fold], places: Sequence[int], best: int) -> list[int]:
    """The answers that are neither surely better nor surely worse than the best one, each once: without a profile, or without
    anything learnt, several are one and the same."""
    found: list[int] = []
    if len(folds) < 2:
        return found
    for place in places:
        same = (all(np.allclose(fold.errors[place], fold.errors[one]) for fold in folds) for one in (best, *found))
        if not any(same) and not _surely_better(folds, place, best) and not _surely_better(folds, best, place):
            found.append(place)
    return found


def _surely_better(folds: Sequence[Fold], place: int, than: int) -> bool:
    """By more than one standard error, between runs as between folds: the errors of one device or model are alike."""
    gains = [
        np.subtract(np.abs(fold.errors[than]), np.abs(fold.errors[place])) for fold in folds if len(fold.errors[place])
    ]
    if not gains:
        return False

    def surely_positive(values: Array) -> bool:
        return len(values) > 1 and float(values.mean()) > float(values.std(ddof=1)) / math.sqrt(len(values))

    return surely_positive(np.concatenate(gains)) and surely_positive(np.array([gain.mean() for gain in gains]))


def _mean_error(choice: Choice, folds: Sequence[Fold]) -> float:
    return float(_errors_of(choice, folds).mean())


def _errors_of(choice: Choice, folds: Sequence[Fold]) -> Array:
    """Absolute log errors of the mean of its answers on everything that was left out."""
    team = [CHOICES.index(replace(one, also=(), log_sigma=0.0, stretch=1.0)) for one in (choice, *choice.also)]
    means = [np.mean([fold.errors[place] for place in team], axis=0) for fold in folds]
    return np.asarray(np.abs(np.concatenate(means)), dtype=np.float64)


def widen(choice: Choice, folds: Sequence[Fold]) -> Choice:
    """The choice with the errors that its answers had on what was left out."""
    errors = _errors_of(choice, folds)
    if choice == IGNORE or len(errors) < MIN_RUNS:
        return choice
    expected = np.concatenate([fold.log_sigmas for fold in folds])
    return replace(
        choice,
        log_sigma=max(NOISE, float(np.quantile(errors, 0.9)) / NORMAL_90),
        stretch=min(MAX_STRETCH, max(1.0, float(np.quantile(errors / expected, 0.9)) / NORMAL_90)),
    )


def _groups(steps: Sequence[MeasuredStep], kind: str, reach: Scale | None) -> list[list[int]]:
    """The places of the steps to leave out together, one list for each fold; none where there is too little."""
    if kind == "block":
        order = sorted(range(len(steps)), key=lambda place: (_layout(steps[place].labels), place))
        return [part.tolist() for part in np.array_split(np.array(order), MAX_FOLDS)]
    values: dict[object, list[int]] = {}
    for place, one in enumerate(steps):
        labels = one.labels
        if reach is not None and not is_beyond(labels, reach):
            # What is known of the asked device or model at its own small scale stays known of the others, too.
            continue
        name = kind.removesuffix(" scale")
        value = {
            "device": labels.device,
            "model": labels.model,
            "scale": labels.num_devices,
            "size": labels.num_parameters,
        }[name]
        values.setdefault(value, []).append(place)
    if kind in ("scale", "size"):
        # The larger is asked of the smaller, never the reverse.
        sizes = sorted(size for size in values if isinstance(size, (int, float)))
        large = [size for size in sizes[1:] if len(values[size]) >= MIN_GROUP][-2:]
        return [[place for size in sizes if size >= first for place in values[size]] for first in large]
    own = [places for places in values.values() if len(places) >= MIN_GROUP]
    if len(own) < 2:
        return []
    return [own[place] for place in np.linspace(0, len(own) - 1, min(MAX_FOLDS, len(own))).round().astype(int)]


def _layout(labels: RunLabels) -> tuple[str, ...]:
    values = (labels.model, labels.device, labels.tensor, labels.pipeline, labels.num_nodes, labels.num_devices)
    return tuple(str(value) for value in values)


def _cross_validate(steps: Sequence[MeasuredStep], how: str, reach: Scale | None) -> list[Fold]:
    """What each answer would have been worth on runs left out."""
    found: list[Fold] = []
    start = FittedStacks(prior=steps[0].start)
    for known, asked in _folds(steps, how, reach):
        shipped = LearnedRatio(fitted=start, ratios=fit_ratios(known, start))
        fitted = fit_all(known, rounds=FOLD_ROUNDS, max_steps=FOLD_STEPS)
        better = forecast_all(asked, fitted)
        near = correct([(one.labels, one.shares) for one in better], forecast_all(known, fitted))
        answers = (
            np.array([_log_error(one) for one in forecast_all(asked, shipped, profile=False)]),
            np.array([_log_error(one) for one in forecast_all(asked, shipped)]),
            np.array([_log_error(one) for one in better]),
            np.array(
                [_log_error(one) + (own.log_ratio if own else 0.0) for one, own in zip(better, near, strict=True)]
            ),
            _pooled_errors(known, asked, start),
        )
        found.append(Fold(errors=answers, log_sigmas=np.array([own.log_sigma if own else NOISE for own in near])))
    return found


def _pooled_errors(known: Sequence[MeasuredStep], asked: Sequence[MeasuredStep], start: FittedStacks) -> Array:
    plain = LearnedRatio(fitted=start)
    process = condition(forecast_all(known, plain, profile=False), shrink=True)
    answers = forecast_all(asked, plain, profile=False)
    found = process.predict([(one.labels, one.shares) for one in answers])
    return np.array([_log_error(one) + own.log_ratio for one, own in zip(answers, found, strict=True)])


def _folds(
    steps: Sequence[MeasuredStep], how: str, reach: Scale | None
) -> Iterator[tuple[list[MeasuredStep], list[MeasuredStep]]]:
    for places in _groups(steps, how, reach):
        out = set(places)
        asked = _thin([steps[place] for place in places], FOLD_ASKED)
        known = [one for place, one in enumerate(steps) if place not in out]
        if known:
            labels = [one.labels for one in known], [one.labels for one in asked]
            yield [known[place] for place in choose_informative(*labels, FOLD_RUNS)], asked


def _thin(steps: Sequence[MeasuredStep], most: int) -> list[MeasuredStep]:
    if len(steps) <= most:
        return list(steps)
    return [steps[place] for place in np.linspace(0, len(steps) - 1, most).round().astype(int)]


def forecast_all(
    steps: Sequence[MeasuredStep], learned: LearnedRatio, *, profile: bool = True
) -> list[MeasuredForecast]:
    """The steps beside what would have been answered."""
    found = []
    for one in steps:
        timeline = one.step.simulate(learned.stack_of(one.labels, one.start, profile=profile))
        found.append(
            MeasuredForecast(
                labels=one.labels,
                shares=shares_of(timeline),
                forecast_s=timeline.duration_s,
                measured_s=one.step.seconds,
            )
        )
    return found


def _log_error(one: MeasuredForecast) -> float:
    return math.log(one.forecast_s / one.measured_s)
