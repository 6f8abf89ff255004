"""What a question says of its regime to the graph that is trained, the models beside it and the responses generated for it."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from traincast.catalog import precision_name
from traincast.errors import InvalidInput
from traincast.forecast._sizes import list_sizes
from traincast.spec import (
    Graph,
    Job,
    Lengths,
    Op,
    Parallelism,
    Pass,
    Question,
    Regime,
    RegimeOptions,
    Rollout,
    SampleSize,
    WorkloadOptions,
)
from traincast.units import DTYPE_BYTES

PAIRED = ("dpo", "ipo", "orpo", "simpo", "cpo", "reward")
"""A sample is a chosen and a rejected answer."""
REFERRED = ("dpo", "ipo", "kto", "ppo", "grpo", "rloo")
"""Regimes whose loss names a reference."""
GENERATING = ("ppo", "grpo", "rloo")
ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {"adapter_rank": 16},
    "qlora": {"adapter_rank": 16, "frozen_dtype": "fp4"},
    "dora": {"adapter_rank": 16, "adapter_norm": True},
}
"""What the names of adapters mean where nothing else is said."""
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
REGIME_FIELDS = tuple(item.name for item in dataclasses.fields(RegimeOptions))


class Load(Protocol):
    """Loads the graph of a workload, or of another source under the same options."""

    def __call__(self, options: WorkloadOptions, source: str | None = None, /) -> Graph: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """The step that is trained, and what runs beside it."""

    graph: Graph
    regime: Regime | None
    options: WorkloadOptions
    """With what the regime says of the model."""


def pose_regime(
    values: Mapping[str, Any], options: WorkloadOptions, load: Load, *, plan: Parallelism, said: list[str],
    usual_seq: int | None = None,
) -> Posed:  # fmt: skip
    """`values`: the job's part of a question. `usual_seq`: the length that the model was published with."""
    asked = read_regime(values)
    sizes = list_sizes(options, said, usual_seq=usual_seq)
    if sizes is None:
        return _pose_models(asked, options, load, plan=plan, said=said)
    if asked.regime in GENERATING:
        raise InvalidInput(f"{asked.regime} trains on what it generates; say its lengths with --response-tokens")
    posed = _pose_models(asked, sizes.usual, load, plan=plan, said=said)
    others = [(each, _pose_models(asked, each.options, load, plan=plan, said=[])) for each in sizes.others]
    regime = posed.regime or Regime(name=asked.regime or "training")
    passes = tuple(
        replace(run, times=run.times * _mean_work(run.graph, [(each.share, _passes(own)[at]) for each, own in others]))
        for at, run in enumerate(regime.passes)
    )
    listed = tuple(SampleSize(label=each.label, graph=own.graph, share=each.share) for each, own in others)
    regime = replace(regime, passes=passes, sizes=listed, is_grouped=sizes.is_grouped, seq=sizes.tokens)
    return replace(posed, regime=regime)


def _passes(posed: Posed) -> tuple[Pass, ...]:
    return posed.regime.passes if posed.regime is not None else ()


def _mean_work(usual: Graph, others: Sequence[tuple[float, Pass]]) -> float:
    """Of a pass on samples of all sizes, in passes on those of the usual one."""
    return sum(share * run.graph.flop for share, run in others) / usual.flop if usual.flop else 1.0


def _pose_models(
    asked: RegimeOptions, options: WorkloadOptions, load: Load, *, plan: Parallelism, said: list[str]
) -> Posed:
    """The trained model and those beside it, on samples of one size."""
    posed = _pose(replace(asked, frozen_models=None), options, load, plan=plan, said=said)
    if asked.frozen_models is None:
        return posed
    first = tuple(_encode(name.strip(), posed.graph, options, load, said) for name in asked.frozen_models.split(","))
    regime = posed.regime or Regime(name=asked.regime or "training")
    known = tuple(text for text in posed.graph.assumptions if "computed beforehand" not in text)
    return replace(
        posed, graph=replace(posed.graph, assumptions=known), regime=replace(regime, passes=(*first, *regime.passes))
    )


