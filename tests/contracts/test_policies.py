"""Every policy that can be named keeps the contract, and so does one of another package."""

import json
import sys
from pathlib import Path

import pytest

from traincast.__main__ import main
from traincast.schedule._known import REGISTRY
from traincast.testing import BrokenContract, check_policy

SLOW = ("makespan", "finish-time-fairness", "cost", "max-throughput", "max-min-perf")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in REGISTRY]
)
def test_every_policy_keeps_its_contract(name: str) -> None:
    # Shares of time are placed by type, and a round passes until what is there is divided.
    check_policy(name, num_jobs=40)


PLUG_IN = """
import numpy as np
from traincast.schedule import ByScore


def small_and_short_first(jobs, estimate_s):
    return jobs.num_gpus * np.sqrt(estimate_s)


policy = ByScore("small-first", small_and_short_first, fit="easy")
stuck = ByScore("stuck", lambda jobs, estimate_s: np.full(len(jobs) + 1, 0.0))
"""


@pytest.fixture
def plugged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "house_rules.py").write_text(PLUG_IN)
    info = tmp_path / "house_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[traincast.policies]\nsmall-first = house_rules:policy\nstuck = house_rules:stuck\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "house_rules", raising=False)


@pytest.mark.usefixtures("plugged_in")
def test_a_policy_of_another_package_is_named_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    check_policy("small-first", num_jobs=40)
    assert main(["schedule", "synthetic:50", "-c", "2x8", "-p", "fifo,small-first", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["policies"]
    assert [row["policy"] for row in rows] == ["fifo", "small-first"]
    assert rows[1]["mean_wait_s"] <= rows[0]["mean_wait_s"]


@pytest.mark.usefixtures("plugged_in")
def test_a_policy_that_breaks_its_form_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "synthetic:50", "-c", "2x8", "-p", "stuck"]) == 2
    assert "one number, not NaN, for each of" in capsys.readouterr().err


def test_a_job_that_never_ends_breaks_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    import numpy as np

    from traincast import schedule as room

    run_policy = room.run_policy

    def forget(*words: object, **more: object) -> object:
        schedule = run_policy(*words, **more)  # type: ignore[arg-type]
        return replace(schedule, end_s=np.where(np.arange(len(schedule)) == 3, np.nan, schedule.end_s))

    monkeypatch.setattr(room, "run_policy", forget)
    with pytest.raises(BrokenContract, match="never ends"):
        check_policy("fifo", num_jobs=10)
