"""Job logs in, jobs and complaints out."""

import json
from pathlib import Path

import numpy as np
import pytest

from schedule.builders import write_trace
from traincast.errors import InvalidInput
from traincast.schedule._generate import ARRIVALS, Mix, generate_jobs
from traincast.schedule._traces import guess_format, read_trace


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


CASES = {
    "tiresias.csv": (
        "csv",
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n7,2,30,10,vgg,100,1\n",
    ),
    "helios.csv": ("csv", "job_id,user,vc,gpu_num,submit_time,duration\n7,u,v,2,2020-04-01 00:00:30,100\n"),
    "philly.csv": ("csv", "jobid,vc,submitted_time,num_gpus,duration\n7,v,2017-10-01 00:00:00,2,100\n"),
    "acme.csv": ("csv", "job_id,user,type,gpu_num,submit_time,start_time,end_time\n7,u,Eval,2,5,10,110\n"),
    "itp.csv": ("csv", "job_id,num_gpu,submit_time,duration,ddl,model_name,iterations\n7,2,30,100,400,vgg,9\n"),
    "own.csv": ("csv", "job_id,submit_s,num_gpus,duration_s\n7,30,2,100\n"),
    "log.swf": ("swf", "; comment\n7 30 -1 100 2 -1 -1 2 100 -1 1 3 1 1 4 1 -1 -1\n"),
    "jobs.txt": (
        "sacct",
        "JobID|User|Account|Submit|Start|End|AllocTRES\n"
        "7|u|acc|2024-01-01T00:00:00|2024-01-01T00:01:00|2024-01-01T00:02:40|cpu=8,gres/gpu:a100=2,gres/gpu=2\n"
        "7.batch|u|acc|2024-01-01T00:00:00|2024-01-01T00:01:00|2024-01-01T00:02:40|cpu=8\n",
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_every_log_becomes_the_same_job(name: str, tmp_path: Path) -> None:
    form, text = CASES[name]
    path = write(tmp_path / name, text)
    assert guess_format(path) == form
    trace = read_trace(path)
    assert trace.bad_rows == ()
    assert trace.jobs.job_ids[0] == "7"
    assert (trace.jobs.num_gpus[0], trace.jobs.duration_s[0], trace.jobs.submit_s[0]) == (2.0, 100.0, 0.0)


def test_pollux_jobs_name_workloads(tmp_path: Path) -> None:
    sia = write(tmp_path / "b.csv", "name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,2048\n")
    assert read_trace(sia).jobs.workloads[0] == "cifar10"


def test_kubernetes_objects_of_three_kinds(tmp_path: Path) -> None:
    times = {"startTime": "2024-01-01T00:00:10Z"}
    container = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}
    end = "2024-01-01T00:01:50Z"
    items = [
        {
            "kind": "Pod",
            "metadata": {"name": "p", "creationTimestamp": "2024-01-01T00:00:00Z"},
            "spec": container,
            "status": {**times, "containerStatuses": [{"state": {"terminated": {"finishedAt": end}}}]},
        },
        {
            "kind": "Workload",
            "metadata": {"name": "w", "creationTimestamp": "2024-01-01T00:00:00Z"},
            "spec": {"queueName": "q", "podSets": [{"count": 3, "template": {"spec": container}}]},
            "status": {
                "conditions": [
                    {"type": "Admitted", "lastTransitionTime": "2024-01-01T00:00:10Z"},
                    {"type": "Finished", "lastTransitionTime": end},
                ]
            },
        },
        {
            "kind": "Job",
            "metadata": {"name": "v", "creationTimestamp": "2024-01-01T00:00:00Z"},
            "spec": {"parallelism": 2, "template": {"spec": container}},
            "status": {**times, "completionTime": end},
        },
        {"kind": "Pod", "metadata": {"name": "cpu", "creationTimestamp": "2024-01-01T00:00:00Z"}, "spec": {}},
    ]
    trace = read_trace(write(tmp_path / "o.json", json.dumps({"items": items})))
    assert trace.jobs.num_gpus.tolist() == [2.0, 6.0, 4.0]
    assert trace.jobs.duration_s.tolist() == [100.0, 100.0, 100.0]
    assert "1 jobs ask for no GPU and are left out" in trace.notes


def test_kubernetes_objects_that_run_and_wait_are_the_state_at_time_zero(tmp_path: Path) -> None:
    spec = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}], "activeDeadlineSeconds": 600}
    made = {"creationTimestamp": "2024-01-01T00:00:00Z"}
    items = [
        {"kind": "Pod", "metadata": {"name": "runs", **made}, "spec": spec,
         "status": {"phase": "Running", "startTime": "2024-01-01T00:00:10Z"}},
        {"kind": "Pod", "metadata": {"name": "waits", **made}, "spec": spec, "status": {"phase": "Pending"}},
    ]  # fmt: skip
    jobs = read_trace(write(tmp_path / "now.json", json.dumps({"items": items})), now=True).jobs
    assert list(jobs.job_ids) == ["default/runs", "default/waits"]
    assert np.isnan(jobs.ran_s).tolist() == [False, True]
    assert jobs.duration_s.tolist() == [600.0, 600.0]


