"""The learned correction of GPU utilisation."""

import importlib.util
import random
from dataclasses import replace
from pathlib import Path

import pytest

from builders import make_mlp
from traincast.catalog._workloads import workload
from traincast.errors import InvalidInput
from traincast.resources._residual import (
    Correction,
    Setting,
    fit_correction,
    load_correction,
    save_correction,
    setting_of,
)

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT.parent / "shared" / "cases"


def make_setting(workload: str = "resnet50", device: str = "a40", num_devices: int = 1, half: bool = False) -> Setting:
    return Setting(workload=workload, device=device, num_devices=num_devices, half=half)


def test_without_measurements_nothing_is_corrected():
    assert Correction().correct(0.8, make_setting()) == 0.8


def test_a_common_loss_is_learned_from_all_and_reaches_workloads_never_seen():
    settings = [make_setting(workload, num_devices=n) for workload in ("a", "b") for n in (1, 2, 4, 8)]
    correction = fit_correction(settings, forecast=[1.0] * 8, measured=[0.9] * 8)
    assert correction.correct(1.0, make_setting("new", "unknown", 16)) == pytest.approx(0.9)


def test_a_loss_of_one_workload_stays_with_it():
    settings = [make_setting(workload, f"d{i}") for workload in ("busy", "slow") for i in range(20)]
    measured = [0.98] * 20 + [0.7] * 20
    correction = fit_correction(settings, forecast=[1.0] * 40, measured=measured)
    assert correction.correct(1.0, make_setting("busy")) == pytest.approx(0.98, abs=0.03)
    assert correction.correct(1.0, make_setting("slow")) == pytest.approx(0.7, abs=0.03)
    assert 0.7 < correction.correct(1.0, make_setting("new")) < 0.98


def test_a_failed_run_among_many_moves_little():
    settings = [make_setting(device=f"d{i}") for i in range(20)]
    correction = fit_correction(settings, forecast=[1.0] * 20, measured=[0.95] * 19 + [0.0])
    assert correction.correct(1.0, make_setting()) == pytest.approx(0.95, abs=0.02)


def test_a_corrected_utilisation_stays_a_share():
    assert Correction(intercept=0.5).correct(0.9, make_setting()) == 1.0
    assert Correction(intercept=-2.0).correct(0.9, make_setting()) == 0.0


def test_a_saved_correction_reads_back_equal(tmp_path):
    random.seed(1)
    settings = [make_setting(num_devices=2**i) for i in range(4)]
    correction = fit_correction(settings, forecast=[1.0] * 4, measured=[random.random() for _ in range(4)])
    save_correction(correction, tmp_path / "fitted.json", command="how")
    again = load_correction(tmp_path / "fitted.json")
    assert again.correct(1.0, settings[2]) == pytest.approx(correction.correct(1.0, settings[2]), abs=1e-5)
    assert load_correction(tmp_path / "absent.json") == Correction()


def test_the_correction_that_ships_was_fitted_to_measured_runs():
    shipped = load_correction()
    assert shipped.num_rows > 100
    assert -0.5 < shipped.intercept < 0.1


def test_a_catalogue_job_is_looked_up_by_the_names_of_the_measured_runs():
    setting = setting_of(workload("resnet50", batch=8), device="a40", num_devices=8)
    assert not setting.half
    for name in ("workload:resnet50", "device:a40", "machine:8 x a40"):
        assert name in setting.features()
        assert name in load_correction().coefficients


def test_products_in_sixteen_bits_are_seen():
    graph = make_mlp()
    halved = tuple(replace(op, dtype="bf16") if op.kind == "matmul" else op for op in graph.ops)
    whole = tuple(replace(op, dtype="fp32") for op in graph.ops)
    assert setting_of(replace(graph, ops=halved), device="a40", num_devices=1).half
    assert not setting_of(replace(graph, ops=whole), device="a40", num_devices=1).half


def test_uneven_numbers_of_rows_are_refused():
    with pytest.raises(InvalidInput, match="as many of each"):
        fit_correction([make_setting()], forecast=[1.0, 1.0], measured=[1.0])


@pytest.mark.slow
@pytest.mark.skipif(not CASES.is_dir(), reason="the shared case tables are not beside this repository")
def test_measured_utilisation_is_met_within_six_points_and_a_left_out_model_beats_the_constant():
    spec = importlib.util.spec_from_file_location("gpu_utilization", ROOT / "benchmarks" / "gpu_utilization.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    runs = benchmark.load_runs([str(CASES / "single_gpu.parquet"), str(CASES / "dp.parquet")])

    def errors(key) -> tuple[float, float]:
        answers = [one for one in benchmark.leave_out(runs, key) if one[0].quality == "clean"]
        constant = sum(abs(constant - run.measured) for run, constant, _ in answers) / len(answers)
        corrected = sum(abs(corrected - run.measured) for run, _, corrected in answers) / len(answers)
        return 100 * constant, 100 * corrected

    constant, corrected = errors(lambda run: run.setting.workload)
    assert corrected < constant
    for key in (lambda run: run.setting.device, lambda run: run.fold):
        _, corrected = errors(key)
        assert corrected <= 6.0
