from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from traincast import registry
from traincast.catalog._models.recipe import IMPLEMENTATIONS, PRECISIONS
from traincast.catalog._stacks import find_stack, name_stack, plain_stack, read_stack, stack, stack_names, stacks
from traincast.errors import InvalidInput, UnknownName
from traincast.spec import RECOMPUTES, Stack

SHIPPED = (
    "pytorch", "pytorch-compiled", "pytorch-ddp", "fsdp2", "hf-trainer", "lightning", "deepspeed", "megatron-lm",
    "megatron-core", "megatron-deepspeed", "torchtitan", "nanotron", "composer", "litgpt", "torchtune", "maxtext", "tensorflow",
)  # fmt: skip
PLUGGED = replace(Stack(), name="from-elsewhere", product_factor=2.0)


def test_the_promised_stacks_ship() -> None:
    assert set(SHIPPED) <= set(stack_names())


@pytest.mark.parametrize("name", stack_names())
def test_every_document_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    found = stack(name)
    assert found.name == name
    assert found.title
    assert found.provenance
    assert 0 < found.log_sigma < 1
    meanings = {meaning for _, meaning in found.recipe.precision_words}
    assert meanings <= set(PRECISIONS)
    assert {meaning for _, meaning in found.plan.recompute_words} <= set(RECOMPUTES)
    assert found.recipe.option("implementation") in (None, *IMPLEMENTATIONS)


def test_a_stack_that_was_never_measured_is_less_sure_than_the_one_it_is_like() -> None:
    for found in stacks():
        if found.like and not found.num_steps and found.provenance.startswith("constants of"):
            assert found.log_sigma > stack(found.like).log_sigma or stack(found.like).log_sigma >= 0.12


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Nanotron 0.4", "nanotron"), ("Megatron-Core", "megatron-core"), ("nvidia-dle-pytorch(lambda)", "nvidia-dle-pytorch"),
        ("PyTorch 2.0.1a0", "pytorch"), ("pytorch-1.13", "pytorch-1"), ("Composer-FSDP", "composer"),
        ("accelerate", "hf-trainer"),
        ("nvidia-dle-tensorflow2", "nvidia-dle-tensorflow"), ("pytorch-ddp(adaptdl)", "adaptdl"), ("LLM Foundry 0.7", "composer"),
    ],
)  # fmt: skip
def test_a_spelling_means_its_most_particular_stack(spelling: str, name: str) -> None:
    assert stack(spelling).name == name


def test_an_unknown_spelling_is_not_taken_for_a_known_one() -> None:
    assert find_stack("tinygrad, commit b399d98") is None
    assert name_stack("something nanotron like") is None
    with pytest.raises(UnknownName, match="did you mean 'nanotron'"):
        stack("nanotorn")


def test_a_document_inherits_what_it_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('title = "Ours"\nlike = "nanotron"\n[plan]\nbalance = "layers"\n[costs]\nlog_sigma = 0.3\n')
    ours, theirs = read_stack(path), stack("nanotron")
    assert ours.plan == replace(theirs.plan, balance="layers")
    assert (ours.product_factor, ours.log_sigma, ours.name) == (theirs.product_factor, 0.3, "ours")


def test_a_misspelt_key_of_a_document_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('title = "Ours"\n[plan]\nsequence_paralel = true\n')
    with pytest.raises(InvalidInput, match="did you mean 'sequence_parallel'"):
        read_stack(path)


def test_another_package_adds_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="from-elsewhere", value=f"{__name__}:PLUGGED", group="traincast.stacks")
    monkeypatch.setattr(EntryPoint, "load", lambda self: PLUGGED)
    monkeypatch.setattr(registry, "_entry_points", lambda _: EntryPoints([point]))
    assert stack("from-elsewhere") == PLUGGED


def test_without_its_habits_a_stack_keeps_its_costs() -> None:
    bare = stack("nanotron").without_habits()
    assert bare.plan == Stack().plan
    assert bare.product_factor == stack("nanotron").product_factor
    assert plain_stack().is_plain


@pytest.mark.parametrize(
    ("spelling", "version"),
    [
        ("torchtitan 0.2", "0.2"),
        ("Megatron-Core 26.02.01", "26.02"),
        ("pytorch-2.4-rocm", "2.4"),
        ("deepspeed==0.14.2", "0.14"),
        ("pytorch-1", ""),
        ("fsdp2", ""),
        ("nanotron", ""),
    ],
)
def test_a_spelling_may_end_in_a_version(spelling: str, version: str) -> None:
    found = stack(spelling)
    assert found.version == version
    assert stack(found.spelling) == found
