"""Every policy with every option: the option changes something, or it is refused by name."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schedule.builders import write_trace
from traincast.cli.schedule import Options, _flag_of, compare_cases
from traincast.errors import InvalidInput, UnknownName
from traincast.schedule._generate import Mix, generate_jobs
from traincast.schedule._known import REGISTRY

OPTIONS: dict[str, dict[str, Any]] = {
    "--sigma": {"sigma": "1.2"},
    "--bias": {"bias": 0.1},
    "--knows": {"knows": "history"},
    "--preempt-cost": {"preempt_cost": 200.0},
    "--resize-cost": {"resize_cost": 900.0},
    "--mtbf-hours": {"mtbf": "12"},
    "--checkpoint-every": {"mtbf": "12", "checkpoint_every": 60.0},
    "--restart-cost": {"mtbf": "12", "restart_cost": 4000.0},
    "--placement": {"placement": "spread"},
    "--uplink": {"racks": 1, "uplink": "100MB", "placement": "spread"},
    "--mttr-hours": {"mtbf": "12", "mttr": 9.0},
    "--nodes-per-rack": {"racks": 2, "uplink": "200MB", "placement": "spread"},
    "--traffic": {"racks": 1, "uplink": "200MB", "placement": "spread", "traffic": "3GB"},
    "--until": {"until": "2h"},
    "--quota": {"quotas": "tenant-0=9"},
    "--kill-at-limit": {"kill": True},
}
BESIDE: dict[str, dict[str, Any]] = {
    "--checkpoint-every": {"mtbf": "12"},
    "--restart-cost": {"mtbf": "12"},
    "--uplink": {"placement": "spread"},
    "--mttr-hours": {"mtbf": "12"},
    "--nodes-per-rack": {"racks": 1, "uplink": "200MB", "placement": "spread"},
    "--traffic": {"racks": 1, "uplink": "200MB", "placement": "spread"},
}
"""What the run without the option has too, so that the option alone makes the difference."""


ELSEWHERE = {
    **dict.fromkeys(("--cluster", "--policy", "--format", "--only", "--load", "--seed"), "what is run, not how"),
    **dict.fromkeys(("--by", "--html", "--out", "--json"), "output: tests/cli, tests/report"),
    **dict.fromkeys(("--columns", "--workloads", "--now", "--job", "--nodes"), "test_operators"),
    **dict.fromkeys(("--slurm-conf", "--sacct", "--slurm-qos", "--slurm-accounts"), "test_slurm"),
    **dict.fromkeys(("--forecasts", "--calibration", "--given"), "tests/cli, test_knowledge"),
    "--queues": "test_queues",
    "--gpu-speed": "below",
    "--plan-with": "below and test_knowledge",
}
"""Options of the command that are not looked at with every policy, and where they are."""


def test_every_option_of_the_command_is_looked_at_with_every_policy_or_elsewhere() -> None:
    flags = {_flag_of(entry.name) for entry in dataclasses.fields(Options)}
    assert flags == {*OPTIONS, *ELSEWHERE}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small crowded day: users with limits, some too short, tenants, priorities and deadlines."""
    from dataclasses import replace

    mix = Mix(sizes={1: 4, 2: 2, 3: 1, 4: 2, 6: 1, 8: 1}, load=5.0, median_s=1500, sigma=1.0, deadline_slack=1.0)
    jobs = generate_jobs(48, num_gpus=12, mix=mix, seed=4)
    rng = np.random.default_rng(1)
    limits = np.ceil(jobs.duration_s * rng.choice([0.8, 1.5, 3.0, 10.0], len(jobs)))
    jobs = replace(
        jobs,
        limit_s=limits,
        priority=rng.integers(0, 3, len(jobs)).astype(float),
        users=[f"user-{number}" for number in rng.integers(0, 5, len(jobs)).tolist()],
        workloads=[f"model-{number}" for number in rng.integers(0, 2, len(jobs)).tolist()],
    )
    path = tmp_path_factory.mktemp("trace") / "day.csv"
    write_trace(jobs, path)
    return str(path)


@cache
def run(trace: str, policy: str, **words: Any) -> bytes:
    _, cases = compare_cases(trace, Options(cluster=["3x4"], policy=policy, **{"knows": None, **words}))
    schedule = cases[-1].schedule
    return b"".join(np.asarray(column).tobytes() for column in (schedule.start_s, schedule.end_s, schedule.run_s))


SLOW = (
    "optimus",
    "makespan",
    "finish-time-fairness",
    "cost",
    "max-throughput",
    "max-min-perf",
    "isolated",
)
NO_DIFFERENCE = {
    (
        "gavel-fifo",
        "--preempt-cost",
    ): "on one GPU type nobody is moved; on several it changes types when a faster one is free",
    ("makespan", "--bias"): "a common factor moves the limits of its halving only now and then",
    ("qssf", "--knows"): "history is what it knows anyway",
}
"""Pairs that are honoured and make no difference on this trace."""


