"""Ranks on this machine measure what they are sent."""

import pytest

pytest.importorskip("torch")

from traincast.profile._protocol import Protocol
from traincast.profile._steps import step_experiment
from traincast.profile._team import local_team
from traincast.spec import Experiment

SHORT = Protocol(num_rounds=1, block_s=0.3, min_repeats=5, max_repeats=10, warm_up_runs=2)


@pytest.mark.slow
def test_two_ranks_on_this_machine_measure_a_collective_and_a_sharded_step() -> None:
    with local_team(2) as team:
        gathered = team.visit(
            Experiment(subject="collective", name="all_gather", attrs={"num_bytes": 40_000}), protocol=SHORT
        )
        sharded = team.visit(step_experiment("mlp(depth=2,width=32)", batch=4, strategy="fsdp"), protocol=SHORT)
    assert gathered.block is not None
    assert sharded.block is not None, sharded.failure
