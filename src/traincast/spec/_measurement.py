"""What was or could be measured: an experiment, the machine and software it ran on, and every repeat of it."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec._graph import KINDS, Attr, Op

SUBJECTS = ("operator", "collective", "step")


@noun
class Experiment:
    """One thing whose duration can be measured: an operator, a collective or a whole training step.

    `name` is the kind of a spec.Op (or the framework's name of an imported operator), the kind of a spec.Collective, or
    the name of a workload; `attrs` hold everything else that changes the duration: sizes, dtype, batch, ranks, plan.
    """

    subject: str
    name: str
    attrs: Mapping[str, Attr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.subject not in SUBJECTS:
            raise InvalidInput(f"experiment {self.name!r} measures a {self.subject!r}; allowed: {', '.join(SUBJECTS)}")
        if not self.name:
            raise InvalidInput(f"a {self.subject} experiment has no name")
        for key, value in self.attrs.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidInput(f"experiment {self.name!r} has {key} = {value}; it must be finite")

    @property
    def key(self) -> str:
        """The same text for the same experiment, whatever the order of its attributes."""
        attrs = ", ".join(f"{name}={_plain(self.attrs[name])}" for name in sorted(self.attrs))
        return f"{self.subject} {self.name} ({attrs})"


@noun
class Environment:
    """Where an experiment ran: hardware, software versions and what was done to keep the machine steady."""

    device: str
    """What computed, by its own name: 'AMD EPYC' or 'NVIDIA A100-SXM4-80GB'."""
    machine: str = ""
    """The host, or the name of the test-bed; measurements of one machine can be compared directly."""
    software: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Attr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.device:
            raise InvalidInput("an environment needs the name of its device")

    @property
    def key(self) -> str:
        """The same text for the same environment."""
        parts = [self.device, self.machine]
        for mapping in (self.software, self.settings):
            parts.append(", ".join(f"{name}={_plain(mapping[name])}" for name in sorted(mapping)))
        return " | ".join(parts)


@noun
class Block:
    """Repeats taken in one go. Blocks of one experiment lie apart in time, so that a disturbance spoils only some."""

    started_at: str
    """UTC, ISO 8601."""
    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...] = ()
    """User plus system time of each repeat; empty where it was not taken."""
    switches: tuple[int, ...] = ()
    """Involuntary context switches of each repeat; many of them mark a disturbed one."""
    canary_s: float | None = None
    """Duration of a fixed small job just before: how slow the machine was at that moment."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Sampled beside the repeats, units in the names: rss_peak_bytes, sent_bytes, cpu_share ..."""
    source: str = "profile"

    def __post_init__(self) -> None:
        if not self.wall_s:
            raise InvalidInput(f"a block of {self.source} holds no repeat")
        for name, values in (("wall_s", self.wall_s), ("cpu_s", self.cpu_s)):
            if any(not (value >= 0 and math.isfinite(value)) for value in values):
                raise InvalidInput(f"a block of {self.source} has {name} = {values}; durations are finite and >= 0")
        for name, length in (("cpu_s", len(self.cpu_s)), ("switches", len(self.switches))):
            if length not in (0, len(self.wall_s)):
                raise InvalidInput(f"a block has {len(self.wall_s)} repeats but {length} {name}; give one each or none")

    @property
    def seconds(self) -> float:
        return statistics.median(self.wall_s)

    @property
    def cpu_seconds(self) -> float | None:
        """The lower quartile: a neighbour that empties caches or steals cycles only ever adds CPU time."""
        if len(self.cpu_s) < 2:
            return self.cpu_s[0] if self.cpu_s else None
        return statistics.quantiles(self.cpu_s, n=4, method="inclusive")[0]


@noun
class Measurement:
    """All blocks of one experiment in one environment."""

    experiment: Experiment
    environment: Environment
    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        if not self.blocks:
            raise InvalidInput(f"the measurement of {self.experiment.key} holds no block")

    @property
    def seconds(self) -> float:
        """Median over the blocks of the median inside each."""
        return statistics.median(block.seconds for block in self.blocks)

    @property
    def cpu_seconds(self) -> float | None:
        known = [block.cpu_seconds for block in self.blocks if block.cpu_seconds is not None]
        return statistics.median(known) if known else None

    @property
    def num_repeats(self) -> int:
        return sum(len(block.wall_s) for block in self.blocks)

    @property
    def spread(self) -> float | None:
        """Robust relative standard deviation between blocks; None with fewer than two."""
        return relative_spread([block.seconds for block in self.blocks])

    @property
    def noise(self) -> float | None:
        """Relative standard error of `seconds`: what a repetition of the whole measurement would differ by."""
        # The median of n normal values varies pi/2 times as much as their mean (Laplace 1774).
        return None if self.spread is None else self.spread * math.sqrt(math.pi / 2 / len(self.blocks))


def relative_spread(values: Sequence[float]) -> float | None:
    """1.4826 x median absolute deviation / median: the standard deviation of clean data, unmoved by a few outliers."""
    if len(values) < 2:
        return None
    middle = statistics.median(values)
    if middle <= 0:
        return None
    if len(values) == 2:
        return abs(values[0] - values[1]) / math.sqrt(2) / middle
    return 1.4826 * statistics.median(abs(value - middle) for value in values) / middle


def collect(rows: Iterable[tuple[Experiment, Environment, Block]]) -> tuple[Measurement, ...]:
    """Single blocks as measurements, in the order in which each experiment first appears."""
    groups: dict[tuple[str, str], tuple[Experiment, Environment, list[Block]]] = {}
    for experiment, environment, block in rows:
        key = (experiment.key, environment.key)
        groups.setdefault(key, (experiment, environment, []))[2].append(block)
    return tuple(
        Measurement(experiment=experiment, environment=environment, blocks=tuple(blocks))
        for experiment, environment, blocks in groups.values()
    )


MOST_LOG_SIGMA = 20.0
"""exp(20) is half a billion: an interval wider than that says nothing, and a much wider one has no numbers."""


def _check_log_sigma(name: str, value: float) -> None:
    if not 0 <= value <= MOST_LOG_SIGMA:
        raise InvalidInput(f"{name} = {value:g}; the standard deviation of a log error is from 0 to {MOST_LOG_SIGMA:g}")


@noun
class Rates:
    """What one kind of operator reaches on one machine: seconds = overhead + flop / rate + bytes / rate."""

    flop_per_s: float
    bytes_per_s: float
    overhead_s: float
    """Per call."""
    log_spread: float
    """Standard deviation of ln(measured / fitted)."""
    num_measurements: int = 0

    def __post_init__(self) -> None:
        for name in ("flop_per_s", "bytes_per_s"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise InvalidInput(f"{name} = {getattr(self, name)}; a rate is a finite number above 0")
        if self.overhead_s < 0 or self.log_spread < 0:
            raise InvalidInput(f"overhead_s = {self.overhead_s}, log_spread = {self.log_spread}; both must be >= 0")
        _check_log_sigma("log_spread", self.log_spread)

    def seconds(self, *, flop: float | None, num_bytes: float, num_calls: int = 1) -> float:
        return self.overhead_s * num_calls + (flop or 0.0) / self.flop_per_s + num_bytes / self.bytes_per_s


@noun
class MachineRates:
    """What a few minutes of measuring taught about one machine."""

    name: str
    environment: Environment
    rates: Mapping[str, Rates]
    """By operator kind (or kind:phase where the backward pass was fitted apart)."""
    fallback: Rates
    """For a kind that was never measured here."""
    step_compute_scale: float = 1.0
    """Arithmetic of an operator inside a step over the same operator run alone."""
    step_memory_scale: float = 1.0
    """The same for its memory traffic: alone it finds its data in cache, in a step it often does not."""
    step_overhead_scale: float = 1.0
    """The same for the overhead of a call: alone it also finds its code in cache."""
    step_call_s: float = 0.0
    """What each operator call costs a step beyond its own time."""
    step_s_per_byte: float = 0.0
    """What each byte costs a step more than alone, however fast the operator itself is: it must be fetched again."""
    step_optimizer_s_per_byte: float = 0.0
    """The same for bytes of the optimizer, which no other operator touches."""
    step_wall_scale: float = 1.0
    """Time of a step by the clock over its CPU time divided by the share of a core: what throttling adds, but to a
    whole core nothing."""
    step_log_spread: float = 0.0
    num_measurements: int = 0
    measuring_s: float = 0.0
    errors: Mapping[str, float] = field(default_factory=dict)
    """Mean relative errors on measurements that were not fitted, before and after."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.rates if kind.split(":")[0] not in KINDS]
        if unknown:
            raise InvalidInput(
                f"calibration {self.name!r} has rates for {', '.join(unknown)}; known kinds: {', '.join(KINDS)}"
            )
        _check_log_sigma("step_log_spread", self.step_log_spread)
        scales = (self.step_compute_scale, self.step_memory_scale, self.step_overhead_scale)
        extras = (self.step_call_s, self.step_s_per_byte, self.step_optimizer_s_per_byte)
        if not (min(scales) > 0 and min(extras) >= 0):
            raise InvalidInput(
                f"calibration {self.name!r}: the scales of a step must be above 0 and what it adds to a call or a byte at "
                f"least 0 s, not {', '.join(map(str, scales + extras))}"
            )

    def rates_of(self, op: Op) -> Rates:
        """Of the most special group that was fitted."""
        return next((self.rates[group] for group in groups_of(op) if group in self.rates), self.fallback)

    def op_seconds_in_step(self, op: Op) -> float:
        """One run of an operator among the others of a step."""
        rates = self.rates_of(op)
        calls_s = (self.step_overhead_scale * rates.overhead_s + self.step_call_s) * calls_of(op)
        compute_s = self.step_compute_scale * (op.flop or 0.0) / rates.flop_per_s
        fetch_s_per_byte = self.step_optimizer_s_per_byte if op.kind == "optimizer" else self.step_s_per_byte
        moving_s_per_byte = self.step_memory_scale / rates.bytes_per_s + fetch_s_per_byte
        return calls_s + compute_s + moving_s_per_byte * op.num_bytes

    def step_seconds(self, ops: Sequence[Op], counts: Sequence[int]) -> float:
        """A whole step on one device: its operators one after another."""
        return sum(self.op_seconds_in_step(op) * count for op, count in zip(ops, counts, strict=True))


def groups_of(op: Op) -> tuple[str, ...]:
    """The groups an operator belongs to, from the most special, which share one set of rates, to its kind."""
    function = op.attrs.get("function")
    phase = "backward" if op.phase == "backward" else "forward"
    if op.kind == "matmul":
        return (f"matmul:{'batched' if op.attrs['batch'] != 1 else 'single'}", "matmul")
    if op.kind == "conv":
        shape, special = _shape_of_conv(op)
        names = (f"conv:{op.attrs['pass']}:{shape}", f"conv:{op.attrs['pass']}", "conv")
        return (f"{names[0]}:{special}", *names) if special else names
    if op.kind == "elementwise":
        # Capture counts four FLOP for each element of a transcendental function and one for any other.
        heavy = op.flop is not None and op.flop > 2 * int(op.attrs["numel"])
        weight = f"elementwise:{'heavy' if heavy else 'light'}"
        return (f"{weight}:{function}", weight, "elementwise") if function else (weight, "elementwise")
    if op.kind == "rnn":
        return (f"rnn:{op.attrs['cell']}:{phase}", f"rnn:{phase}", "rnn")
    if op.kind in ("norm", "pool"):
        return (f"{op.kind}:{function}:{phase}", f"{op.kind}:{phase}", op.kind)
    wide = f"{op.kind}:{phase}"
    if op.kind in ("reduce", "softmax") and "cols" in op.attrs:
        # Each row costs the start of a loop, which short rows cannot hide.
        return (f"{wide}:{'narrow' if int(op.attrs['cols']) < NARROW_COLS else 'wide'}", wide, op.kind)
    if op.kind in ("copy", "index") and function:
        return (f"{wide}:{function}", wide, op.kind)
    return (wide, op.kind)


NARROW_COLS = 16


def _shape_of_conv(op: Op) -> tuple[str, str]:
    """What decides which algorithm runs: channels in groups, the kernel, and for few or one tap whether it strides."""
    kernel = str(op.attrs["kernel"])
    if op.attrs["groups"] != 1:
        if op.attrs["groups"] != op.attrs.get("in_channels"):
            return "grouped", "few"
        return "grouped", "large" if max(int(size) for size in kernel.split("x")) > 3 else "small"
    if set(kernel) <= {"1", "x"}:
        return "point", "unit" if set(str(op.attrs.get("stride", "1"))) <= {"1", "x"} else "strided"
    return "wide", ""


def calls_of(op: Op) -> int:
    """Calls that cost the host its overhead: an update runs once per tensor, a cell once per time step."""
    if op.kind == "optimizer":
        return int(op.attrs["num_tensors"])
    if op.kind == "rnn":
        return int(op.attrs["length"]) * int(op.attrs["layers"]) * int(op.attrs["directions"])
    return 1


def _plain(value: Attr) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)
