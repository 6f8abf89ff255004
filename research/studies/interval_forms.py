"""Forms of intervals of known stacks, chosen without the publisher that is reported.

Run: python -m research.studies.interval_forms ASKED [--markdown research/results/0041-near-runs.md]

ASKED: forecasts of measured runs, as `python -m research.fits.intervals CASES --asked ASKED` keeps them. Every form gives the
interval of a run from (a) what its parts and what is new about it say (`Certainty.parts` and its factors, fitted without the
publisher), (b) the errors of other runs of its stack, where there are 20 or more, (c) errors of other publishers. The outer loop
leaves a publisher out and reports it under the form that has the lowest mean log Winkler score on the others, each scored by
tables that were fitted without it.
"""

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.fits.asked import Asked, load
from research.fits.intervals import (
    ENOUGH,
    GRID,
    LEAST,
    OWN_LEVEL,
    OWN_NORMAL,
    Fits,
    _folds,
    _thin,
    _weighted_quantiles,
    _winkler,
    publisher_quantiles,
    sensitivity_of,
)
from research.output import splice_into
from traincast.forecast import KNOWN_STACK, NEW_STACK, STEP, Certainty, Experience, join_all, list_novelty

Array = NDArray[np.float64]
MOST_LEFT = 80
"""Runs of one group that are scored, evenly."""
LEVELS = np.array([0.05, 0.95])
FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that are left out together, and those of the same stack that are not."""

    publisher: str
    stack: str
    fold: str
    left: tuple[Asked, ...]
    kept: tuple[Asked, ...]
    """Empty: the stack is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """A group under one table: everything that a form may look at. Columns are sides."""

    group: Group
    errors: Array
    shape: Array
    """Of the left-out runs: what parts and novelty say, over the usual of the kept where there are any."""
    kept_errors: Array
    kept_shape: Array
    kept_weights: Array
    """(left, kept): nearness of runs of the same stack."""
    num_models: int
    parent: Array
    """The scale that kept runs would have under a new stack whose host is known."""


def list_groups(rows: Sequence[Asked]) -> list[Group]:
    shipped = [row for row in rows if not row.untaught]
    stacks: dict[str, list[Asked]] = defaultdict(list)
    for row in shipped:
        stacks[row.setting.stack].append(row)
    groups = []
    for publisher in sorted({row.publisher for row in rows}):
        untaught: dict[str, list[Asked]] = defaultdict(list)
        for row in rows:
            if row.untaught and row.publisher == publisher:
                untaught[row.setting.stack].append(row)
        for stack, left in untaught.items():
            kept = [row for row in stacks[stack] if row.publisher != publisher]
            groups.append(_group(publisher, stack, "publisher", left, kept))
    for stack, own in sorted(stacks.items()):
        if len(own) < ENOUGH:
            continue
        for fold, left, kept in _inside(own):
            for publisher in sorted({row.publisher for row in left}):
                groups.append(_group(publisher, stack, fold, [r for r in left if r.publisher == publisher], kept))
    return groups


def _group(publisher: str, stack: str, fold: str, left: Sequence[Asked], kept: Sequence[Asked]) -> Group:
    return Group(
        publisher=publisher, stack=stack, fold=fold, left=tuple(_thin(left, MOST_LEFT)),
        kept=tuple(kept) if len(kept) >= ENOUGH else (),
    )  # fmt: skip


def _inside(own: Sequence[Asked]) -> Iterator[tuple[str, list[Asked], list[Asked]]]:
    """(what is left out, its runs, the others) of one stack; nothing: every fifth run."""
    for number in range(FOLDS):
        left = [row for place, row in enumerate(own) if place % FOLDS == number]
        yield "nothing", left, [row for place, row in enumerate(own) if place % FOLDS != number]
    for fold, _, left, gone in _folds(own):
        if fold:
            yield fold, left, [row for row in own if id(row) not in gone]


class Posing:
    """Groups under tables that were fitted without some publishers."""

    def __init__(self, rows: Sequence[Asked]) -> None:
        self.rows, self.groups, self.fits = rows, list_groups(rows), Fits(rows=rows)
        self.publishers = sorted({row.publisher for row in rows})
        self._known: dict[frozenset[str], list[Posed]] = {}

    def pose(self, left: frozenset[str]) -> list[Posed]:
        if left not in self._known:
            table = self.fits.scales(left)
            self._known[left] = [_pose(group, table, self.rows) for group in self.groups]
        return self._known[left]


def _seen(rows: Sequence[Asked], *, sure: bool) -> Experience:
    seen = Experience()
    for row in rows:
        seen = seen.joined(row.setting.as_experience())
    return Experience(
        **{name: getattr(seen, name) for name in ("devices", "architectures", "vendors", "families", "precisions",
                                                  "networks", "models", "most_devices", "compiled")},
        log_sigma=(1.0, 1.0) if sure else (0.0, 0.0),
    )  # fmt: skip


