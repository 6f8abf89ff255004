"""Calls spread over processes and over Ray give what one process gives, also when workers die."""

import os
import signal
import time
from collections.abc import Callable, Iterator
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
    assert distribute(scale, [], engine="ray") == []


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


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Callable[[], str]]:
    """A Ray cluster of two nodes with one processor each; the value removes the second, puts a new one in its place and
    returns the id of the lost one."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'traincast[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    # A silent node is given up after four seconds instead of the usual quarter of a minute.
    watchful = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 8}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": watchful},
    )
    doomed = [cluster.add_node(num_cpus=1)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

    def lose() -> str:
        last = doomed.pop()
        cluster.remove_node(last, allow_graceful=False)
        doomed.append(cluster.add_node(num_cpus=1))
        return str(last.node_id)

    try:
        yield lose
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_a_table_over_ray_gives_what_one_process_gives(two_nodes: Callable[[], str]) -> None:
    from traincast.accuracy._batch import answer_rows

    rows = [
        {"case_id": str(batch), "gpu": "a100-sxm4-40g", "arch": "resnet50", "model": "resnet50", "dtype": "fp32",
         "mode": "training_step", "n_gpus": 1, "micro_batch": batch, "global_batch": batch}
        for batch in (1, 2)
    ]  # fmt: skip
    assert answer_rows(rows, engine="ray") == answer_rows(rows)


@pytest.mark.filterwarnings("ignore")
def test_a_search_for_plans_over_ray_finds_what_one_process_finds(two_nodes: Callable[[], str]) -> None:
    from traincast import catalog
    from traincast.plan import Space, search_plans
    from traincast.spec import Question, WorkloadOptions

    request = Question(source="gpt2", workload=WorkloadOptions(batch=2, seq=128), job={"steps": 100})
    clusters = tuple(catalog.cluster(name, nodes=1) for name in ("aws-p4d.24xlarge", "aws-p3.16xlarge"))
    space = Space(global_batch=16, tensor=(1, 2), pipeline=(1,), zero=(0, 1))
    alone, spread_out = (search_plans(request, clusters, space=space, engine=engine) for engine in ("none", "ray"))
    assert [one.forecast for one in spread_out.plans] == [one.forecast for one in alone.plans]
    assert len(alone.plans) > 1


@pytest.mark.filterwarnings("ignore")
def test_calls_of_a_lost_ray_node_are_made_elsewhere(two_nodes: Callable[[], str], tmp_path: Path) -> None:
    import ray

    head = ray.get_runtime_context().get_node_id()
    reached = tmp_path / "reached"

    def call(item: int, factor: int) -> int:
        if ray.get_runtime_context().get_node_id() != head and not reached.exists():
            reached.touch()
            while True:  # until the node dies under it
                time.sleep(0.05)
        while not reached.exists():
            time.sleep(0.05)
        return item * factor

    lost: list[str] = []
    results = distribute(
        call, range(5), shared=(2,), engine="ray", on_done=lambda done, total: lost or lost.append(two_nodes())
    )
    assert results == [0, 2, 4, 6, 8]
    assert len(lost) == 1

    def fail(item: int) -> int:
        raise InvalidInput(f"item {item}")

    with pytest.raises(InvalidInput, match="item 3"):
        distribute(fail, [3], engine="ray")


@pytest.mark.filterwarnings("ignore")
def test_calls_that_must_not_share_a_machine_run_one_at_a_time_on_each(
    two_nodes: Callable[[], str], tmp_path: Path
) -> None:
    import ray

    def call(item: int, folder: Path) -> tuple[int, str]:
        node = ray.get_runtime_context().get_node_id()
        (folder / node).touch(exist_ok=False)
        time.sleep(0.1)
        (folder / node).unlink()
        return item, node

    found = dict(deliver(call, range(8), shared=(tmp_path,), engine="ray", one_per_node=True))
    assert [found[at][0] for at in range(8)] == list(range(8))
    assert len({node for _, node in found.values()}) == 2
