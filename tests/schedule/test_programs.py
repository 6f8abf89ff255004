"""Programs of shares, and what happens at their edges."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from traincast.schedule._programs import share_by_finish, share_by_rows
from traincast.schedule._shares import Shareholders

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


@pytest.mark.parametrize("kind", ["worth", "least", "finish"])
def test_nobody_gets_more_than_all_of_the_time_and_no_type_gives_more_than_it_holds(kind: str) -> None:
    holders = draw(5)
    shares = ask(kind, holders)
    assert (shares.sum(axis=1) <= 1 + 1e-6).all()
    assert (holders.num_gpus @ shares <= holders.capacity * (1 + 1e-6)).all()


def test_a_rate_that_cannot_be_reached_has_no_shares() -> None:
    holders = draw(1)
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
        assert wide[:, [0, 2]] == pytest.approx(narrow, abs=1e-6)
