"""The reuse predictor on GPUs: a factor on the priced operators, from the vector of a graph."""

import math

import numpy as np
import pytest

from traincast.catalog import workload
from traincast.embed import ON_GPUS, data_type, load_gpu_reuse
from traincast.embed._encoder import load_encoder
from traincast.embed._features import DATA_TYPES
from traincast.embed._on_gpus import GpuReuse, read_gpu_reuse

SIZE = 4


def make_reuse(label: float = 0.2, *, error: float = 0.1, rival_error: float = 0.2) -> GpuReuse:
    """One known program at the origin, whose priced operators miss so much."""
    noise = 0.1
    spread = 0.15
    weight = label / (spread**2 + noise**2)
    known = {
        "names": ["one"], "vectors": [[0.0] * SIZE], "weights": [weight], "ordinary": 1.0, "error": error,
        "rival_error": rival_error, "weight": 0.5 if error < rival_error else 0.0,
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
    near = reuse.answer("training on images", vector=lambda: np.zeros(SIZE))
    far = reuse.answer("training on images", vector=lambda: np.full(SIZE, 50.0))
    assert near is not None
    assert far is not None
    assert 0.1 < math.log(near.factor) < 0.2
    assert far.factor == pytest.approx(1.0)
    assert far.farness > near.farness
    assert near.nearest == "one"


def test_programs_that_are_run_in_another_way_have_no_answer() -> None:
    assert make_reuse().answer("inference on tokens", vector=lambda: np.zeros(SIZE)) is None


def test_it_is_better_only_where_its_left_out_error_is_lower() -> None:
    for error, rival, better in ((0.1, 0.2, True), (0.2, 0.1, False)):
        found = make_reuse(error=error, rival_error=rival).answer("training on images", vector=lambda: np.zeros(SIZE))
        assert found is not None
        assert found.is_better is better


def test_the_weight_fades_with_the_distance_and_ends() -> None:
    reuse = make_reuse()
    weights = []
    for away in (0.0, 0.5, 1.0, 4.0, 50.0):
        found = reuse.answer("training on images", vector=lambda at=away: np.full(SIZE, at))  # type: ignore[misc]
        assert found is not None
        weights.append(found.weight)
    assert weights == sorted(weights, reverse=True)
    assert weights[0] == 0.5
    assert weights[-1] == 0.0


def test_programs_are_compared_by_shares_of_classes_where_those_are_known() -> None:
    known = {
        "names": ["one", "two"], "classes": ["conv", "norm"], "shares": [[0, 900.0, 1, 100.0], [0, 100.0, 1, 900.0]],
        "weights": [5.0, -5.0], "ordinary": 1.0, "error": 0.1, "rival_error": 0.2, "weight": 1.0, "half_at": 0.5,
    }  # fmt: skip
    reuse = read_gpu_reuse(
        {"center": [], "scale": [], "reach": 1.0, "spread": 0.15, "known": {"training on images": known}}
    )
    found = [
        reuse.answer("training on images", vector=lambda: np.zeros(0), shares={"conv": share, "norm": 1 - share})
        for share in (0.9, 0.1, 0.5)
    ]
    one, two, between = found
    assert one is not None
    assert two is not None
    assert between is not None
    assert (one.nearest, two.nearest) == ("one", "two")
    assert one.factor > 1 > two.factor
    assert one.weight == pytest.approx(1.0)
    assert between.weight < 0.2
    assert reuse.answer("training on images", vector=lambda: np.zeros(0)) is None
    strange = reuse.answer("training on images", vector=lambda: np.zeros(0), shares={"never seen": 1.0})
    assert strange is not None
    assert strange.weight < 0.1


def test_the_shipped_ones_know_every_type_of_data_that_was_measured_and_fit_the_encoder() -> None:
    assert ON_GPUS.is_file()
    reuse = load_gpu_reuse()
    runs = {f"training on {kind}" for kind in DATA_TYPES if kind != "vectors"}
    assert runs | {"inference on images", "compiled inference on images"} <= set(reuse.known)
    assert len(reuse.center) == load_encoder().weights["leave.weight"].shape[0]
    assert all(0 <= known.weight <= 1 and known.num_steps > 0 for known in reuse.known.values())
    assert ON_GPUS.stat().st_size < 250_000


@pytest.mark.parametrize(
    ("name", "kind"),
    [("resnet50", "images"), ("maskrcnn", "detection"), ("unet3d", "detection"), ("gpt2", "tokens"),
     ("deepspeech2", "speech"), ("ncf-ml20m", "recommendation")],
)  # fmt: skip
def test_the_type_of_data_of_a_workload(name: str, kind: str) -> None:
    assert data_type(workload(name, batch=2)) == kind
