"""What a loss keeps of the scores of a language model."""

from dataclasses import replace

import pytest

from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.lower import lower
from traincast.simulate import Overheads, replay_memory
from traincast.spec import Parallelism

VOCAB, TOKENS = 64_000, 512
SHAPE = TransformerShape(n_layers=1, hidden=16, heads=1, vocab=VOCAB, seq=TOKENS, gated=True, tied=True)


def peak_bytes(**recipe: object) -> float:
    graph = build_transformer(SHAPE, Recipe(precision="bf16-pure", optimizer="sgd", **recipe), batch=1)  # type: ignore[arg-type]
    return replay_memory(lower(graph, Parallelism()).stages[0], capacity_bytes=1e12).peak_bytes


@pytest.mark.parametrize(
    ("kernels", "bytes_less"),
    [({"fused_loss": True}, 2), ({"fused": True}, 2), ({}, 8)],
    ids=["one kernel", "split", "plain"],
)
def test_a_loss_in_place_has_no_second_copy_of_the_scores(kernels: dict[str, bool], bytes_less: int) -> None:
    saved = peak_bytes(**kernels) - peak_bytes(**kernels, loss_in_place=True)
    assert saved == pytest.approx(bytes_less * VOCAB * TOKENS, rel=0.05)


def test_scores_that_leave_the_model_in_fp32_stay_until_the_loss_has_its_gradient() -> None:
    kept = peak_bytes(loss_in_place=True, wide_scores=True) - peak_bytes(loss_in_place=True)
    # Two copies of four bytes, where two of two bytes were.
    assert kept == pytest.approx(4 * VOCAB * TOKENS, rel=0.05)


def test_a_pipeline_engine_keeps_the_outputs_of_two_micro_batches() -> None:
    graph = build_transformer(SHAPE, Recipe(precision="bf16-pure"), batch=1)
    (stage,) = lower(graph, Parallelism(micro_batches=4)).stages
    overheads = replace(Overheads.usual(), keeps_outputs=True)

    def kept(micro_batches: int) -> float:
        profile = replay_memory(stage, capacity_bytes=1e12, micro_batches=micro_batches, overheads=overheads)
        return profile.by_role["kept outputs"]

    assert kept(4) == 2 * kept(1) == 2 * 2 * VOCAB * TOKENS


def test_an_untied_head_has_a_weight_and_a_gradient_of_its_own() -> None:
    weights = {
        untied: sum(
            tensor.num_bytes
            for tensor in build_transformer(SHAPE, Recipe(precision="bf16-pure", untied=untied), batch=1).tensors
            if tensor.role in ("parameter", "gradient")
        )
        for untied in (False, True)
    }
    assert weights[True] - weights[False] == 2 * 2 * VOCAB * SHAPE.hidden
