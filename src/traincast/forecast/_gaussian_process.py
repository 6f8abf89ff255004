"""What measured runs say about the errors of other forecasts: a Gaussian process over log errors.

The log error of a forecast is modelled as (1 - c) d + c m + l, where c is its share of exposed communication, d the error of
what runs on the device, m that of the network, l what is left near the run. d is shared by runs of the same job, half of it at
every batch and half at near ones, whatever is recomputed (a planner compares such runs), and of the same model, device and stack;
m by runs of the same cluster, the more the nearer their plans; l by runs that are near in batch, size, plan and shares of the
step. So one device's profile of a job corrects its computation at every scale and says
nothing about its network, and far from everything known the correction fades to none. A synchronous step waits for its slowest
rank: where steps of one job differ from each other, all the more the more ranks there are. That part of d grows like the
expected largest of as many normal numbers, and is shared by scales of a job and of a model, and by models whose inputs differ in
size from sample to sample.

The constants are standard deviations of log errors that related runs share. They were chosen by the mean error over twelve
leave-scale-out, leave-model-out and leave-GPU-out splits of the visible cases, where none of them matters much: halving or
doubling any one moves that mean by less than a tenth of itself.
"""

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from traincast.spec import MIX_KINDS, MeasuredForecast, RunLabels

Array = NDArray[np.float64]

NOISE = 0.08
"""Standard deviation of the log of one measurement around its truth: repeats differ by 2-6%, and runs have their accidents."""
LEVEL, JOB, MODEL, FAMILY, DEVICE, STACK, EVERYTHING = 0.21, 0.21, 0.1, 0.1, 0.15, 0.1, 0.05
"""The first two are of one job, at every batch and at near ones."""
CLUSTER, PLACEMENT, NETWORK, NEAR = 0.2, 0.2, 0.1, 0.12
KIND = 0.25
"""Of one kind of operators on one device under one stack: a factor for each kind, shared by all steps as far as it is in them."""
WAITING = 0.15
"""What the slowest of some three ranks takes longer than one, of a job, of its model, and of models of varying inputs."""
BATCH_OCTAVES, SIZE_OCTAVES, SHARE_REACH = 1.5, 1.5, 0.5
PLAN_OCTAVES = (1.5, 1.5, 1.5, 1.5, 2.5)
"""Of tensor, pipeline, nodes, devices and micro-batches."""
MAX_KNOWN = 400
"""Measured runs used for one job, nearest first: enough for a profile, small enough for an exact solution."""
DOUBT = 0.15
"""A run that the others miss by more speaks against them: half of what jobs differ by, twice the noise of a measurement."""
OUTLIER = 2.0
"""Measured runs further than this many standard deviations from what the others say count less."""

Shares = tuple[float, float, float, float, float]
"""Of a forecast step: compute, memory, communication, host, bubble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Mean and standard deviation of the log of measured over forecast time."""

    log_ratio: float
    log_sigma: float
    num_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorProcess:
    """The process given the errors of some runs, solved once."""

    features: "_Features"
    codes: dict[Hashable, int]
    inverse: Array
    weights: Array
    trust: float = 1.0
    """How much of each correction is given: what runs say of each other, where they were asked to."""

    def predict(self, asked: Sequence[tuple[RunLabels, Shares]]) -> list[Correction]:
        right = _describe(asked, dict(self.codes))
        across = _covariance(right, self.features)
        variance = _prior_variance(right) - np.einsum("ij,jk,ik->i", across, self.inverse, across)
        sigmas = np.sqrt(np.maximum(variance, 0.0) + NOISE**2)
        return [
            Correction(log_ratio=ratio, log_sigma=sigma, num_runs=len(self.weights))
            for ratio, sigma in zip((self.trust * (across @ self.weights)).tolist(), sigmas.tolist(), strict=True)
        ]


