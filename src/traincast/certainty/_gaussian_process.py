"""What measured runs say about the errors of other forecasts: a Gaussian process over log errors.

The log error of a forecast is modelled as k d + h u + c m + l: its shares of kernels, host and exposed communication times the
errors of each, and what is left near the run. d is shared by runs of the same job, partly at every batch and partly at near ones,
whatever is recomputed (a planner compares such runs), and of the same model, device and framework; u by runs of the same job and
framework; m by runs of the same cluster, the more the nearer their plans; l by runs that are near in batch, size, plan and shares
of the step. So one device's profile of a job corrects its kernels at every scale and says nothing about its network, a profile
that waits for the host says little of a batch that does not, and far from everything known the correction fades to none. A
synchronous step waits for its slowest rank: where steps of one job differ from each other, all the more the more ranks there
are. That part grows like the expected largest of as many normal numbers, and is shared by scales of a job, and by models whose
inputs differ in size from sample to sample: those wait on every device. The constants are those of the document `own_runs`.
"""

import functools
import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from traincast.catalog import read_constants
from traincast.noun import noun
from traincast.spec import MIX_KINDS, MeasuredForecast, RunLabels

Array = NDArray[np.float64]


@noun
class Deviations:
    """The constants of the document `own_runs`, which says what each is."""

    noise: float
    repeats: float
    level: float
    job: float
    model: float
    family: float
    device: float
    stack: float
    everything: float
    carried: float
    kind: float
    host_job: float
    host_stack: float
    host_device: float
    cluster: float
    placement: float
    network: float
    near: float
    waiting: float
    batch_octaves: float
    size_octaves: float
    share_reach: float
    plan_octaves: tuple[float, float, float, float, float]
    doubt: float
    outlier: float


SIGMA = read_constants(Deviations, "own_runs")
NOISE = SIGMA.noise
MOST_PROVED = 60
"""Runs that are left out one by one to say what the others are worth."""
MAX_KNOWN = 400
"""Measured runs used for one job, nearest first: enough for a profile, small enough for an exact solution."""
Shares = tuple[float, float, float, float, float]
"""Of a forecast step: compute, memory, communication, host, bubble."""


@noun
class Correction:
    """Mean and standard deviation of the log of measured over forecast time."""

    log_ratio: float
    log_sigma: float
    num_runs: int


@noun
class _Solved:
    """The process given the errors of some runs, where so much of an error is carried by its model."""

    inverse: Array
    weights: Array
    carried: float
    trust: float
    """How much of each correction is given: what runs say of each other, where they were asked to."""


@noun
class ErrorProcess:
    """The process given the errors of some runs, solved once for whoever asks about one device and once for several: what a
    model carries from device to device says nothing of several, so there it must not take from what its job says."""

    features: "_Features"
    codes: dict[Hashable, int]
    alone: _Solved
    together: _Solved

    def predict(self, asked: Sequence[tuple[RunLabels, Shares]]) -> list[Correction]:
        right = _describe(asked, dict(self.codes))
        both = [self._predict(right, solved) for solved in (self.alone, self.together)]
        return [both[int(waiting > 0)][place] for place, waiting in enumerate(right.waiting.tolist())]

    def _predict(self, right: "_Features", solved: _Solved) -> list[Correction]:
        across = _covariance(right, self.features, solved.carried)
        variance = _prior_variance(right, solved.carried) - np.einsum("ij,jk,ik->i", across, solved.inverse, across)
        sigmas = np.sqrt(np.maximum(variance, 0.0) + NOISE**2)
        return [
            Correction(log_ratio=ratio, log_sigma=sigma, num_runs=len(solved.weights))
            for ratio, sigma in zip((solved.trust * (across @ solved.weights)).tolist(), sigmas.tolist(), strict=True)
        ]


def condition(known: Sequence[MeasuredForecast], *, shrink: bool = False) -> ErrorProcess:
    """The process given what is known; runs that the others do not expect count less. `shrink`: a correction is given as far as
    the runs, each left out in turn, proved it on each other and as they are more than repeats of one measurement; of a run that
    nothing makes us expect no more than an outlier's worth (Huber 1964)."""
    codes: dict[Hashable, int] = {}
    features = _describe([(run.labels, run.shares) for run in known], codes)
    errors = np.array([math.log(run.measured_s / run.forecast_s) for run in known])
    together = _solve(features, errors, carried=0.0, shrink=shrink)
    travels = bool((features.waiting == 0).any())
    alone = _solve(features, errors, carried=SIGMA.carried, shrink=shrink) if travels else together
    return ErrorProcess(features=features, codes=codes, alone=alone, together=together)


def _solve(features: "_Features", errors: Array, *, carried: float, shrink: bool) -> _Solved:
    between = _covariance(features, features, carried)
    inverse = np.linalg.inv(between + NOISE**2 * np.eye(len(errors)))
    if shrink:
        own = np.diag(inverse)
        missed, most = inverse @ errors / own, SIGMA.outlier / np.sqrt(own)
        errors = errors - missed + np.clip(missed, -most, most)
    for _ in range(3):
        # What the others would have said of each run, and how far it is from that (leave-one-out residuals).
        own = np.diag(inverse)
        surprise = np.abs(inverse @ errors) / np.sqrt(own)
        trust = np.minimum(1.0, SIGMA.outlier / np.maximum(surprise, 1e-9))
        noise = NOISE**2 / np.maximum(trust, 0.05) ** 2
        inverse = np.linalg.inv(between + np.diag(noise))
    solved = np.asarray(inverse, dtype=np.float64)
    weights = solved @ errors
    given = trust_of(errors, errors - weights / np.diag(solved)) * _surpass_repeats(errors) if shrink else 1.0
    return _Solved(inverse=solved, weights=weights, carried=carried, trust=given)