_everything: dict[tuple[str, str], Experience] = {}


def _others(rows: Sequence[Asked], group: Group) -> Experience:
    """What all runs but the group's publisher and stack show."""
    key = group.publisher if group.fold == "publisher" else "", group.stack
    if key not in _everything:
        own = [row for row in rows if not row.untaught and row.setting.stack != group.stack]
        _everything[key] = _seen([row for row in own if row.publisher != key[0]], sure=False)
    return _everything[key]


def _pose(group: Group, table: Certainty, rows: Sequence[Asked]) -> Posed:
    own = _seen(group.kept, sure=True) if group.kept else None
    known = {"": _others(rows, group), **({group.stack: own} if own else {})}
    everything = join_all(known)
    novelty = np.array([list_novelty(row.setting, known, everything=everything) for row in group.left])
    sort = KNOWN_STACK if group.kept else NEW_STACK
    more = np.sqrt(1 + novelty @ np.expm1(2 * np.array(table.factors[sort])))
    parts = np.array([table.parts(sensitivity_of(row)) for row in group.left])
    kept = np.array([table.parts(sensitivity_of(row)) for row in group.kept]).reshape(-1, 2)
    share = np.array(table.share)
    usual = np.exp(np.log(kept).mean(axis=0)) if len(kept) else np.ones(2)
    parent = (
        np.exp(np.log([table.parts(sensitivity_of(row), without="host") for row in group.kept]).mean(axis=0))
        if len(kept)
        else np.ones(2)
    )
    return Posed(
        group=group,
        errors=np.array([row.error for row in group.left]),
        shape=(parts / usual) ** share * more if len(kept) else parts * more,
        kept_errors=np.array([row.error for row in group.kept]),
        kept_shape=(kept / usual) ** share,
        kept_weights=_nearness(group) if group.kept else np.zeros((len(group.left), 0)),
        num_models=len({row.workload for row in group.kept}),
        parent=parent,
    )


def _nearness(group: Group) -> Array:
    """1 for the same sort of network on the same architecture in the same precision, less for each that differs and for each
    doubling of devices."""

    def differs(name: str, weight: float) -> Array:
        values = [np.array([getattr(row.setting, name) for row in rows]) for rows in (group.left, group.kept)]
        return weight * (values[0][:, None] != values[1][None, :])

    octaves = [np.log2([row.setting.num_devices for row in rows]) for rows in (group.left, group.kept)]
    distance = 0.25 * np.abs(octaves[0][:, None] - octaves[1][None, :])
    for name, weight in (("family", 1.0), ("architecture", 0.5), ("precision", 0.5)):
        distance = distance + differs(name, weight)
    return np.asarray(np.exp(-distance))


def _sided(errors: Array, scales: Array) -> Array:
    """Errors over the scale of their side."""
    return errors / np.where(errors > 0, scales[..., 1], scales[..., 0])


def _ends(low: Array, high: Array, scales: Array) -> Array:
    """Both ends, in logs, with the forecast inside."""
    return np.stack([np.minimum(low * scales[:, 0], -1e-3), np.maximum(high * scales[:, 1], 1e-3)], axis=1)


Form = Callable[[Posed, Sequence[Posed]], Array]
"""A group and the groups of other publishers to the ends of 90% intervals, in logs."""


def own_scale(one: Posed, *, shrink: float, level: float = OWN_LEVEL, near: bool = False) -> Array:
    """Of the kept errors on either side, pooled with some models that are as far off as those of a new stack."""
    found = []
    for side, sign in ((0, -1.0), (1, 1.0)):
        scaled = sign * one.kept_errors / one.kept_shape[:, side]
        quantile = np.quantile(scaled, level)
        scale = max(LEAST, float(quantile) / OWN_NORMAL)
        found.append(
            math.sqrt((one.num_models * scale**2 + shrink * one.parent[side] ** 2) / (one.num_models + shrink))
        )
    return np.array(found)


_pools: dict[tuple[int, str, float], tuple[Array, Array]] = {}


def pooled(train: Sequence[Posed], *, shrink: float) -> tuple[Array, Array]:
    """(errors over scale, weights) of known stacks; every stack by its models."""
    key = id(train), "known", shrink
    if key not in _pools:
        number = defaultdict(int)
        for one in train:
            if one.group.kept:
                number[one.group.stack] += len(one.errors)
        values, weights = [], []
        for one in train:
            if one.group.kept:
                values.append(_sided(one.errors, own_scale(one, shrink=shrink) * one.shape))
                weights.append(np.full(len(one.errors), one.num_models / number[one.group.stack]))
        _pools[key] = np.concatenate(values), np.concatenate(weights)
    return _pools[key]


