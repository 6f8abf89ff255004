"""Measured runs to what was forecast for them, as the package ships and without what their publisher taught."""

import dataclasses
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.fits.stacks import load_measured
from research.fits.untaught import Untaught, publisher_of
from traincast.accuracy import hide_results, parse_case, read_rows, translate
from traincast.accuracy._cases import Observation, parse_observation
from traincast.accuracy._excused import find_excused
from traincast.accuracy._translate import CaseQuestion
from traincast.catalog import find_stack
from traincast.certainty._certainty import (
    MEMORY,
    STEP,
    Setting,
    activation_share,
    beside_share,
    call_seconds,
    describe_setting,
    feature_seconds,
)
from traincast.certainty._interval import tally_program
from traincast.errors import IllegalPlan, TraincastError
from traincast.files import write_json
from traincast.forecast import Engine, watch_device
from traincast.forecast._memory import find_fullest, profile_stages
from traincast.simulate import Overheads, Surroundings
from traincast.spec import Job, MemoryProfile

MOST_STEPS, MOST_PEAKS, MOST_VERDICTS, MOST_FAILURES = 30, 100, 100, 400
"""Rows of one source, framework and outcome that are asked about, evenly over the table: a huge source says no more than a large
one."""
IMPOSSIBLE = -20.0
"""The margin of a plan that cannot be built."""
UNFILLED = 0.85
"""Share of a device below which its own meter tells a need; above it the meter shows the device."""
PRIOR_OVERHEADS = dataclasses.replace(
    Overheads.usual(), cache=0.03, workspace_bytes=0.3e9, whole_buffers=3.0, queued_gathers=50.0, lone_pass=1.0, lead_flop=1e12,
    lead_slope=3.0, lead_ranks=1.0, reclaim=0.95, reclaim_slope=8.0,
)  # fmt: skip
"""What memory's constants were before any run was looked at: the priors of `benchmarks/memory.py`."""

PRIOR_SURROUNDINGS = dataclasses.replace(Surroundings.usual(), context_bytes=0.7e9, unseen=0.1, search=0.3, full=0.97)
"""The same of what lies around the allocator: the priors of `benchmarks/device_memory.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One measured run and what was forecast for it."""

    quantity: str
    publisher: str
    source: str
    workload: str
    setting: Setting
    operators: float
    host: float
    """The host's time to issue a step over the devices' to do it."""
    exposed: float
    """Share of the step in communication that nothing hides."""
    bandwidth: float
    """Share of it in kernels that memory limits."""
    call_s: float
    """That an operator was taken to cost the host in both passes."""
    activations: float
    """Share of the peak of memory in activations."""
    beside: float
    """Share of it in what is no tensor of the graph: buckets, gathered inputs and weights, the allocator's own."""
    step_s: float
    """The forecast."""
    error: float
    """The log of measured over forecast."""
    untaught: bool
    """Forecast without what runs of the publisher taught."""
    scale: float = 1.0
    """Samples in a step: the smaller of two runs of one job is the cheaper to measure."""
    inputs: float = 0.0
    """The time in which the loop makes the features of a step, over the step's."""
    ring_steps_per_s: float = 0.0
    """Between nodes, that kernels wait for, in a second of the devices' time."""
    by_data: bool = False
    """What some of its operators do depends on the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One run that ran or failed, and what was forecast of its need."""

    publisher: str
    source: str
    setting: Setting | None
    """None: the plan cannot be built, so it is said to fail."""
    ran: bool
    excused: bool
    """It failed, but a run that needs no less by construction ran: it did not fail for lack of memory."""
    disputed: bool
    """It has numbers, and its authors flag it as failed."""
    margin: float
    """The log of the device over the forecast need; of the frugal form where recomputation is not stated."""
    untaught_margin: float
    activations: float = 0.0
    beside: float = 0.0
    """As of `Asked`."""
    needed_bytes: float = 0.0
    capacity_bytes: float = 0.0


