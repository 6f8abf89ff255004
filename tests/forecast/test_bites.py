"""Numbers of a whole job that can be written down: its interval, checkpoints, failures, money and energy."""

import dataclasses
import math

import pytest

from builders import make_cluster, make_device, make_mlp
from traincast.catalog._workloads import workload
from traincast.cost._power import needs_of, power, work_of
from traincast.forecast import forecast
from traincast.spec import Cluster, Device, Estimate, Forecast, Job, Op, Parallelism, Stack, Stage


@dataclasses.dataclass(frozen=True)
class OnlyProducts:
    """A cost model in which products take a second each and nothing else takes time, all with one log error."""

    sigma: float

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]:
        factor = math.exp(1.645 * self.sigma)
        return tuple(
            Estimate(seconds=1.0, low_s=1 / factor, high_s=factor, limit="compute", ground="transfer")
            if isinstance(task, Op) and task.kind == "matmul"
            else Estimate(seconds=0.0, low_s=0.0, high_s=0.0, limit="compute", ground="transfer")
            for task in stage.tasks
        )


@pytest.mark.parametrize("sigma", [0.2, 0.5])
def test_a_step_is_no_surer_than_the_operators_it_consists_of(sigma: float) -> None:
    """The errors of one kind of operator go together, so a step of one kind is as unsure as one operator."""
    job = Job(graph=workload("gpt2", batch=1, seq=64), stack=Stack(log_sigma=0.01))
    step = forecast(job, make_cluster(), costs=OnlyProducts(sigma)).step
    for reach in (math.log(step.high_s / step.seconds), math.log(step.seconds / step.low_s)):
        assert 0.99 * 1.645 * sigma <= reach <= 1.6 * 1.645 * sigma


def test_the_interval_of_a_measured_stack_covers_its_left_out_errors() -> None:
    job = Job(graph=workload("gpt2", batch=1, seq=64), stack=Stack(log_sigma=0.2, num_steps=500))
    step = forecast(job, make_cluster(), costs=OnlyProducts(0.01)).step
    assert math.log(step.high_s / step.seconds) >= 1.645 * 0.2 * 0.999


def test_the_job_is_as_unsure_as_its_steps() -> None:
    answer = forecast(Job(graph=make_mlp(), steps=100, startup_s=0.0, device_mtbf_s=1e30), make_cluster())
    assert answer.job.total.high_s / answer.job.total.seconds == pytest.approx(
        answer.step.high_s / answer.step.seconds, rel=1e-6
    )


def adam_job(**changes: object) -> Job:
    graph = workload("gpt2", batch=1, seq=64, precision="fp32", optimizer="adamw")
    return Job(graph=graph, steps=1000, **changes)  # type: ignore[arg-type]


def test_a_checkpoint_holds_weights_and_optimizer_state() -> None:
    rate = 1e9
    job = adam_job(checkpoint_every_steps=100, checkpoint_bytes_per_s=rate)
    weights = job.graph.num_parameters * 4
    # Adam keeps two moments of each weight.
    expected_s = 10 * 3 * weights / rate
    assert forecast(job, make_cluster(device=make_device(memory_bytes=80e9))).job.checkpoint_s == pytest.approx(
        expected_s, rel=0.02
    )


@pytest.mark.parametrize("devices", [1, 8])
def test_a_failure_costs_a_start_and_half_an_interval(devices: int) -> None:
    """Young 1974: failures come at random, so on average half of what ran since the last checkpoint is lost."""
    startup_s, mtbf_s, every = 60.0, 1e6, 50
    job = Job(graph=make_mlp(), steps=1000, startup_s=startup_s, device_mtbf_s=mtbf_s, checkpoint_every_steps=every,
              checkpoint_bytes_per_s=1e6)  # fmt: skip
    found = forecast(job, make_cluster(devices_per_node=devices)).job
    running_s = found.training_s + found.evaluation_s + found.loading_stall_s + found.checkpoint_s
    failures = running_s * devices / mtbf_s
    assert found.restarts_s == pytest.approx(failures * (startup_s + running_s * every / 1000 / 2), rel=1e-6)


