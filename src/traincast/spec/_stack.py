"""A framework (stack): what the software that runs a job decides by itself, what it costs, and how uncertain both are.

The fields are few and general. What one framework does otherwise is an entry of one of them: a name among the things that it
overlaps, copies or awaits, a number among its amounts, a row of calls. Every name that may stand there has its sentence below.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field

from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun

CHECKPOINTS = ("shards", "layers", "whole")
Names = tuple[str, ...]
Words = tuple[tuple[str, str], ...]
"""Pairs of a word and what it means."""
Amounts = tuple[tuple[str, float], ...]
Value = bool | int | float | str

OVERLAPS: Mapping[str, str] = {
    "gradients": "gradients are reduced beside the backward pass",
    "sharded_gradients": "the same where ZeRO 1 or 2 shards anything",
    "weights": "weights that other replicas updated (ZeRO 1) are gathered beside the next forward pass",
    "tensor": "transfers of the tensor axis run beside pieces of its matmuls wherever the sequence is split along it",
    "context": "keys and values pass round a ring, each chunk beside attention on the one before, not gathered at once",
}
COPIES: Mapping[str, str] = {"buckets": "replicas copy gradients into the buckets they are reduced in"}
AWAITS: Mapping[str, str] = {
    "gradients": "the host reads a number that the gradients give (their noise, an overflow) before it issues the update, and so "
    "waits for the device in every step",
    "inputs": "inputs of every micro-batch are copied to the device by a call that returns when they are there; the copy is "
    "behind all kernels before, so the host issues nothing ahead of the device across micro-batches",
}
RUNS: Mapping[str, str] = {
    "dispatch_once": "tokens of experts cross a network once for every node that needs them (DeepEP)",
    "staged_exchanges": "rows of tables are exchanged inside nodes, then by each device with its like on other nodes (HugeCTR)",
    "swapped_heads": "context parallel ranks swap tokens for attention heads by all-to-all (Ulysses), and pass no keys round",
    "own_containers": "every replica runs in a container of its own, so that devices of one node reach each other over the "
    "network alone",
    "full_pipelines": "its pipeline refuses fewer micro-batches than stages less one",
    "plain_pipelines": "its pipeline refuses ZeRO 2 and 3: whole gradients add up over micro-batches",
    "first_stage_buckets": "in a pipeline only the first stage, which is done last, sends gradients in buckets; others send "
    "all of them at once",
    "gathered_pipelines": "with ZeRO 3 and a pipeline, weights stay gathered through a step, so only gradients and state are "
    "sharded",
}
PLAN_AMOUNTS: Mapping[str, str] = {
    "bucket_bytes": "gradients that are reduced at once; PyTorch's 25 MB where it is not given",
    "bucket_elements": "the same, as numbers of gradients; all at once where nothing runs beside their reduction",
    "bucket_elements_per_replica": "as many more as there are replicas, where that is the larger",
    "last_bucket_bytes": "the bucket that is sent last, when the backward pass has ended; what is left over, half a bucket on "
    "average, where it is not given",
    "input_bytes_per_s": "at which a core copies inputs to its device in the training loop, while the device waits: they lie in "
    "memory that is not pinned; they are there in time where it is not given",
}
CALLS: Mapping[str, str] = {
    "backward": "from a hook of the backward pass on each gradient",
    "update": "on each gradient before the update",
    "update scaled": "the same besides, on single numbers, where the loss is scaled because matmuls are fp16",
}
RECOMPUTES_WHEN: Mapping[str, str] = {
    "usual": "what runs again where nothing is said of it",
    "sharded": "the same wherever weights are sharded (ZeRO 3)",
    "quantised": "the same where the weights of a frozen model are stored in fewer bits (QLoRA)",
}
OPTIONS: Mapping[str, str] = {
    "fused": "norms, bias and activation, masked softmax and rotary run as fused kernels",
    "fused_gate": "activation and product of a gated MLP are one kernel",
    "fused_loss": "scores and loss are made in one kernel",
    "loss_in_place": "gradients take the place of the scores that the loss is made of, in place or some tokens after the other",
    "wide_scores": "scores leave the model in fp32 and stay until the backward pass of the loss has ended",
    "untied": "heads have a weight of their own, whatever the model was published with",
    "fused_sums": "gradients are added up inside the matmul that makes them",
    "adapter_targets": "beside which layers it puts low-rank adapters: attention, all, or layer names with commas between them",
    "softmax_multiple": "its fused softmax works on so many samples and heads at a time, or not at all",
    "implementation": "of the optimizer: foreach, fused or loop",
    "attention": "the kernel of attention",
    "channels_last": "images are stored with channels last",
    "dropout": "share of the numbers that dropout removes",
    "keeps_keys": "models return the keys and values of all layers where nothing trains (transformers' use_cache)",
    "predicted_share": "of the tokens, those whose words a masked language model predicts: others are dropped before its head",
    "static_shapes": "its programs have fixed shapes, so inputs that vary are padded to the largest that there can be",
    "host_masks": "its detectors cut the masks of regions from polygons on the host, one by one, while the device waits",
}
"""How models of the catalogue are run; what is not given is as the model's builder does it."""
COMPILES: Mapping[str, str] = {
    "step": "the step is compiled",
    "loss": "a compiled step compiles its loss too; else layers are compiled one by one and the loss runs as it is written",
    "kept": "the compiler chooses what the forward pass keeps; else it keeps what is written",
    "program": "the step is one program that the host starts once (XLA, CUDA graphs)",
}
HOLDS: Mapping[str, str] = {
    "queued_gathers": "a host that is ahead of the device holds gathered inputs; else they go to one buffer, or on the stream of "
    "the matmul",
    "lean": "its tensors are all in the graph and it searches no algorithms, so little lies around the allocator",
    "greedy": "it takes the whole device when it starts",
    "planned": "a compiler lays out all memory before the step (XLA): no caching allocator rounds up, no host runs ahead, and "
    "sharded weights are gathered one by one",
    "outputs": "its pipeline engine keeps the outputs of the last stage in two buffers in turn until these are written again",
    "flat_updates": "its update works on one flat buffer of all weights of a rank, so the fp32 copy of their gradients is one "
    "request that takes memory of its own",
    "flat_gradients": "gradients are views of buffers that it makes before the first step, so they are there in every pass",
}
KERNEL_HABITS: Mapping[str, str] = {
    "turned_images": "convolutions of a training step in half precision turn images that are not stored with channels last, and "
    "turn back what they write: no kernel of the version takes them as they are",
    "grouped_gradients_on_lanes": "gradients of grouped convolutions with channels last run without matrix units",
    "wide_tiles": "convolutions of few channels run in tiles of 64 all the same: the version has no narrower ones",
    "products_by_sample": "tokens that lie turned are multiplied sample by sample instead of being copied into order, and the "
    "gradient of the weights is summed over samples",
    "short_vectors": "elementwise kernels give every thread four numbers, so eight bytes in half precision: too few in flight to "
    "fill memory that is fast beside its multiprocessors",
    "statistics_in_convolutions": "a convolution also sums what the batch norm after it needs, so no pass of its own over the "
    "images does",
    "pads_vocabulary": "widths of single matmuls (vocabularies) are padded by the model's code to whole vectors",
    "pads_heads": "so are widths of matmuls of many matrices (heads, interactions of features)",
}
"""What the libraries of a framework's version may do otherwise than those of today."""


