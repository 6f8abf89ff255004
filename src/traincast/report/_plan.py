"""Plans to a table, to a sentence where there is none and to JSON data."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from traincast.plan import Delta, Highlight, Miss, Plan, Search
from traincast.report._document import document_forecast, plain_data
from traincast.report._paint import Paint
from traincast.report._table import PLAIN, Table, format_table
from traincast.report._text import _wrap, abbreviate_plan, describe_plan, say_memory, say_next, show_energy
from traincast.units import HOUR_S, MEGA, show_bytes, show_change, show_number, show_seconds, show_usd

_HEADINGS = ("cluster", "plan", "step", "job", "P(in time)", "cost", "energy", "memory", "P(fits)", "front")
ABBREVIATIONS = (
    "mb: micro-batch x gradient accumulation; dp, tp, pp, cp, ep: data, tensor, pipeline, context, expert parallel; vp: virtual "
    "stages; sp: sequence parallel; ac: activation checkpointing"
)


def format_search(
    found: Search, *, highlights: Sequence[Highlight] = (), prices: str = "", paint: Paint = PLAIN, then: str = "",
    tokens: int | None = None,
) -> str:  # fmt: skip
    """The plans worth a look, the ranked plans, the front where it holds others, and how many plans stand behind the answer.
    `then`: the one command worth running next. `tokens`: of a sample; None: of no text."""
    blocks = []
    if highlights:
        blocks.append("\n".join(line for each in highlights for line in _say_highlight(each, tokens, paint)))
    if prices:
        blocks.append(prices)
    if found.plans:
        title = "All that were looked at, best first" if highlights else ""
        blocks.append(format_table(_table(found.plans, title, tokens), paint=paint))
        others = [plan for plan in found.front if plan.candidate not in [best.candidate for best in found.plans]]
        if others:
            blocks.append(
                format_table(_table(others, "More on the front of time, money and energy", tokens), paint=paint)
            )
        blocks[-1] += "".join(f"\n{paint(line, 'dim')}" for line in _wrap(f"({ABBREVIATIONS})", paint))
    else:
        blocks.append("\n".join(_say_miss(found.nearest, paint)))
    blocks.append("\n".join(_account(found)))
    if then:
        blocks.append(say_next(then, paint=paint))
    return "\n\n".join(blocks) + "\n"


def _say_miss(nearest: Miss | None, paint: Paint) -> Iterator[str]:
    """Which limit binds, and what would keep it."""
    if nearest is None:
        yield paint("No plan can run.", "red", "bold")
        return
    yield paint(f"No plan keeps every limit; what binds is the limit on {nearest.limit}.", "red", "bold")
    yield f"Nearest: {say_candidate(nearest.candidate)} {nearest.says}."
    if nearest.probability is not None and nearest.probability >= 0.01:
        yield f"With less certainty it is taken: --confidence {math.floor(100 * nearest.probability) / 100:g}"


GAINS = {"time": "time", "money": "money", "energy": "energy"}


def _say_highlight(each: Highlight, tokens: int | None, paint: Paint) -> Iterator[str]:
    plan, answer = each.plan, each.plan.forecast
    amounts = [show_seconds(answer.step.seconds) + " a step"]
    if answer.job.num_steps > 1:
        amounts.append(show_seconds(answer.job.total.seconds))
        amounts += [] if answer.usd is None else [show_usd(answer.usd.value)]
    elif (each_usd := _usd_per_million(plan, tokens)) is not None:
        amounts.append(f"{show_usd(each_usd)} per million {'tokens' if tokens else 'samples'}")
    amounts.append(f"{say_memory(answer.memory)}")
    words = describe_plan(plan.parallelism, batch_size=plan.batch)
    yield f"{paint(each.title.capitalize(), 'bold')}: {plan.cluster.name}, {words}"
    yield f"  {', '.join(amounts)}"
    if each.ratios:
        changed = [
            f"{show_change(ratio)} {GAINS[name]}" for name, ratio in each.ratios.items() if abs(ratio - 1) >= 0.005
        ]
        yield paint(f"  against the first: {', '.join(changed)}", "dim")


def say_candidate(candidate: Any) -> str:
    plan = describe_plan(candidate.parallelism, batch_size=candidate.batch)
    return f"{candidate.cluster.name}, {plan},"


def _account(found: Search) -> Iterator[str]:
    yield (
        f"{found.num_plans:,} plans: {found.num_evaluated:,} worked out and within the limits, {found.num_pruned:,} shown by "
        f"a bound to be no better, {sum(found.excluded.values()):,} excluded."
    )
    for limit, count in sorted(found.excluded.items(), key=lambda item: -item[1]):
        yield f"  {limit}: {count:,} plans excluded"
    if found.stopped:
        yield f"  {found.stopped}: plans that were not reached may be better"
    yield from (f"  {note}" for note in found.notes)


def _table(plans: Sequence[Plan], title: str, tokens: int | None) -> Table:
    """A job without a length has no time and no cost of its own: then what a second and a million tokens are."""
    timed = any(plan.deadline_probability is not None for plan in plans)
    is_job = any(plan.forecast.job.num_steps > 1 for plan in plans)
    keep = [place for place, name in enumerate(_HEADINGS) if timed or name != "P(in time)"]
    unit = "tokens" if tokens else "samples"
    named = _HEADINGS if is_job else _name_rates(unit)
    rows = (_row(plan) if is_job else _row_of_rates(plan, tokens) for plan in plans)
    return Table(
        headings=tuple(named[place] for place in keep),
        rows=tuple(tuple(row[place] for place in keep) for row in rows),
        left=frozenset({"cluster", "plan", "front"}),
        title=title,
    )


def _name_rates(unit: str) -> tuple[str, ...]:
    """What the columns are called where a job has no length."""
    others = {"job": f"{unit}/s", "cost": f"per million {unit}", "energy": "energy of a step"}
    return tuple(others.get(name, name) for name in _HEADINGS)


def _usd_per_million(plan: Plan, tokens: int | None) -> float | None:
    """Of tokens, or of samples that have none, while it trains."""
    rate = plan.cluster.usd_per_hour
    return None if rate is None else rate / HOUR_S / (plan.forecast.samples_per_s * (tokens or 1)) * MEGA


def _row_of_rates(plan: Plan, tokens: int | None) -> tuple[str, ...]:
    row, usd = list(_row(plan)), _usd_per_million(plan, tokens)
    row[3] = show_number(plan.forecast.samples_per_s * (tokens or 1))
    row[5] = "unknown" if usd is None else show_usd(usd)
    return tuple(row)


def _row(plan: Plan) -> tuple[str, ...]:
    answer = plan.forecast
    words = abbreviate_plan(plan.parallelism, batch_size=plan.batch)
    return (
        plan.cluster.name,
        words,
        show_seconds(answer.step.seconds),
        show_seconds(answer.job.total.seconds),
        "" if plan.deadline_probability is None else f"{plan.deadline_probability:.0%}",
        "unknown" if answer.usd is None else show_usd(answer.usd.value),
        "unknown" if answer.energy_joules is None else show_energy(answer.energy_joules),
        show_bytes(answer.memory.needed_bytes),
        f"{answer.memory.fit_probability:.0%}",
        "*" if plan.on_front else "",
    )


def format_deltas(base: Plan, deltas: Sequence[Delta], *, paint: Paint = PLAIN) -> str:
    """What one change does to time, memory and money."""
    headings = ("what if", "step", "job", "cost", "energy", "memory", "P(fits)")
    first = base.forecast
    rows = [
        (
            "as it is",
            show_seconds(first.step.seconds),
            show_seconds(first.job.total.seconds),
            "unknown" if first.usd is None else show_usd(first.usd.value),
            "unknown" if first.energy_joules is None else show_energy(first.energy_joules),
            show_bytes(first.memory.needed_bytes),
            f"{first.memory.fit_probability:.0%}",
        )
    ]
    for delta in deltas:
        after = delta.after
        rows.append(
            (
                delta.change,
                f"{show_seconds(after.step.seconds)} ({delta.step_ratio - 1:+.1%})",
                f"{show_seconds(after.job.total.seconds)} ({delta.job_ratio - 1:+.1%})",
                _change(after.usd.value if after.usd else None, delta.usd_ratio, show_usd),
                _change(after.energy_joules, delta.energy_ratio, show_energy),
                f"{show_bytes(after.memory.needed_bytes)} ({delta.memory_ratio - 1:+.1%})",
                f"{after.memory.fit_probability:.0%}",
            )
        )
    return format_table(Table(headings=headings, rows=tuple(rows), left=frozenset({"what if"})), paint=paint)


def _change(amount: float | None, ratio: float | None, show: Any) -> str:
    if amount is None:
        return "unknown"
    return f"{show(amount)} ({ratio - 1:+.1%})" if ratio is not None else str(show(amount))


def document_plan(plan: Plan) -> dict[str, Any]:
    return {
        "cluster": plan.cluster.name,
        "num_nodes": plan.cluster.num_nodes,
        "num_devices": plan.cluster.num_devices,
        "usd_per_hour": plan.cluster.usd_per_hour,
        "parallelism": plain_data(plan.parallelism),
        "batch": plan.batch,
        "deadline_probability": plan.deadline_probability,
        "on_front": plan.on_front,
        "forecast": document_forecast(plan.forecast),
    }


def document_search(found: Search) -> dict[str, Any]:
    nearest = found.nearest
    return {
        "plans": [document_plan(plan) for plan in found.plans],
        "front": [document_plan(plan) for plan in found.front],
        "num_plans": found.num_plans,
        "num_evaluated": found.num_evaluated,
        "num_pruned": found.num_pruned,
        "excluded": dict(found.excluded),
        "nearest": None
        if nearest is None
        else {
            "cluster": nearest.candidate.cluster.name,
            "parallelism": plain_data(nearest.candidate.parallelism),
            "batch": nearest.candidate.batch,
            "limit": nearest.limit,
            "says": nearest.says,
        },
        "notes": list(found.notes),
    }