def condition(known: Sequence[MeasuredForecast], *, shrink: bool = False) -> ErrorProcess:
    """The process given what is known; runs that the others do not expect count less. `shrink`: a correction is given as far as
    the runs, each left out in turn, proved it on each other."""
    codes: dict[Hashable, int] = {}
    features = _describe([(run.labels, run.shares) for run in known], codes)
    errors = np.array([math.log(run.measured_s / run.forecast_s) for run in known])
    between = _covariance(features, features)
    inverse = np.linalg.inv(between + NOISE**2 * np.eye(len(known)))
    for _ in range(3):
        # What the others would have said of each run, and how far it is from that (leave-one-out residuals).
        own = np.diag(inverse)
        surprise = np.abs(inverse @ errors) / np.sqrt(own)
        trust = np.minimum(1.0, OUTLIER / np.maximum(surprise, 1e-9))
        noise = NOISE**2 / np.maximum(trust, 0.05) ** 2
        inverse = np.linalg.inv(between + np.diag(noise))
    solved = np.asarray(inverse, dtype=np.float64)
    weights = solved @ errors
    trust = trust_of(errors, errors - weights / np.diag(solved)) if shrink else 1.0
    return ErrorProcess(features=features, codes=codes, inverse=solved, weights=weights, trust=trust)


def trust_of(errors: Array, left_out: Array, *, doubt: float = DOUBT) -> float:
    """The part of a correction that helps: errors regressed on what the other runs say of each, from 1, which a run that the
    others miss by `doubt` outweighs; never below 0 or above 1."""
    prior = doubt**2
    return float(np.clip((errors @ left_out + prior) / (left_out @ left_out + prior), 0.0, 1.0))


def correct(asked: Sequence[tuple[RunLabels, Shares]], known: Sequence[MeasuredForecast]) -> list[Correction | None]:
    """The correction of each forecast, by the runs nearest to its job; None where nothing is known."""
    found: list[Correction | None] = [None] * len(asked)
    if not known:
        return found
    jobs: dict[tuple[str, ...], list[int]] = {}
    for place, (labels, _) in enumerate(asked):
        jobs.setdefault(labels.job, []).append(place)
    for places in jobs.values():
        process = condition(nearest(known, asked[places[0]][0]))
        for place, correction in zip(places, process.predict([asked[place] for place in places]), strict=True):
            found[place] = correction
    return found


def nearest(known: Sequence[MeasuredForecast], labels: RunLabels) -> list[MeasuredForecast]:
    """At most MAX_KNOWN runs, those related to a job first."""
    if len(known) <= MAX_KNOWN:
        return list(known)
    affinity = [_relation(run.labels, labels) for run in known]
    order = sorted(range(len(known)), key=lambda index: (-affinity[index], index))
    # Equal relatives are thinned evenly, so that every batch and scale of a long profile keeps a place.
    best = [index for index in order if affinity[index] == affinity[order[0]]]
    if len(best) > MAX_KNOWN:
        picks = np.linspace(0, len(best) - 1, MAX_KNOWN).round().astype(int)
        return [known[best[pick]] for pick in picks]
    others = order[len(best) :]
    room = MAX_KNOWN - len(best)
    picks = np.linspace(0, len(others) - 1, min(room, len(others))).round().astype(int)
    return [known[index] for index in (*best, *(others[pick] for pick in picks))]


