"""A fit recovers what made the data, shrinks to its prior where nothing was measured, and is checked on what it never saw."""

import json
import math
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.cost import Calibrated
from traincast.errors import InvalidInput, UnknownName
from traincast.files import encode
from traincast.forecast import forecast
from traincast.learn import (
    CalibrationCandidates,
    CalibrationLoad,
    MeasuringSetup,
    calibrate_machine,
    calibrations_folder,
    choose_loads,
    expected_cost_s,
    operator_load,
    rates_of,
    refit,
    save_calibration,
    start_fit,
    to_machine_rates,
)
from traincast.learn._calibrations import load_calibration
from traincast.learn._choose import DESIGNS
from traincast.learn._fit import Peaks
from traincast.learn._loads import is_held_out, observed_seconds
from traincast.learn._machine import CheckScore
from traincast.profile._operators import experiment_of
from traincast.profile._protocol import Protocol, Running, Subject
from traincast.spec import (
    Block,
    Cluster,
    Collective,
    Device,
    Environment,
    Experiment,
    Graph,
    Job,
    Link,
    MachineRates,
    Measurement,
    NodeGroup,
    Op,
    Rates,
    Repeat,
    Stage,
)
from traincast.spec._calibration import Calibration, RunCorrections
from traincast.spec._measurement import calls_of, groups_of
from traincast.store import Store

HERE = Environment(device="test cpu", machine="here", settings={"threads": 1})
PEAKS = Peaks(flop_per_s=5e10, bytes_per_s=1e10)
TRUTH = {
    "matmul": (4e-6, 2e10, 2e10),
    "elementwise": (2e-6, 1e12, 6e9),
    "softmax": (9e-6, 1e12, 1.5e9),
    "dropout": (5e-6, 5e8, 1e12),
}
STEP_COMPUTE, STEP_OVERHEAD, STEP_CALL_S, STEP_S_PER_BYTE = 1.1, 1.8, 3e-6, 1e-10


def matmul(m: int, k: int, n: int) -> Op:
    return Op(
        name="mm", kind="matmul", flop=2.0 * m * k * n, bytes_read=4.0 * (m * k + k * n), bytes_written=4.0 * m * n,
        attrs={"batch": 1, "m": m, "n": n, "k": k, "layout": "nn"},
    )  # fmt: skip


def add(numel: int) -> Op:
    return Op(name="add", kind="elementwise", flop=float(numel), bytes_read=8.0 * numel, bytes_written=4.0 * numel,
              attrs={"function": "add", "numel": numel, "num_inputs": 2})  # fmt: skip


def softmax(rows: int, cols: int) -> Op:
    return Op(name="softmax", kind="softmax", flop=5.0 * rows * cols, bytes_read=4.0 * rows * cols,
              bytes_written=4.0 * rows * cols, attrs={"rows": rows, "cols": cols})  # fmt: skip


def operators(seed: int, count: int) -> list[CalibrationLoad]:
    random = np.random.default_rng(seed)
    ops: list[Op] = []
    for _ in range(count):
        sizes = [int(2 ** random.uniform(3, 9)) for _ in range(3)]
        ops += [matmul(*sizes), add(sizes[0] * sizes[1]), softmax(sizes[0], sizes[1])]
    unique = {experiment_of(op).key: operator_load(experiment_of(op)) for op in ops}
    return list(unique.values())


def steps(seed: int, count: int) -> list[CalibrationLoad]:
    random = np.random.default_rng(1000 + seed)
    loads = []
    for number in range(count):
        width, length = int(2 ** random.uniform(4, 9)), int(random.integers(2, 12))
        ops = (matmul(32, width, width), add(32 * width), softmax(32, width))
        experiment = Experiment(subject="step", name=f"model {seed} {number}", attrs={"batch": 32})
        loads.append(CalibrationLoad(experiment=experiment, ops=ops, counts=(3 * length, 2 * length, length)))
    return loads


def true_seconds(load: CalibrationLoad, *, noise: float = 0.0, seed: int = 0) -> float:
    work = 0.0
    in_step = (STEP_COMPUTE, STEP_OVERHEAD, STEP_CALL_S, STEP_S_PER_BYTE)
    compute, overhead, call_s, fetch_s_per_byte = in_step if load.is_step else (1.0, 1.0, 0.0, 0.0)
    for op, count in zip(load.ops, load.counts, strict=True):
        overhead_s, flop_per_s, bytes_per_s = TRUTH[op.kind]
        moving_s = op.num_bytes * (1 / bytes_per_s + fetch_s_per_byte)
        work += count * (overhead * overhead_s + call_s + compute * (op.flop or 0.0) / flop_per_s + moving_s)
    return work * math.exp(noise * np.random.default_rng(zlib.crc32(f"{load.experiment.key} {seed}".encode())).normal())