def test_a_failure_of_a_short_job_loses_half_of_it() -> None:
    job = Job(graph=make_mlp(), steps=1000, startup_s=0.0, device_mtbf_s=1e6)
    found = forecast(job, make_cluster()).job
    assert found.checkpoint_every_s is None
    assert found.restarts_s == pytest.approx(found.training_s / 1e6 * found.training_s / 2, rel=1e-6)


@pytest.mark.parametrize("nodes", [1, 8])
def test_a_long_job_is_taken_to_write_checkpoints_as_often_as_loses_least(nodes: int) -> None:
    """Young 1974: an interval of sqrt(2 x time of a checkpoint x time between failures)."""
    mtbf_s, rate = 1e6, 1e7
    job = Job(graph=make_mlp(), steps=10**10, startup_s=0.0, device_mtbf_s=mtbf_s, checkpoint_bytes_per_s=rate)
    found = forecast(job, make_cluster(nodes=nodes)).job
    write_s = (job.graph.role_bytes("parameter") + job.graph.role_bytes("optimizer_state")) / rate / nodes
    every_s = (2 * write_s * mtbf_s / nodes) ** 0.5
    assert found.checkpoint_every_s == pytest.approx(every_s)
    assert found.checkpoint_s == pytest.approx(found.training_s / every_s * write_s)
    assert found.restarts_s == pytest.approx((found.training_s + found.checkpoint_s) * nodes / mtbf_s * every_s / 2)
    often, rarely = (
        forecast(dataclasses.replace(job, checkpoint_every_steps=round(every_s * share / found.training_s * 10**10),
                                     checkpoint_sharded=True),
                 make_cluster(nodes=nodes)).job
        for share in (0.5, 2.0)
    )  # fmt: skip
    assert found.checkpoint_s + found.restarts_s < min(each.checkpoint_s + each.restarts_s for each in (often, rarely))


@pytest.mark.parametrize("devices", [8, 512])
def test_failures_never_dominate_a_job_of_months(devices: int) -> None:
    job = Job(graph=make_mlp(), steps=2 * 10**10)
    found = forecast(job, make_cluster(nodes=devices // 8, devices_per_node=8)).job
    assert found.training_s > 30 * 86_400
    assert found.total.seconds < 1.1 * found.training_s


def draw_seconds(answer: Forecast, device: Device) -> float:
    """How long a device would draw its rated power for what it draws in steps of one pass, and while it waits."""
    needs = needs_of(device, work_of(make_mlp()), passes_per_s=1 / answer.step.seconds)
    assert needs is not None
    share = power().draw_at_work(device, needs)
    return share * answer.job.training_s + power().idle * (answer.job.total.seconds - answer.job.training_s)


@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (1, 8), (3, 4)])
def test_energy_is_the_power_of_every_device_over_the_job(nodes: int, devices: int) -> None:
    watts = 400.0
    cluster = make_cluster(nodes=nodes, devices_per_node=devices, device=make_device(power_watts=watts))
    answer = forecast(Job(graph=make_mlp(), steps=100), cluster)
    drawn = draw_seconds(answer, cluster.groups[0].device)
    expected = nodes * devices * watts * drawn
    assert answer.energy_joules == pytest.approx(expected, rel=1e-6)
    assert answer.energy_joules <= nodes * devices * watts * answer.job.total.seconds


def test_energy_of_mixed_devices_adds_up_by_device() -> None:
    small, large = make_device(name="s", power_watts=100.0), make_device(name="l", power_watts=500.0)
    groups = (
        *make_cluster(devices_per_node=2, device=small).groups,
        *make_cluster(devices_per_node=2, device=large).groups,
    )
    mixed = forecast(Job(graph=make_mlp(), steps=10), Cluster(name="mixed", groups=groups))
    joules = 2 * 100 * draw_seconds(mixed, small) + 2 * 500 * draw_seconds(mixed, large)
    assert mixed.energy_joules == pytest.approx(joules, rel=1e-6)


