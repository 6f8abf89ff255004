"""The graph network that corrects the twelve numbers: physics where it knows nothing, bounded, fading, the same as in torch."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import make_mlp
from traincast.errors import InvalidInput
from traincast.resources._adapt import adapt, choose_runs
from traincast.resources._correction import (
    BOUNDS,
    NUM_NODE_FEATURES,
    NUM_PLACE_FEATURES,
    NUM_ROUNDS,
    TWELVE,
    GraphCorrection,
    Nodes,
    describe_place,
    load_graph_correction,
    node_shares,
    read_nodes,
    save_graph_correction,
)
from traincast.resources._learned import OUTPUTS, Place, Rates, Run, compose, count_work, expect
from traincast.spec import RESOURCES

LINK = 1.25e8
RATES = Rates(values=(*([1e-9] * 11), *([1e-10] * 11), *([1e-5] * 11), 1e-3, 1e-9, 1e-3, 1e-4))


def place(num_ranks: int = 4) -> Place:
    return Place(num_ranks=num_ranks, bytes_per_s=LINK, narrowest_bytes_per_s=LINK, speed=0.25, slowest=0.25)


def nodes_of(layers: int = 3, width: int = 64) -> Nodes:
    graph = make_mlp(layers=layers, width=width)
    return read_nodes(graph, count_work(graph))


def make_member(seed: int, *, width: int = 4, size: float = 1.0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    sizes = {"in": (NUM_NODE_FEATURES, width), "hidden": (2 * width + NUM_PLACE_FEATURES, 5), "second": (5, 5)}
    sizes |= {"out": (5, len(OUTPUTS))}
    sizes |= {f"{name}{number}": (width, width) for number in range(NUM_ROUNDS) for name in ("own", "from", "to")}
    weights = {name: size * random.normal(size=shape) for name, shape in sizes.items()}
    biases = {f"{name}_bias": random.normal(size=sizes[name][1]) for name in ("in", "hidden", "second", "out")}
    return weights | biases | {f"round{number}_bias": random.normal(size=width) for number in range(NUM_ROUNDS)}


def make_correction(*, nodes: Nodes | None = None, size: float = 1.0, members: int = 2) -> GraphCorrection:
    """Knows the surroundings of one step."""
    nodes = nodes or nodes_of()
    point = describe_place(nodes.work, place(), expect(RATES, nodes.work, place()))
    return GraphCorrection(
        rates=RATES, centre=point, scale=np.ones(len(point)), low=point - 0.5, high=point + 0.5,
        members=tuple(make_member(seed, size=size) for seed in range(members)),
        errors=dict.fromkeys(TWELVE, (-0.2, 0.3)),
    )  # fmt: skip


def test_without_a_network_physics_answers_alone():
    nodes = nodes_of()
    expected = expect(RATES, nodes.work, place())
    answer = GraphCorrection(rates=RATES).predict(nodes, place())
    assert answer.step_s == expected.step_s
    assert answer.twelve["sent_peak"] == expected.peaks["sent"]
    assert answer.nearness == 0


def test_corrections_stay_within_their_bounds_however_large_the_weights_are():
    nodes = nodes_of()
    answers, near = make_correction(size=100.0).answer(nodes, place(), expect(RATES, nodes.work, place()))
    assert near == 1
    assert any(answers.values())
    for name, value in answers.items():
        assert abs(value) <= BOUNDS[name]


def test_far_from_the_runs_that_taught_it_a_correction_fades_to_none():
    known, far = nodes_of(), nodes_of(width=4096)
    correction = make_correction(nodes=known)
    answers, near = correction.answer(far, place(), expect(RATES, far.work, place()))
    assert near < 1e-3
    assert max(abs(value) for value in answers.values()) < 1e-2
    assert correction.predict(far, place()).step_s == pytest.approx(expect(RATES, far.work, place()).step_s, rel=1e-2)


def test_an_operator_of_a_kind_that_no_run_had_makes_a_step_a_stranger():
    nodes = nodes_of()
    correction = make_correction(nodes=nodes)
    unknown = replace(correction, known_groups=(False, *correction.known_groups[1:]))
    expected = expect(RATES, nodes.work, place())
    assert unknown.answer(nodes, place(), expected)[1] < correction.answer(nodes, place(), expected)[1]


def test_idle_and_burst_fill_the_step_and_a_given_step_is_kept():
    correction = make_correction()
    for step_s in (None, 0.25):
        answer = correction.predict(nodes_of(), place(), step_s=step_s)
        for resource in RESOURCES:
            whole_s = answer.twelve[f"{resource}_idle_s"] + answer.twelve[f"{resource}_burst_s"]
            assert whole_s == pytest.approx(step_s or answer.step_s)


def test_ranges_hold_the_number_and_are_wider_far_away():
    near, far = nodes_of(), nodes_of(width=4096)
    correction = make_correction(nodes=near)
    widths = []
    for nodes in (near, far):
        answer = correction.predict(nodes, place())
        for name, (low, high) in answer.ranges.items():
            assert low <= answer.twelve[name] <= high
        low, high = answer.ranges["gpu_peak"]
        widths.append((high - low) / answer.twelve["gpu_peak"])
    assert widths[1] > 2 * widths[0]


def test_one_rank_has_no_network_activity():
    twelve = make_correction().predict(nodes_of(), place(1)).twelve
    assert twelve["received_peak"] == twelve["sent_burst_s"] == 0


def test_shares_of_the_operators_add_up_and_edges_follow_the_tensors():
    nodes = nodes_of()
    assert node_shares(nodes, RATES).sum() == pytest.approx(1)
    assert (nodes.writers < nodes.readers).all()
    assert len(nodes.writers) > 0


def test_what_is_saved_answers_as_before(tmp_path: Path):
    correction = make_correction()
    save_graph_correction(correction, tmp_path / "twelve.json.gz")
    back = load_graph_correction(tmp_path / "twelve.json.gz")
    assert back.predict(nodes_of(), place()).twelve == pytest.approx(
        correction.predict(nodes_of(), place()).twelve, rel=1e-3
    )


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"research\.fits\.resources"):
        load_graph_correction(tmp_path / "other.json")


def test_a_graph_without_operations_is_refused():
    graph = replace(make_mlp(), ops=(), repeats=())
    with pytest.raises(InvalidInput, match="without operations"):
        read_nodes(graph, count_work(make_mlp()))


def measure(correction: GraphCorrection, nodes: Nodes, *, slower: float) -> Run:
    """What a setting would show that is slower than the correction says, and nothing else."""
    expected = expect(correction.rates, nodes.work, place())
    answers = correction.answer(nodes, place(), expected)[0]
    step_s, twelve = compose({**answers, "step": answers["step"] + math.log(slower)}, expected, place())
    return Run(work=nodes.work, place=place(), step_s=step_s, twelve=twelve)


def test_a_few_runs_of_a_new_setting_shift_its_forecasts_towards_them():
    correction = make_correction()
    steps = [nodes_of(width=width) for width in (48, 56, 64, 72, 80, 88)]
    asked = nodes_of(width=68)
    truth = measure(correction, asked, slower=1.5)
    missed = [abs(math.log(correction.predict(asked, place()).step_s / truth.step_s))]
    for count in (2, 6):
        adapted = adapt(correction, [(nodes, measure(correction, nodes, slower=1.5)) for nodes in steps[:count]])
        missed.append(abs(math.log(adapted.predict(asked, place()).step_s / truth.step_s)))
    # Two runs are noise in part, so they are not believed to the last; six are.
    assert missed[0] > 3 * missed[1]
    assert missed[0] > 5 * missed[2]


def test_nothing_to_adapt_to_is_refused():
    with pytest.raises(InvalidInput, match="no run"):
        adapt(make_correction(), [])


def test_the_runs_to_measure_differ_from_each_other_and_the_dear_ones_wait():
    correction = make_correction()
    candidates = [(nodes, place()) for nodes in [nodes_of(width=width) for width in (8, 8, 8, 512, 16, 24)]]
    chosen = choose_runs(correction, candidates, num_runs=4)
    assert len(set(chosen)) == 4
    assert len({candidates[index][0].work.gradient_bytes for index in chosen[:3]}) >= 2
    steps = [expect(RATES, nodes.work, where).step_s for nodes, where in candidates]
    assert steps[chosen[0]] < max(steps)
    assert sorted(choose_runs(correction, candidates, num_runs=99)) == list(range(len(candidates)))


def test_how_much_slower_other_nodes_are_reaches_the_network_through_physics_alone():
    nodes = nodes_of(width=16)
    equal = place()
    unequal = replace(equal, slowest=equal.slowest / 2)
    points = [describe_place(nodes.work, where, expect(RATES, nodes.work, where)) for where in (equal, unequal)]
    assert len(points[0]) == NUM_PLACE_FEATURES
    # The place looks the same; only what physics expects of the step and the shares differs.
    assert (points[0][:9] == points[1][:9]).all()
    assert (points[0] != points[1]).any()
