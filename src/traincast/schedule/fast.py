"""From a table of jobs to the hot loops and back: which runs they can take, and their working arrays."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from traincast.schedule import kernels
from traincast.schedule.estimators import Beliefs, Fixed
from traincast.schedule.hazards import Overheads
from traincast.schedule.jobs import Floats, Ints, JobTable
from traincast.schedule.placement import AnyGpus, Consolidated, Placer
from traincast.schedule.policies import ByKey, LeastAttained, Policy, by_estimate, by_remaining, by_submission
from traincast.spec.fleet import Fleet, Schedule

_FITS = {"head": 0, "skip": 1, "easy": 2}


def is_covered(policy: Any, *, jobs: JobTable, fleet: Fleet, placer: Placer, beliefs: Beliefs) -> bool:
    """Whether the hot loops know this policy on this fleet."""
    if len(fleet.pools) != 1 or not isinstance(beliefs, Fixed):
        return False
    if not (isinstance(placer, AnyGpus) or (isinstance(placer, Consolidated) and placer.rest == "tightest")):
        return False
    if len(jobs) and (jobs.num_gpus < 1).any():
        return False
    if isinstance(policy, LeastAttained):
        return policy.lists == "clean"
    if not isinstance(policy, ByKey) or policy.ties != "submit":
        return False
    if policy.preemptive:
        return policy.key is by_remaining and policy.wakeup is None
    return policy.fit in _FITS and policy.key in (by_submission, by_estimate)


def run(
    jobs: JobTable,
    policy: Policy,
    *,
    fleet: Fleet,
    placer: Placer,
    beliefs: Fixed,
    overheads: Overheads,
    loops: dict[str, Callable[..., int]],
    lists: bool,
) -> Schedule:
    """The schedule by the hot loops; `lists` hands them lists, which interpreted loops read faster than arrays."""
    count = len(jobs)
    pool = fleet.pools[0]
    total = pool.num_gpus
    by_count = isinstance(placer, AnyGpus)
    width = 0 if by_count else pool.gpus_per_node
    num_nodes = 1 if by_count else pool.num_nodes
    gpus = jobs.num_gpus.astype(np.int64)
    estimate = np.array(beliefs.estimates)
    too_big = gpus > total
    start = np.where(too_big, -3.0, -1.0)
    class_gpus, class_of = np.unique(gpus, return_inverse=True)
    sizes = np.bincount(class_of, minlength=len(class_gpus))
    words = max(-(-num_nodes // kernels.BITS), 1)
    bits = np.zeros((width + 1) * words, dtype=np.int64)
    for node in range(num_nodes if width else 0):
        bits[width * words + node // kernels.BITS] |= 1 << (node % kernels.BITS)
    free = np.full(num_nodes, width, dtype=np.int64)
    state = np.zeros(width + 2, dtype=np.int64)
    state[0] = total
    state[1 + width] += num_nodes if width else 0
    held = np.full(count, -1, dtype=np.int64)
    chain = np.full(num_nodes, -1, dtype=np.int64)
    last = np.full(count, -1, dtype=np.int64)
    end = np.full(count, np.nan)
    shell: Callable[[Any], Any] = (lambda array: array.tolist()) if lists else (lambda array: array)
    most_running = min(count, total) + 1
    if policy.preemptive:
        left = jobs.duration_s.copy()
        cost = _costs(overheads, gpus)
        room = 4 * most_running + 2 * count + 64
        attained, preemptions = np.zeros(count), np.zeros(count, dtype=np.int64)
        limits = np.array(policy.limits) if isinstance(policy, LeastAttained) else np.zeros(0)
        starts, ends, runs, stops = shell(start), shell(end), shell(attained), shell(preemptions)
        passes = loops["run_preemptive"](
            int(isinstance(policy, LeastAttained)),
            int(isinstance(policy, LeastAttained) and policy.by_gpu),
            shell(limits),
            shell(jobs.submit_s),
            shell(gpus),
            shell(left),
            shell(estimate.copy()),
            shell(cost),
            shell(class_of.astype(np.int64)),
            shell(class_gpus),
            shell(_offsets(sizes)),
            shell(np.zeros(count)),
            shell(np.zeros(count, dtype=np.int64)),
            shell(np.zeros(len(class_gpus), dtype=np.int64)),
            shell(np.zeros(room)),
            shell(np.zeros(room, dtype=np.int64)),
            shell(np.full(2 * count + 2, -1.0)),
            shell(np.zeros(1, dtype=np.int64)),
            shell(free),
            shell(bits),
            words,
            shell(state),
            width,
            shell(held),
            shell(chain),
            shell(last),
            shell(np.zeros(len(class_gpus) + 1, dtype=np.int64)),
            shell(np.zeros(most_running + 1)),
            shell(np.zeros(most_running + 1, dtype=np.int64)),
            shell(np.zeros(most_running + 1, dtype=np.int64)),
            shell(np.zeros(count)),
            runs,
            shell(np.zeros(count, dtype=np.int64)),
            shell(np.zeros(count)),
            stops,
            starts,
            ends,
        )
        run_s, preempted = np.array(runs, dtype=np.float64), np.array(stops, dtype=np.int64)
        lost = preempted * cost * gpus
    else:
        keys = jobs.submit_s if isinstance(policy, ByKey) and policy.key is by_submission else estimate
        rank = np.empty(count, dtype=np.int64)
        rank[np.lexsort((np.arange(count), jobs.submit_s, keys))] = np.arange(count)
        place_of = np.empty(count, dtype=np.int64)
        firsts = _offsets(sizes)
        job_at = np.lexsort((rank, class_of)).astype(np.int64)
        place_of[job_at] = np.arange(count) - firsts[class_of[job_at]]
        leaves = np.array([1 << max(int(size) - 1, 0).bit_length() for size in sizes], dtype=np.int64)
        starts, ends = shell(start), shell(end)
        backfills = policy.fit == "easy"
        passes = loops["run_queue"](
            _FITS[policy.fit],
            shell(jobs.submit_s),
            shell(gpus),
            shell(jobs.duration_s),
            shell(estimate),
            shell(class_of.astype(np.int64)),
            shell(place_of),
            shell(job_at),
            shell(rank),
            shell(class_gpus),
            shell(_offsets(2 * leaves)),
            shell(leaves),
            shell(firsts),
            shell(np.full(int(2 * leaves.sum()), np.inf)),
            shell(np.zeros(most_running + 1)),
            shell(np.zeros(most_running + 1, dtype=np.int64)),
            shell(np.zeros(1, dtype=np.int64)),
            shell(free),
            shell(bits),
            words,
            shell(state),
            width,
            shell(held),
            shell(chain),
            shell(last),
            shell(np.zeros(len(class_gpus) + 1, dtype=np.int64)),
            shell(np.zeros(most_running + 1 if backfills else 1)),
            shell(np.zeros(most_running + 1 if backfills else 1, dtype=np.int64)),
            starts,
            ends,
        )
        run_s = np.where(too_big, 0.0, np.asarray(ends) - np.asarray(starts))
        preempted = np.zeros(count, dtype=np.int64)
        lost = np.zeros(count)
    began = np.array(starts, dtype=np.float64)
    began[too_big] = math.nan
    return Schedule(
        policy=policy.name,
        fleet=fleet,
        job_ids=jobs.job_ids,
        submit_s=jobs.submit_s,
        num_gpus=jobs.num_gpus,
        duration_s=jobs.duration_s,
        deadline_s=jobs.deadline_s,
        start_s=began,
        end_s=np.array(ends, dtype=np.float64),
        preemptions=preempted,
        failures=np.zeros(count, dtype=np.int64),
        run_s=run_s,
        gpu_s=run_s * jobs.num_gpus,
        lost_gpu_s=lost,
        rejected={
            job: f"needs {gpus[job]} GPUs of type {jobs.gpu_types[job] or 'any'}, "
            "which no pool of this fleet can ever give"
            for job in np.flatnonzero(too_big).tolist()
        },
        tenants=jobs.tenants,
        pool_gpu_s=np.array([float((run_s * jobs.num_gpus).sum())]),
        num_passes=passes,
    )


def _costs(overheads: Overheads, gpus: Ints) -> Floats:
    by_size = {int(size): overheads.preemption_s(float(size)) for size in np.unique(gpus)}
    return np.array([by_size[int(size)] for size in gpus], dtype=np.float64)


def _offsets(sizes: Any) -> Ints:
    offsets = np.zeros(len(sizes), dtype=np.int64)
    np.cumsum(sizes[:-1], out=offsets[1:])
    return offsets
