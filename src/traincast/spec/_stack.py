"""A stack: what the software that runs a job decides by itself, what it costs, and how sure we are of both."""

from dataclasses import dataclass, field

from traincast.errors import InvalidInput

CHECKPOINTS = ("shards", "layers", "whole")
Words = tuple[tuple[str, str], ...]
"""Pairs of a word and what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHabits:
    """What a stack decides about a plan where the user says nothing."""

    sequence_parallel: bool = False
    """It always splits the sequence along the tensor axis between products."""
    zero: int | None = None
    """What it shards over replicas, as a stage of ZeRO, where nothing is said of it; None: nothing."""
    recompute_words: Words = ()
    """What its own words for recomputation mean in ours: (("selective", "products"),)."""
    sharded_recompute: str | None = None
    """What runs again wherever weights are sharded (ZeRO 3); None: nothing more than is asked."""
    recompute: str | None = None
    """What runs again where nothing is said of it; None: nothing."""
    quantised_recompute: str | None = None
    """The same where the weights of a frozen model are stored in fewer bits (QLoRA)."""
    overlap: bool = True
    """Gradients are reduced beside the backward pass."""
    overlap_sharded: bool = True
    """The same where ZeRO shards anything."""
    reduces_after: tuple[str, ...] = ()
    """Optimizers whose distributed form reduces one flat gradient when the backward pass has ended."""
    update_shares: int = 1
    """Devices over which that form shares the update: each scatters the sum, updates its part and gathers the weights, which
    sends as much as an all-reduce."""
    bucket_bytes: float | None = None
    """Gradients that are reduced at once; None: PyTorch's 25 MB."""
    last_bucket_bytes: float | None = None
    """Of the bucket that is sent last, when the backward pass has ended; None: what is left over, half a bucket on average."""
    bucket_copies: bool = True
    """Replicas copy gradients into the buckets they are reduced in."""
    balance: str = "layers"
    """How it cuts a pipeline: by numbers of layers, or by the work in products."""
    reshard_in_pipeline: bool = True
    """False: with ZeRO 3 and a pipeline, weights stay gathered through a step, so only gradients and state are sharded."""
    fills_pipeline: bool = False
    """Its pipeline refuses fewer passes than stages less one."""
    dispatch_once: bool = False
    """Tokens of experts cross a network once for every node that needs them (DeepEP)."""
    async_tensor: bool = False
    """Transfers of the tensor axis run beside pieces of its products wherever the sequence is split along it."""
    reads_back: bool = False
    """The host reads a number that the gradients give (their noise, an overflow) before it issues the update, and so waits for
    the device in every step."""
    awaits_inputs: bool = False
    """Inputs of every micro-batch are copied to the device by a call that returns when they are there. The copy is behind all
    kernels of the pass before, so the host issues nothing ahead of the device across micro-batches."""
    hook_kernels: int = 0
    """Kernels that a hook of the backward pass runs on each gradient, called one by one."""
    statistic_kernels: int = 0
    """The same before each update."""
    lone_statistic_kernels: int = 0
    """The same besides, where a replica has no others to compare its gradients with."""
    scaled_statistic_kernels: int = 0
    """The same besides, on single numbers, where the loss is scaled because products are fp16."""
    input_bytes_per_s: float | None = None
    """At which a core copies inputs to its device in the training loop, while the device waits: they lie in memory that is not
    pinned. None: they are there in time."""
    own_containers: bool = False
    """Every replica runs in a container of its own, so that devices of one node reach each other over the network alone."""
    reduce_dtype: str | None = None
    """What gradients are reduced in; None: as they are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeHabits:
    """How a stack runs a model of the catalogue where the user says nothing. None: as the model's builder does."""

    fused: bool | None = None
    """Norms, bias and activation, masked softmax and rotary run as fused kernels."""
    fused_gate: bool | None = None
    fused_loss: bool | None = None
    fused_sums: bool | None = None
    adapter_targets: str | None = None
    """Beside which layers it puts low-rank adapters: attention, all, or layer names with commas between them."""
    softmax_multiple: int = 1
    """Its fused softmax works on so many samples and heads at a time, or not at all."""
    implementation: str | None = None
    """Of the optimizer: foreach, fused or loop."""
    attention: str = "flash"
    channels_last: bool | None = None
    dropout: float | None = None
    keeps_keys: bool = False
    """Models return the keys and values of all layers where nothing trains (transformers' use_cache)."""
    predicted_share: float | None = None
    """Of the tokens, those whose words a masked language model predicts: others are dropped before its head; None: all stay."""
    static_shapes: bool | None = None
    """Its programs have fixed shapes, so inputs that vary are padded to the largest that there can be."""
    host_masks: bool | None = None
    """Its detectors cut the masks of regions from polygons on the host, one by one, while the device waits."""
    compiled: bool = False
    compiled_loss: bool = True
    """A compiled step compiles its loss too; False: layers are compiled one by one and the loss runs as it is written."""
    partitions: bool = True
    """Where a step is compiled, the compiler chooses what the forward pass keeps; False: it keeps what is written."""
    whole_program: bool = False
    """The step is one program that the host starts once (XLA, CUDA graphs)."""
    keeps_fed: bool = False
    """Its input pipeline keeps up with the devices: samples are decoded there, or made up for a benchmark."""
    precision_words: Words = ()
    """What its own words for precision mean in ours: (("bf16-true", "bf16-pure"),)."""
    transformer_precision_words: Words = ()
    """The same where it treats transformers, and recommenders of tables, in another way."""
    sharded_precision_words: Words = ()
    """The same where weights are sharded (ZeRO 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHabits:
    """What a stack holds on a device beside tensors."""

    queued_gathers: bool = True
    """A host that is ahead of the device holds gathered inputs. False: they go to one buffer, or on the stream of the product."""
    lean: bool = False
    """Its tensors are all in the graph and it searches no algorithms, so little lies around the allocator."""
    greedy: bool = False
    """It takes the whole device when it starts."""
    planned: bool = False
    """A compiler lays out all memory before the step (XLA): no caching allocator rounds up, no host runs ahead, and sharded
    weights are gathered one by one."""
    bucket_bytes: float = 0.0
    """Buffers of its own in which it reduces gradients and gathers weights; no larger than these are. Gradients then have no
    second copy, unless they are added to sums in a wider format. 0: buckets as the plan says."""
    flat_gradients: bool = False
    """Gradients are views of buffers that it makes before the first step, so they are there in every pass."""
    live_bytes: float = 0.0
    """Gathered weights that it lets live at once where weights are sharded; 0: those of two layers."""
    context_bytes: float = 0.75e9
    """What the driver and the code of libraries hold on a device."""
    hole_share: float = 0.025
    """Share of a device that requests cannot fill, because what is free lies in pieces that are too small."""
    communicators: float = 1.0
    """Process groups with buffers of their own that it makes for each axis in use: more where axes are also joined to others."""
    channel_bytes: float = 3.8e7
    """Buffers of one channel of a communicator. NCCL: four connections (ring, and the parent and two children of a tree) of 4 MiB
    for large messages, 4.9 MB (LL128) and 0.5 MB (LL) for small ones. Recalled, not measured."""
    peer_bytes: float = 8.4e6
    """Buffers for each peer that a rank sends to directly, as experts and stages do. NCCL: two channels of 4 MiB.
    Recalled, not measured."""
    graph_kernel_bytes: float = 65536.0
    """What the driver keeps on a device for each kernel of a captured graph; recalled, not measured."""
    checkpoint: str = "layers"
    """How a checkpoint that is not sharded comes together where weights are: by `layers` on their way to the first host, `whole`
    on the device, or not at all (`shards`: every rank writes its own)."""
    host_buffers: float = 1.0
    """Host memory that offloaded state takes with the buffers it is copied and updated through, as a multiple of the state."""
    process_bytes: float = 3e9
    """Host memory of one rank's process without any data."""

    def __post_init__(self) -> None:
        if self.checkpoint not in CHECKPOINTS:
            raise InvalidInput(f"checkpoint = {self.checkpoint!r}; allowed: {', '.join(CHECKPOINTS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """What the libraries of a stack's version do otherwise than those of today."""

    turned_images: bool = False
    """Convolutions of a training step in half precision turn images that are not stored with channels last, and turn back what
    they write: no kernel of the version takes them as they are."""
    grouped_gradients_on_lanes: bool = False
    """Gradients of grouped convolutions with channels last run without matrix units."""
    wide_tiles: bool = False
    """Convolutions of few channels run in tiles of 64 all the same: the version has no narrower ones."""
    products_by_sample: bool = False
    """Tokens that lie turned are multiplied sample by sample instead of being copied into order, and the gradient of the weights
    is summed over samples."""
    short_vectors: bool = False
    """Elementwise kernels give every thread four numbers, so eight bytes in half precision: too few in flight to fill memory that
    is fast beside its multiprocessors."""
    statistics_in_convolutions: bool = False
    """A convolution also sums what the batch norm after it needs, so no pass of its own over the images does."""
    pads_vocabulary: bool = False
    """Widths of single products (vocabularies) are padded by the model's code to whole vectors."""
    pads_heads: bool = False
    """So are widths of products of many matrices (heads, interactions of features)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """What the numbers in a stack's logs and tables mean. Readers of tables use them; a forecast does not."""

    watched_stage: int | None = None
    """The pipeline stage whose memory is logged; None: the fullest."""
    memory_unit: float = 1.0
    """Bytes in what tables made from these logs call a byte."""
    counts_reserved: bool = True
    """Memory is what the caching allocator holds; False: what tensors take."""
    metered_spelling: str = ""
    """Part of the spelling that says that memory was read from the device's own meter."""
    known_to_run: bool = False
    """Its tables are recipes published for a device, so each is known to run on it."""
    unsharded_adapters: bool = False
    """Its tables give the peak of one device where adapters were trained on several."""
    adapter_targets: str = ""
    """Beside which layers the recipes in its tables put adapters, where they do not say; empty: as the stack does by default."""
    precision_settings: Words = ()
    """Words among a row's other settings that change its precision: (("float8_rowwise", "bf16"),)."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    kernels: KernelFacts = field(default_factory=KernelFacts)
    logs: LogFacts = field(default_factory=LogFacts)
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
    ring_step_s: float = 1e-5
    """What every step of a ring between nodes adds to an all-gather or reduce-scatter that kernels wait for: the latency of
    transport and library, beside the collective model's own hops. Nothing is on its way before the first chunk of such a ring, so
    a step costs the software of a first hop, 15 us, instead of that of one that follows others, 5 us. Gradients, and weights that
    are gathered ahead, follow each other through the network without a kernel between them, and were not seen to pay it."""
    log_sigma: float = 0.06
    """Standard deviation of the log error of a step that remains with these constants: of composition alone for a prior
    (fp32 steps of GPUs left out: 0.07 with the errors of the ops), of everything for a stack that was fitted."""
    num_steps: int = 0
    """Measured steps the constants were fitted to; 0: a prior."""
    provenance: str = ""
    """Where habits and constants come from: rows, models, versions."""

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
        if transformer:
            words.update(self.recipe.transformer_precision_words)
        if sharded:
            words.update(self.recipe.sharded_precision_words)
        return words.get(word, word)

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
    "memory_factor", "intra_factor", "inter_factor", "ring_step_s", "log_sigma", "num_steps",
)  # fmt: skip
