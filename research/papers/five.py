"""Five workloads on GPUs by ScaleDL's protocol, and published forecasts.

Baselines as published: each workload of each setting (publisher or condition, GPU type) is fitted by itself to its smaller
configurations and asked about the larger ones (batch, model and cluster grow). *Additive linear*: a start, FLOP, parameters to
synchronise, no weight below zero. *Black box*: kernel ridge regression on sizes. *Ernest*: start, samples per machine, log and
number of machines. Ours sees none of these runs (image models: factors fitted without the family); *with the same runs*: pooled
as `traincast learn` does. VGG and ViT are timm's, ResNet, BERT and GPT those of ../shared/cases.

NeuSight's, Habitat's, Li's and the roofline's forecasts for NeuSight's steps are those its authors printed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.__main__ import inference_rows, leave_out
from research.fits.interaction_gpu.data import SHARED, read_everything
from research.fits.interaction_gpu.members import Table
from research.papers.images import kernel_ridge, nonnegative
from research.papers.whole_models import label_program
from research.studies.own_runs import Known, read_settings
from traincast.accuracy import hide_results, parse_case, read_rows, translate
from traincast.accuracy._cases import parse_observation
from traincast.certainty._gaussian_process import condition
from traincast.errors import TraincastError
from traincast.forecast import Engine
from traincast.spec import MeasuredForecast

Array = NDArray[np.float64]
WORKLOADS: dict[str, tuple[str, ...]] = {"ResNet": ("resnet",), "BERT": ("bert",), "GPT": ("gpt", "mpt")}
OF_IMAGES = {"VGG": "vgg", "ViT": "vision_transformer"}
LEAST, SMALL = 8, 0.5
"""Configurations of a setting, and the part of them that the baselines are fitted to."""
PEERS = ("neusight", "habitat", "li", "roofline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One measured configuration: what the baselines see, what ours says."""

    flop: float
    parameters: float
    samples: float
    machines: float
    measured_s: float
    ours_s: float
    known: Known | None = None


Fit = Callable[[Sequence[Config], Sequence[Config]], Array]


def additive(known: Sequence[Config], asked: Sequence[Config]) -> Array:
    def columns(every: Sequence[Config]) -> Array:
        return np.array([[1.0, one.flop, one.parameters * (one.machines > 1)] for one in every])

    return nonnegative(columns(known), np.array([one.measured_s for one in known]))(columns(asked))


def ernest(known: Sequence[Config], asked: Sequence[Config]) -> Array:
    def columns(every: Sequence[Config]) -> Array:
        return np.array([[1.0, one.samples, math.log(one.machines), one.machines] for one in every])

    return nonnegative(columns(known), np.array([one.measured_s for one in known]))(columns(asked))


def black_box(known: Sequence[Config], asked: Sequence[Config]) -> Array:
    def points(every: Sequence[Config]) -> Array:
        return np.log([[one.flop, max(one.parameters, 1.0), one.samples, one.machines] for one in every])

    logs = np.log([one.measured_s for one in known])
    return np.exp(kernel_ridge(points(known), logs, reach=1.0)(points(asked)))


def own_runs(known: Sequence[Config], asked: Sequence[Config]) -> Array:
    runs = [one.known.run for one in known if one.known is not None]
    if not runs:
        return np.array([one.ours_s for one in asked])
    process = condition(runs, shrink=True)
    found = process.predict([(one.known.run.labels, one.known.run.shares) for one in asked if one.known is not None])
    return np.array([one.ours_s * math.exp(each.log_ratio) for one, each in zip(asked, found, strict=True)])


METHODS: dict[str, Fit] = {
    "additive linear": additive,
    "black box": black_box,
    "Ernest, own runs": ernest,
    "ours, no own run": lambda _, asked: np.array([one.ours_s for one in asked]),
    "ours, with the same runs": own_runs,
}


def read_configs() -> dict[str, dict[str, list[Config]]]:
    """By workload and setting."""
    found: dict[str, dict[str, list[Config]]] = defaultdict(lambda: defaultdict(list))
    for (source, device), runs in read_settings().items():
        for one in runs:
            labels = one.run.labels
            for name, starts in WORKLOADS.items():
                if labels.model.startswith(starts):
                    flop, _, parameters, samples, machines, *_ = (math.exp(size) for size in one.sizes)
                    key = f"{source} {device} {labels.mode} {labels.precision} {'' if name == 'GPT' else labels.model}"
                    found[name][key].append(
                        Config(flop=flop, parameters=parameters, samples=samples, machines=max(machines, 1.0),
                               measured_s=one.run.measured_s, ours_s=one.run.forecast_s, known=one)
                    )  # fmt: skip
    data = read_everything()
    table = Table.of(data)
    steps = np.exp(leave_out(data, table, inference_rows(data)))
    for place, row in enumerate(data.rows):
        program = data.programs[row.program]
        for name, family in OF_IMAGES.items():
            if program.source == "timm" and program.family == family:
                flop = sum(amounts[0] for amounts in program.totals.values())
                run = MeasuredForecast(
                    labels=label_program(program), shares=(0.5, 0.5, 0.0, 0.0, 0.0), forecast_s=float(steps[place]),
                    measured_s=row.measured_s,
                )  # fmt: skip
                found[name][row.condition].append(
                    Config(flop=flop, parameters=0.0, samples=float(program.batch), machines=1.0,
                           measured_s=row.measured_s, ours_s=run.forecast_s, known=Known(run=run, sizes=(), work=()))
                )  # fmt: skip
    return found