def test_bad_rows_are_reported_with_their_lines(tmp_path: Path) -> None:
    text = "job_id,submit_s,num_gpus,duration_s\na,0,1,5\nb,x,1,5\nc,0,0,5\nd,0,1.5,5\na,3,1,5\ne,0,1,-4\nf,1,1,\n"
    trace = read_trace(write(tmp_path / "own.csv", text))
    assert list(trace.jobs.job_ids) == ["a"]
    assert [row.line for row in trace.bad_rows] == [3, 4, 5, 6, 7, 8]
    assert "occurs twice" in trace.bad_rows[3].reason


def test_a_file_without_usable_jobs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no usable job"):
        read_trace(write(tmp_path / "own.csv", "job_id,submit_s,num_gpus,duration_s\na,0,0,5\n"))
    with pytest.raises(InvalidInput, match="name it with --columns submit=COLUMN"):
        read_trace(write(tmp_path / "what.csv", "x,y\n1,2\n"))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_our_own_table_reads_back(ending: str, tmp_path: Path) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    jobs = generate_jobs(50, num_gpus=64, mix=Mix(deadline_slack=1.0, elastic=True), seed=4)
    path = tmp_path / f"jobs.{ending}"
    write_trace(jobs, path)
    back = read_trace(path).jobs
    assert list(back.job_ids) == list(jobs.job_ids)
    first = jobs.submit_s[0]  # a log begins at its first submission
    np.testing.assert_array_equal(back.submit_s, jobs.submit_s - first)
    np.testing.assert_allclose(back.deadline_s, jobs.deadline_s - first)


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_generated_traces_have_the_load_that_was_asked_for(arrivals: str) -> None:
    jobs = generate_jobs(4000, num_gpus=128, mix=Mix(load=0.8, arrivals=arrivals), seed=1)
    again = generate_jobs(4000, num_gpus=128, mix=Mix(load=0.8, arrivals=arrivals), seed=1)
    np.testing.assert_array_equal(jobs.submit_s, again.submit_s)
    demand = float((jobs.num_gpus * jobs.duration_s).sum()) / (128 * (jobs.submit_s[-1] - jobs.submit_s[0]))
    assert demand == pytest.approx(0.8, rel=0.05)


def test_a_share_of_a_gpu_is_a_whole_one_and_said(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "own.csv", "job_id,submit_s,num_gpus,duration_s\na,0,0.5,5\nb,0,2,5\n"))
    assert trace.jobs.num_gpus.tolist() == [1.0, 2.0]
    assert "1 jobs ask for a share of a GPU and are given a whole one" in trace.notes
