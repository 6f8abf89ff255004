"""What known cases say about the errors of others: a Gaussian process over log errors.

The log error of a case is modelled as (1 - c) d + c m + l, where c is the forecast's share of exposed communication, d the
error of what runs on the device, m that of the network, l what is left near the case. d is shared by cases of the same job at
near batches, of the same model, device and stack; m by cases of the same cluster, the more the nearer their plans; l by cases
that are near in batch, size, plan and shares of the step. So one device's profile of a job corrects its computation at every
scale and says nothing about its network, and far from everything known the correction fades to none. A synchronous step waits
for its slowest rank: where steps of one job differ from each other, all the more the more ranks there are. That part of d
grows like the expected largest of as many normal numbers, and is shared by scales of a job and of a model, and by models whose
inputs differ in size from sample to sample.

The constants say how far apart errors of related cases are expected to be, as a share. They were chosen by the mean error
over twelve leave-scale-out, leave-model-out and leave-GPU-out splits of the visible cases, where none of them matters
much: halving or doubling any one moves that mean by less than a tenth of itself.
"""

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from traincast.accuracy.anchor import job_of
from traincast.accuracy.cases import Case
from traincast.accuracy.predictions import Prediction

Array = NDArray[np.float64]

NOISE = 0.08
"""Spread of one measurement around its truth, as a share: repeats differ by 2-6%, and runs have their accidents."""
JOB, MODEL, FAMILY, DEVICE, STACK, EVERYTHING = 0.3, 0.1, 0.1, 0.15, 0.1, 0.05
CLUSTER, PLACEMENT, NETWORK, NEAR = 0.2, 0.2, 0.1, 0.12
WAITING = 0.15
"""What the slowest of some three ranks takes longer than one, of a job, of its model, and of models of varying inputs."""
VARYING = ("detection", "speech-rnn")
"""Families that are fed pictures of several sizes and recordings of several lengths."""
BATCH_OCTAVES, SIZE_OCTAVES, SHARE_REACH = 1.5, 1.5, 0.5
PLAN_OCTAVES = (1.5, 1.5, 1.5, 1.5, 2.5)
"""Of tensor, pipeline, nodes, devices and micro-batches."""
FAR = 1e3
MAX_KNOWN = 400
"""Known rows used for one job, nearest first: enough for a profile, small enough for an exact solution."""
OUTLIER = 2.0
"""Known rows further than this many standard deviations from what the others say count less."""
Z90 = 1.6449


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A measured case with the forecast made for it."""

    case: Case
    prediction: Prediction
    step_s: float


def correct(cases: Sequence[Case], predictions: Sequence[Prediction], known: Sequence[Known]) -> list[Prediction]:
    """The predictions moved towards what is known, with intervals that narrow where the known rows are near."""
    usable = [row for row in known if row.prediction.answered and row.step_s > 0 and row.prediction.step_s]
    corrected = list(predictions)
    if not usable:
        return corrected
    jobs: dict[tuple[str | None, ...], list[int]] = {}
    for index, (case, prediction) in enumerate(zip(cases, predictions, strict=True)):
        if prediction.answered:
            jobs.setdefault(job_of(case), []).append(index)
    for places in jobs.values():
        near = _nearest(usable, cases[places[0]])
        shifts, spreads = _infer(near, [(cases[place], predictions[place]) for place in places])
        for place, shift, spread in zip(places, shifts.tolist(), spreads.tolist(), strict=True):
            corrected[place] = _move(predictions[place], shift=shift, spread=spread, num_known=len(near))
    return corrected


def _nearest(known: Sequence[Known], case: Case) -> list[Known]:
    if len(known) <= MAX_KNOWN:
        return list(known)
    affinity = [_relation(row.case, case) for row in known]
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


def _relation(one: Case, other: Case) -> int:
    same_job = 8 * (job_of(one) == job_of(other))
    return same_job + 4 * (one.model == other.model) + 2 * (one.gpu == other.gpu) + (one.framework == other.framework)


def _infer(known: Sequence[Known], asked: Sequence[tuple[Case, Prediction]]) -> tuple[Array, Array]:
    """Mean and standard deviation of the log error of each asked case."""
    codes: dict[Hashable, int] = {}
    left = _describe([(row.case, row.prediction) for row in known], codes)
    right = _describe(asked, codes)
    errors = np.array([math.log(row.step_s / (row.prediction.step_s or math.nan)) for row in known])
    between, across = _covariance(left, left), _covariance(right, left)
    noise = np.full(len(known), NOISE**2)
    inverse = np.linalg.inv(between + np.diag(noise))
    for _ in range(3):
        # What the others would have said of each row, and how far it is from that.
        own = np.diag(inverse)
        surprise = np.abs(inverse @ errors) / np.sqrt(own)
        trust = np.minimum(1.0, OUTLIER / np.maximum(surprise, 1e-9))
        noise = NOISE**2 / np.maximum(trust, 0.05) ** 2
        inverse = np.linalg.inv(between + np.diag(noise))
    weights = inverse @ errors
    variance = _prior_variance(right) - np.einsum("ij,jk,ik->i", across, inverse, across)
    return across @ weights, np.sqrt(np.maximum(variance, 0.0) + NOISE**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Features:
    """Columns of equal length: codes of names, octaves of sizes, shares of the step."""

    codes: NDArray[np.int64]
    """Job, model, family, device, stack and cluster of each row."""
    batch: Array
    size: Array
    plan: Array
    shares: Array
    """Compute, memory, communication, host, bubble."""
    waiting: Array
    """How far the slowest rank is from the middle one, in standard deviations."""
    varying: Array
    """1 where inputs differ in size, else 0."""

    @property
    def communication(self) -> Array:
        return self.shares[:, 2]


def _describe(rows: Sequence[tuple[Case, Prediction]], codes: dict[Hashable, int]) -> _Features:
    def octave(value: float | None) -> float:
        return math.log2(max(value or 1.0, 1e-9))

    def code(kind: str, *names: Hashable) -> int:
        return codes.setdefault((kind, *names), len(codes))

    cases = [case for case, _ in rows]
    return _Features(
        codes=np.array(
            [
                (
                    code("job", *job_of(case)),
                    code("model", case.model, case.mode),
                    code("family", case.arch or case.model, case.mode),
                    code("device", case.gpu, case.dtype),
                    code("stack", case.framework),
                    code("cluster", case.gpu, case.inter_bw_Gbps, case.framework),
                )
                for case in cases
            ],
            dtype=np.int64,
        ),
        batch=np.array([[octave((case.micro_batch or 1.0) * (case.seq_len or 1))] for case in cases]),
        size=np.array(
            [
                # Models whose width is not known are near none but their own family.
                [
                    octave(case.hidden) if case.hidden else FAR * code("family", case.arch or case.model, case.mode),
                    octave(case.n_layers),
                ]
                for case in cases
            ]
        ),
        plan=np.array(
            [[octave(x) for x in (case.tp, case.pp, case.n_nodes, case.n_gpus, case.grad_accum)] for case in cases]
        ),
        shares=np.array(
            [
                [
                    share or 0.0
                    for share in (p.compute_share, p.memory_share, p.communication_share, p.host_share, p.bubble_share)
                ]
                for _, p in rows
            ]
        ),
        waiting=np.array([expected_largest(case.n_gpus or 1) for case in cases]),
        varying=np.array([float(case.family in VARYING) for case in cases]),
    )


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
    on_device += DEVICE**2 * device + STACK**2 * stack + EVERYTHING**2
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
    device = JOB**2 + MODEL**2 + FAMILY**2 + DEVICE**2 + STACK**2 + EVERYTHING**2 + waiting
    sent = features.communication
    return np.asarray(
        (1 - sent) ** 2 * device + sent**2 * (CLUSTER**2 + PLACEMENT**2 + NETWORK**2) + NEAR**2, dtype=np.float64
    )


def blend(predictions: Sequence[Prediction]) -> Prediction:
    """The geometric mean of several answers to one case: its log error is never larger than the mean of theirs."""
    answered = [one for one in predictions if one.step_s is not None]
    if len(answered) < 2:
        return predictions[0]

    def middle(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value]
        return math.exp(float(np.mean(np.log(known)))) if len(known) == len(answered) else None

    return replace(
        answered[0],
        step_s=middle([one.step_s for one in answered]),
        step_low_s=middle([one.step_low_s for one in answered]),
        step_high_s=middle([one.step_high_s for one in answered]),
    )


def _move(prediction: Prediction, *, shift: float, spread: float, num_known: int) -> Prediction:
    if prediction.step_s is None:
        return prediction
    factor = math.exp(shift)
    step_s = prediction.step_s * factor
    note = f"corrected by {factor:.3g} from {num_known} given measurements"
    return replace(
        prediction,
        step_s=step_s,
        step_low_s=step_s * math.exp(-Z90 * spread),
        step_high_s=step_s * math.exp(Z90 * spread),
        reason="; ".join(part for part in (prediction.reason, note) if part),
    )
