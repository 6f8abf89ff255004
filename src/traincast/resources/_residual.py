"""What a forecast of GPU utilisation misses (input pipelines, host work, start-up), learned from measured runs.

A ridge regression with one strength per group of features: a feature that no measurement shows stays at zero, so an unknown
workload or machine gets what all have in common. Large errors weigh less (Huber 1964): a run that failed half-way says little
about one that did not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.files import read_json, write_json
from traincast.spec import Graph, ResourceProfile

FITTED = Path(__file__).parent / "weights" / "gpu_utilization.json"
STRENGTHS: Mapping[str, float] = {
    "octave": 0.02, "machine": 0.04, "device": 0.03, "workload": 0.05, "workload half": 0.03, "workload octave": 0.015,
}  # fmt: skip
"""How far each group may move a share of utilisation before we doubt it: one standard deviation. First guesses, not tuned."""
NOISE = 0.03
ROUNDS = 20
HALF = frozenset({"fp16", "bf16"})
PRODUCTS = frozenset({"matmul", "conv", "attention"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how a profile was, or is to be, measured."""

    workload: str
    device: str
    num_devices: int
    half: bool
    """Products in 16 bits."""

    def features(self) -> dict[str, float]:
        """Group and value by name; the name begins with the group."""
        octave = math.log2(self.num_devices)
        return {
            "octave:": octave,
            f"machine:{self.num_devices} x {self.device}": 1.0,
            f"device:{self.device}": 1.0,
            f"workload:{self.workload}": 1.0,
            f"workload half:{self.workload}": float(self.half),
            f"workload octave:{self.workload}": octave,
        }


def setting_of(graph: Graph, *, device: str, num_devices: int) -> Setting:
    half = any(op.dtype in HALF for op in graph.ops if op.kind in PRODUCTS)
    return Setting(workload=graph.name, device=device, num_devices=num_devices, half=half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Coefficients by feature name; those that are not there are zero."""

    intercept: float = 0.0
    coefficients: Mapping[str, float] = field(default_factory=dict)
    num_rows: int = 0

    def utilization(self, profile: ResourceProfile, setting: Setting) -> float:
        """Mean GPU utilisation over a run, as a share of 1."""
        return self.correct(profile.gpu.mean, setting)

    def correct(self, forecast: float, setting: Setting) -> float:
        shift = sum(self.coefficients.get(name, 0.0) * value for name, value in setting.features().items())
        return min(1.0, max(0.0, forecast + self.intercept + shift))


def fit_correction(settings: Sequence[Setting], *, forecast: Sequence[float], measured: Sequence[float]) -> Correction:
    """Shares of 1, as many of each as settings."""
    if not len(settings) == len(forecast) == len(measured) or not settings:
        raise InvalidInput(
            f"{len(settings)} settings, {len(forecast)} forecasts and {len(measured)} measurements; give as many of each"
        )
    described = [setting.features() for setting in settings]
    names = sorted({name for features in described for name in features})
    X = np.array([[features.get(name, 0.0) for name in names] for features in described])
    errors = np.asarray(measured, dtype=np.float64) - np.asarray(forecast, dtype=np.float64)
    intercept = float(np.median(errors))
    target = errors - intercept
    penalty = np.diag([(NOISE / STRENGTHS[name.split(":")[0]]) ** 2 for name in names])
    weight = np.ones(len(target))
    solution: NDArray[np.floating[Any]] = np.zeros(len(names))
    for _ in range(ROUNDS):
        solution = np.linalg.solve(X.T @ (X * weight[:, None]) + penalty, X.T @ (weight * target))
        weight = 1 / np.maximum(np.abs(target - X @ solution) / NOISE, 1.0)
    coefficients = {name: round(float(value), 6) for name, value in zip(names, solution, strict=True)}
    return Correction(intercept=intercept, coefficients=coefficients, num_rows=len(settings))


@cache
def load_correction(path: Path = FITTED) -> Correction:
    """The correction that ships with the package; without the file nothing is corrected."""
    if not path.is_file():
        return Correction()
    values = read_json(path)
    return Correction(
        intercept=float(values["intercept"]),
        coefficients={str(name): float(value) for name, value in values["coefficients"].items()},
        num_rows=int(values["num_rows"]),
    )


def save_correction(correction: Correction, path: Path = FITTED, *, command: str) -> None:
    """`command` is how to make the file again."""
    document = {
        "command": command,
        "num_rows": correction.num_rows,
        "intercept": round(correction.intercept, 6),
        "coefficients": dict(correction.coefficients),
    }
    write_json(path, document, indent=1)
