"""Lightning CLI's yaml: the trainer, its strategy and precision, and the batch of its data module."""

from traincast.configs._documents import make_format
from traincast.configs._nouns import Draft
from traincast.configs._trainer import read_fsdp_table, read_model

_PRECISIONS = {
    "bf16-mixed": "bf16-amp", "16-mixed": "fp16-amp", "bf16-true": "bf16-pure", "32-true": "fp32", "32": "fp32",
    "bf16": "bf16-amp",
    "16": "fp16-amp", "64-true": "fp32", "16-true": "fp16", "transformer-engine": "fp8",
}  # fmt: skip


def _read(draft: Draft) -> None:
    keys = draft.keys
    _read_work(draft)
    devices = keys.take("trainer.devices")
    # Lightning itself writes the number as a text.
    count = len(devices) if isinstance(devices, list) else int(devices) if str(devices).isdecimal() else devices
    if isinstance(count, int) and count > 0:
        draft.put("cluster.devices_per_node", count, "trainer.devices")
    every = keys.take("trainer.val_check_interval")
    if isinstance(every, int) and not isinstance(every, bool) and every > 1:
        draft.put("job.evaluation_every_steps", every, "trainer.val_check_interval")
    _read_strategy(draft)
    word = (keys.word("trainer.precision") or "").lower()
    if word in _PRECISIONS:
        sharded = draft.get("parallelism.zero", 0) > 0 and word in ("bf16-mixed", "16-mixed", "bf16", "16")
        ours = _PRECISIONS[word]
        draft.put("workload.precision", ours.removesuffix("-amp") if sharded else ours, "trainer.precision")
    elif word:
        draft.unmapped["trainer.precision"] = f"{word!r} is not known"


def _read_work(draft: Draft) -> None:
    """The model, the batch and the length, wherever a module of the user's takes them."""
    keys = draft.keys
    names = [key for word in ("model_name_or_path", "model_name", "pretrained_model_name_or_path") for key in keys.ending(word)
             if key.startswith("model")]  # fmt: skip
    if names:
        read_model(draft, *names)
    elif "model.class_path" in keys:
        draft.unmapped["model.class_path"] = "a class of yours; name the model as the source"
    sizes = [
        key
        for word in ("batch_size", "train_batch_size", "micro_batch_size")
        for key in keys.ending(word)
        if key.startswith("data")
    ]
    if sizes:
        draft.take("workload.batch", sizes[0], least=1)
    lengths = [
        key for word in ("max_length", "max_seq_length", "seq_length", "block_size") for key in keys.ending(word)
    ]
    if lengths:
        draft.take("workload.seq", lengths[0], least=1)


def _read_strategy(draft: Draft) -> None:
    keys = draft.keys
    name = keys.word("trainer.strategy", "trainer.strategy.class_path")
    if name is None or name.lower() in ("ddp", "single_device", "ddp_find_unused_parameters_true"):
        draft.assume("parallelism.zero", 0, "replicas hold everything")
        return
    table = "trainer.strategy.init_args"
    plain = name.rpartition(".")[2].lower()
    if plain.startswith("deepspeed"):
        stage = keys.whole(f"{table}.stage") if f"{table}.stage" in keys else None
        digits = [letter for letter in plain if letter.isdigit()]
        draft.put(
            "parallelism.zero", stage if stage is not None else int(digits[0]) if digits else 2, "trainer.strategy"
        )
        draft.put("job.stack", "deepspeed", "trainer.strategy")
        if plain.endswith("offload") or keys.flag(f"{table}.offload_optimizer"):
            draft.put("parallelism.offload_optimizer", True, "trainer.strategy")
    elif plain.startswith("fsdp"):
        read_fsdp_table(
            draft, {key.rpartition(".")[2].replace("cpu_offload", "offload_params"): key for key in keys.under(table)}
        )
    elif plain.startswith("modelparallel"):
        draft.take("parallelism.tensor", f"{table}.tensor_parallel_size", least=1)
        alone = draft.keys.whole(f"{table}.data_parallel_size") == 1
        draft.put("parallelism.zero", 0 if alone else 3, "trainer.strategy")
    elif plain.startswith("ddp"):
        draft.assume("parallelism.zero", 0, "replicas hold everything")
    else:
        draft.unmapped["trainer.strategy"] = f"{name!r} is not known"


LIGHTNING = make_format("lightning", _read)