def fitted(loads: list[CalibrationLoad], *, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray, list[CalibrationLoad]]:
    checked = steps(99, 30)
    first = start_fit([*loads, *checked], PEAKS)
    fit = refit(first, loads, [true_seconds(load, noise=noise) for load in loads])
    truth = np.array([true_seconds(load) for load in checked])
    return np.abs(first.predict(checked) / truth - 1), np.abs(fit.predict(checked) / truth - 1), checked


def test_a_fit_to_operators_and_steps_forecasts_steps_it_never_saw() -> None:
    before, after, _ = fitted([*operators(1, 25), *steps(1, 15)])
    assert after.mean() < 0.02
    assert after.mean() < before.mean() / 10


def test_one_wild_measurement_in_ten_hardly_matters() -> None:
    loads = [*operators(1, 25), *steps(1, 20)]
    seconds = [true_seconds(load) * (8.0 if index % 10 == 0 else 1.0) for index, load in enumerate(loads)]
    checked = steps(99, 30)
    fit = refit(start_fit([*loads, *checked], PEAKS), loads, seconds)
    assert CheckScore.of(fit.predict(checked), [true_seconds(load) for load in checked]).mean < 0.05


def test_without_measurements_the_prior_stands() -> None:
    first = start_fit(operators(1, 3), PEAKS)
    assert refit(first, [], []) is first


def test_a_group_that_was_not_measured_follows_the_others_half_way() -> None:
    loads = [load for load in operators(1, 10) if load.ops[0].kind == "matmul"]
    others = [load for load in operators(2, 5) if load.ops[0].kind == "softmax"]
    first = start_fit([*loads, *others], PEAKS)
    as_expected = first.predict(loads)
    same = refit(first, loads, as_expected)
    assert same.predict(others) == pytest.approx(first.predict(others))
    slower = refit(first, loads, 4 * as_expected)
    assert slower.predict(loads) == pytest.approx(4 * as_expected, rel=0.1)
    moved = slower.predict(others) / first.predict(others)
    assert (moved > 1.05).all()
    assert (moved < 2.5).all()


def dropout(numel: int) -> Op:
    return Op(name="dropout", kind="dropout", flop=2.0 * numel, bytes_read=4.0 * numel, bytes_written=5.0 * numel,
              attrs={"numel": numel})  # fmt: skip


def test_an_operator_bound_by_arithmetic_does_not_wait_for_memory_because_others_do() -> None:
    """Alone nothing tells the two apart, and only other kinds were seen in steps."""
    alone = [operator_load(experiment_of(dropout(numel))) for numel in (2**12, 2**14, 2**16)]
    loads = [*operators(1, 25), *steps(1, 15), *alone]
    unseen = CalibrationLoad(
        experiment=Experiment(subject="step", name="with dropout"),
        ops=(matmul(32, 64, 64), dropout(2**15)),
        counts=(4, 4),
    )
    fit = refit(start_fit([*loads, unseen], PEAKS), loads, [true_seconds(load) for load in loads])
    assert fit.predict([unseen])[0] == pytest.approx(true_seconds(unseen), rel=0.15)


@given(factor=st.floats(0.2, 5.0))
@settings(max_examples=20, deadline=None)
def test_a_machine_uniformly_slower_is_forecast_uniformly_slower(factor: float) -> None:
    loads = [*operators(1, 20), *steps(1, 15)]
    checked = steps(99, 10)
    first = start_fit([*loads, *checked], PEAKS)
    plain = refit(first, loads, [true_seconds(load) for load in loads]).predict(checked)
    slower = refit(first, loads, [factor * true_seconds(load) for load in loads]).predict(checked)
    assert slower / plain == pytest.approx(np.full(len(checked), factor), rel=0.05)


def test_more_measurements_make_the_fit_surer() -> None:
    loads, checked = [*operators(1, 25), *steps(1, 15)], steps(99, 5)
    first = start_fit([*loads, *checked], PEAKS)
    few = refit(first, loads[:6], [true_seconds(load) for load in loads[:6]])
    many = refit(first, loads, [true_seconds(load) for load in loads])
    assert (many.log_spread(checked) < few.log_spread(checked)).all()
    assert (few.log_spread(checked) < first.log_spread(checked)).all()


