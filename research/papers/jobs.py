"""DeletePop's comparison: whole short jobs on the test-bed, start-up included, against forecasts from other architectures."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from research.papers.compare import usable
from research.papers.stack import Learner, Parts
from traincast.profile import SETTINGS

MEASURED = Path(__file__).resolve().parents[2] / "benchmarks" / "jobs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """A job that ran from launch to exit."""

    name: str
    batch: int
    setting: str
    num_steps: int
    wall_s: float

    @property
    def is_uneven(self) -> bool:
        return self.setting.endswith("mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """One job and its forecast; accuracy is 1 - |forecast - measured| / measured, as we read DeletePop."""

    job: MeasuredJob
    forecast_s: float
    startup_s: float
    step_s: float

    @property
    def accuracy(self) -> float:
        return 1 - abs(self.forecast_s / self.job.wall_s - 1)


def read_jobs(path: Path = MEASURED) -> list[MeasuredJob]:
    return [MeasuredJob(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))] if path.is_file() else []


def forecast_jobs(learner: Learner, jobs: Sequence[MeasuredJob], *, parts: Parts | None = None) -> list[JobLine]:
    """Steps from a model that never saw the job's architecture; start-up from the other jobs.

    Starting a process is CPU work (importing, building, joining), so it takes longer on a smaller share of a core.
    """
    chosen = parts or Parts(own=False)
    settings = {setting.name: setting for setting in SETTINGS}
    steps = usable(learner)
    step_s, share = [], []
    for job in jobs:
        model = learner.learn([step for step in steps if step.name != job.name], chosen)
        setting = settings[job.setting]
        step_s.append(model.forecast(learner.workloads[job.name, job.batch], setting))
        share.append(min(node.cpu_share for node in setting.nodes))
    spent = [(job.wall_s - job.num_steps * each) * part for job, each, part in zip(jobs, step_s, share, strict=True)]
    lines = []
    for place, job in enumerate(jobs):
        startup_s = statistics.median(spent[:place] + spent[place + 1 :]) / share[place]
        lines.append(
            JobLine(
                job=job, forecast_s=startup_s + job.num_steps * step_s[place], startup_s=startup_s, step_s=step_s[place]
            )
        )
    return lines
