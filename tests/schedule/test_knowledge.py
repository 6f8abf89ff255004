"""What a scheduler may know, what really happened beside it, and jobs that ended badly."""

import json
from pathlib import Path

import numpy as np
import pytest

from schedule.builders import fleet, table
from traincast.__main__ import main
from traincast.errors import InvalidInput
from traincast.schedule._compare import AS_IT_WAS, as_it_was, nearest_replay, run_cases
from traincast.schedule._estimators import Limits, Noisy
from traincast.schedule._metrics import measure_groups, measure_schedule
from traincast.schedule._policies import POLICIES
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._study import Setting, parse_fleet
from traincast.schedule._traces import read_trace

SACCT = """JobID|Submit|Eligible|Start|End|ElapsedRaw|Timelimit|AllocTRES|User|Account|Partition|QOS|State
1|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T01:00:00|3600|02:00:00|gres/gpu=4|ann|vision|gpu|normal|COMPLETED
2|2026-01-01T00:10:00|2026-01-01T00:10:00|2026-01-01T01:00:00|2026-01-01T03:00:00|7200|1-00:00:00|gres/gpu=4|bob|speech|gpu|high|FAILED
3|2026-01-01T00:20:00|2026-01-01T00:40:00|2026-01-01T03:00:00|2026-01-01T03:05:00|300|00:10:00|gres/gpu=2|ann|vision|gpu|normal|TIMEOUT
4|2026-01-01T00:30:00|2026-01-01T00:30:00|2026-01-01T03:00:00|2026-01-01T03:01:00|60|UNLIMITED|gres/gpu=1|ann|vision|gpu|normal|CANCELLED by 7
"""  # noqa: E501


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.sacct"
    path.write_text(SACCT)
    return path


def test_sacct_says_limits_starts_partitions_and_how_jobs_ended(log: Path) -> None:
    read = read_trace(log)
    assert read.jobs.limit_s[[0, 1]].tolist() == [7200.0, 86400.0]
    third = list(read.jobs.job_ids).index("3")
    assert read.jobs.submit_s[third] == 2400.0  # when it was eligible
    assert read.jobs.started_s[third] == 10800.0
    assert np.isnan(read.jobs.limit_s[list(read.jobs.job_ids).index("4")])
    assert read.jobs.partitions[0] == "gpu"
    assert read.jobs.qos[1] == "high"
    assert any("1 FAILED" in note and "1 TIMEOUT" in note for note in read.notes)
    assert any("1 jobs wait from when they were eligible" in note for note in read.notes)


def test_swf_says_the_requested_time_and_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text(
        "; comment\n1 0 50 100 4 -1 -1 4 900 -1 1 7 -1 -1 2 3 -1 -1\n2 5 -1 10 1 -1 -1 1 -1 -1 1 7 -1 -1 2 -1 -1 -1\n"
    )
    jobs = read_trace(path).jobs
    assert jobs.limit_s[0] == 900.0
    assert jobs.started_s[0] == 50.0
    assert np.isnan(jobs.limit_s[1])
    assert np.isnan(jobs.started_s[1])


def test_the_first_row_is_what_really_happened_and_the_distance_is_said(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedule", str(log), "-c", "1x4", "-p", "fifo,easy", "--knows", "limit,truth", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(row["policy"], row["knows"]) for row in answer["policies"]] == [
        (AS_IT_WAS, None), ("fifo", None), ("easy", "limit"), ("easy", "truth"),
    ]  # fmt: skip
    assert answer["policies"][0]["mean_wait_s"] == pytest.approx((0 + 3000 + 8400 + 9000) / 4)
    assert answer["policies"][1]["apart_from_real_start_s"] is not None
    assert "In the log jobs waited" in answer["summary"]
    assert "What the scheduler knows changes the mean wait under easy" in answer["summary"]


def test_knowing_run_times_lets_easy_backfill_what_limits_forbid() -> None:
    jobs = table((0, 2, 100), (1, 4, 50), (2, 2, 90), limit_s=[110.0, 60.0, 1000.0])
    cases = run_cases(jobs, [("1x4", Setting(fleet=fleet(1, 4)))], policies=["easy"], knows=["limit", "truth"])
    limited, known = cases
    assert known.schedule.start_s[2] == 2.0
    assert limited.schedule.start_s[2] == 150.0


def test_a_log_that_used_more_than_the_cluster_has_is_said() -> None:
    jobs = table((0, 4, 100), (0, 4, 100), started_s=[0.0, 0.0])
    real = as_it_was(jobs, fleet(1, 4))
    assert real is not None
    assert any("up to 8 GPUs" in note for note in real.notes)
    assert as_it_was(table((0, 1, 5)), fleet()) is None
    assert nearest_replay([]) is None


def test_a_job_that_passes_its_limit_is_killed_when_the_site_does_so() -> None:
    jobs = table((0, 4, 100), (0, 4, 10), limit_s=[40.0, 20.0])
    spared = simulate_cluster(jobs, POLICIES["fifo"], fleet=fleet(1, 4))
    schedule = simulate_cluster(jobs, POLICIES["fifo"], fleet=fleet(1, 4), kill_at_limit=True)
    assert spared.end_s.tolist() == [100.0, 110.0]
    assert schedule.end_s.tolist() == [40.0, 50.0]
    assert schedule.status(0) == "killed"
    assert measure_schedule(schedule).killed == 1


def test_limits_are_refused_where_there_are_none() -> None:
    with pytest.raises(InvalidInput, match="no job of the trace has a limit"):
        Limits().start(table((0, 1, 5)))
    noisy = Noisy(bias=2.0, base=Limits()).start(table((0, 1, 5), limit_s=[30.0]))
    assert noisy.estimate_s(0) == 60.0


def test_idle_nodes_cost_money() -> None:
    jobs = table((0, 4, 3600), (0, 4, 3600))
    small, large = (
        measure_schedule(simulate_cluster(jobs, POLICIES["fifo"], fleet=parse_fleet(text)))
        for text in ("2x4@1", "4x4@1")
    )
    assert small.cost_usd == pytest.approx(8.0)
    assert large.cost_usd == pytest.approx(16.0)


def test_waits_are_broken_down_by_tenant_and_size() -> None:
    jobs = table((0, 4, 100), (0, 1, 50), (0, 8, 10), tenants=["a", "b", "b"])
    schedule = simulate_cluster(jobs, POLICIES["fifo"], fleet=fleet(1, 4))
    by_tenant = {group.group: group for group in measure_groups(schedule, "tenant")}
    assert by_tenant["b"].mean_wait_s == 100.0
    assert by_tenant["b"].unfinished == 1
    assert [group.group for group in measure_groups(schedule, "size")] == ["up to 1 GPU", "2-4", "5-8"]
