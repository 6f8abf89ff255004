"""Rows of features and log slowdowns to the weights of a small network, by a seeded Adam in numpy."""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a network is trained. Chosen once, before any left-out score was read."""

    hidden: int = 24
    num_epochs: int = 60
    batch_size: int = 256
    learning_rate: float = 4e-3
    weight_decay: float = 1e-4
    huber: float = 0.1
    seed: int = 0


def softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0.0, x), dtype=np.float64)


def train_network(inputs: Array, target: Array, weight: Array, *, training: Training) -> list[Array]:
    """Two hidden layers and a softplus, so that the predicted slowdown never goes below the bound."""
    rng = np.random.default_rng(training.seed)
    sizes = (inputs.shape[1], training.hidden, training.hidden, 1)
    params: list[Array] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        params.append(rng.normal(size=(fan_in, fan_out)) / np.sqrt(fan_in))
        params.append(np.zeros(fan_out))
    start = float(np.average(target, weights=weight))
    params[-1][:] = np.log(np.expm1(max(start, 0.05)))
    first = [np.zeros_like(p) for p in params]
    second = [np.zeros_like(p) for p in params]
    average = [np.zeros_like(p) for p in params]
    num_rows = len(target)
    num_batches = max(1, num_rows // training.batch_size)
    num_steps = training.num_epochs * num_batches
    averaged, step = 0, 0
    for _ in range(training.num_epochs):
        order = rng.permutation(num_rows)
        for batch in np.array_split(order, num_batches):
            step += 1
            rate = training.learning_rate * 0.5 * (1 + np.cos(np.pi * step / num_steps))
            gradients = _gradients(params, inputs[batch], target[batch], weight[batch], training.huber)
            for i, gradient in enumerate(gradients):
                first[i] = 0.9 * first[i] + 0.1 * gradient
                second[i] = 0.999 * second[i] + 0.001 * gradient**2
                corrected = first[i] / (1 - 0.9**step) / (np.sqrt(second[i] / (1 - 0.999**step)) + 1e-8)
                decay = training.weight_decay * params[i] if i % 2 == 0 else 0.0
                params[i] = params[i] - rate * (corrected + decay)
            if step > 0.8 * num_steps:
                averaged += 1
                for i, param in enumerate(params):
                    average[i] += (param - average[i]) / averaged
    return average if averaged else params


def _gradients(params: list[Array], inputs: Array, target: Array, weight: Array, huber: float) -> list[Array]:
    w1, b1, w2, b2, w3, b3 = params
    h1 = np.tanh(inputs @ w1 + b1)
    h2 = np.tanh(h1 @ w2 + b2)
    z = (h2 @ w3 + b3)[:, 0]
    error = softplus(z) - target
    slope = np.clip(error / huber, -1.0, 1.0) * weight / weight.sum()
    dz = (slope / (1 + np.exp(-np.clip(z, -30, 30))))[:, None]
    d2 = (dz @ w3.T) * (1 - h2**2)
    d1 = (d2 @ w2.T) * (1 - h1**2)
    return [inputs.T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0), h2.T @ dz, dz.sum(0)]