def today(one: Posed, train: Sequence[Posed], *, shrink: float = 2.0) -> Array:
    """A stack's own scale, shrunk towards its parent, times pooled quantiles (ADR 40)."""
    if not one.group.kept:
        return new_by_effect(one, train)
    low, high = _weighted_quantiles(*pooled(train, shrink=shrink), LEVELS)
    return _ends(low, high, own_scale(one, shrink=shrink) * one.shape)


def new_by_effect(one: Posed, train: Sequence[Posed]) -> Array:
    """Quantiles with a random effect of publishers (ADR 31)."""
    scaled, names = _new(train)
    key = id(train), "effect", 0.0
    if key not in _pools:
        _pools[key] = publisher_quantiles_at(scaled, names, LEVELS), np.zeros(0)
    low, high = _pools[key][0]
    return _ends(low, high, one.shape)


def _new(train: Sequence[Posed]) -> tuple[Array, list[str]]:
    every = [one for one in train if not one.group.kept]
    scaled = np.concatenate([_sided(one.errors, one.shape) for one in every])
    return scaled, [one.group.publisher for one in every for _ in one.errors]


def publisher_quantiles_at(scaled: Array, names: Sequence[str], levels: Array) -> Array:
    from traincast.forecast import LEVELS as EVERY

    return np.interp(levels, EVERY, publisher_quantiles(scaled, names))


def mixture(
    one: Posed, train: Sequence[Posed], *, models: float, near: float = 0.0, fades: bool = False, shrink: float = 2.0
) -> Array:
    """Known stacks: quantiles of the stack's own errors mixed with pooled ones (scaled to it) that count as some models.
    `near`: own errors count by nearness to this power. `fades`: where all are far they count less than the pooled ones."""
    if not one.group.kept:
        return new_by_effect(one, train)
    scale = own_scale(one, shrink=shrink)
    grid = _weighted_quantiles(*pooled(train, shrink=shrink), GRID)
    own = _sided(one.kept_errors, scale[None, :] * one.kept_shape)
    every = np.concatenate([own, grid])
    order = np.argsort(every)
    prior = np.full(len(grid), models / len(grid))
    ends = []
    for weights in one.kept_weights**near:
        # As many models as the weights are worth: those of a few near runs say less.
        worth = one.num_models * (weights.sum() ** 2 / (weights**2).sum()) / len(weights)
        if fades:
            worth = one.num_models * weights.sum() / len(weights)
        both = np.concatenate([weights / weights.sum() * worth, prior])[order]
        total = np.cumsum(both)
        ends.append(np.interp(LEVELS, (total - 0.5 * both) / total[-1], every[order]))
    low, high = np.array(ends).T
    return _ends(low, high, scale * one.shape)


def regression(one: Posed, train: Sequence[Posed]) -> Array:
    """Quantile regression of log |error| / scale (CQR-like, Romano 2019): the log of the scale is corrected by a line in the logs
    of shape and own scale, fitted to other publishers, then by their quantiles."""
    if not one.group.kept:
        return new_by_effect(one, train)
    key = id(train), "regression", 0.0
    every = [x for x in train if x.group.kept]
    if key not in _pools:
        lines, values = [], []
        for side in (0, 1):
            features = np.concatenate([_features(x, side) for x in every])
            errors = np.concatenate([x.errors for x in every]) * (1.0 if side else -1.0)
            weights = np.concatenate([np.full(len(x.errors), x.num_models / len(x.errors)) for x in every])
            on = errors > 0
            target = np.log(np.maximum(errors[on], 0.01))
            line = _ridge(features[on], target, weights[on])
            lines.append(line)
            values.append(_weighted_quantiles(errors / np.exp(features @ line), weights, np.array([0.95]))[0])
        _pools[key] = np.array(lines), np.array(values)
    lines, values = _pools[key]
    scales = np.stack([np.exp(_features(one, side) @ lines[side]) for side in (0, 1)], axis=1)
    return _ends(np.full(len(scales), -values[0]), np.full(len(scales), values[1]), scales)


def _features(one: Posed, side: int) -> Array:
    own = np.log(own_scale(one, shrink=2.0)[side])
    shape = np.log(one.shape[:, side])
    return np.stack([np.ones_like(shape), np.full_like(shape, own), shape], axis=1)


def _ridge(features: Array, target: Array, weights: Array) -> Array:
    prior = np.array([-0.5, 1.0, 1.0])
    penalty = np.diag([1e-3, 1.0, 1.0]) * weights.sum() * 0.05
    left = features.T @ (weights[:, None] * features) + penalty
    return np.linalg.solve(left, features.T @ (weights * (target - features @ prior))) + prior


