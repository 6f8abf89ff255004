"""Independent calls to their results: in this process or over local processes, surviving lost workers."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from traincast.errors import InvalidInput, TraincastError, UnknownName

T = TypeVar("T")
R = TypeVar("R")

ENGINES = ("none", "processes")
ATTEMPTS = 4
"""How often the calls of a lost worker are begun at all."""


class WorkerLost(TraincastError):
    """Workers died again and again under the same calls."""


def distribute(
    work: Callable[..., R],
    items: Sequence[T],
    *,
    shared: tuple[Any, ...] = (),
    engine: str = "processes",
    workers: int = 0,
    on_done: Callable[[int, int], None] | None = None,
) -> list[R]:
    """`work(item, *shared)` for every item, in the order of the items whatever the engine and whoever is lost.

    `work` is a module's function and everything pickles; `shared` travels once per worker.
    `on_done(done, total)` hears of every result. `workers=0` takes all processors of the machine.
    A worker that dies gives its calls to others, so `work` may run twice and must not mind. What `work` raises is raised.
    """
    results: dict[int, R] = {}
    for at, result in deliver(work, items, shared=shared, engine=engine, workers=workers):
        results[at] = result
        if on_done is not None:
            on_done(len(results), len(items))
    return [results[at] for at in range(len(items))]


def deliver(
    work: Callable[..., R],
    items: Sequence[T],
    *,
    shared: tuple[Any, ...] = (),
    engine: str = "processes",
    workers: int = 0,
) -> Iterator[tuple[int, R]]:
    """Like `distribute`, but (place, result) pairs as they come."""
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    if workers < 0:
        raise InvalidInput(f"workers is {workers}; use 0 for all processors, or a number above 0")
    if not items:
        return iter(())
    if engine == "processes":
        return _by_processes(work, items, shared, min(workers or os.cpu_count() or 1, len(items)))
    return ((at, work(item, *shared)) for at, item in enumerate(items))


_shared_here: tuple[Any, ...] = ()


def _receive(shared: tuple[Any, ...]) -> None:
    global _shared_here
    _shared_here = shared


def _call(work: Callable[..., R], item: Any) -> R:
    return work(item, *_shared_here)


def _by_processes(
    work: Callable[..., R], items: Sequence[T], shared: tuple[Any, ...], workers: int
) -> Iterator[tuple[int, R]]:
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    left = dict(enumerate(items))
    losses = 0
    while left:
        before = len(left)
        pool = ProcessPoolExecutor(max_workers=workers, initializer=_receive, initargs=(shared,))
        try:
            places: dict[Future[R], int] = {pool.submit(_call, work, item): at for at, item in left.items()}
            open_calls = set(places)
            while open_calls:
                ready, open_calls = wait(open_calls, return_when=FIRST_COMPLETED)
                for call in ready:
                    result = call.result()
                    del left[places[call]]
                    yield places[call], result
        except BrokenProcessPool as error:
            # The pool does not say whose call it was, so all that are open begin again; progress forgives.
            losses = 1 if len(left) < before else losses + 1
            if losses >= ATTEMPTS:
                raise WorkerLost(
                    f"worker processes died {losses} times in a row with {len(left)} of {len(items)} calls open "
                    "(out of memory?); use fewer workers"
                ) from error
        finally:
            pool.shutdown(cancel_futures=True)
