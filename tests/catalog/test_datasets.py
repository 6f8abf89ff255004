import pytest

from traincast.catalog._datasets import dataset, datasets
from traincast.errors import UnknownName


def test_every_data_set_has_a_size_and_a_source() -> None:
    for each in datasets():
        sizes = (each.num_train_samples, each.num_eval_samples, each.num_tokens, each.size_bytes)
        assert all(size is None or size > 0 for size in sizes), each.name
        assert each.source, each.name
        assert each.confidence in {"high", "medium", "low"}, each.name


def test_imagenet_has_its_published_counts() -> None:
    found = dataset("ImageNet")
    assert (found.name, found.num_train_samples, found.num_eval_samples) == ("imagenet-1k", 1281167, 50000)


def test_a_data_set_for_language_models_counts_tokens() -> None:
    assert (dataset("openwebtext").num_tokens or 0) > 9e9
    assert dataset("common-voice-en").num_train_samples is None


def test_an_unknown_data_set_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="did you mean 'imagenet"):
        dataset("imagnet")
