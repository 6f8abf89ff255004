"""Memory, GPU utilisation and network numbers of own runs: learned, kept in the calibration and applied."""

import math
from dataclasses import replace

import pytest

from traincast import catalog
from traincast.accuracy import read_runs
from traincast.certainty._labels import label_run
from traincast.certainty._pooling import pool_gap
from traincast.forecast import Engine, Shown
from traincast.learn import learn, save_calibration
from traincast.learn._calibrations import load_calibration
from traincast.resources import OWN_RUNS, grounds_of
from traincast.spec import Job, MeasuredNumbers, MeasuredRun, Parallelism, RunLabels

ENGINE = Engine()
CLUSTER = catalog.cluster("a100-40g", nodes=2, devices_per_node=8, inter="ethernet-25g")


def make_run(batch: int, *, slower: float = 1.3, larger: float = 1.1, less_busy: float = 0.1) -> MeasuredRun:
    """A run of a cluster that is slower, needs more memory and idles more than we think."""
    job = Job(graph=catalog.workload("resnet50", batch=batch))
    plan = Parallelism(data=16)
    answer = ENGINE.forecast(job, CLUSTER, plan, shown=Shown(spans=True))
    assert answer.run_utilization is not None
    twelve = answer.resources[0].twelve()
    return MeasuredRun(
        labels=label_run(job, CLUSTER, plan), job=job, cluster=CLUSTER, parallelism=plan, name=str(batch),
        step_s=slower * answer.step.seconds, memory_bytes=larger * answer.memory.peak_bytes,
        numbers={"gpu_mean": answer.run_utilization - less_busy, "sent_burst_s": 1.5 * twelve["sent_burst_s"]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs() -> list[MeasuredRun]:
    return [make_run(batch) for batch in (32, 48, 64, 96, 128)]


def test_one_calibration_moves_step_memory_utilisation_and_network_to_what_was_measured(runs, tmp_path) -> None:
    save_calibration(learn(runs, name="mine"), tmp_path / "mine.json")
    mine = Engine(calibration=load_calibration(tmp_path / "mine.json"))
    asked = make_run(80)
    before, after = (
        each.forecast(asked.job, CLUSTER, asked.parallelism, shown=Shown(spans=True)) for each in (ENGINE, mine)
    )
    assert after.step.seconds == pytest.approx(asked.step_s, rel=0.08)
    assert before.memory.peak_bytes < after.memory.peak_bytes == pytest.approx(asked.memory_bytes, rel=0.05)
    assert sum(after.memory.by_role.values()) == pytest.approx(after.memory.peak_bytes)
    assert after.run_utilization == pytest.approx(asked.numbers["gpu_mean"], abs=0.05)
    (profile,) = after.resources
    assert grounds_of(profile)["gpu_burst_s"] == grounds_of(profile)["sent_burst_s"] == OWN_RUNS
    assert profile.gpu.cycle_s == pytest.approx(profile.step_s)
    assert any("own runs also moved" in note for note in after.notes)


def test_numbers_of_another_stack_and_model_move_little(runs) -> None:
    own = runs[0].labels
    numbers = [MeasuredNumbers(labels=own, gaps={"memory": 0.2}) for _ in range(5)]
    same = pool_gap(numbers, own, "memory")
    strange = pool_gap(numbers, replace(own, stack="another", model="other", device="t4"), "memory")
    assert 0.15 < same <= 0.2
    assert 0 <= strange < 0.35 * same
    assert pool_gap(numbers, own, "gpu_mean") == 0.0


def test_numbers_that_contradict_each_other_move_nothing(runs) -> None:
    own = runs[0].labels

    def of(gap: float, model: str) -> MeasuredNumbers:
        return MeasuredNumbers(labels=replace(own, model=model), gaps={"memory": gap})

    together = pool_gap([of(0.2, name) for name in "abcdef"], own, "memory")
    apart = pool_gap([of(0.2 if place % 2 else -0.2, name) for place, name in enumerate("abcdef")], own, "memory")
    assert abs(apart) < 0.2 * together


def test_a_row_of_a_table_tells_utilisation_memory_and_twelve_numbers() -> None:
    row = {
        "case_id": "a", "model": "resnet50", "gpu": "a100-sxm4-40g", "n_gpus": 1, "micro_batch": 64, "dtype": "fp16_amp",
        "framework": "pytorch-ddp", "measured_step_s": 0.1, "measured_memory_bytes": 8e9, "measured_gpu_util_pct": 93.0,
        "measured_sent_peak": 1e9,
    }  # fmt: skip
    (run,) = read_runs([row])
    assert run.memory_bytes == 8e9
    assert run.numbers == {"gpu_mean": 0.93, "sent_peak": 1e9}


def test_a_ratio_that_is_of_another_quantity_teaches_nothing(runs) -> None:
    wrong = replace(runs[0], memory_bytes=100 * (runs[0].memory_bytes or 0.0))
    found = learn([wrong], name="wrong").runs
    assert found is not None
    assert all("memory" not in one.gaps for one in found.numbers)
    assert math.isfinite(found.numbers[0].gaps["gpu_mean"])
    assert isinstance(found.numbers[0].labels, RunLabels)
