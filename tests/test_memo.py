"""What is remembered depends on all that was read, and on nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import IllegalPlan
from traincast.memo import Memo, compute
from traincast.spec import Parallelism


class Counted:
    """A step that counts how often it runs."""

    def __init__(self, step):  # type: ignore[no-untyped-def]
        self.step, self.num_calls = step, 0

    def __call__(self, *arguments):  # type: ignore[no-untyped-def]
        self.num_calls += 1
        return self.step(*arguments)


def test_a_field_that_was_not_read_changes_nothing() -> None:
    remember, step = Memo(tracks=(Parallelism,)), Counted(lambda plan: plan.tensor * plan.pipeline)
    assert remember(step, Parallelism(tensor=2, data=4)) == 2
    assert remember(step, Parallelism(tensor=2, data=8, zero=3, recompute="full")) == 2
    assert step.num_calls == 1
    assert remember(step, Parallelism(tensor=2, pipeline=2)) == 4
    assert step.num_calls == 2


def test_a_field_that_only_some_values_of_another_lead_to_is_not_forgotten() -> None:
    remember, step = Memo(tracks=(Parallelism,)), Counted(lambda plan: plan.zero if plan.data > 1 else -1)
    assert [remember(step, Parallelism(zero=zero)) for zero in range(4)] == [-1] * 4
    assert step.num_calls == 1
    assert [remember(step, Parallelism(data=2, zero=zero)) for zero in range(4)] == [0, 1, 2, 3]


@given(
    plans=st.lists(
        st.builds(Parallelism, data=st.integers(1, 4), zero=st.integers(0, 3), tensor=st.integers(1, 3)), max_size=20
    )
)
def test_properties_comparisons_and_copies_read_what_they_use(plans: list[Parallelism]) -> None:
    def step(plan: Parallelism, other: Parallelism) -> tuple[object, ...]:
        return plan.num_shards, plan.stride("data"), plan == other, replace(plan, data=1), type(replace(plan))

    remember = Memo(tracks=(Parallelism,))
    for plan in plans:
        assert remember(step, plan, Parallelism(data=2)) == compute(step, plan, Parallelism(data=2))


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

    remember, step = Memo(tracks=(Parallelism,)), Counted(refuse)
    for data in (1, 2):
        with pytest.raises(IllegalPlan, match="tensor = 3"):
            remember(step, Parallelism(tensor=3, data=data))
    assert step.num_calls == 1


def test_everything_is_forgotten_when_there_is_too_much() -> None:
    remember, step = Memo(most=3), Counted(lambda number: number)
    for number in (1, 2, 3, 4):
        remember(step, number)
    assert len(remember) == 1
    assert remember(step, 1) == 1
    assert step.num_calls == 5


def test_no_stand_in_leaves_the_memo() -> None:
    remember = Memo(tracks=(Parallelism,))
    made = remember(lambda plan: replace(plan, zero=1), Parallelism(data=2))
    assert type(made) is Parallelism


def test_what_an_inner_step_reads_the_outer_one_has_read() -> None:
    remember = Memo(tracks=(Parallelism,))
    inner = Counted(lambda plan: plan.zero)
    outer = Counted(lambda plan: (plan.data, remember(inner, plan)))
    for _ in range(2):
        for zero in range(4):
            for tensor in (1, 2):
                plan = Parallelism(data=2, zero=zero, tensor=tensor)
                assert remember(outer, plan) == (2, zero)
                assert remember(inner, plan) == zero
    assert (outer.num_calls, inner.num_calls) == (4, 4)