def _encode(name: str, graph: Graph, options: WorkloadOptions, load: Load, said: list[str]) -> Pass:
    """A frozen model at its own sizes; what it makes of a sample is an input of the trained one."""
    own = WorkloadOptions(batch=graph.batch_size, precision=options.precision, mode="inference")
    encoder = load(own, name)
    side = _image_side(graph)
    if side is not None and any(tensor.name == "images" for tensor in encoder.tensors):
        # Images become the latents that the model is trained on.
        with contextlib.suppress(InvalidInput):
            encoder = load(replace(own, input_size=side), name)
        said.append(f"{name} runs forward on every image of {side} x {side} before the model, frozen")
    else:
        said.append(f"{name} runs forward on every sample before the model, frozen and at its usual sizes")
    return Pass(name=name, graph=encoder)


LATENT_STRIDE = 8
"""Pixels of an image's side for one latent, in every encoder of latents."""


def _image_side(graph: Graph) -> int | None:
    """Of the images whose latents a model is trained on."""
    latents = next((tensor for tensor in graph.tensors if tensor.name == "latents"), None)
    return None if latents is None else LATENT_STRIDE * int(latents.shape[-1])


def _pose(asked: RegimeOptions, options: WorkloadOptions, load: Load, *, plan: Parallelism, said: list[str]) -> Posed:
    if asked.regime in (None, "pretraining", "finetuning"):
        _refuse_unused(asked)
        return Posed(graph=load(options), regime=None, options=options)
    if options.mode not in (None, "training_step"):
        raise InvalidInput(f"regime = {asked.regime!r} trains; mode = {options.mode!r} does not go with it")
    if asked.regime in ADAPTERS:
        _refuse_unused(asked)
        adapted = _with_adapters(asked.regime, options, said)
        return Posed(graph=load(adapted), regime=None, options=adapted)
    if asked.regime in GENERATING:
        return _pose_rollouts(asked, options, load, plan, said)
    if asked.regime in PAIRED:
        return _pose_pairs(asked, options, load, said)
    if asked.regime == "kto":
        return _pose_kto(asked, options, load, said)
    if asked.regime == "gan":
        return _pose_gan(asked, options, load, said)
    return _pose_distillation(asked, options, load, said)


def spell_out(question: Question, job: Job) -> Question:
    """The question with what its regime means, so that somebody who does not know our defaults asks the same."""
    regime, options, values = question.job.get("regime"), question.workload, dict(question.job)
    if regime in ADAPTERS:
        options = _with_adapters(regime, options, [])
    if options.adapter_rank and options.adapter_targets is None:
        options = replace(options, adapter_targets=job.stack.recipe.adapter_targets or "all")
    rollout = job.regime.rollout if job.regime is not None else None
    if rollout is not None:
        lengths = rollout.lengths
        said = {
            "prompts": rollout.num_prompts, "group_size": rollout.group_size, "prompt_tokens": round(rollout.prompt_tokens),
            "response_tokens": round(lengths.mean), "response_max": round(lengths.longest),
        }  # fmt: skip
        values = {**said, **{name: value for name, value in values.items() if value is not None}}
    return replace(question, workload=options, job=values)


def read_regime(values: Mapping[str, Any]) -> RegimeOptions:
    return RegimeOptions(**{name: values[name] for name in REGIME_FIELDS if values.get(name) is not None})


def _refuse_unused(asked: RegimeOptions) -> None:
    given = [name for name in REGIME_FIELDS if name != "regime" and getattr(asked, name) is not None]
    if given:
        raise InvalidInput(
            f"{given[0]} = {getattr(asked, given[0])!r} goes with a regime that uses it, such as --regime grpo or dpo; regime "
            f"is {asked.regime or 'not given'}"
        )


def _with_adapters(regime: str, options: WorkloadOptions, said: list[str]) -> WorkloadOptions:
    values = {name: value for name, value in ADAPTERS[regime].items() if getattr(options, name) is None}
    if "adapter_rank" in values:
        said.append(f"{regime}: adapters of rank {values['adapter_rank']} are assumed (--lora-rank to change)")
    return replace(options, **values)


