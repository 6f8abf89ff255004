"""Samples of several sizes: images in buckets, texts padded to the longest, masks of documents."""

from typing import Any

import pytest

from traincast.errors import InvalidInput
from traincast.plan import decide
from traincast.plan._ask import ask
from traincast.resolve._sizes import pad_to_largest, read_image_sizes
from traincast.spec import Forecast, Question, WorkloadOptions


def question(model: str, *, job: dict[str, Any] | None = None, num_gpus: int = 8, **options: Any) -> Question:
    workload = WorkloadOptions(**{"precision": "bf16", "batch": 8, **options})
    cluster = {"device": "a100-80g", "devices_per_node": num_gpus}
    plan = {"data": num_gpus, "zero": 0, "recompute": "none"}
    return Question(source=model, workload=workload, cluster=cluster, parallelism=plan, job=job or {})


def answer(model: str = "vit-b16", **options: Any) -> Forecast:
    return ask(question(model, **options))


def squares(**shares: float) -> dict[tuple[int, int], float]:
    return {(int(side[1:]), int(side[1:])): share for side, share in shares.items()}


def test_sizes_are_read_as_a_range_or_with_their_shares() -> None:
    assert read_image_sizes("256..1024") == squares(s256=0.2, s448=0.2, s640=0.2, s832=0.2, s1024=0.2)
    assert read_image_sizes("384:1, 224:3") == squares(s224=0.75, s384=0.25)
    assert list(read_image_sizes("480x1333..800x1333"))[::4] == [(480, 1333), (800, 1333)]
    assert read_image_sizes("800x1333:1, 3x1333x800:3") == {(800, 1333): 0.25, (1333, 800): 0.75}


@pytest.mark.parametrize("text", ["22x", "", "0:1", "224:-1", "1024.."])
def test_sizes_that_nobody_can_mean_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="image_sizes"):
        read_image_sizes(text)


def test_the_largest_of_many_is_nearly_always_the_largest_of_all() -> None:
    two = squares(s224=0.5, s384=0.5)
    assert pad_to_largest(two, 1) == two
    assert pad_to_largest(two, 2) == pytest.approx(squares(s224=0.25, s384=0.75))
    assert sum(pad_to_largest(squares(s224=0.2, s256=0.3, s384=0.5), 16).values()) == pytest.approx(1)


def test_images_of_both_orientations_are_padded_to_a_square() -> None:
    both = {(800, 1333): 0.5, (1333, 800): 0.5}
    assert pad_to_largest(both, 2) == pytest.approx({(800, 1333): 0.25, (1333, 800): 0.25, (1333, 1333): 0.5})


@pytest.mark.parametrize("model", ["resnet50", "vit-b16", "retinanet", "sd-1.5-unet", "dit-xl-2", "yolov3"])
def test_a_rectangle_is_computed_as_one_and_not_as_a_square(model: str) -> None:
    def flop(size: int | str) -> float:
        return decide(question(model, input_size=size, batch=1)).job.graph.flop

    assert flop("384x768") == pytest.approx(flop("768x384"))
    assert flop(384) < flop("384x768") < flop(768)
    assert flop("3x384x384") == flop(384) == flop("384")
    if model == "resnet50":
        assert flop("384x768") == pytest.approx(2 * flop(384), rel=0.01)


def test_padded_rectangles_cost_more_than_the_images_in_them() -> None:
    sizes = "480x1344..800x1344"
    padded, bucketed = (
        answer("retinanet", image_sizes=sizes, size_batching=how, num_gpus=1) for how in ("padded", "bucketed")
    )
    assert padded.step.seconds > bucketed.step.seconds
    assert any("is padding" in text for text in padded.assumptions)


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
    fixed = decide(question("sd-1.5-unet", input_size=512, batch=1, job={"frozen_models": "sd-vae"})).job.regime
    mixed = decide(question("sd-1.5-unet", image_sizes="256,512", batch=1, job={"frozen_models": "sd-vae"})).job.regime
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
        decide(question("llama-3.2-1b", seq=4096, sample_tokens=512, packing=True, document_masks=masks)).job.graph.flop
        for masks in (True, None, False)
    ]
    assert flops[0] == flops[1] < flops[2]
    assert flops[2] == decide(question("llama-3.2-1b", seq=4096)).job.graph.flop
    with pytest.raises(InvalidInput, match="packing"):
        decide(question("llama-3.2-1b", document_masks=True))


def test_what_does_not_go_together_is_refused() -> None:
    for options in ({"size_batching": "bucketed"}, {"image_sizes": "224,384", "input_size": 224},
                    {"image_sizes": "224,384", "size_batching": "odd"}):  # fmt: skip
        with pytest.raises(InvalidInput):
            decide(question("vit-b16", **options))
