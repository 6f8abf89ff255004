"""Preference training, distillation, reward models, adapters and GANs: what runs beside the trained model, and what it holds."""

from typing import Any

import pytest

from traincast import catalog
from traincast.plan._ask import ask
from traincast.spec import Forecast, Question, WorkloadOptions


def answer(model: str, job: dict[str, Any], plan: dict[str, Any] | None = None, *, device: str = "h100-80g", num_devices: int = 1,
           **options: Any) -> Forecast:  # fmt: skip
    workload = WorkloadOptions(**{"precision": "bf16", "batch": 4, "seq": 1024, **options})
    cluster = {"device": device, "nodes": 1, "devices_per_node": num_devices}
    return ask(Question(source=model, workload=workload, cluster=cluster, parallelism=plan or {}, job=job))


def test_a_pair_takes_twice_the_time_of_a_sequence_and_the_reference_a_third_more() -> None:
    """A pass forward is one unit, backward two: a sequence costs 3, a pair without a reference 6, with one 8. Many samples: what
    replicas exchange does not double with the pair."""
    run = {"num_devices": 8, "optimizer": "sgd", "batch": 32, "fused": True, "seq": 2048}
    plain = answer("llama-2-13b", {}, {"zero": 3}, **run)
    alone = answer("llama-2-13b", {"regime": "dpo", "reference": "precomputed"}, {"zero": 3}, **run)
    frozen = answer("llama-2-13b", {"regime": "dpo"}, {"zero": 3}, **run)
    assert alone.step.seconds / plain.step.seconds == pytest.approx(2, rel=0.05)
    assert frozen.step.seconds / alone.step.seconds == pytest.approx(8 / 6, rel=0.05)
    assert frozen.global_batch == plain.global_batch == 256


def test_a_frozen_reference_holds_its_weights_and_nothing_else() -> None:
    weights = catalog.workload("llama-3.2-1b", precision="bf16", mode="inference").role_bytes("parameter")
    for sharded, plan in ((1, {}), (4, {"zero": 3})):
        alone = answer("llama-3.2-1b", {"regime": "dpo", "reference": "precomputed"}, plan, num_devices=sharded)
        frozen = answer("llama-3.2-1b", {"regime": "dpo"}, plan, num_devices=sharded)
        assert frozen.memory.peak_bytes - alone.memory.peak_bytes == pytest.approx(weights / sharded, rel=0.01)
        assert sum(frozen.memory.by_role.values()) == pytest.approx(frozen.memory.peak_bytes)


def test_with_adapters_the_reference_is_free_of_memory() -> None:
    alone = answer("llama-3.1-8b", {"regime": "dpo", "reference": "precomputed"}, adapter_rank=16)
    frozen = answer("llama-3.1-8b", {"regime": "dpo"}, adapter_rank=16)
    assert frozen.memory.peak_bytes == alone.memory.peak_bytes
    assert frozen.step.seconds > 1.2 * alone.step.seconds


@pytest.mark.parametrize("regime", ["orpo", "simpo", "cpo"])
def test_losses_without_a_reference_cost_pairs_alone(regime: str) -> None:
    alone = answer("gpt2", {"regime": "dpo", "reference": "none"})
    assert answer("gpt2", {"regime": regime}).step.seconds == pytest.approx(alone.step.seconds)


def test_kto_runs_three_passes_more_on_single_answers() -> None:
    run = {"num_devices": 8, "optimizer": "sgd", "fused": True, "seq": 2048}
    plain = answer("llama-2-13b", {}, {"zero": 3}, **run)
    found = answer("llama-2-13b", {"regime": "kto"}, {"zero": 3}, **run)
    scoring = next(phase for phase in found.phases if phase.name == "scoring")
    assert scoring.step.seconds == pytest.approx(plain.step.seconds, rel=0.05)


def test_a_reward_model_has_no_vocabulary_to_score() -> None:
    pairs = answer("llama-3.2-1b", {"regime": "simpo"})
    reward = answer("llama-3.2-1b", {"regime": "reward"})
    # The table of Llama 3's 128,256 words is a fifth of the products of a model of 1.2B.
    assert 0.65 < reward.step.seconds / pairs.step.seconds < 0.9
    assert reward.memory.peak_bytes < pairs.memory.peak_bytes