def _pose_pairs(asked: RegimeOptions, options: WorkloadOptions, load: Load, said: list[str]) -> Posed:
    """Chosen and rejected answers go through the model as one batch of twice the size (as TRL and most others do)."""
    if asked.regime == "reward":
        options = _with_value_head(options, load, said)
    batch = options.batch if options.batch is not None else load(options).batch_size
    both = replace(options, batch=2 * batch)
    said.append(
        f"{asked.regime}: a sample is a pair; the chosen and the rejected sequence run as one micro-batch of {2 * batch}"
    )
    passes: tuple[Pass, ...] = ()
    if asked.regime in REFERRED:
        passes = _refer(asked, both, load, said, times=1.0, samples=batch)
    elif asked.reference not in (None, "none"):
        raise InvalidInput(f"reference = {asked.reference!r}; {asked.regime} has none")
    regime = Regime(name=asked.regime or "", passes=passes)
    return Posed(graph=_in_pairs(load(both), batch), regime=regime, options=options)


def _in_pairs(graph: Graph, batch: int) -> Graph:
    return replace(graph, batch_size=batch, samples_unit="pairs", tokens_per_sample=2 * graph.tokens_per_sample)


def _pose_kto(asked: RegimeOptions, options: WorkloadOptions, load: Load, said: list[str]) -> Posed:
    """Single answers; a mismatched answer to each prompt estimates the divergence (Ethayarajh et al. 2024)."""
    policy = Pass(name="policy on mismatched answers", graph=load(_frozen(options, keep=True)), is_shared=True)
    said.append("kto: a mismatched answer to each prompt runs forward through policy and reference")
    passes = (policy, *_refer(asked, options, load, said, times=2.0))
    return Posed(graph=load(options), regime=Regime(name="kto", passes=passes), options=options)


def _pose_distillation(asked: RegimeOptions, options: WorkloadOptions, load: Load, said: list[str]) -> Posed:
    """The teacher's scores of every token are kept until the student's loss has read them (Hinton et al. 2015)."""
    if asked.teacher is None:
        raise InvalidInput("distillation needs a teacher; give --teacher NAME, for instance --teacher llama-3.1-70b")
    student = load(options)
    teacher = load(_named(_frozen(options)), asked.teacher)
    passes = [Pass(name="teacher", graph=teacher, kept_bytes=_output_bytes(teacher))]
    loss = compare_scores(student)
    if loss is not None:
        passes.append(Pass(name="divergence from the teacher", graph=loss, is_shared=True))
    said.append(f"distillation: {asked.teacher} runs forward on every micro-batch and its scores are kept for the loss")
    return Posed(graph=student, regime=Regime(name="distillation", passes=tuple(passes)), options=options)


def _pose_gan(asked: RegimeOptions, options: WorkloadOptions, load: Load, said: list[str]) -> Posed:
    """A step updates the discriminator on real and generated samples, then the generator through the discriminator."""
    if asked.discriminator is None:
        raise InvalidInput("a gan needs its other network; give --discriminator NAME")
    generator = load(options)
    batch = generator.batch_size
    named = _named(options)
    update = load(replace(named, batch=2 * batch), asked.discriminator)
    through = load(replace(named, batch=batch, mode="forward_backward"), asked.discriminator)
    passes = (
        Pass(name="generated samples", graph=load(_frozen(options, keep=True)), is_shared=True),
        Pass(name="discriminator update", graph=replace(update, batch_size=batch)),
        Pass(name="discriminator in the generator's loss", graph=through, is_shared=True),
    )
    said.append("gan: one update of the discriminator on real and generated samples for each of the generator")
    return Posed(graph=generator, regime=Regime(name="gan", passes=passes), options=options)


def _refer(
    asked: RegimeOptions,
    options: WorkloadOptions,
    load: Load,
    said: list[str],
    *,
    times: float,
    samples: int | None = None,
) -> tuple[Pass, ...]:
    """The reference's pass over what is trained on. With adapters it is the model without them, which is there already."""
    if asked.reference == "none":
        return ()
    if asked.reference == "precomputed":
        said.append("log-probabilities of the reference are read from a file")
        return ()
    is_shared = bool(options.adapter_rank)
    if is_shared:
        said.append("the reference is the model without its adapters and takes no memory of its own")
    else:
        said.append(
            "the reference is a frozen copy of the model, sharded as the model is (--reference precomputed to change)"
        )
    graph = load(_frozen(options))
    if samples is not None:
        graph = _in_pairs(graph, samples)
    return (Pass(name="reference", graph=graph, times=times, is_shared=is_shared),)


