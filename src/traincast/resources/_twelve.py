"""A program and its setting to the twelve resource numbers of a rank, by one graph network (Driple).

Operators, with what their neighbours told them, are pooled by their share of the time; a perceptron that also sees the setting
(workers, servers, co-location, links, device) gives the step, and for each resource how long its bursts are and how high.
Pre-trained on simulated steps, then tuned to measured ones (`research/fits/methods`); runs of a new setting move all layers
above the graph's.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.files import read_safetensors, write_safetensors
from traincast.noun import noun
from traincast.spec import RESOURCES, Activity, ResourceProfile

Array = NDArray[np.float64]
TWELVE_WEIGHTS = Path(__file__).parent / "weights" / "driple.safetensors"
OUTPUTS = ("step", *(f"{name}_burst" for name in RESOURCES), *(f"{name}_peak" for name in RESOURCES))
"""The logarithm of the step over a guess; shares of the step as logits; peaks over what a resource can do, as logits."""
CLIP = 4.0
DRIPLE = "graph network"
"""What a number rests on."""


@noun
class Rank:
    """What the network is told of one step of one rank."""

    numbers: Array
    """Of each operator and its neighbours."""
    classes: Sequence[str]
    """Of each operator."""
    shares: Array
    """Of each operator in the time of a reference device."""
    setting: Array
    guess_s: float
    caps: Mapping[str, float]
    """The most that each resource can do: a share of 1, or bytes per second."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwelveNetwork:
    """Weights; arrays by name, outputs of the last layer in the order of OUTPUTS."""

    classes: Mapping[str, int]
    arrays: Mapping[str, Array]
    log_sigma: Mapping[str, float]
    """Of each output, on steps whose workload was left out."""
    num_steps: int

    def pool(self, rank: Rank) -> Array:
        """Operators and what their neighbours told them, pooled, beside the setting."""
        found = self.arrays
        rows = np.array([self.classes.get(name, len(self.classes)) for name in rank.classes], dtype=np.intp)
        scaled = np.clip((rank.numbers - found["centre"]) / found["scale"], -CLIP, CLIP)
        state = np.tanh(scaled @ found["enter"] + found["enter_class"][rows])
        pooled = rank.shares @ state
        told = np.clip((rank.setting - found["setting_centre"]) / found["setting_scale"], -CLIP, CLIP)
        return np.concatenate([pooled, told])

    def answer(self, rank: Rank) -> Array:
        """Of each output, in its own unit."""
        answered: Array = _answer(self.arrays, self.pool(rank)[None])[2][0]
        return answered

    def predict(self, rank: Rank) -> "TwelveAnswer":
        raw = dict(zip(OUTPUTS, self.answer(rank).tolist(), strict=True))
        step_s = rank.guess_s * math.exp(raw["step"])
        values: dict[str, tuple[float, float]] = {}
        ranges: dict[str, tuple[float, float]] = {}
        for name in RESOURCES:
            wide = 1.645 * self.log_sigma[f"{name}_burst"], 1.645 * self.log_sigma[f"{name}_peak"]
            bursts = [step_s * _share(raw[f"{name}_burst"] + sign * wide[0]) for sign in (-1, 0, 1)]
            peaks = [rank.caps[name] * _share(raw[f"{name}_peak"] + sign * wide[1]) for sign in (-1, 0, 1)]
            if not rank.caps[name]:
                bursts, peaks = [0.0] * 3, [0.0] * 3
            values[name] = bursts[1], peaks[1]
            ranges |= {
                f"{name}_burst_s": (bursts[0], bursts[2]), f"{name}_idle_s": (step_s - bursts[2], step_s - bursts[0]),
                f"{name}_peak": (peaks[0], peaks[2]),
            }  # fmt: skip
        return TwelveAnswer(step_s=step_s, log_sigma=self.log_sigma["step"], values=values, ranges=ranges)

    def adapted(self, ranks: Sequence[Rank], targets: Sequence[Mapping[str, float]]) -> "TwelveNetwork":
        """With all layers above the graph's moved by runs of a new setting, so that an output nobody measured moves little.
        `targets`: by output, in its own unit."""
        pooled = np.array([self.pool(rank) for rank in ranks])
        goals = np.array([[target.get(name, math.nan) for name in OUTPUTS] for target in targets])
        wide = np.array([self.log_sigma[name] for name in OUTPUTS])
        counts = dict(zip(OUTPUTS, np.isfinite(goals).sum(axis=0).tolist(), strict=True))
        moved = {
            name: self.log_sigma[name] * math.sqrt(max(LEAST_VARIANCE, 1.0 / (1.0 + count)))
            for name, count in counts.items()
        }
        arrays = {**self.arrays, **_tune(self.arrays, pooled, goals, wide)}
        return replace(self, arrays=arrays, log_sigma=moved, num_steps=len(ranks))


LEAST_VARIANCE = 0.3
"""What is left of the variance of an output over left-out workloads, however many runs were given."""
TUNED = ("mix", "mix_bias", "second", "second_bias", "head")
TUNING_STEPS, TUNING_RATE, KEPT = 100, 0.01, 0.1
"""Of Adam (Kingma and Ba 2015); KEPT pulls each weight back to where it was pre-trained."""


