import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.certainty._gaussian_process import MAX_KNOWN, Correction, Shares, condition, expected_largest, nearest
from traincast.spec import RunLabels
from traincast.spec._calibration import MeasuredForecast

LABELS = RunLabels(
    model="resnet50", family="residual", mode="training_step", precision="fp32", device="t4", stack="pytorch",
    num_parameters=25e6, num_layers=5, pass_tokens=32.0,
)  # fmt: skip


def correct(labels: RunLabels, own: Shares, runs: Sequence[MeasuredForecast]) -> Correction:
    return condition(nearest(runs, labels)).predict([(labels, own)])[0]


def shares(communication: float) -> tuple[float, float, float, float, float]:
    return 0.0, 0.0, communication, 0.0, 0.0


def known(measured_s: float, *, communication: float = 0.0, **values: object) -> MeasuredForecast:
    """A run that was forecast to take a second."""
    labels = replace(LABELS, **values)  # type: ignore[arg-type]
    return MeasuredForecast(labels=labels, shares=shares(communication), forecast_s=1.0, measured_s=measured_s)


def moved(labels: RunLabels, *runs: MeasuredForecast, communication: float = 0.0) -> float:
    """What becomes of a forecast of one second."""
    return math.exp(correct(labels, shares(communication), runs).log_ratio)


def test_the_own_measurement_is_nearly_believed_and_narrows_the_interval() -> None:
    found = correct(LABELS, shares(0.0), [known(1.5)])
    assert math.exp(found.log_ratio) == pytest.approx(1.5, rel=0.03)
    assert found.log_sigma < 0.12


def test_a_stranger_moves_a_forecast_less_than_a_relative_and_both_less_than_itself() -> None:
    other = {"model": "vgg16", "family": "plain", "num_parameters": 138e6}
    itself, same_device = moved(LABELS, known(1.5)), moved(LABELS, known(1.5, **other))
    assert itself > same_device > moved(LABELS, known(1.5, **other, device="p100-pcie-16g")) > 1


def test_a_planner_finds_the_correction_of_a_job_at_other_batches_and_whatever_is_recomputed() -> None:
    """Else it would prefer what was never measured, which is corrected less."""
    itself = moved(LABELS, known(1.5))
    assert moved(replace(LABELS, recompute="selective"), known(1.5)) == pytest.approx(itself)
    for octaves in (-3, -2, 2, 3):
        assert moved(replace(LABELS, pass_tokens=32.0 * 2.0**octaves), known(1.5)) > 1 + 0.5 * (itself - 1)


def test_a_one_device_profile_corrects_computation_and_not_the_network() -> None:
    many = replace(LABELS, num_devices=16, num_nodes=4)
    assert moved(many, known(1.5)) > 1.3
    assert moved(many, known(1.5), communication=0.9) < 1.06


def test_a_network_of_the_same_layers_is_nearer_than_another() -> None:
    asked = replace(LABELS, num_devices=8)
    far = {"num_devices": 8, "device": "p100-pcie-16g"}
    own = known(1.5, **far, model="resnet101", num_parameters=44e6)
    other = known(1.5, **far, model="yolov3", family="detector", num_parameters=62e6)
    assert moved(asked, own) > moved(asked, other) > 1


def test_an_error_of_the_network_is_shared_most_by_near_placements() -> None:
    asked = replace(LABELS, num_devices=8, num_nodes=2)
    near, far = (
        moved(
            asked,
            known(1.5, communication=0.8, model="other", family="other", num_devices=4 * nodes, num_nodes=nodes),
            communication=0.8,
        )
        for nodes in (2, 16)
    )
    assert near > far > 1.0


@given(st.floats(0.2, 5.0), st.integers(0, 8))
def test_a_correction_never_leaves_the_side_of_the_evidence(ratio: float, octave: int) -> None:
    found = moved(replace(LABELS, pass_tokens=2.0**octave), known(ratio))
    assert min(1.0, ratio) - 1e-9 <= found <= max(1.0, ratio) + 1e-9


def test_more_known_runs_than_the_limit_are_thinned_and_still_believed() -> None:
    runs = [known(1.5, pass_tokens=float(size)) for size in range(1, 2 * MAX_KNOWN)]
    assert moved(LABELS, *runs) == pytest.approx(1.5, rel=0.03)


def test_the_expected_largest_is_that_of_normal_numbers() -> None:
    assert expected_largest(1) == 0
    assert [expected_largest(count) for count in (2, 4, 16)] == pytest.approx([0.564, 1.03, 1.77], rel=0.05)


def test_waiting_seen_on_few_ranks_is_expected_to_grow_on_more() -> None:
    runs = known(1.0), known(1.3, num_devices=4)
    found = [moved(replace(LABELS, num_devices=count), *runs) for count in (1, 2, 4, 8, 16)]
    assert found == sorted(found)
    assert found[-1] > found[2]


def test_only_models_of_varying_inputs_learn_waiting_from_each_other() -> None:
    speech = {"model": "speech", "family": "recurrent", "varying_inputs": True}
    runs = [known(step_s, num_devices=count, **speech) for count, step_s in ((1, 1.0), (8, 1.5))]
    asked = replace(LABELS, num_devices=8)
    assert moved(replace(asked, varying_inputs=True), *runs) > moved(asked, *runs) + 0.03


def test_what_ranks_of_one_device_wait_is_not_carried_to_another_where_inputs_are_alike() -> None:
    there = {"num_devices": 64, "device": "another"}
    asked = replace(LABELS, num_devices=64)
    assert (
        moved(replace(asked, varying_inputs=True), known(1.5, **there, varying_inputs=True))
        > moved(asked, known(1.5, **there)) + 0.1
    )
