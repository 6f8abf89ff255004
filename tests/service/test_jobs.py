"""Plans and schedules run beside the service: watched, cancelled, and kept through any end of it."""

import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from service.conftest import Running, start, wait_until
from traincast.errors import InvalidInput
from traincast.service._faults import Busy, NotFound
from traincast.service._limits import Limits
from traincast.service._sqlite import SqliteDatabase
from traincast.service._state import MOST_DEATHS, State

SCHEDULE: dict[str, Any] = {
    "trace": {"synthetic": 60},
    "cluster": "2x8:a100@2.5",
    "policies": ["fifo", "srtf"],
    "seed": 3,
}
LONG = {**SCHEDULE, "trace": {"synthetic": 20_000}, "policies": ["quota", "conservative", "optimus"], "cluster": "64x8"}
PLAN: dict[str, Any] = {
    "workload": {"name": "gpt2", "seq": 256, "precision": "bf16"},
    "cluster": {"device": "a100-80g", "devices_per_node": 4},
    "job": {"steps": 1000},
    "global_batch": 16,
    "max_gpus": 4,
    "space": {"orders": ["1f1b"], "recompute": ["none"], "zero": [0, 1], "pipeline": [1]},
}
LOG = "job_id,submit_s,num_gpus,duration_s\na,0,1,60\nb,10,8,120\nc,20,x,5\n"


def test_a_schedule_is_simulated_and_can_be_drawn(service: Running) -> None:
    asked = service.post("/schedule", SCHEDULE)
    assert (asked.status, asked.body["state"]) == (202, "queued")
    job = service.finish(asked.body["id"]).body
    assert (job["state"], job["error"], job["done"], job["total"]) == ("done", None, 120, 120)
    result = job["result"]
    assert [policy["policy"] for policy in result["policies"]] == ["fifo", "srtf"]
    for policy in result["policies"]:
        assert policy["finished"] == 60
        assert policy["gpus_of_node"] == [8, 8]
        assert all(0 <= node < 2 and 0 < gpus <= 8 and end >= begin for node, gpus, begin, end, _ in policy["bars"])
    assert asked.body["id"] in [each["id"] for each in service.get("/jobs").body]


def test_a_job_log_is_read_from_the_request_and_its_bad_rows_are_named(service: Running) -> None:
    asked = service.post("/schedule", {**SCHEDULE, "trace": {"text": LOG}})
    result = service.finish(asked.body["id"]).body["result"]
    assert (result["num_jobs"], result["num_bad_rows"]) == (2, 1)
    assert "line 4" in result["bad_rows"][0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policies": ["fifo", "fastest"]}, "unknown policy 'fastest'"),
        ({"cluster": "many"}, "is not NODESxGPUS"),
        ({"trace": {}}, "either synthetic"),
        ({"trace": {"synthetic": 10**6}}, "from 1 to 20,000 jobs"),
        ({"trace": {"text": "/etc/passwd"}}, "the trace: cannot tell its format"),
        ({"trace": {"text": "x", "format": "tidy"}}, "unknown trace format 'tidy'"),
        ({"cluster": "99999x99999"}, "at most 65,536"),
    ],
)
def test_a_schedule_that_cannot_be_fails_with_its_reason(service: Running, changes: dict[str, Any], words: str) -> None:
    job = service.finish(service.post("/schedule", {**SCHEDULE, **changes}).body["id"]).body
    assert job["state"] == "failed"
    assert words in job["error"]
    assert "/tmp" not in job["error"]


def test_a_plan_ranks_what_the_forecast_says(service: Running) -> None:
    asked = service.post("/plan", PLAN)
    assert asked.status == 202
    job = service.finish(asked.body["id"]).body
    assert (job["state"], job["error"]) == ("done", None)
    plans = job["result"]["plans"]
    assert plans
    assert [plan["job_s"] for plan in plans] == sorted(plan["job_s"] for plan in plans)
    best = plans[0]
    forecast = service.post(
        "/forecast",
        {
            "workload": {**PLAN["workload"], "batch": best["batch"]},
            "cluster": {
                "device": best["device"],
                "nodes": best["num_nodes"],
                "devices_per_node": best["devices_per_node"],
            },
            "parallelism": best["parallelism"],
            "job": PLAN["job"],
        },
    ).body
    assert forecast["step"]["seconds"] == pytest.approx(best["step_s"], rel=1e-6)


def test_a_plan_without_a_batch_takes_the_usual_one_and_one_without_a_machine_says_what_is_missing(
    service: Running,
) -> None:
    without = {key: value for key, value in PLAN.items() if key != "global_batch"}
    images = {**without, "workload": {"name": "resnet50"}}
    found = service.finish(service.post("/plan", images).body["id"]).body
    assert found["error"] is None
    assert found["result"]["plans"]
    nowhere = {**PLAN, "cluster": {}}
    assert "no device is given" in service.finish(service.post("/plan", nowhere).body["id"]).body["error"]


def test_a_running_job_is_cancelled_at_once_and_the_next_one_runs(service: Running) -> None:
    long, short = service.post("/schedule", LONG).body["id"], service.post("/schedule", SCHEDULE).body["id"]
    service.wait_until_running(long)
    assert service.get(f"/jobs/{short}").body["state"] == "queued"
    assert service.ask("DELETE", f"/jobs/{long}").body["state"] == "cancelled"
    assert service.finish(short).body["state"] == "done"
    assert service.get(f"/jobs/{long}").body["state"] == "cancelled"
    # What has ended stays as it ended.
    assert service.ask("DELETE", f"/jobs/{short}").body["state"] == "done"


