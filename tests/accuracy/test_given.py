import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.accuracy.cases import Case
from traincast.accuracy.given import MAX_KNOWN, Known, blend, correct, expected_largest
from traincast.accuracy.predictions import Prediction, refuse


def make_case(**values: object) -> Case:
    usual: dict[str, object] = {
        "case_id": "x",
        "gpu": "t4",
        "model": "resnet50",
        "n_gpus": 1,
        "n_nodes": 1,
        "micro_batch": 32.0,
    }
    return Case(**{**usual, **values})  # type: ignore[arg-type]


def make_prediction(step_s: float = 1.0, *, communication: float = 0.0) -> Prediction:
    return Prediction(
        case_id="x", step_s=step_s, step_low_s=step_s / 2, step_high_s=step_s * 2, communication_share=communication
    )


def make_known(step_s: float, **values: object) -> Known:
    return Known(case=make_case(**values), prediction=make_prediction(), step_s=step_s)


def corrected(case: Case, prediction: Prediction, *known: Known) -> Prediction:
    return correct([case], [prediction], list(known))[0]


def test_nothing_known_changes_nothing() -> None:
    assert corrected(make_case(), make_prediction()) == make_prediction()


def test_an_unsupported_row_stays_unsupported() -> None:
    row = refuse("x", "no")
    assert corrected(make_case(), row, make_known(2.0)) == row


def test_the_own_measurement_is_nearly_believed_and_narrows_the_interval() -> None:
    moved = corrected(make_case(), make_prediction(), make_known(1.5))
    assert moved.step_s == pytest.approx(1.5, rel=0.03)
    assert moved.step_low_s is not None
    assert moved.step_high_s is not None
    assert moved.step_high_s / moved.step_low_s < 1.5


def test_a_stranger_moves_a_forecast_less_than_a_relative_and_both_less_than_itself() -> None:
    def shift(**values: object) -> float:
        moved = corrected(make_case(), make_prediction(), make_known(1.5, **values))
        return (moved.step_s or 0.0) - 1.0

    itself, same_device, stranger = shift(), shift(model="vgg16"), shift(model="vgg16", gpu="p100-pcie-16g")
    assert itself > same_device > stranger > 0


def test_a_one_device_profile_corrects_computation_and_not_the_network() -> None:
    known = make_known(1.5)
    many = make_case(n_gpus=16, n_nodes=4)
    computing = corrected(many, make_prediction(communication=0.0), known).step_s or 0.0
    talking = corrected(many, make_prediction(communication=0.9), known).step_s or 0.0
    assert computing > 1.3
    assert talking < 1.06


def test_a_model_whose_width_is_unknown_is_near_its_own_family_only() -> None:
    asked = make_case(n_gpus=8)
    own, other = (make_known(1.5, n_gpus=8, gpu="p100-pcie-16g", model=model) for model in ("resnet50", "yolov3"))
    moved = [(corrected(asked, make_prediction(), known).step_s or 0.0) - 1 for known in (own, other)]
    assert moved[0] > 3 * moved[1] > 0


def test_an_error_of_the_network_is_shared_most_by_near_placements() -> None:
    def known(nodes: int) -> Known:
        case = make_case(model="other", n_gpus=4 * nodes, n_nodes=nodes)
        return Known(case=case, prediction=make_prediction(communication=0.8), step_s=1.5)

    asked = make_case(n_gpus=8, n_nodes=2)
    near, far = ((corrected(asked, make_prediction(communication=0.8), known(n)).step_s or 0.0) for n in (2, 16))
    assert near > far > 1.0


@given(st.floats(0.2, 5.0), st.integers(0, 8))
def test_a_correction_never_leaves_the_side_of_the_evidence(ratio: float, octave: int) -> None:
    moved = corrected(make_case(micro_batch=2.0**octave), make_prediction(), make_known(ratio))
    assert moved.step_s is not None
    assert moved.step_low_s is not None
    assert moved.step_high_s is not None
    assert min(1.0, ratio) - 1e-9 <= moved.step_s <= max(1.0, ratio) + 1e-9
    assert 0 < moved.step_low_s <= moved.step_s <= moved.step_high_s


def test_more_known_rows_than_the_limit_are_thinned_and_still_believed() -> None:
    known = [make_known(1.5, micro_batch=float(size)) for size in range(1, 2 * MAX_KNOWN)]
    moved = correct([make_case()], [make_prediction()], known)[0]
    assert moved.step_s == pytest.approx(1.5, rel=0.03)


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=4), st.floats(0.01, 100.0))
def test_a_mean_of_answers_is_never_further_off_than_they_are_on_average(steps_s: list[float], truth_s: float) -> None:
    mean = blend([make_prediction(step_s) for step_s in steps_s])
    assert mean.step_s is not None
    errors = [abs(math.log(step_s / truth_s)) for step_s in steps_s]
    assert abs(math.log(mean.step_s / truth_s)) <= sum(errors) / len(errors) + 1e-9


def test_an_answer_that_is_missing_is_left_out_of_the_mean() -> None:
    assert blend([make_prediction(2.0), refuse("x", "no")]) == make_prediction(2.0)
    assert blend([refuse("x", "no")]) == refuse("x", "no")


def test_the_expected_largest_is_that_of_normal_numbers() -> None:
    assert expected_largest(1) == 0
    assert [expected_largest(count) for count in (2, 4, 16)] == pytest.approx([0.564, 1.03, 1.77], rel=0.05)


def test_waiting_seen_on_few_ranks_is_expected_to_grow_on_more() -> None:
    alone, few = make_known(1.0), make_known(1.3, n_gpus=4)
    shifts = [
        corrected(make_case(n_gpus=count), make_prediction(), alone, few).step_s or 0.0 for count in (1, 2, 4, 8, 16)
    ]
    assert shifts == sorted(shifts)
    assert shifts[-1] > shifts[2]


def test_only_models_of_varying_inputs_learn_waiting_from_each_other() -> None:
    def moved(family: str) -> float:
        known = [
            make_known(step_s, n_gpus=count, model="deepspeech2", family="speech-rnn")
            for count, step_s in ((1, 1.0), (8, 1.5))
        ]
        case = make_case(n_gpus=8, family=family)
        return corrected(case, make_prediction(), *known).step_s or 0.0

    assert moved("detection") > moved("cnn") + 0.03
