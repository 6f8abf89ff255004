"""The comparison on the twelve numbers: splits, errors, ranges and the noise of labels, on runs made up by hand."""

from dataclasses import replace

import numpy as np
import pytest

from builders import make_mlp
from research.corpus import CorpusStep, read_resources
from research.corpus.plan import HEAP_RELEASED
from research.fits.resources.network import Training
from research.papers.driple import (
    NAMES,
    Measured,
    TransferPoint,
    coverage,
    errors_of,
    find_ranges,
    fit_method,
    fit_network,
    label_noise,
    mean_over_targets,
    predict_left_out,
    relative_error,
    repeat_noise,
    saved_times,
    summarise,
)
from traincast.profile._settings import SETTINGS
from traincast.resources._adapt import adapt
from traincast.resources._correction import read_nodes
from traincast.resources._learned import Place, Run, count_work
from traincast.spec._measurement import Block


def make_row(name: str, setting: str, *, factor: float = 1.0) -> Measured:
    where = next(each for each in SETTINGS if each.name == setting)
    graph = make_mlp(width=32 * (1 + sum(map(ord, name)) % 7))
    nodes = read_nodes(graph, count_work(graph))
    machine = where.nodes[0]
    place = Place(
        num_ranks=where.num_ranks, bytes_per_s=machine.bits_per_s / 8, narrowest_bytes_per_s=machine.bits_per_s / 8,
        speed=machine.cpu_share, slowest=machine.cpu_share,
    )  # fmt: skip
    twelve = {each: factor * (0.05 if each.endswith("_s") else 2.0) for each in NAMES}
    step = CorpusStep(
        name=name, batch=4, setting=where, seconds=0.1 * factor, cpu_seconds=None, noise=None, resources={}
    )
    return Measured(step=step, run=Run(work=nodes.work, place=place, step_s=0.1 * factor, twelve=twelve), nodes=nodes)


def test_a_time_of_nothing_is_judged_against_a_tenth_of_the_step() -> None:
    assert relative_error("gpu_idle_s", predicted=0.01, measured=0.0, step_s=0.1) == pytest.approx(1.0)
    assert relative_error("sent_peak", predicted=3.0, measured=2.0, step_s=0.1) == pytest.approx(0.5)


def test_the_network_numbers_of_one_rank_do_not_count() -> None:
    rows = [make_row("a", "1xnone"), make_row("a", "2x1gbit")]
    errors = errors_of(rows, [row.run.twelve for row in rows])
    assert (len(errors["gpu_peak"]), len(errors["sent_peak"])) == (2, 1)
    assert mean_over_targets(summarise(errors)) == 0


def test_equal_measurements_in_neighbouring_settings_have_no_noise_and_a_known_spread_is_found() -> None:
    quiet = [make_row(name, setting) for name in "abcdef" for setting in ("2x1gbit", "2x10gbit")]
    assert mean_over_targets(label_noise(quiet)) == pytest.approx(0)
    random = np.random.default_rng(0)
    noisy = [
        make_row(f"model{number}", setting, factor=float(np.exp(0.1 * random.normal())))
        for number in range(300) for setting in ("2x1gbit", "2x10gbit")
    ]  # fmt: skip
    # The mean distance of a normal variable from its middle is 0.8 of its standard deviation.
    assert mean_over_targets(label_noise(noisy)) == pytest.approx(0.08, rel=0.15)


def visited(row: Measured, factors: list[float], *, neighbours: float = 0.1) -> Measured:
    """The row with visits whose twelve numbers were so many times the label's."""
    blocks = tuple(
        Block(
            started_at=f"2026-11-16T10:{minute:02}:00+00:00",
            wall_s=(0.1,),
            resources={
                HEAP_RELEASED: 1.0,
                "neighbours_cpu_share": neighbours,
                **{f"rank0_{name}": factor * value for name, value in row.run.twelve.items()},
            },
        )
        for minute, factor in enumerate(factors)
    )
    return replace(row, step=replace(row.step, blocks=blocks))


