"""A calibration applied to a question: which of what was learnt is used, and the forecast that comes of it."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from traincast.certainty import (
    GIVEN_JOB,
    SURE,
    ErrorProcess,
    Shares,
    apply_numbers,
    condition,
    label_run,
    nearest,
)
from traincast.cost import Cached, CostModel, Pricing, default_ops, with_constants, with_levels
from traincast.forecast._activity import as_sure_as, describe_activity, expect_run_utilization
from traincast.forecast._assemble import assemble, stretch
from traincast.forecast._tune import slow_down
from traincast.noun import noun
from traincast.spec import (
    Calibration,
    Choice,
    Cluster,
    DeviceLevel,
    Estimate,
    Forecast,
    Job,
    LearnedStacks,
    MeasuredForecast,
    Parallelism,
    ProfileRatio,
    RunLabels,
    Scale,
    Scope,
    Stack,
    StackConstants,
    Timeline,
)
from traincast.units import NORMAL_90

if TYPE_CHECKING:
    from traincast.forecast._engine import Engine, Shown

LARGER = 1.5
"""A scale or a model's size is new beyond this multiple of the largest that was learnt from."""
IGNORE = Choice()
_SHARES = ("compute", "memory", "communication", "host", "bubble")
_MOST_KEPT, _MOST_MODELS = 8, 64

Ask = Callable[[CostModel], Forecast]
"""The forecast of the question in hand under a cost model."""


@noun
class Novelty:
    """What is new about a question."""

    kinds: frozenset[str] = frozenset()
    reach: Scale | None = None
    """The largest known scale of its device or model, where only that is exceeded."""

    @property
    def strange(self) -> frozenset[str]:
        return self.kinds & {"device", "model", "size"}


def forecast_calibrated(engine: "Engine", job: Job, cluster: Cluster, plan: Parallelism, shown: "Shown") -> Forecast:
    """The forecast with what runs taught, under the constants that they choose."""
    calibration = engine.calibration or Calibration(name="")

    def ask(learned: CostModel) -> Forecast:
        return engine.priced_by(learned).forecast(job, cluster, plan, shown=shown)

    learned = corrections_of(calibration)
    labels = label_run(job, cluster, plan)
    choice = learned.choice_of(labels)
    answers = [learned.answer(labels, one, job.stack, ask) for one in (choice, *choice.also)]
    step = blend([answer.step for answer in answers])
    step = doubt(choice, step, own=answers[0].step)
    factor = step.seconds / answers[0].plain_s
    found = answers[0].forecast
    if choice != IGNORE and step.seconds:
        # The uncertainty without the runs would contradict the interval that is shown.
        low, high = step.low_s / step.seconds - 1, step.high_s / step.seconds - 1
        found = found.saying(uncertainty=f"{SURE} {low:+.0%} to {high:+.0%} with runs of your own")
    scope = learned.scopes.get(labels.stack)
    found = found.saying(learned=describe_choice(calibration, scope, choice, factor, device=labels.device))
    restepped = restep(found, job, cluster, plan, step)
    return apply_numbers(calibration.runs.numbers if calibration.runs else (), restepped, labels)


@noun
class Answer:
    """One way to use what was learnt, and what it says."""

    forecast: Forecast
    step: Estimate
    plain_s: float
    """Before near runs corrected it."""


