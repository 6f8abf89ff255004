"""A question to its forecast: resolved, with a plan where it names none, and answered with everything that was assumed."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from traincast.cost import CostModel
from traincast.files import read_calibration
from traincast.forecast import Engine, Origin, answer, pose, pose_job
from traincast.forecast import forecast as forecast_job
from traincast.resolve import (
    Completed,
    Resolved,
    ask_in_words,
    choose_stack,
    complete,
    is_open,
    prepare,
    with_defaults,
)
from traincast.spec import Calibration, Cluster, Forecast, Job, Parallelism, Question

if TYPE_CHECKING:
    from traincast.plan._capacity import SizedJob
    from traincast.plan._nouns import JobAt
    from traincast.resources import TwelveNetwork


def forecast(
    job: Job | Question | str, cluster: Cluster | str | None = None, parallelism: Parallelism | None = None, *,
    costs: CostModel | None = None, calibration: Calibration | str | None = None, draw: bool = False,
    activity: "TwelveNetwork | None" = None, **said: Any,
) -> Forecast:  # fmt: skip
    """How long a step and the whole job take, whether it fits, and what it costs.

    A job and a cluster are taken as they are; without a plan every device holds a replica. A model by its name or file asks as
    the command does: forecast("llama-3-8b", "8xh100", tokens="15B") fills in what is not said, and `said` is any option of
    `traincast forecast` by its name.

    `costs` or `calibration` (itself, or its name or file): what prices tasks instead of the models that ship with the package; a
    calibration may also be what runs of one's own have taught. `draw`: with every span of the step. `activity`: corrects the
    resource numbers by runs measured in this setting.
    """
    learned = read_calibration(calibration)
    if isinstance(job, Job):
        return forecast_job(
            job, cluster, parallelism, costs=costs, calibration=learned, draw=draw, activity=activity, **said
        )
    question = job if isinstance(job, Question) else ask_in_words(job, cluster, parallelism, **said)
    return ask(question, costs=costs, calibration=learned, draw=draw, activity=activity)


def ask(
    question: Question,
    *,
    costs: CostModel | None = None,
    calibration: Calibration | None = None,
    draw: bool = False,
    activity: "TwelveNetwork | None" = None,
) -> Forecast:
    """The forecast of a question, with its assumptions. The same for commands, requests, job files and rows of tables."""
    resolved = decide(question)
    learned = resolved.calibration if calibration is None else calibration
    found = answer(resolved, costs=costs, calibration=learned, draw=draw, work=True, activity=activity)
    return replace(found, origin=Origin(question=question, resolved=resolved, calibration=learned))


def decide(question: Question) -> Resolved:
    """The question resolved, with the plan and the batch that are chosen where it names none."""
    return pose(complete_question(question))


def jobs_at(completed: Completed) -> "SizedJob":
    """The job of a completed question at any batch, length and plan; without a length, a model with its own."""
    whole, asked = completed.question, completed.question.workload
    unsized = replace(whole, workload=replace(asked, seq=None))
    own = with_defaults(unsized, [], choose_stack(whole, plan=completed.parallelism))[0].workload.seq

    def job_at(size: int, length: int | None, chosen: Parallelism) -> Job:
        at = replace(whole, workload=replace(asked, batch=size, seq=length or own))
        return pose_job(at, chosen, cluster=completed.cluster)

    return job_at


def complete_question(
    question: Question, cluster: Cluster | None = None, *, job_at: "JobAt | None" = None, engine: Engine | None = None
) -> Completed:
    """The same before the job is posed; `cluster`: where it is known, of a question that is filled in.
    `job_at`: the job of a plan at a batch, where the question's source does not say it (an uploaded model).
    `engine`: what judges plans, where one has answered before."""
    prepared = prepare(question, cluster)
    if is_open(prepared.question):
        # Whoever names a plan has no need of the search.
        from traincast.plan._choose import choose

        prepared = choose(prepared, job_at=job_at, engine=engine)
    return complete(prepared)
