"""TrainingArguments as Hugging Face's Trainer saves them (json), or as a script is given them."""

from traincast.configs._nouns import ConfigFormat, Draft
from traincast.configs._trainer import (
    read_launcher,
    read_model,
    read_trainer,
)


def _read(draft: Draft) -> None:
    read_launcher(draft)
    read_model(draft, "model_name_or_path")
    draft.take("workload.seq", "block_size", "max_seq_length", least=1)
    read_trainer(draft)


HF_TRAINER = ConfigFormat(
    name="hf-trainer",
    title="Hugging Face TrainingArguments",
    syntax="json",
    telling=("bf16", "model_name_or_path", "per_device_train_batch_size", "gradient_accumulation_steps",
             "num_train_epochs", "max_steps",
             "gradient_checkpointing",
              "lr_scheduler_type", "adam_beta1",
             "save_strategy", "half_precision_backend"),
    read=_read,
    harmless=("do_predict", "prediction_loss_only", "eval_", "greater_is_better", "label_names", "remove_unused_columns", "hub",
              "logging", "dataloader_", "past_index", "skip_memory_metrics", "use_legacy_prediction_loop", "include_",
              "ignore_data_skip", "group_by_length", "length_column_name", "per_device_eval_batch_size", "auto_find_batch_size",
              "full_determinism", "accelerator_config", "optim_args", "neftune_noise_alpha", "jit_mode_eval", "save_on_each_node",
              "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "restore_callback_states_from_checkpoint", "enable_jit_checkpoint",
              "average_tokens_across_devices", "batch_eval_metrics", "fp16_full_eval", "bf16_full_eval",
              "half_precision_backend"),
    aliases=("trainer", "training-arguments", "transformers"),
)  # fmt: skip