class Corrections:
    """What runs taught, made ready to be looked up."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        runs = calibration.runs
        self.scopes = {scope.stack: scope for scope in runs.scopes} if runs else {}
        self._choices = {(one.stack, one.novelties, one.reach): one.choice for one in runs.selections} if runs else {}
        self._shipped = StackTable(runs.shipped) if runs else StackTable(LearnedStacks())
        self._fitted = StackTable(runs.fitted) if runs else StackTable(LearnedStacks())
        self._ops = Cached(base=with_levels(default_ops(), calibration.devices))
        self._models: OrderedDict[Stack, Pricing] = OrderedDict()
        self._pooled: OrderedDict[tuple[str, ...], ErrorProcess] = OrderedDict()

    def choice_of(self, labels: RunLabels) -> Choice:
        scope = self.scopes.get(labels.stack)
        if scope is None:
            return IGNORE
        novelty = novelty_of(scope, labels)
        return self._choices.get((labels.stack, tuple(sorted(novelty.kinds)), novelty.reach), IGNORE)

    def answer(self, labels: RunLabels, choice: Choice, start: Stack, ask: Ask) -> Answer:
        if choice.pooled:
            return self._pool(labels, start, ask)
        table = self._fitted if choice.constants else self._shipped
        software = table.stack_for(labels, start, profile=choice.profile)
        answer = ask(self._price_under(software))
        step = answer.step
        process = table.process_for(labels) if choice.near else None
        if process is not None:
            found = process.predict([(labels, shares_of(answer.timeline))])[0]
            step = _around(step, step.seconds * math.exp(found.log_ratio), found.log_sigma)
        return Answer(forecast=answer, step=step, plain_s=answer.step.seconds)

    def _pool(self, labels: RunLabels, start: Stack, ask: Ask) -> Answer:
        """What ships, corrected by all own runs as far as they agree; never less sure than without them."""
        answer = ask(self._price_under(self._shipped.stack_for(labels, start, profile=False)))
        step = answer.step
        process = self._pooled_process(labels)
        if process is not None:
            found = process.predict([(labels, shares_of(answer.timeline))])[0]
            seconds = step.seconds * math.exp(found.log_ratio)
            step = _around(step, seconds, min(found.log_sigma, log_sigma_of(step))) if step.low_s > 0 else step
            step = _keep_promise(step, answer, num_known=sum(run.labels.job == labels.job for run in self._own_runs()))
        return Answer(forecast=answer, step=step, plain_s=answer.step.seconds)

    def _own_runs(self) -> Sequence[MeasuredForecast]:
        return self.calibration.runs.pooled if self.calibration.runs else ()

    def _pooled_process(self, labels: RunLabels) -> ErrorProcess | None:
        runs = self.calibration.runs
        if runs is None or not runs.pooled:
            return None
        if labels.job not in self._pooled:
            self._pooled[labels.job] = condition(nearest(runs.pooled, labels), shrink=True)
            while len(self._pooled) > _MOST_KEPT:
                self._pooled.popitem(last=False)
        return self._pooled[labels.job]

    def _price_under(self, software: Stack) -> Pricing:
        """The same model for the same constants, so that an engine remembers what it priced with it."""
        if software not in self._models:
            self._models[software] = Pricing(ops=self._ops, stack=software)
            while len(self._models) > _MOST_MODELS:
                self._models.popitem(last=False)
        return self._models[software]


class StackTable:
    """Constants and profile ratios by the labels of a run."""

    def __init__(self, learned: LearnedStacks) -> None:
        self._constants = {(one.stack, one.device): one for one in learned.constants}
        self._ratios = {one.job: one for one in learned.ratios}
        self._forecasts: dict[str, list[MeasuredForecast]] = {}
        for one in learned.forecasts:
            self._forecasts.setdefault(one.labels.stack, []).append(one)
        self._processes: OrderedDict[tuple[str, ...], ErrorProcess] = OrderedDict()

    def stack_for(self, labels: RunLabels, start: Stack, *, profile: bool) -> Stack:
        """The constants of its stack on its device, else on all, else as it starts; slower or faster as its profile was."""
        found = start
        for device in (labels.device, None):
            if (labels.stack, device) in self._constants:
                found = _with(start, self._constants[labels.stack, device])
                break
        return slow_down(found, self.ratio_of(labels)) if profile else found

    def ratio_of(self, labels: RunLabels) -> float:
        found = self._ratios.get(labels.job)
        return compute_ratio(found, labels.pass_tokens) if found else 1.0

    def process_for(self, labels: RunLabels) -> ErrorProcess | None:
        """The Gaussian process of the errors of its stack, solved once for every job."""
        known = self._forecasts.get(labels.stack)
        if not known:
            return None
        if labels.job not in self._processes:
            self._processes[labels.job] = condition(nearest(known, labels))
            while len(self._processes) > _MOST_KEPT:
                self._processes.popitem(last=False)
        return self._processes[labels.job]


_kept: "OrderedDict[int, Corrections]" = OrderedDict()


def corrections_of(calibration: Calibration) -> Corrections:
    """Made ready once for each calibration, which is told apart by identity."""
    found = _kept.get(id(calibration))
    if found is None or found.calibration is not calibration:
        found = _kept[id(calibration)] = Corrections(calibration)
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return found


def compute_ratio(profile: ProfileRatio, pass_tokens: float) -> float:
    """Between measured batches interpolated, beyond them that of the nearest."""
    octave = math.log2(max(pass_tokens, 1e-9))
    return math.exp(float(np.interp(octave, profile.octaves, profile.log_ratios)))


def novelty_of(scope: Scope, labels: RunLabels) -> Novelty:
    kinds = set()
    if labels.device not in scope.devices:
        kinds.add("device")
    if labels.model not in scope.models:
        largest = scope.families.get(labels.family, math.inf)
        kinds.add("size" if labels.num_parameters > LARGER * largest else "model")
    if is_beyond(labels, largest_of(scope.devices.values())):
        kinds.add("scale")
    if kinds:
        return Novelty(kinds=frozenset(kinds))
    for kind, reach in (("device scale", scope.devices[labels.device]), ("model scale", scope.models[labels.model])):
        if is_beyond(labels, reach):
            return Novelty(kinds=frozenset({kind}), reach=reach)
    return Novelty()


def largest_of(scales: Iterable[Scale]) -> Scale:
    found = list(scales)
    return max(devices for devices, _ in found), max(nodes for _, nodes in found)


def is_beyond(labels: RunLabels, reach: Scale) -> bool:
    return labels.num_devices > LARGER * reach[0] or labels.num_nodes > LARGER * reach[1]


def shares_of(timeline: Timeline) -> Shares:
    compute, memory, communication, host, bubble = (timeline.shares.get(name, 0.0) for name in _SHARES)
    return compute, memory, communication, host, bubble


def blend(steps: Sequence[Estimate]) -> Estimate:
    """The geometric mean of several answers: its log error is never larger than the mean of theirs."""
    if len(steps) < 2:
        return steps[0]

    def middle(values: Sequence[float]) -> float:
        return math.exp(float(np.mean(np.log(values))))

    return replace(
        steps[0],
        seconds=middle([step.seconds for step in steps]),
        low_s=middle([step.low_s for step in steps]),
        high_s=middle([step.high_s for step in steps]),
    )


def doubt(choice: Choice, step: Estimate, *, own: Estimate) -> Estimate:
    """With an interval that would have held nine of ten runs that were left out in the same way."""
    if not choice.log_sigma:
        return step
    alone = choice.near and not choice.also
    return _around(step, step.seconds, choice.stretch * log_sigma_of(own) if alone else choice.log_sigma)


def log_sigma_of(step: Estimate) -> float:
    return math.log(step.high_s / step.low_s) / (2 * NORMAL_90)


def restep(answer: Forecast, job: Job, cluster: Cluster, plan: Parallelism, step: Estimate) -> Forecast:
    """The same forecast with another step: the timeline is stretched, and job, price, energy and activity follow."""
    if step == answer.step or not answer.step.seconds:
        return answer
    factor = step.seconds / answer.step.seconds
    timeline = stretch(answer.timeline, factor)
    resources = describe_activity(job, cluster, plan, timeline) if answer.resources else ()
    return replace(
        answer,
        **assemble(job, cluster, step, timeline, global_batch=answer.global_batch),
        utilization=answer.utilization / factor,
        run_utilization=expect_run_utilization(job, cluster, plan, timeline),
        resources=as_sure_as(resources, step),
    )


def describe_levels(name: str, levels: Sequence[DeviceLevel], device: str) -> str:
    """One sentence on what products measured on a device change."""
    for level in levels:
        if level.device == device:
            ratios = ", ".join(f"{ratio:.2f} in {dtype}" for dtype, ratio in sorted(level.products.items()))
            return (
                f"{name}: matmuls on {device} take {ratios} times as long as expected ({level.num_products} measured)"
            )
    known = ", ".join(level.device for level in levels)
    return f"{name} holds matmuls of {known} and none of {device}; the answer is the one without it"


def describe_choice(
    calibration: Calibration, scope: Scope | None, choice: Choice, factor: float, *, device: str
) -> str:
    """One sentence for the user: what was used, or why nothing."""
    name = f"calibration {calibration.name!r}"
    if calibration.devices and calibration.runs is None:
        return describe_levels(name, calibration.devices, device)
    if scope is None:
        return f"{name} holds no run of this stack; the answer is the one without it"
    every = (choice, *choice.also)
    used = [
        words
        for words, is_used in (
            ("the job's own steps on one device", any(one.profile for one in every)),
            ("constants fitted to its stack", any(one.constants for one in every)),
            (f"the errors of near runs (factor {factor:.3g})", any(one.near for one in every)),
            (f"what they agree on (factor {factor:.3g})", any(one.pooled for one in every)),
        )
        if is_used
    ]
    if not used:
        return (
            f"{name}: its {scope.num_runs} runs of this stack proved nothing for such a job; the answer is without them"
        )
    return f"{name}, {scope.num_runs} runs of this stack: {', '.join(used)}"


FEW_RUNS = 4
"""Of one job: so few say little of how it scatters, and left-out runs of other jobs say how uncertain the answer is."""


def _keep_promise(step: Estimate, answer: Forecast, *, num_known: int) -> Estimate:
    """Once a few runs of the job itself were measured its interval is as wide as the answer before said it would be, by left-out
    runs: that of this answer where nothing was promised. More runs may prove a narrower one."""
    own = answer.step
    if not num_known or own.low_s <= 0:
        return step
    same = own.low_s / own.seconds, own.high_s / own.seconds
    low, high = next((one.after for one in answer.narrowing if one.given == GIVEN_JOB), same)
    if num_known > FEW_RUNS and high / low > step.high_s / step.low_s:
        return step
    return replace(step, low_s=step.seconds * low, high_s=step.seconds * high)


def _with(start: Stack, found: StackConstants) -> Stack:
    return replace(with_constants(start, found.constants), log_sigma=found.log_sigma, num_steps=found.num_steps)


def _around(step: Estimate, seconds: float, log_sigma: float) -> Estimate:
    factor = math.exp(NORMAL_90 * log_sigma)
    return replace(step, seconds=seconds, low_s=seconds / factor, high_s=seconds * factor)
