"""Several files and flags make one question: flags win, contradictions are named, defaults never beat what is said."""

import json
from pathlib import Path

import pytest

from configs.asking import FILES, complete
from traincast.configs import merge_configs
from traincast.configs._models import find_model
from traincast.errors import InvalidInput
from traincast.resolve import fill_in
from traincast.schedule._oracle import _devices_per_replica
from traincast.spec import ConfigText, Question, WorkloadOptions

PLACE = {"device": "a100-80g", "nodes": 1, "devices_per_node": 8}


def files(*names: str) -> tuple[str, ...]:
    return tuple(str(FILES / name) for name in names)


def test_a_model_an_engine_and_a_trainer_make_one_question() -> None:
    whole = complete(Question(configs=files("config.json", "ds_z3_config.json", "training_args.json"), cluster=PLACE))
    question = whole.question
    assert question.source == "llama-3-8b"
    assert (whole.plan.zero, whole.plan.micro_batches, whole.plan.recompute) == (3, 2, "full")
    assert (question.workload.batch, question.job["steps"], question.job["stack"]) == (4, 2000, "deepspeed")
    # The trainer's bf16 is autocast on its own; DeepSpeed's engine keeps bf16 weights with fp32 copies.
    assert question.workload.precision == "bf16"
    alone = complete(Question(source="llama-3-8b", configs=files("training_args.json"), cluster=PLACE))
    assert alone.question.workload.precision == "bf16-amp"


def test_what_an_engine_says_about_precision_is_more_exact_than_the_trainer() -> None:
    engine = ConfigText(name="ds.json", text='{"bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}')
    for configs in ((engine, *files("training_args.json")), (*files("training_args.json"), engine)):
        assert fill_in(Question(source="gpt2", configs=configs)).workload.precision == "bf16"


def test_a_contradiction_is_named_and_the_later_file_wins() -> None:
    first = ConfigText(name="a.json", text='{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}')
    second = ConfigText(name="b.json", text='{"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}')
    merged = merge_configs(Question(source="gpt2", configs=(first, second)))
    assert merged.workload.batch == 8
    (said,) = [sentence for sentence in merged.said if "is taken" in sentence]
    assert said == (
        "a.json says batch = 4 (train_micro_batch_size_per_gpu), b.json says 8 (train_micro_batch_size_per_gpu): 8 is taken"
    )


def test_what_flags_say_wins_over_files_in_every_section() -> None:
    asked = Question(
        source="llama-2-7b",
        workload=WorkloadOptions(batch=2, precision="fp8"),
        cluster={"device": "h100-80g", "nodes": 4, "devices_per_node": 8},
        parallelism={"zero": 1, "tensor": 2},
        job={"steps": 7, "stack": "fsdp2"},
        configs=files("torchtitan-llama3_70b.toml"),
    )
    merged = merge_configs(asked)
    assert merged.source == "llama-2-7b"
    assert (merged.workload.batch, merged.workload.precision, merged.workload.seq) == (2, "fp8", 8192)
    assert (merged.parallelism["zero"], merged.parallelism["tensor"]) == (1, 2)
    assert (merged.job["steps"], merged.job["stack"]) == (7, "fsdp2")
    assert merged.cluster["nodes"] == 4


def test_a_flag_for_the_global_batch_replaces_the_passes_of_a_file() -> None:
    whole = complete(
        Question(source="gpt2", configs=files("training_args.json"), cluster=PLACE, job={"global_batch": 128})
    )
    assert whole.plan.micro_batches == 128 // (4 * 8)


def test_a_length_on_the_command_line_replaces_that_of_a_file() -> None:
    merged = merge_configs(Question(source="gpt2", configs=files("training_args.json"), job={"samples": 1e6}))
    assert "steps" not in merged.job
    assert merged.job["samples"] == 1e6


def test_what_is_assumed_and_not_used_is_said() -> None:
    said = complete(Question(configs=files("verl-grpo-qwen2_5-7b.sh"), cluster=PLACE)).said
    text = "\n".join(said)
    assert "mean lengths of prompts and responses are not in the file; half of their limits are assumed" in text
    assert "without effect on time and memory:" in text
    assert "15 epochs of unknown length" in text
    text = '{"bf16": true, "lr_scheduler_type": "cosine", "num_train_epochs": 1, "save_strategy": "no"}'
    assumed = complete(Question(source="gpt2", cluster=PLACE, configs=(ConfigText(name="t.json", text=text),)))
    assert any("per_device_train_batch_size is not said, so Trainer takes 8" in sentence for sentence in assumed.said)


