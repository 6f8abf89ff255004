"""Accelerate's yaml, as `accelerate config` writes it: DDP, FSDP, DeepSpeed or Megatron-LM underneath."""

from traincast.configs._documents import make_format
from traincast.configs._nouns import LOOSE, Draft, Sheet
from traincast.configs._trainer import read_fsdp_table, world_of


def _read(draft: Draft) -> None:
    keys = draft.keys
    kind = (keys.word("distributed_type") or "NO").upper()
    world_of(draft, keys.whole("num_processes"), keys.whole("num_machines"), "num_processes")
    precision = (keys.word("mixed_precision") or "no").lower()
    if precision in ("bf16", "fp16", "fp8"):
        whole = kind != "MULTI_GPU" or precision == "fp8"
        word = (
            precision
            if (whole and kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM")) or precision == "fp8"
            else f"{precision}-amp"
        )
        draft.put("workload.precision", word, "mixed_precision", strength=LOOSE if word.endswith("-amp") else 2)
    if kind == "FSDP":
        read_fsdp_table(draft, {key.rpartition(".")[2].removeprefix("fsdp_"): key for key in keys.under("fsdp_config")})
    elif kind == "DEEPSPEED":
        _read_deepspeed(draft)
    elif kind == "MEGATRON_LM":
        _read_megatron(draft)
    else:
        draft.assume("parallelism.zero", 0, f"distributed_type {kind} shards nothing")
    _read_axes(draft)
    if keys.word("dynamo_config.dynamo_backend") not in (None, "NO", "no"):
        draft.put("job.compiled", True, "dynamo_config.dynamo_backend")


def _read_axes(draft: Draft) -> None:
    table = "parallelism_config.parallelism_config_"
    for axis, name in (("tp", "tensor"), ("cp", "context")):
        draft.take(f"parallelism.{name}", f"{table}{axis}_size", least=1)
    if (draft.take("parallelism.context", f"{table}sp_size", least=2) or 1) > 1:
        draft.put("parallelism.context_method", "ulysses", f"{table}sp_size")
    shard, replicate = (draft.keys.whole(f"{table}dp_{way}_size") for way in ("shard", "replicate"))
    if shard and shard > 1 and replicate and replicate > 1:
        draft.put("parallelism.shard", shard, f"{table}dp_shard_size")


def _read_deepspeed(draft: Draft) -> None:
    table = "deepspeed_config"
    draft.put("job.stack", "deepspeed", "distributed_type", strength=LOOSE)
    draft.take("parallelism.zero", f"{table}.zero_stage")
    draft.take("parallelism.micro_batches", f"{table}.gradient_accumulation_steps", least=1)
    if str(draft.keys.take(f"{table}.offload_optimizer_device") or "none") == "cpu":
        draft.put("parallelism.offload_optimizer", True, f"{table}.offload_optimizer_device")
    if str(draft.keys.take(f"{table}.offload_param_device") or "none") == "cpu":
        draft.put("parallelism.offload_weights", True, f"{table}.offload_param_device")
    file = draft.keys.word(f"{table}.deepspeed_config_file")
    if file is not None:
        draft.unmapped[f"{table}.deepspeed_config_file"] = f"give {file} with --config too"


def _read_megatron(draft: Draft) -> None:
    table = "megatron_lm_config.megatron_lm_"
    draft.put("job.stack", "megatron-lm", "distributed_type", strength=LOOSE)
    draft.take("parallelism.tensor", f"{table}tp_degree", least=1)
    draft.take("parallelism.pipeline", f"{table}pp_degree", least=1)
    draft.take("parallelism.micro_batches", f"{table}num_micro_batches", least=1)
    draft.take("parallelism.sequence_parallel", f"{table}sequence_parallelism")
    if draft.keys.flag(f"{table}use_distributed_optimizer"):
        draft.put("parallelism.zero", 1, f"{table}use_distributed_optimizer")
    if draft.keys.flag(f"{table}recompute_activations"):
        draft.put("parallelism.recompute", "selective", f"{table}recompute_activations")


def _write(sheet: Sheet) -> None:
    tensor, pipeline = sheet.get("parallelism.tensor", 1), sheet.get("parallelism.pipeline", 1)
    zero, nodes = sheet.get("parallelism.zero", 0), sheet.get("cluster.nodes", 1)
    devices = sheet.get("devices", 1)
    sheet.get("cluster.devices_per_node")
    precision = str(sheet.get("workload.precision", ""))
    kind = "NO" if devices == 1 else "MULTI_GPU"
    common = {"compute_environment": "LOCAL_MACHINE", "debug": False, "distributed_type": kind, "downcast_bf16": "no",
              "enable_cpu_affinity": False, "machine_rank": 0, "main_training_function": "main"}  # fmt: skip
    for key, value in common.items():
        sheet.put(key, value)
    known = next((word for word in ("bf16", "fp16", "fp8") if precision.startswith(word)), "no")
    for key, value in {"mixed_precision": known, "num_machines": nodes, "num_processes": devices, "rdzv_backend": "static",
                       "same_network": True, "use_cpu": False}.items():  # fmt: skip
        sheet.put(key, value)
    if nodes > 1:
        sheet.put("main_process_ip", "HEAD-NODE")
        sheet.put("main_process_port", 29500)
    passes = sheet.fields.get("parallelism.micro_batches", 1)
    if tensor * pipeline > 1:
        _write_megatron(sheet, passes)
    elif zero == 1 or (zero and sheet.fields.get("job.stack") == "deepspeed"):
        sheet.put("distributed_type", "DEEPSPEED")
        sheet.told.add("parallelism.micro_batches")
        offload = "cpu" if sheet.get("parallelism.offload_optimizer") else "none"
        kept = "cpu" if sheet.get("parallelism.offload_weights") else "none"
        sheet.put("deepspeed_config", {
            "deepspeed_multinode_launcher": "standard", "gradient_accumulation_steps": passes,
            "offload_optimizer_device": offload, "offload_param_device": kept, "zero3_init_flag": zero == 3, "zero_stage": zero,
        })  # fmt: skip
    elif zero >= 2:
        sheet.put("distributed_type", "FSDP")
        _write_fsdp(sheet, zero)
    sheet.comments.append(
        f"In the script: a batch of {sheet.get('workload.batch', 1)} per device and gradient_accumulation_steps={passes}."
    )


def _write_fsdp(sheet: Sheet, zero: int) -> None:
    recompute = sheet.fields.get("parallelism.recompute") == "full"
    sheet.told |= {"parallelism.recompute"} if recompute else set()
    offload = bool(sheet.get("parallelism.offload_weights")) or bool(sheet.get("parallelism.offload_optimizer"))
    sheet.put("fsdp_config", {
        "fsdp_activation_checkpointing": recompute, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_backward_prefetch": "BACKWARD_PRE", "fsdp_forward_prefetch": True, "fsdp_offload_params": offload,
        "fsdp_sharding_strategy": "FULL_SHARD" if zero == 3 else "SHARD_GRAD_OP", "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_sync_module_states": True, "fsdp_use_orig_params": True,
    })  # fmt: skip


def _write_megatron(sheet: Sheet, passes: int) -> None:
    recompute = sheet.fields.get("parallelism.recompute", "none")
    sheet.told |= {"parallelism.recompute"} if recompute == "selective" else set()
    if sheet.fields.get("parallelism.zero", 0) > 1:
        sheet.told.discard("parallelism.zero")
    sheet.told.add("parallelism.micro_batches")
    sheet.put("distributed_type", "MEGATRON_LM")
    sheet.put("megatron_lm_config", {
        "megatron_lm_gradient_clipping": 1.0, "megatron_lm_num_micro_batches": passes,
        "megatron_lm_pp_degree": sheet.get("parallelism.pipeline", 1),
        "megatron_lm_recompute_activations": recompute == "selective",
        "megatron_lm_sequence_parallelism": bool(sheet.get("parallelism.sequence_parallel")),
        "megatron_lm_tp_degree": sheet.get("parallelism.tensor", 1),
        "megatron_lm_use_distributed_optimizer": sheet.fields.get("parallelism.zero", 0) > 0,
    })  # fmt: skip


ACCELERATE = make_format("accelerate", _read, _write)
