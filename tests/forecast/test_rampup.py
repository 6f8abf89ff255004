"""Batches that grow, and weights that are gathered again inside a node."""

from typing import Any

import pytest

from traincast.errors import IllegalPlan, InvalidInput
from traincast.forecast._rampup import list_batches
from traincast.plan._ask import ask
from traincast.report._text import format_forecast
from traincast.spec import Forecast, Parallelism, Question, WorkloadOptions
from traincast.units import show_usd


def answer(
    *, job: dict[str, Any] | None = None, plan: dict[str, Any] | None = None, nodes: int = 1, link: str = ""
) -> Forecast:
    cluster: dict[str, Any] = {"device": "a100-80g", "nodes": nodes, "devices_per_node": 8}
    if link:
        cluster["inter"] = link
    return ask(
        Question(
            source="gpt2-xl", workload=WorkloadOptions(precision="bf16", batch=1, seq=1024), cluster=cluster,
            parallelism={"recompute": "none", "zero": 1, **(plan or {})}, job=job or {},
        )
    )  # fmt: skip


def test_a_batch_grows_in_whole_passes() -> None:
    assert list_batches(16, 64, 16, 8) == [16, 32, 48]
    assert list_batches(12, 64, 26, 8) == [16, 40]
    assert list_batches(64, 64, 16, 8) == []


def test_a_growing_batch_takes_more_steps_and_a_little_more_time_for_the_same_samples() -> None:
    plain = answer(job={"global_batch": 512, "samples": 1e6})
    grown = answer(
        job={"global_batch": 512, "samples": 1e6, "rampup_batch": 32, "rampup_increment": 32, "rampup_samples": 1e5}
    )
    sizes = range(32, 512, 32)
    early = sum(1e5 / 15 / size for size in sizes)
    assert grown.job.num_steps == pytest.approx(early + 9e5 / 512, abs=16)
    assert grown.step.seconds == plain.step.seconds
    assert plain.job.training_s < grown.job.training_s < 1.1 * plain.job.training_s
    assert any("the batch grows from 32 to 512" in note for note in grown.notes)


def test_a_given_number_of_steps_takes_less_time_while_the_batch_is_small() -> None:
    plain = answer(job={"global_batch": 512, "steps": 1000})
    grown = answer(job={"global_batch": 512, "steps": 1000, "rampup_batch": 32, "rampup_samples": 1e5})
    assert grown.job.num_steps == 1000
    assert grown.job.training_s < plain.job.training_s


def test_tokens_are_counted_as_the_small_batches_have_them() -> None:
    """Of 100 steps of 32, 64 ... samples none has the whole batch, and what a million tokens cost is told by what was seen."""
    grown = answer(
        job={"global_batch": 512, "steps": 100, "rampup_batch": 32, "rampup_increment": 32, "rampup_samples": 1e6}
    )
    assert grown.job.num_samples == 100 * 32
    assert answer(job={"global_batch": 512, "steps": 100}).job.num_samples == 100 * 512
    same = {"global_batch": 512, "samples": 1e5}
    whole = answer(job={**same, "rampup_batch": 32, "rampup_samples": 5e4})
    assert whole.job.num_samples == 1e5
    assert whole.job.num_steps * 512 > 1.2e5
    usd, tokens = whole.usd, 1e5 * 1024
    assert usd is not None
    assert f"{show_usd(usd.value / tokens * 1e6)} per million tokens" in format_forecast(whole)


def test_a_ramp_up_needs_its_samples() -> None:
    with pytest.raises(InvalidInput, match="rampup_samples"):
        answer(job={"rampup_batch": 32})


def test_weights_gathered_again_inside_a_node_cost_a_copy_and_spare_the_network() -> None:
    """GPT-2 XL has 1.56 billion weights: an eighth of them in bf16 is 0.39 GB."""
    plain = answer(plan={"zero": 3}, nodes=2, link="10Gb/s")
    again = answer(plan={"zero": 3, "regather": 8}, nodes=2, link="10Gb/s")
    assert again.memory.peak_bytes - plain.memory.peak_bytes == pytest.approx(2 * 1.5576e9 / 8, rel=0.05)
    assert again.step.seconds < 0.9 * plain.step.seconds


def test_a_second_copy_needs_sharded_weights_and_a_divisor() -> None:
    with pytest.raises(IllegalPlan, match="zero"):
        Parallelism(data=8, zero=2, regather=4)
    with pytest.raises(IllegalPlan, match="divide"):
        Parallelism(data=8, zero=3, regather=3)