FORMS: Mapping[str, Form] = {
    "own scale, pooled quantiles": today,
    "own quantiles": partial(mixture, models=1.0),
    "own by nearness": partial(mixture, models=1.0, near=1.0),
    "own by nearness squared": partial(mixture, models=1.0, near=2.0),
    "own by nearness squared, prior 0.5": partial(mixture, models=0.5, near=2.0),
    "own by nearness squared, prior 2": partial(mixture, models=2.0, near=2.0),
    "own by nearness, fading": partial(mixture, models=1.0, near=1.0, fades=True),
    "own by nearness squared, fading": partial(mixture, models=1.0, near=2.0, fades=True),
    "own by nearness squared, fading, prior 0.5": partial(mixture, models=0.5, near=2.0, fades=True),
    "regression of scales": regression,
}


def score(one: Posed, ends: Array) -> tuple[float, float, float]:
    """(Winkler, holds, median width)."""
    low, high = ends.T
    held = float(np.mean((low <= one.errors) & (one.errors <= high)))
    return _winkler(one.errors, low, high), held, float(np.median(np.exp(high) - np.exp(low)))


Scores = dict[tuple[str, str, str], list[tuple[float, float, float, float]]]
"""(form, publisher, sort and fold) to (runs, Winkler score, holds, median width) of groups."""


BEGIN, END = "<!-- made by research.studies.interval_forms -->", "<!-- end of what interval_forms made -->"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("asked", type=Path)
    parser.add_argument("--markdown", type=Path, help="page whose tables are made again")
    options = parser.parse_args(arguments)
    asked, _ = load(options.asked)
    found = score_all(Posing([row for row in asked if row.quantity == STEP]))
    text = tabulate(found, "known")
    sys.stdout.write(f"{text}\n")
    if options.markdown:
        splice_into(options.markdown, text, begin=BEGIN, end=END)


def tabulate(found: Scores, sort: str) -> str:
    """Scores of all forms; then every group under the form that the other publishers choose, beside that of ADR 40."""
    chosen, first = choose(found, sort), next(iter(FORMS))
    scores = [f"| {name} | {np.mean(list(by_publisher(found, name, sort).values())):.3f} |" for name in FORMS]
    groups = []
    for (name, publisher, fold), own in sorted(found.items(), key=lambda pair: pair[0][1:]):
        if fold.startswith(sort) and name == chosen[publisher]:
            number, score, held, width = _add_up(own)
            _, score_before, held_before, width_before = _add_up(found[first, publisher, fold])
            groups.append(
                f"| {publisher} | {fold.removeprefix(sort).strip()} | {number:.0f} | {held_before:.0%} -> {held:.0%} | "
                f"{width_before:.0%} -> {width:.0%} | {score_before:.2f} -> {score:.2f} | {name} |"
            )
    return "\n".join(
        [
            f"**{sort.capitalize()} stacks: mean log Winkler score of each form**", "", "| form | score |", "|---|--:|", *scores,
            "", f"**{sort.capitalize()} stacks: before -> now, by the form that the other publishers choose**", "",
            "| publisher | left out | n | holds | median width | score | form |", "|---|---|--:|--:|--:|--:|---|", *groups,
        ]
    )  # fmt: skip


def score_all(posing: Posing) -> Scores:
    found: Scores = defaultdict(list)
    for publisher in posing.publishers:
        posed = posing.pose(frozenset({publisher}))
        train = [one for one in posed if one.group.publisher != publisher]
        for one in posed:
            if one.group.publisher == publisher:
                sort = "known" if one.group.kept else "new"
                for name, form in FORMS.items():
                    values = len(one.errors), *score(one, form(one, train))
                    found[name, publisher, f"{sort} {one.group.fold}"].append(values)
    return found


def by_publisher(found: Scores, form: str, sort: str) -> dict[str, float]:
    """The log of the mean score of each."""
    groups: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
    for (name, publisher, fold), own in found.items():
        if name == form and fold.startswith(sort):
            groups[publisher] += own
    return {publisher: math.log(_add_up(own)[1]) for publisher, own in groups.items()}


def choose(found: Scores, sort: str) -> dict[str, str]:
    """For each publisher the form that has the lowest mean log score on the others."""
    scores = {name: by_publisher(found, name, sort) for name in FORMS}
    publishers = scores[next(iter(FORMS))]
    return {
        one: min(FORMS, key=lambda name: np.mean([value for other, value in scores[name].items() if other != one]))
        for one in publishers
    }


def _add_up(own: Sequence[tuple[float, float, float, float]]) -> tuple[float, float, float, float]:
    values = np.array(own)
    score, held, width = np.average(values[:, 1:], axis=0, weights=values[:, 0])
    return float(values[:, 0].sum()), float(score), float(held), float(width)


if __name__ == "__main__":
    main()
