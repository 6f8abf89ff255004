import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import IllegalPlan
from traincast.spec import Parallelism
from traincast.spec._parallel import PRACTICED_PASSES, implied_micro_batches


@given(count=st.integers(1, 512), micro_batch=st.integers(1, 64), data=st.integers(1, 64), pipeline=st.integers(1, 16))
def test_a_global_batch_implies_the_micro_batches(count: int, micro_batch: int, data: int, pipeline: int) -> None:
    found = implied_micro_batches(
        micro_batch=micro_batch, data=data, pipeline=pipeline, global_batch=count * micro_batch * data
    )
    assert found.count == count
    assert "global batch" in found.reason


def test_a_pipeline_without_a_global_batch_has_several_micro_batches_for_each_stage_and_says_so() -> None:
    found = implied_micro_batches(micro_batch=2, data=4, pipeline=8)
    assert found.count == 8 * PRACTICED_PASSES
    assert "not given" in found.reason
    assert "global batch of 256" in found.reason


def test_without_a_pipeline_nothing_is_assumed() -> None:
    assert implied_micro_batches(micro_batch=2, data=4).count == 1
    assert implied_micro_batches(micro_batch=2, data=4).reason == ""


def test_a_global_batch_that_does_not_divide_is_refused_with_one_that_does() -> None:
    with pytest.raises(IllegalPlan, match="use 24"):
        implied_micro_batches(micro_batch=2, data=4, pipeline=2, global_batch=27)


def test_gradients_travel_in_a_format_that_exists() -> None:
    with pytest.raises(IllegalPlan, match=r"allowed: .*bf16"):
        Parallelism(data=2, reduce_dtype="half")
