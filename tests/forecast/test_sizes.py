"""Samples of several sizes: images in buckets, texts padded to the longest, masks of documents."""

from typing import Any

import pytest

from traincast.errors import InvalidInput
from traincast.forecast import resolve
from traincast.forecast._ask import ask
from traincast.forecast._sizes import read_sides, share_of_largest
from traincast.spec import Forecast, Question, WorkloadOptions


def question(model: str, *, job: dict[str, Any] | None = None, num_gpus: int = 8, **options: Any) -> Question:
    workload = WorkloadOptions(**{"precision": "bf16", "batch": 8, **options})
    cluster = {"device": "a100-80g", "devices_per_node": num_gpus}
    plan = {"data": num_gpus, "zero": 0, "recompute": "none"}
    return Question(source=model, workload=workload, cluster=cluster, parallelism=plan, job=job or {})


def answer(model: str = "vit-b16", **options: Any) -> Forecast:
    return ask(question(model, **options))


def test_sides_are_read_as_a_range_or_with_their_shares() -> None:
    assert read_sides("256..1024") == [(256, 0.2), (448, 0.2), (640, 0.2), (832, 0.2), (1024, 0.2)]
    assert read_sides("384:1, 224:3") == [(224, 0.75), (384, 0.25)]


@pytest.mark.parametrize("text", ["22x", "", "0:1", "224:-1", "1024.."])
def test_sides_that_nobody_can_mean_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="image_sizes"):
        read_sides(text)


def test_the_largest_of_many_is_nearly_always_the_largest_of_all() -> None:
    assert share_of_largest([0.5, 0.5], 1) == [0.5, 0.5]
    assert share_of_largest([0.5, 0.5], 2) == pytest.approx([0.25, 0.75])
    assert sum(share_of_largest([0.2, 0.3, 0.5], 16)) == pytest.approx(1)


def test_grouped_images_take_the_mean_of_their_steps_and_the_memory_of_the_largest() -> None:
    small, large = answer(input_size=224), answer(input_size=448)
    mixed = answer(image_sizes="224:0.5,448:0.5", size_batching="grouped")
    assert mixed.step.seconds == pytest.approx((small.step.seconds + large.step.seconds) / 2, rel=1e-6)
    assert mixed.memory.peak_bytes == pytest.approx(large.memory.peak_bytes)
    assert mixed.global_batch == small.global_batch


def test_replicas_with_different_sizes_wait_for_the_largest_and_padding_costs_more_than_buckets() -> None:
    steps = [
        answer(image_sizes="224:0.5,384:0.4,448:0.1", size_batching=how).step.seconds
        for how in ("grouped", "bucketed", "padded")
    ]
    largest = answer(input_size=448).step.seconds
    assert steps[0] < steps[1] <= largest * (1 + 1e-9)
    assert steps[0] < steps[2] <= largest * (1 + 1e-9)
    alone = [
        answer(image_sizes="224,448", size_batching=how, num_gpus=1).step.seconds for how in ("grouped", "bucketed")
    ]
    assert alone[0] == alone[1]


def test_an_encoder_of_latents_sees_images_of_the_sizes_that_are_trained_on() -> None:
    fixed = resolve(question("sd-1.5-unet", input_size=512, batch=1, job={"frozen_models": "sd-vae"})).job.regime
    mixed = resolve(question("sd-1.5-unet", image_sizes="256,512", batch=1, job={"frozen_models": "sd-vae"})).job.regime
    assert fixed is not None
    assert mixed is not None
    once = fixed.passes[0].graph.flop
    spent = mixed.passes[0].graph.flop * mixed.passes[0].times
    assert spent == pytest.approx(once * (1 + 1 / 4) / 2, rel=0.05)


def test_padded_texts_need_the_memory_of_the_longest_and_tokens_count_without_padding() -> None:
    found = answer("llama-3.2-1b", seq=8192, sample_tokens=500, batch=4, job={"tokens": 1e9})
    usual = answer("llama-3.2-1b", seq=1000, batch=4)
    assert found.memory.peak_bytes > 1.5 * usual.memory.peak_bytes
    assert found.job.num_steps == pytest.approx(1e9 / 500 / 32, rel=0.01)
    assert any("memory is that of samples" in text for text in found.assumptions)


def test_packed_samples_without_masks_attend_to_the_whole_sequence() -> None:
    flops = [
        resolve(
            question("llama-3.2-1b", seq=4096, sample_tokens=512, packing=True, document_masks=masks)
        ).job.graph.flop
        for masks in (True, None, False)
    ]
    assert flops[0] == flops[1] < flops[2]
    assert flops[2] == resolve(question("llama-3.2-1b", seq=4096)).job.graph.flop
    with pytest.raises(InvalidInput, match="packing"):
        resolve(question("llama-3.2-1b", document_masks=True))


def test_what_does_not_go_together_is_refused() -> None:
    for options in ({"size_batching": "bucketed"}, {"image_sizes": "224,384", "input_size": 224},
                    {"image_sizes": "224,384", "size_batching": "odd"}):  # fmt: skip
        with pytest.raises(InvalidInput):
            resolve(question("vit-b16", **options))
