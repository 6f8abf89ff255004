"""How a job is spread over devices."""

import math
from collections.abc import Collection
from dataclasses import fields

from traincast.errors import IllegalPlan
from traincast.noun import noun
from traincast.spec._asked import asked
from traincast.units import DTYPE_BYTES, MEGA

ORDERS = ("gpipe", "1f1b", "interleaved", "zero-bubble")
BALANCES = ("layers", "matmuls")
RECOMPUTES = ("none", "selective", "full", "selective-op")
"""What runs again before its backward pass: nothing; the core of attention (Korthikanti et al. 2022); whole layers; or all of a
layer but the result of attention and every second matmul with weights (selective checkpointing of operators)."""
OFFLOADS = ("host", "nvme")
CONTEXT_METHODS = ("ring", "ulysses")
"""What ranks of the context axis exchange for attention: keys and values of all tokens, each rank keeping its queries; or
queries, keys, values and results by all-to-all, so that each rank attends to all tokens with some heads (Jacobs et al. 2023)."""
TABLE_SHARDINGS = ("row", "column", "table", "replicated")
AXES = ("tensor", "context", "expert", "data", "pipeline")
"""From the innermost (neighbouring ranks) to the outermost; expert lies inside data."""

PRACTICED_PASSES = 4
"""Micro-batches for each stage of a pipeline where nobody says how many: with four of them the bubble is a fifth of the step
(Huang et al. 2019), and published runs have four to sixteen."""


@noun
class MicroBatches:
    """A number of passes that was not given, and where it comes from."""

    count: int
    reason: str
    """One sentence for the answer; empty where nothing was assumed."""


def implied_micro_batches(
    *, micro_batch: float, data: int, pipeline: int = 1, global_batch: float | None = None
) -> MicroBatches:
    """What the global batch, the replicas and the micro-batch imply; else what a practitioner would set."""
    if micro_batch <= 0 or data < 1 or pipeline < 1:
        raise IllegalPlan(f"micro_batch = {micro_batch}, data = {data}, pipeline = {pipeline}; all must be above 0")
    if global_batch is not None:
        count = global_batch / (micro_batch * data)
        if count < 1 - 1e-9 or abs(count - round(count)) > 1e-6 * count:
            raise IllegalPlan(
                f"a global batch of {global_batch:g} is no multiple of micro-batch {micro_batch:g} x data {data} = "
                f"{micro_batch * data:g}; use {max(1, round(count)) * micro_batch * data:g}, or another micro-batch"
            )
        passes = f"{round(count)} micro-batch{'es' if round(count) > 1 else ''}"
        return MicroBatches(
            count=round(count),
            reason=f"{passes} of {micro_batch:g} on each of {data} replicas make the global batch of {global_batch:g}",
        )
    if pipeline == 1:
        return MicroBatches(count=1, reason="")
    count = PRACTICED_PASSES * pipeline
    return MicroBatches(
        count=count,
        reason=f"the number of micro-batches is not given; {count} are assumed, {PRACTICED_PASSES} for each of the {pipeline} "
        f"stages, a global batch of {count * micro_batch * data:g}",
    )


