"""PredictDDL's comparison on a corpus whose times we made up, so that we know who must win."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from builders import make_mlp
from research.corpus import Corpus, CorpusStep
from research.papers.predictddl import (
    ERNEST,
    ERNEST_POOLED,
    ERNEST_WORKLOAD,
    OURS,
    Row,
    compare,
    design_jobs,
    ranks_of,
    time_to_forecast,
)
from traincast.errors import InvalidInput
from traincast.profile._settings import SETTINGS
from traincast.spec._graph import Graph


@cache
def _corpus() -> Corpus:
    """Steps of a machine with 20 GFLOP/s a core and links as they are."""
    graphs: dict[tuple[str, int], Graph] = {}
    steps = []
    for family, layers in (("deep", 6), ("flat", 2)):
        for width in (64, 128, 256, 512):
            for batch in (4, 16):
                name = f"{family}(width={width})"
                graph = replace(make_mlp(layers=layers, width=width, batch=batch, folded=False), name=name)
                graphs[name, batch] = graph
                for setting in SETTINGS:
                    nodes = setting.nodes
                    share, rate = min(node.cpu_share for node in nodes), min(node.bits_per_s for node in nodes)
                    wire = 2 * (len(nodes) - 1) / len(nodes) * graph.role_bytes("parameter") * 8 / rate
                    seconds = 2e-3 + graph.flop / 20e9 / share + wire
                    steps.append(
                        CorpusStep(
                            name=name, batch=batch, setting=setting, seconds=seconds, cpu_seconds=None, noise=None, resources={}
                        )
                    )  # fmt: skip
    return Corpus(steps=tuple(steps), operators=(), graphs=graphs)


@cache
def _rows() -> dict[tuple[str, str], Row]:
    rows = compare(_corpus(), seeds=(0,), fast=True)
    return {(row.split, row.method): row for row in rows if row.workloads == "all"}


def test_every_split_is_answered_by_ours_and_by_ernest() -> None:
    splits = {split for split, _ in _rows()}
    assert splits == {"leave-architecture-out", "leave-family-out", "random", "leave-scale-out", "leave-network-out"}
    for split in splits:
        assert {OURS, ERNEST, ERNEST_WORKLOAD, ERNEST_POOLED} <= {method for own, method in _rows() if own == split}


def test_ours_carries_physics_to_architectures_that_never_ran() -> None:
    assert _rows()["leave-architecture-out", OURS].mean < 0.1


def test_ernest_is_at_its_best_with_runs_of_the_same_network() -> None:
    by_network, by_workload, pooled = (
        _rows()["leave-architecture-out", method].mean for method in (ERNEST, ERNEST_WORKLOAD, ERNEST_POOLED)
    )
    assert by_network < 0.2 < min(by_workload, pooled)


def test_a_ratio_is_the_error_over_ours_and_ours_over_itself_is_one() -> None:
    for (_, method), row in _rows().items():
        assert row.best_ratio >= row.ratio * 0.99
        if method == OURS:
            assert row.ratio == pytest.approx(1.0)


def test_only_the_largest_scale_is_asked_when_scales_are_left_out() -> None:
    most = sum(step.setting.num_ranks == 4 for step in _corpus().steps)
    assert _rows()["leave-scale-out", OURS].num_rows == most


def test_a_forecast_of_ernest_is_never_one_of_its_own_runs() -> None:
    steps = _corpus().steps
    jobs = design_jobs(steps, lambda step: step.setting.network)
    assert jobs
    for candidates, chosen in jobs:
        assert 0 < len(chosen) < len(candidates)
        assert len({steps[place].name for place in candidates}) == 1
    sampled = sum(len(candidates) - len(chosen) for candidates, chosen in jobs)
    assert _rows()["leave-architecture-out", ERNEST].num_rows <= sampled


def test_ranks_are_the_slowest_of_a_setting() -> None:
    mixed = next(step for step in _corpus().steps if step.setting.name == "4xmixed")
    ranks = ranks_of(mixed)
    assert (ranks.num_ranks, ranks.bits_per_s, ranks.share) == (4, 2e8, 0.15)


def test_times_to_a_forecast_count_ten_steps_of_each_run_of_ernest() -> None:
    speed = time_to_forecast(_corpus(), num_captures=0)
    steps = _corpus().steps
    sampled = [
        10 * sum(steps[candidates[index]].seconds for index in chosen)
        for candidates, chosen in design_jobs(steps, lambda step: step.setting.network)
    ]
    assert speed.ernest_s == pytest.approx(float(np.mean(sampled)))
    assert speed.capture_s is None
    assert speed.predict_s > 0
    assert math.isfinite(speed.ratio)


def test_one_architecture_is_too_few_to_leave_one_out() -> None:
    whole = _corpus()
    one = [step for step in whole.steps if step.name == whole.steps[0].name]
    with pytest.raises(InvalidInput, match="at least two"):
        compare(replace(whole, steps=tuple(one)))
