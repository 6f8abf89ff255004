import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.simulate.order import _by_formula, finish_times

ORDERS = ["gpipe", "1f1b", "interleaved", "zero-bubble"]


@given(order=st.sampled_from(["gpipe", "1f1b"]), stages=st.integers(2, 6), rounds=st.integers(1, 12))
def test_equal_stages_end_after_filling_running_and_draining(order: str, stages: int, rounds: int) -> None:
    ends = finish_times(order, forward_s=[1.0] * stages, backward_s=[2.0] * stages, hop_s=0.0, micro_batches=rounds)
    assert max(ends) == pytest.approx((rounds + stages - 1) * 3.0)


@pytest.mark.parametrize("order", ORDERS)
def test_one_stage_is_no_pipeline(order: str) -> None:
    assert finish_times(order, forward_s=[1.0], backward_s=[2.0], hop_s=9.0, micro_batches=4) == [12.0]


@given(
    order=st.sampled_from(ORDERS),
    forward_s=st.lists(st.floats(0.1, 5.0), min_size=2, max_size=5),
    rounds=st.integers(1, 10),
    hop_s=st.floats(0.0, 1.0),
)
def test_a_pipeline_is_never_faster_than_its_slowest_stage(
    order: str, forward_s: list[float], rounds: int, hop_s: float
) -> None:
    backward_s = [2 * seconds for seconds in forward_s]
    ends = finish_times(order, forward_s=forward_s, backward_s=backward_s, hop_s=hop_s, micro_batches=rounds)
    assert max(ends) >= rounds * 3 * max(forward_s) - 1e-9


@given(forward_s=st.lists(st.floats(0.1, 5.0), min_size=2, max_size=5), rounds=st.integers(1, 20))
def test_the_formula_is_near_the_recurrence(forward_s: list[float], rounds: int) -> None:
    backward_s = [2 * seconds for seconds in forward_s]
    exact = max(finish_times("1f1b", forward_s=forward_s, backward_s=backward_s, hop_s=0.0, micro_batches=rounds))
    formula = max(_by_formula("1f1b", forward_s, backward_s, 0.0, rounds, 1))
    assert formula == pytest.approx(exact, rel=0.35)


def test_more_virtual_stages_shrink_the_bubble() -> None:
    def run(virtual_stages: int) -> float:
        return max(
            finish_times(
                "interleaved",
                forward_s=[1.0] * 4,
                backward_s=[2.0] * 4,
                hop_s=0.0,
                micro_batches=8,
                virtual_stages=virtual_stages,
            )
        )

    assert run(4) < run(2) < run(1)