def test_a_teacher_runs_forward_and_lies_beside_the_student() -> None:
    """A teacher of 8B that runs forward costs 2 x 8.0 FLOP a token."""
    plain = answer("llama-3.2-1b", {})
    found = answer("llama-3.2-1b", {"regime": "distillation", "teacher": "llama-3.1-8b"})
    held = found.memory.peak_bytes - plain.memory.peak_bytes
    scores = 4 * 1024 * 128_256 * 2
    assert held == pytest.approx(2 * 8.03e9 + scores, rel=0.01)
    scoring = next(phase for phase in found.phases if phase.name == "scoring")
    least_s = 2 * 8.03e9 * 4 * 1024 / 989e12
    assert least_s < scoring.step.seconds < 2.5 * least_s


def test_a_gan_updates_two_networks() -> None:
    found = answer("nnunet-2d", {"regime": "gan", "discriminator": "resnet18"}, seq=None, batch=8, precision="fp16-amp")
    words = " ".join(phase.says for phase in found.phases)
    assert "discriminator update" in words
    assert "generated samples" in words
    alone = answer("nnunet-2d", {}, seq=None, batch=8, precision="fp16-amp")
    assert found.step.seconds > 1.3 * alone.step.seconds


TARGETS = "query,key,value,up,down"


def trained_share(**options: Any) -> float:
    graph = catalog.workload(
        "llama-7b", precision="bf16", adapter_rank=32, adapted=tuple(TARGETS.split(",")), **options
    )
    gradients = sum(tensor.numel * tensor.copies for tensor in graph.tensors if tensor.role == "gradient")
    return gradients / 6.738e9


def test_adapters_train_the_published_share_of_llama_7b() -> None:
    """Liu et al. (2024), DoRA, table 1: LoRA of rank 32 trains 0.83% of LLaMA-7B and DoRA 0.84%."""
    assert round(100 * trained_share(), 2) == 0.83
    assert 0.835 < 100 * trained_share(adapter_norm=True) < 0.855


def test_dora_is_slower_than_lora_and_holds_little_more() -> None:
    lora = answer("llama-7b", {"regime": "lora"}, {"recompute": "full"})
    dora = answer("llama-7b", {"regime": "dora"}, {"recompute": "full"})
    assert 1.02 < dora.step.seconds / lora.step.seconds < 1.8
    assert dora.memory.peak_bytes < 1.1 * lora.memory.peak_bytes


@pytest.mark.parametrize(("model", "gigabytes"), [("llama-65b", 48), ("llama-33b", 24)])
def test_qlora_fits_where_its_authors_ran_it(model: str, gigabytes: int) -> None:
    """Dettmers et al. (2023): 65B on one GPU of 48 GB and 33B on one of 24 GB, rank 64, batch 1, sequences of 512, gradient
    checkpointing; full fine-tuning of 65B in 16 bits takes more than 780 GB."""
    device = {48: "a40", 24: "rtx-3090"}[gigabytes]
    # The states of 33B are paged to the host, which the authors found necessary on 24 GB.
    paged = {"offload_optimizer": gigabytes == 24}
    found = answer(
        model, {"regime": "qlora"}, {"recompute": "full", **paged}, device=device, batch=1, seq=512, adapter_rank=64,
        precision="bf16-pure",
    )  # fmt: skip
    assert found.memory.peak_bytes < gigabytes * 1e9
    whole = answer(
        "llama-65b", {"regime": "finetuning"}, {"recompute": "full"}, batch=1, seq=512, precision="bf16-pure"
    )
    states = sum(whole.memory.by_role.get(role, 0.0) for role in ("parameter", "gradient", "optimizer_state"))
    # 2 bytes of weights, 2 of gradients; the authors count Adam's two states in 32 bits, we in the format of pure bf16.
    assert states + 4 * 65.3e9 == pytest.approx(780e9, rel=0.03)
