from dataclasses import replace

import numpy as np
from tests.builders import make_cluster, make_mlp

from traincast.cost.interaction import load_network
from traincast.cost.pricing import Pricing
from traincast.forecast.parts import explain_interaction
from traincast.spec import Job, Parallelism


def test_a_workload_far_from_the_corpus_is_not_corrected() -> None:
    job = Job(graph=make_mlp(width=8192, layers=48, batch=4096))
    assert "changes nothing" in explain_interaction(job, make_cluster(), Parallelism(), Pricing())


def test_both_answers_are_named_where_the_network_has_something_to_say() -> None:
    known = load_network()
    everywhere = replace(
        known, low=np.full_like(known.low, -np.inf), high=np.full_like(known.high, np.inf),
        known_sorts=np.ones_like(known.known_sorts),
    )  # fmt: skip
    said = explain_interaction(Job(graph=make_mlp()), make_cluster(), Parallelism(), Pricing(), network=everywhere)
    assert "which is the answer" in said
    assert "with the interaction network it would be" in said
