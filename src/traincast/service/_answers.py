"""Tasks to answers, inside a worker process: what the command line computes, from requests that name no file."""

import contextlib
import dataclasses
import functools
import json
import re
import shlex
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traincast.catalog import load_facts
from traincast.errors import InvalidInput, TraincastError
from traincast.files import decode_calibration, read_calibration
from traincast.forecast import answer as answer_question
from traincast.plan import (
    SEARCHED,
    Limits,
    Plan,
    Wanted,
    advise,
    catalogue_offers,
    choose_machines,
    complete_question,
    decide,
    emit,
    find_fit,
    jobs_at,
    search_plans,
    settle,
    space_of,
    with_batch,
)
from traincast.report import (
    describe_plan,
    describe_price,
    describe_settings,
    document_forecast,
    document_row,
    plain_data,
    say_candidate,
)
from traincast.resolve import Resolved, write_command
from traincast.service._requests import CAPTURE_OPTIONS, OPTIONS, find_graph, read_request
from traincast.spec import Calibration, Question, WorkloadOptions

Report = Callable[..., None]
Task = Mapping[str, Any]
Answer = Callable[[Task, Report], Any]
TASKS: dict[str, Callable[[Task, bytes, Report], bytes]] = {}
"""What a worker can be asked, by name."""


