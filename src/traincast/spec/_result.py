"""The answer and its explanation: estimates with intervals, a timeline, a memory profile, a forecast."""

import html
import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec._display import make_with, show_text
from traincast.spec._log_errors import LogErrors
from traincast.spec._program import Collective
from traincast.spec._resources import ResourceProfile

GROUNDS = ("measured", "transfer", "bound")
"""What an estimate rests on: measured on this device, carried over from others, or only the physical bound."""

COVERAGE = 0.9
"""Every interval is meant to hold the truth this often."""
FIT_CONFIDENCE = 0.6
"""From which on a run is said to fit: the surest, in steps of 0.05, at which no source of fifty runs that ran is refused more
than 8% of the time with its publisher left out, if at most 2% of runs that ran out are called safe (docs/theory/certainty.md)."""

SAFE_CONFIDENCE = 0.9
"""How likely a job must be to fit, where nobody says, for a plan or a size to be named; what is less likely may not fit."""


@noun
class Estimate:
    """A predicted duration with its 90% interval; never a bare number."""

    seconds: float
    low_s: float
    high_s: float
    host_s: float = 0.0
    """Time the host needs to issue it; a device that is faster waits."""
    limit: str = "compute"
    """What bounds it: compute, memory, communication or host."""
    ground: str = "bound"
    slowdown: float = 0.0
    """What kernels that run beside it lose, as a share of its own time: a collective takes cores and memory from them."""
    link: str = ""
    """What a collective keeps busy, such as 'intra' or 'inter': two that need the same at once have half of it each."""

    def __post_init__(self) -> None:
        if not (0 <= self.low_s <= self.seconds <= self.high_s and math.isfinite(self.high_s)):
            raise InvalidInput(
                f"estimate {self.seconds} s with the interval {self.low_s} .. {self.high_s} s is not ordered"
            )

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(
            seconds=self.seconds * factor,
            low_s=self.low_s * factor,
            high_s=self.high_s * factor,
            host_s=self.host_s * factor,
            limit=self.limit,
            ground=self.ground,
            slowdown=self.slowdown,
            link=self.link,
        )


@noun
class Range:
    """Any other predicted amount with its 90% interval; the field that holds it names the unit."""

    value: float
    low: float
    high: float


@noun
class Narrowing:
    """A measurement that would narrow an answer."""

    measurement: str
    seconds: float
    """That it takes, about."""
    width_now: float
    """Of the 90% interval, as a share of the forecast."""
    width_after: float
    given: str = ""
    """What is measured, as the table of left-out runs names it."""
    after: tuple[float, float] = (1.0, 1.0)
    """The interval that it is expected to leave, as factors on the forecast."""


@noun
class Span:
    """A piece of work on one stream of one rank."""

    name: str
    start_s: float
    end_s: float
    stream: str
    category: str
    """compute, memory, communication, host, bubble or wait."""
    rank: int = 0
    layer: str = ""
    num_bytes: float = 0.0
    """Read and written in the device's memory by an op."""
    collective: Collective | None = None
    """What is communicated; None for anything else."""
    direction: str = "both"
    """Of what is communicated, as this rank sees it: in, out or both."""


@noun
class BusyTime:
    """One sort of work in a step of one rank, all its runs together."""

    name: str
    category: str
    layer: str
    seconds: float


@noun
class Timeline:
    """One step: when each piece runs and where the time goes. Spans on one stream of one rank never overlap."""

    duration_s: float
    spans: tuple[Span, ...]
    shares: Mapping[str, float]
    """Share of the step spent in compute, memory, communication (exposed), host, bubble; they add up to 1."""
    exposed_by_axis: Mapping[str, float] = field(default_factory=dict)
    """Seconds of communication that nothing hides, by parallelism axis."""
    busy_s: float = 0.0
    """Seconds in which a device computes: the mean over the stages of a pipeline."""
    communication_s: float = 0.0
    """Seconds of communication, hidden or not."""
    work: tuple[BusyTime, ...] = ()
    """What keeps the first rank busy; empty where it was not asked for."""


@noun
class Moment:
    """A time outside the step that has a peak of its own: an evaluation, a checkpoint."""

    name: str
    peak_bytes: float
    by_role: Mapping[str, float]
    """At this peak; the values add up to peak_bytes."""


