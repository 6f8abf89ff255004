"""What is remembered depends on all that was read, and on nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import IllegalPlan
from traincast.memo import Memo
from traincast.spec import Parallelism


class Counted:
    """A step that counts how often it runs."""

    def __init__(self, step):  # type: ignore[no-untyped-def]
        self.step, self.num_calls = step, 0

    def __call__(self, *arguments):  # type: ignore[no-untyped-def]
        self.num_calls += 1
        return self.step(*arguments)


def test_plans_that_agree_in_what_a_step_may_see_share_its_answer() -> None:
    remember, step = Memo(by_value=(Parallelism,)), Counted(lambda plan: plan.tensor * plan.pipeline)
    seen = ("tensor", "pipeline")
    assert remember(step, Parallelism(tensor=2, data=4).only(seen)) == 2
    assert remember(step, Parallelism(tensor=2, data=8, zero=3, recompute="full").only(seen)) == 2
    assert step.num_calls == 1
    assert remember(step, Parallelism(tensor=2, pipeline=2).only(seen)) == 4
    assert step.num_calls == 2


@given(
    plan=st.builds(Parallelism, data=st.integers(1, 4), zero=st.integers(0, 3), tensor=st.integers(1, 3)),
    names=st.sets(st.sampled_from(["data", "zero", "tensor"])),
)
def test_a_narrowed_plan_has_the_fields_that_are_named_and_the_usual_ones_beside(
    plan: Parallelism, names: set[str]
) -> None:
    kept = {name: getattr(plan, name) for name in names}
    assert plan.only(names) == Parallelism(**kept)


def test_numbers_count_by_value_and_kind_and_other_arguments_by_identity() -> None:
    remember, step = Memo(), Counted(lambda *arguments: arguments)
    first, second = [1], [1]
    for arguments in ((1, first), (1.0, first), (True, first), (1, second), (1, first), ("1", first)):
        assert remember(step, *arguments) == arguments
    assert step.num_calls == 5


def test_tuples_count_by_their_members() -> None:
    remember, step = Memo(), Counted(len)
    one, other = object(), object()
    assert remember(step, (one, other)) == remember(step, (one, other)) == 2
    assert step.num_calls == 1
    remember(step, (other, one))
    assert step.num_calls == 2


def test_a_refusal_is_remembered_with_its_reason() -> None:
    def refuse(plan: Parallelism) -> None:
        raise IllegalPlan(f"tensor = {plan.tensor}")

    remember, step = Memo(by_value=(Parallelism,)), Counted(refuse)
    for _ in range(2):
        with pytest.raises(IllegalPlan, match="tensor = 3"):
            remember(step, Parallelism(tensor=3))
    assert step.num_calls == 1


def test_everything_is_forgotten_when_there_is_too_much() -> None:
    remember, step = Memo(most=3), Counted(lambda number: number)
    for number in (1, 2, 3, 4):
        remember(step, number)
    assert len(remember) == 1
    assert remember(step, 1) == 1
    assert step.num_calls == 5
