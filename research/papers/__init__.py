"""The comparisons the four source papers made, on our own corpus: identical rows, splits and measuring budget for all."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from research.corpus import Corpus, CorpusStep
from research.papers.compare import (
    ABLATION,
    BOX,
    EVERY_SPLIT,
    JOINT,
    JOINT_INTERACTION,
    LAYER_SUM,
    LINEAR,
    OFTEN_VISITED,
    SCALEDL_FAMILIES,
    Chosen,
    Line,
    compare_designs,
    compare_families,
    compare_splits,
    ours,
)
from research.papers.compare import OURS as OUR_INTERACTION
from research.papers.gpu_steps import GpuStep
from research.papers.gpus import INTERACTION as GPU_INTERACTION
from research.papers.gpus import OURS as GPU_OURS
from research.papers.gpus import compare_gpus
from research.papers.jobs import JobLine, forecast_jobs, read_jobs
from research.papers.noise import Noise, measure_noise, perfect_error, perfect_rmse_s
from research.papers.predictddl import (
    ERNEST,
    ERNEST_POOLED,
    ERNEST_WORKLOAD,
    BestLine,
    Row,
    Speed,
    compare_all,
    time_to_forecast,
)
from research.papers.search import CHECKED, CHERRYPICK, FORECAST, SearchLine, compare_searches
from research.papers.stack import Learner

__all__ = ["Claim", "Papers", "compare_papers"]

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One figure of a paper, what we set out to reach, and what came out."""

    paper: str
    what: str
    aim: float
    found: float
    unit: str = "x"
    most: float | None = None
    """What a perfect forecast would show here, given the noise of the labels; None where that is not known."""

    @property
    def reached(self) -> bool:
        return self.found >= self.aim


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """Every table of `python -m research.papers`."""

    num_steps: int
    num_architectures: int
    seeds: tuple[int, ...]
    cpu_s: float
    """CPU time of making them."""
    claims: tuple[Claim, ...]
    predictddl: tuple[Row, ...]
    speed: Speed | None
    scaledl: tuple[Line, ...]
    designs: tuple[Chosen, ...]
    jobs: tuple[JobLine, ...]
    ablation: tuple[Line, ...]
    best_workloads: tuple[BestLine, ...] = ()
    searches: tuple[SearchLine, ...] = ()
    noise: Noise | None = None
    perfect: Mapping[str, float] = field(default_factory=dict)
    """Mean error that a perfect forecast would show, given the noise of the labels: of all steps, and of those visited often."""
    gpus: tuple[Line, ...] = ()
    """ScaleDL's table on measured GPU steps; empty where those are not here."""
    num_gpu_steps: int = 0
    every_split: tuple[Line, ...] = ()
    """ScaleDL's baselines on the splits that are not its own."""


def compare_papers(
    corpus: Corpus, *, seeds: Sequence[int] = (0, 1, 2), gpu_steps: Sequence[GpuStep] = (), say: Say = lambda _: None
) -> Papers:
    began = time.process_time()
    learner = Learner.of(corpus)
    scaledl = tuple(compare_families(learner, seeds=seeds, progress=say))
    gpus = tuple(compare_gpus(gpu_steps, seeds=seeds, say=say)) if gpu_steps else ()
    say("ScaleDL: D-optimal against random choice")
    designs = tuple(compare_designs(learner, seeds=seeds))
    say("DeletePop: whole jobs")
    jobs = tuple(forecast_jobs(learner, [job for job in read_jobs() if (job.name, job.batch) in learner.workloads]))
    methods = {name: ours(parts) for name, parts in ABLATION.items()}
    ablation = tuple(compare_splits(learner, seeds=seeds, methods=methods, table="ablation", progress=say))
    every_split = tuple(compare_splits(learner, seeds=seeds, methods=EVERY_SPLIT, table="ScaleDL", progress=say))
    say("PredictDDL: the reuse predictor against Ernest")
    predictddl = compare_all(corpus, seeds=seeds)
    speed = time_to_forecast(corpus)
    noise = measure_noise(predictddl.steps, predictddl.forecast_s.tolist())
    say("CherryPick: finding a setting")
    searches = tuple(compare_searches(predictddl.steps, predictddl.forecast_s.tolist(), seeds=seeds))
    often = [step for step in predictddl.steps if step.visited_often]
    five = [step for step in predictddl.steps if step.family in SCALEDL_FAMILIES]
    perfect = {"all": perfect_error(predictddl.steps, noise), OFTEN_VISITED: perfect_error(often, noise)}
    return Papers(
        num_steps=len(corpus.steps),
        num_architectures=len({step.name for step in corpus.steps}),
        seeds=tuple(seeds),
        cpu_s=time.process_time() - began,
        claims=(
            *_claim_predictddl(predictddl.rows, "all", perfect["all"]),
            *_claim_predictddl(predictddl.rows, OFTEN_VISITED, perfect[OFTEN_VISITED]),
            *_claim_speed(speed),
            *_claim_scaledl(scaledl, "all five", five, noise),
            *_claim_scaledl(
                scaledl, f"all five, {OFTEN_VISITED}", [step for step in five if step.visited_often], noise
            ),
            *_claim_gpus(gpus),
            *_claim_deletepop(jobs),
            *_claim_cherrypick(searches),
        ),
        predictddl=predictddl.rows,
        speed=speed,
        scaledl=scaledl,
        designs=designs,
        jobs=jobs,
        ablation=ablation,
        best_workloads=predictddl.best,
        searches=searches,
        noise=noise,
        perfect={name: error for name, error in perfect.items() if error is not None},
        gpus=gpus,
        num_gpu_steps=len(gpu_steps),
        every_split=every_split,
    )


