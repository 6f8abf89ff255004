"""A forecast to text that a person reads at a glance: the answer, where the time goes, how far to trust it."""

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from traincast.report._paint import Paint
from traincast.report._phases import format_phases
from traincast.report._prices import describe_range, format_prices
from traincast.report._resources import format_resources
from traincast.report._table import PLAIN, Table, format_table
from traincast.spec import Cluster, Estimate, Forecast, HostMemory, MemoryProfile, Parallelism, Range, Span, Timeline
from traincast.units import KWH_JOULES, MEGA, show_bytes, show_number, show_seconds, show_usd

if TYPE_CHECKING:
    from traincast.plan import JobPrice

SHARES = {
    "compute": ("compute", "green"),
    "memory": ("memory access", "cyan"),
    "communication": ("communication", "magenta"),
    "host": ("host", "yellow"),
    "bubble": ("pipeline bubble", "red"),
}
ADVICE = {
    "compute": ("Arithmetic dominates", "a device with a higher FLOP rate or a lower precision helps most"),
    "memory": (
        "Memory access dominates",
        "fusion (torch.compile), fewer bytes per value or more memory bandwidth help most",
    ),
    "communication": (
        "Communication that nothing hides dominates",
        "a faster network, a larger local batch or another plan help most",
    ),
    "host": (
        "The host issues work more slowly than the device does it",
        "a larger batch, torch.compile or CUDA graphs help most",
    ),
    "bubble": ("The pipeline stands empty most of the time", "more micro-batches or fewer stages help most"),
}
GROUND_WORDS = {
    "measured": "measured on this device",
    "transfer": "carried over from other devices",
    "bound": "the physical bound only",
}
LEAST_SHOWN_S = 1e-6
"""Parts of a job below this are nothing that a person would notice."""
_NUM_TOP = 6
_NUM_TOP_EXPLAINED = 15