def score(settings: dict[str, list[Config]]) -> dict[str, tuple[Array, Array]]:
    """Errors and seconds missed of each method on all larger configurations of a workload."""
    errors: dict[str, list[Array]] = defaultdict(list)
    missed: dict[str, list[Array]] = defaultdict(list)
    for configs in settings.values():
        if len(configs) < LEAST:
            continue
        order = sorted(configs, key=lambda one: one.flop * one.machines)
        cut = round(SMALL * len(order))
        known, asked = order[:cut], order[cut:]
        truth = np.array([one.measured_s for one in asked])
        for name, method in METHODS.items():
            said = method(known, asked)
            errors[name].append(np.abs(said / truth - 1))
            missed[name].append(said - truth)
    return {name: (np.concatenate(errors[name]), np.concatenate(missed[name])) for name in errors}


def tabulate_five() -> str:
    """Markdown: mean / median / p90 of each method, and the ratios to ours."""
    heads = [*METHODS, "MRE ratio", "RMSE ratio"]
    lines = [f"| workload | n | {' | '.join(heads)} |", f"|---|--:|{'--:|' * len(heads)}"]
    pooled: dict[str, list[Array]] = defaultdict(list)
    for workload, settings in sorted(read_configs().items()):
        found = score(settings)
        if not found:
            continue
        for name, (errors, _) in found.items():
            pooled[name].append(errors)
        mre = {name: errors.mean() for name, (errors, _) in found.items()}
        rmse = {name: float(np.sqrt(np.mean(missed**2))) for name, (_, missed) in found.items()}
        best = min(("ours, with the same runs", "ours, no own run"), key=lambda name: float(mre[name]))
        ratios = [
            f"{each['additive linear'] / each[best]:.1f} / {each['black box'] / each[best]:.1f}" for each in (mre, rmse)
        ]
        cells = [_describe(errors) for errors, _ in found.values()]
        n = len(next(iter(found.values()))[0])
        lines.append(f"| {workload} | {n} | {' | '.join(cells)} | {' | '.join(ratios)} |")
    means = {name: float(np.mean([errors.mean() for errors in each])) for name, each in pooled.items()}
    lines.append(
        "| mean of the workloads | | " + " | ".join(f"{100 * value:.1f}" for value in means.values()) + " | | |"
    )
    return "\n".join(lines)


def _describe(errors: Array) -> str:
    return " / ".join(f"{100 * value:.1f}" for value in (errors.mean(), np.median(errors), np.quantile(errors, 0.9)))


def tabulate_peers() -> str:
    """Markdown: published forecasts beside ours."""
    rows = [row for row in read_rows(str(SHARED / "cases" / "single_gpu.parquet")) if row["source"] == "neusight"]
    rows += [row for row in read_rows(str(SHARED / "cases" / "llm.parquet")) if row["source"] == "neusight"]
    engine = Engine(most=200)
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        try:
            seen = parse_observation(row)
            question = translate(parse_case(hide_results([row])[0]))
            ours_s = engine.forecast(question.job, question.cluster, question.parallelism).step.seconds
        except TraincastError:
            continue
        if seen.scores_time and seen.step_s:
            for name in PEERS:
                if name in seen.peers_s:
                    errors[name].append((abs(seen.peers_s[name] / seen.step_s - 1), abs(ours_s / seen.step_s - 1)))
    lines = [
        "| published forecasts | n | mean % | median % | p90 % | ours, same steps | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, pairs in errors.items():
        theirs, ours = (np.array(column) for column in zip(*pairs, strict=True))
        cells = [
            f"{100 * value:.1f}" for value in (theirs.mean(), np.median(theirs), np.quantile(theirs, 0.9), ours.mean())
        ]
        lines.append(f"| {name} | {len(theirs)} | {' | '.join(cells)} | {theirs.mean() / ours.mean():.1f} |")
    return "\n".join(lines)
