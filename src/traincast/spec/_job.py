"""A job: a step, how often it runs, and what happens around it."""

import math
from dataclasses import field

from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun
from traincast.spec._asked import asked, hidden
from traincast.spec._graph import Graph
from traincast.spec._regime import Regime
from traincast.spec._stack import Stack

METHODS = ("best", "physics", "deletepop", "scaledl", "predictddl", "driple")
"""Systems that can be asked one by one: rates of the data sheet; operators, one by one; operators and what a graph network says
of their neighbours; the embedding of a graph and a regressor; a graph network that gives the twelve resource numbers."""


@noun
class Job:
    """What is to be trained and for how long. `steps` or `samples`, not both; neither: one epoch, or one step."""

    graph: Graph
    steps: int | None = asked(None, "Optimizer steps of the job.", unit="count")
    samples: float | None = asked(None, "Samples of the job, instead of steps.", unit="count")
    samples_spread: float = hidden(0.0)
    """One standard deviation of the log of `samples`, where they are what a target is expected to take and not a decision."""
    epoch_samples: float | None = asked(None, "Samples of one pass over the training set.", unit="count")
    """Samples in one pass over the training set."""
    rampup_batch: int | None = asked(
        None, "Samples of the first optimizer steps, where the batch grows; needs --rampup-samples.", unit="count"
    )
    rampup_samples: float | None = asked(None, "Samples after which the batch has its whole size.", unit="count")
    rampup_increment: int | None = asked(
        None, "Samples by which the batch grows at a time; default: as many as at the start.", unit="count"
    )
    loading_samples_per_s: float | None = asked(
        None, "Samples per second that one node's input pipeline delivers.", "--loading"
    )
    """What the input pipeline of one node delivers; None: what the next four say, or it keeps up."""
    loader_cores: int | None = asked(None, "CPU cores of one node that decode samples; needs --decode-samples-per-s.")
    decode_samples_per_s: float | None = asked(None, "Samples per second that one CPU core decodes and augments.")
    sample_bytes: float | None = asked(
        None, "Bytes of a stored sample, such as 110kB of an ImageNet JPEG; needs --storage-bytes-per-s.", unit="bytes"
    )
    storage_bytes_per_s: float | None = asked(
        None, "Bytes per second that one node reads from where samples are stored: 2GB.", unit="bytes"
    )
    logging_every_steps: int | None = asked(
        None, "Steps between two logs, each of which waits for the device.", unit="count"
    )
    logging_s: float = asked(0.05, "Time of one log.", unit="seconds")
    evaluation_every_steps: int | None = asked(None, "Steps between two evaluations.", unit="count")
    evaluation_samples: float = asked(0.0, "Samples of one evaluation.", unit="count")
    checkpoint_every_steps: int | None = asked(None, "Steps between two checkpoints.", unit="count")
    checkpoint_bytes_per_s: float = asked(
        1e9, "Bytes per second that the store of checkpoints takes: 1GB.", unit="bytes"
    )
    """Write rate of the store that checkpoints go to."""
    checkpoint_sharded: bool = asked(
        False, "Every node writes its share of a checkpoint, each at --checkpoint-bytes-per-s."
    )
    checkpoint_async: bool = asked(
        False,
        "Training goes on while a checkpoint is written; it waits for a copy to host memory, and for the one before.",
    )
    startup_s: float = asked(60.0, "Time before the first step: 5min.", "--startup", unit="seconds")
    device_mtbf_s: float = asked(1.8e8, "Mean time between failures of one device: 2000d.", "--mtbf", unit="seconds")
    """Mean time between failures that stop the job, of one device with its share of node and network: 419 unexpected stops of
    16,384 devices in 54 days (Llama Team 2024, table 5)."""
    stack: Stack = field(
        default_factory=Stack,
        metadata={
            "help": "Software that runs it, see `traincast catalog stacks`, with a version if you like (NAME@0.2), or a "
            "document of your own (TOML); default: pytorch.",
            "flags": ("--framework", "--stack"),
        },
    )
    """The software that runs it; its host times and habits differ (see `traincast catalog stacks`)."""
    compile_s: float | None = asked(None, "Time that compilation takes before the first step.", unit="seconds")
    """Before the first step of a compiled job; None: a rough figure for each distinct op of the graph."""
    compiled: bool = asked(False, "torch.compile.")
    """torch.compile: pointwise chains run inside their producers."""
    cuda_graphs: bool = asked(False, "The host replays whole steps.")
    """The host replays the whole step at once and no longer limits it."""
    max_autotune: bool = asked(
        False, "torch.compile with max-autotune: matmuls take what follows them into their kernels."
    )
    """Generated products hand their results on in registers; the step is compiled and replayed."""
    cost_model: str | None = asked(
        None, "What prices operators and collectives instead of the fitted models: roofline (data sheets alone), or one "
        "that an installed package adds.", panel="Learned",
    )  # fmt: skip
    method: str | None = asked(
        None, "Which system answers, default best:", words=METHODS, panel="Learned",
    )  # fmt: skip
    """One of METHODS; None: best, which uses of each what proved right on runs that were left out."""
    regime: Regime | None = hidden(None)
    """What a step has beside an optimizer step of the graph; None: nothing."""

    def __post_init__(self) -> None:
        if self.method is not None and self.method not in METHODS:
            raise UnknownName("method", self.method, METHODS)
        if self.method is not None and self.cost_model is not None:
            raise InvalidInput(
                f"method = {self.method!r} and cost_model = {self.cost_model!r} both say what prices tasks; give one"
            )
        if self.steps is not None and self.samples is not None:
            raise InvalidInput(f"steps = {self.steps} and samples = {self.samples}; give one of them")
        for name in ("steps", "samples", "epoch_samples", "loading_samples_per_s", "evaluation_every_steps",
                     "checkpoint_every_steps", "checkpoint_bytes_per_s", "device_mtbf_s", "loader_cores", "decode_samples_per_s",
                     "sample_bytes", "storage_bytes_per_s", "logging_every_steps", "rampup_batch", "rampup_samples",
                     "rampup_increment"):  # fmt: skip
            amount = getattr(self, name)
            if amount is not None and not (amount > 0 and math.isfinite(amount)):
                raise InvalidInput(f"{name} = {amount}; it must be a finite number above 0")
        if (self.rampup_batch is None) != (self.rampup_samples is None):
            raise InvalidInput("rampup_batch and rampup_samples go together; give both or neither")
        for name in ("evaluation_samples", "startup_s", "samples_spread", "compile_s", "logging_s"):
            amount = getattr(self, name)
            if amount is not None and not (amount >= 0 and math.isfinite(amount)):
                raise InvalidInput(f"{name} = {amount}; it must be a finite number of at least 0")
