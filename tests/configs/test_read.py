"""Files as their projects ship them: what is mapped, what is named as not used, and that nothing is lost on the way."""

from pathlib import Path
from typing import Any

import pytest

from configs.asking import FILES, file_of
from traincast.configs import FORMATS, read_config
from traincast.configs._keys import Keys
from traincast.configs._text import load_text, parse_text
from traincast.configs._words import is_harmless
from traincast.errors import InvalidInput, UnknownName
from traincast.spec import ConfigText

SHIPPED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "accelerate-fsdp2.yaml": (
        "accelerate",
        {"parallelism.zero": 3, "cluster.devices_per_node": 8, "workload.precision": "bf16", "job.stack": "hf-trainer"},
        (),
    ),
    "accelerate-zero3.yaml": ("accelerate", {"parallelism.zero": 3, "job.stack": "deepspeed"}, ()),
    "axolotl-qlora-fsdp-70b.yaml": (
        "axolotl",
        {"source": "llama-3-70b", "workload.seq": 512, "workload.batch": 1, "parallelism.micro_batches": 4,
         "workload.adapter_rank": 8, "workload.adapter_targets": "all", "workload.frozen_dtype": "fp4", "parallelism.zero": 3,
         "parallelism.recompute": "full", "workload.precision": "bf16", "parallelism.offload_optimizer": True},
        (),
    ),
    "config.json": ("hf-config", {"source": "llama-3-8b"}, ()),
    "deepspeed-template_zero3.json": (
        "deepspeed", {"parallelism.zero": 3, "parallelism.bucket_bytes": 1e9}, ("zero_optimization.allgather_bucket_size",),
    ),
    "ds_z3_config.json": ("deepspeed", {"parallelism.zero": 3, "job.stack": "deepspeed"}, ("zero_optimization.sub_group_size",)),
    "ds_z3_offload_config.json": (
        "deepspeed",
        {"parallelism.zero": 3, "parallelism.offload_optimizer": True, "parallelism.overlap": False},
        ("zero_optimization.stage3_max_live_parameters",),
    ),
    "lightning-fsdp.yaml": (
        "lightning",
        {"source": "llama-2-7b", "workload.batch": 2, "workload.seq": 4096, "parallelism.micro_batches": 4, "cluster.nodes": 2,
         "cluster.devices_per_node": 8, "job.steps": 20000, "parallelism.zero": 3, "workload.precision": "bf16"},
        (),
    ),
    "lightning-print_config.yaml": (
        "lightning",
        {"cluster.nodes": 2, "cluster.devices_per_node": 8, "job.steps": 20000, "parallelism.zero": 3,
         "workload.precision": "bf16", "workload.optimizer": "adamw", "parallelism.micro_batches": 1},
        ("model.vocab_size",),
    ),
    "litgpt-qlora.yaml": (
        "litgpt",
        {"source": "llama-2-7b", "workload.adapter_rank": 32, "workload.adapter_targets": "query,value",
         "workload.frozen_dtype": "fp4", "workload.precision": "bf16-pure", "job.global_batch": 8, "workload.batch": 2,
         "workload.seq": 512, "job.stack": "litgpt"},
        (),
    ),
    "llama-factory-qwen3-full-sft.yaml": (
        "llama-factory",
        {"source": "qwen3-4b", "parallelism.zero": 3, "job.stack": "deepspeed", "workload.precision": "bf16",
         "parallelism.micro_batches": 2},
        (),
    ),
    "llama-factory-qwen3-lora-sft.sh": (
        "llama-factory",
        {"source": "qwen3-4b", "workload.adapter_rank": 8, "workload.adapter_targets": "all", "workload.seq": 2048},
        (),
    ),
    "llama-factory-qwen3-lora-sft.yaml": (
        "llama-factory",
        {"source": "qwen3-4b", "workload.adapter_rank": 8, "workload.adapter_targets": "all", "workload.seq": 2048,
         "parallelism.recompute": "full"},
        (),
    ),
    "maxtext-llama3_70b.yml": (
        "maxtext",
        {"source": "llama-3-70b", "workload.seq": 8192, "workload.batch": 4, "parallelism.recompute": "full",
         "parallelism.zero": 3, "job.stack": "maxtext"},
        (),
    ),
    "maxtext-mixtral_8x7b.sh": ("maxtext", {"source": "mixtral-8x7b", "workload.batch": 32, "workload.seq": 1024}, ()),
    "megatron-train_gpt3_175b_distributed.sh": (
        "megatron-lm",
        {"source": "gpt3-175b", "parallelism.tensor": 8, "parallelism.pipeline": 16, "job.global_batch": 1536,
         "workload.precision": "fp16", "cluster.nodes": 16, "cluster.devices_per_node": 8, "job.evaluation_samples": 15360.0,
         "job.rampup_batch": 16, "job.rampup_increment": 16, "job.rampup_samples": 5859375.0},
        (),
    ),
    "megatron_bridge_llama3.py:llama3_70b_pretrain_config": (
        "nemo",
        {"source": "llama-3-70b", "parallelism.tensor": 4, "parallelism.pipeline": 4, "parallelism.virtual_stages": 5,
         "parallelism.context": 2, "parallelism.sequence_parallel": True, "job.global_batch": 512, "workload.seq": 8192,
         "parallelism.zero": 1, "workload.precision": "bf16", "parallelism.reduce_dtype": "fp32"},
        ("model.transformer_impl",),
    ),
    "megatron_bridge_llama3.py:llama3_70b_peft_config": (
        "nemo", {"parallelism.tensor": 8, "workload.adapter_rank": 16, "parallelism.zero": 0, "job.global_batch": 8}, (),
    ),
    "nemo_llama3_8b.py": (
        "nemo",
        {"source": "llama-3-8b", "parallelism.context": 2, "job.global_batch": 512, "workload.batch": 1, "workload.seq": 8192,
         "cluster.nodes": 1, "cluster.devices_per_node": 8, "parallelism.zero": 1, "workload.precision": "bf16"},
        (),
    ),
    "openrlhf-train_ppo_ray.sh": (
        "openrlhf",
        {"source": "llama-3-8b", "parallelism.zero": 3, "cluster.devices_per_node": 8, "job.regime": "ppo", "job.prompts": 1024,
         "job.rollout_tp": 2, "job.rollout_memory": 0.5, "job.response_max": 1024, "job.rollout_offload": True,
         "job.reward_model": "llama-3-8b"},
        ("critic.num_gpus_per_node (models beside the actor are taken to share its devices)",),
    ),
    "openrlhf-train_sft.sh": (
        "openrlhf",
        {"source": "llama-3-8b", "workload.batch": 2, "job.global_batch": 256, "workload.seq": 4096, "parallelism.zero": 2,
         "parallelism.recompute": "full", "job.stack": "deepspeed"},
        (),
    ),
    "torchtitan_llama3_registry.py:llama3_8b": (
        "torchtitan-registry",
        {"source": "llama-3.1-8b", "workload.batch": 1, "workload.seq": 8192, "parallelism.recompute": "selective",
         "parallelism.zero": 3, "workload.loss_chunks": 8, "job.cuda_graphs": True, "job.steps": 1000},
        (),
    ),
    "torchtitan_llama3_registry.py:llama3_405b": (
        "torchtitan-registry",
        {"source": "llama-3.1-405b", "parallelism.tensor": 8, "parallelism.recompute": "full", "workload.precision": "fp8",
         "job.compiled": True, "parallelism.async_tensor": True, "workload.batch": 2},
        ("model_spec.converters.Float8LinearConverter.filter_fqns",),
    ),
    "torchtitan-llama3_70b.toml": (
        "torchtitan",
        {"source": "llama-3-70b", "parallelism.tensor": 8, "parallelism.zero": 3, "workload.batch": 8, "workload.seq": 8192,
         "parallelism.recompute": "full", "job.steps": 1000, "workload.precision": "bf16", "job.stack": "torchtitan"},
        (),
    ),
    "torchtune-70B_full.yaml": (
        "torchtune",
        {"source": "llama-3.1-70b", "workload.batch": 2, "parallelism.recompute": "full", "workload.precision": "bf16-pure",
         "parallelism.offload_optimizer": True},
        (),
    ),
    "torchtune-8B_lora.yaml": (
        "torchtune",
        {"source": "llama-3.1-8b", "workload.adapter_rank": 8, "workload.adapter_targets": "query,value,output,gate,up,down",
         "parallelism.micro_batches": 8, "workload.implementation": "fused"},
        (),
    ),
    "training_args.json": (
        "hf-trainer",
        {"workload.batch": 4, "parallelism.micro_batches": 2, "job.steps": 2000, "workload.precision": "bf16-amp",
         "workload.optimizer": "adamw", "workload.implementation": "fused", "parallelism.recompute": "full"},
        (),
    ),
    "trl-distillation.sh": (
        "trl", {"source": "qwen2.5-0.5b", "job.regime": "distillation", "job.teacher": "qwen2.5-1.5b", "workload.batch": 8}, (),
    ),
    "trl-dpo-lora.sh": (
        "trl",
        {"source": "qwen2-0.5b", "job.regime": "dpo", "workload.adapter_rank": 32, "workload.batch": 2, "job.steps": 1000,
         "parallelism.micro_batches": 8, "parallelism.recompute": "full", "workload.precision": "bf16-amp"},
        ("no_remove_unused_columns",),
    ),
    "trl-dpo.sh": ("trl", {"job.regime": "dpo", "job.evaluation_every_steps": 50}, ()),
    "trl-kto-qlora.sh": (
        "trl", {"source": "qwen1.5-1.8b", "job.regime": "kto", "workload.frozen_dtype": "fp4", "workload.adapter_rank": 16}, (),
    ),
    "trl-sft.sh": ("trl", {"source": "qwen2-0.5b", "workload.batch": 2, "parallelism.micro_batches": 8, "job.epochs": 1}, ()),
    "trl-sft-lora.sh": ("trl", {"workload.adapter_rank": 32, "parallelism.recompute": "full"}, ()),
    "trl-sft-lora.yaml": (
        "trl",
        {"source": "qwen2.5-7b", "workload.adapter_rank": 32, "workload.adapter_targets": "all", "workload.precision": "bf16",
         "workload.seq": 2048, "parallelism.micro_batches": 8, "workload.attention": "flash-2"},
        (),
    ),
    "verl-0.2-ppo_trainer.yaml": (
        "verl",
        {"source": "deepseek-llm-7b", "job.regime": "ppo", "job.prompts": 1024, "job.global_batch": 256, "job.rollout_tp": 2,
         "job.response_max": 512, "job.rollout_batch": 1024, "parallelism.zero": 3, "cluster.devices_per_node": 8},
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu",),
    ),
    "verl-generated_ppo_trainer.yaml": (
        "verl",
        {"source": "deepseek-llm-7b", "job.regime": "ppo", "job.prompts": 1024, "job.rollout_batch": 256,
         "workload.optimizer": "adamw"},
        ("critic.strategy",),
    ),
    "verl-grpo-qwen2_5-7b.sh": (
        "verl",
        {"source": "qwen2.5-7b", "workload.batch": 16, "job.global_batch": 1280, "job.prompts": 1024,
         "job.regime": "grpo", "job.group_size": 5, "job.reference": "frozen", "job.rollout_tp": 2, "job.rollout_memory": 0.6,
         "job.response_max": 1024, "job.checkpoint_every_steps": 20, "parallelism.zero": 3},
        (),
    ),
    "verl-sft_trainer_engine.yaml": (
        "verl", {"workload.batch": 4, "job.global_batch": 256, "workload.seq": 1024, "cluster.devices_per_node": 1}, (),
    ),
}  # fmt: skip
"""Each file with its format, fields that it must give, and keys that must be named as not used."""


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_is_told_and_mapped(name: str, tmp_path: Path) -> None:
    kind, fields, unused = SHIPPED[name]
    reading = read_config(file_of(name, tmp_path))
    assert reading.format == kind
    assert {key: reading.settings[key].value for key in fields} == fields
    assert set(unused) <= set(reading.unused)