def test_a_kill_loses_no_finished_job_and_what_ran_is_run_again(tmp_path: Path) -> None:
    state = tmp_path / "state.db"
    running = start(state, "--workers", "1")
    finished = running.post("/schedule", SCHEDULE).body["id"]
    before = running.finish(finished).body
    upload = running.post("/schedule", LONG).body["id"]
    waiting = running.post("/schedule", SCHEDULE).body["id"]
    running.wait_until_running(upload)
    workers = read_pids(running)
    running.kill()
    # Workers do not outlive the service.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    running = start(state, "--workers", "1", "--job-workers", "2")
    try:
        assert running.get(f"/jobs/{finished}").body == before
        assert running.get(f"/jobs/{upload}").body["state"] in ("queued", "running", "done")
        assert running.finish(waiting).body["state"] == "done"
        running.ask("DELETE", f"/jobs/{upload}")
    finally:
        running.stop()


def read_pids(running: Running) -> list[int]:
    lines = running.get("/metrics").body.splitlines()
    return [int(line.split('pid="')[1].split('"')[0]) for line in lines if 'process="worker"' in line]


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(SqliteDatabase(tmp_path / "state.db"), kept_jobs=3, kept_models=2)


def add_job(state: State) -> str:
    return state.add_job("plan", "{}").id


def test_jobs_are_taken_in_the_order_they_came(state: State) -> None:
    ids = [add_job(state) for _ in range(3)]
    assert [state.take_job().id for _ in ids] == ids  # type: ignore[union-attr]
    assert state.take_job() is None
    state.close()


def test_only_a_worker_that_died_by_itself_uses_up_tries(state: State) -> None:
    job = add_job(state)
    for _ in range(3 * MOST_DEATHS):
        # The service or the machine was killed, or a signal ended the worker.
        assert state.take_job("a") is not None
        assert state.recover() == 1
        assert state.take_job("b") is not None
        assert state.put_back(job, owner="b")
    for _ in range(MOST_DEATHS):
        assert state.take_job("c") is not None
        state.put_back(job, owner="c", died="out of memory")
    assert state.find_job(job).state == "failed"
    assert f"out of memory ({MOST_DEATHS} times)" in str(state.find_job(job).error)
    state.close()


def test_clients_take_turns_and_have_so_many_places_each(state: State) -> None:
    for number in range(3):
        state.add_job("plan", str(number), client="greedy", most_waiting=5, most_of_client=3)
    with pytest.raises(Busy, match="3 jobs of this client wait"):
        state.add_job("plan", "3", client="greedy", most_waiting=5, most_of_client=3)
    state.add_job("plan", "modest", client="modest", most_waiting=5, most_of_client=3)
    asked = [state.take_job().request for _ in range(4)]  # type: ignore[union-attr]
    assert asked == ["0", "modest", "1", "2"]
    state.add_job("plan", "4", client="greedy")
    assert state.take_job(not_of=["greedy"]) is None
    state.close()


@pytest.mark.parametrize("days", [-30, 30])
def test_a_clock_that_jumps_keeps_what_comes_in(state: State, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    for number in range(4):
        keep_model(state, f"before-{number}")
        state.finish_job(add_job(state), "done", result=b"{}")
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + days * 86_400)
    keep_model(state, "after")
    assert state.find_graph("after", "{}") is not None
    job = add_job(state)
    assert state.finish_job(job, "done", result=b"{}")
    assert state.find_job(job).state == "done"
    state.close()


def test_text_that_no_database_holds_is_cleaned(state: State) -> None:
    job = add_job(state)
    assert state.finish_job(job, "failed", error="a\0b\ud800c")
    assert state.find_job(job).error == "a\ufffdb?c"
    state.close()


def test_the_end_of_a_job_is_final_and_the_oldest_ends_are_dropped(state: State) -> None:
    ids = [add_job(state) for _ in range(5)]
    for job in ids:
        assert state.finish_job(job, "done", result=b"{}")
    assert not state.finish_job(ids[-1], "cancelled")
    assert state.find_job(ids[-1]).state == "done"
    assert state.find_result(ids[-1]) == b"{}"
    assert state.read_queue().counts["done"] == 3
    with pytest.raises(NotFound):
        state.find_job(ids[0])
    state.close()


def keep_model(state: State, model: str) -> None:
    packed = zlib.compress(b"y")
    state.add_model(model=model, name="m", kind="graph", content=packed, options="{}", graph=packed, about='{"a": 1}')


def test_models_beyond_the_kept_ones_are_dropped_with_their_graphs(state: State) -> None:
    for number in range(4):
        keep_model(state, str(number))
    assert state.find_model("0") is None
    assert state.find_graph("0", "{}") is None
    assert state.find_graph("3", "{}") == ('{"a": 1}', zlib.compress(b"y"))
    state.close()


def test_the_state_file_is_only_for_its_owner(tmp_path: Path) -> None:
    SqliteDatabase(tmp_path / "deep" / "state.db").close()
    assert (tmp_path / "deep" / "state.db").stat().st_mode & 0o077 == 0


def test_a_limit_must_be_above_zero() -> None:
    with pytest.raises(InvalidInput, match="a limit must be above 0"):
        Limits(request_s=0)
