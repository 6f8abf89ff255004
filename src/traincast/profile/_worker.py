"""A long-lived rank: receives experiments one after another, runs them with its peers, and reports each block.

Started by torchrun, or directly with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Rank 0 reads one JSON line per
experiment from the inbox and appends one line per result; importing torch once and staying alive is what makes a
measured point cost seconds instead of half a minute.
"""

import argparse
import contextlib
import ctypes
import datetime
import gc
import itertools
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from traincast.errors import InvalidInput, TraincastError, UnknownName
from traincast.files import decode, encode
from traincast.profile._machine import describe, fix_malloc, make_canary, release_heap
from traincast.profile._operators import find_optimizer
from traincast.profile._protocol import Protocol
from traincast.profile._resources import network_bytes, sampling
from traincast.profile._steps import StepWorkload, load_workload, make_optimizer, training_step
from traincast.spec import Block, Experiment

POLL_S = 0.01
PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="traincast.profile._worker")
    parser.add_argument("--inbox", required=True)
    parser.add_argument("--results", required=True)
    parser.add_argument("--machine", default=None)
    parser.add_argument("--backend", default="gloo")
    options = parser.parse_args()
    die_with_parent()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    fix_malloc()
    # A day: between two experiments the peers of rank 0 wait in a broadcast for as long as their user thinks.
    dist.init_process_group(options.backend, timeout=datetime.timedelta(days=1))
    try:
        serve(inbox=Path(options.inbox), results=Path(options.results), machine=options.machine)
    finally:
        dist.destroy_process_group()


def serve(*, inbox: Path, results: Path, machine: str | None) -> None:
    canary = make_canary()
    # The first use of each strategy imports seconds' worth of modules; that belongs before the first experiment.
    prepare_parallel_step(Experiment(subject="step", name="mlp(depth=2,width=8)", attrs={"batch": 1}))()
    if dist.get_rank() == 0:
        environment = encode(describe(machine=machine))
        _report(results, {"ready": dist.get_world_size(), "environment": environment})
    orders = _orders(inbox) if dist.get_rank() == 0 else None
    while True:
        order = _share(next(orders) if orders is not None else None)
        if order.get("stop"):
            return
        answer = _answer(order, canary, _rehearsed(order, orders, results))
        if dist.get_rank() == 0:
            _report(results, answer)
        release_heap()


def _rehearsed(
    order: dict[str, Any], orders: Iterator[dict[str, Any]] | None, results: Path
) -> Callable[[], None] | None:
    """Between warm-up and timing, tell whoever asked, and wait: it may now take away the CPU time that only building and
    warming up were meant to have. None where nobody asked."""
    if not order.get("rehearse"):
        return None

    def wait() -> None:
        if orders is not None:
            _report(results, {"rehearsed": True})
        _share(next(orders) if orders is not None else None)

    return wait


