"""What a question says of its regime to the graph that is trained and the models beside it."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import (
    Graph,
    Job,
    Notes,
    Op,
    Parallelism,
    Pass,
    Question,
    Regime,
    RegimeOptions,
    SampleSize,
    WorkloadOptions,
)

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
REGIME_FIELDS = tuple(item.name for item in dataclasses.fields(RegimeOptions))


class Load(Protocol):
    """Loads the graph of a workload, or of another source under the same options."""

    def __call__(self, options: WorkloadOptions, source: str | None = None, /) -> Graph: ...


@noun
class Posed:
    """The step that is trained, and what runs beside it."""

    graph: Graph
    regime: Regime | None
    options: WorkloadOptions
    """With what the regime says of the model."""
    assumptions: Notes = ()


def pose_regime(
    values: Mapping[str, Any], options: WorkloadOptions, load: Load, *, plan: Parallelism, usual_seq: int | None = None
) -> Posed:
    """`values`: the job's part of a question. `usual_seq`: the length that the model was published with."""
    asked = read_regime(values)
    sizes = None
    if any(value is not None for value in (options.image_sizes, options.sample_tokens, options.size_batching)):
        from traincast.resolve._sizes import list_sizes

        sizes = list_sizes(options, usual_seq=usual_seq)
    if sizes is None:
        return _pose_models(asked, options, load, plan=plan)
    if asked.regime in GENERATING:
        raise InvalidInput(f"{asked.regime} trains on what it generates; say its lengths with --response-tokens")
    posed = _pose_models(asked, sizes.usual, load, plan=plan)
    others = [(each, _pose_models(asked, each.options, load, plan=plan)) for each in sizes.others]
    regime = posed.regime or Regime(name=asked.regime or "training")
    passes = tuple(
        replace(run, times=run.times * _mean_work(run.graph, [(each.share, _passes(own)[at]) for each, own in others]))
        for at, run in enumerate(regime.passes)
    )
    listed = tuple(SampleSize(label=each.label, graph=own.graph, share=each.share) for each, own in others)
    regime = replace(regime, passes=passes, sizes=listed, is_grouped=sizes.is_grouped, seq=sizes.tokens)
    return replace(posed, regime=regime, assumptions=(*sizes.assumptions, *posed.assumptions))


def _passes(posed: Posed) -> tuple[Pass, ...]:
    return posed.regime.passes if posed.regime is not None else ()


def _mean_work(usual: Graph, others: Sequence[tuple[float, Pass]]) -> float:
    """Of a pass on samples of all sizes, in passes on those of the usual one."""
    return sum(share * run.graph.flop for share, run in others) / usual.flop if usual.flop else 1.0


def _pose_models(asked: RegimeOptions, options: WorkloadOptions, load: Load, *, plan: Parallelism) -> Posed:
    """The trained model and those beside it, on samples of one size."""
    posed = _pose(replace(asked, frozen_models=None), options, load, plan=plan)
    if asked.frozen_models is None:
        return posed
    encoded = [_encode(name.strip(), posed.graph, options, load) for name in asked.frozen_models.split(",")]
    first, told = [run for run, _ in encoded], [note for _, note in encoded]
    regime = posed.regime or Regime(name=asked.regime or "training")
    known = tuple(text for text in posed.graph.assumptions if "computed beforehand" not in text)
    return replace(
        posed, graph=replace(posed.graph, assumptions=known), regime=replace(regime, passes=(*first, *regime.passes)),
        assumptions=(*posed.assumptions, *told),
    )  # fmt: skip


def _encode(name: str, graph: Graph, options: WorkloadOptions, load: Load) -> tuple[Pass, str]:
    """A frozen model at its own sizes; what it makes of a sample is an input of the trained one."""
    own = WorkloadOptions(batch=graph.batch_size, precision=options.precision, mode="inference")
    encoder = load(own, name)
    size = _image_size(graph)
    if size is not None and any(tensor.name == "images" for tensor in encoder.tensors):
        # Images become the latents that the model is trained on.
        with contextlib.suppress(InvalidInput):
            encoder = load(replace(own, input_size=size), name)
        told = f"{name} runs forward on every image of {size} before the model, frozen"
    else:
        told = f"{name} runs forward on every sample before the model, frozen and at its usual sizes"
    return Pass(name=name, graph=encoder), told