def _frozen(options: WorkloadOptions, *, keep: bool = False) -> WorkloadOptions:
    """The same model forward only; without its adapters unless they are kept."""
    bare = replace(options, mode="inference")
    if keep or not options.adapter_rank:
        return bare
    return replace(bare, adapter_rank=None, adapter_targets=None, frozen_dtype=None, adapter_norm=None)


def _named(options: WorkloadOptions) -> WorkloadOptions:
    """For another model: without sizes and adapters of the first."""
    kept = ("batch", "seq", "precision", "mode", "optimizer", "attention", "input_size")
    return WorkloadOptions(**{name: getattr(options, name) for name in kept})


def _with_value_head(options: WorkloadOptions, load: Load, said: list[str]) -> WorkloadOptions:
    """One number instead of a score for every word, where the model is one of the catalogue."""
    valued = replace(options, head="value")
    try:
        load(replace(valued, mode="inference"))
    except InvalidInput:
        said.append("the model is taken as it was recorded; build the head of one number into it")
        return options
    said.append("the model ends in one number instead of a score for every word of the vocabulary")
    return valued


def _output_bytes(graph: Graph) -> float:
    """What the last op of a forward pass writes."""
    return graph.ops[-1].bytes_written


def compare_scores(graph: Graph) -> Graph | None:
    """The divergence of two tables of scores, forward and backward: two softmaxes in fp32 and three passes over both. None where
    the model has no vocabulary."""
    head = next((op for op in reversed(graph.ops) if op.phase == "forward" and op.kind == "matmul"), None)
    if head is None:
        return None
    rows, cols = int(head.attrs["m"]), int(head.attrs["n"])
    numel = rows * cols
    ops = [
        Op(
            name="log_softmax", kind="softmax", flop=5.0 * numel, bytes_read=4.0 * numel, bytes_written=4.0 * numel,
            attrs={"rows": rows, "cols": cols}, layer="distillation",
        )
        for _ in range(2)
    ]  # fmt: skip
    ops += [
        Op(
            name=name, kind="elementwise", flop=2.0 * numel, bytes_read=8.0 * numel, bytes_written=4.0 * numel,
            attrs={"function": "mul", "numel": numel, "num_inputs": 2}, layer="distillation",
        )
        for name in ("divergence", "divergence_backward", "softmax_backward")
    ]  # fmt: skip
    return Graph(
        name=f"{graph.name} divergence", ops=tuple(ops), tensors=(), batch_size=graph.batch_size, mode="inference"
    )


def _pose_rollouts(
    asked: RegimeOptions, options: WorkloadOptions, load: Load, plan: Parallelism, said: list[str]
) -> Posed:
    options, prompt, lengths = _read_lengths(asked, options, said)
    graph = load(options)
    if not any(op.kind in ("attention", "softmax") for op in graph.ops) or any(op.kind == "rnn" for op in graph.ops):
        raise InvalidInput(_NO_CACHE.format(name=graph.name))
    updates, prompts, group = _count_updates(asked, graph, plan, said)
    epochs = asked.rollout_epochs or 1
    times = updates / epochs
    passes = [Pass(name="old log-probabilities", graph=load(_frozen(options, keep=True)), times=times, is_shared=True)]
    passes += _refer(asked, options, load, said, times=times)
    if asked.reward_model is not None:
        judge = _named(_frozen(options))
        passes.append(
            Pass(name="reward model", graph=load(replace(judge, head="value"), asked.reward_model), times=times)
        )
    else:
        said.append("responses are scored by rules that take no device time (--reward-model to change)")
    if asked.regime == "ppo":
        passes += _value(asked, options, load, said, times=times, updates=updates)
    elif asked.critic is not None:
        raise InvalidInput(f"critic = {asked.critic!r}; only ppo has one")
    rollout = _generate(asked, options, load, said, prompts=prompts, group=group, prompt=prompt, lengths=lengths)
    said.append(
        f"{asked.regime}: a step generates {prompts * group:,} responses ({prompts:,} prompts x {group}) and makes {updates} "
        f"optimizer step{'s' * (updates > 1)} on them"
    )
    regime = Regime(
        name=asked.regime or "", passes=tuple(passes), rollout=rollout, num_updates=updates, seq=options.seq
    )
    return Posed(graph=graph, regime=regime, options=options)


