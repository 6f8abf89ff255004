"""Whatever one field of a question changes, an engine that has answered other questions says what a new one says."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from traincast.certainty._labels import label_run
from traincast.errors import TraincastError
from traincast.files import decode_calibration, read_calibration, read_json, save_calibration
from traincast.forecast import Engine
from traincast.forecast import answer as answer_resolved
from traincast.learn import learn
from traincast.plan import decide, forecast, search_plans, space_of
from traincast.resolve import ask_in_words, build_cluster, fill_in
from traincast.spec import QUESTION_FIELDS, Calibration, MeasuredRun, Parallelism, Question

WARM = Engine()
"""One for all tests of this file, so that each finds what the others left."""
SHAPE = {"arch": "llama", "n_layers": 4, "hidden": 128, "heads": 4, "vocab": 1000, "seq": 64}
LANGUAGE = {**SHAPE, "precision": "bf16", "batch": 2, "micro_batches": 2, "zero": 1, "steps": 100}
IMAGES = {"source": "resnet18", "precision": "bf16", "batch": 2, "micro_batches": 1, "zero": 0, "steps": 100}
MIXED = {**LANGUAGE, "arch": "mixtral", "experts": 4, "experts_per_token": 2, "moe_ffn": 128}
PIPE = {**LANGUAGE, "pipeline": 2, "micro_batches": 4}
SPLIT = {**LANGUAGE, "tensor": 2}
TUNED = {**LANGUAGE, "adapter_rank": 4, "zero": 0}
PPO = {**LANGUAGE, "regime": "ppo", "prompt_tokens": 16, "response_tokens": 32}
GRAPH = {**IMAGES, "source": "rgat", "batch": 64}
TABLES = {**IMAGES, "source": "dlrm", "batch": 256}
GROWING = {**LANGUAGE, "micro_batches": 8, "rampup_batch": 16, "rampup_samples": 600.0}
FOREIGN = {**PPO, "rollout_gpus": 8}
RECORDED = {
    "source": str(Path(__file__).with_name("recorded_model.py")),
    "precision": "fp32",
    "batch": 2,
    "zero": 0,
    "steps": 100,
}
Change = tuple[dict[str, Any], Any]
WORKLOAD: dict[str, Change] = {
    "batch": (LANGUAGE, 4), "seq": (LANGUAGE, 128), "precision": (LANGUAGE, "fp32"), "mode": (LANGUAGE, "inference"),
    "optimizer": (LANGUAGE, "sgd"), "attention": (LANGUAGE, "eager"), "adapter_rank": (LANGUAGE, 4),
    "adapter_targets": (TUNED, "query"), "adapter_norm": (TUNED, True), "frozen_dtype": (TUNED, "fp4"),
    "weight_dtype": (LANGUAGE, "fp8"), "head": (LANGUAGE, "value"), "sample_tokens": (LANGUAGE, 20),
    "sample_p95": ({**LANGUAGE, "sample_tokens": 20}, 50), "packing": ({**LANGUAGE, "sample_tokens": 20}, True),
    "document_masks": ({**LANGUAGE, "sample_tokens": 20, "packing": True}, False),
    "image_sizes": (IMAGES, "160..320"), "size_batching": ({**IMAGES, "image_sizes": "160..320"}, "padded"),
    "recompute_layers": ({**LANGUAGE, "recompute": "full"}, 2), "loss_chunks": (LANGUAGE, 4),
    "gather_negatives": ({**IMAGES, "source": "clip-vit-b-32"}, True), "ema": (LANGUAGE, True),
    "dropout": ({**LANGUAGE, "arch": "gpt", "dropout": 0.0}, 0.1), "input_size": (IMAGES, 128), "num_classes": (IMAGES, 10),
    "arch": (LANGUAGE, "gpt"), "params": ({"arch": "llama", "precision": "bf16", "batch": 1, "seq": 64}, 1e8),
    "n_layers": (LANGUAGE, 6), "hidden": (LANGUAGE, 256), "heads": (LANGUAGE, 8), "kv_heads": (LANGUAGE, 2),
    "head_dim": (LANGUAGE, 64), "ffn": (LANGUAGE, 256), "gated": (LANGUAGE, False), "tied": (LANGUAGE, True),
    "vocab": (LANGUAGE, 2000), "experts": (MIXED, 8), "experts_per_token": (MIXED, 1), "moe_ffn": (MIXED, 256),
    "shared_experts": (MIXED, 1), "first_dense": (MIXED, 1), "moe_every": (MIXED, 2), "loss": (LANGUAGE, False),
    "fused": (LANGUAGE, True), "fused_softmax": ({**LANGUAGE, "fused": True, "attention": "eager"}, False),
    "fused_gate": ({**LANGUAGE, "fused": True, "fused_gate": False}, True), "fused_loss": (LANGUAGE, True),
    "fused_sums": (LANGUAGE, True),
    "kernels": (RECORDED, "plain"),
    "implementation": (LANGUAGE, "loop"), "channels_last": (IMAGES, True), "master_weights": (LANGUAGE, False),
    "gradient_dtype": (LANGUAGE, "bf16"), "fan_outs": (GRAPH, "10,5,5"), "distinct_neighbours": (GRAPH, 0.3),
    "feature_cache_bytes": ({**GRAPH, "feature_hits": 0.5, "feature_cache_bytes": 1e9}, 20e9),
    "feature_hits": ({**GRAPH, "feature_cache_bytes": 1e9, "feature_hits": 0.1}, 0.9),
}  # fmt: skip
CLUSTER: dict[str, Change] = {
    "device": (LANGUAGE, "h100-sxm-80g"), "node": ({**LANGUAGE, "device": None}, "aws-p4d.24xlarge"), "nodes": (LANGUAGE, 2),
    "devices_per_node": (LANGUAGE, 4), "placement": ({**LANGUAGE, "devices_per_node": None}, "4,2"),
    "intra": (LANGUAGE, "20GB/s"), "inter": ({**LANGUAGE, "nodes": 2}, "10Gb/s"), "domains": (LANGUAGE, "2:900GB/s"),
    "device_memory": (LANGUAGE, 1e10), "speed": (LANGUAGE, 0.5),
    "nvme_bytes_per_s": ({**LANGUAGE, "offload_optimizer": True, "offload_to": "nvme"}, 1e9),
    "host_memory_bytes": ({**LANGUAGE, "offload_optimizer": True}, 1e11), "price_per_device": (LANGUAGE, 9.0),
    "power_limit_watts": (LANGUAGE, 150.0), "region": (LANGUAGE, "france"), "nvlink_domain": ({**LANGUAGE, "nodes": 2}, 16),
}  # fmt: skip
PLAN: dict[str, Change] = {
    "data": ({**LANGUAGE, "devices_per_node": None, "zero": 0}, 2), "tensor": (LANGUAGE, 2), "pipeline": (LANGUAGE, 2),
    "context": (LANGUAGE, 2), "expert": (MIXED, 2),
    "expert_tensor": ({**MIXED, "expert": 2, "tensor": 2, "sequence_parallel": True}, 1),
    "expert_capacity": ({**MIXED, "expert": 2}, 1.5), "expert_imbalance": ({**MIXED, "expert": 2}, 1.5),
    "dispatch_once": ({**MIXED, "experts": 16, "experts_per_token": 4, "expert": 16, "nodes": 2, "batch": 64}, False),
    "overlap_experts": ({**MIXED, "expert": 4}, True), "virtual_stages": (PIPE, 2), "micro_batches": (LANGUAGE, 4),
    "zero": (LANGUAGE, 3), "shard": ({**LANGUAGE, "zero": 3}, 4), "sequence_parallel": (SPLIT, False),
    "recompute": (LANGUAGE, "full"), "order": (PIPE, "gpipe"), "balance": (PIPE, "matmuls"),
    "bucket_bytes": (LANGUAGE, 1e5), "bucket_copies": (LANGUAGE, False), "overlap": (LANGUAGE, False),
    "reduce_dtype": (LANGUAGE, "bf16"), "async_tensor": ({**SPLIT, "sequence_parallel": True}, True),
    "servers": ({**LANGUAGE, "zero": 0}, 2), "asynchronous": ({**LANGUAGE, "zero": 0, "servers": 2}, True),
    "offload_optimizer": (LANGUAGE, True), "offload_weights": (LANGUAGE, True), "offload_activations": (LANGUAGE, True),
    "offload_to": ({**LANGUAGE, "offload_optimizer": True}, "nvme"),
    "regather": ({**LANGUAGE, "zero": 3, "nodes": 2}, 8), "table_sharding": (TABLES, "row"), "table_cache": (TABLES, 0.2),
    "table_hits": ({**TABLES, "table_cache": 0.2}, 0.5),
    "gather_dtype": ({**LANGUAGE, "zero": 3}, "fp8"), "reshard": ({**PIPE, "zero": 3, "stack": "pytorch"}, False),
    "gather_ahead": ({**LANGUAGE, "zero": 1}, True), "async_context": ({**LANGUAGE, "context": 2}, True),
    "context_method": ({**LANGUAGE, "context": 2}, "ulysses"),
}  # fmt: skip
JOB: dict[str, Change] = {
    "rampup_batch": ({**GROWING, "rampup_batch": 64}, 32), "rampup_samples": (GROWING, 1200.0),
    "rampup_increment": (GROWING, 32), "rollout_engine": (PPO, "plain"),
    "steps": (LANGUAGE, 7), "samples": ({**LANGUAGE, "steps": None}, 1e4),
    "epoch_samples": ({**LANGUAGE, "steps": None, "epochs": 2.0}, 1e3),
    "loading_samples_per_s": (LANGUAGE, 3.0), "loader_cores": ({**LANGUAGE, "decode_samples_per_s": 1.0}, 2),
    "decode_samples_per_s": ({**LANGUAGE, "loader_cores": 2}, 0.5),
    "sample_bytes": ({**LANGUAGE, "storage_bytes_per_s": 1e3}, 1e5),
    "storage_bytes_per_s": ({**LANGUAGE, "sample_bytes": 1e5}, 1e4), "logging_every_steps": ({**LANGUAGE, "logging_s": 1.0}, 5),
    "logging_s": ({**LANGUAGE, "logging_every_steps": 5}, 3.0),
    "evaluation_every_steps": ({**LANGUAGE, "evaluation_samples": 500.0}, 10),
    "evaluation_samples": ({**LANGUAGE, "evaluation_every_steps": 10}, 5e3), "checkpoint_every_steps": (LANGUAGE, 10),
    "checkpoint_bytes_per_s": ({**LANGUAGE, "checkpoint_every_steps": 10}, 1e7),
    "checkpoint_sharded": ({**LANGUAGE, "checkpoint_every_steps": 10, "checkpoint_bytes_per_s": 1e7, "nodes": 2}, True),
    "checkpoint_async": ({**LANGUAGE, "checkpoint_every_steps": 10}, True), "startup_s": (LANGUAGE, 90.0),
    "device_mtbf_s": ({**LANGUAGE, "checkpoint_every_steps": 10}, 1e5), "stack": (LANGUAGE, "megatron-lm"),
    "compile_s": ({**LANGUAGE, "compiled": True}, 33.0), "compiled": (LANGUAGE, True), "cuda_graphs": (LANGUAGE, True),
    "max_autotune": (LANGUAGE, True),
    "cost_model": (LANGUAGE, "roofline"), "method": (LANGUAGE, "physics"),
    "global_batch": ({**LANGUAGE, "micro_batches": None}, 64), "epochs": ({**LANGUAGE, "steps": None, "epoch_samples": 1e3}, 2.0),
    "tokens": ({**LANGUAGE, "steps": None}, 1e6), "stack_defaults": ({**SPLIT, "stack": "megatron-lm"}, False),
    "regime": ({**PPO, "regime": None}, "grpo"), "reference": (PPO, "none"),
    "teacher": ({"source": "gpt2", "seq": 64, "batch": 2, "regime": "distillation", "teacher": "gpt2"}, "gpt2-medium"),
    "discriminator": ({**IMAGES, "regime": "gan"}, "resnet34"), "frozen_models": (LANGUAGE, "gpt2"),
    "reward_model": (PPO, "gpt2"),
    "critic": (PPO, "gpt2-medium"), "prompts": (PPO, 64), "group_size": (PPO, 4), "rollout_epochs": (PPO, 2),
    "prompt_tokens": (PPO, 24), "response_tokens": (PPO, 48), "response_p95": (PPO, 50), "response_max": (PPO, 40),
    "rollout_gpus": (PPO, 8), "rollout_tp": (PPO, 2), "rollout_precision": (PPO, "fp8"), "kv_dtype": (PPO, "fp8"),
    "rollout_batch": (PPO, 1), "rollout_memory": (PPO, 0.01), "rollout_offload": (PPO, True), "rollout_lag": (FOREIGN, 1),
}  # fmt: skip
LEARNED: dict[str, Change] = {"calibration": (LANGUAGE, "runs")}
SPACED = {"order": "orders"}
CHANGES = WORKLOAD | CLUSTER | PLAN | JOB | LEARNED
"""For each field of a question: what is said beside it, and a value that changes the answer."""


def test_every_field_of_a_question_has_a_change_to_try() -> None:
    """Whoever adds a field adds a change of it here, and so finds out that no cache forgets it."""
    assert set(CHANGES) == {item.name for item in QUESTION_FIELDS}


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three runs that took twice as long as forecast."""
    runs = []
    for batch in (1, 2, 4):
        asked = decide(
            make_question({**LANGUAGE, "devices_per_node": 1, "zero": 0, "micro_batches": 1, "batch": batch})
        )
        step_s = 2 * answer_resolved(asked).step.seconds
        labels = label_run(asked.job, asked.cluster, asked.parallelism)
        runs.append(
            MeasuredRun(
                labels=labels, job=asked.job, cluster=asked.cluster, parallelism=asked.parallelism, step_s=step_s
            )
        )
    file = tmp_path_factory.mktemp("learnt") / "runs.json"
    save_calibration(learn(runs, name="runs"), file)
    return str(file)


