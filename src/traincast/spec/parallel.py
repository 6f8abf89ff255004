"""How a job is spread over devices."""

from dataclasses import dataclass

from traincast.errors import IllegalPlan
from traincast.units import MEGA

ORDERS = ("gpipe", "1f1b", "interleaved", "zero-bubble")
BALANCES = ("layers", "products")
RECOMPUTES = ("none", "selective", "full")
AXES = ("tensor", "context", "expert", "data", "pipeline")
"""From the innermost (neighbouring ranks) to the outermost; expert lies inside data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Degrees along each axis, and how the step is arranged. The default is one device."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    """Divides the data axis: experts are spread over this many of its ranks."""
    virtual_stages: int = 1
    micro_batches: int = 1
    """Passes per optimizer step: gradient accumulation, or the micro-batches of a pipeline."""
    zero: int = 0
    """0: all replicated; 1: optimizer state sharded over data; 2: gradients too; 3: weights too (FSDP full shard)."""
    sequence_parallel: bool = False
    recompute: str = "none"
    order: str = "1f1b"
    balance: str = "layers"
    """How a pipeline is cut: equal numbers of layers (Megatron-LM), or equal work in products with weights, where the
    output layer counts and the layer that crosses a boundary stays before it (nanotron)."""
    bucket_bytes: float = 25 * MEGA
    """Gradients are reduced in buckets of this size (torch DDP: 25 MB)."""
    bucket_copies: bool = True
    """Replicas copy gradients into the buckets they are reduced in (torch DDP's default); False: gradients are views of them
    (gradient_as_bucket_view, Megatron-LM)."""
    overlap: bool = True
    """Gradient reduction and weight gathering run beside computation."""
    servers: int = 0
    """Parameter servers; 0: all-reduce."""
    asynchronous: bool = False
    offload_optimizer: bool = False
    """The optimizer state, its master weights with it, lies in host memory and the host updates it (Ren et al. 2021). On the
    device nothing of it remains; gradients are copied to the host as they become ready in the last pass and stay on the
    device until the step ends; updated weights are copied back."""

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "context", "expert", "virtual_stages", "micro_batches"):
            degree = getattr(self, name)
            if not isinstance(degree, int) or degree < 1:
                raise IllegalPlan(f"{name} = {degree!r}; a degree is a whole number of at least 1")
        if self.zero not in (0, 1, 2, 3):
            raise IllegalPlan(f"zero = {self.zero}; allowed: 0, 1, 2, 3")
        if self.recompute not in RECOMPUTES:
            raise IllegalPlan(f"recompute = {self.recompute!r}; allowed: {', '.join(RECOMPUTES)}")
        if self.order not in ORDERS:
            raise IllegalPlan(f"order = {self.order!r}; allowed: {', '.join(ORDERS)}")
        if self.balance not in BALANCES:
            raise IllegalPlan(f"balance = {self.balance!r}; allowed: {', '.join(BALANCES)}")
        if (self.data * self.context) % self.expert:
            raise IllegalPlan(f"expert = {self.expert} must divide data x context = {self.data * self.context}")
        if self.virtual_stages > 1 and self.pipeline == 1:
            raise IllegalPlan(f"virtual_stages = {self.virtual_stages} needs pipeline > 1; pipeline is 1")
        if self.bucket_bytes <= 0:
            raise IllegalPlan(f"bucket_bytes = {self.bucket_bytes}; it must be above 0")
        if self.servers < 0:
            raise IllegalPlan(f"servers = {self.servers}; it must be 0 (all-reduce) or more")

    @property
    def num_devices(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def copies_gradients(self) -> bool:
        """Whether replicas hold a second copy of their gradients, in buckets."""
        return self.bucket_copies and self.zero < 2 and self.data * self.context > 1

    def stride(self, axis: str) -> int:
        """The distance in ranks between neighbours along an axis: tensor innermost, pipeline outermost."""
        return {
            "tensor": 1,
            "context": self.tensor,
            "expert": self.tensor,
            "data": self.tensor * self.context,
            "pipeline": self.tensor * self.context * self.data,
        }[axis]