@noun
class HostMemory:
    """What the processes of one node hold in its own memory: offloaded state, buffers that copies go through, checkpoints."""

    needed_bytes: float
    by_part: Mapping[str, float]
    """The values add up to needed_bytes."""
    capacity_bytes: float | None = None
    """Of one node; None: not known."""

    @property
    def exceeds(self) -> bool:
        return self.capacity_bytes is not None and self.needed_bytes > self.capacity_bytes


@noun
class MemoryProfile:
    """Peak of one rank, what it is made of, and where in the step it happens."""

    peak_bytes: float
    by_role: Mapping[str, float]
    """At the peak; the values add up to peak_bytes."""
    peak_at: str
    """Phase and layer of the op that runs at the peak."""
    capacity_bytes: float
    outside_bytes: float = 0.0
    """Held on the device beside the framework's allocator (driver, communicators): no part of the peak, but it must fit."""
    outside_parts: Mapping[str, float] = field(default_factory=dict)
    """What they are: driver, communicators, holes between blocks, captured graphs."""
    moments: tuple[Moment, ...] = ()
    """Peaks outside the step, of the stage where each is the largest."""
    host: HostMemory | None = None
    """Memory of one node's host; None: nothing lies there but the processes."""
    errors: LogErrors | None = None
    """How needs of such runs were found to lie about their forecasts; None: not known."""
    stage_peaks: tuple[float, ...] = ()
    """Peak of each pipeline stage, first to last; the profile is that of the largest."""
    curve: tuple[tuple[str, float], ...] = ()
    """(op, bytes in use while it runs), in order."""
    frugal_probability: float | None = None
    """That it fits if all layers are run again, where it is left open whether they are; None: it is not, or it does not help."""

    @property
    def peak_where(self) -> str:
        """Where the peak is, without the name of the kernel: 'the backward pass of layers.mlp'."""
        phase, _, rest = self.peak_at.partition(", ")
        layer = rest.partition(" in ")[2].replace(".*", "")
        if not rest:
            return self.peak_at or "the step"
        if layer in ("", phase):
            return f"the {phase} pass" if phase != "optimizer" else "the optimizer's update"
        return f"the {phase} pass of {layer}"

    @property
    def needed_bytes(self) -> float:
        """Of a device, in the step or at any other moment."""
        return max([self.peak_bytes, *(moment.peak_bytes for moment in self.moments)]) + self.outside_bytes

    @property
    def state_bytes(self) -> float:
        """Weights and the optimizer's state, which are there all the time: counted, not estimated."""
        return sum(self.by_role.get(role, 0.0) for role in ("parameter", "optimizer_state"))

    @property
    def fits(self) -> bool:
        """Probably enough to try (`FIT_CONFIDENCE`): a run that fails costs more than one that was not tried."""
        return max(self.fit_probability, self.frugal_probability or 0.0) >= FIT_CONFIDENCE

    @property
    def is_safe(self) -> bool:
        """Whether it is as likely to fit as is asked where nobody says."""
        return max(self.fit_probability, self.frugal_probability or 0.0) >= SAFE_CONFIDENCE

    @property
    def fit_probability(self) -> float:
        """How often a run with such a forecast needs no more than there is, on its devices and, where known, on its hosts.
        State that is larger than the device never fits, however wrong forecasts of such runs were."""
        if self.state_bytes > self.capacity_bytes:
            return 0.0
        return min(
            self._probability(need, room)
            for need, room in ((self.needed_bytes, self.capacity_bytes), self._host_need())
            if room is not None
        )

    def _host_need(self) -> tuple[float, float | None]:
        return (0.0, None) if self.host is None else (self.host.needed_bytes, self.host.capacity_bytes)

    def _probability(self, need: float, room: float) -> float:
        if self.errors is None or need <= 0:
            return float(need <= room)
        return self.errors.probability_below(math.log(room / need))

    @property
    def peak_range(self) -> Range:
        """The peak with its 90% interval."""
        low, high = self.errors.interval(COVERAGE) if self.errors is not None else (1.0, 1.0)
        value = self.peak_bytes
        return Range(value=value, low=value * min(low, 1.0), high=value * max(high, 1.0))


