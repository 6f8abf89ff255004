import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from research.fits.interaction.network import Example, Training, fit_network, inputs_of, turned
from research.fits.weights import save_network
from tests.builders import make_cluster, make_mlp
from traincast import catalog
from traincast.cost._interaction import Interacting, Network, load_network
from traincast.cost._interaction.features import NUMERIC, SORTS, Flow, Neighbourhood, describe
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.errors import InvalidInput
from traincast.lower import lower
from traincast.simulate import simulate_step
from traincast.spec import Op, Parallelism
from traincast.testing import check_cost_model

BASE = Pricing(ops=Roofline())


def see(width: int, *, layers: int = 3) -> Neighbourhood:
    stage = lower(make_mlp(width=width, layers=layers), Parallelism()).stages[0]
    return describe(stage, BASE.estimate(stage, make_cluster()))


def examples(factor: float = 1.4) -> list[Example]:
    """Steps whose products take longer than the model below says, by the same factor everywhere."""
    found = []
    for width in (64, 96, 128, 256, 384, 512):
        seen = see(width)
        slow = np.where(seen.sorts == SORTS.index("matmul"), factor, 1.0)
        found.append(Example(seen=seen, seconds=float((seen.seconds * seen.counts * slow).sum())))
    return found


@pytest.fixture(scope="module")
def network() -> Network:
    return fit_network(examples(), Training(width=6, num_steps=120, towards_one=0.001))


def test_a_slowdown_seen_only_in_sums_is_learned(network: Network) -> None:
    seen = see(192)
    truth = float((seen.seconds * seen.counts * np.where(seen.sorts == SORTS.index("matmul"), 1.4, 1.0)).sum())
    plain = float((seen.seconds * seen.counts).sum())
    corrected = float((seen.seconds * seen.counts * network.factors(seen)).sum())
    assert abs(corrected / truth - 1) < 0.5 * abs(plain / truth - 1)


def test_parts_that_were_timed_teach_what_the_whole_hides() -> None:
    """Products take 1.3 times as long and all else is as much shorter: the sums of whole steps show next to nothing of it."""
    found = []
    for example in examples():
        products = example.seen.sorts == SORTS.index("matmul")
        spent = example.seen.seconds * example.seen.counts
        parts = (1.3 * spent[products].sum(), spent[~products].sum() / 1.3)
        parted = replace(
            example, seconds=sum(parts), parts=tuple((~products).astype(int).tolist()), part_seconds=parts
        )  # fmt: skip
        found.append(parted)
    learned = fit_network(found, Training(width=6, num_steps=120, towards_one=0.001))
    factors = learned.factors(see(192))
    products = see(192).sorts == SORTS.index("matmul")
    assert factors[products].mean() > 1.15
    assert factors[~products].mean() < 0.9


def test_a_part_that_was_not_timed_keeps_its_price() -> None:
    tasks = see(128).num_tasks
    kept = [replace(example, parts=(0,) * tasks, part_seconds=(float("nan"),)) for example in examples()]
    learned = fit_network(kept, Training(width=6, num_steps=60))
    assert np.abs(learned.factors(see(192)) - 1).max() < 0.1


def test_parts_are_named_for_every_task() -> None:
    example = examples()[0]
    with pytest.raises(InvalidInput, match="name one for each task"):
        replace(example, parts=(0,), part_seconds=(1.0,))
    with pytest.raises(InvalidInput, match="have times"):
        replace(example, parts=(1,) * example.seen.num_tasks, part_seconds=(1.0,))


def test_corrections_stay_between_half_and_twice(network: Network) -> None:
    wild = replace(network, weights={name: 100 * value for name, value in network.weights.items()})
    factors = wild.factors(see(128))
    assert (factors >= np.exp(-0.7) - 1e-9).all()
    assert (factors <= np.exp(0.7) + 1e-9).all()


def test_far_from_the_training_data_the_correction_fades(network: Network) -> None:
    near, far = network.nearness(see(128)), network.nearness(see(16384, layers=64))
    assert near.max() > 0.5
    assert far.max() < 0.01
    assert network.factors(see(16384, layers=64)) == pytest.approx(np.ones(len(far)), abs=0.01)


def test_a_sort_of_task_never_seen_is_left_alone(network: Network) -> None:
    seen = see(128)
    strange = replace(seen, sorts=np.full_like(seen.sorts, SORTS.index("rnn")))
    assert network.factors(strange) == pytest.approx(np.ones(seen.num_tasks))


def test_a_machine_twice_as_fast_gives_the_same_features() -> None:
    stage = lower(make_mlp(), Parallelism()).stages[0]
    estimates = BASE.estimate(stage, make_cluster())
    fast = tuple(estimate.scaled(0.5) for estimate in estimates)
    assert describe(stage, fast).numeric == pytest.approx(describe(stage, estimates).numeric)


def test_order_and_data_flow_change_the_answer(network: Network) -> None:
    seen = see(128)
    alone = replace(seen, sources=np.zeros(0, dtype=np.intp), targets=np.zeros(0, dtype=np.intp))
    assert not np.allclose(network.factors(seen), network.factors(alone))


