"""Operators' own files and questions: from sacct to a decision, checked by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from schedule.builders import fleet, table
from traincast.__main__ import main
from traincast.cli.schedule import Options, compare_cases
from traincast.errors import InvalidInput
from traincast.schedule._known import find_policy
from traincast.schedule._questions import find_nodes, match_types, parse_goal, plan_nodes, predict_start
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._slurm.site import read_sinfo
from traincast.schedule._study import Setting, job_columns, parse_fleet
from traincast.schedule._traces import Trace, read_trace

DOCS = Path(__file__).resolve().parents[2] / "docs/how-to"
DAY = DOCS / "day.sacct"
NODES = "2x4:a100-80g@2"
HEAD = "JobID|State|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|ReqTRES\n"
MINUTE = 60.0


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_worked_day_is_what_is_worked_out_by_hand() -> None:
    """Job 2 asks for all GPUs and waits for job 1 until 60 min. Job 3 waits behind it until 120 min under FIFO; by its limit it
    ends before job 1 ends by its own, so EASY starts it at once."""
    _, cases = compare_cases(str(DAY), Options(cluster=[NODES], policy="fifo,easy"))
    waits = {case.policy: (np.asarray(case.schedule.start_s) - case.schedule.submit_s).tolist() for case in cases}
    assert waits["fifo"] == waits["as it was"] == [0.0, 50 * MINUTE, 100 * MINUTE]
    assert waits["easy"] == [0.0, 50 * MINUTE, 0.0]
    # 8 GPUs at 2 dollars until 150 min after the first submission, whichever policy is done first.
    assert {case.metrics.cost_usd for case in cases} == {8 * 2 * 2.5}


def test_when_a_waiting_job_starts_is_drawn_from_how_jobs_use_their_limits() -> None:
    """Jobs used 1/2 to 2/3 of their limits: the running one has 10 to 20 minutes left, job 6 takes 30 to 40, then comes job 7."""
    now, past = read_trace(DAY, now=True), read_trace(DAY)
    jobs, _ = match_types(now.jobs, parse_fleet(NODES).pools)
    assert jobs.ran_s[0] == 20 * MINUTE
    found = predict_start("7", jobs, Setting(fleet=parse_fleet(NODES)), policy="fifo", past=past.jobs)
    assert 40 * MINUTE <= found.p50_start_s <= found.p90_start_s <= 60 * MINUTE
    assert found.p50_start_s < found.p50_end_s
    assert found.ahead == 1
    by_limit = predict_start("7", jobs, Setting(fleet=parse_fleet(NODES)), policy="fifo")
    assert by_limit.p50_start_s == by_limit.p90_start_s == 100 * MINUTE


@pytest.mark.parametrize("policy", ["fifo", "easy", "conservative", "srtf", "las", "quota", "first-fit"])
def test_running_jobs_go_on_whatever_the_policy(policy: str) -> None:
    jobs = table((0.0, 4.0, 100.0), (0.0, 4.0, 10.0), ran_s=[50.0, np.nan])
    found = simulate_cluster(jobs, find_policy(policy, jobs, fleet(1, 4)), fleet=fleet(1, 4))
    assert found.start_s[0] == 0.0


def test_nodes_are_searched_until_the_goal_is_met() -> None:
    jobs = table(*[(0.0, 4.0, 100.0)] * 6)
    found, tried = find_nodes(jobs, Setting(fleet=fleet(1, 4)), policy="fifo", goal=parse_goal("p90_wait<1s"))
    assert found is not None
    assert found.pools[0].num_nodes == 6
    assert tried < 7
    nobody, _ = find_nodes(
        table((0.0, 64.0, 9.0)), Setting(fleet=fleet(1, 2)), policy="fifo", goal=parse_goal("p90_wait<1s")
    )
    assert nobody is None
    with pytest.raises(InvalidInput, match="p90_wait"):
        parse_goal("slowness<3")


def test_nodes_join_leave_and_are_set_aside() -> None:
    jobs = table((0.0, 4.0, 100.0), (0.0, 4.0, 100.0), (0.0, 4.0, 100.0))
    wider, plan = plan_nodes("10s:+1,50s-70s:-1", fleet(2, 4))
    found = simulate_cluster(jobs, find_policy("fifo", jobs, wider), fleet=wider, failures=plan)
    # The third node is there from 10 s on; the second is gone from 50 to 70 s, and its job begins again.
    assert sorted(np.asarray(found.start_s).tolist()) == [0.0, 0.0, 10.0]
    assert sorted(np.asarray(found.end_s).tolist()) == [100.0, 110.0, 170.0]
    with pytest.raises(InvalidInput, match="duration such as"):
        plan_nodes("soon:+2", fleet(2, 4))


ROWS = (
    "1|NODE_FAIL|2026-03-02T00:00:00|2026-03-02T00:00:00|2026-03-02T00:10:00|600|90|gres/gpu:a100=4|gres/gpu=4\n"
    "1|COMPLETED|2026-03-02T00:00:00|2026-03-02T00:20:00|2026-03-02T00:50:00|1800|90|gres/gpu:a100=4|gres/gpu=4\n"
    "2+0|COMPLETED|2026-03-02T00:10:00|2026-03-02T00:20:00|2026-03-02T00:50:00|1800|90|gres/gpu:a100=2|gres/gpu=2\n"
    "2+1|COMPLETED|2026-03-02T00:10:00|2026-03-02T00:20:00|2026-03-02T00:50:00|1800|90|gres/gpu:v100=1|gres/gpu=1\n"
    "3_1|COMPLETED|2026-03-02T00:30:00|2026-03-02T00:40:00|2026-03-02T00:50:00|600|90|gres/gpu:v100=1|gres/gpu=1\n"
    "4|COMPLETED|2026-03-02T00:30:00|2026-03-02T00:40:00|2026-03-02T00:50:00|600|90|cpu=8|cpu=8\n"
)


def test_requeues_are_one_job_hetjobs_are_one_job_and_jobs_without_gpus_are_counted(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "log.sacct", HEAD + ROWS))
    assert list(trace.jobs.job_ids) == ["1", "2", "3_1"]
    assert trace.jobs.duration_s.tolist() == [2400.0, 1800.0, 600.0]
    assert trace.jobs.num_gpus.tolist() == [4.0, 3.0, 1.0]
    told = " ".join(trace.notes)
    assert "1 jobs ask for no GPU" in told
    assert "1 rows are earlier runs of jobs that were requeued" in told


def test_types_of_a_log_are_matched_to_devices_by_their_words(tmp_path: Path) -> None:
    path = write(tmp_path / "log.sacct", HEAD + ROWS)
    read, cases = compare_cases(str(path), Options(cluster=["2x4:a100-80g,2x4:v100-16g"], policy="fifo"))
    assert any("a100 as a100-80g, v100 as v100-16g" in note for note in read.notes)
    assert not cases[-1].schedule.rejected
    _, cases = compare_cases(str(path), Options(cluster=["2x4:a100-80g"], policy="slurm"))
    assert not cases[-1].schedule.rejected


def test_a_cluster_that_rejects_every_job_is_an_error_with_the_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "log.sacct", HEAD + ROWS)
    with pytest.raises(InvalidInput, match=r"rejects every job on 1x1.*which no pool"):
        compare_cases(
            str(write(tmp_path / "one.sacct", HEAD + ROWS.splitlines()[0] + "\n")),
            Options(cluster=["1x1"], policy="fifo"),
        )
    assert read_trace(path).jobs.num_gpus.max() == 4


JSON = {
    "jobs": [
        {
            "job_id": 7,
            "name": "gpt",
            "user": "bob",
            "state": {"current": ["COMPLETED"]},
            "time": {
                "submission": 100,
                "eligible": 100,
                "start": 160,
                "end": 460,
                "elapsed": 300,
                "limit": {"set": True, "number": 90},
            },
            "tres": {
                "allocated": [
                    {"type": "gres", "name": "gpu:a100", "count": 4},
                    {"type": "gres", "name": "gpu", "count": 4},
                ]
            },
        }
    ]
}
PBS = (
    "03/02/2026 00:10:00;Q;7.server;queue=gpu\n"
    "03/02/2026 00:10:00;E;7.server;user=bob project=text queue=gpu qtime=100 start=160 end=460 "
    "Resource_List.select=2:ncpus=8:ngpus=2 Resource_List.walltime=01:30:00\n"
    "03/02/2026 00:20:00;E;8.server;user=bob queue=cpu qtime=100 start=160 end=460 Resource_List.ncpus=8\n"
)
LSF = '"JOB_FINISH" "10.1" 460 7 1001 33554435 8 100 0 0 160 "bob" "gpu" "select[ngpus>0] rusage[ngpus_physical=4.00]" "" ""\n'
SQUEUE = (
    "JOBID|NAME|USER|STATE|SUBMIT_TIME|START_TIME|TIME_LIMIT|NODES|TRES_PER_NODE\n"
    "7|gpt|bob|RUNNING|1970-01-01T00:01:40|1970-01-01T00:02:40|1:30:00|2|gres/gpu:a100:2\n"
    "8|gpt|bob|PENDING|1970-01-01T00:07:40|N/A|30:00|1|gres/gpu:a100:4\n"
)


@pytest.mark.parametrize(
    ("name", "text"), [("log.json", json.dumps(JSON)), ("20260302", PBS), ("lsb.acct", LSF)], ids=["json", "pbs", "lsf"]
)
def test_logs_of_slurm_pbs_and_lsf_say_the_same_job(name: str, text: str, tmp_path: Path) -> None:
    trace: Trace = read_trace(write(tmp_path / name, text))
    assert list(trace.jobs.job_ids) == ["7"]
    assert (trace.jobs.num_gpus[0], trace.jobs.duration_s[0], trace.jobs.started_s[0]) == (4.0, 300.0, 60.0)
    assert trace.jobs.users[0] == "bob"


def test_squeue_is_the_state_now(tmp_path: Path) -> None:
    path = write(tmp_path / "queue.txt", SQUEUE)
    jobs = read_trace(path, now=True).jobs
    assert list(jobs.job_ids) == ["7", "8"]
    assert jobs.num_gpus.tolist() == [4.0, 4.0]
    assert jobs.ran_s[0] == 300.0
    assert jobs.duration_s.tolist() == [5100.0, 1800.0]
    with pytest.raises(InvalidInput, match="--now asks when they start"):
        read_trace(path)


def test_any_table_is_read_by_its_columns_and_the_refusal_names_what_is_needed(tmp_path: Path) -> None:
    path = write(tmp_path / "jobs.csv", "when,cards,took\n0,2,50\n10,4,60\n")
    with pytest.raises(InvalidInput, match=r"--columns submit=COLUMN.*submit, gpus, seconds"):
        read_trace(path)
    jobs = read_trace(path, columns="submit=when,gpus=cards,seconds=took").jobs
    assert jobs.num_gpus.tolist() == [2.0, 4.0]
    assert jobs.duration_s.tolist() == [50.0, 60.0]
    with pytest.raises(InvalidInput, match="FIELD=COLUMN"):
        read_trace(path, columns="when")


def test_rules_name_workloads_and_forecasts_stand_beside_truth_and_limit() -> None:
    given = Options(
        cluster=[NODES], policy="easy", workloads=DOCS / "workloads.toml", forecasts=True, knows="limit,forecast"
    )
    read, cases = compare_cases(str(DAY), given)
    assert list(read.jobs.workloads) == ["resnet50@64", "gpt2@8", "resnet50@64"]
    case = next(case for case in cases if case.knows == "forecast")
    columns = job_columns(case.schedule, case.jobs, case.beliefs)
    assert columns["true_s"] == [3600.0, 3600.0, 1800.0]
    assert columns["limit_s"] == [5400.0, 7200.0, 3000.0]
    for low, middle, high in zip(
        columns["believed_low_s"], columns["believed_s"], columns["believed_high_s"], strict=True
    ):
        assert 0 < low < middle < high


SINFO = """NODELIST|GRES|CPUS|MEMORY|STATE
n1|gpu:a100:4(S:0-1)|64|512000|mixed
n1|gpu:a100:4(S:0-1)|64|512000|mixed
n2|gpu:a100:4|64|512000|idle
n3|gpu:a100:4|64|512000|drained*
c1|(null)|64|256000|idle
"""


def test_nodes_in_service_are_read_from_sinfo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nodes.sinfo"
    path.write_text(SINFO)
    pools = read_sinfo(path).pools
    assert [(pool.device, pool.num_nodes, pool.gpus_per_node, pool.cpus_per_node) for pool in pools] == [
        ("a100", 2, 4, 64)
    ]
    assert main(["schedule", str(DAY), "-c", str(path), "-p", "fifo", "--now", "--job", "7"]) == 0
    assert "Job 7 starts in" in capsys.readouterr().out
    path.write_text("no table")
    with pytest.raises(InvalidInput, match="not the output of sinfo"):
        read_sinfo(path)