def _claim_predictddl(rows: Sequence[Row], workloads: str, perfect: float | None) -> list[Claim]:
    """Against all three readings of "Ernest": the papers do not say which they mean."""
    found: list[Claim] = []
    whole = {row.method: row for row in rows if row.workloads == workloads and row.split == "leave-architecture-out"}
    where = "" if workloads == "all" else f", {workloads}"
    for method in (ERNEST_POOLED, ERNEST_WORKLOAD, ERNEST):
        if method in whole:
            row = whole[method]
            most = row.mean / perfect if perfect else None
            what = f"mean error over ours, unseen: {method}{where}"
            found.append(Claim(paper="PredictDDL", what=what, aim=5.0, found=row.ratio, most=most))
            found.append(Claim(paper="PredictDDL", what="the same, best workload", aim=9.8, found=row.best_ratio))
    return found


def _claim_speed(speed: Speed | None) -> list[Claim]:
    what = "time to the first forecast, Ernest over ours"
    return [] if speed is None else [Claim(paper="PredictDDL", what=what, aim=10.3, found=speed.ratio)]


def _claim_scaledl(lines: Sequence[Line], split: str, steps: Sequence[CorpusStep], noise: Noise | None) -> list[Claim]:
    found: list[Claim] = []
    five = {line.method: line for line in lines if line.split == split}
    where = split.removeprefix("all five")
    perfect, perfect_s = perfect_error(steps, noise), perfect_rmse_s(steps, noise)
    for baseline in (LINEAR, BOX):
        if baseline in five:
            line = five[baseline]
            most = line.mean / perfect if perfect else None
            most_s = line.rmse_s / perfect_s if perfect_s else None
            found += [
                Claim(paper="ScaleDL", what=f"MRE of {baseline} over ours{where}", aim=6.0, found=line.ratio, most=most),
                Claim(paper="ScaleDL", what=f"RMSE of {baseline} over ours{where}", aim=5.0, found=line.rmse_ratio, most=most_s),
            ]  # fmt: skip
    for below, above, name in (
        (LAYER_SUM, OUR_INTERACTION, "layers of single operators"),
        (JOINT, JOINT_INTERACTION, "layers that saw whole steps"),
    ):
        if below in five and above in five:
            ratio = five[below].mean / five[above].mean
            most = five[below].mean / perfect if perfect else None
            what = f"MRE without over with interaction, {name}{where}"
            found.append(Claim(paper="ScaleDL", what=what, aim=1.5, found=ratio, most=most))
    return found


def _claim_gpus(lines: Sequence[Line]) -> list[Claim]:
    found: list[Claim] = []
    for split in ("all five", "all five, fp32 of NeuSight"):
        five = {line.method: line for line in lines if line.split == split}
        where = "GPU steps" if split == "all five" else "GPU steps of NeuSight"
        for baseline in (LINEAR, BOX):
            if baseline in five:
                line = five[baseline]
                found += [
                    Claim(paper="ScaleDL", what=f"MRE of {baseline} over ours, {where}", aim=6.0, found=line.ratio),
                    Claim(
                        paper="ScaleDL", what=f"RMSE of {baseline} over ours, {where}", aim=5.0, found=line.rmse_ratio
                    ),
                ]
        if GPU_INTERACTION in five:
            ratio = five[GPU_OURS].mean / five[GPU_INTERACTION].mean
            what = f"MRE without over with interaction, {where}"
            found.append(Claim(paper="ScaleDL", what=what, aim=1.5, found=ratio))
    return found


def _claim_deletepop(jobs: Sequence[JobLine]) -> list[Claim]:
    found: list[Claim] = []
    even = [line.accuracy for line in jobs if not line.job.is_uneven]
    uneven = [line.accuracy for line in jobs if line.job.is_uneven]
    if even:
        found += [
            Claim(
                paper="DeletePop", what="mean accuracy, equal nodes", aim=0.93, found=sum(even) / len(even), unit="%"
            ),
            Claim(paper="DeletePop", what="worst accuracy, equal nodes", aim=0.8, found=min(even), unit="%"),
        ]
    if uneven:
        mean = sum(uneven) / len(uneven)
        found.append(Claim(paper="DeletePop", what="mean accuracy, unequal nodes", aim=0.9, found=mean, unit="%"))
    return found


def _claim_cherrypick(lines: Sequence[SearchLine]) -> list[Claim]:
    """No figure of the issue: what a search by runs pays over one by forecasts, and whether both end at the best."""
    found: list[Claim] = []
    objective = lines[0].objective if lines else ""
    by_method = {line.method: line for line in lines if line.objective == objective}
    if CHERRYPICK in by_method and CHECKED in by_method:
        searched, checked, guessed = (by_method[name] for name in (CHERRYPICK, CHECKED, FORECAST))
        found += [
            Claim(paper="CherryPick", what="machine time of its runs over ours (the best three run)", aim=1.0,
                  found=searched.run_s / checked.run_s),
            Claim(paper="CherryPick", what="best setting found without any run, within 5%", aim=0.9,
                  found=guessed.found_best, unit="%"),
        ]  # fmt: skip
    return found