def test_reuse_distance_counts_what_moved_since_the_input_was_touched() -> None:
    stage = lower(make_mlp(layers=2, folded=False), Parallelism()).stages[0]
    seen = describe(stage, BASE.estimate(stage, make_cluster()))
    reuse = 10 ** seen.numeric[:, NUMERIC.index("log_reuse_bytes")] - 1
    fresh = seen.numeric[:, NUMERIC.index("read_fresh")]
    # The activation right after a product reads what the product has just written.
    second = stage.tasks[1]
    assert isinstance(second, Op)
    assert reuse[1] == pytest.approx(0.0)
    assert fresh[1] == pytest.approx(1.0)


def test_communication_under_way_is_seen() -> None:
    stage = lower(make_mlp(layers=4, width=1024, folded=False), Parallelism(data=4)).stages[0]
    seen = describe(stage, BASE.estimate(stage, make_cluster(nodes=4)))
    overlap = seen.numeric[:, NUMERIC.index("overlap")]
    assert overlap[0] == 0.0
    assert overlap.max() > 0.0


def test_a_flow_turned_is_its_transpose() -> None:
    random = np.random.default_rng(0)
    origins, ends = random.integers(0, 6, 15), random.integers(0, 6, 15)
    flow = Flow.mean(origins, ends, size=6)
    left, right = random.normal(size=(6, 2)), random.normal(size=(6, 2))
    assert float((flow.apply(left) * right).sum()) == pytest.approx(float((left * turned(flow).apply(right)).sum()))


def test_the_hand_written_gradient_is_that_of_the_loss() -> None:
    from research.fits.interaction import network as room

    chosen = Training(width=3)
    some = examples()[:2]
    seen = room._join([example.seen for example in some])
    start = room._begin(seen, chosen)
    batch = room._Batch(
        inputs=room.inputs_of(start, seen), nearness=start.nearness(seen), flows=room._flows(some),
        spent=seen.seconds * seen.counts,
        owner=np.repeat(np.arange(2), [example.seen.num_tasks for example in some]),
        log_seconds=np.log([example.seconds for example in some]),
    )  # fmt: skip
    weights = {name: value.copy() for name, value in start.weights.items()}
    weights["out"] = weights["out"] * 10
    # With the penalty off: its share of a step is a weight that the gradient holds fixed on purpose.
    plain = replace(chosen, towards_one=0.0)
    slopes = room.slopes_of(weights, batch, plain)[1]
    for name in (
        "in",
        "in_bias",
        "round0_sources",
        "round0_before",
        "round1_targets",
        "round1_self",
        "out",
        "out_bias",
    ):
        place = np.unravel_index(int(np.argmax(np.abs(slopes[name]))), slopes[name].shape)
        losses = []
        for move in (1e-5, -1e-5):
            moved = {**weights, name: weights[name].copy()}
            moved[name][place] += move
            losses.append(room.slopes_of(moved, batch, plain)[0])
        assert slopes[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-3)


def test_weights_come_back_from_their_file(network: Network, tmp_path: Path) -> None:
    save_network(network, tmp_path / "w.safetensors", {"made": "here"})
    assert (tmp_path / "w.safetensors").stat().st_size < 1_000_000
    found = load_network(tmp_path / "w.safetensors")
    assert found.factors(see(128)) == pytest.approx(network.factors(see(128)), rel=1e-4)


def test_the_same_seed_gives_the_same_network() -> None:
    first, second = (fit_network(examples(), Training(width=4, num_steps=5, seed=3)) for _ in range(2))
    assert all((first.weights[name] == second.weights[name]).all() for name in first.weights)


def test_one_step_is_too_few() -> None:
    with pytest.raises(InvalidInput, match="at least two"):
        fit_network(examples()[:1])


@pytest.mark.parametrize(("workload", "device"), [("resnet50", "v100"), ("gpt2", "a100-80g")])
def test_it_keeps_the_contract_of_a_cost_model(network: Network, workload: str, device: str) -> None:
    cluster = catalog.cluster(device=device, nodes=2, devices_per_node=2)
    check_cost_model(Interacting(base=Pricing(), network=network), catalog.workload(workload, batch=4), cluster)


def test_it_costs_a_small_part_of_a_forecast(network: Network) -> None:
    graph = catalog.workload("resnet50", batch=4)
    cluster = catalog.cluster(device="v100", nodes=1, devices_per_node=1)
    base, wrapped = Pricing(), Interacting(base=Pricing(), network=network)

    def run(model: Pricing | Interacting) -> float:
        began = time.process_time()
        program = lower(graph, Parallelism())
        simulate_step(program, [model.estimate(stage, cluster) for stage in program.stages])
        return time.process_time() - began

    run(wrapped)
    times = [(run(base), run(wrapped)) for _ in range(5)]
    # A ratio, and the best of five of each: absolute times mean nothing on a shared machine. The bound is loose on purpose.
    assert min(after for _, after in times) < 2.0 * min(before for before, _ in times)


def test_looked_up_first_weights_are_the_product_with_ones_and_zeros(network: Network) -> None:
    seen = see(128)
    assert network._enter(seen) == pytest.approx(
        inputs_of(network, seen) @ network.weights["in"] + network.weights["in_bias"]
    )


def test_a_corrected_collective_still_slows_the_kernels_beside_it(network: Network) -> None:
    cluster, stage = make_cluster(nodes=2), lower(make_mlp(width=128, layers=3), Parallelism(data=2)).stages[0]
    before = BASE.estimate(stage, cluster)
    after = Interacting(base=BASE, network=network).estimate(stage, cluster)
    assert [estimate.slowdown for estimate in after] == [estimate.slowdown for estimate in before]
