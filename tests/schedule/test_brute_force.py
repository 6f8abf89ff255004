"""The engine against an oracle that steps through every second and sorts everything anew."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from schedule.builders import fleet, job_tables, table
from traincast.schedule._jobs import JobTable
from traincast.schedule._placement import PLACERS
from traincast.schedule._policies import POLICIES, LeastAttained, Policy
from traincast.schedule._simulator import simulate_cluster

LIMITS = (20.0, 60.0)


def step_through(jobs: JobTable, capacity: int, order: Callable[..., tuple], preempts: bool, fit: str) -> list[float]:
    """End times by brute force: finish, arrive, then decide, second by second."""
    count = len(jobs)
    need = [int(gpus) for gpus in jobs.num_gpus]
    left = [int(seconds) for seconds in jobs.duration_s]
    served = [0] * count
    ends = [-1.0] * count
    waiting: list[int] = []
    running: list[int] = []
    now = 0
    while min(ends) < 0:
        for job in [job for job in running if left[job] == 0]:
            running.remove(job)
            ends[job] = now
        waiting += [job for job in range(count) if jobs.submit_s[job] == now]

        busy = set(running)

        def rank(job: int, busy: set[int] = busy) -> tuple:
            return (*order(job, left, served, job in busy), jobs.submit_s[job], job)

        if preempts:
            free = capacity
            keep = []
            for job in sorted(waiting + running, key=rank):
                if need[job] <= free:
                    free -= need[job]
                    keep.append(job)
            waiting = [job for job in waiting + running if job not in keep]
            running = keep
        else:
            shadow = extra = None
            for job in sorted(waiting, key=rank):
                free = capacity - sum(need[other] for other in running)
                if shadow is not None:
                    if need[job] <= free and (now + left[job] <= shadow or need[job] <= extra):
                        extra -= 0 if now + left[job] <= shadow else need[job]
                        waiting.remove(job)
                        running.append(job)
                    continue
                if need[job] <= free:
                    waiting.remove(job)
                    running.append(job)
                elif fit == "head":
                    break
                elif fit == "easy":
                    ends_then = sorted(now + left[other] for other in running)
                    for end in ends_then:
                        room = free + sum(need[other] for other in running if now + left[other] <= end)
                        if room >= need[job]:
                            shadow, extra = end, room - need[job]
                            break
        for job in running:
            left[job] -= 1
            served[job] += 1
        now += 1
    return ends


def first_come(job: int, left: list[int], served: list[int], runs: bool) -> tuple:
    return ()


def make_cases(jobs: JobTable) -> dict[str, tuple[Policy, Callable[..., tuple], bool, str]]:
    level = LeastAttained(limits=LIMITS)

    def by_level(job: int, left: list[int], served: list[int], runs: bool) -> tuple:
        return (sum(served[job] >= limit for limit in LIMITS), not runs)

    def shortest(job: int, left: list[int], served: list[int], runs: bool) -> tuple:
        return (left[job],)

    def least_service(job: int, left: list[int], served: list[int], runs: bool) -> tuple:
        return (left[job] * jobs.num_gpus[job],)

    def duration(job: int, left: list[int], served: list[int], runs: bool) -> tuple:
        return (jobs.duration_s[job],)

    return {
        "fifo": (POLICIES["fifo"], first_come, False, "head"),
        "first-fit": (POLICIES["first-fit"], first_come, False, "skip"),
        "sjf": (POLICIES["sjf"], duration, False, "head"),
        "easy": (POLICIES["easy"], first_come, False, "easy"),
        "srtf": (POLICIES["srtf"], shortest, True, "skip"),
        "srsf": (POLICIES["srsf"], least_service, True, "skip"),
        "las": (level, by_level, True, "skip"),
    }


@pytest.mark.parametrize("name", ["fifo", "first-fit", "sjf", "easy", "srtf", "srsf", "las"])
@given(jobs=job_tables(max_jobs=20))
@settings(max_examples=40, deadline=None)
def test_the_engine_agrees_with_stepping_through_every_second(name: str, jobs: JobTable) -> None:
    policy, order, preempts, fit = make_cases(jobs)[name]
    cluster = fleet(1, 8)
    schedule = simulate_cluster(jobs, policy, fleet=cluster, placer=PLACERS["count"])
    assert np.asarray(schedule.end_s).tolist() == step_through(jobs, 8, order, preempts, fit)


@pytest.mark.parametrize("placement", ["count", "consolidated"])
def test_nobody_is_moved_in_line_by_a_start_or_stop_of_the_same_moment(placement: str) -> None:
    """Chosen one by one, a job that had just been stopped stood behind its own level, and the wrong ones ran on."""
    jobs = table((0, 1, 1), (0, 2, 21), (0, 1, 1), (20, 4, 21), (20, 3, 21), (20, 2, 1), (20, 3, 1))
    policy, order, preempts, fit = make_cases(jobs)["las"]
    schedule = simulate_cluster(jobs, policy, fleet=fleet(1, 8), placer=PLACERS[placement])
    assert np.asarray(schedule.end_s).tolist() == step_through(jobs, 8, order, preempts, fit)
