"""Steps in a store, measured or watched while they trained, to measured runs."""

import hashlib
import logging
import statistics
from collections.abc import Sequence
from pathlib import Path

from traincast import catalog
from traincast.certainty import label_run
from traincast.errors import InvalidInput, TraincastError
from traincast.files import load_graph, save_graph
from traincast.forecast import load_source
from traincast.spec import RESOURCES, Experiment, Graph, Job, MeasuredRun, Measurement, Parallelism, WorkloadOptions

NUMBERS = ("gpu_mean", *(f"{resource}_{name}" for resource in RESOURCES for name in ("idle_s", "burst_s", "peak")))


def keep_graph(store: str | Path, experiment: Experiment, graph: Graph) -> None:
    """Beside a store, the step that an experiment ran: a model that no catalogue knows can be learnt from only with it."""
    file = graph_file(store, experiment)
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        save_graph(graph, file)


def graph_file(store: str | Path, experiment: Experiment) -> Path:
    name = hashlib.sha256(experiment.key.encode()).hexdigest()[:16]
    return Path(store).with_suffix(".graphs") / f"{name}.json.gz"


def read_stored(measurements: Sequence[Measurement], *, store: str | Path | None = None) -> list[MeasuredRun]:
    """The whole steps whose device is in the catalogue and whose model is there or beside the store: others cannot be forecast,
    so nothing is learnt from them."""
    found: list[MeasuredRun] = []
    for each in measurements:
        if each.experiment.subject != "step":
            continue
        try:
            found.append(_run_of(each, store))
        except TraincastError as error:
            logging.getLogger(__name__).info("nothing is learned from %s: %s", each.experiment.key, error)
    return found


def _run_of(measurement: Measurement, store: str | Path | None) -> MeasuredRun:
    experiment, attrs = measurement.experiment, measurement.experiment.attrs
    num_ranks = int(attrs.get("num_ranks", 1))
    num_nodes = int(attrs.get("num_nodes", 1))
    if str(attrs.get("strategy", "ddp")) not in ("ddp", "local"):
        raise InvalidInput(
            f"{experiment.key} ran with strategy {attrs['strategy']!r}; only plain data parallelism is read"
        )
    cluster = catalog.cluster(
        device=measurement.environment.device, nodes=num_nodes, devices_per_node=num_ranks // num_nodes, price=None
    )
    job = Job(graph=_graph_of(experiment, store), compiled=bool(attrs.get("compiled", False)))
    plan = Parallelism(data=num_ranks, micro_batches=int(attrs.get("accumulate", 1)))
    return MeasuredRun(
        labels=label_run(job, cluster, plan),
        job=job,
        cluster=cluster,
        parallelism=plan,
        step_s=measurement.seconds,
        name=experiment.key,
        memory_bytes=max((block.resources.get("peak_bytes", 0.0) for block in measurement.blocks), default=0.0) or None,
        numbers=_numbers_of(measurement),
    )


def _numbers_of(measurement: Measurement) -> dict[str, float]:
    """Means over the blocks of what drivers and interfaces told while it trained."""
    found: dict[str, list[float]] = {}
    for block in measurement.blocks:
        if block.source == "run":
            for name in NUMBERS:
                if name in block.resources:
                    found.setdefault(name, []).append(block.resources[name])
    return {name: statistics.fmean(values) for name, values in found.items()}


def _graph_of(experiment: Experiment, store: str | Path | None) -> Graph:
    batch = int(experiment.attrs["batch"])
    if store is not None and (file := graph_file(store, experiment)).is_file():
        kept = load_graph(file)
        return kept if isinstance(kept, Graph) else kept.at(batch)
    optimizer = str(experiment.attrs["optimizer"]) if "optimizer" in experiment.attrs else None
    return load_source(experiment.name, WorkloadOptions(batch=batch, optimizer=optimizer))
