"""What a practitioner would choose where a question leaves it open: number format, length of a sample, samples of a step."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traincast.catalog import large_stack, plain_stack, usual_length
from traincast.forecast._pose import GENERATING
from traincast.spec import Device, Parallelism, Question, Stack, WorkloadOptions

TOKENS_PER_STEP = 2**19
"""Of a language model: half a million tokens, as GPT-2 and GPT-3's smaller models were trained with."""
TOKENS_PER_PASS = 2**15
"""Of one replica: more make no kernel faster."""
SAMPLES_PER_PASS = 128
"""Of one replica, of a model that does not read text."""
MOST_SAMPLES_PER_PASS = 8192
FLOP_PER_PASS = 1e11
"""Samples that are small beside this, such as a recommender's, are taken by the thousand: a pass below it is launches alone."""
HALVES = ("bf16", "fp16")
"""Formats of mixed precision, the preferred one first."""
MANY_DEVICES = 256
"""From so many on, language models are trained with frameworks made for it, whatever the plan; sharded data parallelism alone
is run with PyTorch's own modules at any size."""
CUT_AXES = ("tensor", "pipeline", "expert")
"""Plain PyTorch cuts no layer and no pipeline by itself."""
_TEXT = ("transformer-lm", "transformer-moe", "transformer-enc")


def with_defaults(question: Question, devices: Sequence[Device], stack: Stack, said: list[str]) -> Question:
    """The question with its number format, which all devices must have, and the length of its samples."""
    if is_saved(question):
        return question
    options = question.workload
    filled: dict[str, Any] = {}
    if options.precision is None:
        filled["precision"] = _choose_precision(question, devices, stack, said)
    # What is trained on is as long as what is generated, which the regime says.
    if options.seq is None and question.job.get("regime") not in GENERATING:
        length = _choose_length(question.source, options, said)
        if length is not None:
            filled["seq"] = length
    return dataclasses.replace(question, workload=dataclasses.replace(options, **filled)) if filled else question


def assume_stack(question: Question, *, plan: Parallelism | None = None, num_devices: int | None = None) -> Stack:
    """What a practitioner would run a question with that names no stack: a framework for large models where a language model
    is cut by layers, stages or experts or runs on hundreds of devices unsharded, else plain PyTorch. `plan`: instead of what
    the question names of one. `num_devices`: where neither says it."""
    options = question.workload
    is_built = options.has_shape or bool(_entry(question.source))
    if options.mode == "inference" or not is_built or not reads_text(question.source, options):
        return plain_stack()

    def degree(name: str) -> int:
        found = question.parallelism.get(name, 1) if plan is None else getattr(plan, name)
        return found if isinstance(found, int) else 1

    if any(degree(name) > 1 for name in CUT_AXES):
        return large_stack()
    many = (plan.num_devices if plan is not None else num_devices or degree("data")) >= MANY_DEVICES
    return large_stack() if many and degree("zero") < 2 else plain_stack()


def say_assumed(stack: Stack) -> str:
    if stack.is_plain:
        return "no stack is named; plain PyTorch is assumed"
    return (
        f"no stack is named; {stack.title[0].lower()}{stack.title[1:]} is assumed, with fused kernels and split sequences, "
        f"as such plans are usually run (--stack to change); {stack.provenance}"
    )


def is_saved(question: Question) -> bool:
    """Whether a source is a recorded step, or a program that says its own number formats; an upload has no name."""
    source = question.source
    if question.workload.has_shape:
        return False
    if not source:
        return True
    if not source.endswith((".json", ".json.gz")):
        from traincast.capture import is_program

        return is_program(source)
    if not Path(source).is_file():
        return False
    from traincast.files import GRAPH_FORMAT, read_json

    data = read_json(source)
    return isinstance(data, dict) and data.get("format") == GRAPH_FORMAT


def reads_text(source: str, options: WorkloadOptions) -> bool:
    """Whether a sample is a sequence of tokens, so that a step is counted in them."""
    if options.has_shape:
        return (options.arch or "") != "vit"
    entry = _entry(source)
    return entry.get("family") in _TEXT if entry else options.seq is not None


def _entry(source: str) -> Mapping[str, Any]:
    from traincast.catalog import load_facts

    facts = load_facts("model")
    name = facts.get(source)
    return facts.entries[name] if name else {}


def _choose_precision(question: Question, devices: Sequence[Device], stack: Stack, said: list[str]) -> str:
    for dtype in HALVES:
        if all(dtype in device.matrix_flop_per_s for device in devices):
            break
    else:
        said.append(f"fp32 is assumed: {devices[0].name} has no matrix units for bf16 or fp16")
        return "fp32"
    is_recorded = not question.workload.has_shape and not _entry(question.source)
    text = reads_text(question.source, question.workload) and not is_recorded
    word = stack.precision_of(dtype, transformer=text, sharded=False)
    # Autocast keeps fp32 weights and casts them; training of language models keeps half-precision weights beside fp32 masters.
    name = word if word != dtype else dtype if text and dtype == "bf16" else f"{dtype}-amp"
    whose = devices[0].name if len({device.name for device in devices}) == 1 else "every device"
    said.append(f"{dtype} mixed precision is assumed ({name}); {whose} has matrix units for it")
    return name


def _choose_length(source: str, options: WorkloadOptions, said: list[str]) -> int | None:
    """None: as the source has it."""
    entry = {} if options.arch is not None or options.params is not None else _entry(source)
    if options.has_shape and not entry:
        from traincast.forecast._shape import usual_seq

        length = usual_seq(options)
        if length is not None:
            said.append(f"samples of {length:,} tokens are assumed, as nothing says their length (--seq to change)")
        return length
    own = entry.get("context") or entry.get("shape", {}).get("seq")
    if not isinstance(own, int) or entry.get("family") not in _TEXT:
        return None
    if "context" not in entry and own == 4096:
        said.append(f"samples of {own:,} tokens are assumed, as the model is usually trained")
        return own
    length, words = usual_length(own)
    said.append(words)
    return length


def usual_global_batch(*, num_devices: int, tokens: int) -> int:
    """Samples of a step of a language model: near half a million tokens, and the same for every device."""
    doublings = max(0, round(math.log2(TOKENS_PER_STEP / tokens / num_devices)))
    return num_devices << doublings


def most_samples(*, tokens: int, text: bool, flop: float) -> int:
    """Of one pass of one replica, for samples of so many tokens and operations."""
    if not text:
        enough = 1 << int(math.log2(max(FLOP_PER_PASS / flop, 1.0))) if flop else SAMPLES_PER_PASS
        return min(max(enough, SAMPLES_PER_PASS), MOST_SAMPLES_PER_PASS)
    return 1 << int(math.log2(TOKENS_PER_PASS / tokens)) if tokens < TOKENS_PER_PASS else 1
