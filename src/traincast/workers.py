"""Independent calls to their results: in this process, over local processes or over a Ray cluster, surviving lost workers."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from traincast.errors import InvalidInput, MissingExtra, TraincastError, UnknownName

T = TypeVar("T")
R = TypeVar("R")

ENGINES = ("none", "processes", "ray")
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

    `work` is a module's function and everything pickles; `shared` travels once per worker (processes) or node (Ray).
    `on_done(done, total)` hears of every result. `workers=0` takes all processors of the machine or of the Ray cluster.
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
    one_per_node: bool = False,
) -> Iterator[tuple[int, R]]:
    """Like `distribute`, but (place, result) pairs as they come. `one_per_node`: calls that must not share a machine."""
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    if workers < 0:
        raise InvalidInput(f"workers is {workers}; use 0 for all processors, or a number above 0")
    if not items:
        return iter(())
    if engine == "ray":
        return _by_ray(work, items, shared, workers, one_per_node=one_per_node)
    if one_per_node:
        workers = 1
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


def _by_ray(
    work: Callable[..., R], items: Sequence[T], shared: tuple[Any, ...], workers: int, *, one_per_node: bool
) -> Iterator[tuple[int, R]]:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray", "sharing work over a cluster") from error
    mine = not ray.is_initialized()
    if mine:
        join_ray(ray, workers)
    try:
        sent = [ray.put(part) for part in shared]
        if one_per_node:
            yield from _node_by_node(ray, work, items, sent)
            return
        # Ray begins the calls of a lost node elsewhere, this often.
        remote = ray.remote(max_retries=ATTEMPTS - 1)(work)
        places: dict[Any, int] = {}
        queue = iter(enumerate(items))
        most = workers or len(items)
        while True:
            while len(places) < most and (upcoming := next(queue, None)) is not None:
                places[remote.remote(upcoming[1], *sent)] = upcoming[0]
            if not places:
                return
            ready, _ = ray.wait(list(places), num_returns=1)
            for call in ready:
                yield places.pop(call), _fetch(ray, call)
    finally:
        if mine:
            ray.shutdown()


def _node_by_node(ray: Any, work: Callable[..., R], items: Sequence[T], sent: Sequence[Any]) -> Iterator[tuple[int, R]]:
    """One call at a time on each node that lives; the call of a node that dies goes to another."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(max_retries=0)(work)
    waiting = list(range(len(items)))[::-1]
    losses = dict.fromkeys(waiting, 0)
    places: dict[Any, tuple[int, str]] = {}
    while waiting or places:
        busy = {node for _, node in places.values()}
        for node in sorted(each["NodeID"] for each in ray.nodes() if each["Alive"]):
            if waiting and node not in busy:
                strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
                at = waiting.pop()
                places[remote.options(scheduling_strategy=strategy).remote(items[at], *sent)] = (at, node)
        # A node that joins later is seen when a call ends, or after this long.
        ready, _ = ray.wait(list(places), num_returns=1, timeout=10)
        for call in ready:
            at, _ = places.pop(call)
            try:
                result = ray.get(call)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                losses[at] += 1
                if losses[at] >= ATTEMPTS:
                    raise WorkerLost(f"Ray lost the worker of one call {losses[at]} times: {error}") from error
                waiting.append(at)
                continue
            yield at, result


def join_ray(ray: Any, workers: int) -> None:
    """The cluster that RAY_ADDRESS or a running `ray start` names, else a new one on this machine."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        if os.environ.get("RAY_ADDRESS"):
            raise TraincastError(
                f"no Ray cluster answers at RAY_ADDRESS={os.environ['RAY_ADDRESS']}; start it, or unset RAY_ADDRESS"
            ) from None
        ray.init(num_cpus=workers or None, include_dashboard=False, **quiet)


def _fetch(ray: Any, call: Any) -> Any:
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError) as error:
        raise WorkerLost(f"Ray lost the worker of one call {ATTEMPTS} times (out of memory?): {error}") from error
