"""Steps in a store, measured or watched while they trained, to measured runs."""

import logging
from collections.abc import Sequence

from traincast import catalog
from traincast.errors import TraincastError
from traincast.forecast.labels import label_run
from traincast.forecast.resolve import load_source
from traincast.spec import Job, MeasuredRun, Measurement, Parallelism
from traincast.spec.question import WorkloadOptions


def read_stored(measurements: Sequence[Measurement]) -> list[MeasuredRun]:
    """The whole steps whose workload and device are known by name: others cannot be forecast, so nothing is learnt from them."""
    found: list[MeasuredRun] = []
    for each in measurements:
        if each.experiment.subject != "step":
            continue
        try:
            found.append(_run_of(each))
        except TraincastError as error:
            logging.getLogger(__name__).info("nothing is learnt from %s: %s", each.experiment.key, error)
    return found


def _run_of(measurement: Measurement) -> MeasuredRun:
    experiment, attrs = measurement.experiment, measurement.experiment.attrs
    num_ranks = int(attrs.get("num_ranks", 1))
    num_nodes = int(attrs.get("num_nodes", 1))
    optimizer = str(attrs["optimizer"]) if "optimizer" in attrs else None
    graph = load_source(experiment.name, WorkloadOptions(batch=int(attrs["batch"]), optimizer=optimizer))
    cluster = catalog.cluster(
        device=measurement.environment.device, nodes=num_nodes, devices_per_node=num_ranks // num_nodes, price=None
    )
    job = Job(graph=graph, compiled=bool(attrs.get("compiled", False)))
    plan = Parallelism(data=num_ranks, micro_batches=int(attrs.get("accumulate", 1)))
    return MeasuredRun(
        labels=label_run(job, cluster, plan),
        job=job,
        cluster=cluster,
        parallelism=plan,
        step_s=measurement.seconds,
        name=experiment.key,
    )