@noun
class JobTime:
    """A whole job, part by part, in seconds."""

    total: Estimate
    num_steps: float
    startup_s: float
    training_s: float
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    loading_stall_s: float = 0.0
    restarts_s: float = 0.0
    compile_s: float = 0.0
    logging_s: float = 0.0
    checkpoint_every_s: float | None = None
    """Between two checkpoints, where that is assumed; None: it was given, or none is written."""
    num_samples: float = 0.0
    """What the steps train on; while a batch grows its steps have fewer."""


@noun
class Phase:
    """One part of a step that has several: generation, scoring, training, synchronisation."""

    name: str
    step: Estimate
    """Seconds of it in one step."""
    share: float
    """Of the step; what runs beside other phases on other devices has a share too, and shares may then exceed 1."""
    num_devices: int
    peak_bytes: float
    """On its fullest device."""
    fits: bool
    says: str
    """What it does, in a sentence."""


@noun
class Part:
    """One part of the model and what it says of the step by itself."""

    name: str
    """physics, layers, classes, or own runs."""
    step: Estimate | None
    """None where it has no ground."""
    is_answer: bool
    says: str
    """What it is, with its interval, and why it was chosen or not."""


@noun
class Forecast:
    """Everything traincast answers about one job on one cluster under one plan."""

    workload: str
    cluster: str
    device: str
    num_devices: int
    global_batch: int
    step: Estimate
    samples_per_s: float
    timeline: Timeline
    memory: MemoryProfile
    job: JobTime
    usd: Range | None
    """Money for the whole job; None where no price is known."""
    energy_joules: float | None
    """Of the whole job, all devices."""
    utilization: float
    """Share of the device's peak FLOP rate that the model's own FLOP reach (MFU)."""
    grounds: Mapping[str, float]
    """Share of the device time that rests on measurement, on transfer and on the bound alone."""
    recomputed: float = 0.0
    """FLOP that activation checkpointing runs again, over the model's own: HFU is MFU times one more than it."""
    unknown_ops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    resources: tuple[ResourceProfile, ...] = ()
    """One profile for each distinct rank (pipeline stage); empty where they were not asked for."""
    parts: tuple[Part, ...] = ()
    """What each part of the model says by itself; empty where it was not asked for."""
    assumptions: tuple[str, ...] = ()
    """What nobody said and was filled in, a sentence each."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the answer is for: precision, sequence length, batches, stack; empty where no question was resolved."""
    phases: tuple[Phase, ...] = ()
    """What a step is made of where a regime has several parts; empty where it is one optimizer step."""
    energy_range: Range | None = None
    """The energy with its 90% interval: of the time, and of what a device draws beside its rated power."""
    kg_co2: Range | None = None
    """Of that energy where the cluster stands; None where no region is named."""
    narrowing: tuple[Narrowing, ...] = ()
    """Measurements that would narrow the step's interval, the most telling first."""
    run_utilization: float | None = None
    """Mean GPU utilisation of a whole run as nvidia-smi shows it, 0 to 1: what input pipelines, evaluation and start-up leave
    of the step's. None where no run of such a kind was measured."""

    uncertainty: str = ""
    """The note that gives the step's interval and its reasons; empty where there are none."""
    learned: str = ""
    """The note that says what of a calibration was used; empty without one."""
    origin: Any = field(default=None, compare=False, repr=False)
    """The question, where one was asked (`forecast.Origin`)."""

    def saying(self, *, uncertainty: str | None = None, learned: str | None = None) -> "Forecast":
        """With one of the notes that are fields too, instead of an older one."""
        old = self.uncertainty if uncertainty is not None else self.learned
        kept = [note for note in self.notes if note != old]
        return replace(
            self, notes=(*kept, *(note for note in (uncertainty, learned) if note)),
            uncertainty=self.uncertainty if uncertainty is None else uncertainty,
            learned=self.learned if learned is None else learned,
        )  # fmt: skip

    def __str__(self) -> str:
        return show_text(self) or repr(self)

    def frame(self, *, library: str | None = None) -> Any:
        """A data frame of pandas or polars with one row."""
        return make_with("make_frame", self, library=library)

    def _repr_html_(self) -> str:
        """In a notebook: the text of the command."""
        return f"<pre>{html.escape(str(self))}</pre>"