def make_question(said: dict[str, Any]) -> Question:
    words = {"device": "a100-sxm4-80g", "devices_per_node": 8, **said}
    if "node" in words:
        words["devices_per_node"] = None
    source = words.pop("source", "mine")
    return ask_in_words(source, **{name: value for name, value in words.items() if value is not None})


def ask(engine: Engine, question: Question) -> Any:
    """The forecast, or why there is none."""
    try:
        asked = decide(question)
        return engine.forecast(asked.job, asked.cluster, asked.parallelism)
    except TraincastError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", CHANGES)
def test_two_questions_that_differ_in_one_field_are_answered_as_if_each_were_the_first(name: str, learnt: str) -> None:
    beside, value = CHANGES[name]
    value = learnt if name == "calibration" else value
    before, after = (make_question(said) for said in (beside, {**beside, name: value}))
    assert before != after
    answers = []
    for question in (before, after):
        if name == "calibration":
            warm, fresh = forecast(question), forecast(question, calibration=_reread(question))
            warm, fresh = replace(warm, origin=None), replace(fresh, origin=None)
        else:
            warm, fresh = ask(WARM, question), ask(Engine(), question)
        assert warm == fresh
        answers.append(fresh)
    assert not isinstance(answers[1], str), answers[1]
    assert answers[0] != answers[1]


