"""The comparisons of ScaleDL and the ablation on our corpus: every method on the same rows of every split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from research.baselines.layers import (
    Ran,
    Totals,
    box_features,
    fit_additive_steps,
    fit_black_box,
    total,
)
from research.corpus import CorpusStep
from research.fits.interaction.network import Example, Training, fit_network
from research.papers.stack import Key, Learner, Model, Parts, see
from traincast.cost import NUMERIC, Neighbourhood
from traincast.learn import choose_loads, refit, start_fit

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Method = Callable[[Learner, Sequence[CorpusStep], Sequence[CorpusStep], int], list[float]]

NUM_FOLDS = 5
SCALEDL_FAMILIES = ("vgg", "resnet", "vit", "bert", "gpt")
OURS, LAYER_SUM = "single operators + interaction (ours)", "single operators, layer sum (ours)"
JOINT, JOINT_INTERACTION = "operators and steps, layer sum (ours)", "operators and steps + interaction (ours)"
OFTEN_VISITED = "steps visited often"
LINEAR, NONLINEAR, BOX, GNN = "additive linear", "additive non-linear", "black box", "GNN only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Errors |forecast - measured| / measured of one method on one split; figures are means over the seeds."""

    table: str
    split: str
    method: str
    num_rows: int
    mean: float
    median: float
    p90: float
    max: float
    rmse_s: float
    spread: float
    """Standard deviation of the mean over the seeds."""
    ratio: float
    """Its mean error over that of the first method of the split, which is ours: above 1 it is worse."""
    rmse_ratio: float


def splits(steps: Sequence[CorpusStep], *, seed: int) -> dict[str, list[tuple[Mask, Mask]]]:
    """(known, asked) of each fold; none is both. Scales are asked upwards; one worker has no network to leave out."""
    random = np.random.default_rng(seed)
    ranks = np.array([step.setting.num_ranks for step in steps])
    networks = np.array([step.setting.network for step in steps])
    folds: dict[str, list[tuple[Mask, Mask]]] = {
        "random": _deal([str(place) for place in range(len(steps))], NUM_FOLDS, random),
        "leave-architecture-out": _deal([step.name for step in steps], NUM_FOLDS, random),
        "leave-family-out": _deal([step.family for step in steps], NUM_FOLDS, random),
        "leave-scale-out": [(ranks <= 2, ranks > 2)],
        "leave-network-out": [
            (networks != name, networks == name) for name in sorted(set(networks.tolist())) if name != "none"
        ],
    }
    return {name: [pair for pair in pairs if pair[1].any()] for name, pairs in folds.items()}


def _deal(labels: Sequence[str], num_folds: int, random: np.random.Generator) -> list[tuple[Mask, Mask]]:
    names = sorted(set(labels))
    fold = dict(zip(names, (random.permutation(len(names)) % num_folds).tolist(), strict=True))
    places = np.array([fold[label] for label in labels])
    return [(places != number, places == number) for number in range(num_folds)]


def ours(parts: Parts) -> Method:
    def answer(learner: Learner, known: Sequence[CorpusStep], asked: Sequence[CorpusStep], seed: int) -> list[float]:
        model = learner.learn(known, parts, seed=seed)
        return [learner.answer(model, step) for step in asked]

    return answer


def additive(*, nonlinear: bool) -> Method:
    def answer(learner: Learner, known: Sequence[CorpusStep], asked: Sequence[CorpusStep], seed: int) -> list[float]:
        totals = _totals(learner)
        model = fit_additive_steps(
            [(totals[step.key], ran(step)) for step in known], [step.seconds for step in known], nonlinear=nonlinear
        )
        return [model.seconds(totals[step.key], ran(step)) for step in asked]

    return answer


def black_box(learner: Learner, known: Sequence[CorpusStep], asked: Sequence[CorpusStep], seed: int) -> list[float]:
    totals = _totals(learner)
    features = np.array([box_features(totals[step.key], ran(step)) for step in known])
    model = fit_black_box(features, [step.seconds for step in known], seed=seed)
    return [float(v) for v in model.seconds(np.array([box_features(totals[s.key], ran(s)) for s in asked]))]


ALONE_S = 2e-5
"""The middling cost of an operator call here: where a network that answers alone starts from."""


