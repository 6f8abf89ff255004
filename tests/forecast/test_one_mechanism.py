"""One mechanism says how sure steps, jobs, cost, energy, resource numbers and memory are."""

import math
from dataclasses import replace

import pytest

from traincast import catalog, forecast
from traincast.catalog import stack, workload
from traincast.certainty._certainty import (
    MEMORY,
    STEP,
    Cell,
    Experience,
    Quantiles,
    Setting,
    describe_setting,
    load_certainty,
    memory_errors,
    mix_quantiles,
)
from traincast.certainty._interval import GIVEN_JOB
from traincast.cost import power
from traincast.forecast._corrections import _keep_promise
from traincast.resources import grounds_of
from traincast.spec import Forecast, Job, Parallelism
from traincast.spec._result import Narrowing

CLUSTER = catalog.cluster(device="h100-sxm-80g", nodes=1, devices_per_node=8)


def ask(name: str) -> tuple[Forecast, Setting]:
    graph = workload("gpt2", batch=8, precision="bf16")
    job = Job(graph=graph, stack=stack(name), steps=1000)
    return forecast(job, CLUSTER, Parallelism(data=8), draw=True), describe_setting(job, CLUSTER, Parallelism(data=8))


@pytest.mark.parametrize("name", ["lightning", "nanotron", "composer"])
def test_job_cost_energy_and_resource_numbers_are_as_sure_as_the_step(name: str) -> None:
    answer, _ = ask(name)
    low, high = answer.step.low_s / answer.step.seconds, answer.step.high_s / answer.step.seconds
    total, training_s = answer.job.total, answer.job.training_s
    # Starts, logs and checkpoints take what they take.
    assert total.seconds - total.low_s == pytest.approx((1 - low) * training_s, rel=1e-4)
    assert total.high_s - total.seconds == pytest.approx((high - 1) * training_s, rel=1e-4)
    assert answer.usd is not None
    assert answer.energy_range is not None
    sides = total.low_s / total.seconds, total.high_s / total.seconds
    usd, energy = answer.usd, answer.energy_range
    assert (usd.low / usd.value, usd.high / usd.value) == pytest.approx(sides, rel=1e-4)
    assert energy.low / energy.value == pytest.approx(sides[0] * power().drawn_low, rel=1e-4)
    assert energy.high / energy.value == pytest.approx(sides[1] * power().drawn_high, rel=1e-4)
    profile, grounds = answer.resources[0], grounds_of(answer.resources[0])
    for number, value in profile.twelve().items():
        assert profile.ranges[number][0] <= value <= profile.ranges[number][1]
        # What runs on GPUs taught has the range of its own left-out errors.
        if grounds[number] == "timeline" and number.endswith("_s"):
            assert profile.ranges[number] == pytest.approx((low * value, high * value), rel=1e-4)


@pytest.mark.parametrize("name", ["lightning", "nanotron"])
def test_steps_and_memory_are_answered_by_tables_of_one_document_and_one_rule(name: str) -> None:
    answer, setting = ask(name)
    step, memory = load_certainty(STEP), load_certainty(MEMORY)
    assert type(step) is type(memory)
    assert set(step.quantiles) == set(memory.quantiles)
    assert answer.memory.errors == memory_errors(setting, answer.memory)
    assert answer.memory.errors is not None
    margin = math.log(answer.memory.capacity_bytes / answer.memory.needed_bytes)
    assert answer.memory.fit_probability == pytest.approx(answer.memory.errors.probability_below(margin), abs=1e-9)


def test_a_job_of_which_a_run_was_given_is_as_sure_as_was_promised() -> None:
    answer, _ = ask("lightning")
    step = answer.step

    def promise(low: float, high: float) -> Forecast:
        one = Narrowing(
            measurement="m", seconds=1.0, width_now=1.0, width_after=high - low, given=GIVEN_JOB, after=(low, high)
        )
        return replace(answer, narrowing=(one,))

    kept = _keep_promise(step, promise(0.95, 1.1), num_known=1)
    assert (kept.seconds, kept.low_s, kept.high_s) == pytest.approx(
        (step.seconds, 0.95 * step.seconds, 1.1 * step.seconds)
    )
    assert _keep_promise(step, promise(0.95, 1.1), num_known=0) == step
    narrow = replace(step, low_s=0.99 * step.seconds, high_s=1.01 * step.seconds)
    assert _keep_promise(narrow, promise(0.95, 1.1), num_known=1) == kept
    assert _keep_promise(narrow, promise(0.95, 1.1), num_known=20) == narrow
    nothing = _keep_promise(narrow, replace(answer, narrowing=()), num_known=1)
    assert (nothing.low_s, nothing.high_s) == pytest.approx((step.low_s, step.high_s))


POOLED = Quantiles(values=(-4.0, -3.0, -2.5, -2.0, -1.5, -0.7, 0.0, 0.7, 1.5, 2.0, 2.5, 3.0, 4.0), num_rows=100)
ASKED = Setting(
    stack="s", device="d", architecture="a", vendor="v", family="transformer", precision="bf16", network="",
    num_devices=8, num_nodes=1, compiled=False,
)  # fmt: skip


def of_cells(*cells: Cell) -> Experience:
    return Experience(log_sigma=(0.1, 0.1), num_models=20, cells=cells)


def test_errors_of_runs_like_the_question_count_most() -> None:
    near = Cell(
        family="transformer", architecture="a", precision="bf16", octave=3, num_rows=50, values=(-0.2, 0.0, 0.2)
    )
    far = replace(near, family="convolution", architecture="b", octave=7, values=(-6.0, 0.0, 6.0))
    both = mix_quantiles(POOLED, of_cells(near, far), ASKED)
    other = mix_quantiles(
        POOLED, of_cells(near, far), replace(ASKED, family="convolution", architecture="b", num_devices=128)
    )
    assert both.values[9] < 2.0 < other.values[9]
    assert list(both.values) == sorted(both.values)


def test_a_stack_of_one_model_is_answered_mostly_by_all_stacks() -> None:
    cell = Cell(
        family="transformer", architecture="a", precision="bf16", octave=3, num_rows=50, values=(-0.01, 0.0, 0.01)
    )
    one, many = (
        mix_quantiles(POOLED, Experience(log_sigma=(0.1, 0.1), num_models=number, cells=(cell,)), ASKED)
        for number in (1, 30)
    )
    assert many.values[9] < one.values[9] <= POOLED.values[9]
