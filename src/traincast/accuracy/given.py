"""Measurements the user already has to corrections of forecasts: a Gaussian process over the log errors of known rows.

The log error of a case is modelled as (1 - c) d + c m, where c is the forecast's share of exposed communication, d the
error of what runs on the device and m that of the network. d is correlated between cases of the same job, model, family
and device, and near in batch; m between cases of the same cluster and near in scale. So one device's profile of a job
corrects its computation at every scale and says nothing about its network. The constants are set once by judgement, not
tuned to any case: they say how far apart errors of related cases are expected to be, as a share.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincast.accuracy.cases import Case
from traincast.accuracy.predictions import Prediction
from traincast.spec import COVERAGE

NOISE = 0.05
"""Spread of one measurement around its truth, as a share (findings/distributed.md: repeats differ by 2-6%)."""
JOB, JOB_PLAN, MODEL, DEVICE, EVERYTHING = 0.35, 0.15, 0.15, 0.15, 0.15
CLUSTER, CLUSTER_SCALE, NETWORK = 0.4, 0.25, 0.2
BATCH_OCTAVES, SCALE_OCTAVES = 3.0, 1.5
MAX_KNOWN = 400
"""Known rows used for one job, nearest first: enough for a profile, small enough for an exact solution."""
_Z90 = 1.6449


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A measured case with the forecast made for it."""

    case: Case
    prediction: Prediction
    step_s: float


def correct(cases: Sequence[Case], predictions: Sequence[Prediction], known: Sequence[Known]) -> list[Prediction]:
    """The predictions moved towards what is known, with intervals that narrow where the known rows are near."""
    usable = [row for row in known if row.prediction.answered and row.step_s > 0 and row.prediction.step_s]
    if not usable:
        return list(predictions)
    corrected = list(predictions)
    jobs: dict[tuple[str | None, ...], list[int]] = {}
    for index, (case, prediction) in enumerate(zip(cases, predictions, strict=True)):
        if prediction.answered:
            jobs.setdefault(_job(case), []).append(index)
    for places in jobs.values():
        near = _nearest(usable, cases[places[0]])
        stretch = _honesty(near)
        shifts, spreads = _infer(near, [(cases[place], predictions[place]) for place in places])
        for place, shift, spread in zip(places, shifts, spreads, strict=True):
            corrected[place] = _move(
                predictions[place], shift=float(shift), spread=float(spread), stretch=stretch, num_known=len(near)
            )
    return corrected


def _honesty(known: Sequence[Known]) -> float:
    """How many times wider the forecasts' own intervals must be to hold 90% of what is known (split conformal)."""
    reaches = []
    for row in known:
        step_s, low_s, high_s = row.prediction.step_s, row.prediction.step_low_s, row.prediction.step_high_s
        if step_s and low_s and high_s and low_s < step_s < high_s:
            error = math.log(row.step_s / step_s)
            reaches.append(error / math.log(high_s / step_s) if error > 0 else error / math.log(low_s / step_s))
    if not reaches:
        return 1.0
    rank = min(1.0, COVERAGE * (len(reaches) + 1) / len(reaches))
    return max(1.0, float(np.quantile(reaches, rank)))


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
    return [known[index] for index in order[:MAX_KNOWN]]


def _relation(one: Case, other: Case) -> int:
    same_job = 8 * (_job(one) == _job(other))
    return same_job + 4 * (one.model == other.model) + 2 * (one.gpu == other.gpu) + (one.framework == other.framework)


