"""The encoder: what a node hears, what the vector knows, and that numpy says what torch said."""

import numpy as np
import pytest

from builders import make_matmul, make_mlp
from traincast.embed._encoder import SIZE, load_encoder, reverse, save_encoder
from traincast.embed._features import COLUMNS, dataset_type, describe, earlier_neighbours, find_sources
from traincast.errors import InvalidInput
from traincast.spec import Graph, Op, Tensor


def test_a_node_hears_what_it_reads_and_what_lies_behind_at_the_shortest_distance() -> None:
    # 0 -> 1 -> 2 and 0 -> 2: the direct way counts.
    sources, distances = find_sources([[], [0], [0, 1], [2]])
    assert sources[3].tolist() == [2, 0, 1]
    assert distances[3].tolist() == [1, 2, 2]
    assert sources[0].tolist() == []


def test_virtual_edges_end_at_the_cut_off() -> None:
    sources, distances = find_sources([[], [0], [1], [2], [3]], cut_off=2)
    assert dict(zip(sources[4].tolist(), distances[4].tolist(), strict=True)) == {3: 1, 2: 2}


def test_the_way_back_is_the_way_there_reversed() -> None:
    nodes = describe(make_mlp(layers=2))
    there = {(int(u), v) for v, heard in enumerate(nodes.sources) for u in heard}
    back = {(v, int(u)) for v, heard in enumerate(reverse(nodes)[0]) for u in heard}
    assert there == back
    assert there


def test_what_a_layer_hands_to_its_own_next_run_is_no_edge() -> None:
    carried = make_matmul(reads=(0,), writes=(0,))
    assert earlier_neighbours([carried, carried]) == [[], [0]]


def test_numpy_gives_what_torch_gave() -> None:
    torch = pytest.importorskip("torch")
    from research.fits.embedding.encoder import Network, export, stack

    torch.manual_seed(3)
    network = Network(len(COLUMNS), num_targets=5)
    nodes = [describe(make_mlp(layers=layers, folded=False)) for layers in (2, 3)]
    batch = stack(nodes, [[0.0] * 5] * 2)
    with torch.no_grad():
        expected = network.pool(network.spread(batch, batch.features), batch.present).numpy()
    encoder = export(network)
    for row, each in zip(expected, nodes, strict=True):
        assert encoder.encode(each) == pytest.approx(row, abs=1e-5)


def test_the_gradient_of_a_traversal_is_that_of_small_differences() -> None:
    torch = pytest.importorskip("torch")
    from research.fits.embedding.encoder import Traversal

    torch.manual_seed(0)
    size, nodes, graphs = 2, 4, 2

    def noise(*shape: int) -> object:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    heard = torch.rand(graphs, nodes, nodes, dtype=torch.float64).tril(-1)
    weights = [noise(3 * size, size), noise(3 * size), noise(3 * size, size), noise(3 * size)]
    weights += [noise(size, size), noise(size), noise(size, size), noise(size)]
    arguments = (noise(graphs, nodes, size), heard, heard**2, range(nodes), *weights)
    assert torch.autograd.gradcheck(Traversal.apply, arguments)


def test_training_lowers_the_loss_and_the_same_seed_gives_the_same_weights(tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("torch")
    from research.fits.embedding.encoder import Training, train_encoder

    graphs = [make_mlp(layers=layers, width=width) for layers in (2, 4) for width in (32, 256)]
    lines: list[str] = []
    first = train_encoder(graphs, training=Training(epochs=8, learning_rate=0.01), say=lines.append)
    again = train_encoder(graphs, training=Training(epochs=8, learning_rate=0.01))
    losses = [float(line.rsplit(" ", 1)[1]) for line in lines]
    assert losses[-1] < losses[0]
    assert all(np.array_equal(first.weights[name], again.weights[name]) for name in first.weights)
    save_encoder(first, tmp_path / "encoder.safetensors")
    kept = load_encoder(tmp_path / "encoder.safetensors")
    assert kept.embed(graphs[0]) == pytest.approx(first.embed(graphs[0]), abs=1e-5)


def test_the_vector_knows_batch_and_width() -> None:
    encoder = load_encoder()
    vectors = [encoder.embed(make_mlp(batch=batch, width=width)) for batch, width in ((4, 64), (64, 64), (4, 512))]
    assert all(vector.shape == (SIZE,) for vector in vectors)
    for other in vectors[1:]:
        assert np.abs(vectors[0] - other).max() > 1e-3


def test_the_same_graph_is_the_same_vector() -> None:
    assert np.array_equal(load_encoder().embed(make_mlp()), load_encoder().embed(make_mlp()))


def test_a_graph_without_operations_is_refused() -> None:
    empty = Graph(name="nothing", ops=(), tensors=(), batch_size=1)
    with pytest.raises(InvalidInput, match="without operations"):
        load_encoder().embed(empty)


def _graph(shape: tuple[int, ...], *ops: Op) -> Graph:
    return Graph(name="g", ops=ops, tensors=(Tensor(shape=shape, dtype="fp32", role="input"),), batch_size=shape[0])


def _lookup(rows: int) -> Op:
    return Op(
        name="aten.embedding", kind="embedding", flop=0.0, bytes_read=1.0, bytes_written=1.0,
        attrs={"rows": rows, "cols": 8, "vocab": 100},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("graph", "kind"),
    [
        (_graph((4, 3, 32, 32), make_matmul()), "image"),
        (_graph((4, 16), _lookup(64)), "token"),
        (_graph((4, 16), _lookup(4)), "vector"),
        (make_mlp(), "vector"),
    ],
)
def test_the_type_of_data_follows_from_inputs_and_look_ups(graph: Graph, kind: str) -> None:
    assert dataset_type(graph) == kind
