"""Known workloads as points: the nearest of one, how far it is from all of them, and how far intervals widen with that."""

from functools import cache

import pytest

from builders import make_mlp
from traincast.catalog import workload
from traincast.design import d_optimal
from traincast.embed._encoder import load_encoder
from traincast.embed._known import KnownWorkload, WorkloadAtlas, draw_atlas, load_atlas, widen
from traincast.embed._summary import Summary, summarize


@cache
def _summaries() -> list[Summary]:
    encoder = load_encoder()
    return [
        summarize(make_mlp(layers=layers, width=width, batch=batch, folded=False), encoder=encoder)
        for layers in (2, 3, 4, 6) for width in (64, 128, 256, 512) for batch in (4, 16)
    ]  # fmt: skip


def _atlas() -> tuple[WorkloadAtlas, list[Summary]]:
    summaries = _summaries()
    known = [
        KnownWorkload(
            name=f"mlp{number}",
            source="corpus",
            dataset_type="vector",
            batch_size=each.batch_size,
            measured_s={"1xnone": 0.1},
        )
        for number, each in enumerate(summaries)
    ]
    return draw_atlas(known, summaries), summaries


def test_a_known_workload_is_its_own_nearest_and_at_distance_nought() -> None:
    atlas, summaries = _atlas()
    assert atlas.nearest(summaries[5], count=1)[0].workload.name == "mlp5"
    assert atlas.nearest(summaries[5], count=1)[0].distance == pytest.approx(0, abs=1e-9)
    assert atlas.distance(summaries[5]) == 0.0


def test_neighbours_come_closest_first_and_once_each() -> None:
    atlas, summaries = _atlas()
    found = atlas.nearest(summaries[0], count=6)
    distances = [each.distance for each in found]
    assert distances == sorted(distances)
    assert len({each.workload.name for each in found}) == 6


def test_what_is_unlike_all_known_is_farther_than_most() -> None:
    atlas, _ = _atlas()
    assert atlas.distance(summarize(make_mlp(layers=64, width=8192, batch=4096))) > 0.95


def test_mixed_precision_is_no_other_architecture() -> None:
    atlas = load_atlas()
    plain, mixed = (summarize(workload("vit-b16", batch=64, precision=precision)) for precision in ("fp32", "bf16-amp"))
    assert plain.mix.keys() == mixed.mix.keys()
    assert atlas.nearest(mixed, count=1)[0].workload.name == "vit-b16"
    assert atlas.farness(mixed) < 1.0


def test_intervals_widen_only_beyond_the_ordinary() -> None:
    assert widen(0.0) == widen(1.0) == 1.0
    assert widen(1.5) == 1.5
    assert widen(9.0) == 2.0


def test_whole_workloads_are_chosen_by_d_optimal_design_in_this_space() -> None:
    atlas, summaries = _atlas()
    chosen = d_optimal(atlas.features(summaries), budget=8)
    assert len(set(chosen)) == 8
    sizes = {(round(float(summaries[row].traits[3]), 3), summaries[row].batch_size) for row in chosen}
    assert len(sizes) >= 6  # spread over sizes and batches, not eight of one sort
