"""Tasks to answers, inside a worker process: what the command line computes, from requests that name no file."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from traincast.errors import InvalidInput, UnknownName
from traincast.forecast import (
    Resolved,
    build_cluster,
    choose_stack,
    complete_question,
    describe_settings,
    load_source,
    pose_with,
    read_calibration,
)
from traincast.forecast import answer as answer_question
from traincast.service._configs import expand_configs
from traincast.spec import (
    WORKLOAD_FIELDS,
    Calibration,
    Cluster,
    Graph,
    Job,
    Parallelism,
    Question,
    Scalable,
    Stack,
    WorkloadOptions,
)

Report = Callable[..., None]
Answer = Callable[[Mapping[str, Any], bytes, Report], bytes]
OPTIONS = tuple(item.name for item in WORKLOAD_FIELDS)


def _reads_configs(answer: Answer) -> Answer:
    """The same answer to a request whose configurations were read into its tables first."""

    @functools.wraps(answer)
    def read_first(task: Mapping[str, Any], blob: bytes, report: Report) -> bytes:
        return answer({**task, "request": expand_configs(task["request"])}, blob, report)

    return read_first


@_reads_configs
def answer_forecast(task: Mapping[str, Any], _blob: bytes, _report: Report) -> bytes:
    from traincast.report import describe_plan, describe_price, document_forecast, plain_data
    from traincast.report import describe_settings as describe_settings_in_words
    from traincast.service._starting import emit_file, give_advice, say_command

    asked = task["request"]
    place = _place(task)
    cluster, plan = place.cluster, place.parallelism
    said = list(place.assumptions)
    job = _pose(task, place.question, said)(None, None, plan)
    resolved = Resolved(
        job=job, cluster=cluster, parallelism=plan, assumptions=tuple(dict.fromkeys(said)),
        settings=describe_settings(place.question, job, plan, asked=_question(asked)),
        calibration=read_calibration(place.question.calibration),
    )  # fmt: skip
    answer = answer_question(resolved, draw=asked["detail"])
    # The spans of a large step are thousands; the details hold what can be seen of them.
    bare = dataclasses.replace(answer, timeline=dataclasses.replace(answer.timeline, spans=()))
    document = document_forecast(bare)
    document["parallelism"] = plain_data(plan)
    document["asked"] = describe_plan(plan, batch_size=job.graph.batch_size)
    document["price"] = describe_price(cluster)
    document["settings_words"] = describe_settings_in_words(answer)
    document["usd_per_hour"] = cluster.usd_per_hour
    document["needed_bytes"] = answer.memory.needed_bytes
    document["command"] = say_command(_question(asked))
    if asked.get("emit"):
        document["emitted"] = emit_file(place.question, resolved, answer, kind=asked["emit"])
    if asked.get("advice"):
        model = asked["workload"].get("model")
        uploaded = None if model is None else _stored_graph(task["state"], model, task["options"])
        document["advice"] = give_advice(place.question, resolved, uploaded=uploaded)
    if asked["detail"]:
        from traincast.service._details import describe_details

        document["detail"] = describe_details(answer, job, plan)
    return _to_json(document)


@_reads_configs
def answer_fit(task: Mapping[str, Any], _blob: bytes, _report: Report) -> bytes:
    from traincast.plan import find_fit

    asked = task["request"]
    place = _place(task)
    options = place.question.workload
    # Without a length a model is posed with its own, not with the one that was asked for.
    unsized = dataclasses.replace(place.question, workload=dataclasses.replace(options, seq=None))
    pose = _pose(task, unsized, [])
    found = find_fit(
        pose,
        place.cluster,
        place.parallelism,
        batch=options.batch or 1,
        seq=options.seq,
        confidence=asked["confidence"],
        calibration=read_calibration(place.question.calibration),
    )
    return _to_json({**found.document(), "assumptions": list(place.assumptions)})


def answer_capture(task: Mapping[str, Any], blob: bytes, _report: Report) -> bytes:
    """An upload to the graph that is kept of it."""
    from traincast.service._uploads import read_upload

    return read_upload(blob, kind=task["kind"], options=task["options"], limits=task["limits"])


def answer_schedule(task: Mapping[str, Any], _blob: bytes, report: Report) -> bytes:
    from traincast.service._simulation import simulate_request

    return _to_json(simulate_request(task["request"], task["limits"], report))


@_reads_configs
def answer_similar(task: Mapping[str, Any], _blob: bytes, _report: Report) -> bytes:
    """The known workloads most like this one, with the steps measured of them."""
    from traincast.embed import UNFAMILIAR, load_atlas, summarize

    graph = _pose(task, _question(task["request"]), [])(None, None, Parallelism()).graph
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


@_reads_configs
def answer_plan(task: Mapping[str, Any], _blob: bytes, report: Report) -> bytes:
    from traincast.plan import JobsOnce, StackOf, settle
    from traincast.service._planning import list_clusters, plan_request

    clusters, left_out = list_clusters(task["request"])
    settled = settle(_question(task["request"]), clusters)
    question = settled.request
    pose = _pose(task, question, [])
    found = plan_request(
        task["request"],
        settled,
        left_out,
        task["limits"],
        JobsOnce(
            lambda batch, plan, stack: pose(batch, None, plan, stack),
            StackOf(question),
            built_in="name" in task["request"]["workload"],
        ),
        batches=_only_batch(task),
        report=report,
    )
    notes = [*found["notes"], *task["request"].get("said", ())]
    return _to_json({**found, "notes": notes})


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
    from traincast.report import plain_data

    text = json.dumps(plain_data(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A question with its cluster and its whole plan, within what one request may ask."""

    question: Question
    cluster: Cluster
    parallelism: Parallelism
    assumptions: tuple[str, ...]


