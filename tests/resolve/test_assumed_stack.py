"""Which software a question that names none is taken to run with."""

import dataclasses
from typing import Any

import pytest

from traincast.accuracy import parse_case, translate
from traincast.catalog import large_stack, plain_stack
from traincast.plan import ask, decide, search_plans, space_of
from traincast.resolve import choose_stack
from traincast.spec import Question, WorkloadOptions

LARGE, PLAIN = large_stack().name, plain_stack().name
NODES = {"device": "h100-80g", "nodes": 2, "devices_per_node": 8}


def question(source: str = "llama-2-7b", *, nodes: int = 2, mode: str | None = None, **plan: Any) -> Question:
    return Question(
        source=source,
        workload=WorkloadOptions(batch=1, precision="bf16", mode=mode),
        cluster={**NODES, "nodes": nodes},
        parallelism={"micro_batches": 4, **plan},
    )


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (question(tensor=8), LARGE),
        (question(pipeline=2), LARGE),
        (question("mixtral-8x7b", tensor=2, expert=8), LARGE),
        (question(zero=3), PLAIN),
        (question(), PLAIN),
        (question(nodes=64, zero=1), LARGE),
        (question(nodes=64, zero=3), PLAIN),
        (question("resnet50", pipeline=2), PLAIN),
        (question(tensor=8, mode="inference"), PLAIN),
    ],
)  # fmt: skip
def test_the_plan_says_what_it_is_run_with(asked: Question, name: str) -> None:
    resolved = decide(asked)
    assert resolved.job.stack.name == name
    assert any("no framework is named" in each for each in resolved.assumptions)
    assert ("--framework", name) in zip(resolved.settings["flags"], resolved.settings["flags"][1:], strict=False)


def test_a_stack_that_is_named_is_kept() -> None:
    named = dataclasses.replace(question(tensor=8), job={"stack": PLAIN})
    assert decide(named).job.stack.name == PLAIN
    assert not any("no framework is named" in each for each in decide(named).assumptions)


def test_naming_what_was_assumed_changes_the_words_only() -> None:
    asked = question(tensor=8)
    named = dataclasses.replace(asked, job={"stack": LARGE})
    assert ask(asked).step == ask(named).step


def test_a_stack_that_nobody_named_is_no_surer_than_one_that_was_never_measured() -> None:
    step = ask(question(tensor=8)).step
    measured = ask(dataclasses.replace(question(tensor=8), job={"stack": "megatron-core"})).step
    assert step.high_s / step.low_s > measured.high_s / measured.low_s


def test_a_row_without_a_framework_is_asked_as_a_question_is() -> None:
    row = {"case_id": "one", "model": "llama-2-7b", "gpu": "h100-80g", "n_gpus": 16, "n_nodes": 2, "gpus_per_node": 8, "tp": 8,
           "dp": 2, "micro_batch": 1, "grad_accum": 4, "dtype": "bf16", "seq_len": 4096}  # fmt: skip
    assert translate(parse_case(row)).job.stack.name == LARGE
    assert translate(parse_case({**row, "framework": "their own"})).job.stack.name == LARGE
    assert translate(parse_case({**row, "framework": "pytorch"})).job.stack.name == PLAIN
    assert translate(parse_case({**row, "tp": 1, "dp": 16})).job.stack.name == PLAIN


def test_a_search_runs_every_plan_with_what_a_forecast_of_it_assumes() -> None:
    asked = Question(source="gpt2-xl", workload=WorkloadOptions(precision="bf16"))
    cluster = decide(question()).cluster
    space = dataclasses.replace(space_of(asked, global_batch=64), tensor=(1, 4), pipeline=(1,), batches=(4,))
    for found in search_plans(asked, cluster, space=space, top=6).plans:
        plan = {item.name: getattr(found.parallelism, item.name) for item in dataclasses.fields(found.parallelism)}
        again = dataclasses.replace(
            asked, workload=WorkloadOptions(precision="bf16", batch=4), parallelism=plan, cluster=NODES
        )
        assert ask(again).step == found.forecast.step
        assert choose_stack(again).name == (LARGE if found.parallelism.tensor > 1 else PLAIN)