LATENT_STRIDE = 8
"""Pixels of an image's side for one latent, in every encoder of latents."""


def _image_size(graph: Graph) -> str | None:
    """Of the images whose latents a model is trained on."""
    latents = next((tensor for tensor in graph.tensors if tensor.name == "latents"), None)
    return None if latents is None else "x".join(str(LATENT_STRIDE * side) for side in latents.shape[-2:])


def describe_images(graph: Graph) -> str | None:
    """Height and width of the images that a catalogued model is trained on, or whose latents; None of other samples."""
    images = next((tensor for tensor in graph.tensors if tensor.name == "images"), None)
    return _image_size(graph) if images is None else "x".join(str(side) for side in images.shape[-2:])


def _pose(asked: RegimeOptions, options: WorkloadOptions, load: Load, *, plan: Parallelism) -> Posed:
    if asked.regime in (None, "pretraining", "finetuning"):
        _refuse_unused(asked)
        return Posed(graph=load(options), regime=None, options=options)
    if options.mode not in (None, "training_step"):
        raise InvalidInput(f"regime = {asked.regime!r} trains; mode = {options.mode!r} does not go with it")
    if asked.regime in ADAPTERS:
        _refuse_unused(asked)
        adapted, told = _with_adapters(asked.regime, options)
        return Posed(graph=load(adapted), regime=None, options=adapted, assumptions=told)
    if asked.regime in GENERATING:
        from traincast.resolve._rollouts import pose_rollouts

        return pose_rollouts(asked, options, load, plan)
    if asked.regime in PAIRED:
        return _pose_pairs(asked, options, load)
    if asked.regime == "kto":
        return _pose_kto(asked, options, load)
    if asked.regime == "gan":
        return _pose_gan(asked, options, load)
    return _pose_distillation(asked, options, load)


def spell_out(question: Question, job: Job) -> Question:
    """The question with what its regime means, so that somebody who does not know our defaults asks the same."""
    regime, options, values = question.job.get("regime"), question.workload, dict(question.job)
    if regime in ADAPTERS:
        options, _ = _with_adapters(regime, options)
    if options.adapter_rank and options.adapter_targets is None:
        options = replace(options, adapter_targets=str(job.stack.recipe.option("adapter_targets") or "all"))
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


def _with_adapters(regime: str, options: WorkloadOptions) -> tuple[WorkloadOptions, Notes]:
    values = {name: value for name, value in ADAPTERS[regime].items() if getattr(options, name) is None}
    told = f"{regime}: adapters of rank {values.get('adapter_rank')} are assumed (--lora-rank to change)"
    return replace(options, **values), (told,) if "adapter_rank" in values else ()


def _pose_pairs(asked: RegimeOptions, options: WorkloadOptions, load: Load) -> Posed:
    """Chosen and rejected answers go through the model as one batch of twice the size (as TRL and most others do)."""
    notes: Notes = ()
    if asked.regime == "reward":
        options, notes = with_value_head(options, load)
    batch = options.batch if options.batch is not None else load(options).batch_size
    both = replace(options, batch=2 * batch)
    pair = f"a sample is a pair; the chosen and the rejected sequence run as one micro-batch of {2 * batch}"
    notes = (*notes, f"{asked.regime}: {pair}")
    passes: tuple[Pass, ...] = ()
    if asked.regime in REFERRED:
        passes, told = refer(asked, both, load, times=1.0, samples=batch)
        notes = (*notes, *told)
    elif asked.reference not in (None, "none"):
        raise InvalidInput(f"reference = {asked.reference!r}; {asked.regime} has none")
    regime = Regime(name=asked.regime or "", passes=passes)
    return Posed(graph=_in_pairs(load(both), batch), regime=regime, options=options, assumptions=notes)


def _in_pairs(graph: Graph, batch: int) -> Graph:
    return replace(graph, batch_size=batch, samples_unit="pairs", tokens_per_sample=2 * graph.tokens_per_sample)