def _check(kind: str, names: Iterable[str], known: Mapping[str, str]) -> None:
    for name in names:
        if name not in known:
            raise UnknownName(kind, name, known)


@noun
class PlanHabits:
    """What a framework decides about a plan where the user says nothing."""

    sequence_parallel: bool = False
    """It always splits the sequence along the tensor axis between matmuls."""
    zero: int | None = None
    """What it shards over replicas, as a stage of ZeRO, where nothing is said of it; None: nothing."""
    balance: str = "layers"
    """How it cuts a pipeline: by numbers of layers, or by the work in matmuls."""
    reduce_dtype: str | None = None
    """What gradients are reduced in; None: as they are kept."""
    recompute: Words = ()
    """Pairs of one of RECOMPUTES_WHEN and what runs again."""
    recompute_words: Words = ()
    """What its own words for recomputation mean in ours: (("selective", "selective-op"),)."""
    overlaps: Names = ("gradients", "sharded_gradients")
    copies: Names = ("buckets",)
    awaits: Names = ()
    runs: Names = ()
    amounts: Amounts = ()
    calls: tuple[tuple[str, int], ...] = ()
    """Kernels that it calls one by one on each gradient, by one of CALLS."""
    shared_updates: tuple[tuple[str, int], ...] = ()
    """Optimizers whose distributed form reduces one flat gradient when the backward pass has ended, and over how many devices it
    shares the update: each scatters the sum, updates its part and gathers the weights, which sends as much as an all-reduce."""

    def __post_init__(self) -> None:
        _check("thing to overlap", self.overlaps, OVERLAPS)
        _check("thing to copy", self.copies, COPIES)
        _check("thing to await", self.awaits, AWAITS)
        _check("way to run", self.runs, RUNS)
        _check("amount", dict(self.amounts), PLAN_AMOUNTS)
        _check("moment of calls", dict(self.calls), CALLS)
        _check("case of recomputation", dict(self.recompute), RECOMPUTES_WHEN)

    def amount(self, name: str) -> float | None:
        return dict(self.amounts).get(name)

    def recomputes(self, when: str = "usual") -> str | None:
        return dict(self.recompute).get(when)

    def num_calls(self, when: str) -> int:
        return dict(self.calls).get(when, 0)


