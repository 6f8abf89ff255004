from dataclasses import replace

import numpy as np
from tests.builders import make_cluster, make_mlp

from traincast.cost.interaction import Interacting, load_network
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
    job = Job(graph=make_mlp())
    said = explain_interaction(job, make_cluster(), Parallelism(), Pricing(), network=everywhere)
    assert "with the interaction network it would be" in said
    used = Interacting(base=Pricing(), network=everywhere)
    assert explain_interaction(job, make_cluster(), Parallelism(), used).endswith("which is the answer")
