"""Forecasts as the source of speeds: a workload by name on so many devices becomes seconds per step, cached."""

from functools import lru_cache

from traincast.catalog import cluster, workload
from traincast.errors import InvalidInput
from traincast.forecast import forecast
from traincast.schedule.speeds import SpeedForecast, SpeedOracle
from traincast.spec import Graph, Job, Parallelism


def split_workload(name: str) -> tuple[str, int]:
    """'gpt2@8' as the catalogue's name and the batch per device, which is 1 without it."""
    base, _, batch = name.partition("@")
    if batch and not (batch.isdigit() and int(batch)):
        raise InvalidInput(f"workload {name!r}: after @ comes the batch per device, such as gpt2@8")
    return base, int(batch or 1)


def forecast_speeds(*, precision: str = "bf16", zero: int = 0) -> SpeedOracle:
    """Data-parallel steps by `traincast.forecast`; a step that does not fit in memory is said not to fit."""

    @lru_cache(maxsize=256)
    def graph_of(name: str) -> Graph:
        base, batch = split_workload(name)
        found: Graph = workload(base, batch=batch, precision=precision)
        return found

    @lru_cache(maxsize=65536)
    def speed(name: str, device: str, num_devices: int, num_nodes: int) -> SpeedForecast:
        nodes = num_nodes
        while num_devices % nodes:
            nodes += 1  # ranks are spread evenly, so an uneven request is asked of the next even layout
        place = cluster(device=device, nodes=nodes, devices_per_node=num_devices // nodes, price=None)
        plan = Parallelism(data=num_devices, zero=zero if num_devices > 1 else 0)
        answer = forecast(Job(graph=graph_of(name)), place, plan)
        step = answer.step
        return SpeedForecast(step_s=step.seconds, low_s=step.low_s, high_s=step.high_s, fits=answer.memory.fits)

    return speed
