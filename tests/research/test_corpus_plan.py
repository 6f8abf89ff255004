"""Which steps of the corpus are measured where."""

import pytest

pytest.importorskip("torch")

from research.corpus.plan import BATCHES, LARGE_IMAGE_SETTINGS, experiments_in
from traincast.profile._architectures import build_architecture, family_of, large_image_names
from traincast.profile._settings import SETTINGS


def test_large_images_are_measured_at_the_small_batch_in_a_few_settings() -> None:
    names = large_image_names()
    assert len(names) == len(set(names)) == 12
    assert len({family_of(name) for name in names}) == 4
    model, inputs = build_architecture(names[0])
    images, _ = inputs(1)
    assert images.shape[-2:] == (224, 224)
    assert sum(weight.numel() for weight in model.parameters()) * 4 < 5e6
    for setting in SETTINGS:
        found = list(experiments_in(setting, names))
        assert len(found) == (12 if setting.name in LARGE_IMAGE_SETTINGS else 0)
        assert {each.attrs["batch"] for each in found} <= {BATCHES[0]}
