"""Training the correction: its network is the one that runs without torch, and it learns what physics misses."""

import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from research.fits.resources.network import Example, Training, _join, _Network, fit_correction  # noqa: E402
from resources.test_correction import RATES, nodes_of, place  # noqa: E402
from traincast.errors import InvalidInput  # noqa: E402
from traincast.resources._correction import NUM_PLACE_FEATURES, _run, in_step, node_shares  # noqa: E402
from traincast.resources._learned import OUTPUTS, Run, compose, expect  # noqa: E402


def example(width: int, *, slower: float) -> Example:
    nodes = nodes_of(width=width)
    answers = {**dict.fromkeys(OUTPUTS, 0.0), "step": math.log(slower), "sent_peak": -0.5, "received_share": 0.3}
    step_s, twelve = compose(answers, expect(RATES, nodes.work, place()), place())
    return Example(nodes=nodes, run=Run(work=nodes.work, place=place(), step_s=step_s, twelve=twelve))


def test_the_exported_network_answers_as_the_trained_one():
    torch.manual_seed(0)
    network = _Network(NUM_PLACE_FEATURES, Training(width=6, hidden=7)).eval()
    with torch.no_grad():
        for weights in network.parameters():
            weights.normal_()
    graphs = [nodes_of(layers=2), nodes_of(layers=5, width=96)]
    flat = np.random.default_rng(0).normal(size=(2, NUM_PLACE_FEATURES))
    with torch.no_grad():
        pooled = network.pool(_join(graphs, RATES))
        theirs = network(pooled, torch.tensor(flat, dtype=torch.float32)).numpy()
    table = {name: weights.detach().numpy().astype(float) for name, weights in network.table.items()}
    for index, nodes in enumerate(graphs):
        assert _run(table, nodes, node_shares(nodes, RATES), flat[index]) == pytest.approx(theirs[index], abs=1e-4)


def test_training_finds_what_physics_misses_on_widths_it_did_not_see():
    known = [example(width, slower=1.4) for width in (32, 48, 64, 96, 128, 192, 256, 384)]
    model = fit_correction(known, training=Training(num_epochs=150, num_members=1), rates=RATES)
    asked = example(160, slower=1.4)
    before = expect(RATES, asked.run.work, place())
    answer = model.predict(asked.nodes, place())
    assert abs(math.log(answer.step_s / asked.run.step_s)) < 0.3 * abs(math.log(before.step_s / asked.run.step_s))
    measured = asked.run.twelve["sent_peak"]
    assert abs(answer.twelve["sent_peak"] - measured) < 0.5 * abs(before.peaks["sent"] - measured)


def test_a_step_that_a_cost_model_gives_is_kept_and_what_happens_in_it_is_learned():
    known = [
        replace(each, step_s=each.run.step_s) for each in (example(width, slower=1.4) for width in (32, 64, 128, 256))
    ]
    model = fit_correction(known, training=Training(num_epochs=150, num_members=1), rates=RATES)
    asked = example(160, slower=1.4)
    answer = model.predict(asked.nodes, place(), step_s=asked.run.step_s)
    assert answer.step_s == pytest.approx(asked.run.step_s)
    bare = in_step(expect(RATES, asked.run.work, place()), asked.run.step_s)
    measured = asked.run.twelve["sent_peak"]
    assert abs(answer.twelve["sent_peak"] - measured) < 0.5 * abs(bare.peaks["sent"] - measured)
    # Nothing asked the network to move the step, so decay alone acts on that output.
    steps = [fit_correction(each, training=Training(num_epochs=60, num_members=1), rates=RATES) for each in (
        known, [replace(one, step_s=None) for one in known])]  # fmt: skip
    moved = [
        abs(math.log(one.predict(asked.nodes, place()).step_s / expect(RATES, asked.run.work, place()).step_s))
        for one in steps
    ]
    assert moved[0] < 0.5 * moved[1]


def test_the_same_seed_gives_the_same_weights():
    known = [example(width, slower=1.2) for width in (32, 64)]
    one, other = (fit_correction(known, training=Training(num_epochs=3, num_members=1), rates=RATES) for _ in range(2))
    for name, weights in one.members[0].items():
        assert np.array_equal(weights, other.members[0][name])


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(InvalidInput, match="no run"):
        fit_correction([])
