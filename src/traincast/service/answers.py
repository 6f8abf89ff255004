"""Tasks to answers, inside a worker process: what the command line computes, from requests that name no file."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from traincast.errors import InvalidInput, UnknownName
from traincast.forecast.request import Request, WorkloadOptions, build_cluster, build_job, complete_plan
from traincast.spec import Cluster, Graph, Job, Parallelism
from traincast.spec.graph import Scalable

Report = Callable[..., None]
OPTIONS = ("batch", "seq", "precision", "mode", "optimizer", "attention")


def answer_forecast(task: Mapping[str, Any], _blob: bytes, _report: Report) -> bytes:
    from traincast.forecast import forecast
    from traincast.report.document import document_forecast, plain_data
    from traincast.report.text import describe_plan, describe_price

    asked = task["request"]
    cluster, plan = _place(asked, task["limits"])
    job = _pose(task)(None, None, plan)
    answer = forecast(job, cluster, plan, draw=asked["detail"])
    # The spans of a large step are thousands; the details hold what can be seen of them.
    bare = dataclasses.replace(answer, timeline=dataclasses.replace(answer.timeline, spans=()))
    document = document_forecast(bare)
    document["parallelism"] = plain_data(plan)
    document["asked"] = describe_plan(plan, batch_size=job.graph.batch_size)
    document["price"] = describe_price(cluster)
    document["usd_per_hour"] = cluster.usd_per_hour
    if asked["detail"]:
        from traincast.service.details import describe_details

        document["detail"] = describe_details(answer, job, plan)
    return _to_json(document)


def answer_fit(task: Mapping[str, Any], _blob: bytes, _report: Report) -> bytes:
    from traincast.plan.fit import find_fit

    asked = task["request"]
    cluster, plan = _place(asked, task["limits"])
    batch, seq = asked["workload"].get("batch") or 1, asked["workload"].get("seq")
    # Without a length a model is posed with its own, not with the one that was asked for.
    pose = _pose({**task, "request": {**asked, "workload": {**asked["workload"], "seq": None}}})
    found = find_fit(pose, cluster, plan, batch=batch, seq=seq, confidence=asked["confidence"])
    return _to_json(found.document())


def answer_capture(task: Mapping[str, Any], blob: bytes, _report: Report) -> bytes:
    """An upload to the graph that is kept of it."""
    from traincast.service.uploads import read_upload

    return read_upload(blob, kind=task["kind"], options=task["options"], limits=task["limits"])


def answer_schedule(task: Mapping[str, Any], _blob: bytes, report: Report) -> bytes:
    from traincast.service.simulation import simulate_request

    return _to_json(simulate_request(task["request"], task["limits"], report))


def answer_similar(task: Mapping[str, Any], _blob: bytes, _report: Report) -> bytes:
    """The known workloads most like this one, with the steps measured of them."""
    from traincast.embed import UNFAMILIAR, load_atlas, summarize

    graph = _pose(task)(None, None, Parallelism()).graph
    summary, atlas = summarize(graph), load_atlas()
    distance = atlas.distance(summary)
    return _to_json(
        {
            "workload": graph.name,
            "batch": graph.batch_size,
            "dataset_type": summary.dataset_type,
            "distance": distance,
            "familiar": distance <= UNFAMILIAR,
            "neighbours": [
                {
                    "name": each.workload.name,
                    "source": each.workload.source,
                    "batch": each.workload.batch_size,
                    "distance": each.distance,
                    "measured_s": dict(each.workload.measured_s),
                }
                for each in atlas.relatives(summary, count=task["request"]["count"])
            ],
        }
    )


def answer_plan(task: Mapping[str, Any], _blob: bytes, report: Report) -> bytes:
    from traincast.service.planning import plan_request

    pose = _pose(task)
    found = plan_request(
        task["request"],
        task["limits"],
        lambda batch, recompute: pose(batch, None, Parallelism(recompute=recompute)),
        batches=_only_batch(task),
        report=report,
    )
    return _to_json(found)


def _only_batch(task: Mapping[str, Any]) -> tuple[int, ...] | None:
    """A graph recorded at one batch has no other; None: any."""
    if "name" in task["request"]["workload"]:
        return None
    loaded = _stored_graph(task["state"], task["request"]["workload"]["model"], task["options"])
    return None if isinstance(loaded, Scalable) else (loaded.batch_size,)


def warm_up(_task: Mapping[str, Any], _blob: bytes, _report: Report) -> bytes:
    """Load what every forecast needs: weights, catalogue tables, and one answer through all rooms."""
    small = {"workload": {"name": "resnet18"}, "cluster": {"device": "a100-80g"}, "parallelism": {}, "job": {}}
    limits = {"devices": 8, "micro_batches": 8}
    answer_forecast({"request": {**small, "detail": False}, "limits": limits}, b"", lambda *_: None)
    return b"{}"


TASKS: dict[str, Callable[[Mapping[str, Any], bytes, Report], bytes]] = {
    "warm": warm_up,
    "forecast": answer_forecast,
    "fit": answer_fit,
    "capture": answer_capture,
    "similar": answer_similar,
    "plan": answer_plan,
    "schedule": answer_schedule,
}


def _to_json(value: Any) -> bytes:
    from traincast.report.document import plain_data

    text = json.dumps(plain_data(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode(errors="replace")


def _place(asked: Mapping[str, Any], limits: Mapping[str, Any]) -> tuple[Cluster, Parallelism]:
    """The cluster and the plan, within what one request may ask."""
    request = Request(source="", cluster=asked["cluster"], parallelism=asked["parallelism"])
    _check_size(asked["cluster"], limits["devices"])
    cluster = build_cluster(request)
    if cluster.num_devices > limits["devices"]:
        raise InvalidInput(f"{cluster.num_devices:,} devices; one request may ask for at most {limits['devices']:,}")
    plan = complete_plan(asked["parallelism"], num_devices=cluster.num_devices)
    if plan.micro_batches > limits["micro_batches"]:
        raise InvalidInput(
            f"micro_batches = {plan.micro_batches:,}; one request may ask for at most {limits['micro_batches']:,}"
        )
    return cluster, plan


def _check_size(table: Mapping[str, Any], most: int) -> None:
    for group in (table, *table.get("groups", ())):
        for name in ("nodes", "devices_per_node"):
            if group.get(name, 0) > most:
                raise InvalidInput(f"{name} = {group[name]:,}; one request may ask for at most {most:,} devices")


def _pose(task: Mapping[str, Any]) -> Callable[[int | None, int | None, Parallelism], Job]:
    """(samples of a pass, tokens of a sample, plan) -> the job; None stands for what the request says."""
    asked = task["request"]
    workload = asked["workload"]

    def pose(batch: int | None, seq: int | None, plan: Parallelism) -> Job:
        options = WorkloadOptions(**{name: workload.get(name) for name in OPTIONS})
        options = dataclasses.replace(
            options,
            batch=options.batch if batch is None else batch,
            seq=options.seq if seq is None else seq,
        )
        return build_job(asked["job"], _load_graph(task, options, plan.recompute))

    return pose


def _load_graph(task: Mapping[str, Any], options: WorkloadOptions, recompute: str) -> Graph:
    workload = task["request"]["workload"]
    if "name" in workload:
        from traincast.catalog.workloads import workload as find_workload

        return find_workload(workload["name"], recompute=recompute, **options.given())
    if options.seq != workload.get("seq"):
        raise InvalidInput("the sequence length of an uploaded model cannot be varied here; set workload.seq")
    loaded = _stored_graph(task["state"], workload["model"], task["options"])
    if isinstance(loaded, Scalable):
        return loaded.at(options.batch) if options.batch is not None else loaded.small
    if options.batch is not None and options.batch != loaded.batch_size:
        raise InvalidInput(
            f"the model was captured at a batch of {loaded.batch_size}, not {options.batch}; capture it again at "
            f"{options.batch}, or at two batch sizes to use any"
        )
    return loaded


@lru_cache(maxsize=16)
def _stored_graph(state: str, model: str, options: str) -> Graph | Scalable:
    from traincast.service.state import read_graph
    from traincast.service.uploads import decode_graph

    content = read_graph(state, model, options)
    if content is None:
        raise UnknownName("model", model[:12], ())
    return decode_graph(json.loads(content))
