"""What people run is what is assumed: by kind of training, and beside public recipes."""

import dataclasses

import pytest

from benchmarks.recipes import judge, load_recipes
from traincast.catalog._trainings import trainings
from traincast.plan import decide
from traincast.resolve import ask_in_words, find_training


@pytest.mark.parametrize(
    ("model", "said", "kind"),
    [
        ("llama-3-8b", {}, "pre-training"),
        ("deepseek-v3", {}, "mixture-of-experts"),
        ("llama-3-8b", {"seq": "128k"}, "long-context"),
        ("llama-3-8b", {"regime": "finetuning"}, "fine-tuning"),
        ("llama-3-8b", {"regime": "lora"}, "lora"),
        ("llama-3-8b", {"adapter_rank": 8}, "lora"),
        ("llama-3-8b", {"regime": "qlora"}, "qlora"),
        ("sdxl-unet", {}, "diffusion"),
        ("resnet50", {}, "vision"),
        ("whisper-small", {}, "speech"),
        ("dlrm-dcnv2", {}, "recommender"),
        ("t5-base", {}, "other"),
    ],
)
def test_every_kind_of_training_has_its_document(model: str, said: dict[str, object], kind: str) -> None:
    assert find_training(ask_in_words(model, "8xh100", **said)).name == kind


def test_every_document_says_who_does_so() -> None:
    assert all(each.sources and each.frameworks and each.axes for each in trainings())


def test_a_length_of_128k_is_131072_tokens_and_steps_have_a_cap() -> None:
    found = decide(ask_in_words("llama-3-70b", "128x8xh100", seq="128k"))
    assert found.settings["seq"] == 131_072
    assert found.settings["global_batch"] * 131_072 <= 2**24
    assert found.parallelism.context > 1


def test_fine_tuning_checkpoints_activations_and_takes_small_steps() -> None:
    for regime in ("lora", "qlora"):
        found = decide(ask_in_words("llama-3.1-8b", "1xrtx4090", regime=regime, seq="1k"))
        assert found.parallelism.recompute == "full"
        assert 32 <= found.settings["global_batch"] <= 64


def test_a_unet_is_never_cut_into_layers_or_stages() -> None:
    plan = decide(ask_in_words("stable-diffusion", "4xrtx3090")).parallelism
    assert (plan.tensor, plan.pipeline) == (1, 1)


def test_experts_are_spread_where_there_are_experts() -> None:
    assert decide(ask_in_words("mixtral-8x7b", "2x8xh100")).parallelism.expert > 1


def test_an_answer_says_how_much_faster_a_better_plan_is() -> None:
    told = decide(ask_in_words("llama-3-8b", "8xh100")).settings["choice"]
    assert "less time (traincast plan)" in told


RECIPES = load_recipes()
QUICK = (
    "nanogpt-gpt2", "alpaca-7b", "axolotl-8b-qlora", "sdxl-lora", "torchvision-resnet50", "dinov2-vit-l", "whisper-small",
    "torchtitan-llama3-8b",
)  # fmt: skip


def test_sixty_recipes_name_their_source() -> None:
    assert len(RECIPES) >= 60
    assert all(recipe["source"] and recipe["plan"] for recipe in RECIPES)
    assert len({recipe["name"] for recipe in RECIPES}) == len(RECIPES)


@pytest.mark.parametrize("recipe", [each for each in RECIPES if each["name"] in QUICK], ids=lambda each: each["name"])
def test_the_default_plan_is_the_recipes_or_no_slower(recipe: dict[str, object]) -> None:
    """All of them: python benchmarks/recipes.py."""
    is_met, told = judge(recipe)
    assert is_met, told


def test_a_device_that_is_too_small_names_the_four_remedies_that_people_try() -> None:
    from traincast.plan import ask, tell

    told = tell(ask(ask_in_words("llama-3.1-8b", "1xrtx3060")))
    assert [remedy.change for remedy in told.remedies][:1] == ["QLoRA with Unsloth"]
    assert dataclasses.replace(told.remedies[0].question).job["regime"] == "qlora"
