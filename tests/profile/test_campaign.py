"""Rounds of visits that go on where an earlier run ended, and leave out what kills the ranks."""

from dataclasses import dataclass, field

import pytest

pytest.importorskip("torch")

from traincast.profile._campaign import visit_all
from traincast.profile._protocol import Progress, Visit
from traincast.profile._team import TeamFailed
from traincast.spec._measurement import Block, Environment, Experiment

HERE = Environment(device="test cpu")
EXPERIMENTS = tuple(Experiment(subject="step", name=name) for name in ("a", "b", "c"))


@dataclass
class Shelf:
    """A store in a list."""

    kept: list[str] = field(default_factory=list)

    def append(self, experiment: Experiment, environment: Environment, block: Block, /) -> None:
        self.kept.append(experiment.name)

    def num_blocks(self, experiment: Experiment, environment: Environment, /) -> int:
        return self.kept.count(experiment.name)


def works(experiment: Experiment) -> Visit:
    return Visit(experiment=experiment, block=Block(started_at="", wall_s=(1.0,)))


def run(
    shelf: Shelf,
    visit_one=works,
    *,
    budget_s: float = 1e9,
    skipped: set[str] | None = None,
    progress: Progress | None = None,
):  # type: ignore[no-untyped-def]
    return visit_all(
        visit_one, shelf, HERE, EXPERIMENTS, num_rounds=2, budget_s=budget_s, progress=progress or Progress(total=0),
        show=lambda *_: None, skipped=skipped,
    )  # fmt: skip


def test_each_round_visits_every_experiment_before_the_next_begins() -> None:
    shelf = Shelf()
    progress = Progress(total=0)
    assert len(list(run(shelf, progress=progress))) == 6
    assert sorted(shelf.kept[:3]) == sorted(shelf.kept[3:]) == ["a", "b", "c"]
    assert (progress.done, progress.total) == (6, 6)


def test_rounds_differ_in_their_order_and_a_restart_keeps_it() -> None:
    many = [Experiment(subject="step", name=f"net{number}") for number in range(30)]

    def visited(shelf: Shelf, *, num_visits: int) -> list[str]:
        visits = visit_all(
            works, shelf, HERE, many, num_rounds=3, budget_s=1e9, progress=Progress(total=0), show=lambda *_: None
        )
        for _ in range(num_visits):
            next(visits)
        visits.close()
        return shelf.kept

    whole = visited(Shelf(), num_visits=90)
    rounds = [whole[at : at + 30] for at in (0, 30, 60)]
    assert len({tuple(names) for names in rounds}) == 3
    assert all(sorted(names) == sorted(each.name for each in many) for names in rounds)
    broken = Shelf()
    visited(broken, num_visits=40)
    assert visited(broken, num_visits=50) == whole


def test_a_second_run_does_only_what_the_first_left() -> None:
    shelf = Shelf()
    first = run(shelf)
    for _ in range(4):
        next(first)
    first.close()
    assert len(shelf.kept) == 4
    list(run(shelf))
    assert sorted(shelf.kept) == sorted(["a", "b", "c"] * 2)


def test_an_experiment_that_kills_the_ranks_is_not_tried_again() -> None:
    def kills(experiment: Experiment) -> Visit:
        if experiment.name == "b":
            raise TeamFailed("a rank ended")
        return works(experiment)

    shelf, skipped = Shelf(), set[str]()
    with pytest.raises(TeamFailed):
        list(run(shelf, kills, skipped=skipped))
    assert skipped == {EXPERIMENTS[1].key}
    list(run(shelf, kills, skipped=skipped))
    assert sorted(shelf.kept) == ["a", "a", "c", "c"]


def test_a_spent_budget_ends_the_rounds() -> None:
    shelf = Shelf()
    assert len(list(run(shelf, budget_s=-1.0))) == 1