def test_every_file_of_the_folder_is_in_the_table() -> None:
    listed = {name.partition(":")[0] for name in SHIPPED}
    assert {file.name.removesuffix(".txt") for file in FILES.iterdir()} - {"README.md"} == listed


@pytest.mark.parametrize("name", SHIPPED)
def test_every_key_is_mapped_named_or_says_nothing(name: str, tmp_path: Path) -> None:
    """A key nobody has heard of, put beside the others, is named in the answer."""
    text = load_text(file_of(name, tmp_path))
    syntax, tree = parse_text(text)
    if syntax not in ("json", "toml", "yaml"):
        return
    line = {"json": '"an_odd_knob": 7,', "toml": "an_odd_knob = 7\n", "yaml": "an_odd_knob: 7\n"}[syntax]
    changed = text.text.replace("{", "{" + line, 1) if syntax == "json" else line + text.text
    reading = read_config(ConfigText(name=text.name, text=changed))
    assert "an_odd_knob" in reading.unused or reading.format == "hf-config"
    said = {*reading.settings, *reading.unused, *reading.harmless}
    assert len(said) > 0
    assert Keys(tree, where="x").values


def test_a_format_may_be_forced_and_an_unknown_one_is_refused() -> None:
    file = FILES / "ds_z3_config.json"
    assert read_config(f"deepspeed:{file}").format == "deepspeed"
    with pytest.raises(UnknownName, match=r"config format 'deepsped'.*did you mean 'deepspeed'"):
        read_config(f"deepsped:{file}")


