"""Written and read again, a configuration asks for the same plan; what a file has no place for is said or refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from configs.asking import complete, file_of, said_by, write
from configs.test_read import SHIPPED
from traincast.configs import FORMATS, read_config, writable
from traincast.errors import IllegalPlan, InvalidInput
from traincast.spec import Question, WorkloadOptions

STACKS = {
    "deepspeed": "deepspeed", "accelerate": "hf-trainer", "torchtitan": "torchtitan", "megatron-lm": "megatron-core",
}  # fmt: skip
PLACES: dict[str, dict[str, Any]] = {
    "megatron-train_gpt3_175b_distributed.sh": {"nodes": 16},
}
UNSAID = ("batch", "global_batch")
"""A launcher's file may leave the batch to the script; what is written says it."""


def place_of(name: str) -> dict[str, Any]:
    return {"device": "h100-80g", "nodes": 8, "devices_per_node": 8, **PLACES.get(name, {})}


WRITTEN = [name for name, (kind, _, _) in SHIPPED.items() if kind in writable()]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_shipped_file_comes_back_from_its_own_format(name: str, tmp_path: Path) -> None:
    kind, fields, _ = SHIPPED[name]
    source = "" if "source" in fields else "llama-3-8b"
    # A launcher's file leaves the batch and what runs again to the script.
    launches = kind in ("deepspeed", "accelerate")
    batch = WorkloadOptions(batch=1) if launches else WorkloadOptions()
    plan = {"recompute": "none"} if launches else {}
    asked = Question(source=source, cluster=place_of(name), workload=batch, parallelism=plan)
    first = complete(dataclasses.replace(asked, configs=(file_of(name, tmp_path),)))
    text = write(first, kind)
    assert read_config(text).format == kind
    again = complete(dataclasses.replace(asked, configs=(text,)))
    assert again.plan == first.plan
    before, after = said_by(first), said_by(again)
    differs = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert differs <= ({*UNSAID} if kind == "deepspeed" else set())


def test_every_writer_is_tried() -> None:
    assert set(STACKS) == set(writable())


def test_a_format_that_is_only_read_names_those_that_are_written() -> None:
    with pytest.raises(InvalidInput, match="read and not written; formats that are: accelerate, deepspeed"):
        write(complete(Question(source="llama-3-8b", cluster={"device": "h100-80g"})), "verl")


_DEGREES = st.sampled_from([1, 2, 4])


@st.composite
def questions(draw: st.DrawFn, kind: str) -> Question:
    data, tensor, pipeline, context = draw(_DEGREES), draw(_DEGREES), draw(st.sampled_from([1, 1, 2])), draw(_DEGREES)
    plan = {
        "data": data, "tensor": tensor, "pipeline": pipeline, "context": context,
        "micro_batches": draw(st.sampled_from([1, 4, 8])), "zero": draw(st.sampled_from([0, 1, 2, 3])),
        "recompute": draw(st.sampled_from(["none", "full", "selective"])), "offload_optimizer": draw(st.booleans()),
    }  # fmt: skip
    if pipeline > 1:
        plan["virtual_stages"] = draw(st.sampled_from([1, 2]))
    rank = draw(st.sampled_from([None, 16]))
    workload = WorkloadOptions(
        batch=draw(st.sampled_from([1, 2])),
        seq=draw(st.sampled_from([2048, 4096])),
        precision="bf16",
        adapter_rank=rank,
        adapter_targets=None if rank is None else draw(st.sampled_from(["all", "query,value"])),
    )
    job = {"stack": STACKS[kind], "steps": 1000}
    cluster = {"device": "h100-80g", "nodes": 1, "devices_per_node": data * tensor * pipeline * context}
    return Question(source="llama-3-8b", workload=workload, cluster=cluster, parallelism=plan, job=job)


DEGREES = ("data", "tensor", "pipeline", "context", "expert", "zero", "offload_optimizer", "virtual_stages")


@pytest.mark.parametrize("kind", sorted(STACKS))
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_plan_comes_back_from_every_format_that_has_a_place_for_it(kind: str, data: st.DataObject) -> None:
    try:
        first = complete(data.draw(questions(kind)))
    except (IllegalPlan, InvalidInput):
        assume(False)
    try:
        text = write(first, kind)
    except IllegalPlan as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "no place for" in refused or "pipeline goes with" in refused
        return
    source = "llama-3-8b" if kind in ("deepspeed", "accelerate") else ""
    launches = kind in ("deepspeed", "accelerate")
    # A launcher's file leaves the batch to the script.
    batch = WorkloadOptions(batch=first.question.workload.batch) if launches else WorkloadOptions()
    again = complete(Question(source=source, configs=(text,), cluster=first.question.cluster, workload=batch))
    assert again.question.source == first.question.source
    # What the file cannot say stands in its comments, except in json, which has none.
    lost = {
        item.name
        for item in dataclasses.fields(first.plan)
        if f"{item.name} = {getattr(first.plan, item.name)} has no place" in text.text
        or (FORMATS[kind].syntax == "json" and item.name == "recompute")
    }
    kept = [name for name in (*DEGREES, "micro_batches", "recompute") if name not in lost]
    if launches:
        kept = [name for name in kept if name not in ("micro_batches", "recompute")]
    if first.plan.data * first.plan.context == 1:
        # One replica has nobody to share with.
        kept.remove("zero")
    assert {name: getattr(again.plan, name) for name in kept} == {name: getattr(first.plan, name) for name in kept}
    if kind not in ("deepspeed", "accelerate"):
        assert again.question.workload.batch == first.question.workload.batch
        before, after = first.question.workload, again.question.workload
        for name in ("seq", "precision", "adapter_rank", "adapter_targets"):
            known = getattr(before, name) == getattr(after, name)
            assert known or f"{name} = {getattr(before, name)} has no place" in text.text


def test_the_same_question_gives_the_same_text() -> None:
    question = Question(
        source="llama-3-8b", workload=WorkloadOptions(batch=1, seq=4096, precision="bf16"), job={"stack": "torchtitan"},
        cluster={"device": "h100-80g", "devices_per_node": 8}, parallelism={"zero": 3},
    )  # fmt: skip
    assert write(complete(question), "torchtitan") == write(complete(question), "torchtitan")


def test_torchtitan_reads_the_flavour_and_the_degrees_that_are_written() -> None:
    question = Question(
        source="llama-3-70b", workload=WorkloadOptions(batch=2, seq=8192, precision="bf16"), job={"stack": "torchtitan"},
        cluster={"device": "h100-80g", "nodes": 4, "devices_per_node": 8}, parallelism={"zero": 3, "tensor": 8},
    )  # fmt: skip
    text = write(complete(question), "torchtitan").text
    assert 'name = "llama3"' in text
    assert 'flavor = "70B"' in text
    assert "tensor_parallel_degree = 8" in text
    assert "data_parallel_shard_degree = 4" in text
