"""Rounds interleave, a broken run resumes, a failing subject is named once, and every repeat is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InvalidInput
from traincast.profile._protocol import Progress, Protocol, Running, Subject, Visit, measure
from traincast.spec import Block, Environment, Experiment, Measurement
from traincast.spec._measurement import relative_spread

QUICK = Protocol(
    num_rounds=3, block_s=0.0, min_repeats=4, max_repeats=4, warm_up_runs=1, warm_up_s=0.0, min_repeat_s=0.0
)


def subject(name: str, run: object = None) -> Subject:
    experiment = Experiment(subject="operator", name=name)
    return Subject(experiment=experiment, prepare=lambda: Running(run=run or (lambda: None)))  # type: ignore[arg-type]


def names(visits: list[Visit]) -> list[str]:
    return [visit.experiment.name for visit in visits]


def test_every_subject_is_visited_once_per_round_before_any_is_visited_again() -> None:
    visits = list(measure([subject(name) for name in "abcd"], protocol=QUICK))
    rounds = [sorted(names(visits)[start : start + 4]) for start in (0, 4, 8)]
    assert rounds == [list("abcd")] * 3


def test_the_order_differs_between_rounds_and_is_the_same_for_the_same_seed() -> None:
    subjects = [subject(name) for name in "abcdefgh"]
    order = names(list(measure(subjects, protocol=QUICK)))
    assert order[:8] != order[8:16]
    assert order == names(list(measure(subjects, protocol=QUICK)))


def test_a_block_keeps_every_repeat_with_wall_time_cpu_time_and_switches() -> None:
    (visit, *_) = measure([subject("a", lambda: sum(range(2000)))], protocol=QUICK, canary=lambda: 0.5)
    assert visit.block is not None
    assert len(visit.block.wall_s) == len(visit.block.cpu_s) == len(visit.block.switches) == 4
    assert visit.block.canary_s == 0.5
    assert all(seconds > 0 for seconds in visit.block.wall_s)


def test_a_resumed_run_makes_only_the_blocks_that_are_missing() -> None:
    done = {"a": 3, "b": 1, "c": 0}
    visits = list(
        measure([subject(name) for name in "abc"], protocol=QUICK, num_done=lambda experiment: done[experiment.name])
    )
    assert sorted(names(visits)) == ["b", "b", "c", "c", "c"]


def test_a_subject_that_fails_is_reported_once_and_the_others_go_on() -> None:
    def fail() -> None:
        raise RuntimeError("no kernel for this\nsecond line")

    visits = list(measure([subject("good"), subject("bad", fail)], protocol=QUICK))
    failures = [visit for visit in visits if visit.block is None]
    assert [visit.failure for visit in failures] == ["no kernel for this"]
    assert names(visits).count("good") == 3


def test_a_run_shorter_than_the_clock_can_tell_is_grouped_and_reported_per_run() -> None:
    calls = 0

    def run() -> None:
        nonlocal calls
        calls += 1

    protocol = Protocol(
        num_rounds=1, block_s=0.0, min_repeats=2, max_repeats=2, warm_up_runs=1, warm_up_s=0.0, min_repeat_s=1e-4
    )
    (visit,) = measure([subject("tiny", run)], protocol=protocol)
    assert visit.block is not None
    assert calls > 2 * 10
    assert max(visit.block.wall_s) < 1e-4


def test_the_remaining_time_is_unknown_before_the_first_visit_and_zero_after_the_last() -> None:
    progress = Progress(total=0)
    seen = []
    for _ in measure([subject("a"), subject("b")], protocol=QUICK, progress=progress):
        seen.append((progress.done, progress.remaining_s))
    assert Progress(total=3).remaining_s is None
    assert [done for done, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[-1][1] == 0.0
    assert all(remaining is not None and remaining >= 0 for _, remaining in seen)


def test_the_remaining_time_uses_what_each_experiment_cost_before() -> None:
    progress = Progress(total=4)
    progress.expect("slow", 2)
    progress.expect("fast", 2)
    progress.finish("slow", 10.0)
    progress.finish("fast", 1.0)
    assert progress.remaining_s == pytest.approx(11.0)


def test_a_protocol_that_measures_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one round"):
        Protocol(num_rounds=0)


@given(good=st.floats(0.5, 2.0), outliers=st.lists(st.floats(3.0, 100.0), max_size=2))
def test_up_to_two_disturbed_blocks_in_seven_do_not_move_the_result(good: float, outliers: list[float]) -> None:
    blocks = [good] * (7 - len(outliers)) + outliers
    measurement = Measurement(
        experiment=Experiment(subject="step", name="x"),
        environment=Environment(device="cpu"),
        blocks=tuple(Block(started_at="", wall_s=(seconds,)) for seconds in blocks),
    )
    assert measurement.seconds == good
    assert measurement.spread == 0.0


@given(values=st.lists(st.floats(0.1, 10.0), min_size=2, max_size=9), factor=st.floats(0.01, 100.0))
def test_spread_is_relative_so_units_do_not_matter(values: list[float], factor: float) -> None:
    first, second = relative_spread(values), relative_spread([value * factor for value in values])
    assert first == pytest.approx(second, rel=1e-6, abs=1e-9)


def test_the_noise_of_a_single_block_is_unknown_not_zero() -> None:
    measurement = Measurement(
        experiment=Experiment(subject="step", name="x"),
        environment=Environment(device="cpu"),
        blocks=(Block(started_at="", wall_s=(1.0, 2.0)),),
    )
    assert measurement.spread is None
    assert measurement.noise is None


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"wall_s": ()}, "no repeat"),
        ({"wall_s": (-1.0,)}, "finite and >= 0"),
        ({"wall_s": (1.0, 2.0), "cpu_s": (1.0,)}, "give one each"),
    ],
)
def test_a_block_that_cannot_be_is_refused(fields: dict[str, tuple[float, ...]], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Block(started_at="", **fields)  # type: ignore[arg-type]
