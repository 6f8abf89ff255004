"""Metrics, speeds from forecasts, pages and the command."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from schedule.builders import Called, fleet, table
from traincast.__main__ import main
from traincast.errors import InvalidInput
from traincast.report._schedule import format_policies, perfetto
from traincast.report._schedule_charts import format_page
from traincast.schedule._compare import Case
from traincast.schedule._floor import Floor
from traincast.schedule._generate import Mix, generate_jobs
from traincast.schedule._known import REGISTRY
from traincast.schedule._metrics import measure_schedule
from traincast.schedule._policies import POLICIES
from traincast.schedule._shares import SHARE_POLICIES
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._speeds import SpeedForecast, forecast_jobs
from traincast.schedule._study import (
    Setting,
    job_columns,
    parse_fleet,
    parse_quotas,
    run_policy,
)
from traincast.schedule._traces import Trace
from traincast.spec._fleet import Fleet, NodePool


def test_metrics_of_a_schedule_done_by_hand() -> None:
    priced = Fleet(
        pools=(NodePool(num_nodes=1, gpus_per_node=2, usd_per_gpu_hour=3.6, busy_watts=10.0, idle_watts=1.0),)
    )
    jobs = table((0, 2, 100), (0, 2, 100), (0, 9, 5), deadline_s=[100.0, 150.0, math.nan])
    found = measure_schedule(simulate_cluster(jobs, POLICIES["fifo"], fleet=priced, record=True))
    assert (found.finished, found.rejected, found.unfinished) == (2, 1, 0)
    assert found.mean_jct_s == 150.0
    assert found.mean_wait_s == 50.0
    assert found.makespan_s == 200.0
    assert found.utilization == 1.0
    assert found.deadline_misses == 1
    assert found.cost_usd == pytest.approx(0.4)
    assert found.energy_joules == pytest.approx(4000.0)


def test_unknown_prices_and_powers_stay_unknown() -> None:
    found = measure_schedule(simulate_cluster(table((0, 1, 5)), POLICIES["fifo"], fleet=fleet()))
    assert found.cost_usd is None
    assert found.energy_joules is None
    assert found.deadline_misses is None


@pytest.mark.parametrize("name", REGISTRY)
def test_every_named_policy_runs_a_trace_to_its_end(name: str) -> None:
    if name in SHARE_POLICIES and name != "gavel-fifo":
        pytest.importorskip("clarabel")
    jobs = generate_jobs(
        25, num_gpus=8, mix=Mix(load=1.2, deadline_slack=1.0, elastic=True, median_s=600, max_s=9000), seed=2
    )
    schedule = run_policy(name, jobs, Setting(fleet=parse_fleet("2x4:fast,2x4:slow")))
    assert not np.isnan(schedule.end_s).any()
    found = measure_schedule(schedule)
    assert found.finished == 25
    assert found.utilization <= 1.0 + 1e-9


def test_shares_by_optimisation_are_fair_and_within_capacity() -> None:
    pytest.importorskip("clarabel")
    from traincast.schedule._shares import Shareholders

    holders = Shareholders(
        jobs=np.arange(4),
        rates=np.array([[4.0, 1.0], [2.0, 1.0], [1.0, 1.0], [3.0, 0.0]]),
        num_gpus=np.array([1.0, 2.0, 1.0, 1.0]),
        weights=np.ones(4),
        waited_s=np.array([0.0, 10.0, 20.0, 0.0]),
        steps_left=np.array([100.0, 200.0, 50.0, 70.0]),
        capacity=np.array([2.0, 1.0]),
        usd_per_gpu_s=np.array([2.0, 1.0]),
    )
    for name in ("max-min", "max-min-perf", "makespan", "finish-time-fairness", "cost"):
        shares = SHARE_POLICIES[name].begin()(holders)
        assert (shares >= 0).all()
        assert (shares.sum(axis=1) <= 1 + 1e-6).all()
        assert ((shares * holders.num_gpus[:, None]).sum(axis=0) <= holders.capacity + 1e-6).all()
    fair = SHARE_POLICIES["max-min"].begin()(holders)
    assert (fair.sum(axis=1) * holders.num_gpus).min() == pytest.approx(0.75, abs=1e-4)


def oracle(workload: str, device: str, num_devices: int, num_nodes: int) -> SpeedForecast:
    step = {"fast": 1.0, "slow": 4.0}[device] * (1.0 if num_nodes == 1 else 1.25)
    return SpeedForecast(step_s=step, low_s=step * 0.8, high_s=step * 1.25, fits=workload != "huge" or device == "fast")


def test_forecasts_give_durations_beliefs_and_memory() -> None:
    mixed = parse_fleet("1x2:fast,4x2:slow")
    jobs = table((0, 2, 0), (0, 2, 0), (0, 1, 0), workloads=["net", "huge", "net"], steps=[100.0, 100.0, 100.0])
    known = forecast_jobs(jobs.with_durations(np.full(3, np.nan)), fleet=mixed, oracle=oracle, seed=1)
    assert known.estimator.estimates_s == (100.0, 100.0, 100.0)
    assert 50 < known.jobs.duration_s[0] < 200
    assert known.jobs.duration_s[0] != 100.0
    assert known.perf.rate(0, 1, 2, 0) == pytest.approx(0.25)
    assert known.perf.rate(1, 1, 2, 0) == 0.0
    schedule = simulate_cluster(known.jobs, POLICIES["fifo"], fleet=mixed, perf=known.perf, estimator=known.estimator)
    assert schedule.start_s[1] == pytest.approx(known.jobs.duration_s[0])
    measured = forecast_jobs(jobs.with_durations(np.full(3, 77.0)), fleet=mixed, oracle=oracle)
    assert measured.jobs.duration_s.tolist() == [77.0] * 3


def test_a_workload_without_steps_or_duration_is_refused() -> None:
    jobs = table((0, 1, 0), workloads=["net"]).with_durations(np.array([math.nan]))
    with pytest.raises(InvalidInput, match="neither steps nor a duration"):
        forecast_jobs(jobs, fleet=parse_fleet("1x2:fast"), oracle=oracle)
    with pytest.raises(InvalidInput, match="no duration"):
        simulate_cluster(jobs, POLICIES["fifo"], fleet=fleet())


def test_real_forecasts_slow_a_job_down_on_an_older_gpu() -> None:
    from traincast.schedule._oracle import ForecastSource

    speed = ForecastSource()
    new, old = speed("gpt2@4", "a100-80g", 8, 1), speed("gpt2@4", "v100-16g", 8, 1)
    assert new.low_s < new.step_s < new.high_s
    assert old.step_s > new.step_s
    assert not speed("gpt2-xl@16", "t4", 1, 1).fits


def test_a_job_may_name_a_saved_graph_or_a_job_file(tmp_path: Path) -> None:
    from traincast.catalog._workloads import workload
    from traincast.files import save_graph
    from traincast.schedule._oracle import ForecastSource

    save_graph(workload("gpt2", batch=2, precision="bf16"), tmp_path / "own.json.gz")
    (tmp_path / "run.toml").write_text(
        'source = "gpt2"\n[workload]\nbatch = 2\n[parallelism]\ntensor = 2\ndata = 4\n[job]\nsteps = 1000\n'
    )
    speed = ForecastSource(folder=tmp_path)
    saved = speed("own.json.gz", "a100-80g", 2, 1)
    assert saved.step_s == pytest.approx(speed("gpt2@2", "a100-80g", 2, 1).step_s)
    assert saved.samples_per_step == 4
    whole = speed("run.toml", "a100-80g", 2, 1)
    assert whole.samples_per_step == 2  # two devices hold one replica
    assert whole.job_s is not None
    assert whole.job_s > 1000 * whole.step_s
    assert not speed("run.toml", "a100-80g", 3, 1).fits  # half a replica
    with pytest.raises(InvalidInput, match=r"nowhere.toml.*no such file"):
        speed("nowhere.toml", "a100-80g", 1, 1)

    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,submit_s,num_gpus,workload\na,0,2,run.toml\nb,0,4,run.toml\n")
    assert main(["schedule", str(trace), "-c", "1x8:a100-80g", "-p", "fifo", "--forecasts", "--json"]) == 0


def test_the_scheduler_sees_the_forecast_with_its_interval() -> None:
    jobs = table((0, 1, 0), (0, 1, 0), workloads=["net", "net"], steps=[100.0, 50.0])
    jobs = jobs.with_durations(np.full(2, np.nan))
    seen: list[tuple[float, float, float]] = []

    def order(floor: Floor, now_s: float) -> list[int]:
        low, high = floor.interval_s(0) or (math.nan, math.nan)
        seen.append((low, floor.estimate_s[0], high))
        return list(floor.waiting)

    one = parse_fleet("1x1:fast")
    known = forecast_jobs(jobs, fleet=one, oracle=oracle)
    simulate_cluster(known.jobs, Called(order), fleet=one, perf=known.perf, estimator=known.estimator)
    assert seen[0] == pytest.approx((80.0, 100.0, 125.0))
    careful = forecast_jobs(jobs, fleet=one, oracle=oracle, quantile=0.95)
    assert careful.estimator.start(jobs).estimate_s(0) == pytest.approx(125.0, rel=1e-3)


def test_owners_get_their_quota_back_from_borrowers() -> None:
    jobs = table((0, 4, 100), (10, 2, 50), tenants=["guest", "owner"])
    setting = Setting(fleet=fleet(1, 4), quotas=parse_quotas("owner=2", fleet(1, 4)))
    schedule = run_policy("quota", jobs, setting)
    assert schedule.start_s.tolist() == [0.0, 10.0]
    assert schedule.preemptions.tolist() == [1, 0]


def test_known_devices_bring_their_power() -> None:
    pools = parse_fleet("1x8:a100-80g,1x8:homemade").pools
    assert pools[0].busy_watts is not None
    assert pools[0].idle_watts is not None
    assert 0 < pools[0].idle_watts < pools[0].busy_watts < 400
    assert pools[1].busy_watts is None


def test_pages_charts_and_logs_show_every_job() -> None:
    jobs = table((0, 4, 100), (10, 4, 5))
    schedule = simulate_cluster(jobs, POLICIES["srtf"], fleet=fleet(1, 4), record=True)
    trace = Trace(name="two", format="hand", jobs=jobs)
    cases = [
        Case(policy="srtf", cluster="1x4", knows=None, schedule=schedule, metrics=measure_schedule(schedule), jobs=jobs)
    ]
    page = format_page(trace, cases)
    assert page.count("<svg") == 6
    slices = [event for event in json.loads(perfetto(schedule))["traceEvents"] if event["ph"] == "X"]
    assert [entry["dur"] for entry in slices] == [10e6, 5e6, 90e6]
    assert job_columns(schedule)["completion_s"] == [105.0, 5.0]
    assert "srtf" in format_policies(trace, cases)


def test_the_command_compares_policies_and_writes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    code = main(
        ["schedule", "synthetic:60", "--cluster", "2x8:a100@2", "-p", "fifo,srtf", "-o", str(tmp_path / "o"), "--json"]
    )
    assert code == 0
    answer = json.loads(capsys.readouterr().out)
    assert [entry["policy"] for entry in answer["policies"]] == ["fifo", "srtf"]
    assert answer["policies"][0]["finished"] == 60
    names = {path.name for path in (tmp_path / "o").iterdir()}
    assert {"index.html", "srtf-truth-perfetto.json", "fifo-jobs.parquet"} <= names


def test_the_command_compares_sizes_of_errors_and_reports_bad_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = ["schedule", "synthetic:300", "--cluster", "4x8", "-p", "srtf", "--json"]
    assert main([*jobs, "--sigma", "0,1.5"]) == 0
    exact, wrong = json.loads(capsys.readouterr().out)["policies"]
    assert (exact["cluster"], wrong["cluster"]) == ("4x8, no errors", "4x8, errors of 1.5")
    assert wrong["mean_jct_s"] > exact["mean_jct_s"]
    trace = tmp_path / "own.csv"
    trace.write_text("job_id,submit_s,num_gpus,duration_s\na,0,1,5\nb,0,zero,5\nc,1,1,9\n")
    assert main(["schedule", str(trace), "--cluster", "1x1", "-p", "srtf"]) == 0
    assert "line 3: num_gpus is 'zero'" in capsys.readouterr().out


def test_what_the_command_proposes_next_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = str(tmp_path / "page.html")
    for more, proposed in (([], "--html schedule.html"), (["--html", page], "--by tenant,size")):
        assert main(["schedule", "synthetic:20", "-c", "1x8", "-c", "2x8", "-p", "fifo,srtf", *more]) == 0
        last = capsys.readouterr().out.strip().splitlines()[-1]
        assert last.endswith(proposed)
        assert main([word.replace("schedule.html", page) for word in last.split()[2:]]) == 0
        capsys.readouterr()


def test_failures_are_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "synthetic:200", "-c", "2x8", "-p", "fifo", "--mtbf-hours", "0,20"]) == 0
    assert "runs were cut off" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["schedule", "nowhere.csv", "-c", "1x1"], "no trace at"),
        (["schedule", "synthetic:0", "-c", "1x1"], "synthetic:N"),
        (["schedule", "synthetic:5", "-c", "one"], "NODESxGPUS"),
        (["schedule", "synthetic:5", "-c", "1x1", "-p", "strf"], "did you mean 'srtf'"),
        (["schedule", "synthetic:5", "-c", "1x1", "-p", "quota", "--quota", "vision"], "TENANT=GPUS"),
        (["schedule", "synthetic:5", "-c", "1x1", "-p", "quota", "--quota", "vision=2"], "exceed the 1 of the fleet"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert reason in capsys.readouterr().err
