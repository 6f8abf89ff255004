"""Equal to published simulators, job by job; runs only beside the shared reference data."""

from pathlib import Path

import pytest

from research.simulators.agreement import Replay, not_replayed, reference_runs

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "sched_refs"
QUICK = {
    ("helios", "philly 103959 6x8"), ("helios", "philly 6c71a0 10x8"), ("tiresias", "60job_n16g4"),
    ("gavel", "max_min_fairness 8:16:24"), ("gavel", "gen_s7_n1000_l200 108:0:0"),
}  # fmt: skip


def runs(*, quick: bool) -> list[Replay]:
    if not SHARED.is_dir():
        return []
    pytest.importorskip("pyarrow")
    chosen = []
    for run in reference_runs(SHARED):
        key = (run.keywords["peer"], run.keywords["run"])
        if (key in QUICK) == quick:
            chosen.append(run)
    return chosen


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no reference runs at {SHARED}")
def test_quick_reference_runs_agree() -> None:
    rows = [run() for run in runs(quick=True)]
    assert len(rows) > 15
    assert [row for row in rows if not row.reached] == []


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no reference runs at {SHARED}")
def test_all_other_reference_runs_agree() -> None:
    rows = [run() for run in runs(quick=False)]
    assert [row for row in rows if not row.reached] == []


def test_runs_that_nobody_can_repeat_are_left_out_with_their_reason(tmp_path: Path) -> None:
    for name in (
        "cqsim/x_g8_bf9.rst",
        "gavel/gen_s1_allox_1-1-1.csv",
        "helios/itp/qssf_itp02_n15.csv",
        "pai/w1_8_sju.csv",
        "pollux/workload6_optimus.csv",
        "tiresias/x_n1g1/gittins/job.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    said = not_replayed(tmp_path)
    assert [line.partition(":")[0] for line in sorted(said)] == [
        "cqsim/x_g8_bf9.rst",
        "gavel/gen_s1_allox_1-1-1.csv",
        "helios/itp/qssf_itp02_n15.csv",
        "pai/w1_8_sju.csv",
        "pollux/workload6_optimus.csv",
        "tiresias/x_n1g1/gittins/job.csv",
    ]
    assert all("we have no policy" in line or "needs the peer's profile" in line for line in said)
