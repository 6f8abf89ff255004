"""A question: what a person can ask, whichever way; what is not said stays unsaid until `resolve` fills it in."""

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from traincast.noun import noun
from traincast.spec._asked import Asked, asked, list_asked
from traincast.spec._calibration import Calibration
from traincast.spec._job import Job
from traincast.spec._parallel import Parallelism
from traincast.spec._regime import RegimeOptions

_OPTIMIZERS = ("adamw", "adam", "sgd", "momentum", "none ...")


Notes = tuple[str, ...]
"""What is assumed where nobody says it: sentences that are returned beside the value that they are about."""


@noun
class WorkloadOptions:
    """What is trained and how a step of it is run. None: as published, or as the stack does it."""

    batch: int | None = asked(
        None,
        "Micro-batch: samples that a device has in one forward pass.",
        "--batch",
        "-b",
        "--micro-batch",
        unit="count",
    )
    seq: int | None = asked(None, "Sequence length in tokens: 8192, 128k (k is 1,024).", unit="length")
    precision: str | None = asked(
        None, "bf16: bf16 with fp32 master weights and optimizer state; bf16-pure: all in bf16; also fp32, tf32, fp16, "
        "fp16-amp, bf16-amp, fp8, fp8-row, fp8-block, fp4, and with scales for blocks mxfp8, mxfp4, nvfp4.",
    )  # fmt: skip
    mode: str | None = asked(None, "training_step, forward_backward or inference.")
    optimizer: str | None = asked(None, "What updates the weights:", words=_OPTIMIZERS)
    attention: str | None = asked(None, "How attention runs: eager or flash.")
    adapter_rank: int | None = asked(
        None,
        "Train low-rank adapters (LoRA) of this rank, the model frozen.",
        "--adapter-rank",
        "--lora-rank",
        "--lora",
    )
    adapter_targets: str | None = asked(
        None, "Layers with adapters: all, attention, or names such as query,value; default: as the framework does it.",
        "--adapter-targets", "--lora-targets",
    )  # fmt: skip
    adapter_norm: bool | None = asked(None, "Adapters scale the weight's rows too (DoRA).", "--dora")
    frozen_dtype: str | None = asked(None, "Store frozen weights in fp4, nf4, nf4-dq (QLoRA), fp8 or int8.")
    weight_dtype: str | None = asked(
        None, "Store trained weights of the layers' matmuls in fp8; the optimizer's own copy stays."
    )
    head: str | None = asked(None, "What a language model ends in: lm (a score for every word) or value (one number).")
    sample_tokens: int | None = asked(
        None, "Mean length of a sample as the data has it; --seq is what it is padded or packed to.", unit="length"
    )
    sample_p95: int | None = asked(
        None, "Length that one sample in twenty exceeds; default: twice the mean.", unit="length"
    )
    packing: bool | None = asked(
        None, "Several samples fill a sequence and attention stays inside each; else each is padded to the longest of its "
        "micro-batch.",
    )  # fmt: skip
    document_masks: bool | None = asked(
        None,
        "With --packing: attention stays inside each sample (default); --no-document-masks lets it see the whole sequence.",
    )
    image_sizes: str | None = asked(
        None,
        "Sizes of images as the data has them, in pixels: 256..1024, 480x1333..800x1333, or with shares 224:0.6,384:0.4.",
    )
    size_batching: str | None = asked(
        None, "Samples of several sizes in a micro-batch: padded to the largest, bucketed (all of one size; replicas wait for "
        "the largest) or grouped (one size in all replicas at a time); default: texts padded, images bucketed.",
    )  # fmt: skip
    recompute_layers: int | None = asked(
        None,
        "With --recompute full: how many layers run again, of each stage of a pipeline; default: all.",
        "--recompute-layers",
    )
    loss_chunks: int | None = asked(
        None, "The loss of a language model is made in so many parts, so that scores of one part exist at once."
    )
    gather_negatives: bool | None = asked(
        None, "A contrastive loss compares each sample with those of all replicas, not of its own alone."
    )
    ema: bool | None = asked(None, "A moving average of the weights is kept and updated in every step.")
    dropout: float | None = asked(None, "Dropout rate instead of the published one.")
    input_size: str | int | None = asked(None, "Side of an image in pixels, or height and width: 224, 800x1333.")
    num_classes: int | None = asked(None, "Classes that a classifier tells apart.")
    fan_outs: str | None = asked(
        None,
        "Neighbours that a graph network samples at each hop, from the seeds outwards, over all relations: 20,15,9.",
    )
    distinct_neighbours: float | None = asked(
        None, "Share of sampled neighbours that no other seed of the batch has sampled, from 0 to 1."
    )
    feature_cache_bytes: float | None = asked(
        None, "Features of a graph's nodes that lie on every device; all others come from host memory.",
        "--feature-cache", unit="bytes",
    )  # fmt: skip
    feature_hits: float | None = asked(
        None,
        "Share of a batch's features that the cache on the device answers, from 0 to 1; goes with --feature-cache.",
    )
    arch: str | None = asked(None, "Architecture of a transformer given by its sizes: llama, gpt, bert, mixtral ...")
    params: float | None = asked(None, "Parameters of a transformer whose shape is not known: 7B.", unit="count")
    n_layers: int | None = asked(None, "Layers.", "--layers")
    hidden: int | None = asked(None, "Width of a layer.")
    heads: int | None = asked(None, "Attention heads.")
    kv_heads: int | None = asked(None, "Heads of keys and values.")
    head_dim: int | None = asked(None, "Width of a head.")
    ffn: int | None = asked(None, "Width of the MLP.")
    gated: bool | None = asked(None, "The MLP is gated (SwiGLU).")
    tied: bool | None = asked(None, "Input and output embedding are one.")
    vocab: int | None = asked(None, "Words of the vocabulary.", unit="count")
    experts: int | None = asked(None, "Experts of a mixture.")
    experts_per_token: int | None = asked(None, "Experts that one token goes to.")
    moe_ffn: int | None = asked(None, "Width of one expert.")
    shared_experts: int | None = asked(None, "Experts that every token goes to, beside those it is routed to.")
    first_dense: int | None = asked(None, "Layers without experts before the first with them.", "--dense-layers")
    moe_every: int | None = asked(None, "Every so many layers have experts; default: all.")
    loss: bool | None = asked(None, "The loss is part of the step.", panel="Kernels")
    fused: bool | None = asked(None, "Norms, bias and activation, softmax and rotary run fused.", panel="Kernels")
    fused_softmax: bool | None = asked(None, "Where kernels are fused, the masked softmax too.", panel="Kernels")
    fused_gate: bool | None = asked(None, "A gated MLP runs activation and product as one kernel.", panel="Kernels")
    fused_loss: bool | None = asked(None, "The loss of a language model is one kernel.", panel="Kernels")
    fused_sums: bool | None = asked(None, "The product that makes a gradient also adds it up.", panel="Kernels")
    implementation: str | None = asked(
        None, "Of the optimizer: foreach, fused or loop.", "--optimizer-implementation", panel="Kernels"
    )
    channels_last: bool | None = asked(None, "Images are stored with channels last.", panel="Kernels")
    master_weights: bool | None = asked(None, "An fp32 copy of half-precision weights is kept.", panel="Kernels")
    gradient_dtype: str | None = asked(None, "What gradients are kept in: fp32, fp16 or bf16.", panel="Kernels")
    kernels: str | None = asked(
        None, "Of a model that is recorded: fast (kernels that people install, the default) or plain (what its code runs).",
        panel="Kernels",
    )  # fmt: skip

    def given(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def has_shape(self) -> bool:
        """Whether sizes of a transformer are given instead of leaving them to its name."""
        return any(getattr(self, name) is not None for name in ("arch", "params", "n_layers", "hidden"))


SHAPE = ("arch", "n_layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "tied", "vocab", "experts",
         "experts_per_token", "moe_ffn", "shared_experts", "first_dense", "moe_every")  # fmt: skip
"""The sizes of a transformer."""
SAMPLED = ("fan_outs", "distinct_neighbours", "feature_cache_bytes", "feature_hits")
"""What can be said about the sampling of a graph network."""


@noun
class ClusterOptions:
    """One group of equal nodes. None: as in the node that the device is most often found in."""

    device: str | None = asked(None, "Accelerator, see `traincast catalog`.", "--device", "-d")
    node: str | None = asked(None, "A known machine instead of a device, such as aws-p4d.24xlarge.", "--machine")
    nodes: int | None = asked(None, "Number of nodes.")
    devices_per_node: int | None = asked(None, "Devices in each node.", "--devices-per-node", "-g")
    placement: str | None = asked(None, "Devices in use on each node where they differ: 4,3.")
    intra: str | None = asked(None, "Link inside a node: a catalogue name or 300GB/s.")
    inter: str | None = asked(None, "Network of a node: a catalogue name or 100Gb/s.", "--inter", "--network")
    domains: str | None = asked(
        None, "Neighbours that another link joins than the level around them: 2:nvlink3-pairs,72:900GB/s.", "--domains"
    )
    nvlink_domain: int | None = asked(
        None, "Devices that NVLink joins across nodes: 72 for NVL72; any number.", "--nvlink-domain"
    )
    device_memory: float | None = asked(
        None, "Memory of one device, where it differs from the catalogue's: 80GB.", unit="bytes"
    )
    speed: float | None = asked(None, "Share of its nominal speed that each node reaches, such as 0.25 of a CPU core.")
    power_limit_watts: float | None = asked(
        None, "Watts that each device is held to, where that is less than its rated power.", "--power-limit"
    )
    nvme_bytes_per_s: float | None = asked(
        None,
        "Bytes per second that the local drives of a node read or write: 25GB.",
        "--nvme-bytes-per-s",
        unit="bytes",
    )
    host_memory_bytes: float | None = asked(
        None, "Memory of one node's host, for what is offloaded to it: 2TB.", "--host-memory", unit="bytes"
    )
    price_per_device: float | None = asked(None, "USD for one device and hour.", "--price")
    region: str | None = asked(
        None,
        "Where it stands, for CO2: a country, a US state or a provider's region (france, us-ohio, eu-west-1).",
        "--region",
    )


@noun
class PlanOptions:
    """What a plan may say beside the fields of Parallelism."""

    reshard: bool | None = asked(
        None, "With ZeRO 3 and a pipeline: gather weights again for every pass instead of keeping them."
    )


@noun
class JobOptions:
    """What a job may say beside the fields of Job."""

    global_batch: int | None = asked(
        None, "Samples of one optimizer step; with --batch it says the number of micro-batches.", unit="count"
    )
    epochs: float | None = asked(None, "Epochs of the job; needs --epoch-samples.")
    tokens: float | None = asked(None, "Tokens of the job, instead of steps or samples: 15T.", unit="count")
    stack_defaults: bool | None = asked(
        None, "Take over what the framework decides by itself; --no-stack-defaults leaves it out."
    )


@noun
class LearnedOptions:
    """What was learnt before and shall be used."""

    calibration: str | None = asked(None, "What `traincast calibrate` or `traincast learn` made, by name or file.")


@noun
class ConfigText:
    """A configuration of another project as it was handed over; its text is read and never run."""

    name: str
    """Of the file, for messages; its ending helps to tell the format."""
    text: str
    format: str = ""
    """A format by its name; empty: told by the content."""


@noun
class Question:
    """Everything that may be asked, as flags, a job file, a request body or a row; what is not said is not there."""

    source: str = ""
    """A catalogue workload, hf:org/name, a model file, a saved graph, a job file; with a shape only its title. Empty: a
    configuration says it."""
    workload: WorkloadOptions = WorkloadOptions()
    cluster: Mapping[str, Any] = field(default_factory=dict)
    """As `catalog.cluster_from` reads it: a machine or a device, nodes, links, prices, or groups of them."""
    parallelism: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Parallelism and PlanOptions; without `data` every device that the others leave holds a replica."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Job without its graph, of JobOptions and of RegimeOptions; `stack` is a name."""
    configs: tuple[str | ConfigText, ...] = ()
    """Configurations of other projects, as files (FILE or format:FILE) or as texts; what the question says itself wins."""
    calibration: str | Calibration | None = None
    """What was learnt from measurements or runs: by its name, its file or itself."""
    said: tuple[str, ...] = ()
    """What reading the configurations gave to say: what was assumed, contradicted or not used."""


WORKLOAD_FIELDS = list_asked(WorkloadOptions, section="workload", panel="Model")
CLUSTER_FIELDS = list_asked(ClusterOptions, section="cluster", panel="Cluster")
PLAN_FIELDS = (
    *list_asked(Parallelism, section="parallelism", panel="Plan"),
    *list_asked(PlanOptions, section="parallelism", panel="Plan"),
)
JOB_FIELDS = (
    *list_asked(Job, section="job", panel="Job", without=("graph",)),
    *list_asked(JobOptions, section="job", panel="Job"),
    *list_asked(RegimeOptions, section="job", panel="Regime"),
)
LEARNED_FIELDS = list_asked(LearnedOptions, section="", panel="Learned")
QUESTION_FIELDS: tuple[Asked, ...] = (*WORKLOAD_FIELDS, *CLUSTER_FIELDS, *PLAN_FIELDS, *JOB_FIELDS, *LEARNED_FIELDS)
"""Everything that a question may say: options, bodies, job files, table columns and the planner's changes come from it."""
