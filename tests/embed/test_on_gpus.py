"""The reuse predictor on GPUs: a factor on the priced operators, from the vector of a graph."""

import math

import numpy as np
import pytest

from traincast.embed import ON_GPUS, GpuReuse, load_encoder, load_gpu_reuse, read_gpu_reuse

SIZE = 4


def make_reuse(label: float = 0.2, *, error: float = 0.1, rival_error: float = 0.2) -> GpuReuse:
    """One known program at the origin, whose priced operators miss so much."""
    noise = 0.1
    spread = 0.15
    weight = label / (spread**2 + noise**2)
    known = {
        "names": ["one"], "vectors": [[0.0] * SIZE], "weights": [weight], "ordinary": 1.0, "error": error,
        "rival_error": rival_error,
    }  # fmt: skip
    return read_gpu_reuse(
        {
            "center": [0.0] * SIZE,
            "scale": [1.0] * SIZE,
            "reach": 1.0,
            "spread": spread,
            "known": {"training on images": known},
        }
    )


def test_a_known_program_is_corrected_and_a_stranger_is_not() -> None:
    reuse = make_reuse()
    near = reuse.answer(np.zeros(SIZE), "training on images")
    far = reuse.answer(np.full(SIZE, 50.0), "training on images")
    assert near is not None
    assert far is not None
    assert 0.1 < math.log(near.factor) < 0.2
    assert far.factor == pytest.approx(1.0)
    assert far.farness > near.farness
    assert near.nearest == "one"


def test_programs_that_are_run_in_another_way_have_no_answer() -> None:
    assert make_reuse().answer(np.zeros(SIZE), "inference on tokens") is None


def test_it_is_better_only_where_its_left_out_error_is_lower() -> None:
    for error, rival, better in ((0.1, 0.2, True), (0.2, 0.1, False)):
        found = make_reuse(error=error, rival_error=rival).answer(np.zeros(SIZE), "training on images")
        assert found is not None
        assert found.is_better is better


def test_the_shipped_one_knows_images_and_fits_the_encoder() -> None:
    assert ON_GPUS.is_file()
    reuse = load_gpu_reuse()
    assert {"training on images", "inference on images"} <= set(reuse.known)
    size = load_encoder().weights["leave.weight"].shape[0]
    assert all(each.vectors.shape[1] == size for each in reuse.known.values())
    assert all(0 < each.error < 0.5 for each in reuse.known.values())
