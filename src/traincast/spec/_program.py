"""What each distinct rank really runs: a graph after the plan has rewritten it."""

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec._graph import Op, Repeat, Tensor, check_repeats, count_runs
from traincast.spec._parallel import Parallelism

COLLECTIVES = (
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv", "push", "pull",
    "copy_out", "copy_in", "host_update",
)  # fmt: skip
HOST = "host"
"""The axis of what a device exchanges with its own host (copy_out, copy_in) and of what the host computes for it
(host_update, whose bytes are those the host reads and writes in its memory)."""


@noun
class Collective:
    """A communication between the ranks of one axis."""

    kind: str
    num_bytes: float
    """Of the whole message as one rank holds it: the reduced tensor, the gathered result, the sent piece."""
    axis: str
    num_ranks: int
    stride: int
    """Distance in ranks between neighbours of the group; with the cluster it tells how many share a node."""
    phase: str
    overlapped: bool = False
    """True: issued on its own stream, compute goes on. False: the next task waits for it."""
    bucket_bytes: float | None = None
    """Merged with its successors until this many bytes are ready; None: sent at once."""
    last_bucket_bytes: float | None = None
    """Of the bucket that is sent last; None: not known, and so half a bucket."""
    layer: str = ""
    num_servers: int = 0
    """Parameter servers that a push or pull is spread over."""
    copies: float = 1.0
    """Of every token in an all-to-all whose receivers share them: it is sent once to a unit that needs several of them."""
    once: bool = False
    """Only in the first pass of a step: what it brings stays until the step ends."""
    tier: str = ""
    """Where what a device exchanges with its host lies: nvme, or in the host's memory (empty)."""
    chunked: bool = False
    """Sent in pieces beside the product that it feeds or that makes it; what the product does not hide is waited for."""

    def __post_init__(self) -> None:
        if self.kind not in COLLECTIVES:
            raise InvalidInput(f"collective kind {self.kind!r}; allowed: {', '.join(COLLECTIVES)}")
        if self.num_bytes < 0 or self.num_ranks < 1 or self.stride < 1:
            raise InvalidInput(
                f"{self.kind} of {self.num_bytes} bytes over {self.num_ranks} ranks, stride {self.stride}"
            )

    @property
    def name(self) -> str:
        return f"{self.kind}[{self.axis}]"


Task = Op | Collective


@noun
class Stage:
    """The tasks of one pipeline stage for one micro-batch, then (phase optimizer) once per step, in order."""

    tasks: tuple[Task, ...]
    repeats: tuple[Repeat, ...]
    tensors: tuple[Tensor, ...]
    index: int = 0
    num_in_flight: int = 1
    """Micro-batches whose activations are held at once."""

    def __post_init__(self) -> None:
        check_repeats(self.repeats, num_tasks=len(self.tasks), owner=f"stage {self.index}")

    def counts(self) -> list[int]:
        return count_runs(self.repeats, num_tasks=len(self.tasks))

    def ops(self, part: Repeat | None = None) -> list[Op]:
        """The tasks that compute, of one range or of all."""
        tasks = self.tasks if part is None else self.tasks[part.start : part.stop]
        return [task for task in tasks if isinstance(task, Op)]


@noun
class Program:
    """The distinct stages of a job under a plan; ranks with equal work share a stage."""

    stages: tuple[Stage, ...]
    parallelism: Parallelism
    batch_size: int
    """Samples of one micro-batch of one data-parallel replica."""
    mode: str
    notes: tuple[str, ...] = ()
    input_variation: float = 0.0
    """Of the work of one pass, as the graph says."""
    largest_batch: float = 1.0
    """Of activations, as the graph says."""
    preparation_s: float = 0.0
    """Of the inputs of one pass, as the graph says, with their copies to the device where the stack makes it wait for them."""
