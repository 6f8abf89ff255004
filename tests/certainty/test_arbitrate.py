"""What is unlike every known workload has a wider interval, and says what to measure."""

import math
from dataclasses import replace

import pytest

from tests.builders import make_cluster, make_mlp
from traincast import catalog
from traincast.certainty._arbitrate import choose_answer, measure_novelty
from traincast.forecast import forecast
from traincast.forecast._assemble import stretch
from traincast.spec import Estimate, Job


def spread(step: Estimate) -> float:
    return math.log(step.high_s / step.low_s)


def test_what_the_catalogue_builds_by_name_is_familiar_at_any_batch() -> None:
    for batch in (1, 512):
        assert measure_novelty(catalog.workload("resnet50", batch=batch)) == 0.0
        renamed = replace(catalog.workload("resnet50", batch=batch), name="mine")
        assert measure_novelty(renamed) < 1.5


def test_far_from_everything_known_the_interval_is_wider_and_measuring_is_advised() -> None:
    graph = make_mlp(layers=64, width=8192, batch=4096)
    assert measure_novelty(graph) > 1.2
    step = Estimate(seconds=1.0, low_s=0.9, high_s=1.2)
    answer = choose_answer(graph, step)
    assert answer.step.seconds == 1.0
    assert spread(answer.step) > 1.2 * spread(step)
    assert "traincast profile operators" in answer.notes[0]
    assert "traincast design" in answer.notes[0]


def test_words_and_promises_of_what_is_unlike_everything_known_have_the_width_of_its_interval() -> None:
    job = Job(graph=make_mlp(layers=64, width=8192, batch=4096), stack=catalog.stack("lightning"))
    answer = forecast(job, make_cluster())
    low, high = (end / answer.step.seconds - 1 for end in (answer.step.low_s, answer.step.high_s))
    said = next(note for note in answer.notes if note.startswith("90% interval"))
    assert f"{low:+.0%} to {high:+.0%}" in said
    assert "unlike every workload we know" in said
    assert answer.narrowing
    for one in answer.narrowing:
        assert one.width_now == pytest.approx(high - low)
        assert one.width_after == pytest.approx(one.after[1] - one.after[0])
        assert one.width_after < one.width_now


def test_a_stretched_timeline_keeps_its_shares() -> None:
    timeline = forecast(Job(graph=make_mlp()), make_cluster(nodes=2), draw=True).timeline
    slow = stretch(timeline, 3.0)
    assert slow.duration_s == pytest.approx(3 * timeline.duration_s)
    assert slow.shares == timeline.shares
    assert [span.end_s for span in slow.spans] == pytest.approx([3 * span.end_s for span in timeline.spans])
