"""What a practitioner would choose where a question leaves it open: number format, length of a sample, samples of a step."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traincast.catalog import Training, training_of, usual_length
from traincast.resolve._regimes import GENERATING
from traincast.spec import Device, Notes, Question, Stack, WorkloadOptions

MOST_SAMPLES_PER_PASS = 8192
FLOP_PER_PASS = 1e11
"""Samples that are small beside this, such as a recommender's, are taken by the thousand: a pass below it is launches alone."""
HALVES = ("bf16", "fp16")
"""Formats of mixed precision, the preferred one first."""
_TEXT = ("transformer-lm", "transformer-moe", "transformer-enc")


def with_defaults(question: Question, devices: Sequence[Device], stack: Stack) -> tuple[Question, Notes]:
    """The question with its number format, which all devices must have, and the length of its samples."""
    if is_saved(question):
        return question, ()
    options = question.workload
    filled: dict[str, Any] = {}
    notes: Notes = ()
    if options.precision is None:
        filled["precision"], why = _choose_precision(question, devices, stack)
        notes = (why,)
    # What is trained on is as long as what is generated, which the regime says.
    if options.seq is None and question.job.get("regime") not in GENERATING:
        training = find_training(question)
        length, why = _choose_length(question.source, options, training)
        if length is not None:
            filled["seq"] = length
            notes = (*notes, why)
    return dataclasses.replace(question, workload=dataclasses.replace(options, **filled)), notes


def is_saved(question: Question) -> bool:
    """Whether a source is a recorded step, or a program that says its own number formats; an upload has no name."""
    source = question.source
    if question.workload.has_shape:
        return False
    if not source:
        return True
    if not source.endswith((".json", ".json.gz")):
        if entry_of(source):
            return False
        from traincast.capture import is_program

        return is_program(source)
    if not Path(source).is_file():
        return False
    from traincast.files import load_saved

    return load_saved(source) is not None


def reads_text(source: str, options: WorkloadOptions) -> bool:
    """Whether a sample is a sequence of tokens, so that a step is counted in them."""
    if options.has_shape:
        return (options.arch or "") != "vit"
    entry = entry_of(source)
    return entry.get("family") in _TEXT if entry else options.seq is not None


@functools.cache
def entry_of(source: str) -> Mapping[str, Any]:
    from traincast.catalog import load_facts

    facts = load_facts("model")
    name = facts.get(source)
    return facts.entries[name] if name else {}


def _choose_precision(question: Question, devices: Sequence[Device], stack: Stack) -> tuple[str, str]:
    for dtype in HALVES:
        if all(dtype in device.matrix_flop_per_s for device in devices):
            break
    else:
        return "fp32", f"fp32 is assumed: {devices[0].name} has no matrix units for bf16 or fp16"
    is_recorded = not question.workload.has_shape and not entry_of(question.source)
    text = reads_text(question.source, question.workload) and not is_recorded
    word = stack.precision_of(dtype, transformer=text, sharded=False)
    # Autocast keeps fp32 weights and casts them; training of language models keeps half-precision weights beside fp32 masters.
    name = word if word != dtype else dtype if text and dtype == "bf16" else f"{dtype}-amp"
    whose = devices[0].name if len({device.name for device in devices}) == 1 else "every device"
    return name, f"{dtype} mixed precision is assumed ({name}); {whose} has matrix units for it"


def _choose_length(source: str, options: WorkloadOptions, training: Training) -> tuple[int | None, str]:
    """None: as the source has it."""
    entry = {} if options.arch is not None or options.params is not None else entry_of(source)
    if options.has_shape and not entry:
        from traincast.resolve._shape import usual_seq

        length = usual_seq(options)
        told = (
            f"samples of {length:,} tokens are assumed, as nothing says their length (--seq to change)"
            if length
            else ""
        )
        return length, told
    own = entry.get("context") or entry.get("shape", {}).get("seq")
    if not isinstance(own, int) or entry.get("family") not in _TEXT:
        return None, ""
    if training.seq is not None and training.seq < own:
        return training.seq, f"samples of {training.seq:,} tokens are assumed, as {training.title} is usually run"
    if "context" not in entry and own == 4096:
        return own, f"samples of {own:,} tokens are assumed, as the model is usually trained"
    return usual_length(own)


def find_training(question: Question) -> Training:
    """The kind of training that a question asks for: by its regime, its model's family and the length of its samples."""
    options, regime = question.workload, question.job.get("regime")
    family: str | None
    if options.adapter_rank and regime in (None, "finetuning"):
        regime = "lora" if options.frozen_dtype is None else "qlora"
    if options.has_shape and (options.arch is not None or options.params is not None or not entry_of(question.source)):
        family = "vision-transformer" if options.arch == "vit" else _TEXT[bool(options.experts)]
    else:
        family = entry_of(question.source).get("family")
    if family is None and reads_text(question.source, options):
        family = _TEXT[0]
    return training_of(family=family, regime=None if regime in (None, "pretraining") else str(regime), seq=options.seq)


def usual_global_batch(training: Training, *, num_devices: int, tokens: int) -> int | None:
    """Samples of a step, the same for every device where there are enough; None: as many as the devices hold."""
    if training.samples_per_step is not None:
        return _near(training.samples_per_step, num_devices)
    if training.accumulates:
        return (training.samples_per_device or 1) * num_devices
    if training.tokens_per_step is None:
        return None
    samples = _near(training.tokens_per_step / tokens, num_devices)
    # Beyond the cap, samples are split over devices instead of being more.
    while training.most_tokens_per_step and samples * tokens > training.most_tokens_per_step and samples % 2 == 0:
        samples //= 2
    return samples


def _near(samples: float, num_devices: int) -> int:
    """The same number for each device, by doubling."""
    return num_devices << max(0, round(math.log2(samples / num_devices)))


def most_samples(training: Training, *, tokens: int, flop: float) -> int:
    """Of one pass of one replica, for samples of so many tokens and operations."""
    least = training.samples_per_device
    if training.tokens_per_device is not None:
        return 1 << int(math.log2(training.tokens_per_device / tokens)) if tokens < training.tokens_per_device else 1
    if least is None or training.samples_per_step is not None or training.accumulates:
        return least or 1
    enough = 1 << int(math.log2(max(FLOP_PER_PASS / flop, 1.0))) if flop else least
    return min(max(enough, least), MOST_SAMPLES_PER_PASS)
