"""A forecast to text that a person reads at a glance: the answer, where the time goes, how far to trust it."""

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from traincast.report._paint import Paint
from traincast.report._phases import format_phases
from traincast.report._prices import describe_range, format_prices
from traincast.report._table import PLAIN
from traincast.spec import (
    BusyTime,
    Cluster,
    Estimate,
    Forecast,
    HostMemory,
    MemoryProfile,
    Parallelism,
    Range,
    Timeline,
)
from traincast.units import GIGA, KWH_JOULES, MEGA, show_bytes, show_number, show_seconds, show_usd

if TYPE_CHECKING:
    from traincast.forecast import DeviceMemory
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


def format_forecast(
    forecast: Forecast, *, paint: Paint = PLAIN, explain: bool = False, plan: str = "",
    remedies: Sequence[str] = (), then: str = "", price: str = "", meter: "DeviceMemory | None" = None,
    prices: "Sequence[JobPrice]" = (), price_table: bool = False,
) -> str:  # fmt: skip
    """The answer on one screen; `explain` adds where the time goes, the parts of the job and of the memory, what is assumed and
    what it rests on.

    `plan` and `price`: what the answer is for. `remedies`: what would make it fit, where it does not. `meter`: what the device's
    own meter will show. `then`: the one command worth running next. `prices`: the job at every provider.
    """
    from traincast.report._explain import explain_forecast

    fits = forecast.memory.is_safe
    blocks = [
        "\n".join([_heading(forecast, paint), *_settings(forecast, plan, paint)]),
        "\n".join(_refusal(forecast.memory, remedies, paint)),
        "\n".join([*_answer(forecast, paint, price, prices), *_memory(forecast, meter, paint)]),
        format_phases(forecast, paint, explain=explain),
        "\n".join(_largest_costs(forecast.timeline, paint)) if fits and not explain else "",
        *(explain_forecast(forecast, paint=paint) if explain else ()),
        format_prices(prices, paint=paint) if price_table else "",
        "\n".join(_assumed(forecast, paint, explain=explain)),
        say_next(then, paint=paint),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _settings(forecast: Forecast, plan: str, paint: Paint) -> Iterator[str]:
    for name, text in (("plan", plan), ("settings", describe_settings(forecast))):
        for place, line in enumerate(textwrap.wrap(text, width=max(paint.width - 14, 40))):
            yield f"  {'' if place else name:<12}{line}"


def say_next(command: str, *, paint: Paint = PLAIN) -> str:
    """The line that every answer ends with; empty where there is no command."""
    return f"Next: {paint(command, 'bold')}" if command else ""


def say_memory(memory: MemoryProfile) -> str:
    """What one device must hold of what it has: the same words in every command."""
    share = memory.needed_bytes / memory.capacity_bytes
    return f"{show_bytes(memory.needed_bytes)} of {show_bytes(memory.capacity_bytes)} per device ({share:.0%})"


def _refusal(memory: MemoryProfile, remedies: Sequence[str], paint: Paint) -> Iterator[str]:
    if memory.is_safe:
        return
    host = memory.host
    if host is not None and host.exceeds:
        yield paint(f"  A host needs {say_host(host)}.", "red", "bold")
    yield from list_remedies(remedies, paint)


def list_remedies(remedies: Sequence[str], paint: Paint) -> Iterator[str]:
    """Each in words and, on its second line, the command that asks for it."""
    if remedies:
        yield paint("To make it fit", "bold")
    for text in remedies:
        words, _, command = text.partition("\n")
        yield from _wrap(f"- {words}", paint, indent="    ")
        if command:
            yield f"    {command}"


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
    """'micro-batch 8, gradient accumulation 4, data parallel 16; tensor parallel 2, ZeRO 1': only what differs from one plain
    device."""
    batch = [f"micro-batch {batch_size}"]
    if plan.micro_batches > 1:
        staged = plan.pipeline > 1
        batch.append(f"{plan.micro_batches} micro-batches" if staged else f"gradient accumulation {plan.micro_batches}")
    if plan.data > 1:
        batch.append(f"data parallel {plan.data}")
    degrees = {"tensor": plan.tensor, "pipeline": plan.pipeline, "context": plan.context, "expert": plan.expert}
    words = [f"{axis} parallel {degree}" for axis, degree in degrees.items() if degree > 1]
    if plan.pipeline > 1:
        virtual = f" with {plan.virtual_stages} virtual stages" if plan.virtual_stages > 1 else ""
        words.append(f"order {plan.order}{virtual}")
    words.extend([f"ZeRO {plan.zero}"] if plan.zero else [])
    words.extend(["sequence parallel"] if plan.sequence_parallel else [])
    words.extend([f"embedding tables sharded by {plan.table_sharding}"] if plan.table_sharding else [])
    kept = {"selective-op": "selective", "selective": "selective (attention)"}.get(plan.recompute, plan.recompute)
    words.extend([f"{kept} activation checkpointing"] if plan.recompute != "none" else [])
    words.extend(["optimizer state offloaded"] if plan.offload_optimizer else [])
    words.extend(["weights offloaded"] if plan.offload_weights else [])
    words.extend(["activations offloaded"] if plan.offload_activations else [])
    words.extend(["to nvme"] if plan.offload_to == "nvme" else [])
    return "; ".join(part for part in (", ".join(batch), ", ".join(words)) if part)


def abbreviate_plan(plan: Parallelism, *, batch_size: int) -> str:
    """'mb 8 x 4, dp 16, tp 2, ZeRO 1': the same for a column of a table, in the field's abbreviations."""
    words = [f"mb {batch_size}" + (f" x {plan.micro_batches}" if plan.micro_batches > 1 else "")]
    degrees = {"dp": plan.data, "tp": plan.tensor, "pp": plan.pipeline, "cp": plan.context, "ep": plan.expert}
    words += [f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1]
    if plan.pipeline > 1:
        words.append(plan.order + (f" vp {plan.virtual_stages}" if plan.virtual_stages > 1 else ""))
    words += [f"ZeRO {plan.zero}"] if plan.zero else []
    words += ["sp"] if plan.sequence_parallel else []
    kept = {"selective-op": "selective", "selective": "attention"}.get(plan.recompute, plan.recompute)
    words += [f"{kept} ac"] if plan.recompute != "none" else []
    offloaded = plan.offload_optimizer or plan.offload_weights or plan.offload_activations
    return ", ".join([*words, *(["offload"] if offloaded else [])])


def format_assumptions(assumptions: Sequence[str], *, flags: Sequence[str] = (), paint: Paint = PLAIN) -> str:
    """What nobody said and was filled in: as flags on one line, then in a sentence each; empty where there is nothing."""
    lines = [line for text in dict.fromkeys(assumptions) for line in _wrap(f"- {text}", paint, indent="    ")]
    # One line, however long, so that it can be copied.
    copied = [f"  {' '.join(flags)}"] if flags else []
    return "\n".join([paint("Assumed", "bold"), *copied, *(paint(line, "dim") for line in lines)]) if lines else ""


def describe_settings(forecast: Forecast) -> str:
    """'bf16, sequences of 4,096, framework fsdp2, compiled': what the numbers are for; empty where no question was resolved."""
    settings = forecast.settings
    if not settings:
        return ""
    words = [str(settings["precision"])]
    if settings.get("seq"):
        words.append(f"sequences of {settings['seq']:,}")
    if settings.get("images"):
        words.append(f"images of {settings['images']}")
    words.append(f"global batch {settings['global_batch']:,}")
    words.append(f"framework {settings['stack']}")
    return ", ".join([*words, *(["compiled"] if settings.get("compiled") else [])])


def describe_price(cluster: Cluster) -> str:
    """Where the price comes from; empty where there is none."""
    rate = cluster.usd_per_hour
    if rate is None:
        return ""
    source, age = cluster.price_source, ""
    if source.startswith("median ") and source.count(",") > 1:
        # The machines are listed with their prices where prices are.
        source = f"median of {source.count(',') + 1} machines"
        age = "since "
    where = ", ".join(part for part in (source, cluster.price_date and f"{age}{cluster.price_date}") if part)
    return f"{show_usd(rate)} an hour" + (f" ({where})" if where else "")


def show_interval(estimate: Estimate) -> str:
    return f"{show_seconds(estimate.low_s)} to {show_seconds(estimate.high_s)}"


def _heading(forecast: Forecast, paint: Paint) -> str:
    devices = f"{forecast.num_devices} x {forecast.device}"
    where = f"{forecast.cluster} ({devices})" if forecast.device not in forecast.cluster else forecast.cluster
    memory = forecast.memory
    verdict = paint(say_fit(memory), _mood(memory), "bold")
    return f"{paint(forecast.workload, 'bold')} on {paint(where, 'bold')}: {verdict}"


def _answer(forecast: Forecast, paint: Paint, price: str, prices: "Sequence[JobPrice]") -> Iterator[str]:
    step, seq = forecast.step, forecast.settings.get("seq")
    yield _line("step", paint(show_seconds(step.seconds), "bold"), f"90% interval {show_interval(step)}", paint)
    whole, unit = (forecast.samples_per_s * seq, "tokens/s") if seq else (forecast.samples_per_s, "samples/s")
    each = f"{show_number(whole / forecast.num_devices)} {unit} per device"
    speed = each if forecast.num_devices == 1 else f"{each}, {show_number(whole)} in all"
    yield _line("throughput", speed, say_utilization(forecast), paint)
    if forecast.job.num_steps <= 1:
        yield _line("job", "not asked", "its length gives time, cost and energy (see Next)", paint)
        return
    yield from _job_lines(forecast, paint, price, prices)


def say_utilization(forecast: Forecast) -> str:
    """'36% MFU', and HFU beside it where layers run again."""
    share = forecast.utilization
    again = f", {share * (1 + forecast.recomputed):.0%} HFU" if forecast.recomputed > 0.005 else ""
    return f"{share:.0%} MFU{again}"


def _job_lines(forecast: Forecast, paint: Paint, price: str, prices: "Sequence[JobPrice]") -> Iterator[str]:
    total = forecast.job.total
    remark = f"= {say_job_parts(forecast)}; {show_interval(total)}"
    yield _line("job", paint(show_seconds(total.seconds), "bold"), remark, paint)
    if forecast.usd is None:
        yield _line("cost", "unknown", "no price for this cluster; give one with --price", paint)
    else:
        yield _line("cost", paint(show_usd(forecast.usd.value), "bold"), _cost_remark(forecast, forecast.usd), paint)
        found = describe_range(prices)
        said = "; ".join(text for text in (price, found) if text)
        if said:
            yield _line("price", said, "", paint)
    if forecast.energy_joules is not None:
        mass = "" if forecast.kg_co2 is None else f"; {show_mass(forecast.kg_co2.value)} CO2"
        yield _line("energy", show_energy(forecast.energy_joules), f"{_show_energy_range(forecast)}{mass}", paint)


def say_job_parts(forecast: Forecast) -> str:
    """'28,611 steps 3.21 days + checkpoints 9 min (at 1 GB/s) + start 60 s': what adds up to the job; parts below a thousandth
    are left out."""
    job, rate = forecast.job, forecast.settings.get("checkpoint_bytes_per_s")
    written = f" (at {rate / GIGA:g} GB/s a node)" if rate else ""
    parts = {
        f"{job.num_steps:,.0f} steps": job.training_s + job.loading_stall_s, "evaluation": job.evaluation_s,
        "checkpoints": job.checkpoint_s, "restarts": job.restarts_s, "logging": job.logging_s,
        "start": job.startup_s + job.compile_s,
    }  # fmt: skip
    least = LEAST_PART * job.total.seconds
    return " + ".join(
        f"{name} {show_seconds(seconds)}{written if name == 'checkpoints' else ''}"
        for name, seconds in parts.items()
        if seconds > least
    )


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
    """'97% likely to fit', 'MAY NOT FIT (71% likely)' or 'DOES NOT FIT (12% likely)': how often a run
    with such a forecast needs no more than there is."""
    chance = max(memory.fit_probability, memory.frugal_probability or 0.0)
    sure = f"{chance:.0%}" if 0.005 <= chance <= 0.994 else "more than 99%" if chance > 0.5 else "less than 1%"
    if memory.is_safe:
        return f"{sure} likely to fit"
    return f"{'MAY' if memory.fits or memory.needed_bytes <= memory.capacity_bytes else 'DOES'} NOT FIT ({sure} likely)"


def _mood(memory: MemoryProfile) -> str:
    """The colour of the verdict."""
    return "green" if memory.is_safe else "yellow" if memory.fits else "red"


def _memory(forecast: Forecast, meter: "DeviceMemory | None", paint: Paint) -> Iterator[str]:
    memory = forecast.memory
    share = memory.needed_bytes / memory.capacity_bytes
    bar = paint.bar(share, width=16, style=_mood(memory))
    seen = f"; {say_meter(meter)}" if meter is not None and meter.used_bytes <= memory.capacity_bytes else ""
    yield f"  {'memory':<12}{bar} {say_memory(memory)}{seen}"
    yield from _memory_beside(memory, paint)


def say_meter(meter: "DeviceMemory") -> str:
    """What the device's own meter will show of the same run."""
    return f"nvidia-smi will show about {show_bytes(meter.used_bytes)}"


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
LEAST_PART = 1e-3
MOST_COSTS = 3


def _largest_costs(timeline: Timeline, paint: Paint) -> Iterator[str]:
    tasks = [task for task in top_work(timeline) if task[2] >= LEAST_SHARE * timeline.duration_s][:MOST_COSTS]
    if not tasks:
        return
    yield paint("Largest costs", "bold")
    for name, category, seconds in tasks:
        limit = SHARES.get(category, (category, ""))[0]
        share = seconds / (timeline.duration_s or 1.0)
        yield f"  {_shorten(name, 44):<44} {share:>4.0%} {show_seconds(seconds):>9}  {paint(f'limited by {limit}', 'dim')}"


def top_work(timeline: Timeline) -> list[tuple[str, str, float]]:
    """(layer and what it does, category, seconds) of what keeps one rank busiest, longest first."""
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for one in timeline.work:
        totals[name_work(one), one.category] += one.seconds
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return [(name, category, seconds) for (name, category), seconds in ranked]


def name_work(span: BusyTime) -> str:
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
    ("gradients", "data"): "gradient all-reduce",
    ("all_gather", "data"): "weight all-gather",
    ("reduce_scatter", "data"): "gradient reduce-scatter",
    ("all_reduce", "tensor"): "tensor-parallel all-reduce",
    ("all_gather", "tensor"): "tensor-parallel all-gather",
    ("reduce_scatter", "tensor"): "tensor-parallel reduce-scatter",
    ("all_to_all", "expert"): "expert all-to-all",
    ("send_recv", "pipeline"): "pipeline send and receive",
    ("all_to_all", "context"): "context-parallel all-to-all of attention heads",
    ("all_gather", "context"): "context-parallel all-gather of keys and values",
    ("reduce_scatter", "context"): "context-parallel reduce-scatter of their gradients",
}
"""(collective, axis) in words."""
WORK = {"compute": "matmuls", "memory": "element-wise work", "host": "waiting for the host"}
_CONTAINERS = "layers?|model|module|transformer|encoder|decoder|blocks?|h|net|backbone"


def _assumed(forecast: Forecast, paint: Paint, *, explain: bool) -> Iterator[str]:
    """The flags on one line, to be copied, and the plan that was chosen; every reason with `explain`."""
    if not forecast.assumptions:
        return
    flags = forecast.settings.get("flags", ())
    if explain or not flags:
        yield format_assumptions(forecast.assumptions, flags=flags, paint=paint)
        return
    yield f"{paint('Assumed', 'bold')} {paint('(--explain says why, and what the answer rests on)', 'dim')}"
    yield f"  {' '.join(flags)}"
    if forecast.settings.get("choice"):
        yield from (paint(line, "dim") for line in _wrap(f"- {forecast.settings['choice']}", paint, indent="    "))
    if forecast.unknown_ops:
        names = ", ".join(forecast.unknown_ops)
        yield from (paint(line, "yellow") for line in _wrap(f"No FLOP formula, timed by bytes alone: {names}.", paint))


def _wrap(text: str, paint: Paint, *, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, width=paint.width, initial_indent="  ", subsequent_indent=indent) or [""]


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