def test_keys_that_tell_no_format_are_an_error_that_lists_them() -> None:
    with pytest.raises(InvalidInput, match=r"tell no known format.*deepspeed"):
        read_config(ConfigText(name="x.yaml", text="colour: blue\nsize: 3\n"))


def test_a_wrong_value_names_the_file_and_the_key() -> None:
    text = '{"train_micro_batch_size_per_gpu": "many", "zero_optimization": {"stage": 2}}'
    with pytest.raises(InvalidInput, match=r"ds\.json: train_micro_batch_size_per_gpu = 'many'; it must be a number"):
        read_config(ConfigText(name="ds.json", text=text))


def test_every_format_says_its_keys() -> None:
    for name, each in FORMATS.items():
        assert each.name == name
        assert each.telling
        assert each.syntax in ("json", "yaml", "toml", "shell", "python")


def test_variables_of_a_script_are_replaced_and_defaults_taken() -> None:
    text = """
    TP=${TP:-4}
    NODES=2
    ARGS="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096"
    MORE=(--micro-batch-size 1 --global-batch-size $((NODES * 8 * 16)))  # a comment
    torchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py $ARGS ${MORE[@]} \\
        --tensor-model-parallel-size $TP --bf16 --train-iters $(cat steps.txt)
    """
    reading = read_config(ConfigText(name="run.sh", text=text))
    found = {name: setting.value for name, setting in reading.settings.items()}
    assert found["parallelism.tensor"] == 4
    assert found["job.global_batch"] == 256
    assert (found["cluster.nodes"], found["cluster.devices_per_node"]) == (2, 8)
    assert "job.steps" not in found


def test_several_recipes_in_one_file_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="llama3_70b_pretrain_config, llama3_70b_peft_config; name one"):
        read_config(file_of("megatron_bridge_llama3.py", tmp_path))
    with pytest.raises(InvalidInput, match="no function 'llama3_70b_pretrain'"):
        read_config(file_of("megatron_bridge_llama3.py:llama3_70b_pretrain", tmp_path))


@pytest.mark.parametrize(
    "key", ["optimizer.state_dtype", "trainer.fp8_recipe", "dataset.precision", "log_offload", "rope_int8"]
)
def test_a_key_that_says_a_format_or_what_is_offloaded_is_never_harmless_by_a_pattern(key: str) -> None:
    assert not is_harmless(key, ("optimizer.", "trainer.", "dataset."))
    assert is_harmless(key, (key,))
