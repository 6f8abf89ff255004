"""DeepSpeed's json: ZeRO, batches, precision, offload and pipeline, as https://www.deepspeed.ai/docs/config-json documents it."""

from traincast.configs._nouns import LOOSE, ConfigFormat, Draft, Sheet
from traincast.configs._trainer import read_optimizer
from traincast.errors import IllegalPlan


def _read(draft: Draft) -> None:
    keys = draft.keys
    draft.put("job.stack", "deepspeed", "a DeepSpeed file")
    draft.take("workload.batch", "train_micro_batch_size_per_gpu", least=1)
    draft.take("parallelism.micro_batches", "gradient_accumulation_steps", least=1)
    draft.take("job.global_batch", "train_batch_size", least=1)
    for word in ("bf16", "fp16"):
        if keys.flag(f"{word}.enabled"):
            draft.put("workload.precision", word, f"{word}.enabled")
        for key in list(keys.under(word)):
            keys.take(key)
    stage = draft.take("parallelism.zero", "zero_optimization.stage")
    if stage is None:
        draft.assume("parallelism.zero", 0, "zero_optimization.stage is not said, so nothing is sharded")
    _read_offload(draft)
    draft.take("parallelism.overlap", "zero_optimization.overlap_comm")
    # Its buckets count elements, which are as wide as what is reduced.
    elements = keys.number("zero_optimization.reduce_bucket_size")
    if elements:
        width = 4 if draft.get("workload.precision") == "fp32" else 2
        draft.put("parallelism.bucket_bytes", elements * width, "zero_optimization.reduce_bucket_size")
    size = keys.whole("zero_optimization.zero_hpz_partition_size")
    if size is not None and size > 1:
        draft.put("parallelism.regather", size, "zero_optimization.zero_hpz_partition_size")
    if keys.flag("zero_optimization.zero_quantized_weights"):
        draft.put("parallelism.gather_dtype", "int8", "zero_optimization.zero_quantized_weights")
    if keys.flag("zero_optimization.zero_quantized_gradients"):
        # Four bits inside a node and eight between nodes (Wang et al. 2023); the wider is taken.
        draft.put("parallelism.reduce_dtype", "int8", "zero_optimization.zero_quantized_gradients")
    shard = keys.whole("zero_optimization.mics_shard_size")
    if shard is not None and shard > 0:
        draft.put("parallelism.shard", shard, "zero_optimization.mics_shard_size")
    draft.take("parallelism.tensor", "tensor_parallel.autotp_size", "tensor_parallel.tp_size", least=1)
    draft.take("parallelism.pipeline", "pipeline.stages", least=1)
    if (draft.take("parallelism.context", "sequence_parallel_size", least=1) or 1) > 1:
        draft.put("parallelism.context_method", "ulysses", "sequence_parallel_size")
    draft.translate("parallelism.reduce_dtype", _DTYPES, "communication_data_type")
    draft.translate("workload.gradient_dtype", _DTYPES, "data_types.grad_accum_dtype")
    read_optimizer(draft, "optimizer.type")
    for key in list(keys.under("optimizer")):
        keys.take(key)
    if any(keys.under("activation_checkpointing")):
        draft.put("parallelism.recompute", "full", "activation_checkpointing", strength=LOOSE)
        draft.notes.append("activation_checkpointing is set, so the model is taken to run its layers again")
        if keys.flag("activation_checkpointing.cpu_checkpointing"):
            draft.put("parallelism.offload_activations", True, "activation_checkpointing.cpu_checkpointing")
        for key in list(keys.under("activation_checkpointing")):
            keys.take(key)
    if keys.flag("compile.enabled"):
        draft.put("job.compiled", True, "compile.enabled")


_DTYPES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "bfp16": "bf16"}


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

DEEPSPEED = ConfigFormat(
    name="deepspeed",
    title="DeepSpeed",
    syntax="json",
    telling=("zero_optimization.", "train_micro_batch_size_per_gpu", "train_batch_size", "zero_allow_untested_optimizer"),
    read=_read,
    sure="zero_optimization.",
    write=_write,
    harmless=("scheduler.", "flops_profiler.", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
              "zero_optimization.contiguous_gradients", "zero_optimization.stage3_gather_16bit_weights_on_model_save",
              "zero_optimization.stage3_gather_fp16_weights_on_model_save", "prescale_gradients"),
)  # fmt: skip
