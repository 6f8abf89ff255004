"""ScaleDL's comparison on GPU steps: what is left out stays out, and every method does what it says."""

import math
from dataclasses import replace

import numpy as np
import pytest

from research.baselines.layers import total
from research.papers.compare import score
from research.papers.gpu_steps import (
    CASES,
    WORKLOADS,
    GpuStep,
    devices_without,
    graph_of,
    study,
    was_measured,
)
from research.papers.gpus import (
    FIVE,
    INTERACTION,
    LAYER_SUM,
    OURS,
    Fold,
    additive,
    answer_folds,
    black_box,
    corrected,
    make_folds,
    part,
    teach,
    wave_scaling,
    with_own_steps,
)
from traincast import catalog
from traincast.accuracy._cases import Case, Measured
from traincast.cost._pricing import default_ops


def case(model: str, gpu: str, *, batch: float = 16.0, framework: str = "nvidia-dle-pytorch(lambda)") -> Case:
    return Case(
        case_id=f"{model}-{gpu}-{batch}", gpu=gpu, model=model, arch=model, dtype="fp32", framework=framework,
        mode="training_step", micro_batch=batch, global_batch=batch, n_gpus=1, optimizer="sgd",
    )  # fmt: skip


def steps(*asked: tuple[str, str, float], slower: float = 1.2) -> list[GpuStep]:
    """Each as long as the layers say, `slower` times."""
    found = study([Measured(case=case(m, g, batch=b), step_s=1.0) for m, g, b in asked], default_ops())
    return [
        replace(
            step, known=replace(step.known, step=replace(step.known.step, seconds=slower * step.answer()))
        )
        for step in found
    ]  # fmt: skip


@pytest.fixture(scope="module")
def few() -> list[GpuStep]:
    return steps(*((model, gpu, batch) for model in ("resnet50", "ssd300") for gpu in ("t4", "v100-sxm2-16g", "a100-sxm4-40g")
                   for batch in (16.0, 64.0)))  # fmt: skip


def test_a_chip_is_left_out_with_every_card_that_bears_it() -> None:
    found = make_folds(steps(("resnet50", "v100-sxm2-16g", 8.0), ("resnet50", "v100-sxm2-32g", 8.0),
                             ("resnet50", "t4", 8.0)), by="chip")  # fmt: skip
    volta = next(fold for fold in found if fold.name == "Volta GV100")
    assert len(volta.asked) == 2
    assert {step.case.gpu for step in volta.known} == {"t4"}


def test_no_step_is_known_and_asked(few: list[GpuStep]) -> None:
    for by in ("chip", "workload"):
        folds = make_folds(few, by=by)
        assert sorted(place for fold in folds for place in fold.places) == list(range(len(few)))
        for fold in folds:
            assert len(fold.known) + len(fold.asked) == len(few)
            labels = {step.chip if by == "chip" else step.workload for step in fold.known}
            assert fold.name not in labels


def test_amounts_in_units_of_a_device_are_its_seconds_at_best(few: list[GpuStep]) -> None:
    step = few[0]
    device, graph = catalog.device(step.case.gpu), graph_of(step.known)
    plain, scaled = (total(graph, device=each).linear.reshape(-1, 3).sum(axis=0) for each in (None, device))
    assert scaled[0] == plain[0]
    assert scaled[1] == pytest.approx(plain[1] / (device.peak_flop_per_s("fp32") or 0), rel=1e-6)
    assert scaled[2] == pytest.approx(plain[2] / device.memory_bytes_per_s)


def test_one_own_step_counts_half_and_two_count_two_thirds(few: list[GpuStep]) -> None:
    resnets = [step for step in few if step.case.model == "resnet50"]
    asked, known = resnets[:1], resnets[1:3]
    quarters = [step.seconds / 4 for step in known]
    assert with_own_steps(known[:1], quarters[:1], asked, [1.0]) == pytest.approx([math.sqrt(4)])
    assert with_own_steps(known, quarters, asked, [1.0]) == pytest.approx([4 ** (2 / 3)])


def test_steps_of_another_model_are_no_own_steps(few: list[GpuStep]) -> None:
    resnets, others = ([s for s in few if s.case.model == name] for name in ("resnet50", "ssd300"))
    assert with_own_steps(others, [1.0] * len(others), resnets, [3.0] * len(resnets)) == [3.0] * len(resnets)


