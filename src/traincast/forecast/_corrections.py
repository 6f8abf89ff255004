"""A calibration applied to a question: what the errors of own runs say of its step, and the forecast that comes of it."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

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
from traincast.cost import Cached, Pricing, default_ops, with_levels
from traincast.forecast._activity import as_sure_as, describe_activity, expect_run_utilization
from traincast.forecast._assemble import assemble, stretch
from traincast.spec import (
    Calibration,
    Cluster,
    DeviceLevel,
    Estimate,
    Forecast,
    Job,
    MeasuredForecast,
    Parallelism,
    RunLabels,
    Stack,
    Timeline,
)
from traincast.units import NORMAL_90

if TYPE_CHECKING:
    from traincast.forecast._engine import Engine, Shown

_SHARES = ("compute", "memory", "communication", "host", "bubble")
_MOST_KEPT, _MOST_MODELS = 8, 64


def forecast_calibrated(engine: "Engine", job: Job, cluster: Cluster, plan: Parallelism, shown: "Shown") -> Forecast:
    """The forecast with what runs and measured devices taught."""
    calibration = engine.calibration or Calibration(name="")
    learned = corrections_of(calibration)
    labels = label_run(job, cluster, plan)
    plain = engine.priced_by(learned.price(job.stack)).forecast(job, cluster, plan, shown=shown)
    step = learned.correct(plain, labels)
    if step != plain.step and step.seconds:
        # The uncertainty without the runs would contradict the interval that is shown.
        low, high = step.low_s / step.seconds - 1, step.high_s / step.seconds - 1
        plain = plain.saying(uncertainty=f"{SURE} {low:+.0%} to {high:+.0%} with runs of your own")
    found = plain.saying(learned=learned.describe(labels, step.seconds / plain.step.seconds if step.seconds else 1.0))
    restepped = restep(found, job, cluster, plan, step)
    return apply_numbers(calibration.runs.numbers if calibration.runs else (), restepped, labels)


class Corrections:
    """What was learnt, made ready to be looked up."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._known: Sequence[MeasuredForecast] = calibration.runs.runs if calibration.runs else ()
        self._ops = Cached(base=with_levels(default_ops(), calibration.devices))
        self._models: OrderedDict[Stack, Pricing] = OrderedDict()
        self._processes: OrderedDict[tuple[str, ...], ErrorProcess] = OrderedDict()

    def price(self, software: Stack) -> Pricing:
        """The same model for the same software, so that an engine remembers what it priced with it."""
        if software not in self._models:
            self._models[software] = Pricing(ops=self._ops, stack=software)
            while len(self._models) > _MOST_MODELS:
                self._models.popitem(last=False)
        return self._models[software]

    def count_runs(self, labels: RunLabels) -> int:
        """Of the question's own framework; runs of others say nothing of it."""
        return sum(run.labels.stack == labels.stack for run in self._known)

    def correct(self, plain: Forecast, labels: RunLabels) -> Estimate:
        """The step, corrected by all own runs as far as they agree; never less sure than without them."""
        step = plain.step
        if not self.count_runs(labels) or step.low_s <= 0:
            return step
        found = self._process(labels).predict([(labels, shares_of(plain.timeline))])[0]
        seconds = step.seconds * math.exp(found.log_ratio)
        corrected = _around(step, seconds, min(found.log_sigma, log_sigma_of(step)))
        return _keep_promise(corrected, plain, num_known=sum(run.labels.job == labels.job for run in self._known))

    def _process(self, labels: RunLabels) -> ErrorProcess:
        """Solved once for every job."""
        if labels.job not in self._processes:
            self._processes[labels.job] = condition(nearest(self._known, labels), shrink=True)
            while len(self._processes) > _MOST_KEPT:
                self._processes.popitem(last=False)
        return self._processes[labels.job]

    def describe(self, labels: RunLabels, factor: float) -> str:
        """One sentence for the user: what was used, or why nothing."""
        name = f"calibration {self.calibration.name!r}"
        if self.calibration.devices and self.calibration.runs is None:
            return describe_levels(name, self.calibration.devices, labels.device)
        number = self.count_runs(labels)
        if not number:
            return f"{name} holds no run of this stack; the answer is the one without it"
        return f"{name}, {number} runs of this stack: what they agree on (factor {factor:.3g})"


_kept: "OrderedDict[int, Corrections]" = OrderedDict()


def corrections_of(calibration: Calibration) -> Corrections:
    """Made ready once for each calibration, which is told apart by identity."""
    found = _kept.get(id(calibration))
    if found is None or found.calibration is not calibration:
        found = _kept[id(calibration)] = Corrections(calibration)
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return found


def shares_of(timeline: Timeline) -> Shares:
    compute, memory, communication, host, bubble = (timeline.shares.get(name, 0.0) for name in _SHARES)
    return compute, memory, communication, host, bubble


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


def _around(step: Estimate, seconds: float, log_sigma: float) -> Estimate:
    factor = math.exp(NORMAL_90 * log_sigma)
    return replace(step, seconds=seconds, low_s=seconds / factor, high_s=seconds * factor)
