import pytest

from builders import make_matmul, make_mlp
from traincast.errors import InvalidInput
from traincast.spec import Graph, Repeat, Tensor
from traincast.spec._graph import Scalable, segments


def test_a_folded_graph_counts_the_same_work_as_the_unfolded_one() -> None:
    folded, plain = make_mlp(layers=5), make_mlp(layers=5, folded=False)
    assert folded.flop == plain.flop
    assert folded.num_bytes == plain.num_bytes
    assert folded.num_parameters == plain.num_parameters
    assert len(folded.ops) < len(plain.ops)


def test_segments_cover_every_task_once_in_order() -> None:
    parts = list(segments((Repeat(start=2, stop=4, count=3), Repeat(start=5, stop=6, count=2)), num_tasks=8))
    assert [(part.start, part.stop, part.count) for part in parts] == [
        (0, 2, 1),
        (2, 4, 3),
        (4, 5, 1),
        (5, 6, 2),
        (6, 8, 1),
    ]


def test_a_graph_refuses_repeats_that_overlap() -> None:
    ops = tuple(make_matmul() for _ in range(4))
    with pytest.raises(InvalidInput, match="ranges must be ordered"):
        Graph(
            name="g",
            ops=ops,
            tensors=(),
            batch_size=1,
            repeats=(Repeat(start=0, stop=3, count=2), Repeat(start=2, stop=4, count=2)),
        )


def test_an_op_refuses_a_missing_attribute_by_name() -> None:
    with pytest.raises(InvalidInput, match="lacks the attributes k, layout"):
        make_matmul(attrs={"batch": 1, "m": 2, "n": 3})


def test_a_tensor_of_fp16_has_two_bytes_per_element() -> None:
    assert Tensor(shape=(3, 5), dtype="fp16", role="activation").num_bytes == 30


def test_a_model_recorded_at_two_batches_gives_every_other_batch_exactly() -> None:
    family = Scalable(small=make_mlp(batch=8), large=make_mlp(batch=16))
    assert family.at(40) == make_mlp(batch=40)


def test_a_model_whose_ops_change_with_the_batch_cannot_be_scaled() -> None:
    with pytest.raises(InvalidInput, match="changes its ops"):
        Scalable(small=make_mlp(batch=8, folded=False, layers=2), large=make_mlp(batch=16, folded=False, layers=3))
