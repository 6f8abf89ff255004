"""Trains the graph network on measured steps: mostly only sums are known, so the error of each sum teaches all its tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincast.cost import Network
from traincast.cost._interaction import NEIGHBOURS, NUM_ROUNDS
from traincast.cost._interaction.features import NUM_PASSES, NUMERIC, SORTS, Array, Flow, Neighbourhood, Places
from traincast.cost._interaction.nodes import CONSTANTS
from traincast.errors import InvalidInput

NUM_FEATURES = len(SORTS) + NUM_PASSES + len(NUMERIC)


def inputs_of(network: Network, seen: Neighbourhood) -> Array:
    of_kind, of_pass = np.eye(len(SORTS))[seen.sorts], np.eye(NUM_PASSES)[seen.passes]
    return np.concatenate([of_kind, of_pass, network._scaled(seen)], axis=1)


def turned(flow: Flow) -> Flow:
    """Against its direction: what a gradient needs."""
    return Flow.of(flow.ends, flow.origins, flow.weights, size=flow.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One measured step, and what the cost model below sees and says of it."""

    seen: Neighbourhood
    seconds: float
    parts: tuple[int, ...] = ()
    """Where parts of the step were timed (the products of its forward pass, say): which of them each task belongs to."""
    part_seconds: tuple[float, ...] = ()
    """Of each part; nan where it was not timed. Then the parts teach, not the whole."""

    def __post_init__(self) -> None:
        if self.parts and len(self.parts) != self.seen.num_tasks:
            raise InvalidInput(
                f"{len(self.parts)} parts are named for {self.seen.num_tasks} tasks; name one for each task"
            )
        if self.parts and not 0 <= min(self.parts) <= max(self.parts) < len(self.part_seconds):
            raise InvalidInput(
                f"parts {min(self.parts)} to {max(self.parts)} are named; {len(self.part_seconds)} have times"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a network is trained; chosen by leave-family-out error of the first half of the corpus (ADR 14)."""

    width: int = 8
    num_steps: int = 40
    rate: float = 0.03
    towards_one: float = 0.1
    """Penalty on the squared logarithm of each correction, weighed by the task's share of its step."""
    decay: float = 1e-3
    tolerance: float = 0.1
    """Relative errors above it count linearly (Huber 1964)."""
    bound: float = CONSTANTS.bound
    fades: bool = True
    """Corrections vanish outside of the training data; off for a network that answers alone."""
    seed: int = 0


def fit_network(examples: Sequence[Example], training: Training | None = None) -> Network:
    chosen = training or Training()
    if len(examples) < 2:
        raise InvalidInput(f"{len(examples)} measured steps; a network needs at least two")
    seen = _join([example.seen for example in examples])
    owner, log_seconds = _sums(examples)
    network = _begin(seen, chosen)
    batch = _Batch(
        inputs=inputs_of(network, seen), nearness=network.nearness(seen), flows=_flows(examples),
        spent=seen.seconds * seen.counts, owner=owner, log_seconds=log_seconds,
    )  # fmt: skip
    weights = {name: value.copy() for name, value in network.weights.items()}
    first = {name: np.zeros_like(value) for name, value in weights.items()}
    second = {name: np.zeros_like(value) for name, value in weights.items()}
    for step in range(1, chosen.num_steps + 1):
        slopes = slopes_of(weights, batch, chosen)[1]
        rate = chosen.rate * 0.5 * (1 + np.cos(np.pi * step / (chosen.num_steps + 1)))
        for name, slope in slopes.items():
            # Adam (Kingma and Ba 2015) with decay apart from the slope (Loshchilov and Hutter 2019).
            first[name] = 0.9 * first[name] + 0.1 * slope
            second[name] = 0.98 * second[name] + 0.02 * slope**2
            move = (first[name] / (1 - 0.9**step)) / (np.sqrt(second[name] / (1 - 0.98**step)) + 1e-9)
            weights[name] = weights[name] - rate * (move + chosen.decay * weights[name])
    return Network(
        weights=weights, centre=network.centre, scale=network.scale, low=network.low, high=network.high,
        known_sorts=network.known_sorts, bound=chosen.bound,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    inputs: Array
    nearness: Array
    flows: tuple[tuple[Flow, Flow], ...]
    """Each with its turned one."""
    spent: Array
    owner: Places
    log_seconds: Array


def slopes_of(weights: dict[str, Array], batch: _Batch, chosen: Training) -> tuple[float, dict[str, Array]]:
    """The loss and its gradient, by hand: forward through the rounds and back."""
    states = [np.tanh(batch.inputs @ weights["in"] + weights["in_bias"])]
    rounds = []
    for number in range(NUM_ROUNDS):
        around = (states[-1], *(flow.apply(states[-1]) for flow, _ in batch.flows))
        total = weights[f"round{number}_bias"] + sum(
            part @ weights[f"round{number}_{name}"] for name, part in zip(NEIGHBOURS, around, strict=True)
        )
        turn = np.tanh(total)
        rounds.append((around, turn))
        states.append(states[-1] + turn)
    answer = np.tanh(states[-1] @ weights["out"] + weights["out_bias"])[:, 0]
    reach = chosen.bound * batch.nearness
    logs = reach * answer
    spent = batch.spent * np.exp(logs)
    num_steps = len(batch.log_seconds)
    whole = np.maximum(np.bincount(batch.owner, weights=spent, minlength=num_steps), 1e-30)
    share = spent / whole[batch.owner]
    error = np.log(whole) - batch.log_seconds
    size = np.abs(error)
    t = chosen.tolerance
    loss = float(np.where(size <= t, 0.5 * size**2 / t, size - 0.5 * t).mean())
    loss += chosen.towards_one * float((share * logs**2).sum()) / num_steps
    pull = np.clip(error / t, -1.0, 1.0) / num_steps
    # The share is held fixed in the penalty: it is a weight, not a way to make the penalty small.
    slope = (pull[batch.owner] * share + 2 * chosen.towards_one * share * logs / num_steps) * reach * (1 - answer**2)
    slopes = {"out": states[-1].T @ slope[:, None], "out_bias": np.array([slope.sum()])}
    back = slope[:, None] @ weights["out"].T
    for number in reversed(range(NUM_ROUNDS)):
        around, turn = rounds[number]
        inner = back * (1 - turn**2)
        slopes[f"round{number}_bias"] = inner.sum(axis=0)
        for name, part in zip(NEIGHBOURS, around, strict=True):
            slopes[f"round{number}_{name}"] = part.T @ inner
        back = back + inner @ weights[f"round{number}_self"].T
        for name, (_, turned) in zip(NEIGHBOURS[1:], batch.flows, strict=True):
            back = back + turned.apply(inner @ weights[f"round{number}_{name}"].T)
    inner = back * (1 - states[0] ** 2)
    slopes["in"], slopes["in_bias"] = batch.inputs.T @ inner, inner.sum(axis=0)
    return loss, slopes


def _sums(examples: Sequence[Example]) -> tuple[Places, Array]:
    """Which sum each task belongs to (a step, or a part of it that was timed), and the logarithm of what it should be."""
    owner: list[int] = []
    seconds: list[float] = []
    for example in examples:
        start = len(seconds)
        parts = np.array(example.parts or [0] * example.seen.num_tasks, dtype=np.intp)
        measured = np.array(example.part_seconds if example.parts else [example.seconds])
        # What was not timed keeps its price: its sum is asked to stay.
        priced = np.bincount(parts, weights=example.seen.seconds * example.seen.counts, minlength=len(measured))
        owner += (start + parts).tolist()
        seconds += np.where(np.isfinite(measured), measured, np.maximum(priced, 1e-30)).tolist()
    return np.array(owner, dtype=np.intp), np.log(seconds)


def _begin(seen: Neighbourhood, chosen: Training) -> Network:
    random = np.random.default_rng(chosen.seed)
    width = chosen.width
    weights: dict[str, Array] = {
        "in": random.normal(size=(NUM_FEATURES, width)) / np.sqrt(NUM_FEATURES / 4), "in_bias": np.zeros(width),
        "out": 0.1 * random.normal(size=(width, 1)) / np.sqrt(width), "out_bias": np.zeros(1),
    }  # fmt: skip
    for number in range(NUM_ROUNDS):
        weights[f"round{number}_bias"] = np.zeros(width)
        for name in NEIGHBOURS:
            weights[f"round{number}_{name}"] = random.normal(size=(width, width)) / np.sqrt(len(NEIGHBOURS) * width)
    known = np.zeros(len(SORTS))
    known[np.unique(seen.sorts)] = 1.0
    low, high = np.percentile(seen.numeric, [1, 99], axis=0)
    if not chosen.fades:
        known, low, high = np.ones(len(SORTS)), np.full(len(NUMERIC), -np.inf), np.full(len(NUMERIC), np.inf)
    # A feature that never varied (no host queue, no overlap) says nothing; half a unit away from it counts as far.
    scale = np.maximum(seen.numeric.std(axis=0), 0.25)
    return Network(
        weights=weights, centre=seen.numeric.mean(axis=0), scale=scale, low=low, high=high, known_sorts=known,
        bound=chosen.bound,
    )  # fmt: skip


def _flows(examples: Sequence[Example]) -> tuple[tuple[Flow, Flow], ...]:
    starts = np.concatenate([[0], np.cumsum([example.seen.num_tasks for example in examples])])
    by_place = list(zip(*(example.seen.flows() for example in examples), strict=True))
    joined = []
    for flows in by_place:
        origins = np.concatenate([flow.origins + start for flow, start in zip(flows, starts, strict=False)])
        ends = np.concatenate([flow.ends + start for flow, start in zip(flows, starts, strict=False)])
        whole = Flow.of(origins, ends, np.concatenate([flow.weights for flow in flows]), size=int(starts[-1]))
        joined.append((whole, turned(whole)))
    return tuple(joined)


def _join(parts: Sequence[Neighbourhood]) -> Neighbourhood:
    starts = np.concatenate([[0], np.cumsum([part.num_tasks for part in parts])])[:-1]
    return Neighbourhood(
        sorts=np.concatenate([part.sorts for part in parts]),
        passes=np.concatenate([part.passes for part in parts]),
        numeric=np.concatenate([part.numeric for part in parts]),
        counts=np.concatenate([part.counts for part in parts]),
        seconds=np.concatenate([part.seconds for part in parts]),
        sources=np.concatenate([part.sources + start for part, start in zip(parts, starts, strict=True)]),
        targets=np.concatenate([part.targets + start for part, start in zip(parts, starts, strict=True)]),
    )