def die_with_parent() -> None:
    """Whoever started this rank may be killed outright; no rank outlives it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _orders(inbox: Path) -> Iterator[dict[str, Any]]:
    pending = ""
    with inbox.open(encoding="utf-8") as stream:
        while True:
            pending += stream.readline()
            if pending.endswith("\n"):
                yield json.loads(pending)
                pending = ""
            else:
                time.sleep(POLL_S)


def _report(results: Path, answer: dict[str, Any]) -> None:
    with results.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(answer) + "\n")


def _share(value: Any) -> Any:
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _answer(
    order: dict[str, Any], canary: Callable[[], float], rehearsed: Callable[[], None] | None = None
) -> dict[str, Any]:
    experiment = decode(Experiment, order["experiment"])
    protocol = decode(Protocol, order.get("protocol", {}))
    problem, run = None, None
    try:
        run = prepare(experiment)
    except (TraincastError, RuntimeError, ValueError, NotImplementedError) as error:
        problem = f"{type(error).__name__}: {error}"
    # All or none: a rank that runs alone would wait for ever.
    problems = [text for text in _gather(problem) if text]
    if problems or run is None:
        return {"experiment": order["experiment"], "failure": problems[0].splitlines()[0]}
    block, began_s, ended_s = _measure(
        run, protocol=protocol, canary=canary, sample=bool(order.get("sample")), rehearsed=rehearsed
    )
    return {"experiment": order["experiment"], "block": encode(block), "began_s": began_s, "ended_s": ended_s}


def _measure(
    run: Callable[[], None],
    *,
    protocol: Protocol,
    canary: Callable[[], float],
    sample: bool,
    rehearsed: Callable[[], None] | None,
) -> tuple[Block, float, float]:
    """The block, and when its repeats began and ended by the clock that all processes of this machine share."""
    typical_s = _warm_up(run, max(2, protocol.warm_up_runs))
    if rehearsed is not None:
        rehearsed()
        typical_s = _warm_up(run, 1)
    wanted = min(protocol.max_repeats, max(protocol.min_repeats, round(protocol.block_s / typical_s)))
    num_repeats = int(_share(wanted))
    canary_s = canary()
    started_at = datetime.datetime.now(datetime.UTC).isoformat()
    gc.collect()
    gc.disable()
    dist.barrier()
    sent_before, received_before = network_bytes()
    marks = [(time.perf_counter(), time.process_time())]
    for _ in range(num_repeats):
        run()
        marks.append((time.perf_counter(), time.process_time()))
    sent_after, received_after = network_bytes()
    gc.enable()
    mine = {
        "wall_s": [after[0] - before[0] for before, after in itertools.pairwise(marks)],
        "cpu_s": [after[1] - before[1] for before, after in itertools.pairwise(marks)],
        "canary_s": canary_s,
        "sent_bytes": (sent_after - sent_before) / num_repeats,
        "received_bytes": (received_after - received_before) / num_repeats,
        "resources": _sample(run) if sample else {},
    }
    ranks = _gather(mine)
    resources: dict[str, float] = {}
    for number, rank in enumerate(ranks):
        resources[f"rank{number}_cpu_s"] = statistics.median(rank["cpu_s"])
        resources[f"rank{number}_sent_bytes"] = rank["sent_bytes"]
        resources[f"rank{number}_received_bytes"] = rank["received_bytes"]
        for name, value in rank["resources"].items():
            resources[f"rank{number}_sampled_{name}"] = value
    block = Block(
        started_at=started_at,
        # A step is over when the slowest rank is.
        wall_s=tuple(max(times) for times in zip(*(rank["wall_s"] for rank in ranks), strict=True)),
        cpu_s=tuple(max(times) for times in zip(*(rank["cpu_s"] for rank in ranks), strict=True)),
        canary_s=max(rank["canary_s"] for rank in ranks),
        resources=resources,
        source="profile",
    )
    return block, marks[0][0], marks[-1][0]


def _warm_up(run: Callable[[], None], times: int) -> float:
    """Seconds of a typical run; the first of several is not one."""
    durations = []
    for _ in range(times):
        dist.barrier()
        started = time.perf_counter()
        run()
        durations.append(time.perf_counter() - started)
    return max(statistics.median(durations[1:] or durations), 1e-6)


def _sample(run: Callable[[], None]) -> dict[str, float]:
    with sampling(interval_s=0.01) as samples:
        for _ in range(3):
            run()
    return samples.summary()


def prepare(experiment: Experiment) -> Callable[[], None]:
    """One run of the experiment on this rank; every rank of the job prepares and runs the same."""
    if experiment.subject == "collective":
        return prepare_collective(experiment)
    if experiment.subject == "step":
        return prepare_parallel_step(experiment)
    raise InvalidInput(f"{experiment.key}: single operators are not measured across ranks")


def prepare_collective(experiment: Experiment) -> Callable[[], None]:
    if experiment.name not in COLLECTIVES:
        raise UnknownName("collective", experiment.name, COLLECTIVES)
    ranks = dist.get_world_size()
    numel = max(ranks, int(float(experiment.attrs["num_bytes"]) // 4) // ranks * ranks)
    return COLLECTIVES[experiment.name](torch.rand(numel), ranks)


def _all_reduce(data: torch.Tensor, ranks: int) -> Callable[[], None]:
    return lambda: dist.all_reduce(data, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.MAX)


def _all_gather(data: torch.Tensor, ranks: int) -> Callable[[], None]:
    piece = data[: data.numel() // ranks].clone()
    return lambda: dist.all_gather_into_tensor(data, piece)


def _reduce_scatter(data: torch.Tensor, ranks: int) -> Callable[[], None]:
    piece = torch.empty(data.numel() // ranks)
    return lambda: dist.reduce_scatter_tensor(piece, data)


def _all_to_all(data: torch.Tensor, ranks: int) -> Callable[[], None]:
    target = torch.empty_like(data)
    return lambda: dist.all_to_all_single(target, data)


def _broadcast(data: torch.Tensor, ranks: int) -> Callable[[], None]:
    return lambda: dist.broadcast(data, src=0)


def _send_recv(data: torch.Tensor, ranks: int) -> Callable[[], None]:
    """Rank 0 to rank 1 and back; half of the round trip is one message, so one run sends half of it each way."""
    half = data[: max(1, data.numel() // 2)].clone()

    def run() -> None:
        rank = dist.get_rank()
        if rank == 0:
            dist.send(half, 1)
            dist.recv(half, 1)
        elif rank == 1:
            dist.recv(half, 0)
            dist.send(half, 0)

    return run


COLLECTIVES: dict[str, Callable[[torch.Tensor, int], Callable[[], None]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send_recv": _send_recv,
}


def prepare_parallel_step(experiment: Experiment) -> Callable[[], None]:
    strategy = str(experiment.attrs.get("strategy", "ddp"))
    if strategy not in STRATEGIES:
        raise UnknownName("strategy", strategy, STRATEGIES, plural="strategies")
    workload = load_workload(experiment.name, batch=int(experiment.attrs["batch"]))
    return STRATEGIES[strategy](workload, experiment)


def _wrapped(workload: StepWorkload, model: Any) -> StepWorkload:
    return StepWorkload(model=model, arguments=workload.arguments, named=workload.named, loss=workload.loss)


def _ddp(workload: StepWorkload, experiment: Experiment) -> Callable[[], None]:
    bucket_bytes = float(experiment.attrs.get("bucket_bytes", 25e6))
    model = torch.nn.parallel.DistributedDataParallel(workload.model, bucket_cap_mb=bucket_bytes / 2**20)
    return training_step(_wrapped(workload, model), make_optimizer(experiment, model))


def _zero1(workload: StepWorkload, experiment: Experiment) -> Callable[[], None]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.parallel.DistributedDataParallel(workload.model)
    kind, options = find_optimizer(torch, str(experiment.attrs.get("optimizer", "adamw")))
    sharded = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, **options)
    return training_step(_wrapped(workload, model), sharded)


def _fsdp(workload: StepWorkload, experiment: Experiment) -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for child in workload.model.modules():
        # The blocks of a model: what it keeps in a list, each gathered by itself.
        if isinstance(child, (torch.nn.Sequential, torch.nn.ModuleList)) and child is not workload.model:
            for block in child:
                if any(parameter.requires_grad for parameter in block.parameters()) and type(block) not in _LISTS:
                    fully_shard(block, mesh=mesh)
            break
    model = fully_shard(workload.model, mesh=mesh)
    return training_step(_wrapped(workload, model), make_optimizer(experiment, model))


_LISTS = (torch.nn.Sequential, torch.nn.ModuleList)


def _local(workload: StepWorkload, experiment: Experiment) -> Callable[[], None]:
    """Every rank trains by itself: what the step costs without any communication on these nodes."""
    return training_step(workload, make_optimizer(experiment, workload.model))


STRATEGIES: dict[str, Callable[[StepWorkload, Experiment], Callable[[], None]]] = {
    "ddp": _ddp,
    "zero1": _zero1,
    "fsdp": _fsdp,
    "local": _local,
}

if __name__ == "__main__":
    main()
