from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_mlp
from traincast.lower.rewrite import as_stage
from traincast.simulate import replay_memory


@settings(max_examples=30, deadline=None)
@given(layers=st.integers(2, 9), width=st.integers(8, 64), batch=st.integers(1, 512))
def test_a_folded_graph_has_the_peak_of_the_unfolded_one(layers: int, width: int, batch: int) -> None:
    def peak(*, folded: bool) -> float:
        graph = make_mlp(layers=layers, width=width, batch=batch, folded=folded)
        return replay_memory(as_stage(graph), capacity_bytes=1e9).peak_bytes

    # Folding cannot tell the input of the first layer, which is resident, from those of the others.
    assert peak(folded=True) == pytest.approx(peak(folded=False), abs=2.01 * batch * width * 4)


def test_parts_of_the_peak_add_up() -> None:
    profile = replay_memory(as_stage(make_mlp()), capacity_bytes=1e9, overhead_bytes=5e6)
    assert sum(profile.by_role.values()) == pytest.approx(profile.peak_bytes)
    assert profile.by_role["framework"] == 5e6


def test_the_peak_is_never_below_what_is_resident() -> None:
    graph = make_mlp(batch=1)
    profile = replay_memory(as_stage(graph), capacity_bytes=1e9)
    assert profile.peak_bytes >= graph.role_bytes("parameter")


def test_micro_batches_in_flight_hold_their_activations() -> None:
    stage = as_stage(make_mlp(batch=512, layers=6))
    one = replay_memory(stage, capacity_bytes=1e9)
    four = replay_memory(replace(stage, num_in_flight=4), capacity_bytes=1e9)
    saved = 6 * 2 * 512 * 256 * 4
    assert four.by_role["activation"] - one.by_role["activation"] == pytest.approx(3 * saved, rel=0.2)


def test_a_job_that_is_too_large_does_not_fit() -> None:
    assert not replay_memory(as_stage(make_mlp()), capacity_bytes=1e3).fits
