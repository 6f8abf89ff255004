"""A regime: what happens in a step of training beside the passes through the model that is trained."""

import math

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec._asked import asked
from traincast.spec._graph import Graph

REGIMES = (
    "pretraining", "finetuning", "lora", "qlora", "dora", "reward", "dpo", "ipo", "orpo", "simpo", "cpo", "kto", "distillation",
    "ppo", "grpo", "rloo", "gan",
)  # fmt: skip
"""Every way of training that a question may name."""
REFERENCES = ("frozen", "precomputed", "none")
"""Where log-probabilities of a reference come from: a frozen copy of the model in every step, a file, or nowhere."""


ROLLOUT_ENGINES = ("serving", "plain")


@noun
class RegimeOptions:
    """What a question may say of a regime. None: as the regime usually has it, which the answer says."""

    regime: str | None = asked(
        None, "How the model is trained; default: on every sample by itself.", words=REGIMES, panel="Regime"
    )
    reference: str | None = asked(
        None, "Reference of dpo, kto, ppo or grpo: frozen (a second model), precomputed or none.", panel="Regime"
    )
    teacher: str | None = asked(None, "Model that distillation learns from.", panel="Regime")
    discriminator: str | None = asked(None, "A gan's other network; the workload is its generator.", panel="Regime")
    frozen_models: str | None = asked(
        None,
        "Frozen models that run forward on every sample first, such as text encoders: names with commas.",
        panel="Regime",
    )
    reward_model: str | None = asked(
        None, "Model that scores responses (ppo, grpo); default: rules that cost no device time.", panel="Regime"
    )
    critic: str | None = asked(
        None, "Model that values responses (ppo); default: as large as the policy.", panel="Regime"
    )
    prompts: int | None = asked(
        None, "Prompts of one step of ppo or grpo; default: as many as one optimizer step takes.", unit="count",
        panel="Regime",
    )  # fmt: skip
    group_size: int | None = asked(None, "Responses to each prompt; default: 8, with ppo 1.", panel="Regime")
    rollout_epochs: int | None = asked(
        None, "How often training goes over one step's responses; default: 1.", panel="Regime"
    )
    prompt_tokens: int | None = asked(None, "Mean length of a prompt in tokens.", unit="length", panel="Regime")
    response_tokens: int | None = asked(None, "Mean length of a response in tokens.", unit="length", panel="Regime")
    response_p95: int | None = asked(
        None, "Length that one response in twenty exceeds; default: twice the mean.", unit="length", panel="Regime"
    )
    response_max: int | None = asked(None, "Length at which responses are cut off.", unit="length", panel="Regime")
    rollout_gpus: int | None = asked(
        None, "Devices that only generate, beside those of the cluster; default: none, the same devices take turns.",
        panel="Regime",
    )  # fmt: skip
    rollout_tp: int | None = asked(None, "Devices that hold one copy of the generator.", panel="Regime")
    rollout_precision: str | None = asked(None, "Of the generator's matmuls: bf16 (default), fp8 ...", panel="Regime")
    kv_dtype: str | None = asked(None, "What keys and values are cached in: bf16 (default) or fp8.", panel="Regime")
    rollout_batch: int | None = asked(
        None,
        "Responses that a generator works on at once, at most; default: 256. With a plain engine: of each of its devices; "
        "default: --batch.",
        unit="count",
        panel="Regime",
    )
    rollout_engine: str | None = asked(
        None, "What generates: serving (paged cache, continuous batching, replayed kernels; default) or plain (the trainer's own "
        "loop: fixed batches of --rollout-batch, each until its longest response ends).", panel="Regime",
    )  # fmt: skip
    rollout_memory: float | None = asked(
        None, "Share of a device that a generator may take; default: 0.9, or what training leaves.", panel="Regime"
    )
    rollout_offload: bool | None = asked(
        None, "Training state lies in host memory while the same devices generate.", panel="Regime"
    )
    rollout_lag: int | None = asked(
        None,
        "Steps by which generation is ahead of training: 0 (synchronous) or 1; needs --rollout-gpus.",
        panel="Regime",
    )

    def __post_init__(self) -> None:
        if self.regime is not None and self.regime not in REGIMES:
            raise InvalidInput(f"regime = {self.regime!r}; allowed: {', '.join(REGIMES)}")
        if self.reference is not None and self.reference not in REFERENCES:
            raise InvalidInput(f"reference = {self.reference!r}; allowed: {', '.join(REFERENCES)}")
        for name in ("prompts", "group_size", "rollout_epochs", "prompt_tokens", "response_tokens", "response_p95",
                     "response_max", "rollout_tp", "rollout_batch"):  # fmt: skip
            amount = getattr(self, name)
            if amount is not None and (isinstance(amount, bool) or not isinstance(amount, int) or amount < 1):
                raise InvalidInput(f"{name} = {amount!r}; it must be a whole number of at least 1")
        if self.rollout_engine not in (None, *ROLLOUT_ENGINES):
            raise InvalidInput(f"rollout_engine = {self.rollout_engine!r}; allowed: {', '.join(ROLLOUT_ENGINES)}")
        if self.rollout_lag not in (None, 0, 1):
            raise InvalidInput(f"rollout_lag = {self.rollout_lag!r}; allowed: 0 (synchronous) or 1 (one step off)")
        if self.rollout_gpus is not None and (not isinstance(self.rollout_gpus, int) or self.rollout_gpus < 0):
            raise InvalidInput(f"rollout_gpus = {self.rollout_gpus!r}; it must be a whole number of at least 0")
        if self.rollout_memory is not None and not 0 < self.rollout_memory <= 1:
            raise InvalidInput(f"rollout_memory = {self.rollout_memory}; it must be above 0 and at most 1")


