"""A recipe to files of launchers: a torchrun script, a config of Accelerate, a config of DeepSpeed."""

import json
from typing import Any

from traincast.errors import IllegalPlan
from traincast.plan._emit.recipe import PORT, Recipe, export_lines, torchrun_line, write_yaml


def emit_torchrun(recipe: Recipe) -> str:
    """A script to be started on every node with HEAD_NODE (and NODE_RANK) set."""
    lines = [
        "#!/bin/bash",
        f"# {recipe.says}.",
        "# Start it on every node; HEAD_NODE is the name of the first.",
        "set -euo pipefail",
        "",
        *export_lines(recipe),
        "",
        f"timeout {recipe.limit_s} "
        + torchrun_line(recipe, host="${HEAD_NODE:-localhost}", extra=('--node-rank="${NODE_RANK:-0}"',)),
    ]
    return "\n".join(lines) + "\n"


def emit_accelerate(recipe: Recipe) -> str:
    """A file for `accelerate launch --config_file`. Replicas alone run under DDP, DeepSpeed (ZeRO 1) or FSDP (ZeRO 2, 3);
    tensor and pipeline parallelism under its Megatron-LM plug-in."""
    plan = recipe.plan
    if plan.context > 1 or plan.expert > 1:
        raise IllegalPlan(
            f"Accelerate's config has no place for context = {plan.context} and expert = {plan.expert}; plan with --cp 1 "
            "--ep 1, or emit slurm, torchrun or k8s"
        )
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "NO" if plan.num_devices == 1 else "MULTI_GPU",
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": recipe.precision if recipe.precision in ("fp16", "bf16", "fp8") else "no",
        "num_machines": recipe.num_nodes,
        "num_processes": plan.num_devices,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if recipe.num_nodes > 1:
        config |= {"main_process_ip": "HEAD-NODE", "main_process_port": PORT}
    if plan.tensor * plan.pipeline > 1:
        config |= {"distributed_type": "MEGATRON_LM", "megatron_lm_config": _megatron(recipe)}
    elif plan.zero == 1:
        zero = {
            "deepspeed_multinode_launcher": "standard",
            "gradient_accumulation_steps": plan.micro_batches,
            "offload_optimizer_device": "cpu" if plan.offload_optimizer else "none",
            "offload_param_device": "none",
            "zero3_init_flag": False,
            "zero_stage": 1,
        }
        config |= {"distributed_type": "DEEPSPEED", "deepspeed_config": zero}
    elif plan.zero >= 2:
        config |= {"distributed_type": "FSDP", "fsdp_config": _fsdp(recipe)}
    hint = (
        f"# {recipe.says}.\n# In the script: a batch of {recipe.batch} per device and "
        f"gradient_accumulation_steps={plan.micro_batches}.\n"
    )
    return hint + write_yaml(config)


def _fsdp(recipe: Recipe) -> dict[str, Any]:
    return {
        "fsdp_activation_checkpointing": recipe.plan.recompute == "full",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_forward_prefetch": True,
        "fsdp_offload_params": False,
        "fsdp_sharding_strategy": "FULL_SHARD" if recipe.plan.zero == 3 else "SHARD_GRAD_OP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_sync_module_states": True,
        "fsdp_use_orig_params": True,
    }


def _megatron(recipe: Recipe) -> dict[str, Any]:
    plan = recipe.plan
    return {
        "megatron_lm_gradient_clipping": 1.0,
        "megatron_lm_num_micro_batches": plan.micro_batches,
        "megatron_lm_pp_degree": plan.pipeline,
        "megatron_lm_recompute_activations": plan.recompute != "none",
        "megatron_lm_sequence_parallelism": plan.sequence_parallel,
        "megatron_lm_tp_degree": plan.tensor,
        "megatron_lm_use_distributed_optimizer": plan.zero > 0,
    }


def emit_deepspeed(recipe: Recipe) -> str:
    """The JSON that `deepspeed --deepspeed_config` reads."""
    plan = recipe.plan
    if plan.context > 1 or plan.expert > 1:
        raise IllegalPlan(
            f"DeepSpeed's config has no place for context = {plan.context} and expert = {plan.expert}; plan with --cp 1 "
            "--ep 1, or emit slurm, torchrun or k8s"
        )
    if plan.pipeline > 1 and plan.zero > 1:
        raise IllegalPlan(
            f"DeepSpeed's pipeline goes with ZeRO 0 and 1, not {plan.zero}; plan with --zero 0,1 or --pp 1"
        )
    config: dict[str, Any] = {
        "train_batch_size": recipe.global_batch,
        "train_micro_batch_size_per_gpu": recipe.batch,
        "gradient_accumulation_steps": plan.micro_batches,
        "zero_optimization": {"stage": plan.zero},
        "gradient_clipping": 1.0,
    }
    if plan.zero:
        config["zero_optimization"] |= {
            "overlap_comm": plan.overlap,
            "contiguous_gradients": True,
            "reduce_bucket_size": int(plan.bucket_bytes),
        }
    if plan.offload_optimizer:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    if recipe.precision in ("bf16", "fp16"):
        config[recipe.precision] = {"enabled": True}
    if plan.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tensor}
    if plan.pipeline > 1:
        config["pipeline"] = {"stages": plan.pipeline}
    if plan.recompute == "full":
        config["activation_checkpointing"] = {"partition_activations": plan.tensor > 1}
    return json.dumps(config, indent=2) + "\n"