def _answers(name: str, *, stored: bool = False) -> Callable[[Answer], Answer]:
    """The answer to a request by its bytes, or the result of a job from what was `stored` of its request."""

    def register(answer: Answer) -> Answer:
        def read_first(task: Task, blob: bytes, report: Report) -> bytes:
            read = {**task, **json.loads(blob)} if stored else read_request(task, blob, name)
            try:
                found = plain_data(answer(read, report))
            except TraincastError as error:
                # No message names a file of this machine.
                words = re.sub(rf"{re.escape(str(task.get('folder')))}/\S*?\.json", "the model", str(error))
                raise (error if words == str(error) else InvalidInput(words)) from error
            text = json.dumps(found, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            return text.encode(errors="replace")

        TASKS[name] = read_first
        return answer

    return register


@_answers("forecast")
def answer_forecast(task: Task, _report: Report) -> dict[str, Any]:
    asked = task["request"]
    question = _question(task)
    resolved = _decide(task, question)
    cluster, plan, job = resolved.cluster, resolved.parallelism, resolved.job
    answer = answer_question(resolved, draw=asked["detail"])
    # The spans of a large step are thousands; the details hold what can be seen of them.
    bare = dataclasses.replace(answer, timeline=dataclasses.replace(answer.timeline, spans=()))
    tokens = job.graph.tokens_per_sample
    document = {
        **document_forecast(bare),
        "tokens_per_s": answer.samples_per_s * tokens if tokens > 1 else None,
        "mfu": answer.utilization,
        "parallelism": plan,
        "asked": describe_plan(plan, batch_size=job.graph.batch_size),
        "price": describe_price(cluster),
        "settings_words": describe_settings(answer),
        "usd_per_hour": cluster.usd_per_hour,
        "needed_bytes": answer.memory.needed_bytes,
        "command": _say_command(task, question),
    }
    if _is_upload(task):
        # What it was recorded with.
        document["settings"] |= {
            key: asked["workload"][key] for key in ("precision", "seq") if key in asked["workload"]
        }
    if asked.get("emit"):
        ready = Plan.of(answer, cluster, plan, batch=job.graph.batch_size)
        precision = resolved.question.workload.precision or "fp32"
        document["emitted"] = emit(ready, asked["emit"], precision=precision, question=resolved.question)
    if asked.get("advice"):
        document["advice"] = _advise(task, question, confidence=0.9)
    if asked["detail"]:
        from traincast.report import describe_details

        document["detail"] = describe_details(answer, job, plan)
    return document


def _say_command(task: Task, question: Question) -> str | None:
    """The command that asks the same; None where no command can: an uploaded model, nodes of several kinds."""
    with contextlib.suppress(InvalidInput):
        return None if _is_upload(task) else shlex.join(write_command(question))
    return None


@_answers("advise")
def answer_advice(task: Task, _report: Report) -> dict[str, Any]:
    """What dominates, whether it fits and what would help, in sentences."""
    return _advise(task, _question(task), confidence=task["request"]["confidence"])


def _advise(task: Task, question: Question, *, confidence: float) -> dict[str, Any]:
    completed = complete_question(question)
    request = completed.question
    if not _is_upload(task):
        request = dataclasses.replace(request, workload=with_batch(request.workload))
    found = advise(request, completed.cluster, completed.parallelism, confidence=confidence)
    assumed = list(dict.fromkeys(completed.assumptions))
    return {"sentences": list(found.sentences), "suggestions": found.suggestions, "assumptions": assumed}


@_answers("compare")
def answer_comparison(task: Task, _report: Report) -> dict[str, Any]:
    """A trace of torch.profiler beside the forecast of its job."""
    from traincast.accuracy import compare_trace, device_of_trace
    from traincast.report import document_comparison

    asked = task["request"]
    with tempfile.TemporaryDirectory(prefix="traincast-trace-", dir=task.get("folder")) as folder:
        trace = Path(folder) / "trace.json"
        trace.write_text(json.dumps(asked["trace"]), encoding="utf-8")
        try:
            if not {"device", "node", "groups"} & asked["cluster"].keys():
                device = device_of_trace(trace)
                if device is None:
                    raise InvalidInput("the trace was recorded on a CPU, which no catalogue knows; name a device")
                asked["cluster"]["device"] = device
            resolved = _decide(task, _question(task))
            answer = answer_question(resolved, draw=True)
            found = compare_trace(trace, answer, resolved.job.graph, num_steps=asked.get("num_steps"))
        except TraincastError as error:
            raise InvalidInput(str(error).replace(str(trace), "the trace")) from error
    return document_comparison(found)


@_answers("fit")
def answer_fit(task: Task, _report: Report) -> dict[str, Any]:
    completed = complete_question(_question(task))
    asked, learned = completed.question.workload, read_calibration(completed.question.calibration)
    found = find_fit(
        jobs_at(completed), completed.cluster, completed.parallelism, batch=asked.batch or 1, seq=asked.seq,
        confidence=task["request"]["confidence"], calibration=learned,
    )  # fmt: skip
    return {**found.document(), "assumptions": list(dict.fromkeys(completed.assumptions))}


@_answers("plan", stored=True)
def answer_plan(task: Task, report: Report) -> dict[str, Any]:
    """Ranked plans by the command line's search."""
    question, asked, limits = _question(task), task["request"], task["limits"]
    wanted = Wanted(
        min_devices=asked["min_gpus"], max_devices=asked["max_gpus"], regions=tuple(asked["regions"]),
        devices=tuple(asked["devices"]),
    )  # fmt: skip
    listed = catalogue_offers() if asked["all_machines"] else None
    place = Question(source="", cluster=asked["cluster"])
    chosen = choose_machines(place, wanted, listed=listed, source="all_machines")
    settled = settle(question, chosen.clusters)
    largest = max(cluster.num_devices for cluster in settled.clusters)
    _check_devices(largest, limits["devices"])
    samples = asked.get("global_batch") or asked["job"].get("global_batch") or asked["workload"].get("batch")
    choices = {name: tuple(values) for name, values in asked["space"].items()}
    # The degrees of the form are those of its forecast; the search has its own and takes over what stays the same.
    held = {name: value for name, value in question.parallelism.items() if name not in SEARCHED}
    request = dataclasses.replace(settled.request, parallelism=held)
    space = space_of(request, global_batch=samples, num_devices=largest, **choices)

    def watch(done: int, total: int, best: str) -> None:
        if total > limits["plans"]:
            raise InvalidInput(
                f"the space has more than {limits['plans']:,} plans, the most that one request may try; name a device, "
                "fewer GPUs or fixed degrees"
            )
        report(done, total, f"plans, {best}" if best else "plans")

    found = search_plans(
        dataclasses.replace(request, job={name: value for name, value in request.job.items() if name != "global_batch"}),
        settled.clusters, space=space, objective=asked["objective"], top=asked["top"], watch=watch,
        limits=Limits(
            deadline_s=asked.get("deadline_s"), budget_usd=asked.get("budget_usd"), confidence=asked["confidence"]
        ),
        calibration=read_calibration(request.calibration),
    )  # fmt: skip
    nearest = found.nearest
    return {
        "plans": [document_row(plan) for plan in found.plans],
        "front": [document_row(plan) for plan in found.front],
        **{name: getattr(found, name) for name in ("num_plans", "num_evaluated", "num_pruned", "excluded")},
        "nearest": None if nearest is None else f"{say_candidate(nearest.candidate)} {nearest.says}",
        "notes": list(dict.fromkeys((*settled.notes, *found.notes, *question.said))),
        "num_clusters": len(settled.clusters),
        "left_out": dict(chosen.left_out),
    }


@_answers("schedule", stored=True)
def answer_schedule(task: Task, report: Report) -> dict[str, Any]:
    from traincast.service._simulation import simulate_request

    return simulate_request(task["request"], task["limits"], report)


def _check(task: Task, blob: bytes, _report: Report) -> bytes:
    """A request for a job, read and found sound, as the job is stored."""
    return json.dumps({"request": read_request(task, blob, task["kind"])["request"]}).encode()


def _record(task: Task, blob: bytes, _report: Report) -> bytes:
    """An upload to the graph that is kept of it: a line about it, then the packed model and the packed graph."""
    from traincast.service._uploads import guess_kind, read_upload, unpack

    is_kept = task["is_kept"]
    content = zlib.decompress(blob) if is_kept else bytes(unpack(blob, most=4 * task["limits"]["body_bytes"]))
    kind = task["kind"] if is_kept else guess_kind(content)
    about, graph = read_upload(content, kind=kind, options=json.loads(task["options"]), limits=task["limits"])
    packed = zlib.compress(content, 1)
    head = {"kind": kind, "content_bytes": len(packed), "about": about}
    return json.dumps(head).encode() + b"\n" + packed + zlib.compress(graph, 1)


def _warm_up(task: Task, _blob: bytes, report: Report) -> bytes:
    """Load what every forecast needs: weights, catalogue tables, and one answer through all rooms."""
    return TASKS["forecast"](task, b'{"model": "resnet18", "gpus": "1xa100-80g", "batch": 8}', report)


TASKS |= {"warm": _warm_up, "record": _record, "check": _check}


# A request as the question that a command would ask.


def _question(task: Task) -> Question:
    asked = task["request"]
    check_cluster(asked["cluster"], task["limits"]["devices"])
    workload = asked["workload"]
    given = {name: workload[name] for name in OPTIONS if workload.get(name) is not None}
    if _is_upload(task):
        # These were used when it was recorded.
        given = {name: value for name, value in given.items() if name not in CAPTURE_OPTIONS}
        source = str(find_graph(task["folder"], workload))
    else:
        # A name that is no file: an entry of the catalogue, or sizes and a title.
        name = workload.get("name", "")
        has_shape = WorkloadOptions(**given).has_shape
        source = re.sub(r"[^\w -]", "-", name) if has_shape else load_facts("model").find(name)
    for key, value in asked["job"].items():
        if isinstance(value, str) and re.search(r"[/\\]|\.\w+$", value):
            raise InvalidInput(f"job.{key} is {value[:60]!r}; a request names entries of the catalogue and no files")
    return Question(
        source=source, workload=WorkloadOptions(**given), cluster=asked["cluster"], parallelism=asked["parallelism"],
        job=asked["job"], calibration=_calibration(asked.get("calibration")), said=tuple(asked.get("said", ())),
    )  # fmt: skip


def _is_upload(task: Task) -> bool:
    return "model" in task["request"]["workload"]


@functools.lru_cache(maxsize=8)
def _calibration(text: str | None) -> Calibration | None:
    """The same noun for the same text, so that questions that follow each other share what was worked out."""
    return None if text is None else decode_calibration(json.loads(text), where="calibration")


def _decide(task: Task, question: Question) -> Resolved:
    """The question with its cluster and its whole plan, within what one request may ask."""
    limits, resolved = task["limits"], decide(question)
    _check_devices(resolved.cluster.num_devices, limits["devices"])
    if resolved.parallelism.micro_batches > limits["micro_batches"]:
        raise InvalidInput(
            f"micro_batches = {resolved.parallelism.micro_batches:,}; one request may ask for at most "
            f"{limits['micro_batches']:,}"
        )
    return resolved


def _check_devices(count: int, most: int) -> None:
    if count > most:
        raise InvalidInput(f"{count:,} devices; one request may ask for at most {most:,}")


def check_cluster(table: Mapping[str, Any], most: int) -> None:
    """Before anything is built of it."""
    for group in (table, *table.get("groups", ())):
        nodes, devices = group.get("nodes", 1), group.get("devices_per_node", 1)
        _check_devices(max(nodes, devices, nodes * devices), most)
