"""Three older ways to price the operations of one device: the bare roofline, a linear fit, and wave scaling."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.spec import Device, Op

Array = NDArray[np.float64]


def peak_flop_per_s(device: Device, dtype: str) -> float:
    return device.peak_flop_per_s(dtype) or device.peak_flop_per_s("fp32") or max(device.vector_flop_per_s.values())


def roofline_seconds(ops: Sequence[Op], device: Device) -> Array:
    """max(FLOP / peak, bytes / bandwidth) of the data sheet, with nothing learnt (Williams et al. 2009)."""
    return np.array(
        [
            max((op.flop or 0.0) / peak_flop_per_s(device, op.dtype), op.num_bytes / device.memory_bytes_per_s)
            for op in ops
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Additive:
    """seconds = a x FLOP / peak + b x bytes / bandwidth + c per kind, as in Li et al. (MICRO 2023)."""

    terms: dict[str, tuple[float, float, float]]

    def seconds(self, ops: Sequence[Op], device: Device) -> Array:
        pooled = tuple(float(value) for value in np.median(np.array(list(self.terms.values())), axis=0))
        rows = _ideal(ops, device)
        weights = np.array([self.terms.get(op.kind, pooled) for op in ops])
        return np.asarray(np.maximum((rows * weights).sum(axis=1), 0.0), dtype=np.float64)


def fit_additive(ops: Sequence[Op], seconds: Sequence[float], devices: Sequence[Device]) -> Additive:
    """One line per kind through measured ops, each with the device it ran on; coefficients are not negative."""
    if not ops:
        raise InvalidInput("no measured operations to fit a line through; give at least one")
    terms = {}
    measured = np.asarray(seconds, dtype=np.float64)
    ideal = np.concatenate([_ideal([op], device) for op, device in zip(ops, devices, strict=True)])
    kinds = np.array([op.kind for op in ops])
    for kind in sorted(set(kinds.tolist())):
        mine = kinds == kind
        # Relative errors count: without the division the few longest ops would decide alone.
        design = ideal[mine] / measured[mine, None]
        terms[kind] = _nonnegative(design)
    return Additive(terms=terms)


def _ideal(ops: Sequence[Op], device: Device) -> Array:
    return np.array(
        [
            ((op.flop or 0.0) / peak_flop_per_s(device, op.dtype), op.num_bytes / device.memory_bytes_per_s, 1e-6)
            for op in ops
        ]
    )


def _nonnegative(design: Array) -> tuple[float, float, float]:
    """The least squares solution of design @ x = 1 with x >= 0, by dropping the most negative column in turn."""
    active = list(range(design.shape[1]))
    solution = np.zeros(design.shape[1])
    while active:
        found, *_ = np.linalg.lstsq(design[:, active], np.ones(len(design)), rcond=None)
        if (found >= 0).all():
            solution[active] = found
            break
        active.pop(int(np.argmin(found)))
    return float(solution[0]), float(solution[1]), float(solution[2])


def scale_waves(seconds: Array, ops: Sequence[Op], *, origin: Device, target: Device) -> Array:
    """Times measured on one device carried to another (Habitat, Yu et al. 2021, equation 2 for many waves).

    Memory-bound kernels follow the bandwidth, others the number and the clock of the multiprocessors; gamma says how much of
    each, from the arithmetic intensity and the ridge point of the target.
    """
    intensity = np.array([(op.flop or 0.0) / max(op.num_bytes, 1.0) for op in ops])
    return scale_by_intensity(seconds, intensity, origin=origin, target=target)


def scale_by_intensity(seconds: Array, intensity: Array, *, origin: Device, target: Device) -> Array:
    """The same for times of which only FLOP over bytes is known."""
    for device in (origin, target):
        if device.num_sm is None or device.clock_hz is None:
            raise InvalidInput(f"device {device.name!r} has no num_sm or clock_hz; wave scaling needs both")
    ridge = peak_flop_per_s(target, "fp32") / target.memory_bytes_per_s
    gamma = np.where(intensity < ridge, 1.0 - 0.5 * intensity / ridge, 0.5 * ridge / np.maximum(intensity, 1e-12))
    bandwidth = origin.memory_bytes_per_s / target.memory_bytes_per_s
    waves = (origin.num_sm or 1) / (target.num_sm or 1)
    clock = (origin.clock_hz or 1.0) / (target.clock_hz or 1.0)
    return np.asarray(seconds * bandwidth**gamma * (waves * clock) ** (1.0 - gamma), dtype=np.float64)
