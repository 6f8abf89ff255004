import pytest

from builders import make_cluster, make_device
from traincast.catalog._workloads import from_shape
from traincast.errors import InvalidInput
from traincast.forecast import forecast
from traincast.plan._capacity import SizedJob, can_grow, largest_batch, longest_sequence, suggest_changes
from traincast.spec import Cluster, Job, Parallelism

ALONE = Parallelism()


def pose(batch: int, seq: int | None, plan: Parallelism) -> Job:
    graph = from_shape(
        arch="llama", n_layers=6, hidden=512, heads=8, vocab=8192, seq=seq or 256, batch=batch, precision="bf16",
        recompute=plan.recompute, name="small",
    )  # fmt: skip
    return Job(graph=graph)


def cluster_of(memory_bytes: float, *, devices: int = 1) -> Cluster:
    return make_cluster(devices_per_node=devices, device=make_device(memory_bytes=memory_bytes))


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    cluster = cluster_of(8e9)
    limit = largest_batch(pose, cluster, ALONE, confidence=0.9)
    assert limit.size > 1
    assert limit.answer is not None
    assert limit.answer.memory.fit_probability >= 0.9
    assert forecast(pose(limit.size + 1, None, ALONE), cluster, ALONE).memory.fit_probability < 0.9


def test_more_confidence_never_allows_a_larger_batch() -> None:
    sizes = [largest_batch(pose, cluster_of(8e9), ALONE, confidence=sure).size for sure in (0.5, 0.9, 0.99)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_a_larger_device_never_allows_a_smaller_batch() -> None:
    sizes = [largest_batch(pose, cluster_of(size), ALONE).size for size in (4e9, 8e9, 16e9)]
    assert sizes == sorted(sizes)


def test_nothing_fits_on_a_device_that_is_too_small() -> None:
    limit = largest_batch(pose, cluster_of(1e8), ALONE)
    assert (limit.size, limit.answer) == (0, None)


def test_the_longest_sequence_is_a_multiple_that_fits() -> None:
    cluster = cluster_of(8e9)
    limit = longest_sequence(pose, cluster, ALONE, batch=2, confidence=0.9)
    assert limit.size % 128 == 0
    assert limit.answer is not None
    assert limit.answer.memory.fit_probability >= 0.9
    assert forecast(pose(2, limit.size + 128, ALONE), cluster, ALONE).memory.fit_probability < 0.9


@pytest.mark.parametrize("confidence", [0.0, 1.0, 1.5, -0.1])
def test_a_confidence_outside_its_range_is_refused(confidence: float) -> None:
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        largest_batch(pose, cluster_of(8e9), ALONE, confidence=confidence)


def test_advice_saves_memory_and_names_its_price() -> None:
    cluster = cluster_of(2e9)
    now = forecast(pose(64, None, ALONE), cluster, ALONE)
    changes = suggest_changes(pose, cluster, ALONE, batch=64)
    assert changes
    assert all(change.peak_bytes < now.memory.peak_bytes for change in changes)
    whole_layers = next(change for change in changes if change.name == "full activation checkpointing")
    assert whole_layers.seconds_ratio > 1


def test_a_micro_batch_is_halved_until_it_fits() -> None:
    cluster = cluster_of(8e9)
    most = largest_batch(pose, cluster, ALONE).size
    wanted = 7 * most
    changes = suggest_changes(pose, cluster, ALONE, batch=wanted)
    smaller = next(change for change in changes if change.name.startswith("micro-batch"))
    assert smaller.fits
    assert most / 2 < smaller.batch <= most
    assert smaller.plan.micro_batches * smaller.batch >= wanted


def test_advice_that_makes_it_fit_comes_first_and_cheapest_first() -> None:
    cluster = cluster_of(8e9)
    most = largest_batch(pose, cluster, ALONE).size
    changes = suggest_changes(pose, cluster, ALONE, batch=most + 8)
    fitting = [change.fits for change in changes]
    assert fitting == sorted(fitting, reverse=True)
    assert fitting[0]
    prices = [change.seconds_ratio for change in changes if change.fits]
    assert prices == sorted(prices)


def test_changes_are_combined_and_named_once_where_one_is_not_enough() -> None:
    cluster = cluster_of(1.95e9, devices=4)
    plan = Parallelism(data=4)
    changes = suggest_changes(pose, cluster, plan, batch=64)
    assert changes[0].fits
    parts = [part.split(" ")[0] for part in changes[0].name.split(" + ")]
    assert len(parts) == len(set(parts)) > 1, "each thing is named once and as it is in the end"
    assert f"micro-batch {changes[0].batch} instead of 64" in changes[0].name
    again = forecast(pose(changes[0].batch, None, changes[0].plan), cluster, changes[0].plan)
    assert again.memory.peak_bytes == changes[0].peak_bytes


def test_experts_may_be_spread_where_there_are_some() -> None:
    def pose_experts(batch: int, seq: int | None, plan: Parallelism) -> Job:
        graph = from_shape(
            arch="llama", n_layers=2, hidden=256, heads=4, vocab=1024, seq=seq or 128, batch=batch, precision="bf16",
            experts=8, experts_per_token=2, moe_ffn=1024, recompute=plan.recompute, name="mixture",
        )  # fmt: skip
        return Job(graph=graph)

    def names(build: SizedJob) -> list[str]:
        cluster, plan = cluster_of(1e9, devices=4), Parallelism(data=4)
        need = forecast(build(8, None, plan), cluster, plan).memory
        room = cluster_of(need.needed_bytes / need.capacity_bytes * 1e9, devices=4)
        changes = suggest_changes(build, room, plan, batch=8, confidence=0.52)
        return [change.name for change in changes]

    assert "expert parallelism 2" in names(pose_experts)
    assert not any("expert" in name for name in names(pose))


def test_only_models_of_tokens_have_a_length_to_choose() -> None:
    assert can_grow(pose, ALONE, batch=1)

    def fixed(batch: int, seq: int | None, plan: Parallelism) -> Job:
        if seq is not None:
            raise InvalidInput("this model has no sequence")
        return pose(batch, None, plan)

    assert not can_grow(fixed, ALONE, batch=1)
