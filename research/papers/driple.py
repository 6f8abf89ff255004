"""Driple's comparison on our corpus: twelve numbers of unseen architectures, and the transfer to a setting never measured."""

import hashlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from research.corpus import Corpus, CorpusStep, read_resources
from research.papers.stack import Learner, Parts
from traincast.errors import InvalidInput
from traincast.resources import (
    FLOOR,
    TWELVE,
    GraphCorrection,
    Nodes,
    Place,
    Rates,
    Run,
    adapt,
    choose_runs,
    count_work,
    fit_rates,
    learn,
    read_nodes,
)

if TYPE_CHECKING:
    from research.fits.resources.network import Training

NUM_FOLDS = 5
NAMES = TWELVE
METHODS = ("physics", "process", "network", "forecast")
"""What physics derives alone; the Gaussian process over sums of operators; the graph network over the operators themselves; and
what a forecast says: a network for what happens in the step that layers give, those that the same steps taught."""
IN_STEPS_EPOCHS = 150
"""Of 60, 150 and 300 the best compromise on two of five folds, by architecture and by family (docs/theory/resources.md)."""
TUNED = 40
"""From so many runs on the last layers of the network are tuned before outputs are shifted."""
Predict = Callable[[Nodes, Place], Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One rank of one corpus step."""

    step: CorpusStep
    run: Run
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScore:
    """Relative errors of one of the twelve numbers."""

    target: str
    num_rows: int
    mean: float
    median: float
    p90: float


def read_runs(corpus: Corpus, *, rank: int = 0) -> list[Measured]:
    """The first rank of every step whose resources were sampled; its work is counted once per graph."""
    graphs = {key: read_nodes(graph, count_work(graph)) for key, graph in corpus.graphs.items()}
    found = []
    for step in corpus.steps:
        numbers = {name: step.resources.get(f"rank{rank}_{name}") for name in NAMES}
        # Resident memory is known only where the ranks had given back that of earlier steps.
        if step.key not in graphs or any(value is None for name, value in numbers.items() if name != "memory_peak"):
            continue
        busy = ("gpu_peak", *(("received_peak", "sent_peak") if step.setting.num_ranks > 1 else ()))
        if any(not numbers[name] for name in busy):
            # The sampler was kept from running: a step that trains is never idle from end to end.
            continue
        machines = step.setting.nodes
        place = Place(
            num_ranks=len(machines),
            bytes_per_s=machines[rank].bits_per_s / 8,
            narrowest_bytes_per_s=min(machine.bits_per_s for machine in machines) / 8,
            speed=machines[rank].cpu_share,
            slowest=min(machine.cpu_share for machine in machines),
        )
        twelve = {name: math.nan if value is None else value for name, value in numbers.items()}
        nodes = graphs[step.key]
        run = Run(work=nodes.work, place=place, step_s=step.seconds, twelve=twelve)
        found.append(Measured(step=step, run=run, nodes=nodes))
    return found


def fold_of(text: str, *, seed: int = 0) -> int:
    return int(hashlib.sha256(f"{seed} {text}".encode()).hexdigest(), 16) % NUM_FOLDS


def split_by(kind: str) -> Callable[[Measured], str]:
    """What stays together: a family, an architecture, or a single row as in Driple's own split."""
    keys: dict[str, Callable[[Measured], str]] = {
        "family": lambda row: row.step.family,
        "architecture": lambda row: row.step.name,
        "random": lambda row: f"{row.step.name} {row.step.batch} {row.step.setting.name}",
    }
    return keys[kind]


def relative_error(name: str, *, predicted: float, measured: float, step_s: float) -> float:
    floor = FLOOR * step_s if name.endswith("_s") else 1e-12
    return abs(predicted - measured) / max(measured, floor)


def counts(row: Measured, name: str) -> bool:
    """A single rank has no network, and what was not measured judges nobody."""
    silent = row.run.place.num_ranks == 1 and name.startswith(("received", "sent"))
    return not silent and not math.isnan(row.run.twelve[name])


def errors_of(rows: Sequence[Measured], answers: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """By target."""
    errors: dict[str, list[float]] = {name: [] for name in NAMES}
    for row, answer in zip(rows, answers, strict=True):
        for name in filter(partial(counts, row), NAMES):
            measured, step_s = row.run.twelve[name], row.run.step_s
            errors[name].append(relative_error(name, predicted=answer[name], measured=measured, step_s=step_s))
    return errors


def summarise(errors: Mapping[str, Sequence[float]]) -> tuple[TargetScore, ...]:
    return tuple(
        TargetScore(
            target=name, num_rows=len(values), mean=float(np.mean(values)), median=float(np.median(values)),
            p90=float(np.quantile(values, 0.9)),
        )
        for name, values in errors.items() if values
    )  # fmt: skip


def mean_over_targets(scores: Sequence[TargetScore]) -> float:
    return statistics.fmean(score.mean for score in scores)


def fit_method(method: str, rows: Sequence[Measured], *, training: "Training | None" = None) -> Predict:
    if method == "physics":
        bare = bare_correction(fit_rates([row.run for row in rows]))
        return lambda nodes, place: bare.predict(nodes, place).twelve
    if method == "process":
        process = learn([row.run for row in rows])
        return lambda nodes, place: process.predict(nodes.work, place)[1]
    network = fit_network(rows, training=training)
    return lambda nodes, place: network.predict(nodes, place).twelve


def fit_network(
    rows: Sequence[Measured], *, training: "Training | None" = None, steps_s: Sequence[float] | None = None
) -> GraphCorrection:
    """`steps_s`: of a cost model for each row, which are kept; without them the network learns the step too."""
    from research.fits.resources.network import Example, fit_correction

    given: Sequence[float | None] = steps_s if steps_s is not None else [None] * len(rows)
    examples = [
        Example(nodes=row.nodes, run=row.run, step_s=step_s, weight=max(1, len(row.step.blocks)))
        for row, step_s in zip(rows, given, strict=True)
    ]
    return fit_correction(examples, training=training)


def fit_in_steps(
    rows: Sequence[Measured], learner: Learner, *, training: "Training | None" = None
) -> tuple[GraphCorrection, Callable[[CorpusStep], float]]:
    """What a forecast uses: the steps of layers that these rows taught, and a network for what happens in them."""
    from research.fits.resources.network import Training

    training = training or Training(num_epochs=IN_STEPS_EPOCHS)
    # Without what is known of each workload itself, which would make the known steps surer than the asked ones.
    model = learner.learn([row.step for row in rows], Parts(own=False))

    def step_s(step: CorpusStep) -> float:
        return learner.answer(model, step)

    return fit_network(rows, training=training, steps_s=[step_s(row.step) for row in rows]), step_s


def tune_network(source: GraphCorrection, rows: Sequence[Measured]) -> GraphCorrection:
    """The last layers, as Driple does."""
    from research.fits.resources.network import Example, Training, fit_correction

    gentle = Training(num_epochs=20, rate=1e-3)
    tuned = fit_correction([Example(nodes=row.nodes, run=row.run) for row in rows], training=gentle, start=source)
    return replace(
        tuned,
        low=np.minimum(tuned.low, source.low),
        high=np.maximum(tuned.high, source.high),
        known_groups=source.known_groups,
    )


def bare_correction(rates: Rates) -> GraphCorrection:
    """Nothing learned but the rates: what a timeline at these rates shows."""
    return GraphCorrection(rates=rates)


def predict_left_out(rows: Sequence[Measured], *, split: str, method: str = "network", seed: int = 0,
                     folds: Sequence[int] = range(NUM_FOLDS), learner: Learner | None = None,
                     training: "Training | None" = None) -> list[Mapping[str, float]]:  # fmt: skip
    """Every row of the folds answered by a model that has seen no row of the same fold, in any setting."""
    key = split_by(split)
    answers: list[Mapping[str, float]] = [{} for _ in rows]
    for fold in folds:
        asked = [row for row in enumerate(rows) if fold_of(key(row[1]), seed=seed) == fold]
        known = [row for row in rows if fold_of(key(row), seed=seed) != fold]
        if not asked or not known:
            continue
        if method == "forecast":
            if learner is None:
                raise InvalidInput("a forecast of the step needs the learner of the corpus")
            network, step_s = fit_in_steps(known, learner, training=training)
            for index, row in asked:
                answers[index] = network.predict(row.nodes, row.run.place, step_s=step_s(row.step)).twelve
        else:
            predict = fit_method(method, known, training=training)
            for index, row in asked:
                answers[index] = predict(row.nodes, row.run.place)
    return answers


def find_ranges(rows: Sequence[Measured], answers: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """5th and 95th percentile of measured less predicted, over what a prediction is judged against."""
    found = {}
    for name in NAMES:
        missed = []
        for row, answer in zip(rows, answers, strict=True):
            if not counts(row, name):
                continue
            step_s = answer["gpu_idle_s"] + answer["gpu_burst_s"]
            unit = max(answer[name], FLOOR * step_s if name.endswith("_s") else 1e-12)
            missed.append((row.run.twelve[name] - answer[name]) / unit)
        if missed:
            low, high = np.quantile(missed, [0.05, 0.95])
            found[name] = float(low), float(high)
    return found


def coverage(
    rows: Sequence[Measured], answers: Sequence[Mapping[str, float]], ranges: Mapping[str, tuple[float, float]]
) -> float:
    """Share of measured numbers inside the ranges around their predictions."""
    bare = GraphCorrection(rates=Rates(values=()), errors=ranges)
    inside = []
    for row, answer in zip(rows, answers, strict=True):
        around = bare.ranges_of(answer["gpu_idle_s"] + answer["gpu_burst_s"], answer, 1.0)
        for name, (low, high) in around.items():
            if counts(row, name):
                inside.append(low * (1 - 1e-9) <= row.run.twelve[name] <= high * (1 + 1e-9))
    return statistics.fmean(inside)


NEIGHBOURS = tuple((f"{ranks}x1gbit", f"{ranks}x10gbit") for ranks in (2, 3, 4))
"""Settings that hardly differ for a step of some megabytes of gradients."""


def label_noise(rows: Sequence[Measured]) -> tuple[TargetScore, ...]:
    """What an error cannot fall below: how far two measurements lie apart that should agree, over the root of two.

    The two are of neighbouring settings, made alike by the median ratio between those. What really differs between them counts
    as noise, so this is a little too much; what one block of one day shares is missing, so it is a little too little.
    """
    found = {(*row.step.key, row.step.setting.name): row for row in rows}
    errors: dict[str, list[float]] = {name: [] for name in NAMES}
    for one, other in NEIGHBOURS:
        both = [
            (row, found[*key[:2], other]) for key, row in found.items() if key[2] == one and (*key[:2], other) in found
        ]
        for name in NAMES:
            pairs = [(left, right) for left, right in both if counts(left, name) and counts(right, name)]
            small = [0.01 * left.run.step_s if name.endswith("_s") else 0.0 for left, _ in pairs]
            ratios = [
                (left.run.twelve[name] + least) / (right.run.twelve[name] + least)
                for (left, right), least in zip(pairs, small, strict=True)
            ]
            alike = statistics.median(ratios) if ratios else 1.0
            errors[name] += [
                relative_error(
                    name, predicted=alike * right.run.twelve[name], measured=left.run.twelve[name], step_s=left.run.step_s
                ) / 2**0.5
                for left, right in pairs
            ]  # fmt: skip
    return summarise(errors)


def repeat_noise(rows: Sequence[Measured], *, rank: int = 0) -> tuple[TargetScore, ...]:
    """The same from visits of the same step, of steps visited often: half of how far the means of every other visit lie from
    those between them, which is what a label made of all of them is off by."""
    errors: dict[str, list[float]] = {name: [] for name in NAMES}
    for row in rows:
        if not row.step.visited_often:
            continue
        tables = read_resources(row.step.blocks)
        for name in filter(partial(counts, row), NAMES):
            values = [each[f"rank{rank}_{name}"] for each in tables if f"rank{rank}_{name}" in each]
            if len(values) < 2:
                continue
            one, other = statistics.fmean(values[::2]), statistics.fmean(values[1::2])
            label = row.run.twelve[name]
            errors[name].append(
                relative_error(name, predicted=label + (one - other) / 2, measured=label, step_s=row.run.step_s)
            )
    return summarise(errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPoint:
    """Errors on a setting after some of its runs were seen."""

    setting: str
    num_samples: int
    seconds: float
    """Measuring the chosen samples took this long: every repeat of each."""
    with_transfer: float
    scratch_seconds: float
    """Measuring as many drawn at random took so long."""
    from_scratch: float
    """Mean relative error over the twelve targets; not a number without samples."""


def transfer(rows: Sequence[Measured], *, setting: str, counts: Sequence[int], seed: int = 0,
             training: "Training | None" = None) -> list[TransferPoint]:  # fmt: skip
    """Learn all other settings, then add few runs of this one; asked are runs of architectures in none of them.

    Transfer measures the runs it chooses itself; from scratch nothing is known to choose by, so runs are drawn.
    """
    elsewhere = [row for row in rows if row.step.setting.name != setting and fold_of(row.step.name, seed=seed)]
    inside = [row for row in rows if row.step.setting.name == setting]
    asked = [row for row in inside if fold_of(row.step.name, seed=seed) == 0]
    pool = [row for row in inside if fold_of(row.step.name, seed=seed)]
    order = np.random.default_rng(seed).permutation(len(pool))
    source = fit_network(elsewhere, training=training)
    chosen = choose_runs(source, [(row.nodes, row.run.place) for row in pool], num_runs=max(counts))
    points = []
    for count in counts:
        few, drawn = ([pool[index] for index in indices[:count]] for indices in (chosen, order))
        if few:
            base = source if count < TUNED else tune_network(source, few)
            adapted = adapt(base, [(row.nodes, row.run) for row in few])
            ours = [adapted.predict(row.nodes, row.run.place).twelve for row in asked]
            theirs = score_alone(drawn, asked)
        else:
            ours, theirs = [source.predict(row.nodes, row.run.place).twelve for row in asked], float("nan")
        points.append(
            TransferPoint(
                setting=setting, num_samples=len(few), seconds=sum(_measuring_s(row) for row in few),
                with_transfer=_score(asked, ours), scratch_seconds=sum(_measuring_s(row) for row in drawn),
                from_scratch=theirs,
            )
        )  # fmt: skip
    return points


def saved_times(points: Sequence[TransferPoint], *, num_samples: int) -> float:
    """How many times fewer seconds transfer needs for what so many runs reach from scratch; infinite where it needs none."""
    aim = next(point for point in points if point.num_samples == num_samples)
    enough = [point.seconds for point in points if point.with_transfer <= aim.from_scratch]
    if not enough:
        return 0.0
    return aim.scratch_seconds / min(enough) if min(enough) > 0 else float("inf")


def score_alone(few: Sequence[Measured], asked: Sequence[Measured]) -> float:
    """From scratch: the process, which needs fewer runs than a network, or the network where that turns out better."""
    alone = learn([row.run for row in few])
    best = _score(asked, [alone.predict(row.run.work, row.run.place)[1] for row in asked])
    if len(few) < TUNED:
        return best
    from research.fits.resources.network import Training

    network = fit_network(few, training=Training(num_members=1, num_epochs=150))
    return min(best, _score(asked, [network.predict(row.nodes, row.run.place).twelve for row in asked]))


def _score(rows: Sequence[Measured], answers: Sequence[Mapping[str, float]]) -> float:
    return mean_over_targets(summarise(errors_of(rows, answers)))


def _measuring_s(row: Measured) -> float:
    return row.run.step_s * row.step.resources.get("rank0_sampled_steps", 1.0)
