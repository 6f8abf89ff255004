"""What a search found to the few plans worth a look: the simplest good one, then the fastest, cheapest and greenest."""

import dataclasses
from collections.abc import Mapping

from traincast.errors import TraincastError
from traincast.forecast import Engine, pose_job
from traincast.noun import noun
from traincast.plan._ask import complete_question
from traincast.plan._nouns import OBJECTIVES, SEARCHED, Candidate, Limits, Plan, Search, figures_of
from traincast.plan._search import pick_best, weighed
from traincast.spec import Cluster, Question

TITLES = {"time": "fastest", "money": "cheapest", "energy": "greenest"}
WORTH_NAMING = 0.02
"""A plan that gains less than this over the plain one has no line of its own."""


@noun
class Highlight:
    """A plan with what it is best at, and its amounts over those of the plan that comes first."""

    title: str
    plan: Plan
    ratios: Mapping[str, float]
    """By objective; empty for the first."""


def find_plain(
    request: Question, cluster: Cluster, *, global_batch: int, limits: Limits, engine: Engine
) -> Plan | None:
    """The plan that a forecast would choose on a cluster. None: the request fixes axes, or what it chooses breaks a limit."""
    if any(name in request.parallelism for name in SEARCHED):
        return None
    whole = dataclasses.replace(
        request,
        workload=dataclasses.replace(request.workload, batch=None),
        job={**request.job, "global_batch": global_batch},
    )
    try:
        asked = complete_question(whole, cluster, engine=engine)
        plan = asked.parallelism
        job = pose_job(asked.question, plan, cluster=cluster)
        answer = engine.forecast(job, cluster, plan)
        figures = figures_of(engine.forecast(weighed(job), cluster, plan), limits)
    except TraincastError:
        return None
    sure = (answer.memory.fit_probability, figures.deadline_probability, figures.budget_probability)
    if any(probability is not None and probability < limits.confidence for probability in sure):
        return None
    candidate = Candidate(cluster=cluster, parallelism=plan, batch=job.graph.batch_size)
    return Plan(
        candidate=candidate, forecast=answer, figures=figures, deadline_probability=figures.deadline_probability
    )


def highlight(found: Search, plain: Plan | None) -> tuple[Highlight, ...]:
    """The plain plan first, where there is one, then what is better than it by more than a little, each plan once."""
    listed = (*found.plans, *found.front)
    if not listed:
        return ()
    first = plain or found.plans[0]
    before = first.figures
    made = [Highlight(title="simplest" if plain is not None else "best", plan=first, ratios={})]
    for objective in OBJECTIVES:
        best = pick_best(listed, objective)
        after = best.figures
        ratios = {name: after.of(name) / before.of(name) for name in OBJECTIVES if 0 < before.of(name) < float("inf")}
        if ratios.get(objective, 1.0) < 1 - WORTH_NAMING:
            known = next((each for each in made if each.plan.candidate == best.candidate), None)
            title = TITLES[objective] if known is None else f"{known.title}, {TITLES[objective]}"
            made = [each for each in made if each is not known]
            made.append(Highlight(title=title, plan=best, ratios=ratios))
    return tuple(made)
