"""Operators and steps that took known seconds to the rates of a machine.

seconds = overhead x calls + FLOP / rate + bytes / rate, summed over operators. Inside a step the same operator takes longer:
its code and its data have left the caches. That costs a factor on overheads, and seconds for each byte that do not depend on
how fast the operator itself is: dropout, bound by random numbers, does not wait for memory three times as long as alone.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.learn._loads import CalibrationLoad
from traincast.noun import noun
from traincast.spec import calls_of, groups_of

Array = NDArray[np.float64]


@noun
class Prior:
    """What is believed of a kind before any measurement, as shares of the machine's peaks."""

    compute: float
    memory: float
    overhead_s: float = 6e-6


PRIORS: dict[str, Prior] = {
    "matmul": Prior(compute=0.5, memory=1.0),
    "attention": Prior(compute=0.2, memory=1.0, overhead_s=2e-5),
    "conv": Prior(compute=0.3, memory=0.7, overhead_s=2e-5),
    "rnn": Prior(compute=0.2, memory=0.7, overhead_s=2e-5),
    "optimizer": Prior(compute=1.0, memory=0.8, overhead_s=2e-5),
}
DEFAULT_PRIOR = Prior(compute=0.2, memory=0.6)
MACHINE_SPREAD, KIND_SPREAD, BRANCH_SPREAD, GROUP_SPREAD = 0.5, 0.5, 0.5, 0.7
"""Standard deviations of the priors in log space, of what all groups of operators share, what those of a kind, of a branch of
it, and what a group has alone: a group never measured follows its relatives, shares of the peak are known within a factor of
about three."""
COMPUTE_SCALE_SPREAD, OVERHEAD_SCALE_SPREAD, CALL_SPREAD, COLD_SPREAD = 0.1, 0.5, 1.0, 1.0
PRIOR_CALL_S = 2e-6
NUM_STEP_FACTORS = 5
"""In this order at the end of theta: compute, overhead, seconds of a call, of a cold byte, and of one of the optimizer."""
UNKNOWN_INFLATION = 2.0


@noun
class Peaks:
    """The machine at its best."""

    flop_per_s: float
    bytes_per_s: float
    cold_s_per_byte: float | None = None
    """What a byte costs more where it is not in a cache; unknown: half of its time at the best rate."""

    @property
    def expected_cold_s_per_byte(self) -> float:
        return 0.5 / self.bytes_per_s if self.cold_s_per_byte is None else self.cold_s_per_byte


@noun
class RatesFit:
    """Groups of operators and the logarithms of their overhead, seconds per FLOP and seconds per byte."""

    chains: tuple[tuple[str, ...], ...]
    """Each group with the wider ones it belongs to, up to its kind."""
    theta: Array
    prior: Array
    covariance: Array
    information: Array
    step_inflation: float = UNKNOWN_INFLATION
    """How many times wider than assumed steps scatter when each is forecast without its own measurement; until a few
    steps are measured it is not known, and two is a cautious guess."""

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(chain[0] for chain in self.chains)

    def predict(self, loads: "Sequence[CalibrationLoad] | Amounts") -> Array:
        return _evaluate(_amounts(loads, self.groups), self.theta)[0]

    def sensitivities(self, loads: "Sequence[CalibrationLoad] | Amounts") -> Array:
        """d ln(seconds) in units of the residual, by factors that are independent and of unit spread before any
        measurement: the features of the design."""
        amounts = _amounts(loads, self.groups)
        gradient = _evaluate(amounts, self.theta)[1] / amounts.spread[:, None]
        return np.asarray(gradient @ np.linalg.cholesky(self.covariance), dtype=np.float64)

    def log_spread(self, loads: "Sequence[CalibrationLoad] | Amounts") -> Array:
        """Of each prediction: what the parameters leave open and what the model misses."""
        amounts = _amounts(loads, self.groups)
        gradient = _evaluate(amounts, self.theta)[1]
        open_part = np.einsum("ij,ij->i", gradient, np.linalg.solve(self.information, gradient.T).T)
        inflation = np.where(amounts.is_step, self.step_inflation, 1.0)
        return np.asarray(inflation * np.sqrt(open_part + amounts.spread**2), dtype=np.float64)


