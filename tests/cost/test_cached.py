from collections.abc import Sequence

from builders import make_device, make_matmul
from traincast.cost._cached import CAPACITY, Cached
from traincast.cost._roofline import Roofline
from traincast.spec import Device, Estimate, Op


class Counting:
    """The roofline, with a count of how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def estimate_ops(self, ops: Sequence[Op], device: Device) -> tuple[Estimate, ...]:
        self.asked += 1
        return tuple(Roofline().estimate_ops(ops, device))


def test_the_same_ops_on_the_same_device_are_priced_once() -> None:
    base, ops = Counting(), [make_matmul(), make_matmul(m=64)]
    model = Cached(base=base)
    first = model.estimate_ops(ops, make_device())
    assert model.estimate_ops(tuple(ops), make_device()) == first == tuple(Roofline().estimate_ops(ops, make_device()))
    assert base.asked == 1


def test_another_device_or_other_ops_are_priced_anew() -> None:
    base, ops = Counting(), [make_matmul()]
    model = Cached(base=base)
    model.estimate_ops(ops, make_device())
    slow = model.estimate_ops(ops, make_device(name="other", memory_bytes_per_s=1e9))
    assert slow == tuple(Roofline().estimate_ops(ops, make_device(name="other", memory_bytes_per_s=1e9)))
    model.estimate_ops([make_matmul(m=2)], make_device())
    assert base.asked == 3


def test_what_was_asked_longest_ago_is_forgotten() -> None:
    base = Counting()
    model = Cached(base=base)
    many = [[make_matmul(m=size + 1)] for size in range(CAPACITY + 1)]
    for ops in many:
        model.estimate_ops(ops, make_device())
    model.estimate_ops(many[-1], make_device())
    model.estimate_ops(many[0], make_device())
    assert base.asked == CAPACITY + 2