def _answer(arrays: Mapping[str, Array], pooled: Array) -> tuple[Array, Array, Array]:
    """States of both layers, and the outputs, of each row."""
    first = np.tanh(pooled @ arrays["mix"] + arrays["mix_bias"])
    second = np.tanh(first @ arrays["second"] + arrays["second_bias"])
    return first, second, second @ arrays["head"][:-1] + arrays["head"][-1]


def _tune(start: Mapping[str, Array], pooled: Array, goals: Array, wide: Array) -> dict[str, Array]:
    """The layers after gradient descent on what was measured, in units of `wide`; beyond one an error counts linearly."""
    found = {name: start[name].copy() for name in TUNED}
    mean, square = ({name: np.zeros_like(start[name]) for name in TUNED} for _ in range(2))
    known, truth = np.isfinite(goals), np.nan_to_num(goals)
    for step in range(1, TUNING_STEPS + 1):
        first, second, said = _answer(found, pooled)
        out = np.where(known, np.clip((said - truth) / wide, -1.0, 1.0), 0.0) / wide / len(pooled)
        inner = (out @ found["head"][:-1].T) * (1 - second**2)
        outer = (inner @ found["second"].T) * (1 - first**2)
        slopes = {
            "head": np.vstack([second.T @ out, out.sum(axis=0)]), "second": first.T @ inner,
            "second_bias": inner.sum(axis=0), "mix": pooled.T @ outer, "mix_bias": outer.sum(axis=0),
        }  # fmt: skip
        for name, slope in slopes.items():
            pulled = slope + KEPT * (found[name] - start[name])
            mean[name] = 0.9 * mean[name] + 0.1 * pulled
            square[name] = 0.99 * square[name] + 0.01 * pulled**2
            steady = np.sqrt(square[name] / (1 - 0.99**step)) + 1e-8
            found[name] = found[name] - TUNING_RATE * mean[name] / (1 - 0.9**step) / steady
    return found


@noun
class TwelveAnswer:
    step_s: float
    log_sigma: float
    values: Mapping[str, tuple[float, float]]
    """Seconds of bursts and peaks by resource."""
    ranges: Mapping[str, tuple[float, float]]

    def apply(self, profile: ResourceProfile) -> ResourceProfile:
        """A profile with its twelve numbers; bytes and energy stay."""

        def activity(name: str) -> Activity:
            before: Activity = getattr(profile, name)
            burst_s, peak = self.values[name]
            mean = peak * burst_s / self.step_s
            return replace(before, idle_s=max(self.step_s - burst_s, 0.0), burst_s=burst_s, peak=peak, mean=mean)

        return replace(
            profile, step_s=self.step_s, basis="learned", ranges=dict(self.ranges), grounds=dict.fromkeys(self.ranges, DRIPLE),
            gpu=activity("gpu"), memory=activity("memory"), received=activity("received"), sent=activity("sent"),
        )  # fmt: skip


def measure_outputs(step_s: float, twelve: Mapping[str, float], rank: Rank) -> dict[str, float]:
    """What the outputs should be for a measured run; what was not measured is left out."""
    found = {"step": math.log(step_s / rank.guess_s)}
    for name in RESOURCES:
        burst_s, peak = twelve.get(f"{name}_burst_s"), twelve.get(f"{name}_peak")
        if burst_s is not None:
            found[f"{name}_burst"] = _logit(burst_s / step_s)
        if peak is not None and rank.caps[name]:
            found[f"{name}_peak"] = _logit(peak / rank.caps[name])
    return found


LEAST = 0.005


def _share(logit: float) -> float:
    """From 0 to 1; what lies at the ends is the end."""
    value = 1.0 / (1.0 + math.exp(-min(max(logit, -30.0), 30.0)))
    return min(1.0, max(0.0, (value - LEAST) / (1 - 2 * LEAST)))


def _logit(share: float) -> float:
    inside = LEAST + (1 - 2 * LEAST) * min(1.0, max(0.0, share))
    return math.log(inside / (1 - inside))


def save_twelve(network: TwelveNetwork, path: Path = TWELVE_WEIGHTS) -> None:
    notes = {
        "classes": json.dumps(list(network.classes)), "log_sigma": json.dumps(dict(network.log_sigma)),
        "num_steps": str(network.num_steps), "made by": "python -m research.fits.methods driple",
    }  # fmt: skip
    write_safetensors(path, network.arrays, notes)


@cache
def load_twelve(path: Path = TWELVE_WEIGHTS) -> TwelveNetwork:
    arrays, notes = read_safetensors(path)
    if "head" not in arrays or "classes" not in notes:
        raise InvalidInput(
            f"{path} holds no network for the twelve numbers; make one with: traincast learn --method driple"
        )
    return TwelveNetwork(
        classes={name: place for place, name in enumerate(json.loads(notes["classes"]))}, arrays=arrays,
        log_sigma=json.loads(notes["log_sigma"]), num_steps=int(notes["num_steps"]),
    )  # fmt: skip
