"""What a user names (a workload, a file, a job file) to a job, a cluster and a plan."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincast.errors import CaptureFailed, IllegalPlan, InvalidInput
from traincast.spec import Cluster, Graph, Job, Parallelism

MODEL_FOLDERS = ("saved_model.pb", "config.json")
"""A folder that holds one of these is a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """How the step is run; None: what the workload was published with."""

    batch: int | None = None
    seq: int | None = None
    precision: str | None = None
    mode: str | None = None
    optimizer: str | None = None
    attention: str | None = None
    adapter_rank: int | None = None
    """Of low-rank adapters beside a frozen model."""
    frozen_dtype: str | None = None
    """fp4 or int8: what frozen weights are stored in."""

    def given(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything that a forecast is asked with, as flags or as a job file; a flag wins over the file."""

    source: str
    workload: WorkloadOptions = WorkloadOptions()
    cluster: Mapping[str, Any] = field(default_factory=dict)
    """As `catalog.cluster_from` reads it: a machine or a device, nodes, links, prices, or groups of them."""
    parallelism: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Parallelism; without `data` every device that the others leave holds a replica."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Job without its graph; `epochs` multiplies the samples of one epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request after every name was looked up."""

    job: Job
    cluster: Cluster
    parallelism: Parallelism


def resolve(request: Request) -> Resolved:
    """Look up every name of a request; the job file's own values are filled in first."""
    whole = fill_in(request)
    cluster = build_cluster(whole)
    plan = complete_plan(whole.parallelism, num_devices=cluster.num_devices)
    graph = load_source(whole.source, whole.workload, recompute=plan.recompute)
    return Resolved(job=build_job(whole.job, graph), cluster=cluster, parallelism=plan)


def fill_in(request: Request) -> Request:
    """The request with the values of its job file, where it names one; what the request says itself wins."""
    return _merge_job_file(request) if request.source.endswith(".toml") else request


def build_cluster(request: Request) -> Cluster:
    from traincast import catalog

    table = dict(request.cluster)
    if "groups" not in table and "device" not in table and "node" not in table:
        raise InvalidInput("no device is given; use --device NAME, for instance --device a100-80g, or --machine NAME")
    price = table.pop("price_per_device", None)
    if price is not None and not (isinstance(price, (int, float)) and price >= 0 and math.isfinite(price)):
        raise InvalidInput(f"price = {price}; a price is a finite number of USD per device and hour, at least 0")
    nodes = table.get("nodes", table.get("num_nodes", 1))
    if "devices_per_node" not in table and "groups" not in table and "node" not in table:
        wanted = _wanted_devices(request.parallelism)
        if isinstance(nodes, int) and nodes >= 1 and wanted % nodes == 0:
            table["devices_per_node"] = wanted // nodes
    cluster: Cluster = catalog.cluster_from(table)
    if price is None:
        return cluster
    groups = tuple(dataclasses.replace(group, usd_per_hour=price * group.devices_per_node) for group in cluster.groups)
    return dataclasses.replace(cluster, groups=groups, price_date="", price_source="given")


def _wanted_devices(parallelism: Mapping[str, Any]) -> int:
    """As many as the plan names; one where it names none."""
    degrees = [parallelism.get(axis, 1) for axis in ("data", "tensor", "pipeline", "context")]
    return math.prod(degree for degree in degrees if isinstance(degree, int) and degree >= 1)


def complete_plan(values: Mapping[str, Any], *, num_devices: int) -> Parallelism:
    """The plan with its data degree filled in: every device that the other axes leave holds a replica."""
    from traincast.files import decode

    if "data" in values:
        return decode(Parallelism, dict(values), where="parallelism")
    # What must divide the data degree is checked once that is known.
    known = {name: value for name, value in values.items() if name not in ("expert", "expert_imbalance", "shard")}
    plan = decode(Parallelism, known, where="parallelism")
    inner = plan.tensor * plan.pipeline * plan.context
    if num_devices % inner:
        raise IllegalPlan(
            f"{num_devices} devices cannot be split into tensor {plan.tensor} x pipeline {plan.pipeline} x context "
            f"{plan.context} = {inner}; use a multiple of {inner} devices or other degrees"
        )
    return decode(Parallelism, {**values, "data": num_devices // inner}, where="parallelism")


def build_job(values: Mapping[str, Any], graph: Graph) -> Job:
    table = dict(values)
    epochs = table.pop("epochs", None)
    if epochs is not None:
        if not (isinstance(epochs, (int, float)) and epochs > 0 and math.isfinite(epochs)):
            raise InvalidInput(f"epochs = {epochs}; it must be a finite number above 0")
        if table.get("epoch_samples") is None:
            raise InvalidInput("epochs needs the samples of one epoch; give --epoch-samples")
        if "steps" in table or "samples" in table:
            raise InvalidInput("give steps, samples or epochs, not two of them")
        table["samples"] = epochs * table["epoch_samples"]
    known = [item.name for item in dataclasses.fields(Job) if item.name != "graph"]
    for key in table:
        if key not in known:
            from traincast.errors import did_you_mean

            raise InvalidInput(
                f"job has the unknown key {key!r}; allowed: {', '.join((*known, 'epochs'))}{did_you_mean(key, known)}"
            )
    for key, value in table.items():
        if key in ("compiled", "cuda_graphs"):
            right, wanted = isinstance(value, bool), "true or false"
        elif key == "stack":
            right, wanted = isinstance(value, str), "a name"
        else:
            right, wanted = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
        if not right:
            raise InvalidInput(f"job.{key} is {value!r}; it must be {wanted}")
    return Job(graph=graph, **table)


def load_source(source: str, options: WorkloadOptions, *, recompute: str = "none") -> Graph:
    """The step that a source names, at the asked batch. A catalogue workload recomputes as its own code would; what is
    recorded is rewritten by the plan."""
    path = Path(source)
    if source.endswith((".json", ".json.gz")):
        return _load_json(path, options)
    if path.suffix in (".toml", ".parquet", ".csv", ".pt", ".pth", ".safetensors"):
        raise InvalidInput(
            f"{source} is not a model; use a catalogue name, my_file.py:build, model.onnx, config.json, a saved graph or "
            "a job file (TOML)"
        )
    if _is_model_file(source, path):
        file = Path(source.rpartition(":")[0] if ".py:" in source else source)
        if not file.exists():
            raise InvalidInput(f"there is no file {file}")
        return _capture(source, options)
    return _catalogue_workload(source, options, recompute)


def _is_model_file(source: str, path: Path) -> bool:
    is_python = source.endswith(".py") or ".py:" in source
    return (
        is_python or path.suffix in (".onnx", ".pb", ".pbtxt") or any((path / name).is_file() for name in MODEL_FOLDERS)
    )


def _merge_job_file(request: Request) -> Request:
    from traincast.files import decode, read_toml

    data = read_toml(request.source)
    file = decode(Request, data, where=request.source)
    if file.source.endswith(".toml"):
        raise InvalidInput(f"{request.source} names the job file {file.source}; its source must be a model")
    local = Path(request.source).parent / file.source.split(":")[0]
    try:
        found = str(Path(request.source).parent / file.source) if local.is_file() else file.source
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{request.source} names the source {file.source[:80]!r}, which no file can have") from error
    return Request(
        source=found,
        workload=dataclasses.replace(file.workload, **request.workload.given()),
        cluster=_override_cluster(file.cluster, request.cluster),
        parallelism={**file.parallelism, **request.parallelism},
        job={**file.job, **request.job},
    )


def _override_cluster(table: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    if flags and "groups" in table:
        raise InvalidInput("the job file describes groups of nodes; edit them there instead of using cluster flags")
    merged = {**table, **flags}
    if "device" in flags:
        merged.pop("node", None)
    if "node" in flags:
        merged.pop("device", None)
    return merged


def _load_json(path: Path, options: WorkloadOptions) -> Graph:
    from traincast.files import GRAPH_FORMAT, load_graph, read_json
    from traincast.spec.graph import Scalable

    data = read_json(path)
    if isinstance(data, dict) and data.get("format") == GRAPH_FORMAT:
        loaded = load_graph(path)
        _refuse_changes(path, options)
        if isinstance(loaded, Scalable):
            return loaded.at(options.batch) if options.batch is not None else loaded.small
        if options.batch is not None and options.batch != loaded.batch_size:
            raise InvalidInput(
                f"{path} was captured at a batch of {loaded.batch_size}, not {options.batch}; capture it again at "
                f"{options.batch}, or at two batch sizes to use any"
            )
        return loaded
    return _capture(str(path), options)


def _refuse_changes(path: Path, options: WorkloadOptions) -> None:
    changed = [name for name in options.given() if name != "batch"]
    if changed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise InvalidInput(f"{path} is a captured graph, so {flags} cannot change it; capture the model again")


def _catalogue_workload(source: str, options: WorkloadOptions, recompute: str) -> Graph:
    if ("/" in source or "\\" in source) and Path(source).exists():
        raise InvalidInput(f"{source} is neither a model file nor a catalogue name")
    from traincast.catalog.workloads import workload

    return workload(source, recompute=recompute, **options.given())


def _capture(source: str, options: WorkloadOptions) -> Graph:
    """Record a model from its file; this is the only way that may need PyTorch."""
    if options.adapter_rank or options.frozen_dtype:
        raise InvalidInput(
            f"adapters are added to workloads of the catalogue only; build them into the model of {source}"
        )
    from traincast.capture import load_source as capture_source
    from traincast.spec.graph import Scalable

    try:
        # What a model prints must not end up inside the answer.
        with contextlib.redirect_stdout(sys.stderr):
            loaded = capture_source(source, **options.given())
    except SystemExit as error:
        raise CaptureFailed(f"{source} called sys.exit({error.code!r}) while it was recorded") from error
    if isinstance(loaded, Scalable):
        return loaded.at(options.batch) if options.batch is not None else loaded.small
    return loaded
