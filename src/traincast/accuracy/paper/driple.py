"""Driple's comparison on our corpus: twelve numbers of unseen architectures, and the transfer to a setting never measured."""

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.accuracy.corpus import Corpus, CorpusStep
from traincast.resources.learned import Learned, Place, Run, count_work, learn
from traincast.spec.resources import RESOURCES

NUM_FOLDS = 5
NAMES = tuple(f"{resource}_{name}" for resource in RESOURCES for name in ("idle_s", "burst_s", "peak"))
FLOOR = 0.1
"""An idle or burst time is compared with itself, or with this share of the step where it is shorter: a time of nothing has
no relative error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One rank of one corpus step."""

    step: CorpusStep
    run: Run


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
    works = {key: count_work(graph) for key, graph in corpus.graphs.items()}
    found = []
    for step in corpus.steps:
        numbers = {name: step.resources.get(f"rank{rank}_{name}") for name in NAMES}
        if step.key not in works or any(value is None for value in numbers.values()):
            continue
        busy = ("gpu_peak", "memory_peak", *(("received_peak", "sent_peak") if step.setting.num_ranks > 1 else ()))
        if any(not numbers[name] for name in busy):
            # The sampler was kept from running: a step that trains is never idle from end to end.
            continue
        nodes = step.setting.nodes
        place = Place(
            num_ranks=len(nodes),
            bytes_per_s=nodes[rank].bits_per_s / 8,
            narrowest_bytes_per_s=min(node.bits_per_s for node in nodes) / 8,
            speed=nodes[rank].cpu_share,
            slowest=min(node.cpu_share for node in nodes),
        )
        twelve = {name: value for name, value in numbers.items() if value is not None}
        found.append(
            Measured(step=step, run=Run(work=works[step.key], place=place, step_s=step.seconds, twelve=twelve))
        )
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


def errors_of(rows: Sequence[Measured], answers: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """By target; a single rank has no network, so its network numbers do not count."""
    errors: dict[str, list[float]] = {name: [] for name in NAMES}
    for row, answer in zip(rows, answers, strict=True):
        for name in NAMES:
            if row.run.place.num_ranks == 1 and name.startswith(("received", "sent")):
                continue
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


def predict_left_out(rows: Sequence[Measured], *, split: str, seed: int = 0) -> list[dict[str, float]]:
    """Our process: every row answered by one that has seen no row of the same fold, in any setting."""
    key = split_by(split)
    answers: list[dict[str, float]] = [{} for _ in rows]
    for fold in range(NUM_FOLDS):
        asked = [index for index, row in enumerate(rows) if fold_of(key(row), seed=seed) == fold]
        known = [row.run for row in rows if fold_of(key(row), seed=seed) != fold]
        if not asked or not known:
            continue
        model = learn(known)
        for index in asked:
            answers[index] = model.predict(rows[index].run.work, rows[index].run.place)[1]
    return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPoint:
    """Errors on a setting after some of its runs were seen."""

    setting: str
    num_samples: int
    seconds: float
    """Measuring those samples took this long: every repeat of each."""
    with_transfer: float
    from_scratch: float
    """Mean relative error over the twelve targets."""


def transfer(rows: Sequence[Measured], *, setting: str, counts: Sequence[int], seed: int = 0) -> list[TransferPoint]:
    """Learn all other settings, then add few runs of this one; asked are runs of architectures in none of them."""
    elsewhere = [row for row in rows if row.step.setting.name != setting and fold_of(row.step.name, seed=seed)]
    inside = [row for row in rows if row.step.setting.name == setting]
    asked = [row for row in inside if fold_of(row.step.name, seed=seed) == 0]
    pool = [row for row in inside if fold_of(row.step.name, seed=seed)]
    order = np.random.default_rng(seed).permutation(len(pool))
    source = learn([row.run for row in elsewhere])
    points = []
    for count in counts:
        few = [pool[index].run for index in order[:count]]
        seconds = sum(_measuring_s(pool[index]) for index in order[:count])
        both = learn([*(row.run for row in elsewhere), *few], rates=source.rates)
        points.append(
            TransferPoint(
                setting=setting, num_samples=count, seconds=seconds, with_transfer=_score(both, asked),
                from_scratch=_score(learn(few), asked),
            )
        )  # fmt: skip
    return points


def _score(model: Learned, rows: Sequence[Measured]) -> float:
    answers = [model.predict(row.run.work, row.run.place)[1] for row in rows]
    return mean_over_targets(summarise(errors_of(rows, answers)))


def _measuring_s(row: Measured) -> float:
    return row.run.step_s * row.step.resources.get("rank0_sampled_steps", 1.0)


def time_learning(rows: Sequence[Measured]) -> float:
    """Seconds that learning all of them takes."""
    started = time.perf_counter()
    learn([row.run for row in rows])
    return time.perf_counter() - started