def _question(asked: Mapping[str, Any]) -> Question:
    """A request as the question that a command would ask; an uploaded model has no name."""
    workload = asked["workload"]
    options = WorkloadOptions(**{name: workload.get(name) for name in OPTIONS})
    return Question(
        source=_catalogue_name(workload["name"], options) if "name" in workload else "",
        workload=options,
        cluster=asked["cluster"],
        parallelism=asked["parallelism"],
        job=asked["job"],
        calibration=_calibration(asked.get("calibration")),
        said=tuple(asked.get("said", ())),
    )


@lru_cache(maxsize=8)
def _calibration(text: str | None) -> Calibration | None:
    """The same noun for the same text, so that questions that follow each other share what was worked out."""
    from traincast.files import decode_calibration

    return None if text is None else decode_calibration(json.loads(text), where="calibration")


def _place(task: Mapping[str, Any]) -> _Place:
    asked, limits = task["request"], task["limits"]
    said: list[str] = []
    question = _question(asked)
    _check_size(asked["cluster"], limits["devices"])
    cluster = build_cluster(question, said=said)
    if cluster.num_devices > limits["devices"]:
        raise InvalidInput(f"{cluster.num_devices:,} devices; one request may ask for at most {limits['devices']:,}")
    question, pose = _as_recorded(task, question)
    question, plan = complete_question(question, cluster, said, pose=pose)
    if plan.micro_batches > limits["micro_batches"]:
        raise InvalidInput(
            f"micro_batches = {plan.micro_batches:,}; one request may ask for at most {limits['micro_batches']:,}"
        )
    return _Place(question=question, cluster=cluster, parallelism=plan, assumptions=tuple(said))


def _as_recorded(
    task: Mapping[str, Any], question: Question
) -> tuple[Question, Callable[[Parallelism, int | None], Job] | None]:
    """An uploaded model with the batch that it was recorded at, and how its job is posed under a plan that is tried."""
    if "model" not in task["request"]["workload"]:
        return question, None
    if question.workload.batch is None:
        loaded = _stored_graph(task["state"], task["request"]["workload"]["model"], task["options"])
        batch = (loaded.small if isinstance(loaded, Scalable) else loaded).batch_size
        question = dataclasses.replace(question, workload=dataclasses.replace(question.workload, batch=batch))
    pose = _pose(task, question, [])
    return question, lambda plan, size: pose(size, None, plan)


def _check_size(table: Mapping[str, Any], most: int) -> None:
    for group in (table, *table.get("groups", ())):
        for name in ("nodes", "devices_per_node"):
            if group.get(name, 0) > most:
                raise InvalidInput(f"{name} = {group[name]:,}; one request may ask for at most {most:,} devices")


class Pose(Protocol):
    """(samples of a pass, tokens of a sample, plan) -> the job; None stands for what the question says."""

    def __call__(
        self, batch: int | None, seq: int | None, plan: Parallelism, software: Stack | None = None, /
    ) -> Job: ...


def _pose(task: Mapping[str, Any], question: Question, said: list[str]) -> "Pose":
    def pose(batch: int | None, seq: int | None, plan: Parallelism, software: Stack | None = None, /) -> Job:
        stack = software or choose_stack(question, plan=plan)
        options = question.workload
        options = dataclasses.replace(
            options,
            batch=options.batch if batch is None else batch,
            seq=options.seq if seq is None else seq,
        )

        def load(wanted: WorkloadOptions, source: str | None = None, /) -> Graph:
            if source is None:
                return _load_graph(task, wanted, plan, stack, said)
            return load_source(_catalogue_name(source, wanted), wanted, plan=plan, stack=stack, said=said)

        return pose_with(load, question, options, plan=plan, stack=stack, said=said)

    return pose


def _load_graph(
    task: Mapping[str, Any], options: WorkloadOptions, plan: Parallelism, stack: Stack, said: list[str]
) -> Graph:
    workload = task["request"]["workload"]
    if "name" in workload:
        return load_source(_catalogue_name(workload["name"], options), options, plan=plan, stack=stack, said=said)
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


def _catalogue_name(name: str, options: WorkloadOptions) -> str:
    """A name that is no file: requests name entries of the catalogue, or give sizes."""
    if options.has_shape:
        return name
    from traincast.catalog import load_facts

    return load_facts("model").find(name)


@lru_cache(maxsize=16)
def _stored_graph(state: str, model: str, options: str) -> Graph | Scalable:
    from traincast.service._state import read_graph
    from traincast.service._uploads import decode_graph

    content = read_graph(state, model, options)
    if content is None:
        raise UnknownName("model", model[:12], ())
    return decode_graph(json.loads(content))
