"""Training on responses that the model generates: their lengths, the models that judge them, and how they are generated."""

import math
from dataclasses import replace

from traincast.catalog import precision_name
from traincast.errors import InvalidInput
from traincast.resolve._regimes import Load, Posed, frozen, named, refer, with_value_head
from traincast.spec import Graph, Lengths, Notes, Parallelism, Pass, Regime, RegimeOptions, Rollout, WorkloadOptions
from traincast.units import DTYPE_BYTES

USUAL_PROMPT, USUAL_RESPONSE = 512, 1024
USUAL_GROUP = 8
USUAL_TAIL = 2.0
"""Length that one response in twenty exceeds, in means."""
CUT = 4.0
"""Means at which responses are cut off where no limit is given."""
DECODE_BATCHES = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)
PREFILL_BATCH = 4
MOST_TENSOR = 8
"""Devices of one generator, each of which brings its own batch where the trainer generates."""


def pose_rollouts(asked: RegimeOptions, options: WorkloadOptions, load: Load, plan: Parallelism) -> Posed:
    options, prompt, lengths, notes = _read_lengths(asked, options)
    graph = load(options)
    if not any(op.kind in ("attention", "softmax") for op in graph.ops) or any(op.kind == "rnn" for op in graph.ops):
        raise InvalidInput(_NO_CACHE.format(name=graph.name))
    updates, prompts, group = _count_updates(asked, graph, plan)
    if asked.group_size is None and group > 1:
        notes = (*notes, f"{group} responses to each prompt are assumed (--group-size to change)")
    epochs = asked.rollout_epochs or 1
    times = updates / epochs
    passes = [Pass(name="old log-probabilities", graph=load(frozen(options, keep=True)), times=times, is_shared=True)]
    reference, told = refer(asked, options, load, times=times)
    passes, notes = [*passes, *reference], (*notes, *told)
    if asked.reward_model is not None:
        judge = named(frozen(options))
        passes.append(
            Pass(name="reward model", graph=load(replace(judge, head="value"), asked.reward_model), times=times)
        )
    else:
        notes = (*notes, "responses are scored by rules that take no device time (--reward-model to change)")
    if asked.regime == "ppo":
        passes += _value(asked, options, load, times=times, updates=updates)
        if asked.critic is None:
            notes = (*notes, "the critic is as large as the policy (--critic to change)")
    elif asked.critic is not None:
        raise InvalidInput(f"critic = {asked.critic!r}; only ppo has one")
    rollout = _generate(asked, options, load, prompts=prompts, group=group, prompt=prompt, lengths=lengths)
    if asked.rollout_batch is None:
        who = "each device of a generator" if rollout.is_plain else "a generator"
        most = f"at most {rollout.most_sequences} responses at once (--rollout-batch to change)"
        notes = (*notes, f"{who} works on {most}")
    steps = (
        f"{asked.regime}: a step generates {prompts * group:,} responses ({prompts:,} prompts x {group}) and makes {updates} "
        f"optimizer step{'s' * (updates > 1)} on them"
    )
    regime = Regime(
        name=asked.regime or "", passes=tuple(passes), rollout=rollout, num_updates=updates, seq=options.seq
    )
    return Posed(graph=graph, regime=regime, options=options, assumptions=(*notes, steps))


def _value(asked: RegimeOptions, options: WorkloadOptions, load: Load, *, times: float, updates: int) -> list[Pass]:
    """A critic values responses and is trained on them, with an optimizer of its own (Schulman et al. 2017)."""
    if asked.critic is None:
        valued, source = with_value_head(options, load)[0], None
    else:
        valued, source = replace(named(options), head="value"), asked.critic
    forward = replace(valued, mode="inference")
    return [
        Pass(name="critic", graph=load(forward, source), times=times, is_shared=True),
        Pass(name="critic update", graph=load(valued, source), times=float(updates)),
    ]


