from functools import cache

from traincast.catalog._workloads import from_shape
from traincast.lower import lower
from traincast.spec import Collective, Graph, Parallelism


@cache
def mixture() -> Graph:
    return from_shape(
        arch="mixtral", n_layers=2, hidden=256, heads=4, vocab=1000, seq=128, batch=2, precision="bf16", optimizer="adamw",
        experts=8, experts_per_token=2, moe_ffn=128,
    )  # fmt: skip


def exchanges(plan: Parallelism) -> list[Collective]:
    tasks = lower(mixture(), plan).stages[0].tasks
    return [task for task in tasks if isinstance(task, Collective) and task.kind == "all_to_all"]


def test_tokens_that_travel_once_know_how_many_experts_they_have() -> None:
    assert {task.copies for task in exchanges(Parallelism(data=4, expert=4, dispatch_once=True))} == {2.0}
    assert {task.copies for task in exchanges(Parallelism(data=4, expert=4))} == {1.0}


def test_the_bytes_of_an_exchange_do_not_depend_on_how_it_is_sent() -> None:
    once, each = (exchanges(Parallelism(data=4, expert=4, dispatch_once=on)) for on in (True, False))
    assert [task.num_bytes for task in once] == [task.num_bytes for task in each]