@noun
class Amounts:
    """Loads as a matrix: calls, FLOP and bytes in each group of operators."""

    matrix: Array
    calls: Array
    moved_bytes: Array
    updated_bytes: Array
    """Of the optimizer, which no other operator touches meanwhile."""
    is_step: NDArray[np.bool_]
    spread: Array

    def __len__(self) -> int:
        return len(self.calls)

    def pick(self, places: Sequence[int]) -> "Amounts":
        """Some of the loads, in this order: counting operators takes longer than fitting them."""
        chosen = list(places)
        return Amounts(
            matrix=self.matrix[chosen],
            calls=self.calls[chosen],
            moved_bytes=self.moved_bytes[chosen],
            updated_bytes=self.updated_bytes[chosen],
            is_step=self.is_step[chosen],
            spread=self.spread[chosen],
        )

    @staticmethod
    def of(loads: Sequence[CalibrationLoad], groups: tuple[str, ...]) -> "Amounts":
        position = {group: 3 * index for index, group in enumerate(groups)}
        matrix = np.zeros((len(loads), 3 * len(groups)))
        calls, moved, updated = np.zeros(len(loads)), np.zeros(len(loads)), np.zeros(len(loads))
        for row, load in enumerate(loads):
            for op, count in zip(load.ops, load.counts, strict=True):
                first = position.get(groups_of(op)[0])
                if first is None:
                    raise InvalidInput(f"operator group {groups_of(op)[0]!r} is not part of this fit")
                num_calls, num_bytes = count * calls_of(op), count * op.num_bytes
                matrix[row, first : first + 3] += (num_calls, count * (op.flop or 0.0), num_bytes)
                calls[row] += num_calls
                if op.kind == "optimizer":
                    updated[row] += num_bytes
                else:
                    moved[row] += num_bytes
        return Amounts(
            matrix=matrix, calls=calls, moved_bytes=moved, updated_bytes=updated,
            is_step=np.array([load.is_step for load in loads], dtype=bool),
            spread=np.array([load.spread for load in loads]),
        )  # fmt: skip


def _amounts(loads: Sequence[CalibrationLoad] | Amounts, groups: tuple[str, ...]) -> Amounts:
    return loads if isinstance(loads, Amounts) else Amounts.of(loads, groups)


def start_fit(loads: Sequence[CalibrationLoad], peaks: Peaks) -> RatesFit:
    """Before any measurement: every group as its kind's prior says."""
    by_group = {chain[0]: chain for load in loads for chain in map(groups_of, load.ops)}
    chains = tuple(by_group[group] for group in sorted(by_group))
    theta: list[float] = []
    for chain in chains:
        prior = PRIORS.get(chain[-1], DEFAULT_PRIOR)
        theta += [
            math.log(prior.overhead_s),
            -math.log(peaks.flop_per_s * prior.compute),
            -math.log(peaks.bytes_per_s * prior.memory),
        ]
    cold = math.log(peaks.expected_cold_s_per_byte)
    start = np.array([*theta, 0.0, 0.0, math.log(PRIOR_CALL_S), cold, cold])
    covariance = np.zeros((len(start), len(start)))
    # The three factors of a group are independent; the same factor of two groups is shared as far as their chains are.
    covariance[:-NUM_STEP_FACTORS, :-NUM_STEP_FACTORS] = np.kron(_kinship(chains), np.eye(3))
    own = (COMPUTE_SCALE_SPREAD, OVERHEAD_SCALE_SPREAD, CALL_SPREAD, COLD_SPREAD, COLD_SPREAD)
    covariance[-NUM_STEP_FACTORS:, -NUM_STEP_FACTORS:] = np.diag(np.square(own))
    return RatesFit(chains=chains, theta=start, prior=start, covariance=covariance, information=_inverse(covariance))


def _kinship(chains: Sequence[tuple[str, ...]]) -> Array:
    """Covariance of one factor between groups: what they have in common, level by level."""
    found = np.empty((len(chains), len(chains)))
    for row, one in enumerate(chains):
        for column, other in enumerate(chains):
            branch = bool(set(one[:-1]) & set(other[:-1]))
            found[row, column] = (
                MACHINE_SPREAD**2
                + KIND_SPREAD**2 * (one[-1] == other[-1])
                + BRANCH_SPREAD**2 * branch
                + GROUP_SPREAD**2 * (row == column)
            )
    return found


