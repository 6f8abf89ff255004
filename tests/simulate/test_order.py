import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.simulate._order import _by_formula, finish_times

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


@pytest.mark.parametrize("virtual_stages", [2, 3, 4])
@pytest.mark.parametrize(("stages", "rounds"), [(2, 4), (4, 8), (4, 16), (8, 8)])
def test_the_interleaved_bubble_is_that_of_narayanan_2021(stages: int, rounds: int, virtual_stages: int) -> None:
    """(p - 1) / (v m) of the time that the work itself takes."""
    ends = finish_times("interleaved", forward_s=[1.0] * stages, backward_s=[2.0] * stages, hop_s=0.0,
                        micro_batches=rounds, virtual_stages=virtual_stages)  # fmt: skip
    work_s = rounds * 3.0
    assert max(ends) - work_s == pytest.approx(work_s * (stages - 1) / (virtual_stages * rounds))


@pytest.mark.parametrize(("stages", "rounds"), [(2, 4), (4, 8), (4, 32), (8, 16)])
def test_the_zero_bubble_order_waits_a_third_as_long(stages: int, rounds: int) -> None:
    """ZB-H1 (Qi et al. 2024): (p - 1)(F + B - W) with F, the input half B and the weight half W of one length."""
    ends = finish_times(
        "zero-bubble", forward_s=[1.0] * stages, backward_s=[2.0] * stages, hop_s=0.0, micro_batches=rounds
    )
    assert max(ends) - rounds * 3.0 == pytest.approx((stages - 1) * 1.0)


@given(
    order=st.sampled_from(["interleaved", "zero-bubble"]),
    stages=st.integers(2, 5),
    turns=st.integers(1, 4),
    virtual_stages=st.integers(1, 3),
)
def test_formula_and_placement_agree_on_equal_stages(order: str, stages: int, turns: int, virtual_stages: int) -> None:
    virtual_stages = virtual_stages if order == "interleaved" else 1
    forward_s, backward_s, rounds = [1.0] * stages, [2.0] * stages, stages * turns
    exact = finish_times(order, forward_s=forward_s, backward_s=backward_s, hop_s=0.0, micro_batches=rounds,
                         virtual_stages=virtual_stages)  # fmt: skip
    formula = _by_formula(order, forward_s, backward_s, 0.0, rounds, virtual_stages)
    assert max(exact) == pytest.approx(max(formula))


@given(
    forward_s=st.lists(st.floats(0.1, 5.0), min_size=2, max_size=4), hop_s=st.floats(0.0, 1.0), turns=st.integers(1, 3)
)
def test_no_order_beats_the_work_of_any_stage_and_none_stalls(forward_s: list[float], hop_s: float, turns: int) -> None:
    backward_s = [2 * seconds for seconds in forward_s]
    rounds = turns * len(forward_s)
    for order, virtual_stages in (("interleaved", 2), ("interleaved", 3), ("zero-bubble", 1)):
        ends = finish_times(order, forward_s=forward_s, backward_s=backward_s, hop_s=hop_s, micro_batches=rounds,
                            virtual_stages=virtual_stages)  # fmt: skip
        assert all(end >= rounds * 3 * work - 1e-9 for end, work in zip(ends, forward_s, strict=True))
        serial_s = sum(3 * rounds * work for work in forward_s) + 4 * rounds * virtual_stages * len(forward_s) * hop_s
        assert max(ends) <= serial_s + 1e-9


@pytest.mark.parametrize(
    ("order", "virtual_stages"), [("gpipe", 1), ("1f1b", 1), ("zero-bubble", 1), ("interleaved", 2)]
)
def test_what_crosses_between_stages_goes_one_after_the_other(order: str, virtual_stages: int) -> None:
    """Where a hop takes longer than a pass, the link sets the pace."""
    ends = finish_times(order, forward_s=[0.1] * 2, backward_s=[0.2] * 2, hop_s=1.0, micro_batches=8,
                        virtual_stages=virtual_stages)  # fmt: skip
    assert max(ends) >= 8 * virtual_stages * 1.0