def test_a_round_of_grpo_trains_on_what_it_generates() -> None:
    whole = complete(Question(configs=files("verl-grpo-qwen2_5-7b.sh"), cluster=PLACE))
    assert whole.question.workload.seq is None
    job = whole.question.job
    assert (job["regime"], job["prompts"], job["group_size"], job["response_max"]) == ("grpo", 1024, 5, 1024)
    assert whole.plan.micro_batches * whole.plan.data * whole.question.workload.batch == 1280


def test_files_without_a_model_ask_for_one() -> None:
    with pytest.raises(InvalidInput, match=r"ds_z3_config\.json names no model that is known"):
        merge_configs(Question(configs=files("ds_z3_config.json")))


def test_a_job_file_may_name_configurations_beside_it(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text((FILES / "ds_z3_config.json").read_text())
    job = tmp_path / "job.toml"
    job.write_text(
        'source = "llama-2-7b"\nconfigs = ["deepspeed:ds.json"]\n[cluster]\ndevice = "a100-80g"\ndevices_per_node = 8\n'
    )
    assert complete(Question(source=str(job))).plan.zero == 3


def test_a_scheduler_gives_a_replica_the_devices_that_a_configuration_asks_for(tmp_path: Path) -> None:
    (tmp_path / "titan.toml").write_text((FILES / "torchtitan-llama3_70b.toml").read_text())
    job = tmp_path / "job.toml"
    job.write_text('configs = ["titan.toml"]\n')
    assert _devices_per_replica(str(job)) == 8


def test_other_gpus_than_the_file_was_written_for_keep_its_degrees() -> None:
    """A file that spells its data degree is asked on more devices: replicas follow the devices."""
    text = (
        "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 1\nseq_len = 4096\n"
        "[parallelism]\ndata_parallel_shard_degree = 8\n"
    )
    config = ConfigText(name="t.toml", text=text)
    assert complete(Question(configs=(config,), cluster={"device": "a100-80g"})).plan.data == 8
    assert complete(Question(configs=(config,), cluster={**PLACE, "nodes": 2})).plan.data == 16


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("NousResearch/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B", "llama-3-70b"),
        ("casperhansen/llama-3-70b-fp16", "llama-3-70b"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("google/gemma-3-4b-pt", "gemma-3-4b"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini-4k-instruct"),
        ("lora_llama3_2_1b", "llama-3.2-1b"),
        ("unsloth/Llama-3.2-1B-bnb-4bit", "llama-3.2-1b"),
        ("someone/an-unheard-of-model-9b", None),
    ],
)
def test_names_that_configurations_use_are_found_in_the_catalogue(name: str, known: str | None) -> None:
    assert find_model(name) == known


def cached(home: Path, name: str, config: dict[str, object]) -> None:
    folder = home / "hub" / f"models--{name.replace('/', '--')}"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps(config))


LLAMA = {"model_type": "llama", "num_hidden_layers": 20, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 50000,
         "intermediate_size": 6144, "num_key_value_heads": 4, "tie_word_embeddings": False}  # fmt: skip


def test_a_model_in_the_cache_of_this_machine_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    cached(tmp_path, "someone/their-model", LLAMA)
    merged = fill_in(Question(source="hf:someone/their-model", workload=WorkloadOptions(batch=1)))
    assert (merged.workload.arch, merged.workload.n_layers, merged.workload.kv_heads) == ("llama", 20, 4)
    assert any("cache of this machine" in sentence for sentence in merged.said)
    cached(tmp_path, "someone/a-twin", {**LLAMA, "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
                                        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256})  # fmt: skip
    assert fill_in(Question(source="hf:someone/a-twin")).source == "llama-3-8b"


def test_a_model_that_is_nowhere_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    with pytest.raises(InvalidInput, match=r"hf download someone/unheard-of config\.json"):
        fill_in(Question(source="hf:someone/unheard-of"))
    with pytest.raises(InvalidInput, match="no name of a model"):
        fill_in(Question(source="hf:../../etc/passwd"))


def test_a_model_of_the_catalogue_needs_no_cache() -> None:
    merged = fill_in(Question(source="hf:Qwen/Qwen2.5-7B-Instruct"))
    assert merged.source == "qwen2.5-7b"
    assert merged.said == ("Qwen/Qwen2.5-7B-Instruct is taken to be qwen2.5-7b of the catalogue",)
