import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from builders import make_mlp
from traincast.__main__ import main
from traincast.cost._sync import OVERLAP_EXPONENT, Synced, collective_seconds
from traincast.errors import InvalidInput
from traincast.forecast import forecast
from traincast.learn import (
    Calibrated,
    Candidates,
    Load,
    calibrate_workers,
    gradients_of,
    rates_of,
    save_calibration,
    step_load,
    synced_step,
)
from traincast.learn._synchronization import Visit, ddp_experiment
from traincast.profile._settings import TOO_LARGE, Setting, equal
from traincast.spec import Cluster, Device, Graph, Job, Link, NodeGroup, Parallelism
from traincast.spec._calibration import Calibration
from traincast.spec._measurement import Block, CollectiveRates, Environment, Experiment, MachineRates, Rates
from traincast.store import Store

ONE_NODE = MachineRates(
    name="core",
    environment=Environment(device="core"),
    rates={},
    fallback=Rates(flop_per_s=2e9, bytes_per_s=4e9, overhead_s=1e-5, log_spread=0.1),
    errors={"steps_after": 0.07},
)
TRUTH = Synced(
    wall_scale=1.15,
    rates=CollectiveRates(
        hop_s=2e-3, call_s=8e-3, bytes_per_s=1e15, cpu_s_per_byte=1.2e-9, cpu_s_per_tensor=5e-5, link_efficiency=1.0,
        overlap_exponent=OVERLAP_EXPONENT,
    ),
)  # fmt: skip
SETTINGS = (equal("1gbit", 1e9, 2), equal("1gbit", 1e9, 4))


def make_load(width: int, layers: int) -> Load:
    graph = make_mlp(width=width, layers=layers, batch=8)
    return step_load(
        Experiment(subject="step", name=f"mlp({layers},{width})", attrs={"batch": 8, "optimizer": "sgd"}), graph
    )


FITTED = [make_load(width, layers) for width in (32, 64, 96, 128, 192, 256) for layers in (1, 2, 4, 7)]
HELD_OUT = [make_load(width, layers) for width in (48, 160, 224) for layers in (3, 5)]


class TestBed:
    """Steps that follow the physics, on a machine that drifts; each visit takes two seconds."""

    __test__ = False

    def __init__(self, *, drift: float = 0.0, broken: str = "") -> None:
        self.drift, self.broken, self.now_s = drift, broken, 0.0
        self.log: list[tuple[str, str, float]] = []
        self.loads = {load.experiment.name: load for load in (*FITTED, *HELD_OUT)}

    @contextmanager
    def open_team(self, setting: Setting) -> Iterator[Visit]:
        def visit(experiment: Experiment) -> Block | None:
            assert experiment.attrs["num_ranks"] == setting.num_ranks
            self.log.append((setting.name, experiment.name, self.now_s))
            self.now_s += 2.0
            if experiment.name == self.broken:
                return None
            slower = math.exp(self.drift * math.sin(self.now_s / 40))
            step = synced_step(self.loads[experiment.name], setting, ONE_NODE, 1.0)
            return Block(started_at="", wall_s=(TRUTH.seconds(step) * slower,))

        yield visit

    def clock(self) -> float:
        return self.now_s


def run(bed: TestBed, **changes: object):  # type: ignore[no-untyped-def]
    options: dict[str, object] = {
        "settings": SETTINGS,
        "budget_s": 80.0,
        "open_team": bed.open_team,
        "clock": bed.clock,
    }
    return calibrate_workers(ONE_NODE, FITTED, HELD_OUT, **{**options, **changes})  # type: ignore[arg-type]


def test_models_kept_back_are_forecast_as_they_run() -> None:
    outcome = run(TestBed())
    assert outcome.after.mean < 0.01 < outcome.before.mean
    assert outcome.in_sample.mean < 0.01
    assert outcome.noise == pytest.approx(0.0, abs=1e-9)
    assert set(outcome.by_setting) == {"2x1gbit", "4x1gbit"}
    assert outcome.after.num_cases == len(HELD_OUT) * len(SETTINGS)
    assert {step.setting for step in outcome.checked} == set(outcome.by_setting)
    assert all(step.forecast_s == pytest.approx(step.seconds, rel=0.02) for step in outcome.checked)
    assert outcome.calibration.errors["steps_after"] == 0.07
    assert outcome.calibration.errors["workers_after"] == outcome.after.mean
    assert outcome.calibration.collectives["all_reduce"].num_measurements == outcome.num_steps


def test_the_budget_pays_for_fitted_steps_only() -> None:
    bed = TestBed()
    outcome = run(bed)
    names = {load.experiment.name for load in FITTED}
    visits = [name for _, name, _ in bed.log if name in names]
    assert outcome.measuring_s == 2.0 * len(visits) == 80.0
    assert outcome.num_steps == len(visits) == 40
    assert bed.now_s > 80.0


def test_a_fitted_step_is_visited_once_in_a_setting_and_settings_begin_with_different_ones() -> None:
    bed = TestBed()
    run(bed, budget_s=1e6)
    names = {load.experiment.name for load in FITTED}
    visits = [(setting, name) for setting, name, _ in bed.log if name in names]
    assert len(visits) == len(set(visits)) == len(FITTED) * len(SETTINGS)
    first = {setting: next(name for where, name in visits if where == setting) for setting in ("2x1gbit", "4x1gbit")}
    assert first["2x1gbit"] != first["4x1gbit"]


