"""Odd rows of job logs: each becomes the job it describes or a complaint with its line, none is lost."""

import json
from pathlib import Path

import pytest

from traincast.schedule._traces import Trace, read_trace

HELIOS = "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
SACCT = "JobID|User|Account|Submit|Start|End|ElapsedRaw|AllocTRES\n"


def read(path: Path, text: str, kind: str | None = None) -> Trace:
    path.write_bytes(text.encode())
    return read_trace(path, kind=kind)


def complaints(trace: Trace) -> list[int]:
    return [row.line for row in trace.bad_rows]


def test_helios_with_a_mark_of_order_crlf_quoted_commas_and_other_scripts(tmp_path: Path) -> None:
    rows = (
        '7,u\u00fc,v,"a, b",2,8,1,COMPLETED,2020-04-01 00:00:30,2020-04-01 00:00:30,2020-04-01 00:02:10,100,0',
        "8,u,v,\u8bad\u7ec3,0,8,1,COMPLETED,2020-04-01 00:00:31,2020-04-01 00:00:31,2020-04-01 00:00:41,10,0",
        "9,u,v,x,4,8,1,FAILED,2020-04-01 00:00:40,,,,0",
        "10,u,v,x,8,8,1,COMPLETED,2020-04-01 00:01:30,,,60.5,0",
    )
    trace = read(tmp_path / "cluster_log.csv", "\ufeff" + HELIOS + "\n".join(rows).replace("\n", "\r\n") + "\r\n")
    assert trace.format == "csv"
    assert tuple(trace.jobs.job_ids) == ("7", "10")
    assert trace.jobs.submit_s.tolist() == [0.0, 60.0]
    assert complaints(trace) == [3, 4]


def test_rows_inside_a_quote_that_is_not_closed_are_not_lost_without_a_word(tmp_path: Path) -> None:
    good = "1,u,v,x,2,8,1,COMPLETED,2020-04-01 00:00:30,,,100,0\n"
    text = (
        HELIOS + good + good.replace("1,u,v,x", '2,u,v,"x') + good.replace("1,", "3,", 1) + good.replace("1,", "4,", 1)
    )
    trace = read(tmp_path / "a.csv", text)
    assert tuple(trace.jobs.job_ids) == ("1",)
    assert str(trace.bad_rows[0]) == "line 5: lines 3 to 5 are one row: a quote is not closed"


def test_times_of_different_zones_are_put_on_one_clock(tmp_path: Path) -> None:
    text = "job_id,user,type,gpu_num,submit_time,start_time,end_time\n"
    text += "1,u,Eval,2,2023-03-08 08:00:00+08:00,2023-03-08 08:00:00+08:00,2023-03-08 00:01:00+00:00\n"
    text += "2,u,Eval,2,2023-03-08T00:00:30.5Z,2023-03-08T00:01:00Z,2023-03-08T09:02:00+08:00\n"
    trace = read(tmp_path / "a.csv", text)
    assert trace.bad_rows == ()
    assert trace.jobs.submit_s.tolist() == [0.0, 30.5]
    assert trace.jobs.duration_s.tolist() == [60.0, 3660.0]


@pytest.mark.parametrize(
    ("name", "good", "odd"),
    [
        ("log.swf", "1 0 -1 100 2 -1 -1 2 100 -1 1 3 1 1 4 1 -1 -1", "2 -5 -1 100 2 -1 -1 2 100 -1 1 3 1 1 4 1 -1 -1"),
        ("log.swf", "1 0 -1 100 2 -1 -1 -1 100 -1 1 3 1 1 4 1 -1 -1", "2 5 -1 -1 2 -1 -1 2 100 -1 1 3 1 1 4 1 -1 -1"),
        ("log.swf", "1 0 -1 100 2 -1 -1 2 100 -1 1 3 1 1 4 1 -1 -1", "2 5 -1 100 -1 -1 -1 -1 100 -1 1 3 1 1 4 1 -1 -1"),
    ],
)
def test_lines_without_a_usable_number_are_named(name: str, good: str, odd: str, tmp_path: Path) -> None:
    trace = read(tmp_path / name, good + "\r\n" + odd + "\r\n")
    assert len(trace.jobs) == 1
    assert complaints(trace) == [2]


def test_a_job_that_waits_or_still_runs_in_slurm_has_no_duration(tmp_path: Path) -> None:
    at = "2024-01-01T00:00:00"
    rows = [
        f"1|u|a|{at}|{at}|2024-01-01T00:01:40|100|cpu=8,gres/gpu=2",
        f"1.0|u|a|{at}|{at}|2024-01-01T00:01:40|100|cpu=8",
        f"2|u|a|{at}|Unknown|Unknown|0|cpu=8,gres/gpu=2",
        f"3|u|a|{at}|{at}|Unknown|50|cpu=8,gres/gpu=2",
        f"4_[1-9]|u|a|{at}|None|2024-01-01T00:01:40|0|cpu=8,gres/gpu=2",
    ]
    trace = read(tmp_path / "jobs.txt", SACCT + "\n".join(rows) + "\n")
    assert tuple(trace.jobs.job_ids) == ("1",)
    assert complaints(trace) == [4, 5, 6]
    assert trace.notes == ("1 rows of job steps belong to the jobs above them",)


@pytest.mark.parametrize(
    ("gres", "gpus", "kind"), [("gpu:4", 4, None), ("gpu:tesla:2", 2, "tesla"), ("craynetwork:1,gpu:v100:8", 8, "v100")]
)
def test_older_slurm_names_gpus_and_elapsed_time_otherwise(
    gres: str, gpus: int, kind: str | None, tmp_path: Path
) -> None:
    trace = read(tmp_path / "a.txt", f"JobID|Submit|Elapsed|AllocGRES\n1|2020-01-01T00:00:00|1-00:01:40|{gres}\n")
    assert (trace.jobs.num_gpus[0], trace.jobs.duration_s[0]) == (gpus, 86500.0)
    assert trace.jobs.gpu_types[0] == kind


def test_jobs_of_kubernetes_say_when_they_ran(tmp_path: Path) -> None:
    pod = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "4"}}}]}
    meta = {"name": "j", "namespace": "n", "creationTimestamp": "2024-01-01T00:00:00Z"}
    began, ended = "2024-01-01T00:00:10Z", "2024-01-01T00:01:50.250000Z"
    items = [
        {
            "kind": "Job",
            "metadata": meta,
            "spec": {"parallelism": 2, "template": {"spec": pod}},
            "status": {"startTime": began, "completionTime": ended},
        },
        {"kind": "Pod", "metadata": {**meta, "name": "cpu"}, "spec": {"containers": [{}]}, "status": {}},
        "not an object",
    ]
    trace = read(tmp_path / "list.json", json.dumps({"kind": "List", "items": items}))
    assert tuple(trace.jobs.job_ids) == ("n/j",)
    assert trace.jobs.num_gpus.tolist() == [8.0]
    assert trace.jobs.duration_s.tolist() == [100.25]
    assert complaints(trace) == [3]
    assert any("1 jobs ask for no GPU" in note for note in trace.notes)
