"""Programs of shares: the path through blocks against Clarabel's own, and what happens at the edges."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from traincast.schedule import _kernels as kernels
from traincast.schedule._programs import ShareProgram, share_by_finish, share_by_rows
from traincast.schedule._rounds import Shareholders

pytest.importorskip("clarabel")


def draw(seed: int, *, num_jobs: int = 14, capacity: tuple[float, ...] = (4.0, 6.0, 8.0)) -> Shareholders:
    rng = np.random.default_rng(seed)
    return Shareholders(
        jobs=np.arange(num_jobs),
        rates=rng.lognormal(size=(num_jobs, len(capacity))),
        num_gpus=rng.choice([1.0, 2.0, 4.0], num_jobs),
        weights=np.ones(num_jobs),
        waited_s=rng.uniform(0, 1e4, num_jobs),
        steps_left=rng.uniform(1e3, 1e5, num_jobs),
        capacity=np.array(capacity),
        usd_per_gpu_s=np.ones(len(capacity)),
    )


def ask(kind: str, holders: Shareholders) -> Any:
    if kind == "worth":
        return share_by_rows(holders, worth=holders.rates / holders.rates.max())
    if kind == "least":
        return share_by_rows(holders, rates=holders.rates, least=0.2 * holders.rates.min(axis=1) / holders.num_gpus)
    alone = holders.waited_s + holders.steps_left / holders.rates.mean(axis=1)
    return share_by_finish(
        holders, rates=holders.rates, work=holders.steps_left / alone, begun=holders.waited_s / alone
    )


def give_up(*_: object) -> int:
    return kernels.LOST


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["worth", "least", "finish"])
def test_the_path_through_blocks_ends_where_clarabel_ends(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = draw(seed)
    ours = ask(kind, holders)
    monkeypatch.setattr(kernels, "pick", lambda *_: (give_up, lambda array: array))
    theirs = ask(kind, holders)
    assert np.abs(ours - theirs).max() < 1e-4


def test_clarabel_is_not_asked_where_the_blocks_have_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ShareProgram) -> None:
        raise AssertionError("Clarabel was asked")

    monkeypatch.setattr(ShareProgram, "_ask_clarabel", refuse)
    for kind in ("worth", "least", "finish"):
        for num_jobs in (1, 2, 30):
            shares = ask(kind, draw(7, num_jobs=num_jobs))
            assert shares.shape == (num_jobs, 3)


@pytest.mark.parametrize("kind", ["worth", "least", "finish"])
def test_nobody_gets_more_than_all_of_the_time_and_no_type_gives_more_than_it_holds(kind: str) -> None:
    holders = draw(5)
    shares = ask(kind, holders)
    assert (shares.sum(axis=1) <= 1 + 1e-6).all()
    assert (holders.num_gpus @ shares <= holders.capacity * (1 + 1e-6)).all()


@pytest.mark.parametrize("solver", ["blocks", "clarabel"])
def test_a_rate_that_cannot_be_reached_has_no_shares(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holders = draw(1)
    if solver == "clarabel":
        monkeypatch.setattr(kernels, "pick", lambda *_: (give_up, lambda array: array))
    assert share_by_rows(holders, rates=holders.rates, least=2.0 * holders.rates.max(axis=1)) is None


def test_a_type_that_holds_nothing_gives_nothing_and_changes_nothing() -> None:
    holders = draw(2, capacity=(4.0, 8.0))
    wider = replace(
        holders,
        rates=np.insert(holders.rates, 1, 5.0, axis=1),
        capacity=np.array([4.0, 0.0, 8.0]),
        usd_per_gpu_s=np.ones(3),
    )
    for kind in ("least", "finish"):
        least = 0.2 * holders.rates.min(axis=1) / holders.num_gpus
        if kind == "least":
            narrow, wide = (share_by_rows(each, rates=each.rates, least=least) for each in (holders, wider))
        else:
            narrow, wide = (
                share_by_finish(each, rates=each.rates, work=np.ones(14), begun=np.zeros(14))
                for each in (holders, wider)
            )
        assert narrow is not None
        assert wide is not None
        assert (wide[:, 1] == 0).all()
        assert np.array_equal(wide[:, [0, 2]], narrow)