def _relation(one: RunLabels, other: RunLabels) -> int:
    same_job = 8 * (one.job == other.job)
    return same_job + 4 * (one.model == other.model) + 2 * (one.device == other.device) + (one.stack == other.stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Features:
    """Columns of equal length: codes of names, octaves of sizes, shares of the step."""

    codes: NDArray[np.int64]
    """Job, model, family, device, stack and cluster of each run."""
    batch: Array
    size: Array
    plan: Array
    shares: Array
    waiting: Array
    """How far the slowest rank is from the middle one, in standard deviations."""
    varying: Array
    """1 where inputs differ in size, else 0."""
    mix: Array
    """Shares of kinds of operators; nothing where they are not known."""

    @property
    def communication(self) -> Array:
        return self.shares[:, 2]


def _describe(runs: Sequence[tuple[RunLabels, Shares]], codes: dict[Hashable, int]) -> _Features:
    def octave(value: float) -> float:
        return math.log2(max(value, 1e-9))

    def code(kind: str, *names: Hashable) -> int:
        return codes.setdefault((kind, *names), len(codes))

    every = [labels for labels, _ in runs]
    return _Features(
        codes=np.array(
            [
                (
                    code("job", one.model, one.device, _width(one.precision), one.mode, one.stack, one.compiled),
                    code("model", one.model, one.mode),
                    code("family", one.family, one.mode),
                    code("device", one.device, _width(one.precision)),
                    code("stack", one.stack),
                    code("cluster", one.device, one.network_bytes_per_s, one.stack),
                )
                for one in every
            ],
            dtype=np.int64,
        ),
        batch=np.array([[octave(one.pass_tokens)] for one in every]),
        # Parameters of a layer grow with the square of its width.
        size=np.array(
            [
                [0.5 * octave(max(one.num_parameters, 1.0) / one.num_layers), octave(float(one.num_layers))]
                for one in every
            ]
        ),
        plan=np.array(
            [
                [
                    octave(float(x))
                    for x in (one.tensor, one.pipeline, one.num_nodes, one.num_devices, one.micro_batches)
                ]
                for one in every
            ]
        ),
        shares=np.array([shares for _, shares in runs]),
        waiting=np.array([expected_largest(one.num_devices) for one in every]),
        varying=np.array([float(one.varying_inputs) for one in every]),
        mix=np.array([one.mix or (0.0,) * len(MIX_KINDS) for one in every]),
    )


@functools.cache
def _width(precision: str) -> str:
    """Both formats of two bytes run the same kernels at the same rates, so what forecasts miss in one they miss in the other."""
    return precision.replace("bf16", "half").replace("fp16", "half")


@functools.cache
def expected_largest(count: int) -> float:
    """Of so many standard normal numbers (Blom 1958); 0 for one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _covariance(left: _Features, right: _Features) -> Array:
    job, model, family, device, stack, cluster = (
        np.equal(left.codes[:, i][:, None], right.codes[:, i][None, :]).astype(np.float64) for i in range(6)
    )
    batch = _near(left.batch, right.batch, BATCH_OCTAVES)
    size = _near(left.size, right.size, SIZE_OCTAVES)
    plan = _near(left.plan / np.array(PLAN_OCTAVES), right.plan / np.array(PLAN_OCTAVES), 1.0)
    shares = _near(left.shares, right.shares, SHARE_REACH)
    on_device = batch * (JOB**2 * job + MODEL**2 * model + FAMILY**2 * family * size)
    on_device += LEVEL**2 * job + DEVICE**2 * device + STACK**2 * stack + EVERYTHING**2
    on_device += KIND**2 * device * stack * (left.mix @ right.mix.T)
    alike = job + model + left.varying[:, None] * right.varying[None, :]
    on_device += WAITING**2 * alike * left.waiting[:, None] * right.waiting[None, :]
    on_network = cluster * (CLUSTER**2 + PLACEMENT**2 * plan) + NETWORK**2
    sent_left, sent_right = left.communication[:, None], right.communication[None, :]
    both = (1 - sent_left) * (1 - sent_right) * on_device + sent_left * sent_right * on_network
    return np.asarray(both + NEAR**2 * stack * batch * size * plan * shares, dtype=np.float64)


def _near(left: Array, right: Array, reach: float) -> Array:
    gaps = left[:, None, :] - right[None, :, :]
    return np.asarray(np.exp(-0.5 * np.sum(gaps**2, axis=2) / reach**2), dtype=np.float64)


def _prior_variance(features: _Features) -> Array:
    waiting = WAITING**2 * (2 + features.varying) * features.waiting**2
    device = LEVEL**2 + JOB**2 + MODEL**2 + FAMILY**2 + DEVICE**2 + STACK**2 + EVERYTHING**2 + waiting
    device = device + KIND**2 * (features.mix**2).sum(axis=1)
    sent = features.communication
    return np.asarray(
        (1 - sent) ** 2 * device + sent**2 * (CLUSTER**2 + PLACEMENT**2 + NETWORK**2) + NEAR**2, dtype=np.float64
    )