@pytest.mark.parametrize(
    "policy", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in REGISTRY]
)
def test_every_option_changes_the_schedule_or_is_refused_by_name(trace: str, policy: str) -> None:
    for option, words in OPTIONS.items():
        try:
            changed = run(trace, policy, **words)
        except InvalidInput as error:
            refusal = str(error)
            assert policy in refusal
            known = (option, "--mtbf-hours", "--placement", "--nodes-per-rack")
            assert any(word in refusal for word in known)
            continue
        if (policy, option) not in NO_DIFFERENCE:
            assert changed != run(trace, policy, **BESIDE.get(option, {})), option


def test_other_gpus_are_as_fast_as_the_command_says(trace: str) -> None:
    given = Options(cluster=["3x4:a", "3x4:b"], policy="fifo")
    read, same = compare_cases(trace, given)
    assert np.array_equal(same[0].schedule.end_s, same[1].schedule.end_s)
    assert any("b are taken to be as fast as a" in note for note in read.notes)
    read, faster = compare_cases(trace, dataclasses.replace(given, gpu_speed="b=2"))
    assert not any("as fast as" in note for note in read.notes)
    assert np.array_equal(same[0].schedule.end_s, faster[0].schedule.end_s)
    np.testing.assert_allclose(faster[1].schedule.run_s, np.asarray(same[1].schedule.run_s) / 2)
    with pytest.raises(InvalidInput, match="DEVICE=FACTOR"):
        compare_cases(trace, dataclasses.replace(given, gpu_speed="b"))
    with pytest.raises(UnknownName, match="GPU type of --gpu-speed"):
        compare_cases(trace, dataclasses.replace(given, gpu_speed="c=2"))


def test_several_mean_times_between_failures_are_compared_in_one_command(trace: str) -> None:
    _, cases = compare_cases(trace, Options(cluster=["3x4"], policy="fifo", mtbf="0,50,5"))
    assert [case.cluster for case in cases] == ["3x4, no failures", "3x4, MTBF 50 h", "3x4, MTBF 5 h"]
    broken = [int(np.asarray(case.schedule.failures).sum()) for case in cases]
    assert broken[0] == 0 <= broken[1] < broken[2]
    with pytest.raises(InvalidInput, match="several such as 0,2000,500"):
        compare_cases(trace, Options(cluster=["3x4"], policy="fifo", mtbf="often"))


def test_a_flag_that_concerns_only_some_policies_says_which(trace: str) -> None:
    read, _ = compare_cases(trace, Options(cluster=["3x4"], policy="fifo,easy", sigma="0.5"))
    assert any("--sigma changes nothing for fifo" in note for note in read.notes)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"mttr": 2.0}, "--mttr-hours means nothing without --mtbf-hours"),
        ({"checkpoint_every": 2.0}, "--checkpoint-every means nothing without"),
        ({"racks": 2}, "--nodes-per-rack means nothing without --placement topology or --uplink"),
        ({"traffic": "1GB"}, "without --uplink"),
        ({"load": 2.0}, "--load is about synthetic"),
        ({"plan_with": 0.9}, "--plan-with is about forecasts"),
        ({"seed": 3}, "--seed means nothing here"),
        ({"knows": "forecast"}, "needs forecasts"),
        ({"knows": "hope"}, "unknown kind of knowledge"),
    ],
)
def test_an_option_without_what_it_needs_is_refused(trace: str, words: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        compare_cases(trace, Options(cluster=["3x4"], policy="easy", **words))


@pytest.mark.parametrize("bias", [6.0, 0.2])
def test_wrong_estimates_leave_a_policy_its_own_source_of_them(trace: str, bias: float) -> None:
    """QSSF looks at history; a factor on all of it changes no order, so its schedule stays what it was."""
    from dataclasses import replace

    from traincast.schedule._estimators import Noisy
    from traincast.schedule._study import Setting, parse_fleet, run_policy
    from traincast.schedule._traces import read_trace

    jobs = read_trace(Path(trace)).jobs
    setting = Setting(fleet=parse_fleet("3x4"))
    own = run_policy("qssf", jobs, setting)
    misled = run_policy("qssf", jobs, replace(setting, noise=Noisy(bias=bias)))
    assert np.asarray(own.end_s).tobytes() == np.asarray(misled.end_s).tobytes()


def test_the_help_of_the_command_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets in a help text were once read as markup."""
    from traincast.__main__ import main

    assert main(["schedule", "--help"]) in (0, None)
    assert "--slurm-conf" in capsys.readouterr().out
