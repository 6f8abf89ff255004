"""How a step is run: everything that changes the operations of a model without changing the model."""

import functools

from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun
from traincast.spec import MODES, RECOMPUTES

FUSED_ATTENTIONS = ("flash", "flash-1", "flash-2", "flash-3", "cudnn", "efficient")
"""One kernel that never writes the scores; "flash" leaves its generation to what frameworks choose on a device."""
ATTENTIONS = ("eager", *FUSED_ATTENTIONS)


@noun
class Precision:
    """What a number format means for weights, activations, products and the optimizer."""

    weight: str
    compute: str
    """What products (matmul, conv, attention) read and write."""
    product: str
    """The arithmetic of products: 'tf32' and 'fp8' differ from what is stored."""
    autocast: bool = False
    """Weights stay fp32 and are cast before each product; norms, softmax and loss run in fp32."""
    master: bool = False
    """The optimizer keeps an fp32 copy of half-precision weights."""
    block: int = 0
    """Elements of an operand that share a scale of one byte, in both directions; 0: one scale for all of it."""
    rotates: bool = False
    """Operands of the weight's gradient are rotated before they are rounded (random Hadamard transform)."""
    software_scales: bool = False
    """Scales of blocks are applied by instructions of the kernel where matrix units have none for them (DeepGEMM)."""
    dynamic: bool = False
    """Scales come from the operand itself, which one more pass over it finds before the cast."""
    gradient: str = "fp32"
    """What gradients are kept in until the optimizer reads them."""


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(weight="fp32", compute="fp32", product="fp32"),
    "tf32": Precision(weight="fp32", compute="fp32", product="tf32"),
    "fp16-amp": Precision(weight="fp32", compute="fp16", product="fp16", autocast=True),
    "bf16-amp": Precision(weight="fp32", compute="bf16", product="bf16", autocast=True),
    "fp16": Precision(weight="fp16", compute="fp16", product="fp16", master=True, gradient="fp16"),
    "bf16": Precision(weight="bf16", compute="bf16", product="bf16", master=True, gradient="fp32"),
    "bf16-pure": Precision(weight="bf16", compute="bf16", product="bf16", gradient="bf16"),
    "fp8": Precision(weight="bf16", compute="bf16", product="fp8", master=True, gradient="fp32"),
    "fp8-row": Precision(weight="bf16", compute="bf16", product="fp8", master=True, gradient="fp32", dynamic=True),
    # Activations have a scale for 128 numbers of a row, weights for 128 x 128 (DeepSeek-AI 2024).
    "fp8-block": Precision(
        weight="bf16", compute="bf16", product="fp8", master=True, gradient="fp32", block=128, software_scales=True
    ),
    "fp4": Precision(weight="bf16", compute="bf16", product="fp4", master=True, gradient="fp32"),
    # Blocks of 32 share a power of two (OCP Microscaling 2023); NVFP4's blocks of 16 an fp8 number (NVIDIA 2025).
    "mxfp8": Precision(weight="bf16", compute="bf16", product="fp8", master=True, gradient="fp32", block=32),
    "mxfp4": Precision(weight="bf16", compute="bf16", product="fp4", master=True, gradient="fp32", block=32),
    "nvfp4": Precision(
        weight="bf16", compute="bf16", product="fp4", master=True, gradient="fp32", block=16, rotates=True
    ),
}
BLOCK_SCALED = ("mxfp8", "mxfp4", "nvfp4")
"""Formats that only matrix units with scales for blocks multiply."""
PRECISION_ALIASES = {
    "amp": "fp16-amp", "fp8-mx": "mxfp8", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16",
    "fp8-rowwise": "fp8-row", "float8-rowwise": "fp8-row", "fp8-dynamic": "fp8-row", "fp8-blockwise": "fp8-block",
    "fp8-tensor": "fp8", "float8": "fp8", "bf16-true": "bf16-pure", "bf16-mixed": "bf16-amp",
}  # fmt: skip


@functools.cache
def precision_name(text: str) -> str:
    """The canonical spelling: 'fp16_amp' and 'amp' are 'fp16-amp', 'fp8_mx' is 'mxfp8'."""
    name = text.strip().lower().replace("_", "-")
    return PRECISION_ALIASES.get(name, name)