def trust_of(errors: Array, left_out: Array, *, doubt: float = SIGMA.doubt) -> float:
    """The part of a correction that helps: errors regressed on what the other runs say of each, from 1, which a run that the
    others miss by `doubt` outweighs; never below 0 or above 1."""
    prior = doubt**2
    return float(np.clip((errors @ left_out + prior) / (left_out @ left_out + prior), 0.0, 1.0))


def _surpass_repeats(errors: Array) -> float:
    """The part of the square of errors that is not what repeats differ by (James and Stein 1961)."""
    square = float(np.mean(errors**2))
    return square / (square + SIGMA.repeats**2)


def prove(known: Sequence[MeasuredForecast]) -> tuple[float, float]:
    """The mean error of forecasts of runs, each without any run and corrected by the others; of an even choice of many."""
    few = [
        known[place]
        for place in sorted({round(x) for x in np.linspace(0, len(known) - 1, min(len(known), MOST_PROVED))})
    ]
    errors = np.array([math.log(run.forecast_s / run.measured_s) for run in few])
    said = np.zeros(len(few))
    for place, run in enumerate(few):
        if others := [*few[:place], *few[place + 1 :]]:
            said[place] = condition(others, shrink=True).predict([(run.labels, run.shares)])[0].log_ratio
    before, after = (float(np.abs(np.expm1(one)).mean()) for one in (errors, errors + said))
    return before, after


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


@noun
class _Features:
    """Columns of equal length: codes of names, octaves of sizes, shares of the step."""

    codes: NDArray[np.int64]
    """Job, model in its mode, family, device, stack, cluster and model of each run."""
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

    @property
    def host(self) -> Array:
        return self.shares[:, 3]

    @property
    def kernels(self) -> Array:
        """What neither waits for the network nor for the host."""
        return 1 - self.communication - self.host


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
                    code("architecture", one.model),
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


def _covariance(left: _Features, right: _Features, carried: float) -> Array:
    job, model, family, device, stack, cluster, architecture = (
        np.equal(left.codes[:, i][:, None], right.codes[:, i][None, :]).astype(np.float64) for i in range(7)
    )
    batch = _near(left.batch, right.batch, SIGMA.batch_octaves)
    size = _near(left.size, right.size, SIGMA.size_octaves)
    reach = np.array(SIGMA.plan_octaves)
    plan = _near(left.plan / reach, right.plan / reach, 1.0)
    shares = _near(left.shares, right.shares, SIGMA.share_reach)
    kernels = batch * (SIGMA.job**2 * job + SIGMA.model**2 * model + SIGMA.family**2 * family * size)
    kernels += SIGMA.level**2 * job + SIGMA.device**2 * device + SIGMA.stack**2 * stack + SIGMA.everything**2
    # Between devices only of runs on one: several have other hosts and networks beside them.
    alone = np.outer(left.waiting == 0, right.waiting == 0)
    kernels += carried**2 * architecture * alone
    kernels += SIGMA.kind**2 * device * stack * (left.mix @ right.mix.T)
    host = SIGMA.host_job**2 * job + stack * (SIGMA.host_stack**2 + SIGMA.host_device**2 * device)
    alike = job + (1 + model) * np.outer(left.varying, right.varying)
    waits = SIGMA.waiting**2 * alike * left.waiting[:, None] * right.waiting[None, :]
    network = cluster * (SIGMA.cluster**2 + SIGMA.placement**2 * plan) + SIGMA.network**2
    both = np.outer(left.kernels, right.kernels) * kernels + np.outer(left.host, right.host) * host
    both += np.outer(1 - left.communication, 1 - right.communication) * waits
    both += np.outer(left.communication, right.communication) * network
    return np.asarray(both + SIGMA.near**2 * stack * batch * size * plan * shares, dtype=np.float64)


def _near(left: Array, right: Array, reach: float) -> Array:
    gaps = left[:, None, :] - right[None, :, :]
    return np.asarray(np.exp(-0.5 * np.sum(gaps**2, axis=2) / reach**2), dtype=np.float64)


def _prior_variance(features: _Features, carried: float) -> Array:
    waiting = SIGMA.waiting**2 * (1 + 2 * features.varying) * features.waiting**2
    shared = (SIGMA.level, SIGMA.job, SIGMA.model, SIGMA.family, SIGMA.device, SIGMA.stack, SIGMA.everything)
    kernels = sum(one**2 for one in shared) + SIGMA.kind**2 * (features.mix**2).sum(axis=1)
    kernels = kernels + carried**2 * (features.waiting == 0)
    host = SIGMA.host_job**2 + SIGMA.host_stack**2 + SIGMA.host_device**2
    network = SIGMA.cluster**2 + SIGMA.placement**2 + SIGMA.network**2
    found = features.kernels**2 * kernels + features.host**2 * host + (1 - features.communication) ** 2 * waiting
    return np.asarray(found + features.communication**2 * network + SIGMA.near**2, dtype=np.float64)