def _pose_kto(asked: RegimeOptions, options: WorkloadOptions, load: Load) -> Posed:
    """Single answers; a mismatched answer to each prompt estimates the divergence (Ethayarajh et al. 2024)."""
    policy = Pass(name="policy on mismatched answers", graph=load(frozen(options, keep=True)), is_shared=True)
    reference, told = refer(asked, options, load, times=2.0)
    notes = ("kto: a mismatched answer to each prompt runs forward through policy and reference", *told)
    regime = Regime(name="kto", passes=(policy, *reference))
    return Posed(graph=load(options), regime=regime, options=options, assumptions=notes)


def _pose_distillation(asked: RegimeOptions, options: WorkloadOptions, load: Load) -> Posed:
    """The teacher's scores of every token are kept until the student's loss has read them (Hinton et al. 2015)."""
    if asked.teacher is None:
        raise InvalidInput("distillation needs a teacher; give --teacher NAME, for instance --teacher llama-3.1-70b")
    student = load(options)
    teacher = load(named(frozen(options)), asked.teacher)
    passes = [Pass(name="teacher", graph=teacher, kept_bytes=_output_bytes(teacher))]
    loss = compare_scores(student)
    if loss is not None:
        passes.append(Pass(name="divergence from the teacher", graph=loss, is_shared=True))
    told = f"distillation: {asked.teacher} runs forward on every micro-batch and its scores are kept for the loss"
    regime = Regime(name="distillation", passes=tuple(passes))
    return Posed(graph=student, regime=regime, options=options, assumptions=(told,))


def _pose_gan(asked: RegimeOptions, options: WorkloadOptions, load: Load) -> Posed:
    """A step updates the discriminator on real and generated samples, then the generator through the discriminator."""
    if asked.discriminator is None:
        raise InvalidInput("a gan needs its other network; give --discriminator NAME")
    generator = load(options)
    batch = generator.batch_size
    other = named(options)
    update = load(replace(other, batch=2 * batch), asked.discriminator)
    through = load(replace(other, batch=batch, mode="forward_backward"), asked.discriminator)
    passes = (
        Pass(name="generated samples", graph=load(frozen(options, keep=True)), is_shared=True),
        Pass(name="discriminator update", graph=replace(update, batch_size=batch)),
        Pass(name="discriminator in the generator's loss", graph=through, is_shared=True),
    )
    told = "gan: one update of the discriminator on real and generated samples for each of the generator"
    return Posed(graph=generator, regime=Regime(name="gan", passes=passes), options=options, assumptions=(told,))


def refer(
    asked: RegimeOptions, options: WorkloadOptions, load: Load, *, times: float, samples: int | None = None
) -> tuple[tuple[Pass, ...], Notes]:
    """The reference's pass over what is trained on. With adapters it is the model without them, which is there already."""
    if asked.reference == "none":
        return (), ()
    if asked.reference == "precomputed":
        return (), ("log-probabilities of the reference are read from a file",)
    is_shared = bool(options.adapter_rank)
    told = (
        "the reference is the model without its adapters and takes no memory of its own"
        if is_shared
        else "the reference is a frozen copy of the model, sharded as the model is (--reference precomputed to change)"
    )
    graph = load(frozen(options))
    if samples is not None:
        graph = _in_pairs(graph, samples)
    return (Pass(name="reference", graph=graph, times=times, is_shared=is_shared),), (told,)


def frozen(options: WorkloadOptions, *, keep: bool = False) -> WorkloadOptions:
    """The same model forward only; without its adapters unless they are kept."""
    bare = replace(options, mode="inference")
    if keep or not options.adapter_rank:
        return bare
    return replace(bare, adapter_rank=None, adapter_targets=None, frozen_dtype=None, adapter_norm=None)


def named(options: WorkloadOptions) -> WorkloadOptions:
    """For another model: without sizes and adapters of the first."""
    kept = ("batch", "seq", "precision", "mode", "optimizer", "attention", "input_size")
    return WorkloadOptions(**{name: getattr(options, name) for name in kept})


def with_value_head(options: WorkloadOptions, load: Load) -> tuple[WorkloadOptions, Notes]:
    """One number instead of a score for every word, where the model is one of the catalogue."""
    valued = replace(options, head="value")
    try:
        load(replace(valued, mode="inference"))
    except InvalidInput:
        return options, ("the model is taken as it was recorded; build the head of one number into it",)
    return valued, ("the model ends in one number instead of a score for every word of the vocabulary",)


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