@pytest.mark.parametrize("name", CHANGES)
def test_a_plan_found_after_other_questions_is_answered_as_the_same_plan_asked_for(name: str, learnt: str) -> None:
    beside, value = CHANGES[name]
    question = make_question({**beside, name: learnt if name == "calibration" else value})
    cluster = build_cluster(fill_in(question))
    learned = read_calibration(question.calibration)
    engine = WARM if learned is None else Engine(calibration=learned)
    open_fields = {
        "batches": (2,),
        "tensor": (1, 2),
        "pipeline": (1,),
        "context": (1,),
        "recompute": ("none",),
        "zero": (1,),
    }
    fixed = {SPACED.get(key, key) for key in question.parallelism}
    space = replace(
        space_of(question, num_devices=cluster.num_devices, global_batch=32),
        **{key: few for key, few in open_fields.items() if key not in fixed},
    )
    for one in search_plans(question, cluster, space=space, top=1, engine=engine).plans:
        named = {item.name: getattr(one.parallelism, item.name) for item in dataclasses.fields(Parallelism)}
        workload = replace(question.workload, batch=one.batch)
        job = {key: value for key, value in question.job.items() if key != "global_batch"}
        same = decide(replace(question, workload=workload, parallelism=named, job=job))
        assert same.parallelism == one.parallelism
        assert Engine(calibration=_reread(question)).forecast(same.job, one.cluster, one.parallelism) == one.forecast


def _reread(question: Question) -> Calibration | None:
    """The same calibration, as a noun that no engine has seen."""
    return None if question.calibration is None else decode_calibration(read_json(str(question.calibration)), where="")
