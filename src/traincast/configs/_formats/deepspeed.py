"""DeepSpeed's json: ZeRO, batches, precision, offload and pipeline, as https://www.deepspeed.ai/docs/config-json documents it."""

from traincast.configs._documents import make_format
from traincast.configs._nouns import LOOSE, Draft, Sheet
from traincast.errors import IllegalPlan


def _read(draft: Draft) -> None:
    keys = draft.keys
    for word in ("bf16", "fp16"):
        if keys.flag(f"{word}.enabled"):
            draft.put("workload.precision", word, f"{word}.enabled")
    _read_offload(draft)
    # Its buckets count elements, which are as wide as what is reduced.
    elements = keys.number("zero_optimization.reduce_bucket_size")
    if elements:
        width = 4 if draft.get("workload.precision") == "fp32" else 2
        draft.put("parallelism.bucket_bytes", elements * width, "zero_optimization.reduce_bucket_size")
    size = keys.whole("zero_optimization.zero_hpz_partition_size")
    if size is not None and size > 1:
        draft.put("parallelism.regather", size, "zero_optimization.zero_hpz_partition_size")
    shard = keys.whole("zero_optimization.mics_shard_size")
    if shard is not None and shard > 0:
        draft.put("parallelism.shard", shard, "zero_optimization.mics_shard_size")
    if (draft.take("parallelism.context", "sequence_parallel_size", least=1) or 1) > 1:
        draft.put("parallelism.context_method", "ulysses", "sequence_parallel_size")
    if any(keys.under("activation_checkpointing")):
        draft.put("parallelism.recompute", "full", "activation_checkpointing", strength=LOOSE)
        draft.notes.append("activation_checkpointing is set, so the model is taken to run its layers again")


def _read_offload(draft: Draft) -> None:
    for part, name in (("offload_optimizer", "offload_optimizer"), ("offload_param", "offload_weights")):
        key = f"zero_optimization.{part}.device"
        word = str(draft.keys.take(key) or "none").lower()
        if word == "cpu":
            draft.put(f"parallelism.{name}", True, key)
        elif word == "nvme":
            draft.put(f"parallelism.{name}", True, key)
            draft.put("parallelism.offload_to", "nvme", key)
        for other in ("pin_memory", "buffer_count", "buffer_size", "fast_init", "max_in_cpu"):
            draft.keys.take(f"zero_optimization.{part}.{other}")


def _write(sheet: Sheet) -> None:
    sheet.copy("job.global_batch", "train_batch_size")
    sheet.copy("workload.batch", "train_micro_batch_size_per_gpu")
    sheet.copy("parallelism.micro_batches", "gradient_accumulation_steps")
    zero = sheet.get("parallelism.zero", 0)
    sheet.put("zero_optimization.stage", zero)
    sheet.put("gradient_clipping", 1.0)
    precision = str(sheet.get("workload.precision", ""))[:4]
    if sheet.get("parallelism.regather"):
        sheet.copy("parallelism.regather", "zero_optimization.zero_hpz_partition_size")
    if zero:
        sheet.copy("parallelism.overlap", "zero_optimization.overlap_comm")
        sheet.put("zero_optimization.contiguous_gradients", True)
        bucket = sheet.get("parallelism.bucket_bytes")
        if bucket:
            sheet.put("zero_optimization.reduce_bucket_size", int(bucket) // (4 if precision == "fp32" else 2))
    where = "nvme" if sheet.get("parallelism.offload_to") == "nvme" else "cpu"
    if sheet.get("parallelism.offload_optimizer"):
        sheet.put("zero_optimization.offload_optimizer", {"device": where})
    if sheet.get("parallelism.offload_weights"):
        sheet.put("zero_optimization.offload_param", {"device": where})
    sheet.copy("parallelism.shard", "zero_optimization.mics_shard_size")
    if precision in ("bf16", "fp16"):
        sheet.put(precision, {"enabled": True})
    if sheet.get("parallelism.tensor", 1) > 1:
        sheet.put("tensor_parallel", {"autotp_size": sheet.get("parallelism.tensor")})
    if sheet.get("parallelism.pipeline", 1) > 1:
        if zero > 1:
            raise IllegalPlan(
                f"DeepSpeed's pipeline goes with ZeRO 0 and 1, not {zero}; plan with --zero 0,1 or --pp 1"
            )
        sheet.put("pipeline", {"stages": sheet.get("parallelism.pipeline")})
    sheet.copy("parallelism.reduce_dtype", "communication_data_type")
    if sheet.fields.get("workload.optimizer") in _OPTIMIZERS:
        sheet.put("optimizer", {"type": _OPTIMIZERS[sheet.get("workload.optimizer")]})
    if sheet.fields.get("parallelism.recompute") == "full":
        sheet.put("activation_checkpointing", {"partition_activations": sheet.get("parallelism.tensor", 1) > 1})
        sheet.told.add("parallelism.recompute")


_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "lamb": "Lamb", "lion": "Lion"}

DEEPSPEED = make_format("deepspeed", _read, _write)
