"""A plan request to ranked plans: the same search as the command line's, over models that name no file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincast.errors import InvalidInput
from traincast.forecast import build_cluster, read_calibration
from traincast.plan import (
    SEARCHED,
    JobAt,
    Limits,
    Plan,
    Search,
    Settled,
    Space,
    Wanted,
    catalogue_offers,
    check_regions,
    offer_of,
    search,
    size_offers,
    space_of,
)
from traincast.report import say_candidate
from traincast.spec import Cluster, Question

Report = Callable[..., None]
MOST_ROWS = 1_000


def plan_request(
    asked: Mapping[str, Any],
    settled: Settled,
    left_out: Mapping[str, int],
    limits: Mapping[str, Any],
    job_at: JobAt,
    *,
    batches: tuple[int, ...] | None,
    report: Report,
) -> dict[str, Any]:
    clusters = settled.clusters
    largest = max(cluster.num_devices for cluster in clusters)
    if largest > limits["devices"]:
        raise InvalidInput(f"{largest:,} devices; one request may ask for at most {limits['devices']:,}")
    space = _space(asked, settled.request, batches, num_devices=largest)
    kept = Limits(
        deadline_s=asked.get("deadline_s"), budget_usd=asked.get("budget_usd"), confidence=asked["confidence"]
    )

    def watch(done: int, total: int) -> None:
        if total > limits["plans"]:
            raise InvalidInput(
                f"the space has more than {limits['plans']:,} plans, the most that one request may try; name a device, "
                "fewer GPUs or fixed degrees"
            )
        report(done, total, "plans")

    found = search(
        job_at,
        clusters,
        space,
        limits=kept,
        objective=asked["objective"],
        top=min(asked["top"], MOST_ROWS),
        watch=watch,
        calibration=read_calibration(settled.request.calibration),
    )
    found = replace(found, notes=(*settled.notes, *found.notes))
    return {**_document(found), "num_clusters": len(clusters), "left_out": dict(left_out)}


def list_clusters(asked: Mapping[str, Any]) -> tuple[Sequence[Cluster], dict[str, int]]:
    low, high = asked["min_gpus"], asked["max_gpus"]
    regions, devices = tuple(asked["regions"]), tuple(asked["devices"])
    wanted = Wanted(min_devices=low, max_devices=high, regions=regions, devices=devices)
    if asked["all_machines"]:
        if asked["cluster"]:
            raise InvalidInput(f"the machines come from all_machines; leave out {', '.join(asked['cluster'])}")
        listed = catalogue_offers()
        check_regions(listed, regions)
        chosen = size_offers(listed, wanted)
    else:
        cluster = build_cluster(Question(source="", cluster=asked["cluster"]))
        if len(cluster.groups) > 1:
            return (cluster,), {}
        chosen = size_offers([offer_of(cluster)], wanted)
    if not chosen.clusters:
        reasons = ", ".join(f"{name} left out {count}" for name, count in chosen.left_out.items())
        raise InvalidInput(f"no machine is left to plan for ({reasons}); widen the GPUs, regions or devices")
    return chosen.clusters, dict(chosen.left_out)


_CHOICES = ("tensor", "pipeline", "context", "expert", "zero", "recompute", "orders")


def _space(asked: Mapping[str, Any], request: Question, batches: tuple[int, ...] | None, *, num_devices: int) -> Space:
    samples = asked.get("global_batch") or asked["job"].get("global_batch") or asked["workload"].get("batch")
    chosen: dict[str, Any] = {name: tuple(asked["space"][name]) for name in _CHOICES if name in asked["space"]}
    # The degrees of the form are those of its forecast; the search has its own and takes over what stays the same.
    held = {name: value for name, value in asked["parallelism"].items() if name not in SEARCHED}
    question = Question(source=request.source, workload=request.workload, parallelism=held, job=asked["job"])
    return space_of(question, global_batch=samples, num_devices=num_devices, batches=batches, **chosen)


def _document(found: Search) -> dict[str, Any]:
    nearest = found.nearest
    return {
        "plans": [_row(plan) for plan in found.plans],
        "front": [_row(plan) for plan in found.front],
        "num_plans": found.num_plans,
        "num_evaluated": found.num_evaluated,
        "num_pruned": found.num_pruned,
        "excluded": dict(found.excluded),
        "nearest": None if nearest is None else f"{say_candidate(nearest.candidate)} {nearest.says}",
        "notes": list(found.notes),
    }


def _row(plan: Plan) -> dict[str, Any]:
    """One line of a table; the whole forecast is one request away."""
    forecast, degrees = plan.forecast, plan.parallelism
    group = plan.cluster.groups[0]
    return {
        "cluster": plan.cluster.name,
        "device": forecast.device,
        "num_nodes": plan.cluster.num_nodes,
        "devices_per_node": group.devices_per_node,
        "num_devices": forecast.num_devices,
        "usd_per_hour": plan.cluster.usd_per_hour,
        "batch": plan.batch,
        "parallelism": {
            name: getattr(degrees, name)
            for name in ("data", "tensor", "pipeline", "context", "expert", "virtual_stages", "micro_batches", "zero",
                         "sequence_parallel", "recompute", "order")
        },
        "step_s": forecast.step.seconds,
        "job_s": forecast.job.total.seconds,
        "job_low_s": forecast.job.total.low_s,
        "job_high_s": forecast.job.total.high_s,
        "usd": None if forecast.usd is None else forecast.usd.value,
        "energy_joules": forecast.energy_joules,
        "peak_bytes": forecast.memory.peak_bytes,
        "needed_bytes": forecast.memory.needed_bytes,
        "capacity_bytes": forecast.memory.capacity_bytes,
        "fit_probability": forecast.memory.fit_probability,
        "deadline_probability": plan.deadline_probability,
        "on_front": plan.on_front,
    }  # fmt: skip