@pytest.mark.parametrize("method", DESIGNS)
def test_every_design_keeps_to_its_budget_and_measures_nothing_twice(method: str) -> None:
    loads = [*operators(3, 60), *steps(3, 40)]
    first = start_fit(loads, PEAKS)
    costs = [expected_cost_s(load, first, Protocol(num_rounds=3, block_s=0.03)) for load in loads]
    chosen = choose_loads(first, loads, costs=costs, budget_s=4.0, method=method, measured=[0, 1], forbidden=[2])
    assert 0 < sum(costs[index] for index in chosen) <= 4.0
    assert len(set(chosen)) == len(chosen)
    assert not {0, 1, 2} & set(chosen)


@pytest.mark.parametrize("method", ["targeted", "d-optimal"])
def test_a_designed_choice_tells_more_than_random_ones_of_the_same_cost(method: str) -> None:
    loads = [*operators(3, 60), *steps(3, 40)]
    first = start_fit(loads, PEAKS)
    costs = [expected_cost_s(load, first, Protocol(num_rounds=3, block_s=0.03)) for load in loads]
    chosen = choose_loads(first, loads, costs=costs, budget_s=4.0, method=method)
    assert sum(costs[index] for index in chosen) <= 4.0

    def surprise(rows: list[int]) -> float:
        fit = refit(first, [loads[row] for row in rows], [true_seconds(loads[row]) for row in rows])
        return float(fit.log_spread(steps(99, 20)).mean())

    chance = []
    for seed in range(8):
        rows, left = [], 4.0
        for row in np.random.default_rng(seed).permutation(len(loads)):
            if costs[row] <= left:
                rows.append(int(row))
                left -= costs[row]
        chance.append(surprise(rows))
    assert surprise(chosen) <= float(np.median(chance))


def fake_machine(loads: list[CalibrationLoad]) -> list[Subject]:
    """Subjects that do nothing; their blocks are replaced by the durations of the made-up machine."""
    return [Subject(experiment=load.experiment, prepare=lambda: Running(run=lambda: None)) for load in loads]


def fake_setup(store: Store) -> MeasuringSetup:
    protocol = Protocol(num_rounds=1, block_s=0.03)
    return MeasuringSetup(store=store, environment=HERE, prepare=fake_machine, protocol=protocol)


def test_the_whole_loop_plans_measures_keeps_fits_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from traincast.learn import _machine as room

    by_key = {}

    def measure(subjects: list[Subject], *, num_done: object, **_: object):  # type: ignore[no-untyped-def]
        for subject in subjects:
            load = by_key[subject.experiment.key]
            took = true_seconds(load, noise=0.03)
            yield room.Visit(
                experiment=subject.experiment,
                block=Block(started_at="", wall_s=(took * 1.3,), cpu_s=(took,), source="made up"),
            )

    monkeypatch.setattr(room, "measure", measure)
    monkeypatch.setattr(room, "anchors", lambda: operators(5, 1))
    candidates = CalibrationCandidates(loads=(*operators(1, 30), *steps(1, 20)), held_out=tuple(steps(99, 12)))
    by_key.update({load.experiment.key: load for load in [*candidates.loads, *candidates.held_out, *operators(5, 1)]})
    with Store(tmp_path / "m.db") as store:
        outcome = calibrate_machine(candidates, fake_setup(store), name="made-up", budget_s=60.0)
        kept = store.counts()["experiments"]
    assert kept == outcome.num_operators + outcome.num_steps + 12
    assert outcome.after.num_cases == 12
    assert outcome.after.mean < 0.06
    assert outcome.after.mean < outcome.before.mean
    assert outcome.calibration.errors["steps_after"] == outcome.after.mean
    for load in candidates.held_out:
        ours = outcome.calibration.step_seconds(load.ops, load.counts)
        assert ours == pytest.approx(true_seconds(load), rel=0.25)


def test_a_budget_that_the_first_plan_overran_ends_the_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from traincast.learn import _machine as room

    clock = iter(range(0, 10**6, 5))

    def measure(subjects: list[Subject], *, num_done: object, **_: object):  # type: ignore[no-untyped-def]
        for subject in subjects:
            block = Block(started_at="", wall_s=(1e-3,), cpu_s=(1e-3,), source="made up")
            yield room.Visit(experiment=subject.experiment, block=block)

    monkeypatch.setattr(room, "measure", measure)
    monkeypatch.setattr(room, "anchors", lambda: operators(5, 1))
    monkeypatch.setattr(room.time, "monotonic", lambda: float(next(clock)))
    candidates = CalibrationCandidates(loads=(*operators(1, 10), *steps(1, 5)), held_out=tuple(steps(99, 3)))
    with Store(tmp_path / "m.db") as store:
        outcome = calibrate_machine(candidates, fake_setup(store), name="late", budget_s=40.0)
    assert outcome.measuring_s >= 40.0


