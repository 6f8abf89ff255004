"""A job: a step, how often it runs, and what happens around it."""

import math
from dataclasses import dataclass

from traincast.errors import InvalidInput
from traincast.spec.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be trained and for how long. `steps` or `samples`, not both; neither: one epoch, or one step."""

    graph: Graph
    steps: int | None = None
    samples: float | None = None
    samples_spread: float = 0.0
    """One standard deviation of the log of `samples`, where they are what a target is expected to take and not a decision."""
    epoch_samples: float | None = None
    """Samples in one pass over the training set."""
    loading_samples_per_s: float | None = None
    """What the input pipeline of one node delivers; None: it keeps up."""
    evaluation_every_steps: int | None = None
    evaluation_samples: float = 0.0
    checkpoint_every_steps: int | None = None
    checkpoint_bytes_per_s: float = 1e9
    """Write rate of the store that checkpoints go to."""
    startup_s: float = 60.0
    device_mtbf_s: float = 1.8e8
    """Mean time between failures that stop the job, of one device with its share of node and network: 419 unexpected stops of
    16,384 devices in 54 days (Llama Team 2024, table 5)."""
    stack: str = "pytorch"
    """The software that runs it; its host times and habits differ (see `traincast catalog stacks`)."""
    compile_s: float | None = None
    """Before the first step of a compiled job; None: a rough figure for each distinct op of the graph."""
    compiled: bool = False
    """torch.compile: pointwise chains run inside their producers."""
    cuda_graphs: bool = False
    """The host replays the whole step at once and no longer limits it."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.samples is not None:
            raise InvalidInput(f"steps = {self.steps} and samples = {self.samples}; give one of them")
        for name in ("steps", "samples", "epoch_samples", "loading_samples_per_s", "evaluation_every_steps",
                     "checkpoint_every_steps", "checkpoint_bytes_per_s", "device_mtbf_s"):  # fmt: skip
            amount = getattr(self, name)
            if amount is not None and not (amount > 0 and math.isfinite(amount)):
                raise InvalidInput(f"{name} = {amount}; it must be a finite number above 0")
        for name in ("evaluation_samples", "startup_s", "samples_spread", "compile_s"):
            amount = getattr(self, name)
            if amount is not None and not (amount >= 0 and math.isfinite(amount)):
                raise InvalidInput(f"{name} = {amount}; it must be a finite number of at least 0")
