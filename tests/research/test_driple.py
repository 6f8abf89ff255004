"""Driple as a baseline: against small cases worked by hand."""

import pytest

torch = pytest.importorskip("torch")

from builders import make_mlp  # noqa: E402
from research.baselines.driple import (  # noqa: E402
    Convolution,
    Example,
    Grouped,
    Network,
    Set2Set,
    Training,
    batch_graphs,
    count_codes,
    fit,
    group,
    unroll,
)
from traincast.errors import InvalidInput  # noqa: E402

PAIR = Grouped(nodes=((1.0, 2.0, 3.0), (5.0, 6.0, 7.0)), edges=((0, 1),))
PATH = Grouped(nodes=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)), edges=((0, 1), (1, 2)))


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of so small a network only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_example(size: float) -> Example:
    nodes = ((size, 1.0, 0.5), (2 * size, 2.0, 0.25), (size, 1.0, 0.5))
    return Example(graph=Grouped(nodes=nodes, edges=((0, 1), (1, 2))), targets=tuple(size * k for k in range(1, 13)))


def small_network() -> Network:
    torch.manual_seed(0)
    return Network(size=16, num_layers=3, num_steps=3)


def test_the_network_has_the_released_number_of_parameters():
    network = Network()
    assert sum(weight.numel() for weight in network.parameters()) == 92_236
    assert sum(weight.numel() for weight in network.head.parameters()) == 13_196


def test_the_adjacency_is_normalised_by_both_degrees():
    adjacency = batch_graphs([PATH]).adjacency.to_dense()
    side = 1 / (2 * 3) ** 0.5
    expected = torch.tensor([[1 / 2, side, 0], [side, 1 / 3, side], [0, side, 1 / 2]])
    assert torch.allclose(adjacency, expected)


def test_a_convolution_of_two_nodes_averages_them():
    layer = Convolution(3, 1)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[1.0, 1.0, 1.0]]))
        layer.bias.fill_(10.0)
    batch = batch_graphs([PAIR])
    assert layer(batch.features, batch.adjacency).flatten().tolist() == pytest.approx([22.0, 22.0])


def test_the_set_of_one_node_reads_that_node():
    torch.manual_seed(0)
    nodes = torch.tensor([[0.3, -0.2]])
    pool = Set2Set(2, num_steps=4)
    assert pool(nodes, torch.tensor([0]), 1)[0, 2:].tolist() == pytest.approx([0.3, -0.2])


def test_one_step_over_two_nodes_is_a_softmax_of_products():
    torch.manual_seed(0)
    nodes = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    pool = Set2Set(2, num_steps=1)
    hidden, _ = pool.cell(torch.zeros(1, 4))
    shares = torch.softmax(nodes @ hidden[0], dim=0)
    expected = torch.cat([hidden[0], shares @ nodes])
    assert torch.allclose(pool(nodes, torch.tensor([0, 0]), 1)[0], expected, atol=1e-6)


def test_graphs_in_a_batch_do_not_touch_each_other():
    network = Network().eval()
    with torch.no_grad():
        both = network(batch_graphs([PAIR, PATH]))
        alone = torch.cat([network(batch_graphs([PAIR])), network(batch_graphs([PATH]))])
    assert both.shape == (2, 12)
    assert torch.allclose(both, alone, atol=1e-5)


def test_the_order_of_the_nodes_does_not_matter():
    network = small_network().eval()
    turned = Grouped(nodes=(PATH.nodes[2], PATH.nodes[0], PATH.nodes[1]), edges=((0, 2), (1, 2)))
    with torch.no_grad():
        assert torch.allclose(network(batch_graphs([PATH])), network(batch_graphs([turned])), atol=1e-5)


def test_codes_are_shares_and_a_gradient_has_the_code_of_its_op():
    codes = count_codes([make_mlp(layers=2)])
    assert sum(codes.values()) == pytest.approx(1)
    # 2 x (mm, relu) forward, one loss, 2 x (threshold, mm, mm) backward, one update.
    assert codes["aten.mm"] == pytest.approx(6 / 12)
    assert "aten.threshold" in codes
    assert "aten.threshold_backward" not in codes


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_folded_layers_unroll_to_the_ops_and_edges_they_stand_for(layers):
    folded, plain = make_mlp(layers=layers, folded=True), make_mlp(layers=layers, folded=False)
    runs, edges = unroll(folded)
    plain_runs, plain_edges = unroll(plain)
    assert [folded.ops[run].name for run in runs] == [plain.ops[run].name for run in plain_runs]
    chain = {pair for pair in plain_edges if pair[1] != len(runs) - 1}
    assert {pair for pair in edges if pair[1] != len(runs) - 1} >= chain - _to_first_input(plain, chain)


def _to_first_input(graph, edges):
    """The builder's folded layers save the carried tensor once, so weight gradients read it from another op."""
    return {pair for pair in edges if graph.ops[pair[1]].name == "aten.mm" and graph.ops[pair[0]].name == "aten.relu"}


def test_small_graphs_keep_every_op_and_large_ones_get_the_number_of_groups_asked_for():
    graph = make_mlp(layers=4, folded=False)
    codes = count_codes([graph])
    whole = group(graph, codes)
    assert len(whole.nodes) == len(graph.ops)
    few = group(graph, codes, num_groups=5)
    assert len(few.nodes) == 5
    for column in range(3):
        assert sum(node[column] for node in few.nodes) == pytest.approx(sum(node[column] for node in whole.nodes))
    assert few == group(graph, codes, num_groups=5)


def test_training_learns_sizes_and_keeps_the_best_of_the_validation():
    known = [make_example(size) for size in (1.0, 2.0, 3.0, 5.0, 8.0)]
    asked = [make_example(4.0)]
    training = Training(max_epochs=200)
    model = fit(known, asked, training=training, network=small_network())
    (answer,) = model.predict([asked[0].graph])
    assert answer == pytest.approx(asked[0].targets, rel=0.2)


def test_a_run_without_twelve_numbers_is_refused():
    with pytest.raises(InvalidInput, match="12"):
        Example(graph=PAIR, targets=(1.0, 2.0))
    with pytest.raises(InvalidInput, match="at least one"):
        fit([], [])