def test_waves_carry_a_step_to_its_own_chip_unchanged_and_grow_with_the_batch(few: list[GpuStep]) -> None:
    known = next(step for step in few if step.case.gpu == "t4" and step.case.micro_batch == 16)
    twice = replace(known, case=replace(known.case, micro_batch=32.0))
    fold = Fold(name="x", known=(known,), asked=(known, twice), places=(0, 1))
    assert wave_scaling(fold) == pytest.approx([known.seconds, 2 * known.seconds])


def test_waves_need_a_step_of_the_same_model(few: list[GpuStep]) -> None:
    one, other = (next(step for step in few if step.case.model == name) for name in ("resnet50", "ssd300"))
    assert math.isnan(wave_scaling(Fold(name="x", known=(other,), asked=(one,), places=(0,)))[0])


def test_baselines_follow_steps_that_are_sums_of_their_layers(few: list[GpuStep]) -> None:
    weights = np.linspace(1.0, 2.0, len(few[0].totals.linear)) * np.tile(
        [1e-6, 1.5, 1.5], len(few[0].totals.linear) // 3
    )
    made = [
        replace(s, known=replace(s.known, step=replace(s.known.step, seconds=float(s.totals.linear @ weights))))
        for s in few
    ]
    fold = make_folds(made, by="chip")[0]
    for nonlinear in (False, True):
        found = np.array(additive(fold, nonlinear=nonlinear))
        assert np.abs(found / [step.seconds for step in fold.asked] - 1).max() < 0.25
    assert all(seconds > 0 for seconds in black_box(fold))


def test_the_network_learns_what_every_step_misses_and_changes_nothing_without_examples(few: list[GpuStep]) -> None:
    assert teach(few[:3], seed=0) is None
    assert corrected(few[0], None) == few[0].answer()
    many = [replace(step, chip=f"{step.chip} {place}") for place, step in enumerate(few)]
    network = teach(many, seed=0)
    assert network is not None
    before = np.mean([abs(step.answer() / step.seconds - 1) for step in few])
    after = np.mean([abs(corrected(step, network) / step.seconds - 1) for step in few])
    assert after < 0.7 * before


def test_a_method_that_answers_a_part_is_held_against_ours_on_that_part() -> None:
    ours, theirs = np.array([1.1, 4.0]), np.array([1.2, np.nan])
    first, second = score("t", "s", [1.0, 2.0], {"ours": [ours], "theirs": [theirs], "nothing": [np.full(2, np.nan)]})
    assert (first.num_rows, second.num_rows) == (2, 1)
    assert first.mean == pytest.approx((0.1 + 1.0) / 2)
    assert second.ratio == pytest.approx(0.2 / 0.1)
    assert second.rmse_ratio == pytest.approx(2.0)


def test_published_forecasts_stand_beside_the_steps_they_were_made_for(few: list[GpuStep]) -> None:
    found = [replace(step, peers_s={"neusight": 1.3 * step.seconds}) for step in few]
    ours = [np.array([1.1 * step.seconds for step in found])]
    lines = part(found, {"ours": ours}, "fp32", lambda _: True)
    assert [line.method for line in lines] == ["ours", "NeuSight, as published (has seen them)"]
    assert lines[1].ratio == pytest.approx(3.0)
    assert len(part(few, {"ours": ours}, "fp32", lambda _: True)) == 1


def test_every_method_answers_each_chip_that_is_left_out(few: list[GpuStep]) -> None:
    folds = [replace(fold, chip="") for fold in make_folds(few, by="chip")]
    answers = answer_folds(few, folds, seeds=(0,), say=lambda _: None)
    assert all(np.isfinite(found).all() for name, each in answers.items() for found in each if name != INTERACTION)
    # Every step is 1.2 times what the layers say, so three own steps of another chip take off most of it.
    truth = np.array([step.seconds for step in few])
    assert np.abs(answers[OURS][0] / truth - 1).max() < 0.05 < np.abs(answers[LAYER_SUM][0] / truth - 1).min()


def test_operators_of_a_left_out_chip_are_left_out_with_all_its_cards() -> None:
    assert was_measured("Ampere GA100")
    assert not was_measured("Hopper GH100")
    kept = devices_without("Ampere GA100")
    assert "v100-pcie-32g" in kept
    assert not {"a100-pcie-40g", "a100-pcie-80g"} & set(kept)


@pytest.mark.skipif(not CASES.is_file(), reason=f"the measured GPU steps are not here: {CASES}")
def test_the_five_workloads_are_among_the_visible_steps() -> None:
    from traincast.accuracy._cases import read_rows

    clean = {row["model"] for row in read_rows(CASES) if row["quality"] == "clean"}
    assert {WORKLOADS[model] for model in clean if model in WORKLOADS} == set(FIVE)