def ask_all(paths: Sequence[str]) -> tuple[list[Asked], list[Verdict]]:
    engine = Engine()
    untaught = Untaught(load_measured(paths), shipped=engine)
    asked: list[Asked] = []
    verdicts: list[Verdict] = []
    for path in paths:
        rows = read_rows(path)
        hidden = hide_results(rows)
        seen = [_observe(row) for row in rows]
        excused = find_excused(rows)
        for what, most, wanted in (
            (STEP, MOST_STEPS, [one is not None and one.scores_time for one in seen]),
            (MEMORY, MOST_PEAKS, [one is not None and one.scores_memory for one in seen]),
            ("verdict", MOST_VERDICTS, [one is not None and one.scores_fit for one in seen]),
        ):
            number = 0
            for place in _pick(rows, wanted, most, MOST_FAILURES if what == "verdict" else most):
                row, one = rows[place], seen[place]
                if one is None:
                    continue
                if what == "verdict":
                    found = _judge(engine, row, hidden[place], one, excused=place in excused)
                    verdicts += found
                else:
                    asked += _ask(untaught, what, row, hidden[place], one)
                number += 1
            sys.stderr.write(f"{path}: {number} rows asked for {what}\n")
    return asked, verdicts


def _observe(row: Mapping[str, Any]) -> Observation | None:
    try:
        return parse_observation(row)
    except TraincastError:
        return None


def _pick(rows: Sequence[Mapping[str, Any]], wanted: Sequence[bool], most: int, most_failures: int) -> Iterator[int]:
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if wanted[index]:
            groups[str(row.get("source")), str(row.get("framework")), str(row.get("measured_status"))].append(index)
    for (_, _, status), places in groups.items():
        number = most if status == "ok" else most_failures
        yield from (places[i] for i in sorted({round(x) for x in np.linspace(0, len(places) - 1, number)}))


def _ask(
    untaught: Untaught, quantity: str, row: Mapping[str, Any], hidden: Mapping[str, Any], seen: Observation
) -> list[Asked]:
    try:
        question = translate(parse_case(hidden))
        if quantity == STEP:
            return ask_step(untaught, question, row, seen.step_s or math.nan)
        return [
            made
            for bare in (False, True)
            if (made := _answer_memory(untaught.shipped, question, row, seen.memory_bytes or math.nan, untaught=bare))
            is not None
        ]
    except TraincastError:
        return []


def ask_step(untaught: Untaught, question: CaseQuestion, row: Mapping[str, Any], measured_s: float) -> list[Asked]:
    """As the package ships, and without what the publisher taught."""
    publisher = publisher_of(str(row.get("source")))
    engine, job = untaught.without(publisher, question)
    return [
        _answer_step(untaught.shipped, question.job, question, row, measured_s, untaught=False),
        _answer_step(engine, job, question, row, measured_s, untaught=True),
    ]


def _describe(engine: Engine, question: CaseQuestion, row: Mapping[str, Any]) -> dict[str, Any]:
    job, cluster, plan = question.job, question.cluster, question.parallelism
    setting = describe_setting(job, cluster, plan, remember=engine._remember)
    framework = str(row.get("framework") or "")
    if framework and find_stack(framework) is None:
        # It is forecast as plain software, but says nothing of how well plain software is forecast.
        setting = dataclasses.replace(setting, stack=framework)
    return {
        "publisher": publisher_of(str(row.get("source"))),
        "source": str(row.get("source")),
        "workload": str(row.get("model")),
        "setting": setting,
        "scale": float(job.graph.batch_size * plan.micro_batches * plan.data),
    }


def _answer_step(
    engine: Engine, job: Job, question: CaseQuestion, row: Mapping[str, Any], measured: float, *, untaught: bool
) -> Asked:
    program = engine.lower(job, question.cluster, question.parallelism)
    estimates = engine.cost(program, job, question.cluster)
    timeline = engine.simulate(program, estimates, job, question.cluster)
    step_s = timeline.duration_s
    tally = tally_program(program, estimates, question.cluster)
    described = _describe(engine, question, row)
    return Asked(
        quantity=STEP,
        operators=tally.operators_log_sigma,
        host=tally.host_share,
        exposed=timeline.shares.get("communication", 0.0),
        bandwidth=timeline.shares.get("memory", 0.0),
        call_s=call_seconds(job.stack),
        activations=0.0,
        beside=0.0,
        step_s=step_s,
        error=math.log(measured / step_s),
        untaught=untaught,
        inputs=feature_seconds(job, question.parallelism, described["setting"]) / step_s,
        ring_steps_per_s=tally.ring_steps_per_s,
        by_data=tally.by_data,
        **described,
    )


