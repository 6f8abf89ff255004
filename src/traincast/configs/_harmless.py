"""Keys that change neither the time nor the memory of a step, whichever project has them."""

import re
from collections.abc import Iterable

_PARTS = (
    # what is learned, not how long it takes
    "lr", "learning_rate", "min_lr", "max_lr", "lr_scheduler.*", "lr_.*", "scheduler", "warmup.*", "weight_decay", "adam_.*",
    "betas?", "beta[12]", "momentum", "clip_grad.*", "max_grad_norm", "gradient_clip.*", "gradient_clipping",
    "grad_clip", "max_norm",
    "lora_alpha", "lora_dropout", "alpha", "rope_.*", "init_.*", "initializer_range", "norm_eps",
    "layernorm_epsilon", "label_smoothing.*", "eps",
    "decay.*", "cooldown.*", "loss_scale.*", "initial_scale_power", "hysteresis", "min_loss_scale", "z_loss.*",
    "temperature", "top_[pk]",
    # what is said about data, files and people
    "seed", ".*_seed", "data_seed", "shuffle", ".*_dir", ".*_path", "path", "paths", "dir", "dump_folder",
    "save_folder", "output",
    "tokenizer.*", "template", "chat_template.*", "prompt.*", "special_tokens.*", "datasets?", "dataset_.*",
    "data_path", "data_files",
    "blend", "split", "train_files", "val_files", "streaming", "trust_remote_code", ".*_key", "type", "format", "revision",
    "hub_.*", "push_to_hub", "description", "project", "project_name", "experiment_name", "run_name", "exp_name", "job_name",
    "_target_", "_args_",
    # what is logged
    "wandb.*", "mlflow.*", "comet.*", "tensorboard.*", "swanlab.*", "report_to", "log", "log_.*", "logging.*",
    "logger.*", ".*_logger",
    "metric.*", "print_.*", "enable_tensorboard", "enable_wandb", "enable_color_printing", "steps_per_print",
    "wall_clock_breakdown",
    "profil.*", "enable_profiling", "plot_loss", "enable_progress_bar", "enable_model_summary", "verbose", "debug",
    "disable_tqdm",
    # how the program is started or resumed
    "rdzv.*", "main_process_.*", "main_training_function", "machine_rank", "node_rank", "same_network", "tpu_.*",
    "compute_environment",
    "master_addr", "master_port", "ddp_timeout", ".*_timeout.*", "timeout", "resume.*", "overwrite_output_dir",
    "do_train", "do_eval",
    "local_rank", "use_cpu", "enable_cpu_affinity", "gc_freq", "manual_gc.*", "strict", "save_total_limit",
    "save_only_model", "save_safetensors", "save_strategy", "save_last.*", "load_best_model_at_end",
    "check_for_nan.*", "no_load.*",
    "dist_backend", "distributed_backend", "backend", "nccl_.*",
)  # fmt: skip
_TELLING = re.compile(
    r"precision|dtype|fp4|fp8|fp16|bf16|fp32|float8|float16|mxfp|nvfp|quant|[48]bit|int8|offload|parallel|recompute"
    r"|checkpointing|remat|(?:^|_)amp(?:_|$)",
    re.IGNORECASE,
)
"""In names of keys that say a format, an axis, what runs again or what lies off the device: no pattern makes them harmless, only a
format that names them in full."""
_HARMLESS = re.compile("|".join(f"(?:{part})" for part in _PARTS), re.IGNORECASE)


def is_harmless(key: str, beginnings: Iterable[str]) -> bool:
    """Whether a key, or a table that holds it, is known to change nothing."""
    known = tuple(beginnings)
    if key in known:
        return True
    if _TELLING.search(key.rpartition(".")[2]):
        return False
    if key.startswith(known):
        return True
    return any(_HARMLESS.fullmatch(part.replace("-", "_")) for part in key.split("."))