def test_steps_kept_back_come_in_every_round_between_fitted_ones() -> None:
    bed = TestBed()
    run(bed)
    kept = {load.experiment.name for load in HELD_OUT}
    for setting in ("2x1gbit", "4x1gbit"):
        for name in kept:
            times = [at for where, who, at in bed.log if (where, who) == (setting, name)]
            assert len(times) == 4
            # The second pass over the settings is another moment of the machine.
            assert times[2] - times[1] > 20.0
    runs = "".join("k" if name in kept else "f" for _, name, _ in bed.log)
    assert "kkk" not in runs


def test_a_drift_that_all_share_is_not_taken_for_an_error_of_the_fit() -> None:
    steady, drifting = run(TestBed()), run(TestBed(drift=0.15))
    assert drifting.noise is not None
    assert drifting.noise > 0.03
    assert drifting.after.mean < 0.08
    assert steady.after.mean < drifting.after.mean


def test_a_step_that_cannot_run_is_named_and_left_out() -> None:
    broken = HELD_OUT[0].experiment.name
    outcome = run(TestBed(broken=broken))
    assert outcome.after.num_cases == (len(HELD_OUT) - 1) * len(SETTINGS)
    assert set(outcome.unmeasured) == {ddp_experiment(HELD_OUT[0], setting).key for setting in SETTINGS}


def test_what_is_missing_is_said() -> None:
    with pytest.raises(InvalidInput, match="one of them is missing"):
        calibrate_workers(
            ONE_NODE, FITTED, [], settings=SETTINGS, open_team=TestBed().open_team, budget_s=1.0
        )  # fmt: skip
    with pytest.raises(InvalidInput, match="has no graph"):
        synced_step(replace(FITTED[0], graph=None), SETTINGS[0], ONE_NODE, 1.0)


def test_gradients_are_counted_as_often_as_their_layer_repeats() -> None:
    graph = make_mlp(width=32, layers=5)
    assert gradients_of(graph) == (4.0 * 32 * 32 * 5, 5)


def on(graph: Graph, *, num_ranks: int, speed: float, calibration: MachineRates) -> float:
    device = Device(name="core", memory_bytes=1e10, memory_bytes_per_s=4e9, vector_flop_per_s={"fp32": 2e9})
    link = Link(name="l", bytes_per_s=1.25e8, latency_s=0.0, kind="ethernet")
    group = NodeGroup(device=device, num_nodes=num_ranks, devices_per_node=1, intra=link, inter=link, speed=speed)
    plan = Parallelism(data=num_ranks, overlap=False)
    costs = Calibrated(rates=calibration)
    return forecast(Job(graph=graph), Cluster(name="c", groups=(group,)), plan, costs=costs).step.seconds


def test_the_calibration_makes_forecasts_of_several_ranks_and_leaves_those_of_a_whole_core_alone() -> None:
    calibration = run(TestBed()).calibration
    load = HELD_OUT[0]
    assert load.graph is not None
    for setting in SETTINGS:
        truth = TRUTH.seconds(synced_step(load, setting, ONE_NODE, 1.0))
        found = on(load.graph, num_ranks=setting.num_ranks, speed=0.25, calibration=calibration)
        assert found == pytest.approx(truth, rel=0.02)
    alone = on(load.graph, num_ranks=1, speed=1.0, calibration=calibration)
    assert alone == pytest.approx(ONE_NODE.step_seconds(load.ops, load.counts), rel=1e-6)


@pytest.mark.parametrize(("name", "said"), [("9x1gbit", "unknown setting"), ("1xnone", "synchronises nothing")])
def test_a_test_bed_that_cannot_be_calibrated_is_refused_before_anything_is_measured(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "m.db"
    assert main(["calibrate", "--testbed", name, "--store", str(store)]) == 2
    assert said in capsys.readouterr().err
    assert not store.exists()


def test_the_command_fits_what_may_run_on_the_test_bed_and_keeps_every_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import traincast.learn
    from traincast.cli.calibrate import _synchronise

    bed = TestBed()

    @contextmanager
    def team(setting: Setting, *, store: Store) -> Iterator[Visit]:
        with bed.open_team(setting) as visit:

            def kept(experiment: Experiment) -> Block | None:
                block = visit(experiment)
                if block is not None:
                    store.append(experiment, ONE_NODE.environment, block)
                return block

            yield kept

    monkeypatch.setattr(traincast.learn, "team_on_testbed", team)
    too_large = replace(FITTED[0], experiment=replace(FITTED[0].experiment, name=sorted(TOO_LARGE)[0]))
    candidates = Candidates(loads=(too_large, *FITTED), held_out=tuple(HELD_OUT[:2]))
    outcome = _synchronise(ONE_NODE, candidates, SETTINGS, tmp_path / "m.db", 60.0)
    assert outcome.num_steps == len(FITTED) * len(SETTINGS)
    assert outcome.after.mean < 0.02
    with Store(tmp_path / "m.db", create=False) as kept:
        assert {found.experiment.attrs["num_ranks"] for found in kept.measurements(subject="step")} == {2, 4}


def test_a_calibration_kept_before_overlap_was_known_forecasts_as_it_did(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    save_calibration(Calibration(name="old", machine=run(TestBed()).calibration), path)
    data = json.loads(path.read_text())
    del data["calibration"]["machine"]["collectives"]["all_reduce"]["overlap_exponent"]
    path.write_text(json.dumps(data))
    rates = rates_of(path).collectives["all_reduce"]
    # One megabyte at 125 MB/s and its CPU time on a quarter of a core, one after the other.
    carried_s = 1e6 / (1.25e8 * (rates.link_efficiency or 1.0))
    found = collective_seconds(rates, num_ranks=2, num_bytes=1e6, link_bytes_per_s=1.25e8, speed=0.25)
    assert found == pytest.approx(rates.call_s + 2 * rates.hop_s + carried_s + rates.cpu_s_per_byte * 1e6 / 0.25)
