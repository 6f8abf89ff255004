"""Calls spread over processes give what one process gives, also when workers die."""

import os
import signal
from pathlib import Path

import pytest

from traincast.errors import InvalidInput, UnknownName
from traincast.workers import WorkerLost, deliver, distribute


def scale(item: int, factor: int) -> int:
    return item * factor


def refuse(item: int) -> int:
    raise UnknownName("number", str(item), ["one", "two"])


def die_once(item: int, folder: Path) -> int:
    try:
        (folder / f"{item}").touch(exist_ok=False)
    except FileExistsError:
        return item
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def die(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.parametrize("engine", ["none", "processes"])
def test_results_keep_the_order_of_the_items(engine: str) -> None:
    heard: list[tuple[int, int]] = []
    results = distribute(
        scale, range(7), shared=(3,), engine=engine, workers=2, on_done=lambda done, total: heard.append((done, total))
    )
    assert results == [0, 3, 6, 9, 12, 15, 18]
    assert heard == [(done, 7) for done in range(1, 8)]


def test_no_items_need_no_workers() -> None:
    assert distribute(scale, [], engine="processes") == []


@pytest.mark.parametrize("engine", ["none", "processes"])
def test_what_a_call_raises_is_raised_with_its_message(engine: str) -> None:
    with pytest.raises(UnknownName, match=r"unknown number '5'; known numbers: one, two"):
        distribute(refuse, [5], engine=engine, workers=1)


def test_calls_of_a_killed_process_are_made_again(tmp_path: Path) -> None:
    assert distribute(die_once, range(6), shared=(tmp_path,), workers=2) == [0, 1, 2, 3, 4, 5]


def test_a_call_that_kills_every_worker_is_named() -> None:
    with pytest.raises(WorkerLost, match="worker processes died 4 times in a row with 1 of 1 calls open"):
        distribute(die, [1], workers=1)


def test_unknown_engines_and_negative_workers_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown engine 'slurm'"):
        distribute(scale, [1], shared=(1,), engine="slurm")
    with pytest.raises(InvalidInput, match="workers is -1"):
        deliver(scale, [1], shared=(1,), workers=-1)