def _profile(engine: Engine, question: CaseQuestion, *, untaught: bool) -> MemoryProfile:
    program = engine.lower(question.job, question.cluster, question.parallelism)
    usual = PRIOR_OVERHEADS if untaught else None
    return find_fullest(
        profile_stages(program, question.cluster, question.job.stack, usual=usual, remember=engine._remember)
    )


def _answer_memory(
    engine: Engine, question: CaseQuestion, row: Mapping[str, Any], measured: float, *, untaught: bool
) -> Asked | None:
    profile, logs = _profile(engine, question, untaught=untaught), question.logs
    if question.counts_device:
        if measured > UNFILLED * profile.capacity_bytes:
            return None
        around = PRIOR_SURROUNDINGS if untaught and "lean" not in question.job.stack.memory.holds else None
        peak = watch_device(question.job, question.cluster, question.parallelism, around=around).used_bytes
    else:
        watched = logs.watched_stage is not None and profile.stage_peaks
        peak = profile.stage_peaks[logs.watched_stage or 0] if watched else profile.peak_bytes
        peak -= 0.0 if logs.counts_reserved else profile.by_role.get("allocator", 0.0)
    return Asked(
        quantity=MEMORY,
        operators=0.0,
        host=0.0,
        exposed=0.0,
        bandwidth=0.0,
        call_s=0.0,
        activations=activation_share(profile),
        beside=beside_share(profile),
        step_s=0.0,
        error=math.log(measured * logs.memory_unit / peak),
        untaught=untaught,
        **_describe(engine, question, row),
    )


def _judge(
    engine: Engine, row: Mapping[str, Any], hidden: Mapping[str, Any], seen: Observation, *, excused: bool
) -> list[Verdict]:
    source = str(row.get("source"))
    flags: dict[str, Any] = {
        "publisher": publisher_of(source), "source": source, "ran": seen.status == "ok", "excused": excused,
        "disputed": seen.status == "ok" and str(row.get("quality_reason") or "").startswith("flagged as failed"),
    }  # fmt: skip
    try:
        question = translate(parse_case(hidden))
        margins = [_margin(engine, question, untaught=untaught) for untaught in (False, True)]
        profile = _profile(engine, question, untaught=False)
    except IllegalPlan:
        return [Verdict(setting=None, margin=IMPOSSIBLE, untaught_margin=IMPOSSIBLE, **flags)]
    except TraincastError:
        return []
    setting = _describe(engine, question, row)["setting"]
    return [
        Verdict(
            setting=setting, margin=margins[0], untaught_margin=margins[1], activations=activation_share(profile),
            beside=beside_share(profile), needed_bytes=profile.needed_bytes, capacity_bytes=profile.capacity_bytes,
            **flags,
        )
    ]  # fmt: skip


def _margin(engine: Engine, question: CaseQuestion, *, untaught: bool) -> float:
    profile = _profile(engine, question, untaught=untaught)
    margin = math.log(profile.capacity_bytes / profile.needed_bytes)
    frugal = question.resolved.frugal
    if frugal is not None:
        plan = dataclasses.replace(question.parallelism, recompute="full")
        program = engine.lower(frugal, question.cluster, plan)
        usual = PRIOR_OVERHEADS if untaught else None
        other = find_fullest(
            profile_stages(program, question.cluster, frugal.stack, usual=usual, remember=engine._remember)
        )
        margin = max(margin, math.log(other.capacity_bytes / other.needed_bytes))
    return margin


def keep(path: Path, asked: Sequence[Asked], verdicts: Sequence[Verdict]) -> None:
    """So that another form can be fitted without asking again."""
    write_json(
        path,
        {"asked": [dataclasses.asdict(one) for one in asked], "verdicts": [dataclasses.asdict(v) for v in verdicts]},
    )


def load(path: Path) -> tuple[list[Asked], list[Verdict]]:
    data = json.loads(path.read_text())

    def read(setting: Mapping[str, Any]) -> Setting:
        return Setting(**{**setting, "axes": tuple(setting["axes"])})

    asked = [Asked(**{**one, "setting": read(one["setting"])}) for one in data["asked"]]
    verdicts = [
        Verdict(**{**one, "setting": read(one["setting"]) if one["setting"] else None}) for one in data["verdicts"]
    ]
    return asked, verdicts
