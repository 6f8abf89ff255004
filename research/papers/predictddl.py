"""PredictDDL's comparison on our corpus: architectures that never ran; only Ernest may run them first."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.baselines.ernest import Run, choose_runs, fit_ernest
from research.baselines.ghn_svr import describe_plainly, fit_svr_by_grid
from research.corpus import Corpus, CorpusStep
from research.papers.beside import answer_layers, find_learner, merge_groups
from research.papers.compare import OFTEN_VISITED
from research.papers.stack import Learner
from traincast.embed import (
    Known,
    Ranks,
    Reach,
    cross_validate,
    leave_out_rates,
    load_encoder,
    measure_apart,
    meet,
    summarize,
)
from traincast.errors import InvalidInput

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

ENCODERS = Path(__file__).resolve().parent / "weights"
"""Encoders for the tables: `strict-*` have seen no graph of the corpus, `plain` no cost."""

OURS = "reuse predictor (ours)"
ERNEST = "Ernest, own runs per workload and network"
ERNEST_WORKLOAD = "Ernest, own runs per workload"
ERNEST_POOLED = "Ernest, no own run"
GHN = "GHN + SVR, no costs"
PHYSICAL = "the physical sum alone"
NO_LAYERS = "ours without the layers"
LAYERS = "the layers alone"
NO_VECTOR = "ours without layers and vector"

BUDGET_SHARE = 0.5
"""Of the machine time of all candidate runs, for Ernest's design: generous, its authors spend a few per cent."""
STEPS_PER_RUN = 10
MAX_SVR_ROWS = 400
NUM_FOLDS = 5
MIN_ROWS = 4
"""Of an architecture, for it to be named the best workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Errors |forecast - measured| / measured of one method on one split; figures are means over the seeds."""

    split: str
    workloads: str
    """all, or one type of data set."""
    method: str
    num_rows: int
    num_architectures: int
    mean: float
    median: float
    p90: float
    max: float
    rmse_s: float
    spread: float
    """Standard deviation of the mean over the seeds."""
    ratio: float
    """Its mean error over ours on the same rows: above 1 it is worse."""
    best_ratio: float
    """The same for the workload (of at least four rows) where it is largest: the papers' "up to"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds until the first forecast of a new architecture."""

    ernest_s: float
    """Machine-independent lower bound: ten steps of each run that its design asks for, launching not counted."""
    capture_s: float | None
    """Recording the graph, CPU time; None where it was not asked for or torch is not installed."""
    predict_s: float
    """Vector and forecast, CPU time."""

    @property
    def ratio(self) -> float:
        return self.ernest_s / ((self.capture_s or 0.0) + self.predict_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestLine:
    """A workload on which a baseline is much worse than ours, on the rows that both answer; means over the seeds."""

    method: str
    architecture: str
    num_rows: int
    ours: float
    theirs: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All tables of one run."""

    rows: tuple[Row, ...]
    best: tuple[BestLine, ...]
    """Left-out architectures, the largest ratios of each Ernest first."""
    steps: tuple[CorpusStep, ...]
    forecast_s: Array
    """Of each step by ours, its architecture left out."""


def compare(corpus: Corpus, *, seeds: Sequence[int] = (0, 1, 2), fast: bool = False) -> tuple[Row, ...]:
    return compare_all(corpus, seeds=seeds, fast=fast).rows


def compare_all(corpus: Corpus, *, seeds: Sequence[int] = (0, 1, 2), fast: bool = False) -> Comparison:
    """Every split, every method, the same rows for all; `fast` leaves the slow GHN + SVR out."""
    steps = [step for step in corpus.steps if step.key in corpus.graphs]
    if len({step.name for step in steps}) < 2:
        raise InvalidInput("the comparison needs measured steps of at least two architectures")
    rows: list[Row] = []
    splits = ("leave-architecture-out", "leave-family-out", "random", "leave-scale-out", "leave-network-out")
    # Neither depends on a seed: Ernest's designs, and our rates where the split is not drawn.
    designed = {
        ERNEST: _ernest_by_design(steps, lambda step: step.setting.network),
        ERNEST_WORKLOAD: _ernest_by_design(steps, lambda step: ""),
    }
    kept = _Kept(learner=find_learner(corpus), rates={}, layers={})
    tables = {seed: _answer_all(corpus, steps, designed, kept, seed=seed, splits=splits, fast=fast) for seed in seeds}
    measured = np.array([step.seconds for step in steps])
    kinds = _kinds(steps, tables[seeds[0]].types)
    for split in splits:
        for workloads, chosen in kinds.items():
            rows += _score(split, workloads, steps, measured, chosen, [tables[seed].answers[split] for seed in seeds])
    unseen = [tables[seed].answers["leave-architecture-out"] for seed in seeds]
    best = _best_workloads(steps, measured, unseen)
    forecast_s = np.exp(np.mean([np.log(found[OURS]) for found in unseen], axis=0))
    return Comparison(rows=tuple(rows), best=best, steps=tuple(steps), forecast_s=forecast_s)


LARGE_IMAGE = "size=224"


def _kinds(steps: Sequence[CorpusStep], types: Sequence[str]) -> dict[str, Mask]:
    """All rows, those of each type of data, large images told from small ones, and those with the steadiest labels."""
    large = np.array([LARGE_IMAGE in step.name for step in steps])
    kinds = {"all": np.ones(len(steps), dtype=bool)}
    for name in ("image", "token", "vector"):
        kinds[name] = np.array([kind == name for kind in types])
    if large.any():
        kinds["CIFAR-like"], kinds["ImageNet-like"] = kinds["image"] & ~large, large
    often = np.array([step.visited_often for step in steps])
    if often.any():
        kinds[OFTEN_VISITED] = often
    return kinds


NUM_BEST = 5


def _best_workloads(
    steps: Sequence[CorpusStep], measured: Array, answers: Sequence[Mapping[str, Array]]
) -> tuple[BestLine, ...]:
    names = np.array([step.name for step in steps])
    best: list[BestLine] = []
    for method in (ERNEST, ERNEST_WORKLOAD, ERNEST_POOLED):
        use = np.isfinite(answers[0][method])
        theirs = np.mean([np.abs(found[method] / measured - 1) for found in answers], axis=0)
        ours = np.mean([np.abs(found[OURS] / measured - 1) for found in answers], axis=0)
        lines = []
        for name in sorted(set(names[use].tolist())):
            own = use & (names == name)
            if own.sum() >= MIN_ROWS:
                mine, other = float(ours[own].mean()), float(theirs[own].mean())
                lines.append(BestLine(
                    method=method, architecture=name, num_rows=int(own.sum()), ours=mine, theirs=other, ratio=other / mine
                ))  # fmt: skip
        best += sorted(lines, key=lambda line: -line.ratio)[:NUM_BEST]
    return tuple(best)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    types: list[str]
    answers: dict[str, dict[str, Array]]
    """By split and method; nan where a method was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What does not depend on a seed, by split."""

    learner: Learner | None
    rates: dict[str, dict[str, Array]]
    layers: dict[str, Array]


def _answer_all(
    corpus: Corpus, steps: Sequence[CorpusStep], designed: Mapping[str, Array], kept: _Kept, *, seed: int,
    splits: Sequence[str], fast: bool,
) -> _Answers:  # fmt: skip
    known = know(corpus, steps, encoder=ENCODERS / f"strict-{seed % 3}.json.gz")
    plain = None if fast else _plain_rows(corpus, steps)
    choose = np.random.default_rng(seed)
    random_fold = choose.permutation(len(steps)) % NUM_FOLDS
    groupings: dict[str, list[str]] = {
        "leave-architecture-out": [step.name for step in steps],
        "leave-family-out": [step.family for step in steps],
        "random": [str(fold) for fold in random_fold],
        "leave-scale-out": [str(step.setting.num_ranks) for step in steps],
        "leave-network-out": [step.setting.network for step in steps],
    }
    answers: dict[str, dict[str, Array]] = {}
    most_apart = math.inf
    for split in splits:
        groups = groupings[split]
        asked = _asked(split, steps)
        if split == "random" or split not in kept.rates:
            kept.rates[split] = leave_out_rates(known, groups)
            kept.layers[split] = np.full(len(steps), np.nan)
            if kept.learner is not None:
                folds = merge_groups(groups, num_folds=20, seed=0)
                kept.layers[split] = answer_layers(kept.learner, steps, folds, asked)
        rates = kept.rates[split]
        alone = cross_validate(known, groups, rates=rates)
        if split == "leave-architecture-out":
            # Of two answers, not of anything measured: the same bound serves every split, as it does every forecast.
            most_apart = measure_apart(alone, kept.layers[split])
        found = {
            OURS: meet(alone, kept.layers[split], most_apart=most_apart),
            NO_LAYERS: alone,
            LAYERS: kept.layers[split],
            NO_VECTOR: cross_validate(known, groups, reach=Reach(vector=1e6), rates=rates),
            PHYSICAL: cross_validate(known, groups, reach=Reach(common=1e-6, single=1e-6), rates=rates),
            ERNEST_POOLED: _by_group(steps, groups, lambda inside, out: _ernest(steps, inside, out)),
        }
        if split in ("leave-architecture-out", "leave-family-out"):
            found |= designed
            if plain is not None:
                # Asked only for what it is made for; a grid search for every fold of every split would take an hour.
                folds = merge_groups(groups, num_folds=NUM_FOLDS, seed=seed)
                found[GHN] = _by_group(steps, folds, partial(_ghn, plain, steps, seed=seed))
        else:
            found[ERNEST] = _by_group(
                steps, groups, lambda inside, out: _ernest_by_job(steps, inside, out, network=True)
            )
            found[ERNEST_WORKLOAD] = _by_group(
                steps, groups, lambda inside, out: _ernest_by_job(steps, inside, out, network=False)
            )
        answers[split] = {method: np.where(asked, values, np.nan) for method, values in found.items()}
    return _Answers(types=[row.summary.dataset_type for row in known], answers=answers)


def know(corpus: Corpus, steps: Sequence[CorpusStep], *, encoder: Path | None = None) -> list[Known]:
    """Measured steps as the reuse predictor learns from them."""
    weights = load_encoder(encoder) if encoder is not None else load_encoder()
    summaries = {key: summarize(corpus.graphs[key], encoder=weights) for key in sorted({step.key for step in steps})}
    return [
        Known(summary=summaries[step.key], ranks=ranks_of(step), seconds=step.seconds, architecture=step.name)
        for step in steps
    ]


def ranks_of(step: CorpusStep) -> Ranks:
    nodes = step.setting.nodes
    return Ranks(
        num_ranks=len(nodes),
        bits_per_s=min(node.bits_per_s for node in nodes),
        share=min(node.cpu_share for node in nodes),
    )


def _asked(split: str, steps: Sequence[CorpusStep]) -> Mask:
    """Scales are only asked upwards, and one worker has no network to leave out."""
    most = max(step.setting.num_ranks for step in steps)
    if split == "leave-scale-out":
        return np.array([step.setting.num_ranks == most for step in steps])
    if split == "leave-network-out":
        return np.array([step.setting.num_ranks > 1 for step in steps])
    return np.ones(len(steps), dtype=bool)


def _by_group(steps: Sequence[CorpusStep], groups: Sequence[str], answer: Callable[[Mask, Mask], Array]) -> Array:
    labels, found = np.array(groups), np.full(len(steps), np.nan)
    for label in sorted(set(groups)):
        out = labels == label
        found[out] = answer(~out, out)
    return found


def _run(step: CorpusStep) -> Run:
    return Run(size=step.batch * step.setting.num_ranks, machines=step.setting.num_ranks)


def _ernest(steps: Sequence[CorpusStep], known: Mask, asked: Mask) -> Array:
    rows = [step for step, mine in zip(steps, known, strict=True) if mine]
    weights = fit_ernest([_run(step) for step in rows], [step.seconds for step in rows])
    return np.array([float(_run(step).terms @ weights) for step, mine in zip(steps, asked, strict=True) if mine])


def _ernest_by_job(steps: Sequence[CorpusStep], known: Mask, asked: Mask, *, network: bool) -> Array:
    """Each architecture by its own known rows, of the same network where there are any; runs on one worker belong to all."""
    places = np.flatnonzero(asked)
    found = np.full(len(places), np.nan)
    jobs: dict[tuple[str, str], list[int]] = {}
    for index, place in enumerate(places.tolist()):
        jobs.setdefault((steps[place].name, steps[place].setting.network if network else ""), []).append(index)
    for (name, link), own in jobs.items():
        mine = [
            step for step, use in zip(steps, known, strict=True)
            if use and step.name == name and (not link or step.setting.network in (link, "none"))
        ]  # fmt: skip
        if mine:
            weights = fit_ernest([_run(step) for step in mine], [step.seconds for step in mine])
            found[own] = [float(_run(steps[places[index]]).terms @ weights) for index in own]
    return found


def _ernest_by_design(steps: Sequence[CorpusStep], part: Callable[[CorpusStep], str]) -> Array:
    """Each job (architecture and part) samples the runs its A-optimal design picks and answers the others."""
    found = np.full(len(steps), np.nan)
    for candidates, chosen in design_jobs(steps, part):
        rows = [steps[candidates[index]] for index in chosen]
        weights = fit_ernest([_run(step) for step in rows], [step.seconds for step in rows])
        for index, place in enumerate(candidates):
            if index not in chosen and (part(steps[place]) != "none"):
                found[place] = float(_run(steps[place]).terms @ weights)
    return found


def design_jobs(steps: Sequence[CorpusStep], part: Callable[[CorpusStep], str]) -> list[tuple[list[int], list[int]]]:
    """For each job the places of its candidate runs, and which of them Ernest would do."""
    jobs: dict[tuple[str, str], list[int]] = {}
    for place, step in enumerate(steps):
        jobs.setdefault((step.name, part(step)), []).append(place)
    found = []
    for (name, link), own in jobs.items():
        if link == "none":
            continue
        candidates = own if not link else [*jobs.get((name, "none"), []), *own]
        costs = [steps[place].seconds * steps[place].setting.num_ranks for place in candidates]
        chosen = choose_runs([_run(steps[place]) for place in candidates], costs, budget=BUDGET_SHARE * sum(costs))
        if chosen and len(chosen) < len(candidates):
            found.append((candidates, chosen))
    return found


def _plain_rows(corpus: Corpus, steps: Sequence[CorpusStep]) -> Array:
    """GHN vectors without costs, and what PredictDDL tells its regressor of cluster and batch."""
    encoder = load_encoder(ENCODERS / "plain.json.gz")
    vectors = {
        key: encoder.encode(describe_plainly(corpus.graphs[key])) for key in sorted({step.key for step in steps})
    }
    rows = []
    for step in steps:
        ranks = ranks_of(step)
        cluster = [ranks.num_ranks, np.log10(ranks.bits_per_s) if ranks.num_ranks > 1 else 10.0, ranks.share]
        rows.append([*vectors[step.key], *cluster, np.log(step.batch)])
    return np.array(rows)


def _ghn(plain: Array, steps: Sequence[CorpusStep], known: Mask, asked: Mask, *, seed: int) -> Array:
    places = np.flatnonzero(known)
    picked = np.random.default_rng(seed).permutation(places)[:MAX_SVR_ROWS]
    logs = np.log([steps[place].seconds for place in picked])
    model = fit_svr_by_grid(plain[picked], logs, [steps[place].name for place in picked], seed=seed)
    return np.asarray(np.exp(model.predict(plain[asked])))


def _ratios(error: Array, ours: Array, names: NDArray[np.str_]) -> list[float]:
    """By architecture; where only one or two rows were asked, a lucky one of ours would be a ratio of hundreds."""
    counted = {name: names == name for name in sorted(set(names.tolist()))}
    return [float(error[own].mean() / ours[own].mean()) for own in counted.values() if own.sum() >= MIN_ROWS]


def _score(split: str, workloads: str, steps: Sequence[CorpusStep], measured: Array, chosen: Mask,
           answers: Sequence[Mapping[str, Array]]) -> list[Row]:  # fmt: skip
    """Each baseline against ours on the rows that it answered; ours on all of its own."""
    rows = []
    names = np.array([step.name for step in steps])
    for method in answers[0]:
        figures, ratios, best, counts = [], [], [], (0, 0)
        for found in answers:
            use = chosen & np.isfinite(found[method]) & np.isfinite(found[OURS])
            if not use.any():
                break
            error = np.abs(found[method][use] / measured[use] - 1)
            ours = np.abs(found[OURS][use] / measured[use] - 1)
            rmse_s = float(np.sqrt(np.mean((found[method][use] - measured[use]) ** 2)))
            figures.append([error.mean(), np.median(error), np.percentile(error, 90), error.max(), rmse_s])
            ratios.append(error.mean() / ours.mean())
            inside = names[use]
            best.append(max(_ratios(error, ours, inside), default=ratios[-1]))
            counts = int(use.sum()), len(set(inside.tolist()))
        if figures:
            table = np.array(figures)
            mean, median, p90, largest, rmse_s = table.mean(axis=0).tolist()
            rows.append(Row(
                split=split, workloads=workloads, method=method, num_rows=counts[0], num_architectures=counts[1],
                mean=mean, median=median, p90=p90, max=largest, rmse_s=rmse_s, spread=float(table[:, 0].std()),
                ratio=float(np.mean(ratios)), best_ratio=float(np.mean(best)),
            ))  # fmt: skip
    return rows


def time_to_forecast(corpus: Corpus, *, num_captures: int = 3) -> Speed:
    """What a user waits for before the first forecast of a new architecture, sample runs and capture included."""
    steps = [step for step in corpus.steps if step.key in corpus.graphs]
    names = sorted({step.name for step in steps})
    few = set(names[:: max(1, len(names) // 16)])
    steps = [step for step in steps if step.name in few]
    sampled_s = [
        sum(steps[candidates[index]].seconds for index in chosen) * STEPS_PER_RUN
        for candidates, chosen in design_jobs(steps, lambda step: step.setting.network)
    ]
    if not sampled_s:
        raise InvalidInput("no workload of the corpus has enough settings for Ernest to choose runs from")
    from traincast.embed import load_predictor

    predictor = load_predictor()
    load_encoder()
    some = steps[:: max(1, len(steps) // 20)]
    start = time.process_time()
    for step in some:
        predictor.predict(summarize(corpus.graphs[step.key]), ranks_of(step))
    predict_s = (time.process_time() - start) / len(some)
    return Speed(
        ernest_s=float(np.mean(sampled_s)),
        capture_s=_capture_s(sorted({step.key for step in steps}), num_captures),
        predict_s=predict_s,
    )


def _capture_s(keys: Sequence[tuple[str, int]], num_captures: int) -> float | None:
    if not num_captures:
        return None
    try:
        from traincast.capture import capture
        from traincast.profile import build_architecture
    except ImportError:
        return None
    spent = []
    # The first call pays for imports and is not counted.
    for name, batch in [keys[0], *keys[:: max(1, len(keys) // num_captures)]]:
        model, inputs = build_architecture(name)
        start = time.process_time()
        capture(model, inputs(batch), optimizer="adamw", name=name)
        spent.append(time.process_time() - start)
    return float(np.median(spent[1:]))
