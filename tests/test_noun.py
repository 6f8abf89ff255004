"""A noun is what a frozen, slotted, keyword-only dataclass is."""

import copy
import dataclasses
import pickle
from dataclasses import dataclass, field, replace

import pytest

from traincast.noun import noun


@noun
class Point:
    x: int
    names: tuple[str, ...] = ()
    seen: list[int] = field(default_factory=list, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x below 0")


@noun
class Named(Point):
    name: str = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    x: int
    names: tuple[str, ...] = ()
    seen: list[int] = field(default_factory=list, compare=False, repr=False)


def test_it_is_shown_compared_and_hashed_as_a_dataclass() -> None:
    assert repr(Point(x=1, names=("a",))) == repr(Plain(x=1, names=("a",))).replace("Plain", "Point")
    assert Point(x=1, seen=[2]) == Point(x=1)
    assert Point(x=1) != Point(x=2)
    assert Named(x=1) != Point(x=1)
    assert hash(Point(x=1)) == hash(Plain(x=1))
    assert [item.name for item in dataclasses.fields(Named)] == ["x", "names", "seen", "name"]


def test_it_cannot_be_changed_and_is_checked_when_it_is_born() -> None:
    point = Point(x=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises(ValueError, match="x below 0"):
        replace(point, x=-1)
    with pytest.raises(TypeError, match="unexpected keyword"):
        Point(x=1, z=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Point(1)  # type: ignore[call-arg, misc]
    assert not hasattr(point, "__dict__")


def test_every_noun_has_lists_of_its_own() -> None:
    assert Point(x=1).seen is not Point(x=1).seen


@pytest.mark.parametrize("one", [Point(x=1, seen=[3]), Named(x=2, name="n")])
def test_it_survives_copies_and_pickles(one: Point) -> None:
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert (other, other.seen) == (one, one.seen)