@noun
class Update:
    """What an optimizer keeps and moves for one parameter, in numbers, not bytes.

    Foreach passes are those of torch.optim: AdamW scales the parameter, blends the first moment, scales the second and adds
    to it, takes a root into a temporary, scales it, adds epsilon and updates: 12 reads, 8 writes. Fused: p, g, m, v once.
    """

    states: tuple[str, ...]
    flop: float
    passes: int
    reads: int
    writes: int
    fused_reads: int
    fused_writes: int
    factored: bool = False
    """One number for every row and column of a weight instead of one for each of its elements."""
    state_dtype: str | None = None
    """What the states are kept in; None: as the master weights. 8-bit states have a scale for each block of 256."""
    product_iterations: int = 0
    """Newton-Schulz iterations that orthogonalise the momentum of each matrix, three products each (Jordan 2024)."""


STATE_BLOCK = 256
"""Elements of an 8-bit optimizer state that share a scale (Dettmers et al. 2022)."""

OPTIMIZERS: dict[str, Update] = {
    "adamw": Update(
        states=("exp_avg", "exp_avg_sq"), flop=14, passes=8, reads=12, writes=8, fused_reads=4, fused_writes=3
    ),
    "adam": Update(
        states=("exp_avg", "exp_avg_sq"), flop=13, passes=7, reads=11, writes=7, fused_reads=4, fused_writes=3
    ),
    "sgd": Update(states=(), flop=2, passes=1, reads=2, writes=1, fused_reads=2, fused_writes=1),
    "momentum": Update(states=("momentum",), flop=5, passes=3, reads=5, writes=3, fused_reads=3, fused_writes=2),
    "rmsprop": Update(states=("square_avg",), flop=9, passes=5, reads=8, writes=5, fused_reads=3, fused_writes=2),
    "adagrad": Update(states=("sum",), flop=9, passes=5, reads=8, writes=5, fused_reads=3, fused_writes=2),
    "lamb": Update(
        states=("exp_avg", "exp_avg_sq"), flop=20, passes=11, reads=16, writes=9, fused_reads=7, fused_writes=4
    ),
    "adafactor": Update(
        states=(), flop=16, passes=14, reads=14, writes=8, fused_reads=5, fused_writes=2, factored=True
    ),
    # Momentum with a trust ratio: two norms of each layer before its update (You et al. 2017).
    "lars": Update(states=("momentum",), flop=9, passes=6, reads=9, writes=4, fused_reads=5, fused_writes=2),
    "lion": Update(states=("exp_avg",), flop=9, passes=5, reads=8, writes=5, fused_reads=3, fused_writes=2),
    "nadam": Update(
        states=("exp_avg", "exp_avg_sq"), flop=16, passes=10, reads=14, writes=10, fused_reads=4, fused_writes=3
    ),
    "radam": Update(
        states=("exp_avg", "exp_avg_sq"), flop=16, passes=10, reads=14, writes=9, fused_reads=4, fused_writes=3
    ),
    "adamax": Update(
        states=("exp_avg", "exp_inf"), flop=10, passes=6, reads=10, writes=6, fused_reads=4, fused_writes=3
    ),
    "adadelta": Update(
        states=("square_avg", "acc_delta"), flop=12, passes=8, reads=12, writes=8, fused_reads=4, fused_writes=3
    ),
    # States in 8 bits, one fused kernel each (Dettmers et al. 2022); the parameter and its gradient stay as they are.
    "adamw-8bit": Update(
        states=("exp_avg", "exp_avg_sq"),
        flop=20,
        passes=1,
        reads=2,
        writes=1,
        fused_reads=2,
        fused_writes=1,
        state_dtype="int8",
    ),
    "lion-8bit": Update(
        states=("exp_avg",), flop=12, passes=1, reads=2, writes=1, fused_reads=2, fused_writes=1, state_dtype="int8"
    ),
    "muon": Update(
        states=("momentum",), flop=6, passes=4, reads=6, writes=4, fused_reads=4, fused_writes=3, product_iterations=5
    ),
}
IMPLEMENTATIONS = ("foreach", "fused", "loop")
OPTIMIZER_ALIASES = {
    "sgd-momentum": "momentum", "nesterov": "momentum", "adam-8bit": "adamw-8bit", "adam8bit": "adamw-8bit",
    "adamw8bit": "adamw-8bit", "adamw-bnb-8bit": "adamw-8bit", "paged-adamw-8bit": "adamw-8bit", "lion8bit": "lion-8bit",
    "adamw-torch": "adamw", "adamw-torch-fused": "adamw", "adam(distributed)": "adam", "distributed-fused-adam": "adam",
}  # fmt: skip