def test_the_noise_of_a_label_of_four_visits_is_half_that_of_one() -> None:
    random = np.random.default_rng(0)
    rows = [
        visited(make_row(f"model{number}", "2x1gbit"), np.exp(0.1 * random.normal(size=4)).tolist())
        for number in range(300)
    ]
    assert mean_over_targets(repeat_noise(rows)) == pytest.approx(0.08 / 2, rel=0.15)


def test_visits_beside_busy_neighbours_do_not_count_where_there_are_others() -> None:
    row = make_row("a", "2x1gbit")
    calm, busy = visited(row, [1.0] * 3).step.blocks, visited(row, [5.0], neighbours=1.5).step.blocks
    both = replace(row, step=replace(row.step, blocks=(*busy, *calm)))
    assert read_resources(both.step.blocks) == [dict(block.resources) for block in calm]
    assert read_resources(busy) == [dict(block.resources) for block in busy]
    assert mean_over_targets(repeat_noise([both])) == 0


def test_resident_memory_of_ranks_that_kept_that_of_earlier_steps_is_unknown() -> None:
    names = {"rank0_memory_peak": 0.5, "rank0_rss_peak_bytes": 1e8, "rank0_gpu_peak": 0.9}
    kept = Block(started_at="", wall_s=(1.0,), resources=names)
    assert read_resources([kept]) == [{"rank0_gpu_peak": 0.9}]
    released = replace(kept, resources={**names, HEAP_RELEASED: 1.0})
    assert set(names) < set(read_resources([released])[0])


def test_a_number_that_was_not_measured_judges_nobody_and_teaches_nothing() -> None:
    row = make_row("a", "2x1gbit")
    unknown = replace(row, run=replace(row.run, twelve={**row.run.twelve, "memory_peak": float("nan")}))
    assert errors_of([unknown], [row.run.twelve])["memory_peak"] == []
    rows = [make_row(name, "2x1gbit", factor=1.0 + 0.1 * number) for number, name in enumerate("abcdefgh")]
    half = [unknown if number % 2 else each for number, each in enumerate(rows)]
    for method in ("process", "network"):
        answer = fit_method(method, half, training=Training(num_epochs=2, num_members=1))(row.nodes, row.run.place)
        assert all(np.isfinite(value) for value in answer.values())
    few = adapt(fit_network(half, training=Training(num_epochs=2, num_members=1)), [(unknown.nodes, unknown.run)])
    assert np.isfinite(few.shifts["memory_peak"])


def test_ranges_hold_nine_of_ten() -> None:
    random = np.random.default_rng(1)
    rows = [make_row(f"model{number}", "2x1gbit", factor=float(np.exp(0.3 * random.normal()))) for number in range(300)]
    answers = [make_row("any", "2x1gbit").run.twelve for _ in rows]
    assert coverage(rows, answers, find_ranges(rows, answers)) == pytest.approx(0.9, abs=0.02)


def test_who_answers_has_not_seen_the_architecture() -> None:
    rows = [make_row(f"model{number}", "2x1gbit") for number in range(12)]
    odd = replace(rows[0], run=replace(rows[0].run, step_s=1000.0))
    told, untold = (
        predict_left_out([first, *rows[1:]], split="architecture", method="process")[0] for first in (odd, rows[0])
    )
    assert told == pytest.approx(untold)
    assert predict_left_out(rows, split="architecture", method="physics")[3].keys() == set(NAMES)


def test_what_transfer_saves_is_counted_in_seconds_at_equal_error() -> None:
    def point(num_samples: int, seconds: float, ours: float, theirs: float) -> TransferPoint:
        return TransferPoint(
            setting="new", num_samples=num_samples, seconds=seconds, with_transfer=ours, scratch_seconds=3 * seconds,
            from_scratch=theirs,
        )  # fmt: skip

    points = [point(0, 0.0, 0.4, float("nan")), point(2, 1.0, 0.3, 0.8), point(20, 10.0, 0.28, 0.3)]
    assert saved_times(points, num_samples=20) == pytest.approx(30.0)
    assert saved_times(points, num_samples=2) == float("inf")
    assert saved_times([*points[:1], point(20, 10.0, 0.4, 0.3)], num_samples=20) == 0.0
