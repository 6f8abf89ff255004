import pytest

from builders import make_cluster, make_mlp
from traincast.forecast._assemble import time_job
from traincast.spec import Estimate, Job, JobTime

STEP = Estimate(seconds=1.0, low_s=0.9, high_s=1.1)


def run(**values: object) -> JobTime:
    return time_job(Job(graph=make_mlp(), steps=10, device_mtbf_s=1e15, **values), make_cluster(), STEP, 32)  # type: ignore[arg-type]


def test_only_compiled_jobs_wait_for_a_compiler() -> None:
    assert run().compile_s == 0.0
    assert run(compiled=True).compile_s > 0


def test_what_the_user_measured_replaces_the_rough_figure_and_counts_once() -> None:
    told = run(compiled=True, compile_s=120.0)
    assert told.compile_s == 120.0
    assert told.total.seconds - run().total.seconds == pytest.approx(120.0)