def test_held_out_models_are_decided_by_name_alone_and_are_about_a_fifth() -> None:
    names = [f"model {number}" for number in range(1000)]
    held = [name for name in names if is_held_out(name)]
    assert 150 < len(held) < 250
    assert held == [name for name in names if is_held_out(name)]


def test_cpu_time_is_fitted_on_one_thread_and_wall_time_elsewhere() -> None:
    block = Block(started_at="", wall_s=(2.0, 2.0), cpu_s=(1.0, 1.0))
    experiment = Experiment(subject="step", name="x")
    single = Measurement(experiment=experiment, environment=HERE, blocks=(block,))
    gpu = Measurement(experiment=experiment, environment=Environment(device="GPU"), blocks=(block,))
    across = Experiment(subject="step", name="x", attrs={"num_ranks": 4})
    assert observed_seconds(single) == 1.0
    assert observed_seconds(gpu) == 2.0
    assert observed_seconds(Measurement(experiment=across, environment=HERE, blocks=(block,))) == 2.0


def make_calibration(**others: object) -> MachineRates:
    loads = [*operators(1, 25), *steps(1, 10)]
    seconds = [true_seconds(load) for load in loads]
    fit = refit(start_fit(loads, PEAKS), loads, seconds)
    return to_machine_rates(fit, name="x", environment=HERE, loads=loads, seconds=seconds, measuring_s=1.0, **others)  # type: ignore[arg-type]


def test_a_calibration_comes_back_from_its_file(tmp_path: Path) -> None:
    rates = make_calibration()
    calibration = Calibration(name="x", machine=rates)
    for name in ("c.json", "c.json.gz"):
        save_calibration(calibration, tmp_path / name)
        assert load_calibration(tmp_path / name) == calibration
    (tmp_path / "other.json").write_text('{"format": "something"}')
    with pytest.raises(InvalidInput, match="not a calibration"):
        load_calibration(tmp_path / "other.json")


def test_a_calibration_is_found_by_the_name_under_which_it_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINCAST_CALIBRATIONS", str(tmp_path))
    calibration = Calibration(name="mine", machine=make_calibration())
    save_calibration(calibration, calibrations_folder() / "mine.json")
    assert load_calibration("mine") == calibration
    with pytest.raises(UnknownName, match="did you mean 'mine'"):
        load_calibration("mime")


def test_a_calibration_of_the_first_version_is_still_read(tmp_path: Path) -> None:
    rates = make_calibration()
    old = {"format": "traincast-calibration", "version": 1, "calibration": encode(rates)}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert load_calibration(tmp_path / "old.json") == Calibration(name="x", machine=rates)


def test_what_runs_taught_is_no_rate_of_a_machine() -> None:
    with pytest.raises(InvalidInput, match="traincast calibrate"):
        rates_of(Calibration(name="runs", runs=RunCorrections()))


def test_an_operator_of_a_kind_never_measured_uses_the_fallback_and_a_wider_interval() -> None:
    calibration = make_calibration()
    strange = Op(
        name="sort", kind="sort", flop=None, bytes_read=4e6, bytes_written=4e6, attrs={"rows": 1, "cols": 10**6}
    )
    assert calibration.rates_of(strange) is calibration.fallback
    link = Link(name="l", bytes_per_s=1e9, latency_s=0.0)
    device = Device(name="d", memory_bytes=1e9, memory_bytes_per_s=1e9, vector_flop_per_s={"fp32": 1e9})
    group = NodeGroup(device=device, num_nodes=1, devices_per_node=1, intra=link, inter=link)
    cluster = Cluster(name="c", groups=(group,))
    stage = Stage(tasks=(matmul(64, 64, 64), strange), repeats=(), tensors=())
    known, unknown = Calibrated(rates=calibration).estimate(stage, cluster)
    assert known.ground == "measured"
    assert unknown.ground == "transfer"
    assert unknown.high_s / unknown.seconds > known.high_s / known.seconds
    message = Collective(kind="all_reduce", num_bytes=1e6, axis="data", num_ranks=2, stride=1, phase="backward")
    with pytest.raises(InvalidInput, match="holds no all_reduce"):
        Calibrated(rates=calibration).estimate(Stage(tasks=(message,), repeats=(), tensors=()), cluster)