@noun
class RecipeHabits:
    """How a framework runs a model where the user says nothing."""

    options: tuple[tuple[str, Value], ...] = (("attention", "flash"),)
    """Of OPTIONS, for models of the catalogue."""
    compiles: Names = ("kept", "loss")
    keeps_fed: bool = False
    """Its input pipeline keeps up with the devices: samples are decoded there, or made up for a benchmark."""
    precision_words: Words = ()
    """What its own words for precision mean in ours: (("bf16-true", "bf16-pure"),). A word with (sharded) behind it holds where
    weights are sharded (ZeRO 3), one with (transformer) where it treats transformers, and recommenders of tables, otherwise."""

    def __post_init__(self) -> None:
        _check("option of models", dict(self.options), OPTIONS)
        _check("thing to compile", self.compiles, COMPILES)

    def option(self, name: str) -> Value | None:
        return dict(self.options).get(name)


@noun
class MemoryHabits:
    """What a framework holds on a device beside tensors."""

    holds: Names = ("queued_gathers",)
    bucket_bytes: float = 0.0
    """Buffers of its own in which it reduces gradients and gathers weights; no larger than these are. Gradients then have no
    second copy, unless they are added to sums in a wider format. 0: buckets as the plan says."""
    live_bytes: float = 0.0
    """Gathered weights that it lets live at once where weights are sharded; 0: those of two layers."""
    communicators: float = 1.0
    """Process groups with buffers of their own that it makes for each axis in use: more where axes are also joined to others."""
    checkpoint: str = "layers"
    """How a checkpoint that is not sharded comes together where weights are: by `layers` on their way to the first host, `whole`
    on the device, or not at all (`shards`: every rank writes its own)."""
    host_buffers: float = 1.0
    """Host memory that offloaded state takes with the buffers it is copied and updated through, as a multiple of the state."""

    def __post_init__(self) -> None:
        _check("thing to hold", self.holds, HOLDS)
        if self.checkpoint not in CHECKPOINTS:
            raise InvalidInput(f"checkpoint = {self.checkpoint!r}; allowed: {', '.join(CHECKPOINTS)}")


@noun
class Stack:
    """The software that runs a job. The default is plain eager PyTorch with the constants of a prior; 1 and 0 change nothing."""

    name: str = "pytorch"
    title: str = ""
    version: str = ""
    """Which one a question or a table says that it runs; a document describes them all."""
    like: str = ""
    """The stack that its document starts from; what it does not say is as there."""
    aliases: tuple[str, ...] = ()
    """Other spellings, in tables and on command lines."""
    plan: PlanHabits = field(default_factory=PlanHabits)
    recipe: RecipeHabits = field(default_factory=RecipeHabits)
    memory: MemoryHabits = field(default_factory=MemoryHabits)
    kernels: tuple[str, ...] = ()
    """Of KERNEL_HABITS."""
    forward_call_s: float = 6e-6
    """Host time of a framework call in the forward pass; a typical server core of 2020."""
    backward_call_s: float = 4e-6
    optimizer_call_s: float = 6e-6
    """Also carries what a stack does for each parameter that its document does not count."""
    launch_s: float = 4e-6
    """Host time of a kernel launch."""
    collective_call_s: float = 1e-5
    """Host time to issue a collective."""
    product_factor: float = 1.0
    """Time of matmul, convolution and attention beside the op model's."""
    memory_factor: float = 1.0
    """The same of every other op."""
    intra_factor: float = 1.0
    """Time of collectives inside a node beside the collective model's."""
    inter_factor: float = 1.0
    log_sigma: float = 0.06
    """Standard deviation of the log error of a step that remains with these constants: of composition alone for a prior
    (fp32 steps of GPUs left out: 0.07 with the errors of the ops), of everything for a stack that was fitted."""
    num_steps: int = 0
    """Measured steps the constants were fitted to; 0: a prior."""
    provenance: str = ""
    """Where habits and constants come from: rows, models, versions."""

    def __post_init__(self) -> None:
        _check("default of kernels", self.kernels, KERNEL_HABITS)

    @property
    def spelling(self) -> str:
        """Its name with its version, as a command line takes it."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def is_plain(self) -> bool:
        """Eager PyTorch as it comes, which measured operators and steps were run with."""
        return self.name == PLAIN

    def precision_of(self, word: str, *, transformer: bool, sharded: bool) -> str:
        """What one of this stack's words for precision means; a word that it has no meaning for is returned as it is."""
        words = dict(self.recipe.precision_words)
        special = [f"{word} ({when})" for when, holds in (("sharded", sharded), ("transformer", transformer)) if holds]
        return next((words[name] for name in (*special, word) if name in words), word)

    def without_habits(self) -> "Stack":
        """Only its costs and its memory: nothing is decided for the user."""
        return Stack(
            **{name: getattr(self, name) for name in _COSTS},
            name=self.name, title=self.title, version=self.version, like=self.like, memory=self.memory, kernels=self.kernels,
            provenance=self.provenance,
        )  # fmt: skip


PLAIN = "pytorch"
_COSTS = (
    "forward_call_s", "backward_call_s", "optimizer_call_s", "launch_s", "collective_call_s", "product_factor",
    "memory_factor", "intra_factor", "inter_factor", "log_sigma", "num_steps",
)  # fmt: skip
