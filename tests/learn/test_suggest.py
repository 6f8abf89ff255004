"""What to run next is chosen by what the known runs leave open."""

import pytest

from traincast import catalog
from traincast.catalog._workloads import workload
from traincast.certainty._labels import label_run
from traincast.errors import InvalidInput
from traincast.learn import suggest_runs
from traincast.spec import Job, MeasuredRun, Parallelism


def run_of(name: str) -> MeasuredRun:
    job, cluster, plan = (
        Job(graph=workload(name, batch=8)),
        catalog.cluster(device="t4", devices_per_node=1),
        Parallelism(),
    )
    return MeasuredRun(labels=label_run(job, cluster, plan), job=job, cluster=cluster, parallelism=plan, step_s=0.1)


def test_suggestions_are_of_the_same_data_and_none_was_run_already() -> None:
    found = suggest_runs([run_of("resnet50")], 4)
    assert len({one.name for one in found}) == 4
    assert {one.dataset_type for one in found} == {"image"}
    assert "resnet50" not in {one.name for one in found}
    gains = [one.gain for one in found]
    assert gains == sorted(gains, reverse=True)


def test_what_was_run_is_worth_less_than_before() -> None:
    first = suggest_runs([run_of("resnet50")], 1)[0]
    after = suggest_runs([run_of("resnet50"), run_of(first.name)], 1)[0]
    assert after.name != first.name
    assert after.gain < first.gain


def test_nothing_is_suggested_that_is_far_larger_than_what_ran() -> None:
    small, large = (suggest_runs([run_of("bert-base"), run_of(name)], 6) for name in ("resnet50", "gpt2-xl"))
    assert all(workload(one.name, batch=1).num_parameters < 2.1 * 110e6 for one in small)
    assert any(workload(one.name, batch=1).num_parameters > 2.1 * 110e6 for one in large)


def test_no_suggestion_is_refused() -> None:
    with pytest.raises(InvalidInput, match="1 to 50"):
        suggest_runs([run_of("resnet50")], 0)