def format_forecast(
    forecast: Forecast, *, paint: Paint = PLAIN, explain: bool = False, asked: Sequence[str] = (),
    remedies: Sequence[str] = (), then: str = "", work: Sequence[tuple[str, str, float]] | None = None,
    prices: "Sequence[JobPrice]" = (), price_table: bool = False,
) -> str:  # fmt: skip
    """The whole answer; `explain` adds the slowest operations by layer, the parts of the job and of the memory.

    `asked` are lines on what the answer is for (plan, price) that stand under the heading. `remedies`: what would make it fit,
    which stands first where it does not. `then`: the one command worth running next. `work`: as `top_work` gives it, for a
    forecast that was not drawn. `prices`: the job at every provider, as a range or as a table.
    """
    under = [text for text in (*asked, describe_settings(forecast)) if text]
    blocks = [
        "\n".join([_heading(forecast, paint), *(paint(line, "dim") for text in under for line in _wrap(text, paint))]),
        "\n".join(_refusal(forecast.memory, remedies, paint)),
        "\n".join(_answer(forecast, paint, prices)),
        format_phases(forecast, paint),
        format_prices(prices, paint=paint) if price_table else "",
        "\n".join(_shares(forecast, paint)),
        _slowest(
            forecast.timeline, paint, limit=_NUM_TOP_EXPLAINED if explain else _NUM_TOP, by_layer=explain, work=work
        ),
        *([_exposed(forecast, paint), _memory_parts(forecast, paint), _job_parts(forecast, paint)] if explain else []),
        "\n".join(_parts(forecast, paint)) if explain else "",
        format_resources(forecast.resources, run_utilization=forecast.run_utilization, paint=paint) if explain else "",
        "\n".join(_assumed(forecast, paint)),
        "\n".join(_trust(forecast, paint)),
        say_next(then, paint=paint),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def say_next(command: str, *, paint: Paint = PLAIN) -> str:
    """The line that every answer ends with; empty where there is no command."""
    return f"Next: {paint(command, 'bold')}" if command else ""


def say_memory(memory: MemoryProfile) -> str:
    """What one device must hold of what it has: the same words in every command."""
    share = memory.needed_bytes / memory.capacity_bytes
    return f"{show_bytes(memory.needed_bytes)} of {show_bytes(memory.capacity_bytes)} per device ({share:.0%})"


def _refusal(memory: MemoryProfile, remedies: Sequence[str], paint: Paint) -> Iterator[str]:
    if memory.fits:
        return
    host = memory.host
    if host is not None and host.exceeds:
        yield paint(f"  DOES NOT FIT: a host needs {say_host(host)}.", "red", "bold")
    else:
        if memory.needed_bytes <= memory.capacity_bytes:
            chance = max(memory.fit_probability, memory.frugal_probability or 0.0)
            words = f"MAY NOT FIT: it needs about {say_memory(memory)}, and only {chance:.0%} of such runs would fit."
        else:
            words = f"DOES NOT FIT: it needs {say_memory(memory)}."
        yield paint(f"  {words}", "red", "bold")
    for text in remedies:
        yield from _wrap(f"- {text}", paint, indent="    ")


def dominant_share(forecast: Forecast) -> str:
    return max(SHARES, key=lambda name: forecast.timeline.shares.get(name, 0.0))


def say_dominant(forecast: Forecast) -> str:
    """What limits the step, in a sentence."""
    name = dominant_share(forecast)
    what, remedy = ADVICE[name]
    return f"{what} ({forecast.timeline.shares.get(name, 0.0):.0%} of the step): {remedy}."


def top_tasks(timeline: Timeline, *, by_layer: bool = False) -> list[tuple[str, str, float]]:
    """(name, category, seconds) of what keeps rank 0 busiest, longest first."""
    rank = min((span.rank for span in timeline.spans), default=0)
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for span in timeline.spans:
        if span.rank == rank and span.category not in ("bubble", "wait"):
            name = f"{span.name} @ {span.layer}" if by_layer and span.layer else span.name
            totals[name, span.category] += span.end_s - span.start_s
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return [(name, category, seconds) for (name, category), seconds in ranked]


def describe_plan(plan: Parallelism, *, batch_size: int) -> str:
    """'batch 8 x 4 passes x 16 replicas; tensor 2, zero 1': only what differs from one plain device."""
    batch = [f"batch {batch_size}"]
    if plan.micro_batches > 1:
        batch.append(f"{plan.micro_batches} passes")
    if plan.data > 1:
        batch.append(f"{plan.data} replicas")
    degrees = {"tensor": plan.tensor, "pipeline": plan.pipeline, "context": plan.context, "expert": plan.expert}
    words = [f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1]
    if plan.pipeline > 1:
        virtual = f" with {plan.virtual_stages} virtual stages" if plan.virtual_stages > 1 else ""
        words.append(f"order {plan.order}{virtual}")
    words.extend([f"zero {plan.zero}"] if plan.zero else [])
    words.extend(["sequence parallel"] if plan.sequence_parallel else [])
    words.extend([f"recompute {plan.recompute}"] if plan.recompute != "none" else [])
    words.extend(["optimizer state offloaded"] if plan.offload_optimizer else [])
    words.extend(["weights offloaded"] if plan.offload_weights else [])
    words.extend(["activations offloaded"] if plan.offload_activations else [])
    words.extend(["to nvme"] if plan.offload_to == "nvme" else [])
    return "; ".join(part for part in (" x ".join(batch), ", ".join(words)) if part)


def format_assumptions(assumptions: Sequence[str], *, flags: Sequence[str] = (), paint: Paint = PLAIN) -> str:
    """What nobody said and was filled in: as flags on one line, then in a sentence each; empty where there is nothing."""
    lines = [line for text in dict.fromkeys(assumptions) for line in _wrap(f"- {text}", paint, indent="    ")]
    # One line, however long, so that it can be copied.
    copied = [f"  {' '.join(flags)}"] if flags else []
    return "\n".join([paint("Assumed", "bold"), *copied, *(paint(line, "dim") for line in lines)]) if lines else ""


def describe_settings(forecast: Forecast) -> str:
    """'bf16, sequences of 4,096, stack fsdp2, compiled': what the numbers are for; empty where no question was resolved."""
    settings = forecast.settings
    if not settings:
        return ""
    words = [str(settings["precision"])]
    if settings.get("seq"):
        words.append(f"sequences of {settings['seq']:,}")
    batch, passes = settings["batch"], settings["micro_batches"]
    words.append(f"global batch {settings['global_batch']:,} in {passes} micro-batch{'es' * (passes > 1)} of {batch:,}")
    words.append(f"stack {settings['stack']}")
    return ", ".join([*words, *(["compiled"] if settings.get("compiled") else [])])


def describe_price(cluster: Cluster) -> str:
    """Where the price comes from; empty where there is none."""
    rate = cluster.usd_per_hour
    if rate is None:
        return ""
    source, age = cluster.price_source, ""
    if source.startswith("median ") and source.count(",") > 1:
        # The machines are listed with their prices where prices are.
        source = f"median on-demand price of {source.count(',') + 1} machines"
        age = "oldest of "
    where = ", ".join(part for part in (source, cluster.price_date and f"{age}{cluster.price_date}") if part)
    return f"{show_usd(rate)} per hour for the cluster" + (f" ({where})" if where else "")


def show_interval(estimate: Estimate) -> str:
    return f"{show_seconds(estimate.low_s)} to {show_seconds(estimate.high_s)}"


def _heading(forecast: Forecast, paint: Paint) -> str:
    devices = f"{forecast.num_devices} x {forecast.device}"
    where = f"{forecast.cluster} ({devices})" if forecast.device not in forecast.cluster else forecast.cluster
    return f"{paint(forecast.workload, 'bold')} on {paint(where, 'bold')}, {forecast.global_batch:,} samples per step"


def _answer(forecast: Forecast, paint: Paint, prices: "Sequence[JobPrice]" = ()) -> Iterator[str]:
    step, seq = forecast.step, forecast.settings.get("seq")
    yield _line("step", paint(show_seconds(step.seconds), "bold"), f"90% interval {show_interval(step)}", paint)
    samples = f"{show_number(forecast.samples_per_s)} samples/s"
    speed = f"{show_number(forecast.samples_per_s * seq)} tokens/s ({samples})" if seq else samples
    yield _line("throughput", speed, f"{forecast.utilization:.0%} of the peak FLOP rate", paint)
    if forecast.job.num_steps > 1:
        yield from _job_lines(forecast, paint)
        yield from _price_lines(prices, paint)
    else:
        ways = "--tokens, --steps or --samples" if seq else "--steps, --samples or --epochs"
        yield _line("job", "not asked", f"give {ways} for its time, cost and energy", paint)
    yield _memory_line(forecast, paint)
    yield from _memory_beside(forecast.memory, paint)


def _job_lines(forecast: Forecast, paint: Paint) -> Iterator[str]:
    total = forecast.job.total
    remark = f"{forecast.job.num_steps:,.0f} steps, {show_interval(total)}"
    yield _line("job", paint(show_seconds(total.seconds), "bold"), remark, paint)
    if forecast.usd is None:
        yield _line("cost", "unknown", "no price for this cluster; give one with --price", paint)
    else:
        yield _line("cost", paint(show_usd(forecast.usd.value), "bold"), _cost_remark(forecast, forecast.usd), paint)
    if forecast.energy_joules is not None:
        yield _line("energy", show_energy(forecast.energy_joules), _show_energy_range(forecast), paint)
    if forecast.kg_co2 is not None:
        ends = f"of that energy there, {show_mass(forecast.kg_co2.low)} to {show_mass(forecast.kg_co2.high)}"
        yield _line("CO2", show_mass(forecast.kg_co2.value), ends, paint)


def _price_lines(prices: "Sequence[JobPrice]", paint: Paint) -> Iterator[str]:
    found = describe_range(prices)
    if found:
        old = sum(each.is_stale for each in prices)
        yield _line("providers", found, f"{old} of {len(prices)} prices are old" if old else "", paint)


def show_energy(joules: float) -> str:
    """2,920 kWh; above ten thousand in MWh."""
    kwh = joules / KWH_JOULES
    return f"{show_number(kwh)} kWh" if kwh < 10_000 else f"{show_number(kwh / 1000)} MWh"


def show_mass(kg: float) -> str:
    """148 kg; above ten thousand in tonnes."""
    return f"{show_number(kg)} kg" if kg < 10_000 else f"{show_number(kg / 1000)} t"


def _cost_remark(forecast: Forecast, usd: Range) -> str:
    seq = forecast.settings.get("seq")
    if not seq or not usd.value:
        return _show_usd_range(usd)
    tokens = (forecast.job.num_samples or forecast.job.num_steps * forecast.global_batch) * seq
    return f"{_show_usd_range(usd)}; {show_usd(usd.value / tokens * MEGA)} per million tokens"


def _show_energy_range(forecast: Forecast) -> str:
    found = forecast.energy_range
    ends = "" if found is None else f", {show_energy(found.low)} to {show_energy(found.high)}"
    return f"all devices, whole job{ends}"


def say_fit(memory: MemoryProfile) -> str:
    """'fits with 97%', 'MAY NOT FIT (71%)' or 'DOES NOT FIT (12%)': how often a run with such a forecast needs no more than there
    is."""
    chance = max(memory.fit_probability, memory.frugal_probability or 0.0)
    sure = f"{chance:.0%}" if 0.005 <= chance <= 0.994 else "more than 99%" if chance > 0.5 else "less than 1%"
    if memory.fits:
        return f"fits with {sure}"
    return f"{'MAY' if memory.needed_bytes <= memory.capacity_bytes else 'DOES'} NOT FIT ({sure})"


def _memory_line(forecast: Forecast, paint: Paint) -> str:
    memory = forecast.memory
    share = memory.needed_bytes / memory.capacity_bytes
    style = "red" if not memory.fits else "yellow" if share > 0.9 else "green"
    verdict = paint(say_fit(memory), style) if memory.fits else paint(say_fit(memory), style, "bold")
    bar = paint.bar(share, width=16, style=style)
    return f"  {'memory':<12}{bar} {say_memory(memory)}: {verdict}"


def say_moments(memory: MemoryProfile) -> str:
    """'checkpoint 71.2 GiB, evaluation 40 GiB': devices outside the step; empty where the job has no such moment."""
    return ", ".join(f"{one.name} {show_bytes(one.peak_bytes + memory.outside_bytes)}" for one in memory.moments)


def say_host(host: HostMemory) -> str:
    """'412 GiB of 2 TiB per node (20%): optimizer state 384 GiB, processes 28 GiB'."""
    parts = sorted(host.by_part.items(), key=lambda item: -item[1])
    words = ", ".join(f"{name} {show_bytes(amount)}" for name, amount in parts)
    if host.capacity_bytes is None:
        return f"{show_bytes(host.needed_bytes)} per node, of a host that is not known (--host-memory): {words}"
    share = host.needed_bytes / host.capacity_bytes
    return f"{show_bytes(host.needed_bytes)} of {show_bytes(host.capacity_bytes)} per node ({share:.0%}): {words}"


def _memory_beside(memory: MemoryProfile, paint: Paint) -> Iterator[str]:
    """Moments outside the step, and the host."""
    if memory.moments:
        yield _line("", say_moments(memory), "per device outside the step", paint)
    if memory.host is not None:
        style = "red" if memory.host.exceeds else "green"
        head, _, parts = say_host(memory.host).partition(": ")
        yield _line("host memory", paint(head, style), parts, paint)


def _line(name: str, value: str, remark: str, paint: Paint) -> str:
    return f"  {name:<12}{value}  {paint(remark, 'dim')}".rstrip()


def _show_usd_range(usd: Range) -> str:
    return f"{show_usd(usd.low)} to {show_usd(usd.high)}"


LEAST_SHARE = 5e-3
"""A part of a step that is smaller has no line of its own."""


def _shares(forecast: Forecast, paint: Paint) -> Iterator[str]:
    timeline = forecast.timeline
    yield paint("Where the step goes", "bold")
    for name, (label, style) in SHARES.items():
        share = timeline.shares.get(name, 0.0)
        if share < LEAST_SHARE:
            continue
        bar = paint.bar(share, width=40, style=style)
        yield f"  {label:<16}{bar} {share:>4.0%}  {show_seconds(share * timeline.duration_s)}"
    hidden_s = timeline.communication_s - timeline.shares.get("communication", 0.0) * timeline.duration_s
    if hidden_s > 0.005 * timeline.duration_s:
        yield paint(f"  {show_seconds(hidden_s)} of communication runs hidden behind computation.", "dim")
    yield from _wrap(say_dominant(forecast), paint)


def _slowest(
    timeline: Timeline, paint: Paint, *, limit: int, by_layer: bool, work: Sequence[tuple[str, str, float]] | None
) -> str:
    tasks = top_tasks(timeline, by_layer=True) if by_layer else work or top_work(timeline)
    if not tasks:
        return ""
    whole_s = timeline.duration_s or 1.0
    first = "slowest kernels" if by_layer else "what takes longest"
    rows = tuple(
        (
            f"  {_shorten(name, 60)}",
            SHARES.get(category, (category, ""))[0],
            show_seconds(seconds),
            f"{seconds / whole_s:.0%}",
        )
        for name, category, seconds in tasks[:limit]
        if seconds >= LEAST_SHARE * whole_s
    )
    table = Table(
        headings=(f"  {first}", "limited by", "time", "of step"),
        rows=rows,
        left=frozenset({f"  {first}", "limited by"}),
    )
    return format_table(table, paint=paint)


def top_work(timeline: Timeline) -> list[tuple[str, str, float]]:
    """(layer and what it does, category, seconds) of what keeps one rank busiest, longest first."""
    rank = min((span.rank for span in timeline.spans), default=0)
    totals: dict[tuple[str, str], float] = defaultdict(float)
    named: dict[tuple[str, str, str], str] = {}
    for span in timeline.spans:
        if span.rank == rank and span.category not in ("bubble", "wait"):
            same = span.name, span.layer, span.category
            name = named.get(same)
            if name is None:
                name = named[same] = name_work(span)
            totals[name, span.category] += span.end_s - span.start_s
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return [(name, category, seconds) for (name, category), seconds in ranked]


def name_work(span: Span) -> str:
    """What a piece of work is for, without the names of kernels."""
    if span.category == "communication":
        what, _, rest = span.name.partition("[")
        axis = rest.partition("]")[0]
        return COMMUNICATION.get((what, axis)) or f"{what.replace('_', ' ')} over the {axis or 'data'} axis"
    if span.layer == "optimizer" or span.name.startswith("optimizer."):
        return "optimizer update"
    parts = [part for part in span.layer.split(".") if part and part != "*" and not part.isdigit()]
    while len(parts) > 1 and re.fullmatch(_CONTAINERS, parts[0]):
        parts = parts[1:]
    where = " ".join(parts[:2]).replace("_", " ") or "model"
    return f"{where}: {WORK.get(span.category, span.category)}"


COMMUNICATION = {
    ("gradients", "data"): "sum gradients over replicas",
    ("all_gather", "data"): "gather sharded weights",
    ("reduce_scatter", "data"): "sum and shard gradients",
    ("all_reduce", "tensor"): "exchange activations, tensor parallel",
    ("all_gather", "tensor"): "gather activations, tensor parallel",
    ("reduce_scatter", "tensor"): "sum activations, tensor parallel",
    ("all_to_all", "expert"): "send tokens to experts and back",
    ("send_recv", "pipeline"): "hand activations from stage to stage",
    ("all_gather", "context"): "gather keys and values of other parts of a sample",
    ("reduce_scatter", "context"): "sum gradients of keys and values",
}
"""(collective, axis) in words."""
WORK = {"compute": "products", "memory": "element-wise work", "host": "waiting for the host"}
_CONTAINERS = "layers?|model|module|transformer|encoder|decoder|blocks?|h|net|backbone"


def _exposed(forecast: Forecast, paint: Paint) -> str:
    exposed = {axis: seconds for axis, seconds in forecast.timeline.exposed_by_axis.items() if seconds > 0}
    if not exposed:
        return ""
    lines = [paint("Communication that nothing hides", "bold")]
    lines.extend(f"  {axis:<16}{show_seconds(seconds)}" for axis, seconds in exposed.items())
    return "\n".join(lines)


def _memory_parts(forecast: Forecast, paint: Paint) -> str:
    memory = forecast.memory
    lines = [paint("Memory at its peak", "bold") + (f" ({memory.peak_at})" if memory.peak_at else "")]
    for role, amount in sorted(memory.by_role.items(), key=lambda item: -item[1]):
        share = amount / memory.peak_bytes if memory.peak_bytes else 0.0
        bar = paint.bar(share, width=40, style="blue")
        lines.append(f"  {role.replace('_', ' '):<16}{bar} {share:>4.0%}  {show_bytes(amount)}")
    for name, amount in memory.outside_parts.items():
        lines.append(f"  {name:<57} {show_bytes(amount)}  {paint('beside the allocator', 'dim')}")
    for moment in memory.moments:
        words = ", ".join(f"{role.replace('_', ' ')} {show_bytes(amount)}" for role, amount in moment.by_role.items())
        lines += list(_wrap(f"At {_article(moment.name)} {show_bytes(moment.peak_bytes)}: {words}.", paint))
    return "\n".join(lines)


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


PART_WORDS = {
    "physics": "physics alone", "layers": "layer models", "interaction": "interaction", "reuse": "reuse predictor",
    "interaction: kinds": "  by class", "interaction: operators": "  by operator", "interaction: graph": "  by graph",
}  # fmt: skip


def _parts(forecast: Forecast, paint: Paint) -> Iterator[str]:
    """What each part says by itself; the one that answers is marked."""
    if not forecast.parts:
        return
    yield paint("Which part answers", "bold")
    for part in forecast.parts:
        name = f"{'>' if part.is_answer else ' '} {PART_WORDS.get(part.name, part.name):<16}"
        amount = "-" if part.step is None else show_seconds(part.step.seconds)
        head = f"  {name}{amount:<10} "
        for index, line in enumerate(textwrap.wrap(part.says, width=max(paint.width - len(head), 40))):
            lead = f"  {paint(name, 'bold') if part.is_answer else name}{amount:<10} " if not index else " " * len(head)
            yield f"{lead}{paint(line, 'dim')}"


def _job_parts(forecast: Forecast, paint: Paint) -> str:
    job = forecast.job
    parts = {
        "start-up": job.startup_s,
        "compilation": job.compile_s,
        "training": job.training_s,
        "evaluation": job.evaluation_s,
        "checkpoints": job.checkpoint_s,
        "waiting for data": job.loading_stall_s,
        "logging": job.logging_s,
        "restarts": job.restarts_s,
    }
    lines = [paint("The whole job", "bold")]
    lines.extend(f"  {name:<18}{show_seconds(seconds)}" for name, seconds in parts.items() if seconds >= LEAST_SHOWN_S)
    return "\n".join(lines) if len(lines) > 1 else ""


def _assumed(forecast: Forecast, paint: Paint) -> Iterator[str]:
    if forecast.assumptions:
        yield format_assumptions(forecast.assumptions, flags=forecast.settings.get("flags", ()), paint=paint)


def _trust(forecast: Forecast, paint: Paint) -> Iterator[str]:
    grounds = [
        f"{forecast.grounds[name]:.0%} {words}" for name, words in GROUND_WORDS.items() if forecast.grounds.get(name)
    ]
    if grounds:
        yield from _wrap(f"Rests on (by device time): {', '.join(grounds)}.", paint)
    if forecast.unknown_ops:
        names = ", ".join(forecast.unknown_ops)
        for line in _wrap(f"No FLOP formula, timed by bytes alone: {names}.", paint):
            yield paint(line, "yellow")
    for note in forecast.notes:
        for line in _wrap(f"- {note}", paint, indent="    "):
            yield paint(line, "dim")


def _wrap(text: str, paint: Paint, *, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, width=paint.width, initial_indent="  ", subsequent_indent=indent) or [""]


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