def test_a_forecast_priced_by_a_calibration_is_the_step_it_fitted() -> None:
    calibration = make_calibration()
    ops = (matmul(64, 128, 128), add(64 * 128), softmax(64, 128))
    graph = Graph(name="g", ops=ops, tensors=(), batch_size=8, repeats=(Repeat(start=0, stop=2, count=5),))
    link = Link(name="l", bytes_per_s=1e9, latency_s=0.0)
    device = Device(name="d", memory_bytes=1e9, memory_bytes_per_s=1e9, vector_flop_per_s={"fp32": 1e9})
    group = NodeGroup(device=device, num_nodes=1, devices_per_node=1, intra=link, inter=link)
    found = forecast(Job(graph=graph), Cluster(name="c", groups=(group,)), costs=Calibrated(rates=calibration))
    assert found.step.seconds == pytest.approx(calibration.step_seconds(graph.ops, graph.counts()), rel=1e-6)
    throttled = Cluster(name="c", groups=(replace(group, speed=0.25),))
    slow = forecast(Job(graph=graph), throttled, costs=Calibrated(rates=calibration))
    assert slow.step.seconds == pytest.approx(4 * found.step.seconds)


def test_a_rate_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="above 0"):
        Rates(flop_per_s=0.0, bytes_per_s=1.0, overhead_s=0.0, log_spread=0.0)
    with pytest.raises(InvalidInput, match="known kinds:"):
        MachineRates(
            name="x",
            environment=HERE,
            rates={"matmull": make_calibration().fallback},
            fallback=make_calibration().fallback,
        )


def test_groups_lead_from_the_most_special_to_the_kind() -> None:
    sizes = {
        "batch": 4,
        "in_channels": 24,
        "out_channels": 24,
        "in_size": "12x12",
        "out_size": "12x12",
        "stride": "1x1",
    }
    deep = Op(name="c", kind="conv", flop=1.0, bytes_read=1.0, bytes_written=1.0,
              attrs={**sizes, "groups": 24, "kernel": "7x7", "pass": "grad_weight"})  # fmt: skip
    assert groups_of(deep) == ("conv:grad_weight:grouped:large", "conv:grad_weight:grouped", "conv:grad_weight", "conv")
    strided = replace(deep, attrs={**deep.attrs, "groups": 1, "kernel": "1x1", "stride": "2x2"})
    assert groups_of(strided)[0] == "conv:grad_weight:point:strided"
    assert groups_of(softmax(512, 10))[0] == "softmax:forward:narrow"
    assert groups_of(add(8)) == ("elementwise:light:add", "elementwise:light", "elementwise")


def test_a_calibration_of_before_groups_were_split_still_knows_their_operators() -> None:
    wide = Rates(overhead_s=1e-6, flop_per_s=1e9, bytes_per_s=1e9, log_spread=0.1)
    old = MachineRates(
        name="old", environment=HERE, rates={"softmax:forward": wide}, fallback=make_calibration().fallback
    )
    assert old.rates_of(softmax(512, 10)) is wide


def test_an_update_pays_its_overhead_per_tensor_and_a_cell_per_time_step() -> None:
    update = Op(name="adamw", kind="optimizer", flop=1.0, bytes_read=1.0, bytes_written=1.0, phase="optimizer",
                attrs={"algorithm": "adamw", "numel": 100, "num_tensors": 7, "implementation": "foreach"})  # fmt: skip
    sizes = {"cell": "lstm", "batch": 1, "length": 5, "inputs": 2, "hidden": 2, "layers": 2, "directions": 1}
    cell = Op(name="lstm", kind="rnn", flop=1.0, bytes_read=1.0, bytes_written=1.0, attrs=sizes)
    assert (calls_of(update), calls_of(cell), calls_of(matmul(1, 1, 1))) == (7, 10, 1)


def test_a_calibration_changes_what_the_command_line_forecasts(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save_calibration(Calibration(name="mine", machine=make_calibration()), path)
    command = [sys.executable, "-m", "traincast", "forecast", "resnet18", "--device", "cpu", "--batch", "2", "--json"]
    plain, own = (
        json.loads(subprocess.run([*command, *extra], capture_output=True, text=True, check=True).stdout)
        for extra in ([], ["--calibration", str(path)])
    )
    assert own["step"]["seconds"] != plain["step"]["seconds"]
