"""One resolve: what is said wins, what is not is filled in by the stack, and every such thing is listed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from traincast.errors import IllegalPlan, InvalidInput
from traincast.plan._ask import ask, decide
from traincast.spec import Question, WorkloadOptions
from traincast.spec._question import QUESTION_FIELDS

TINY: dict[str, Any] = {
    "arch": "llama",
    "n_layers": 4,
    "hidden": 256,
    "heads": 8,
    "vocab": 1024,
    "seq": 128,
    "batch": 2,
}


def question(*, plan: dict[str, Any] | None = None, job: dict[str, Any] | None = None, **workload: Any) -> Question:
    return Question(
        source="tiny",
        workload=WorkloadOptions(**{**TINY, **workload}),
        cluster={"device": "h100", "nodes": 1, "devices_per_node": 8},
        parallelism=plan or {},
        job=job or {},
    )


def test_a_stack_fills_in_what_nobody_said_and_says_so() -> None:
    found = decide(question(plan={"tensor": 4, "zero": 3, "recompute": "selective"}, job={"stack": "torchtitan"}))
    assert found.parallelism.sequence_parallel
    assert found.parallelism.recompute == "selective-op"
    assert any("splits the sequence" in text for text in found.assumptions)
    assert any("selective" in text for text in found.assumptions)


@pytest.mark.parametrize(
    ("stack", "fused"), [("megatron-lm", False), ("megatron-deepspeed", False), ("megatron-core", True)]
)
def test_attention_is_fused_where_the_stack_fuses_it_and_nobody_says_otherwise(stack: str, fused: bool) -> None:
    def is_fused(**said: Any) -> bool:
        return any(op.kind == "attention" for op in decide(question(job={"stack": stack}, **said)).job.graph.ops)

    assert is_fused() == fused
    assert is_fused(attention="flash")


def test_a_step_on_a_chip_with_systolic_arrays_is_a_compiled_program_unless_it_is_said_not_to_be() -> None:
    asked = dataclasses.replace(question(), cluster={"device": "gaudi2", "nodes": 1, "devices_per_node": 8})
    found = decide(asked)
    assert found.job.compiled
    assert any("compiled program" in text for text in found.assumptions)
    assert not decide(dataclasses.replace(asked, job={"compiled": False})).job.compiled
    assert not decide(question()).job.compiled


def test_transfers_of_the_tensor_axis_hide_where_the_stack_hides_them_and_nobody_says_otherwise() -> None:
    assert decide(question(plan={"tensor": 4}, job={"stack": "megatron-core"})).parallelism.async_tensor
    assert not decide(
        question(plan={"tensor": 4, "async_tensor": False}, job={"stack": "megatron-core"})
    ).parallelism.async_tensor
    assert not decide(question(plan={"tensor": 4}, job={"stack": "megatron-lm"})).parallelism.async_tensor


def test_an_optimizer_that_reduces_one_flat_gradient_hides_nothing_unless_it_is_said_to() -> None:
    job = {"stack": "nvidia-mlperf"}
    assert not decide(question(optimizer="lamb", job=job)).parallelism.overlap
    assert decide(question(optimizer="sgd", job=job)).parallelism.overlap
    assert decide(question(plan={"overlap": True}, optimizer="lamb", job=job)).parallelism.overlap


def test_a_stack_that_drops_what_is_not_predicted_has_a_smaller_head() -> None:
    def head_flop(stack: str) -> float:
        graph = decide(question(arch="bert", vocab=5000, job={"stack": stack})).job.graph
        return sum(op.flop or 0.0 for op in graph.ops if op.kind == "matmul" and 5000 in op.attrs.values())

    assert head_flop("nvidia-mlperf") == pytest.approx(0.15 * head_flop("pytorch"), rel=0.02)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sequence_parallel", False),
        ("overlap", True),
        ("bucket_copies", True),
        ("balance", "layers"),
        ("recompute", "full"),
    ],
)
def test_what_is_said_wins_over_every_stack(name: str, said: object) -> None:
    for stack in ("nanotron", "megatron-lm", "megatron-core", "torchtitan", "litgpt"):
        plan = {"tensor": 2, "zero": 1, name: said}
        assert getattr(decide(question(plan=plan, job={"stack": stack})).parallelism, name) == said


def test_kernels_that_are_said_win_over_the_stack() -> None:
    def kernels(**workload: Any) -> int:
        return len(decide(question(job={"stack": "nanotron"}, **workload)).job.graph.ops)

    assert kernels(fused=False) > kernels() == kernels(fused=True)


def test_weights_stay_gathered_in_a_pipeline_unless_they_are_asked_to_go() -> None:
    plan = {"pipeline": 2, "zero": 3, "micro_batches": 8}
    assert decide(question(plan=plan, job={"stack": "torchtitan"})).parallelism.zero == 2
    assert decide(question(plan={**plan, "reshard": True}, job={"stack": "torchtitan"})).parallelism.zero == 3


def test_without_stack_defaults_only_the_costs_are_the_stacks() -> None:
    found = decide(question(plan={"tensor": 4}, job={"stack": "nanotron", "stack_defaults": False}))
    plain = decide(question(plan={"tensor": 4}, job={"stack": "pytorch"}))
    assert found.parallelism == plain.parallelism
    assert found.job.graph.ops == plain.job.graph.ops
    assert found.job.stack.forward_call_s != plain.job.stack.forward_call_s


@pytest.mark.parametrize(
    ("workload", "plan", "job", "expected"),
    [
        ({"batch": 2}, {}, {"global_batch": 64}, (2, 4)),
        ({"batch": None}, {}, {"global_batch": 64}, (8, 1)),
        ({"batch": None}, {"micro_batches": 4}, {"global_batch": 64}, (2, 4)),
        ({"batch": None}, {"pipeline": 2}, {"global_batch": 64}, (8, 2)),
        ({"batch": 2}, {"pipeline": 2}, {}, (2, 8)),
        ({"batch": 2}, {}, {}, (2, 1)),
    ],
)
def test_a_global_batch_says_what_is_left_open(
    workload: dict[str, Any], plan: dict[str, Any], job: dict[str, Any], expected: tuple[int, int]
) -> None:
    found = decide(question(plan=plan, job=job, **workload))
    assert (found.job.graph.batch_size, found.parallelism.micro_batches) == expected
    assert found.settings["global_batch"] == expected[0] * expected[1] * found.parallelism.data


def test_batches_that_do_not_make_the_global_batch_are_refused() -> None:
    with pytest.raises((InvalidInput, IllegalPlan)):
        decide(question(job={"global_batch": 60}, batch=7))


def test_tokens_are_samples_of_the_sequence_length() -> None:
    assert decide(question(job={"tokens": 1_280_000})).job.samples == 10_000


def test_a_job_file_takes_the_words_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        'source = "gpt2"\n[workload]\nbatch = 1\nseq = "1k"\n'
        '[cluster]\ndevice = "h100"\ndevices_per_node = 2\ndevice_memory = "60GB"\n'
        '[parallelism]\ntensor = 2\n[job]\nstack = "megatron-core"\ntokens = "1B"\nstartup_s = "5min"\n'
    )
    found = decide(Question(source=str(file)))
    assert found.job.samples == 1e9 / 1024
    assert found.job.startup_s == 300
    assert found.cluster.groups[0].device.memory_bytes == 60e9
    assert found.parallelism.sequence_parallel


def test_where_recomputation_is_left_open_a_job_that_fits_with_it_is_said_to_fit() -> None:
    large = {"n_layers": 32, "hidden": 4096, "heads": 32, "seq": 8192, "vocab": 32000, "batch": 4, "precision": "bf16"}
    plan = {"tensor": 8, "recompute": "unknown"}
    found = ask(question(plan=plan, job={"stack": "megatron-core"}, **large))
    if found.memory.fit_probability < 0.75:
        assert found.memory.fits
        assert any("left open" in text for text in found.assumptions)
    told = ask(question(plan={**plan, "recompute": "none"}, job={"stack": "megatron-core"}, **large))
    assert told.step == found.step


def test_the_answer_says_what_it_is_for() -> None:
    settings = ask(question(precision="bf16", plan={"micro_batches": 3})).settings
    expected = {"precision": "bf16", "seq": 128, "batch": 2, "micro_batches": 3, "global_batch": 48, "stack": "pytorch"}
    assert {name: settings[name] for name in expected} == expected


def test_every_field_of_a_question_is_asked_for_once_and_with_help() -> None:
    flags = [flag for item in QUESTION_FIELDS for flag in item.flags]
    assert len(set(flags)) == len(flags)
    assert len({item.name for item in QUESTION_FIELDS}) == len(QUESTION_FIELDS)
    assert all(item.help for item in QUESTION_FIELDS)


@pytest.mark.parametrize(
    ("stack", "plan", "zero"),
    [
        ("torchtitan", {"data": 8}, 3),
        ("torchtitan", {"data": 4, "pipeline": 2}, 2),
        ("megatron-core", {"data": 4, "tensor": 2}, 1),
        ("torchtitan", {"data": 8, "zero": 0}, 0),
        ("torchtitan", {"data": 1, "tensor": 8}, 0),
        ("pytorch", {"data": 8}, 0),
    ],
)
def test_a_stack_shards_what_it_always_shards_unless_it_is_said_not_to(
    stack: str, plan: dict[str, Any], zero: int
) -> None:
    assert decide(question(plan=plan, job={"stack": stack})).parallelism.zero == zero