def refit(
    fit: RatesFit,
    loads: Sequence[CalibrationLoad] | Amounts,
    seconds: Sequence[float] | Array,
    *,
    num_iterations: int = 60,
) -> RatesFit:
    """The most probable factors given prior and measurements: damped Gauss-Newton on robust log residuals."""
    if not len(loads):
        return fit
    target = np.log(np.asarray(seconds, dtype=np.float64))
    amounts = _amounts(loads, fit.groups)
    precision = _inverse(fit.covariance)
    theta = fit.theta.copy()
    damping = 1e-2
    cost = _cost(amounts, target, theta - fit.prior, precision, theta)
    for _ in range(num_iterations):
        residual, jacobian = _residuals(amounts, target, theta)
        weight = _huber_weight(residual)
        normal = jacobian.T @ (weight[:, None] * jacobian) + precision
        slope = jacobian.T @ (weight * residual) + precision @ (theta - fit.prior)
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), slope)
        trial = theta - np.clip(step, -2.0, 2.0)
        trial_cost = _cost(amounts, target, trial - fit.prior, precision, trial)
        if trial_cost < cost:
            improvement = cost - trial_cost
            theta, cost, damping = trial, trial_cost, max(damping / 3, 1e-6)
            if improvement < 1e-5 * max(cost, 1.0):
                break
        else:
            damping *= 5
            if damping > 1e8:
                break
    residual, jacobian = _residuals(amounts, target, theta)
    weight = _huber_weight(residual)
    information = jacobian.T @ (weight[:, None] * jacobian) + precision
    inflation = _step_inflation(residual, jacobian, information, amounts.is_step)
    return replace(fit, theta=theta, information=information, step_inflation=inflation)


def _step_inflation(residual: Array, jacobian: Array, information: Array, is_step: NDArray[np.bool_]) -> float:
    """From leave-one-out residuals (Allen 1974) of the steps, never below one; unknown with fewer than five."""
    if is_step.sum() < 5:
        return UNKNOWN_INFLATION
    rows = jacobian[is_step]
    leverage = np.einsum("ij,ij->i", rows, np.linalg.solve(information, rows.T).T)
    left_out = residual[is_step] / np.maximum(1 - leverage, 0.05)
    return max(1.0, float(np.sqrt(np.mean(np.minimum(np.abs(left_out), 10.0) ** 2))))


def _evaluate(amounts: Amounts, theta: Array) -> tuple[Array, Array]:
    """Seconds of each load and the gradient of their logarithm."""
    rates, factors = theta[:-NUM_STEP_FACTORS], np.exp(theta[-NUM_STEP_FACTORS:])
    compute, overhead = (np.where(amounts.is_step, factor, 1.0) for factor in factors[:2])
    parts = amounts.matrix * np.exp(rates)[None, :]
    parts[:, 0::3] *= overhead[:, None]
    parts[:, 1::3] *= compute[:, None]
    more = np.stack([amounts.calls, amounts.moved_bytes, amounts.updated_bytes], axis=1) * factors[None, 2:]
    more *= amounts.is_step[:, None]
    total = parts.sum(axis=1) + more.sum(axis=1)
    gradient = np.zeros((len(total), len(theta)))
    gradient[:, : len(rates)] = parts / total[:, None]
    gradient[:, -5] = np.where(amounts.is_step, parts[:, 1::3].sum(axis=1) / total, 0.0)
    gradient[:, -4] = np.where(amounts.is_step, parts[:, 0::3].sum(axis=1) / total, 0.0)
    gradient[:, -3:] = more / total[:, None]
    return total, gradient


def _residuals(amounts: Amounts, target: Array, theta: Array) -> tuple[Array, Array]:
    seconds, gradient = _evaluate(amounts, theta)
    return (np.log(seconds) - target) / amounts.spread, gradient / amounts.spread[:, None]


def _cost(amounts: Amounts, target: Array, away: Array, precision: Array, theta: Array) -> float:
    size = np.abs(_residuals(amounts, target, theta)[0])
    huber = np.where(size <= 2.0, 0.5 * size**2, 2.0 * size - 2.0)
    return float(huber.sum() + 0.5 * away @ precision @ away)


def _inverse(matrix: Array) -> Array:
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def _huber_weight(residual: Array) -> Array:
    return np.asarray(np.minimum(1.0, 2.0 / np.maximum(np.abs(residual), 1e-9)), dtype=np.float64)
