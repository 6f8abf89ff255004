"""Which steps of the corpus are measured where."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from research.corpus import HEAP_RELEASED, read_resources
from research.corpus.architectures import build_architecture, large_image_names
from traincast.profile._architectures import parse_name
from traincast.spec import Block


def test_architectures_on_large_images_are_small_enough_for_a_link() -> None:
    names = large_image_names()
    assert len(names) == len(set(names)) == 9
    assert len({parse_name(name)[0] for name in names}) == 3
    model, inputs = build_architecture(names[0])
    images, _ = inputs(1)
    assert images.shape[-2:] == (224, 224)
    assert sum(weight.numel() for weight in model.parameters()) * 4 < 5e6


def test_resident_memory_of_ranks_that_kept_that_of_earlier_steps_is_unknown() -> None:
    names = {"rank0_memory_peak": 0.5, "rank0_rss_peak_bytes": 1e8, "rank0_gpu_peak": 0.9}
    kept = Block(started_at="", wall_s=(1.0,), resources=names)
    assert read_resources([kept]) == [{"rank0_gpu_peak": 0.9}]
    released = replace(kept, resources={**names, HEAP_RELEASED: 1.0})
    assert set(names) < set(read_resources([released])[0])
