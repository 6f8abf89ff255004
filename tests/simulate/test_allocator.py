import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.errors import InvalidInput
from traincast.simulate._allocator import CachingAllocator
from traincast.units import MIB


def test_requests_are_rounded_to_512_bytes() -> None:
    device = CachingAllocator()
    device.allocate("a", 1)
    device.allocate("b", 513)
    assert device.allocated_bytes == 512 + 1024


@pytest.mark.parametrize(
    ("asked", "reserved"),
    [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (9 * MIB, 20 * MIB), (11 * MIB, 12 * MIB)],
)
def test_segments_have_the_sizes_of_the_cuda_allocator(asked: int, reserved: int) -> None:
    device = CachingAllocator()
    device.allocate("a", asked)
    assert device.reserved_bytes == reserved


def test_freed_memory_is_reserved_still_and_used_again() -> None:
    device = CachingAllocator()
    device.allocate("a", 64 * MIB)
    device.free("a")
    assert (device.allocated_bytes, device.reserved_bytes) == (0, 64 * MIB)
    device.allocate("b", 40 * MIB)
    device.allocate("c", 24 * MIB)
    assert device.reserved_bytes == 64 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    device = CachingAllocator()
    for name, size in (("large", 100 * MIB), ("small", 50 * MIB)):
        device.allocate(name, size)
    device.free("large")
    device.free("small")
    device.allocate("x", 50 * MIB)
    device.allocate("y", 100 * MIB)
    assert device.reserved_bytes == 150 * MIB


def test_neighbours_that_are_free_become_one() -> None:
    device = CachingAllocator()
    device.allocate("whole", 90 * MIB)
    device.free("whole")
    for name in "abc":
        device.allocate(name, 30 * MIB)
    for name in "acb":
        device.free(name)
    device.allocate("again", 90 * MIB)
    assert device.reserved_bytes == 90 * MIB


def test_a_hole_that_is_too_small_costs_a_new_segment() -> None:
    device = CachingAllocator()
    device.allocate("whole", 100 * MIB)
    device.free("whole")
    device.allocate("a", 40 * MIB)
    device.allocate("b", 40 * MIB)
    device.free("a")
    device.allocate("c", 50 * MIB)
    assert device.reserved_bytes == 150 * MIB
    assert device.allocated_bytes == 90 * MIB


def test_names_are_used_once_at_a_time() -> None:
    device = CachingAllocator()
    device.allocate("a", 1)
    with pytest.raises(InvalidInput, match="in use already"):
        device.allocate("a", 1)
    with pytest.raises(InvalidInput, match="not in use"):
        device.free("b")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 60_000_000)), max_size=80))
def test_reserved_is_never_below_allocated_and_all_is_freed(requests: list[tuple[int, int]]) -> None:
    device = CachingAllocator()
    live: set[int] = set()
    for name, size in requests:
        if name in live:
            device.free(name)
            live.remove(name)
        else:
            device.allocate(name, size)
            live.add(name)
        assert device.allocated_bytes <= device.reserved_bytes
    for name in live:
        device.free(name)
    assert device.allocated_bytes == 0