FOUR_BITS = ("fp4", "nf4", "nf4-dq")


@noun
class Recipe:
    """The settings every builder takes."""

    precision: str = "fp32"
    mode: str = "training_step"
    optimizer: str = "adamw"
    attention: str = "flash"
    recompute: str = "none"
    recompute_layers: int | None = None
    """Layers of a transformer, or of each stage, that run again where whole layers do; None: all."""
    recompute_stages: int = 1
    """Stages of a pipeline, each of which runs so many of its layers again."""
    fused: bool = False
    """Fused kernels as in Megatron-LM: bias+gelu, bias+dropout+add, masked softmax, rotary, norms, gradient accumulation."""
    fused_softmax: bool = True
    """Where kernels are fused, the masked softmax is one of them; Megatron's refuses some shapes."""
    fused_gate: bool | None = None
    """A gated MLP runs activation and product as one kernel that keeps only its input; None: as `fused`."""
    fused_loss: bool = False
    """A language model's loss is one kernel on scores in their own format (flash-attn's), not several on fp32 copies."""
    loss_in_place: bool = False
    """Gradients of that loss take the place of its scores: it works in place, or on some tokens after the other."""
    wide_scores: bool = False
    """Scores leave the model in fp32 and stay until the backward pass of the loss has ended."""
    untied: bool = False
    """The head of a language model has a weight of its own, whatever the model was published with."""
    fused_sums: bool | None = None
    """The product that makes a weight's gradient adds it to what is there; None: as `fused`."""
    dropout: float | None = None
    """None: what the model was published with."""
    keeps_keys: bool = False
    """A forward pass of a causal model without a backward one returns the keys and values of all its layers."""
    predicted_share: float = 1.0
    """Of the tokens, those whose words a masked language model predicts; others are dropped before its head."""
    host_masks: bool = False
    """The host cuts the masks of a detector's regions from polygons, one by one, while the device waits."""
    one_size: bool = False
    """Every batch is padded to the largest images that there are: the step is one program, captured for one size."""
    loss: bool = True
    """False: the gradient of the outputs is given, and the loss does not run."""
    accumulate: bool = False
    """Each new gradient is added to one that is already there: gradient accumulation, or no zero_grad."""
    implementation: str | None = None
    """Of the optimizer: foreach, fused or loop; None: fused where kernels are fused, else foreach as torch.optim on a GPU."""
    master_weights: bool | None = None
    """None: as the precision says."""
    gradient_dtype: str | None = None
    """None: as the precision says."""
    adapter_rank: int = 0
    """Low-rank adapters of this rank beside the dense layers named in `adapted` are trained and all other weights are frozen
    (Hu et al. 2021); 0: everything is trained."""
    adapted: tuple[str, ...] = ("query", "key", "value", "qkv", "output", "gate", "up", "gate_up", "down")
    """All dense layers of a block, as Dettmers et al. (2023) advise."""
    adapter_norm: bool = False
    """Each row of a layer's weight is scaled to a trained length (DoRA, Liu et al. 2024)."""
    frozen_dtype: str | None = None
    """What the frozen weights of dense layers are stored in: fp4 or nf4 with an fp32 scale per 64, nf4-dq with scales that are
    quantised themselves (QLoRA, Dettmers et al. 2023), fp8 or int8; None: as other weights."""
    weight_dtype: str | None = None
    """What trained weights of the layers' products are stored in, where it is narrower than the precision says: fp8. Products
    in fp8 read them as they are, others write them out first; the optimizer keeps its own copy as it does without."""
    channels_last: bool = False
    """Images are stored with channels last, as half-precision convolutions take them; else each of these turns them round."""
    inplace: bool = True
    """Activation functions of convolutional networks overwrite their input, as torchvision writes them."""

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("precision", self.precision, PRECISIONS),
            ("attention", self.attention, ATTENTIONS),
            ("mode", self.mode, MODES),
        ):
            if name not in known:
                raise UnknownName(kind, name, known)
        if self.recompute not in RECOMPUTES:
            raise UnknownName("recomputation", self.recompute, RECOMPUTES)
        if self.update_name not in (*OPTIMIZERS, "none"):
            raise UnknownName("optimizer", self.optimizer, (*OPTIMIZERS, *OPTIMIZER_ALIASES, "none"))
        if self.implementation not in (None, *IMPLEMENTATIONS):
            raise UnknownName("optimizer implementation", str(self.implementation), IMPLEMENTATIONS)
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise InvalidInput(f"dropout = {self.dropout}; it must be at least 0 and below 1")
        if self.recompute_layers is not None and self.recompute_layers < 1:
            raise InvalidInput(f"recompute_layers = {self.recompute_layers}; it must be at least 1, or recompute none")
        if self.adapter_rank < 0:
            raise InvalidInput(f"adapter_rank = {self.adapter_rank}; it must be at least 0")
        if self.adapter_norm and not self.adapter_rank:
            raise InvalidInput("adapter_norm = True needs adapters; set adapter_rank")
        if self.frozen_dtype not in (None, *FOUR_BITS, "int8", "fp8"):
            raise InvalidInput(f"frozen_dtype = {self.frozen_dtype!r}; allowed: {', '.join(FOUR_BITS)}, fp8, int8")
        if self.weight_dtype not in (None, "fp8"):
            raise InvalidInput(f"weight_dtype = {self.weight_dtype!r}; allowed: fp8, or leave it out")
        if self.weight_dtype and self.numbers.weight == "fp32":
            raise InvalidInput(
                f"weight_dtype = {self.weight_dtype!r} does not go with {self.precision}, whose weights are fp32; use bf16 or fp8"
            )
        if self.frozen_dtype and not self.adapter_rank:
            raise InvalidInput(f"frozen_dtype = {self.frozen_dtype!r} needs frozen weights; set adapter_rank")
        if self.gradient_dtype not in (None, "fp32", "fp16", "bf16"):
            raise InvalidInput(f"gradient_dtype = {self.gradient_dtype!r}; allowed: fp32, fp16, bf16")

    @property
    def frozen_format(self) -> str | None:
        """Of the frozen weights themselves, whatever their scales are."""
        return "fp4" if self.frozen_dtype in FOUR_BITS else self.frozen_dtype

    @property
    def update_name(self) -> str:
        name = self.optimizer.strip().lower().replace("_", "-")
        return OPTIMIZER_ALIASES.get(name, name)

    @property
    def optimizer_kernels(self) -> str:
        return self.implementation or ("fused" if self.fused else "foreach")

    @property
    def gates_once(self) -> bool:
        return self.fused if self.fused_gate is None else self.fused_gate

    @property
    def sums_at_once(self) -> bool:
        return self.fused if self.fused_sums is None else self.fused_sums

    @property
    def numbers(self) -> Precision:
        return PRECISIONS[self.precision]

    @property
    def keeps_master(self) -> bool:
        return self.numbers.master if self.master_weights is None else self.master_weights

    @property
    def trains(self) -> bool:
        return self.mode != "inference"

    @property
    def has_loss(self) -> bool:
        return self.trains and self.loss

    def rate(self, published: float) -> float:
        """The dropout rate to use: none in inference, the user's, or the published one."""
        if not self.trains:
            return 0.0
        return published if self.dropout is None else self.dropout


@noun
class Sizes:
    """What one sample is: None stands for the published value."""

    batch: int
    seq: int | None = None
    input_size: tuple[int, int] | None = None
    """Height and width of an image."""
    num_classes: int | None = None
    head: str | None = None
    """What a transformer ends in."""
    sampling: "Sampling | None" = None
    """How the neighbourhood of a seed is drawn, where the published way is not meant."""

    def image(self, side: int) -> tuple[int, int]:
        """Height and width, or of the published square."""
        return self.input_size or (side, side)


@noun
class Sampling:
    """How a graph network draws the neighbourhood of a batch and where its features come from. None: as published."""

    fan_outs: tuple[int, ...] | None = None
    distinct: float | None = None
    cache_bytes: float = 0.0
    hits: float = 0.0
