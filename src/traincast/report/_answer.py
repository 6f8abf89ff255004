"""A forecast with its question to the whole text of the command: remedies, prices, work and the next command with it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from traincast.report._follow_up import after_forecast
from traincast.report._paint import Paint
from traincast.report._remedies import list_remedies
from traincast.report._table import PLAIN
from traincast.report._text import describe_plan, describe_price, format_forecast, top_work
from traincast.spec import Forecast, Parallelism, Timeline

if TYPE_CHECKING:
    from traincast.forecast import Origin
    from traincast.plan import JobPrice


def format_answer(
    answer: Forecast, *, paint: Paint = PLAIN, explain: bool = False, price_file: Path | None = None
) -> str:
    """The text that `traincast forecast` prints; without a question, what the forecast itself says."""
    origin: Origin | None = answer.origin
    if origin is None:
        return format_forecast(answer, paint=paint, explain=explain)
    resolved = origin.resolved
    asked = (
        describe_plan(resolved.parallelism, batch_size=resolved.job.graph.batch_size),
        describe_price(resolved.cluster),
    )
    return format_forecast(
        answer, paint=paint, explain=explain, asked=[line for line in asked if line],
        remedies=() if answer.memory.fits else list_remedies(origin.question, resolved, answer),
        then=after_forecast(origin.question, answer), work=None if answer.timeline.spans else _add_up_work(origin),
        prices=_find_prices(answer, origin, price_file), price_table=explain or price_file is not None,
    )  # fmt: skip


def _find_prices(answer: Forecast, origin: "Origin", file: Path | None) -> "Sequence[JobPrice]":
    from traincast.plan import price_everywhere, read_prices

    resolved = origin.resolved
    prices = None if file is None else read_prices(file)
    given = resolved.cluster.price_source == "given"
    return () if given else price_everywhere(answer, resolved.job, resolved.cluster, prices=prices)


def _add_up_work(origin: "Origin") -> list[tuple[str, str, float]]:
    """What keeps one rank busy in a step that was not drawn, from steps of one and of two passes: every further pass adds the
    same."""
    plan = origin.resolved.parallelism
    shorter = [_draw_step(origin, dataclasses.replace(plan, micro_batches=count * plan.pipeline)) for count in (1, 2)]
    one, two = ({(name, category): seconds for name, category, seconds in top_work(each)} for each in shorter)
    passes = plan.micro_batches / plan.pipeline
    totals = {key: one.get(key, 0.0) + (passes - 1) * (two[key] - one.get(key, 0.0)) for key in two}
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    return [(name, category, seconds) for (name, category), seconds in ranked]


def _draw_step(origin: "Origin", plan: Parallelism) -> Timeline:
    from traincast.forecast import forecast as run_forecast
    from traincast.forecast import plain_engine

    job, cluster = origin.resolved.job, origin.resolved.cluster
    if origin.calibration is None and job.regime is None and job.rampup_batch is None:
        return plain_engine().draw_step(job, cluster, plan)
    return run_forecast(job, cluster, plan, calibration=origin.calibration, draw=True).timeline
