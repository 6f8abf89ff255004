"""What measuring and measured runs taught: rates of one machine, levels of devices, errors of forecasts of own runs."""

import math
from collections.abc import Mapping
from dataclasses import field

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec._hardware import Cluster
from traincast.spec._job import Job
from traincast.spec._measurement import MachineRates
from traincast.spec._parallel import Parallelism

MIX_KINDS = (
    "matmul", "attention", "conv", "rnn", "norm", "softmax", "elementwise", "reduce", "pool", "embedding", "index", "copy",
    "optimizer", "other",
)  # fmt: skip
"""Kinds of operators whose shares of a step are compared between runs."""


@noun
class RunLabels:
    """What says how alike two runs are."""

    model: str
    family: str
    """Equal for networks of the same kinds of layers, whatever their sizes."""
    mode: str
    precision: str
    device: str
    stack: str
    recompute: str = "none"
    compiled: bool = False
    num_parameters: float = 0.0
    num_layers: int = 1
    """How often the layers run that repeat most."""
    pass_tokens: float = 1.0
    """Tokens, or samples where there are none, of one pass of one replica."""
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    num_devices: int = 1
    num_nodes: int = 1
    network_bytes_per_s: float = 0.0
    varying_inputs: bool = False
    """Samples differ in size (pictures, recordings), so that ranks wait for each other."""
    mix: tuple[float, ...] = ()
    """Shares of MIX_KINDS in the time of a reference device; empty: not known."""

    @property
    def job(self) -> tuple[str, ...]:
        """What is one job on one kind of device, at whatever batch and scale."""
        return (
            self.model, self.device, self.precision, self.mode, self.stack, self.recompute,
            "compiled" if self.compiled else "eager",
        )  # fmt: skip


@noun
class MeasuredRun:
    """A run that was measured: what was asked of which machine, and how long a step took."""

    labels: RunLabels
    job: Job
    cluster: Cluster
    parallelism: Parallelism
    step_s: float
    name: str = ""
    memory_bytes: float | None = None
    """Peak of the fullest device, as the framework's allocator counts it."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """`gpu_mean`, the mean GPU utilisation as a share of 1, and those of the twelve resource numbers that were measured."""

    def __post_init__(self) -> None:
        if not (self.step_s > 0 and math.isfinite(self.step_s)):
            raise InvalidInput(
                f"run {self.name!r} has a measured step of {self.step_s} s; it must be finite and above 0"
            )


@noun
class MeasuredForecast:
    """A measured run with the forecast made for it."""

    labels: RunLabels
    shares: tuple[float, float, float, float, float]
    """Of the forecast step: compute, memory, communication, host, bubble."""
    forecast_s: float
    measured_s: float


@noun
class MeasuredNumbers:
    """What one run showed beside its forecast, other than its step."""

    labels: RunLabels
    gaps: Mapping[str, float]
    """Log of measured over forecast: `memory` and the twelve numbers of the network; `gpu_mean`: measured less forecast."""


@noun
class RunCorrections:
    """What measured runs taught."""

    runs: tuple[MeasuredForecast, ...] = ()
    """Every run with the forecast of what ships."""
    numbers: tuple[MeasuredNumbers, ...] = ()
    """Memory, GPU utilisation and network numbers of the runs that tell them."""


@noun
class DeviceLevel:
    """How long products take on one device beside what its data sheet makes us expect, from products measured on it."""

    device: str
    products: Mapping[str, float]
    """Ratio of measured to expected seconds of lone products, by number format."""
    log_sigma: float
    """Of the ratio: products of other shapes differ from those measured."""
    num_products: int

    def __post_init__(self) -> None:
        for dtype, ratio in self.products.items():
            if not (ratio > 0 and math.isfinite(ratio)):
                raise InvalidInput(f"level of {self.device} in {dtype} is {ratio}; it must be a positive number")


@noun
class Calibration:
    """Everything that was learnt beyond what ships. Every command takes one by name or file."""

    name: str
    machine: MachineRates | None = None
    """Rates of one machine, by `traincast calibrate`."""
    runs: RunCorrections | None = None
    """Corrections from measured runs, by `traincast learn`."""
    devices: tuple[DeviceLevel, ...] = ()
    """Levels of devices, by `traincast calibrate --gemm`."""
    sources: tuple[str, ...] = ()
    """What it was learnt from: files and stores."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.machine is None and self.runs is None and not self.devices:
            raise InvalidInput(
                f"calibration {self.name!r} holds neither rates of a machine nor corrections from runs nor levels of devices"
            )
