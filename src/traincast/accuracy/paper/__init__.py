"""The comparisons the four source papers made, on our own corpus: identical rows, splits and measuring budget for all."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traincast.accuracy.corpus import Corpus
from traincast.accuracy.paper.compare import (
    ABLATION,
    BOX,
    JOINT,
    JOINT_INTERACTION,
    LAYER_SUM,
    LINEAR,
    Chosen,
    Line,
    compare_designs,
    compare_families,
    compare_splits,
    ours,
)
from traincast.accuracy.paper.compare import OURS as OUR_INTERACTION
from traincast.accuracy.paper.jobs import JobLine, forecast_jobs, read_jobs
from traincast.accuracy.paper.predictddl import ERNEST, OURS, Row, Speed, compare, time_to_forecast
from traincast.accuracy.paper.stack import Learner

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

    @property
    def reached(self) -> bool:
        return self.found >= self.aim


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """Every table of `traincast accuracy --paper`."""

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


def compare_papers(corpus: Corpus, *, seeds: Sequence[int] = (0, 1, 2), say: Say = lambda _: None) -> Papers:
    began = time.process_time()
    learner = Learner.of(corpus)
    scaledl = tuple(compare_families(learner, seeds=seeds, progress=say))
    say("ScaleDL: D-optimal against random choice")
    designs = tuple(compare_designs(learner, seeds=seeds))
    say("DeletePop: whole jobs")
    jobs = tuple(forecast_jobs(learner, [job for job in read_jobs() if (job.name, job.batch) in learner.workloads]))
    methods = {name: ours(parts) for name, parts in ABLATION.items()}
    ablation = tuple(compare_splits(learner, seeds=seeds, methods=methods, table="ablation", progress=say))
    say("PredictDDL: the reuse predictor against Ernest")
    predictddl = compare(corpus, seeds=seeds)
    speed = time_to_forecast(corpus)
    return Papers(
        num_steps=len(corpus.steps),
        num_architectures=len({step.name for step in corpus.steps}),
        seeds=tuple(seeds),
        cpu_s=time.process_time() - began,
        claims=tuple(_claims(predictddl, speed, scaledl, jobs)),
        predictddl=predictddl,
        speed=speed,
        scaledl=scaledl,
        designs=designs,
        jobs=jobs,
        ablation=ablation,
    )


def _claims(rows: Sequence[Row], speed: Speed | None, lines: Sequence[Line], jobs: Sequence[JobLine]) -> list[Claim]:
    found: list[Claim] = []
    whole = {(row.split, row.method): row for row in rows if row.workloads == "all"}
    ernest = whole.get(("leave-architecture-out", ERNEST))
    if ernest is not None and ("leave-architecture-out", OURS) in whole:
        found += [
            Claim(
                paper="PredictDDL",
                what="mean error of Ernest over ours, unseen architectures",
                aim=5.0,
                found=ernest.ratio,
            ),
            Claim(paper="PredictDDL", what="the same, best workload", aim=9.8, found=ernest.best_ratio),
        ]
    if speed is not None:
        what = "time to the first forecast, Ernest over ours"
        found.append(Claim(paper="PredictDDL", what=what, aim=10.3, found=speed.ratio))
    five = {line.method: line for line in lines if line.split == "all five"}
    for baseline in (LINEAR, BOX):
        if baseline in five:
            found += [
                Claim(paper="ScaleDL", what=f"MRE of {baseline} over ours", aim=6.0, found=five[baseline].ratio),
                Claim(paper="ScaleDL", what=f"RMSE of {baseline} over ours", aim=5.0, found=five[baseline].rmse_ratio),
            ]
    for below, above, name in (
        (LAYER_SUM, OUR_INTERACTION, "layers of single operators"),
        (JOINT, JOINT_INTERACTION, "layers that saw whole steps"),
    ):
        if below in five and above in five:
            ratio = five[below].mean / five[above].mean
            found.append(
                Claim(paper="ScaleDL", what=f"MRE without over with interaction, {name}", aim=1.5, found=ratio)
            )
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