def _read_lengths(asked: RegimeOptions, options: WorkloadOptions) -> tuple[WorkloadOptions, float, Lengths, Notes]:
    """What is trained on is a prompt and its response; padding costs nothing where sequences are packed."""
    notes: list[str] = []
    prompt, mean, whole = asked.prompt_tokens, asked.response_tokens, options.seq
    if prompt is None:
        prompt = USUAL_PROMPT if whole is None or whole > 2 * USUAL_PROMPT else max(1, whole // 4)
        notes.append(f"prompts of {prompt} tokens are assumed (--prompt-tokens to change)")
    if mean is None:
        mean = whole - prompt if whole is not None and whole > prompt else USUAL_RESPONSE
        notes.append(f"responses of {mean} tokens on average are assumed (--response-tokens to change)")
    if whole is None:
        whole = prompt + mean
        notes.append(f"training sees sequences of {whole} tokens, packed without padding (--seq to change)")
    tail = asked.response_p95
    if tail is None:
        tail = max(mean, min(round(USUAL_TAIL * mean), asked.response_max or 2**62))
        notes.append(f"one response in twenty is longer than {tail} tokens (--response-p95 to change)")
    longest = asked.response_max
    if longest is None:
        longest = mean if tail == mean else max(round(CUT * mean), tail)
        notes.append(f"responses are cut off at {longest} tokens (--response-max to change)")
    lengths = Lengths(mean=mean, p95=tail, longest=longest)
    return replace(options, seq=whole), float(prompt), lengths, tuple(notes)


def _count_updates(asked: RegimeOptions, graph: Graph, plan: Parallelism) -> tuple[int, int, int]:
    """(optimizer steps, prompts, responses to each) of one step."""
    group = asked.group_size or (1 if asked.regime == "ppo" else USUAL_GROUP)
    batch = graph.batch_size * plan.micro_batches * plan.data
    epochs = asked.rollout_epochs or 1
    if asked.prompts is None:
        # As few prompts as fill whole optimizer steps with whole groups.
        responses = math.lcm(batch, group)
        return epochs * responses // batch, responses // group, group
    responses = asked.prompts * group
    if responses % batch:
        raise InvalidInput(
            f"prompts = {asked.prompts} x group_size = {group} = {responses} responses are no multiple of the {batch} that one "
            "optimizer step takes; give --global-batch"
        )
    return epochs * responses // batch, asked.prompts, group


def _generate(
    asked: RegimeOptions, options: WorkloadOptions, load: Load, *, prompts: int, group: int, prompt: float,
    lengths: Lengths,
) -> Rollout:  # fmt: skip
    lag, devices = asked.rollout_lag or 0, asked.rollout_gpus or 0
    if lag and not devices:
        raise InvalidInput("rollout_lag = 1 needs devices that only generate; give --rollout-gpus")
    if devices and asked.rollout_offload:
        raise InvalidInput("rollout_offload goes with devices that take turns; rollout_gpus are others")
    plain = asked.rollout_engine == "plain"
    most = asked.rollout_batch or (options.batch or 1 if plain else 256)
    precision = asked.rollout_precision or "bf16"
    bare = replace(
        frozen(options),
        precision=precision,
        attention="flash",
        optimizer=None,
        master_weights=None,
        gradient_dtype=None,
        # Serving engines store what they multiply in fp8 as fp8.
        weight_dtype="fp8" if precision_name(precision).startswith("fp8") else None,
    )
    batches = sorted({min(batch, most * (MOST_TENSOR if plain else 1)) for batch in DECODE_BATCHES})
    decodes = tuple(load(replace(bare, batch=batch, seq=1)) for batch in batches)
    prefill = load(replace(bare, batch=PREFILL_BATCH, seq=max(1, round(prompt))))
    cache_bytes, ways = measure_cache(prefill, asked.kv_dtype, mean_context=prompt + lengths.mean / 2)
    weights = decodes[0].role_bytes("parameter")
    trained = load(options) if options.adapter_rank else None
    synced = weights if trained is None else trained.role_bytes("gradient")
    return Rollout(
        prefill=prefill, decodes=decodes, cache_bytes_per_token=cache_bytes, cache_ways=ways, weight_bytes=weights,
        synced_bytes=synced, num_prompts=prompts, group_size=group, prompt_tokens=prompt, lengths=lengths,
        num_devices=devices, tensor=asked.rollout_tp or 0, most_sequences=most, memory_share=asked.rollout_memory,
        offloads=bool(asked.rollout_offload), lag=lag, is_plain=plain,
    )  # fmt: skip


_NO_CACHE = (
    "{name} has no attention whose keys and values could be cached; responses are generated by transformers of the catalogue, of "
    "a config.json or given by their sizes"
)


def measure_cache(graph: Graph, dtype: str | None, *, mean_context: float) -> tuple[float, int]:
    """(bytes of keys and values of one token in all layers, devices among which they can be split). Latent attention caches what
    its keys and values are made from (DeepSeek-AI 2024); a window forgets."""
    if dtype is not None and dtype not in DTYPE_BYTES:
        raise InvalidInput(f"kv_dtype = {dtype!r}; allowed: bf16, fp16, fp8, int8")
    total, ways = 0.0, 0
    latent = any(op.layer.endswith("kv_down") for op in graph.ops)
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        each = DTYPE_BYTES[dtype or op.dtype]
        if latent and op.kind == "matmul" and op.layer.endswith("kv_down"):
            total, ways = total + float(op.attrs["n"]) * each * count, 1
        elif not latent and op.kind == "attention":
            window = float(op.attrs.get("window", 0)) or mean_context
            kept = min(1.0, window / mean_context)
            total += 2.0 * float(op.attrs["kv_heads"]) * float(op.attrs["head_dim"]) * each * count * kept
            ways = max(ways, int(op.attrs["kv_heads"]))
    if not total:
        raise InvalidInput(_NO_CACHE.format(name=graph.name))
    return total, ways