def test_an_evaluation_is_a_forward_pass_of_its_samples() -> None:
    job = Job(graph=make_mlp(batch=32), steps=100, evaluation_every_steps=10, evaluation_samples=320)
    answer = forecast(job, make_cluster())
    # Forward, and backward at twice its cost: a third of a step for each of ten batches, ten times.
    assert answer.job.evaluation_s == pytest.approx(10 * 10 * answer.step.seconds / 3, rel=1e-6)


def test_samples_are_counted_over_replicas_and_micro_batches() -> None:
    plan = Parallelism(data=4, micro_batches=2)
    answer = forecast(Job(graph=make_mlp(batch=32), samples=32 * 4 * 2 * 7), make_cluster(devices_per_node=4), plan)
    assert answer.global_batch == 32 * 4 * 2
    assert answer.job.num_steps == 7
    assert answer.samples_per_s == pytest.approx(answer.global_batch / answer.step.seconds)


def test_a_loader_on_every_node_feeds_the_devices_of_that_node() -> None:
    nodes, devices, rate = 2, 4, 100.0
    job = Job(graph=make_mlp(batch=32), steps=10, loading_samples_per_s=rate)
    answer = forecast(job, make_cluster(nodes=nodes, devices_per_node=devices))
    expected_s = 10 * (32 * nodes * devices / (rate * nodes) - answer.step.seconds)
    assert answer.job.loading_stall_s == pytest.approx(expected_s, rel=1e-6)


@dataclasses.dataclass(frozen=True)
class TwoKinds:
    """Products and element-wise operators take a second in all each, with one log error."""

    sigma: float

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]:
        factor = math.exp(1.645 * self.sigma)
        counts = {"matmul": 0, "elementwise": 0}
        for task, count in zip(stage.tasks, stage.counts(), strict=True):
            if isinstance(task, Op) and task.kind in counts:
                counts[task.kind] += count
        seconds = [
            1 / counts[task.kind] if isinstance(task, Op) and task.kind in counts else 0.0 for task in stage.tasks
        ]
        return tuple(
            Estimate(seconds=each, low_s=each / factor, high_s=each * factor, limit="compute", ground="transfer")
            for each in seconds
        )


def test_errors_of_different_kinds_of_operators_are_independent() -> None:
    job = Job(graph=workload("gpt2", batch=1, seq=64), stack=Stack(log_sigma=0.001))
    one = forecast(job, make_cluster(), costs=OnlyProducts(0.3)).step
    two = forecast(job, make_cluster(), costs=TwoKinds(0.3)).step
    assert math.log(two.high_s / two.seconds) == pytest.approx(
        math.log(one.high_s / one.seconds) / math.sqrt(2), rel=0.05
    )


@pytest.mark.parametrize("devices", [1, 4])
def test_utilization_is_the_share_of_what_all_devices_could_compute(devices: int) -> None:
    graph = workload("gpt2", batch=2, seq=128, precision="fp16")
    cluster = make_cluster(devices_per_node=devices)
    answer = forecast(Job(graph=graph), cluster)
    expected = graph.flop * devices / (answer.step.seconds * 1e14 * devices)
    assert answer.utilization == pytest.approx(expected, rel=1e-6)


def test_the_smallest_device_and_the_fullest_stage_decide_what_fits() -> None:
    small, large = make_device(name="s", memory_bytes=12e9), make_device(name="l", memory_bytes=80e9)
    groups = (*make_cluster(device=large).groups, *make_cluster(device=small).groups)
    graph = workload("gpt2", batch=2, seq=128)
    memory = forecast(Job(graph=graph), Cluster(name="mixed", groups=groups)).memory
    assert memory.capacity_bytes == pytest.approx(12e9, rel=0.2)
    piped = forecast(
        Job(graph=graph), make_cluster(devices_per_node=4), Parallelism(pipeline=4, micro_batches=8)
    ).memory
    assert len(piped.stage_peaks) == 4
    # The first stage keeps most micro-batches in flight, and the table of tokens with them.
    assert piped.peak_bytes == pytest.approx(max(piped.stage_peaks))
    assert max(piped.stage_peaks) > 1.2 * min(piped.stage_peaks)