@noun
class Pass:
    """A model that runs in a step beside the one that is trained."""

    name: str
    graph: Graph
    """Of one micro-batch: forward only where it is frozen, a whole training step where it has an optimizer of its own."""
    times: float = 1.0
    """How often it goes over the samples of one optimizer step, in one step of the regime."""
    is_shared: bool = False
    """Its weights are those of the trained model, so it takes no memory of its own."""
    kept_bytes: float = 0.0
    """Of its outputs that one replica keeps until its micro-batch is trained on."""

    @property
    def is_trained(self) -> bool:
        return self.graph.mode != "inference"


@noun
class Lengths:
    """How long responses are: a log-normal distribution, cut off."""

    mean: float
    p95: float
    longest: float

    def __post_init__(self) -> None:
        if not 0 < self.mean <= self.p95:
            raise InvalidInput(f"response_p95 = {self.p95:g} is below the mean of {self.mean:g}")
        if self.longest < self.mean:
            raise InvalidInput(f"response_max = {self.longest:g} is below the mean of {self.mean:g}")

    @property
    def log_sigma(self) -> float:
        """Of the log length: p95 / mean = exp(z s - s^2 / 2), whose left side reaches at most exp(z^2 / 2)."""
        return _NORMAL_95 - math.sqrt(max(_NORMAL_95**2 - 2 * math.log(self.p95 / self.mean), 0.0))


_NORMAL_95 = 1.6449
"""Standard deviations below which 95% of a normal distribution lie."""


@noun
class Rollout:
    """Responses that a model generates before it is trained on them."""

    prefill: Graph
    """A batch of prompts through the generator."""
    decodes: tuple[Graph, ...]
    """One new token of each of several batches of sequences, without what attention reads of earlier tokens."""
    cache_bytes_per_token: float
    """Of keys and values of one token in all layers, before any device shares them."""
    cache_ways: int
    """Among how many devices keys and values can be split at most."""
    weight_bytes: float
    synced_bytes: float
    """Of the weights that change and must reach the generator."""
    num_prompts: int
    group_size: int
    prompt_tokens: float
    lengths: Lengths
    num_devices: int = 0
    """That only generate; 0: those that train take turns."""
    tensor: int = 1
    most_sequences: int = 256
    memory_share: float | None = None
    offloads: bool = False
    lag: int = 0
    is_plain: bool = False
    """Generated by the trainer's own loop: kernels are launched one by one, a batch waits for its longest response, and the
    cache has room for the longest from the start."""

    @property
    def num_responses(self) -> int:
        return self.num_prompts * self.group_size


@noun
class SampleSize:
    """The step on samples of another size than the usual one."""

    label: str
    """How a person says it: 512 pixels, 4,096 tokens."""
    graph: Graph
    share: float
    """Of all passes that have this size; 0: so rare that only its memory counts."""


@noun
class Regime:
    """What a step has beside one optimizer step of the trained model."""

    name: str
    passes: tuple[Pass, ...] = ()
    rollout: Rollout | None = None
    num_updates: int = 1
    """Optimizer steps of one step."""
    seq: int | None = None
    """Tokens of a sequence, where the regime says it."""
    sizes: tuple[SampleSize, ...] = ()
    """Of samples, where they differ; the job's graph is that of a usual one. Shares add up to 1."""
    is_grouped: bool = False
    """All replicas have samples of one size at a time, so that none waits for another."""