@noun
class Parallelism:
    """Degrees along each axis, and how the step is arranged. The default is one device."""

    data: int = asked(1, "Data parallel replicas; default: all that are left.", "--dp")
    tensor: int = asked(1, "Tensor parallel degree.", "--tp")
    pipeline: int = asked(1, "Pipeline stages.", "--pp")
    context: int = asked(1, "Context parallel degree.", "--cp")
    expert: int = asked(1, "Expert parallel degree.", "--ep")
    """Divides the data axis: experts are spread over this many of its ranks."""
    expert_tensor: int | None = asked(None, "Ranks that split one expert: 1 spreads experts over --tp too.", "--etp")
    """Over how many ranks each expert is split. None: as everything else, over `tensor`. 1: experts stay whole and are spread
    over the tensor axis too, each rank sending its part of the sequence (parallel folding, Liu et al. 2025); then `expert`
    divides data x context x tensor."""
    expert_capacity: float | None = asked(
        None, "Tokens of an expert over its even share, filled up or cut off.", "--capacity"
    )
    """Every expert computes exactly this many times its even share of the tokens, filled up or cut off (GShard, Switch). None:
    whatever is routed to it."""
    expert_imbalance: float = asked(1.0, "Tokens of the busiest rank of experts over the mean.", "--imbalance")
    """Tokens of the busiest rank of experts over the mean of all: the others wait for it. With a capacity all have the same."""
    dispatch_once: bool = asked(False, "Send a token once to each rank or node that holds one of its experts.")
    """Tokens travel once to every rank, and between nodes once to every node, that holds one of their experts, not once for each
    expert (DeepEP)."""
    overlap_experts: bool = asked(
        False, "All-to-alls of experts run beside the computation of another micro-batch (DualPipe)."
    )
    """Two micro-batches run interleaved, each computing while the other's tokens travel; what computation cannot hide is waited
    for. Needs at least two micro-batches."""
    virtual_stages: int = asked(1, "Virtual stages of each pipeline stage.", "--vp")
    micro_batches: int = asked(1, "Passes per optimizer step (accumulation or pipeline).", unit="count")
    """Passes per optimizer step: gradient accumulation, or the micro-batches of a pipeline."""
    zero: int = asked(0, "0, 1, 2 or 3 (FSDP full shard).")
    """0: all replicated; 1: optimizer state sharded over data; 2: gradients too; 3: weights too (FSDP full shard)."""
    shard: int | None = asked(None, "Replicas among which ZeRO shards (hybrid shard); default: all.")
    """Over how many neighbouring replicas ZeRO shards. None: all. Fewer: every such group holds a whole copy, and the groups
    sum the gradients of their shards (FSDP's hybrid shard; the same inside and between slices of a TPU pod)."""
    regather: int | None = asked(
        None, "With ZeRO 3: neighbouring replicas that hold a second copy of the weights and gather them from each other in the "
        "backward pass (ZeRO++'s hpZ); default: all replicas again.", "--regather",
    )  # fmt: skip
    """The backward pass gathers weights inside such a group, from a second copy that the forward pass left there (Wang et al.
    2023); None: from all replicas, as the forward pass."""
    sequence_parallel: bool = asked(False, "Split the sequence along the tensor axis.")
    recompute: str = asked(
        "none",
        "Activation checkpointing: none, selective (as the framework means it), selective-op (every second matmul) or full.",
    )
    order: str = asked("1f1b", "gpipe, 1f1b, interleaved or zero-bubble.")
    balance: str = asked("layers", "How a pipeline is cut: by layers or by matmuls.")
    """How a pipeline is cut: equal numbers of layers, or equal work in matmuls with weights, where the
    output layer counts and the layer that crosses a boundary stays before it."""
    bucket_bytes: float = asked(25 * MEGA, "Size of the buckets that gradients are reduced in: 25MB.", unit="bytes")
    """Gradients are reduced in buckets of this size (torch DDP: 25 MB)."""
    bucket_copies: bool = asked(True, "Gradients are copied into their buckets.")
    """Replicas copy gradients into the buckets they are reduced in (torch DDP's default); False: gradients are views of them
    (gradient_as_bucket_view)."""
    overlap: bool = asked(True, "Reduce gradients and gather weights beside computation.")
    """Gradient reduction and weight gathering run beside computation."""
    gather_ahead: bool = asked(False, "With ZeRO 1: gather updated weights beside the next forward pass.")
    """With ZeRO 1 (a distributed optimizer) the weights that other replicas updated are gathered layer by layer before the next
    forward pass needs them (overlap_param_gather), not all at once after the update."""
    reduce_dtype: str | None = asked(
        None, "The format in which gradients travel: fp32, bf16 ...; default: as they are kept."
    )
    """The format in which gradients travel (FSDP's reduce_dtype, DDP's compression hooks). None: the one they are kept in."""
    async_tensor: bool = asked(False, "Transfers of the tensor axis run beside pieces of its matmuls.")
    """Products of the tensor axis run in pieces, each beside the transfer of the next (asynchronous tensor parallelism)."""
    async_context: bool = asked(
        False, "Transfers of the context axis run beside attention on the chunk before (ring attention)."
    )
    context_method: str = asked(
        "ring",
        "What context parallel ranks exchange: ring (keys and values) or ulysses (heads, by all-to-all).",
        "--cp-method",
    )
    servers: int = asked(0, "Parameter servers; 0: all-reduce.")
    """Parameter servers; 0: all-reduce."""
    asynchronous: bool = asked(False, "Workers do not wait for each other; needs --servers.")
    offload_optimizer: bool = asked(False, "Optimizer state in host memory, updated by the host.")
    """The optimizer state, its master weights with it, lies in host memory and the host updates it (Ren et al. 2021). On the
    device nothing of it remains. Gradients that ZeRO shards (2 and 3), and those of offloaded weights, leave as they become
    ready in every pass and add up on the host; others stay on the device until the step ends and leave in its last pass.
    Updated weights are copied back."""
    offload_weights: bool = asked(False, "Weights in host memory, copied in layer by layer.")
    """Weights lie in host memory; each unit's are copied in one unit ahead, forward and backward (Rajbhandari et al. 2021)."""
    offload_activations: bool = asked(False, "What layers keep for their backward pass waits in host memory.")
    offload_to: str = asked("host", "Where offloaded state and weights lie: host or nvme.")
    """With nvme the states are read and written there in every update, and weights and activations come from there."""
    table_sharding: str | None = asked(
        None, "How embedding tables are spread over replicas: row, column, table or replicated; default: in equal shares whose "
        "vectors are exchanged.",
    )  # fmt: skip
    """row: each replica sums what it holds of every bag and the sums are scattered; column: all replicas look all ids up, each
    some columns; table: whole tables are dealt out and the busiest replica is waited for (Mudigere et al. 2022)."""
    table_cache: float | None = asked(
        None, "Share of a replica's table rows that lie on the device; the others lie in host memory and are fetched."
    )
    table_hits: float | None = asked(
        None, "Share of looked-up rows that the cache has; default: as if rows were asked for by Zipf's law."
    )
    gather_dtype: str | None = asked(
        None, "The format in which sharded weights travel: bf16, fp8 ...; default: as they are kept."
    )

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "context", "expert", "virtual_stages", "micro_batches"):
            degree = getattr(self, name)
            if not isinstance(degree, int) or degree < 1:
                raise IllegalPlan(f"{name} = {degree!r}; a degree is a whole number of at least 1")
        if self.zero not in (0, 1, 2, 3):
            raise IllegalPlan(f"zero = {self.zero}; allowed: 0, 1, 2, 3")
        if self.shard is not None:
            self._check_shard(self.shard)
        if self.regather is not None:
            self._check_regather(self.regather)
        self._check_words()
        if self.expert_tensor not in (None, 1, self.tensor):
            raise IllegalPlan(f"expert_tensor = {self.expert_tensor}; allowed: 1 or tensor = {self.tensor}")
        if self.folds_experts and not self.sequence_parallel:
            raise IllegalPlan(
                f"expert_tensor = 1 with tensor = {self.tensor} needs sequence_parallel = True, so that each rank has its own "
                "tokens to send"
            )
        if self.expert_ranks % self.expert:
            over = "data x context x tensor" if self.folds_experts else "data x context"
            raise IllegalPlan(f"expert = {self.expert} must divide {over} = {self.expert_ranks}")
        self._check_expert_load()
        if self.virtual_stages > 1 and self.pipeline == 1:
            raise IllegalPlan(f"virtual_stages = {self.virtual_stages} needs pipeline > 1; pipeline is 1")
        if self.bucket_bytes <= 0:
            raise IllegalPlan(f"bucket_bytes = {self.bucket_bytes}; it must be above 0")
        self._check_cache()
        if self.servers < 0:
            raise IllegalPlan(f"servers = {self.servers}; it must be 0 (all-reduce) or more")

    def _check_words(self) -> None:
        dtypes = (None, *DTYPE_BYTES)
        allowed = {
            "recompute": RECOMPUTES, "order": ORDERS, "balance": BALANCES, "offload_to": OFFLOADS, "reduce_dtype": dtypes,
            "gather_dtype": dtypes, "table_sharding": (None, *TABLE_SHARDINGS),
            "context_method": CONTEXT_METHODS,
        }  # fmt: skip
        for name, words in allowed.items():
            if getattr(self, name) not in words:
                listed = ", ".join(word for word in words if word is not None)
                raise IllegalPlan(f"{name} = {getattr(self, name)!r}; allowed: {listed}")

    def _check_expert_load(self) -> None:
        if self.expert_capacity is not None and not 0 < self.expert_capacity < math.inf:
            raise IllegalPlan(
                f"expert_capacity = {self.expert_capacity}; it must be above 0, such as 1.25, or left out"
            )
        if self.overlap_experts and self.micro_batches < 2:
            raise IllegalPlan(
                "overlap_experts = True needs another micro-batch to compute; set micro_batches to at least 2"
            )
        if not 1 <= self.expert_imbalance <= self.expert:
            raise IllegalPlan(
                f"expert_imbalance = {self.expert_imbalance}; allowed: 1 (even) to expert = {self.expert} (all on one)"
            )

    def _check_shard(self, shard: int) -> None:
        if self.zero == 0:
            raise IllegalPlan(f"shard = {shard} needs something to shard; set zero to 1, 2 or 3")
        if not isinstance(shard, int) or shard < 1 or (self.data * self.context) % shard:
            raise IllegalPlan(f"shard = {shard!r} must divide data x context = {self.data * self.context}")
        if self.expert > 1:
            raise IllegalPlan(f"shard = {shard} does not go with expert = {self.expert} yet; leave shard out")

    def _check_cache(self) -> None:
        if self.table_cache is not None and not 0 < self.table_cache <= 1:
            raise IllegalPlan(f"table_cache = {self.table_cache}; it must be above 0 and at most 1, all rows")
        if self.table_hits is not None and (self.table_cache is None or not 0 <= self.table_hits <= 1):
            raise IllegalPlan(f"table_hits = {self.table_hits} goes with table_cache and lies between 0 and 1")

    def _check_regather(self, regather: int) -> None:
        if self.zero != 3:
            raise IllegalPlan(
                f"regather = {regather} needs weights that are gathered; set zero to 3, it is {self.zero}"
            )
        if not isinstance(regather, int) or regather < 1 or self.num_shards % regather:
            raise IllegalPlan(
                f"regather = {regather!r} must divide the {self.num_shards} replicas that share the weights"
            )

    @property
    def num_shards(self) -> int:
        """Parts in which ZeRO cuts what it shards."""
        if self.zero == 0:
            return 1
        return self.data * self.context if self.shard is None else self.shard

    @property
    def num_devices(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def sums_on_host(self) -> bool:
        """Whether gradients leave the device as they are made, and add up where the optimizer state lies."""
        return self.offload_optimizer and (self.offload_weights or self.zero >= 2)

    @property
    def copies_gradients(self) -> bool:
        """Whether replicas hold a second copy of their gradients, in buckets."""
        return self.bucket_copies and self.zero < 2 and self.data * self.context > 1

    @property
    def folds_experts(self) -> bool:
        """Experts are spread over the tensor axis instead of being split by it."""
        return self.tensor > 1 and self.expert_tensor == 1

    @property
    def expert_load(self) -> float:
        """Tokens that the busiest rank of experts computes, in even shares."""
        return self.expert_imbalance if self.expert_capacity is None else self.expert_capacity

    @property
    def expert_ranks(self) -> int:
        """Ranks over which experts may be spread."""
        return self.data * self.context * (self.tensor if self.folds_experts else 1)

    def only(self, names: Collection[str]) -> "Parallelism":
        """The same plan as far as these fields go, and all others as of one device: a step that is given it cannot depend on
        anything else."""
        made = object.__new__(Parallelism)
        for name, default, put in _USUAL:
            put(made, getattr(self, name) if name in names else default)
        return made

    def stride(self, axis: str) -> int:
        """The distance in ranks between neighbours along an axis: tensor innermost, pipeline outermost."""
        return {
            "tensor": 1,
            "context": self.tensor,
            "expert": 1 if self.folds_experts else self.tensor,
            "data": self.tensor * self.context,
            "pipeline": self.tensor * self.context * self.data,
        }[axis]


_USUAL = tuple((item.name, item.default, getattr(Parallelism, item.name).__set__) for item in fields(Parallelism))
