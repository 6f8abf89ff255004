import numpy as np
import pytest

from research.baselines.layers import (
    Ran,
    box_features,
    cluster_terms,
    fit_additive_steps,
    fit_black_box,
    total,
)
from traincast.errors import InvalidInput
from traincast.spec._graph import Graph, Op, Repeat, Tensor


def graph(flop: float, moved: float, *, times: int = 1) -> Graph:
    op = Op(
        name="mm", kind="matmul", flop=flop, bytes_read=moved, bytes_written=0.0,
        attrs={"batch": 1, "m": 1, "n": 1, "k": 1, "layout": "tn"},
    )  # fmt: skip
    weights = Tensor(shape=(250,), dtype="fp32", role="parameter")
    return Graph(name="g", ops=(op,), tensors=(weights,), batch_size=4, repeats=(Repeat(start=0, stop=1, count=times),))


ALONE = Ran(num_ranks=1, bytes_per_s=1e9, share=0.5)


def test_totals_count_repeated_layers() -> None:
    found = total(graph(10.0, 4.0, times=3))
    assert found.linear.sum() == pytest.approx(3 + 30 + 12)
    assert found.powers.sum() == pytest.approx(3 * (10**0.5 + 4**0.5 + 10**0.75 + 4**0.75))
    assert found.parameter_bytes == 1000


def test_a_ring_of_four_sends_one_and_a_half_times_the_weights() -> None:
    terms = cluster_terms(total(graph(1.0, 1.0)), Ran(num_ranks=4, bytes_per_s=100.0, share=1.0))
    assert terms.tolist() == pytest.approx([1.0, 3.0, 15.0])


def test_the_additive_linear_model_recovers_a_line_and_divides_by_the_share() -> None:
    rows = [(total(graph(flop, moved)), ALONE) for flop in (1e6, 4e6, 9e6) for moved in (1e5, 7e5, 2e6)]
    seconds = [(flop * 2e-9 + moved * 3e-9) / 0.5 for flop in (1e6, 4e6, 9e6) for moved in (1e5, 7e5, 2e6)]
    model = fit_additive_steps(rows, seconds, nonlinear=False)
    asked = total(graph(5e6, 1e6))
    assert model.seconds(asked, ALONE) == pytest.approx((5e6 * 2e-9 + 1e6 * 3e-9) / 0.5, rel=0.02)


def test_the_non_linear_model_bends_where_the_linear_one_cannot() -> None:
    flops = np.logspace(4, 8, 12)
    rows = [(total(graph(float(flop), 1.0)), ALONE) for flop in flops]
    seconds = [1e-6 * float(flop) ** 0.5 for flop in flops]
    errors = {
        bent: max(
            abs(fit_additive_steps(rows, seconds, nonlinear=bent).seconds(*row) / took - 1)
            for row, took in zip(rows, seconds, strict=True)
        )
        for bent in (False, True)
    }
    assert errors[True] < 0.1 < errors[False]


def test_no_step_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        fit_additive_steps([], [], nonlinear=False)


def test_a_black_box_of_two_points_is_the_closed_formula() -> None:
    features, seconds = np.array([[0.0], [2.0]]), [1.0, np.e]
    model = fit_black_box(features, seconds, width=1.0, ridge=0.5)
    # Scaled to -1 and 1, two apart: the kernel matrix is [[1, e^-2], [e^-2, 1]] and the targets are -0.5 and 0.5.
    weight = 0.5 / (1 + 0.5 - np.exp(-2))
    expected = np.exp(0.5 + weight * (1 - np.exp(-2)))
    assert model.seconds(np.array([[2.0]]))[0] == pytest.approx(expected)


def test_a_black_box_is_told_sizes_only() -> None:
    first, second = (box_features(total(graph(10.0, 4.0, times=times)), ALONE) for times in (1, 2))
    assert first.shape == (8,)
    assert (second[:3] > first[:3]).all()
    assert (second[3:] == first[3:]).all()