def _infer(
    known: Sequence[Known], asked: Sequence[tuple[Case, Prediction]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of the log error of each asked case."""
    codes: dict[Hashable, int] = {}
    known_features = _describe([(row.case, row.prediction) for row in known], codes)
    asked_features = _describe(asked, codes)
    errors = np.array([math.log(row.step_s / (row.prediction.step_s or math.nan)) for row in known])
    between = _covariance(known_features, known_features) + NOISE**2 * np.eye(len(known))
    across = _covariance(asked_features, known_features)
    factor = np.linalg.cholesky(between)
    weights = np.linalg.solve(factor.T, np.linalg.solve(factor, errors))
    reduced = np.linalg.solve(factor, across.T)
    prior = np.array([_prior_variance(share) for share in asked_features.communication])
    variance = np.maximum(prior - np.sum(reduced**2, axis=0), 0.0) + NOISE**2
    return across @ weights, np.sqrt(variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Features:
    """Columns of equal length: codes of names, octaves of sizes, shares."""

    job: NDArray[np.int64]
    model: NDArray[np.int64]
    device: NDArray[np.int64]
    cluster: NDArray[np.int64]
    batch: NDArray[np.float64]
    scale: NDArray[np.float64]
    plan: NDArray[np.float64]
    communication: NDArray[np.float64]


def _describe(rows: Sequence[tuple[Case, Prediction]], codes: dict[Hashable, int]) -> _Features:
    def coded(values: Sequence[Hashable]) -> NDArray[np.int64]:
        return np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.int64)

    def octaves(values: Sequence[float | None]) -> NDArray[np.float64]:
        logarithms: NDArray[np.float64] = np.log2(np.array([max(value or 1.0, 1e-9) for value in values]))
        return logarithms

    cases = [case for case, _ in rows]
    return _Features(
        job=coded([_job(case) for case in cases]),
        model=coded([(case.model, case.mode, case.dtype) for case in cases]),
        device=coded([(case.gpu, case.dtype) for case in cases]),
        cluster=coded([(case.gpu, case.inter_bw_Gbps, case.intra_bw_GBps, case.framework) for case in cases]),
        batch=octaves([(case.micro_batch or 1.0) * (case.seq_len or 1) for case in cases]),
        scale=np.stack([octaves([case.n_gpus for case in cases]), octaves([case.n_nodes for case in cases])], axis=1),
        plan=np.stack([octaves([case.tp for case in cases]), octaves([case.pp for case in cases])], axis=1),
        communication=np.array([prediction.communication_share or 0.0 for _, prediction in rows]),
    )


def _covariance(left: _Features, right: _Features) -> NDArray[np.float64]:
    def same(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.equal(a[:, None], b[None, :]).astype(np.float64)

    def near(a: NDArray[np.float64], b: NDArray[np.float64], octaves: float) -> NDArray[np.float64]:
        gaps = a.reshape(len(a), 1, -1) - b.reshape(1, len(b), -1)
        nearness: NDArray[np.float64] = np.exp(-0.5 * np.sum(gaps**2, axis=2) / octaves**2)
        return nearness

    in_batch = near(left.batch, right.batch, BATCH_OCTAVES)
    in_scale = near(left.scale, right.scale, SCALE_OCTAVES)
    in_plan = near(left.plan, right.plan, 1.0)
    device_part = (
        JOB**2 * same(left.job, right.job) * in_batch
        + JOB_PLAN**2 * same(left.job, right.job) * in_batch * in_scale * in_plan
        + MODEL**2 * same(left.model, right.model) * in_batch
        + DEVICE**2 * same(left.device, right.device)
        + EVERYTHING**2
    )
    network_part = (
        CLUSTER**2 * same(left.cluster, right.cluster)
        + CLUSTER_SCALE**2 * same(left.cluster, right.cluster) * in_scale
        + NETWORK**2
    )
    share_left, share_right = left.communication[:, None], right.communication[None, :]
    return (1 - share_left) * (1 - share_right) * device_part + share_left * share_right * network_part


def _prior_variance(communication: float) -> float:
    device = JOB**2 + JOB_PLAN**2 + MODEL**2 + DEVICE**2 + EVERYTHING**2
    network = CLUSTER**2 + CLUSTER_SCALE**2 + NETWORK**2
    return (1 - communication) ** 2 * device + communication**2 * network


def _move(prediction: Prediction, *, shift: float, spread: float, stretch: float, num_known: int) -> Prediction:
    step_s, low_s, high_s = prediction.step_s, prediction.step_low_s, prediction.step_high_s
    if step_s is None or low_s is None or high_s is None:
        return prediction
    factor = math.exp(shift)
    # The narrower of two honest intervals: the forecast's own, widened as the known rows demand, and the process's.
    below = min(stretch * math.log(step_s / max(low_s, 1e-300)), _Z90 * spread)
    above = min(stretch * math.log(high_s / step_s), _Z90 * spread)
    note = f"corrected by {factor:.3g} from {num_known} given measurements"
    return replace(
        prediction,
        step_s=step_s * factor,
        step_low_s=step_s * factor * math.exp(-below),
        step_high_s=step_s * factor * math.exp(above),
        reason="; ".join(part for part in (prediction.reason, note) if part),
    )


def _job(case: Case) -> tuple[str | None, ...]:
    """What is one job on one kind of device, at whatever batch and scale."""
    return case.model, case.gpu, case.dtype, case.mode, case.framework, case.act_ckpt, str(case.compiled)
