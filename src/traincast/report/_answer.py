"""A forecast with what is told beside it to the whole text of the command: remedies, prices and the next command with it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from traincast.report._follow_up import after_forecast, ask_again
from traincast.report._paint import PIPE_WIDTH, Paint
from traincast.report._table import PLAIN
from traincast.report._text import describe_plan, describe_price, format_forecast, list_remedies
from traincast.spec import Forecast
from traincast.units import show_bytes, show_change, show_usd

if TYPE_CHECKING:
    from traincast.forecast import Origin
    from traincast.plan import Remedy, Told


def format_answer(
    answer: Forecast, told: "Told", *, paint: Paint = PLAIN, explain: bool = False, price_table: bool = False
) -> str:
    """The text that `traincast forecast` prints; without a question, what the forecast itself says."""
    origin: Origin | None = answer.origin
    if origin is None:
        return format_forecast(answer, paint=paint, explain=explain)
    resolved = origin.resolved
    return format_forecast(
        answer, paint=paint, explain=explain, price=describe_price(resolved.cluster), meter=told.meter,
        plan=describe_plan(resolved.parallelism, batch_size=resolved.job.graph.batch_size),
        remedies=tuple(_say_remedies(answer, told)), then=after_forecast(origin.question, answer),
        prices=told.prices, price_table=explain or price_table,
    )  # fmt: skip


def tell_answer(answer: Forecast) -> str:
    """The same of a forecast alone, as Python prints it."""
    from traincast.plan import tell

    return format_answer(answer, tell(answer), paint=Paint(width=PIPE_WIDTH))


def format_remedies(remedies: "Sequence[Remedy]", *, paint: Paint = PLAIN) -> str:
    """Changes that make a job fit, each with its command; empty where there are none."""
    texts = [f"{_say_remedy(each)}\n{ask_again(each.question)}" for each in remedies]
    return "\n".join(list_remedies(texts, paint))


def _say_remedies(answer: Forecast, told: "Told") -> Iterator[str]:
    if told.is_elsewhere:
        count, size = answer.num_devices, show_bytes(answer.memory.capacity_bytes)
        yield f"No change makes it fit on {count} device{'s' if count > 1 else ''} of {size}."
    for remedy in told.remedies:
        yield f"{_say_remedy(remedy)}\n{ask_again(remedy.question)}"


def _say_remedy(remedy: "Remedy") -> str:
    words = remedy.change
    if remedy.needed_bytes is not None:
        words += f": {show_bytes(remedy.needed_bytes)} per device"
    if remedy.seconds_ratio is not None:
        words += f", {show_change(remedy.seconds_ratio)} time per sample"
    return words if remedy.usd is None else f"{words}, {show_usd(remedy.usd)} for the job"
