"""The gate that compares forecasts with those of the last release."""

import math
from pathlib import Path

import pytest

from research import gate
from research.gate import GIVEN, SHIPPED, Change, Figures, Said, Sample, compare, judge, pair_jobs, pick, score


def make_said(source: str, number: int, *, step_s: float = 1.0, way: str = SHIPPED) -> list[Said]:
    return [
        Said(
            case_id=f"{source}-{place}", source=source, way=way, step_s=step_s, low_s=0.8 * step_s, high_s=1.2 * step_s
        )
        for place in range(number)
    ]


def make_sample(*said: Said) -> Sample:
    rows: dict[str, list[gate.Row]] = {}
    for one in said:
        rows.setdefault(one.source, []).append({"case_id": one.case_id, "source": one.source})
    return Sample(rows=rows, every=rows, measured_s={one.case_id: 1.0 for one in said})


def test_a_source_of_ten_rows_that_got_worse_fails_and_one_of_nine_does_not() -> None:
    before = make_said("large", 10) + make_said("small", 9) + [one for i in range(30) for one in make_said(f"s{i}", 3)]
    now = make_said("large", 10, step_s=1.03) + make_said("small", 9, step_s=1.03)
    now += [one for i in range(30) for one in make_said(f"s{i}", 3)]
    assert judge(compare(before, now, make_sample(*before)), {}) == ["large, as shipped: mean 0.0 -> 3.0%"]


def test_a_mean_over_sources_that_got_worse_fails_where_no_source_does_alone() -> None:
    before = make_said("one", 20) + make_said("two", 20)
    now = make_said("one", 20, step_s=1.01) + make_said("two", 20, step_s=0.99)
    assert judge(compare(before, now, make_sample(*before)), {}) == ["all, alike, as shipped: mean 0.0 -> 1.0%"]


def test_what_is_accepted_passes_up_to_the_error_that_was_accepted() -> None:
    before, now = make_said("one", 20), make_said("one", 20, step_s=1.1)
    changes = compare(before, now, make_sample(*before))
    assert judge(changes, {(SHIPPED, "one"): 10.5, (SHIPPED, "all, alike"): 10.5}) == []
    assert len(judge(changes, {(SHIPPED, "one"): 9.5, (SHIPPED, "all, alike"): 10.5})) == 1
    assert len(judge(changes, {(GIVEN, "one"): 10.5, (SHIPPED, "all, alike"): 10.5})) == 1


def test_a_row_that_is_refused_now_fails() -> None:
    before = make_said("one", 12)
    assert judge(compare(before, before[:-1], make_sample(*before)), {}) == [
        "one: 1 rows that were answered are refused"
    ]


def test_sources_weigh_alike_whatever_their_rows() -> None:
    figures = Figures(n=1000, mean=2.0, median=1.0, p90=3.0, bias=0.0)
    few = Figures(n=2, mean=4.0, median=3.0, p90=5.0, bias=0.0)
    both = [Change(source=str(x), way=SHIPPED, before=x, now=x) for x in (figures, few)]
    assert gate.average(both).now.mean == pytest.approx(3.0)


def test_figures_are_of_relative_errors_and_intervals() -> None:
    said = [*make_said("one", 1, step_s=1.1), *make_said("two", 1, step_s=0.7)]
    found = score(said, {"one-0": 1.0, "two-0": 1.0})
    assert (found.mean, found.bias, found.coverage) == (pytest.approx(20.0), pytest.approx(-10.0), 50.0)
    assert found.width == pytest.approx(40.0)
    assert math.isnan(score([Said(case_id="one-0", source="one", way=SHIPPED, step_s=1.0)], {"one-0": 1.0}).coverage)


def test_fewer_picked_rows_are_among_the_more_and_spread_over_jobs() -> None:
    rows = [{"model": "large", "gpu": "a", "n_nodes": 1}] * 90 + [{"model": "small", "gpu": "a", "n_nodes": 1}] * 10
    assert set(pick(rows, 20)) < set(pick(rows, 50))
    assert sum(place >= 90 for place in pick(rows, 20)) == 10


def test_the_given_run_is_the_smallest_of_its_job_and_is_not_asked() -> None:
    rows = [
        {"case_id": str(n), "source": "s", "model": "m", "gpu": "g", "n_gpus": n, "global_batch": 8 * n}
        for n in (8, 1, 4)
    ]
    lone = {"case_id": "x", "source": "s", "model": "other", "gpu": "g", "n_gpus": 1}
    sample = Sample(rows={"s": [*rows, lone]}, every={"s": [*rows, lone]}, measured_s={})
    ((given, asked),) = pair_jobs(sample, most_asked=10)
    assert given["n_gpus"] == 1
    assert [row["n_gpus"] for row in asked] == [8, 4]


def test_a_given_run_that_makes_a_source_worse_fails() -> None:
    plain, better, worse = (
        make_said("one", 12, step_s=step_s, way=way) for step_s, way in ((1.05, SHIPPED), (1.02, GIVEN), (1.08, GIVEN))
    )
    sample = make_sample(*plain)
    assert gate.judge_given([*plain, *better], sample) == []
    assert gate.judge_given([*plain, *worse], sample) == ["one: mean 5.0% without the given run, 8.0% with it"]


def test_every_accepted_entry_gives_a_reason(tmp_path: Path) -> None:
    gate.read_accepted()
    path = tmp_path / "accepted.toml"
    path.write_text('[[accepted]]\nsource = "one"\nway = "as shipped"\nup_to = 3.0\n')
    with pytest.raises(SystemExit, match="gives no reason"):
        gate.read_accepted(path)


@pytest.mark.skipif(not gate.CASES.is_dir(), reason="measured cases are not beside the repository")
def test_a_planted_bad_rule_fails_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = gate.read_sample(12, only=["torchtitan"])
    before = [one for one in gate.read_table(gate.RELEASE) if one.source == "torchtitan"]
    monkeypatch.setattr("traincast.simulate._step.DEVICE_VARIATION", 0.15)
    bad = gate.ask_shipped(sample.rows["torchtitan"])
    assert [one for one in judge(compare(before, bad, sample), gate.read_accepted()) if one.startswith("torchtitan")]