def _value(
    asked: RegimeOptions, options: WorkloadOptions, load: Load, said: list[str], *, times: float, updates: int
) -> list[Pass]:
    """A critic values responses and is trained on them, with an optimizer of its own (Schulman et al. 2017)."""
    if asked.critic is None:
        said.append("the critic is as large as the policy (--critic to change)")
        valued, source = _with_value_head(options, load, []), None
    else:
        valued, source = replace(_named(options), head="value"), asked.critic
    frozen = replace(valued, mode="inference")
    return [
        Pass(name="critic", graph=load(frozen, source), times=times, is_shared=True),
        Pass(name="critic update", graph=load(valued, source), times=float(updates)),
    ]


def _read_lengths(
    asked: RegimeOptions, options: WorkloadOptions, said: list[str]
) -> tuple[WorkloadOptions, float, Lengths]:
    """What is trained on is a prompt and its response; padding costs nothing where sequences are packed."""
    prompt, mean, whole = asked.prompt_tokens, asked.response_tokens, options.seq
    if prompt is None:
        prompt = USUAL_PROMPT if whole is None or whole > 2 * USUAL_PROMPT else max(1, whole // 4)
        said.append(f"prompts of {prompt} tokens are assumed (--prompt-tokens to change)")
    if mean is None:
        mean = whole - prompt if whole is not None and whole > prompt else USUAL_RESPONSE
        said.append(f"responses of {mean} tokens on average are assumed (--response-tokens to change)")
    if whole is None:
        whole = prompt + mean
        said.append(f"training sees sequences of {whole} tokens, packed without padding (--seq to change)")
    tail = asked.response_p95
    if tail is None:
        tail = max(mean, min(round(USUAL_TAIL * mean), asked.response_max or 2**62))
        said.append(f"one response in twenty is longer than {tail} tokens (--response-p95 to change)")
    longest = asked.response_max
    if longest is None:
        longest = mean if tail == mean else max(round(CUT * mean), tail)
        said.append(f"responses are cut off at {longest} tokens (--response-max to change)")
    return replace(options, seq=whole), float(prompt), Lengths(mean=mean, p95=tail, longest=longest)


def _count_updates(asked: RegimeOptions, graph: Graph, plan: Parallelism, said: list[str]) -> tuple[int, int, int]:
    """(optimizer steps, prompts, responses to each) of one step."""
    group = asked.group_size or (1 if asked.regime == "ppo" else USUAL_GROUP)
    if asked.group_size is None and group > 1:
        said.append(f"{group} responses to each prompt are assumed (--group-size to change)")
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
    asked: RegimeOptions, options: WorkloadOptions, load: Load, said: list[str], *, prompts: int, group: int, prompt: float,
    lengths: Lengths,
) -> Rollout:  # fmt: skip
    lag, devices = asked.rollout_lag or 0, asked.rollout_gpus or 0
    if lag and not devices:
        raise InvalidInput("rollout_lag = 1 needs devices that only generate; give --rollout-gpus")
    if devices and asked.rollout_offload:
        raise InvalidInput("rollout_offload goes with devices that take turns; rollout_gpus are others")
    plain = asked.rollout_engine == "plain"
    most = asked.rollout_batch or (options.batch or 1 if plain else 256)
    if asked.rollout_batch is None:
        who = "each device of a generator" if plain else "a generator"
        said.append(f"{who} works on at most {most} responses at once (--rollout-batch to change)")
    precision = asked.rollout_precision or "bf16"
    bare = replace(
        _frozen(options),
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