def network_only(learner: Learner, known: Sequence[CorpusStep], asked: Sequence[CorpusStep], seed: int) -> list[float]:
    """The same graph network on time directly; synchronisation is given to it as we model it."""
    model = learner.learn(known, Parts(own=False), seed=seed)
    # As many as our own network learns from: one batch size of each architecture, small and large in turn.
    single = sorted((s for s in known if s.setting.num_ranks == 1 and s.cpu_seconds), key=lambda step: step.key)
    single = [step for place, step in enumerate(single) if (place // 2 + place) % 2 == 0]
    examples = [
        Example(
            seen=unpriced(see(learner.workloads[step.key].graph, model.calibration)), seconds=step.cpu_seconds or 1.0
        )
        for step in single
    ]
    training = replace(learner.training, bound=6.0, towards_one=0.0, fades=False, seed=seed)
    network = fit_network(examples, training)
    found = []
    compute_s: dict[Key, float] = {}
    for step in asked:
        if step.key not in compute_s:
            seen = unpriced(see(learner.workloads[step.key].graph, model.calibration))
            compute_s[step.key] = float((network.factors(seen) * seen.seconds * seen.counts).sum())
        found.append(model.seconds(step.key, learner.workloads[step.key], step.setting, compute_s=compute_s[step.key]))
    return found


def unpriced(seen: Neighbourhood) -> Neighbourhood:
    """Without anything a layer model said."""
    numeric = seen.numeric.copy()
    for name in ("log_share", "log_relative_cost", "position"):
        numeric[:, NUMERIC.index(name)] = 0.0
    return replace(seen, numeric=numeric, seconds=np.full(seen.num_tasks, ALONE_S))


def ran(step: CorpusStep) -> Ran:
    nodes = step.setting.nodes
    return Ran(
        num_ranks=len(nodes),
        bytes_per_s=min(node.bits_per_s for node in nodes) / 8,
        share=min(node.cpu_share for node in nodes),
    )


def _totals(learner: Learner) -> Mapping[Key, Totals]:
    return learner.once("totals", lambda: {key: total(each.graph) for key, each in learner.workloads.items()})


FULL = Parts()
SCALEDL_FORM = Parts(steps=False, interaction=True)
"""Layers from single operators, a network from steps: two changes to the default, the one way in which the network pays."""
ABLATION: Mapping[str, Parts] = {
    "everything but interaction (default)": FULL,
    "with interaction": Parts(interaction=True),
    "without own steps": Parts(own=False),
    "without synchronisation costs": Parts(sync=False),
    "without single operators": Parts(operators=False),
    "without whole steps in layers": Parts(steps=False),
    "without layers (one rate for all)": Parts(layers=False),
    "without whole steps in layers, with interaction": SCALEDL_FORM,
}
SCALEDL: Mapping[str, Method] = {
    OURS: ours(Parts(own=False, steps=False, interaction=True)),
    LAYER_SUM: ours(Parts(own=False, steps=False)),
    JOINT: ours(Parts(own=False)),
    JOINT_INTERACTION: ours(Parts(own=False, interaction=True)),
    NONLINEAR: additive(nonlinear=True),
    LINEAR: additive(nonlinear=False),
    BOX: black_box,
    GNN: network_only,
}

EVERY_SPLIT: Mapping[str, Method] = {
    "operators and steps + own steps (ours)": ours(FULL),
    "single operators + interaction + own steps (ours)": ours(SCALEDL_FORM),
    NONLINEAR: additive(nonlinear=True),
    LINEAR: additive(nonlinear=False),
    BOX: black_box,
}


def compare_splits(learner: Learner, *, seeds: Sequence[int], methods: Mapping[str, Method], table: str,
                   progress: Callable[[str], None] = lambda _: None) -> Iterator[Line]:  # fmt: skip
    steps = usable(learner)
    measured_s = [step.seconds for step in steps]
    for split in splits(steps, seed=seeds[0]):
        answers: dict[str, list[Array]] = {name: [] for name in methods}
        for seed in seeds:
            for name, method in methods.items():
                progress(f"{table}: {split}, {name}, seed {seed}")
                answers[name].append(_answer(learner, steps, splits(steps, seed=seed)[split], method, seed))
        yield from score(table, split, measured_s, answers)


def compare_families(learner: Learner, *, seeds: Sequence[int], families: Sequence[str] = SCALEDL_FAMILIES,
                     progress: Callable[[str], None] = lambda _: None) -> Iterator[Line]:  # fmt: skip
    """ScaleDL's table: each of five workloads left out whole."""
    steps = usable(learner)
    measured_s = [step.seconds for step in steps]
    labels = np.array([step.family for step in steps])
    folds = {name: [(labels != name, labels == name)] for name in families if (labels == name).any()}
    merged: dict[str, list[Array]] = {name: [np.full(len(steps), np.nan) for _ in seeds] for name in SCALEDL}
    for family, pairs in folds.items():
        answers: dict[str, list[Array]] = {}
        for name, method in SCALEDL.items():
            progress(f"ScaleDL: {family}, {name}")
            answers[name] = [_answer(learner, steps, pairs, method, seed) for seed in seeds]
            for place, found in enumerate(answers[name]):
                merged[name][place] = np.where(np.isfinite(found), found, merged[name][place])
        yield from score("ScaleDL", f"{family} left out", measured_s, answers)
    yield from score("ScaleDL", "all five", measured_s, merged)
    often = np.array([step.visited_often for step in steps], dtype=bool)
    masked = {name: [np.where(often, found, np.nan) for found in founds] for name, founds in merged.items()}
    yield from score("ScaleDL", f"all five, {OFTEN_VISITED}", measured_s, masked)


def usable(learner: Learner) -> list[CorpusStep]:
    return [step for step in learner.corpus.steps if step.key in learner.workloads]


def _answer(
    learner: Learner, steps: Sequence[CorpusStep], pairs: Sequence[tuple[Mask, Mask]], method: Method, seed: int
) -> Array:
    found = np.full(len(steps), np.nan)
    for known, asked in pairs:
        inside = [step for step, mine in zip(steps, known, strict=True) if mine]
        out = [step for step, mine in zip(steps, asked, strict=True) if mine]
        found[asked] = method(learner, inside, out, seed)
    return found


def score(table: str, split: str, measured_s: Sequence[float], answers: Mapping[str, Sequence[Array]]) -> list[Line]:
    """One line for each method: its answers for each seed, nan where it has none. The first method is ours."""
    measured = np.asarray(measured_s, dtype=np.float64)
    lines: list[Line] = []
    ours = next(iter(answers.values()), ())
    for method, founds in answers.items():
        figures, beside = [], []
        for found, mine in zip(founds, ours, strict=True):
            # A method that answers some rows only is held against ours on these rows.
            use = np.isfinite(found) & np.isfinite(mine)
            if use.any():
                figures.append(_figures(found[use], measured[use]))
                beside.append(_figures(mine[use], measured[use]))
        if not figures:
            continue
        mean, median, p90, largest, rmse_s = np.mean(figures, axis=0).tolist()
        our_mean, _, _, _, our_rmse_s = np.mean(beside, axis=0).tolist()
        lines.append(Line(
            table=table, split=split, method=method, num_rows=int(np.isfinite(founds[0]).sum()), mean=mean, median=median,
            p90=p90, max=largest, rmse_s=rmse_s, spread=float(np.std([row[0] for row in figures])),
            ratio=mean / our_mean, rmse_ratio=rmse_s / our_rmse_s,
        ))  # fmt: skip
    return lines


def _figures(found: Array, measured: Array) -> list[float]:
    """Mean, median, 90th percentile and largest relative error, and the root of the mean squared one in seconds."""
    error = np.abs(found / measured - 1)
    rmse_s = np.sqrt(np.mean((found - measured) ** 2))
    return [float(v) for v in (error.mean(), np.median(error), np.percentile(error, 90), error.max(), rmse_s)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Error of all one-worker steps of other architectures after so many measured steps."""

    num_measured: int
    d_optimal: float
    random: float
    """Mean over the seeds."""
    spread: float


def compare_designs(learner: Learner, *, seeds: Sequence[int], sizes: Sequence[int] = (8, 16, 32, 64)) -> list[Chosen]:
    """D-optimal against random choice of the steps that teach the layers; the others are asked. No operator is granted."""
    steps = [step for step in usable(learner) if step.setting.num_ranks == 1 and step.cpu_seconds]
    loads = [learner.workloads[step.key].load for step in steps]
    seconds = np.array([step.cpu_seconds for step in steps], dtype=np.float64)
    from research.papers.stack import PEAKS

    start = start_fit(loads, PEAKS)

    def error(places: Sequence[int]) -> float:
        fit = refit(start, [loads[place] for place in places], seconds[list(places)].tolist())
        others = [place for place in range(len(loads)) if place not in set(places)]
        return float(np.abs(fit.predict([loads[place] for place in others]) / seconds[others] - 1).mean())

    found = []
    for size in (size for size in sizes if 2 * size <= len(loads)):
        best = choose_loads(start, loads, costs=[1.0] * len(loads), budget_s=float(size), method="d-optimal")
        drawn = [error(np.random.default_rng(seed).permutation(len(loads))[:size].tolist()) for seed in seeds]
        found.append(
            Chosen(num_measured=size, d_optimal=error(best), random=float(np.mean(drawn)), spread=float(np.std(drawn)))
        )
    return found


def train_default(learner: Learner, training: Training | None = None) -> tuple[Model, list[CorpusStep]]:
    """What ships: layers of single operators, and the network that every usable step taught."""
    steps = usable(learner)
    chosen = learner if training is None else replace(learner, training=training)
    return chosen.learn(steps, Parts(own=False, steps=False, interaction=True)), steps
