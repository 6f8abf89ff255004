from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_mlp
from traincast.catalog._workloads import from_shape, workload
from traincast.lower import lower
from traincast.lower._rewrite import as_stage
from traincast.simulate import replay_memory
from traincast.simulate._reserve import Surroundings, device_bytes, reserve, reserved_bytes, searches_algorithms
from traincast.spec import Parallelism
from traincast.units import MIB


@settings(max_examples=20, deadline=None)
@given(layers=st.integers(2, 7), width=st.integers(64, 512), batch=st.integers(16, 512))
def test_folded_layers_reserve_what_unfolded_ones_do(layers: int, width: int, batch: int) -> None:
    def taken(*, folded: bool) -> int:
        return reserve(as_stage(make_mlp(layers=layers, width=width, batch=batch, folded=folded)), accumulates=False)

    # Folding cannot tell the input of the first layer from those of the others: one more tensor, and the segment it may open.
    assert taken(folded=True) == pytest.approx(taken(folded=False), abs=20 * MIB + 3 * 4 * batch * width)


@pytest.mark.parametrize("name", ["resnet50", "bert-base-squad"])
def test_an_allocator_reserves_no_less_than_is_live_and_not_twice_as_much(name: str) -> None:
    stage = as_stage(workload(name, batch=16, precision="fp32"))
    live = replay_memory(stage, capacity_bytes=1e12).peak_bytes
    assert live <= reserve(stage, accumulates=False) < 1.5 * live


def test_a_third_step_finds_the_cache_as_the_second_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = as_stage(workload("resnet50", batch=32, precision="fp32"))
    second = reserve(stage, accumulates=False)
    monkeypatch.setattr("traincast.simulate._reserve.STEPS", 3)
    assert reserve(stage, accumulates=False) == pytest.approx(second, rel=0.02)


def test_passes_in_flight_are_reserved_too() -> None:
    graph = from_shape(arch="llama", n_layers=4, hidden=256, heads=4, vocab=1000, seq=256, batch=4, precision="bf16")
    stage = lower(graph, Parallelism(pipeline=2, micro_batches=4)).stages[0]
    profile = replay_memory(stage, capacity_bytes=1e12, micro_batches=4)
    alone = replace(stage, num_in_flight=1)
    one = replay_memory(alone, capacity_bytes=1e12, micro_batches=4)
    assert stage.num_in_flight == 2
    more = reserved_bytes(stage, profile, accumulates=True) - reserved_bytes(alone, one, accumulates=True)
    assert more == pytest.approx(profile.peak_bytes - one.peak_bytes)


def test_a_meter_shows_context_and_more_than_tensors_and_never_more_than_the_device() -> None:
    around = Surroundings.usual()
    shown = [
        device_bytes(reserved, capacity_bytes=80e9, searches=False, around=around)
        for reserved in (0.0, 1e9, 10e9, 60e9, 200e9, 1e18)
    ]
    assert shown == sorted(shown)
    assert shown[0] == pytest.approx(around.context_bytes)
    assert shown[2] == pytest.approx(around.context_bytes + 10e9 * (1 + around.unseen))
    assert shown[-1] == pytest.approx(around.full * 80e9)
    assert device_bytes(10e9, capacity_bytes=80e9, searches=False, around=Surroundings.usual(lean=True)) < shown[2]
    assert device_bytes(10e9, capacity_bytes=80e9, searches=True, around=around) > shown[2]


def test_only_convolutions_have_their_algorithms_searched() -> None:
    assert searches_algorithms(as_stage(workload("resnet50", batch=1)))
    assert not searches_algorithms(as_stage(make_mlp()))


def test_a_flat_update_takes_memory_of_its_own() -> None:
    """The fp32 copy of all gradients finds no hole that layers left; in pieces it finds some."""
    stage = as_stage(workload("bert-base-squad", batch=16, precision="fp16-amp"))
    assert reserve(stage, accumulates=True, flat_update=True) >= reserve(stage, accumulates=True)


def test_communicators_are_seen_by_the_meter() -> None:
    around = Surroundings.usual(lean=True)
    alone, joined = (
        device_bytes(1e10, capacity_bytes=8e10, searches=False, around=around, communicators=amount)
        for amount in (0.0, 2e9)
    )
    assert joined - alone == pytest.approx(2e9, rel=1e-3)
