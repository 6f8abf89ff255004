"""A short question is answered as a practitioner would have asked it, and says what it took for granted."""

import dataclasses
from typing import Any

import pytest

from traincast.catalog import device
from traincast.cli.questions import build_question, write_command
from traincast.errors import InvalidInput
from traincast.plan import decide
from traincast.plan._ask import ask
from traincast.plan._ladder import TOLERANCE, climb
from traincast.resolve._words import ask_in_words
from traincast.spec import QUESTION_FIELDS, Forecast, Question, WorkloadOptions


def short(source: str, gpus: str, count: int = 8, *, nodes: int = 1, **more: Any) -> Question:
    return Question(source=source, cluster={"device": gpus, "nodes": nodes, "devices_per_node": count}, **more)


def test_the_short_question_gets_half_precision_the_models_own_length_and_a_plan_that_fits() -> None:
    found = ask(short("llama-3-8b", "h100", job={"tokens": 15e9}))
    assert found.settings["precision"] == "bf16"
    assert found.settings["seq"] == 8192
    assert found.settings["global_batch"] * 8192 == 2**19
    assert found.memory.fit_probability >= 0.9
    assert any("simplest of" in text for text in found.assumptions)


@pytest.mark.parametrize(
    ("source", "gpus", "precision"),
    [
        ("gpt2", "a100-80g", "bf16"),
        ("resnet50", "a100-80g", "bf16-amp"),
        ("gpt2", "v100-32g", "fp16-amp"),
        ("gpt2", "p100", "fp32"),
    ],
)
def test_the_number_format_follows_the_rates_of_the_device(source: str, gpus: str, precision: str) -> None:
    found = decide(short(source, gpus, 1))
    assert found.settings["precision"] == precision


def test_a_device_whose_matrix_units_are_taken_away_is_asked_in_fp32() -> None:
    plain = dataclasses.replace(device("h100"), matrix_flop_per_s={})
    found = decide(Question(source="gpt2", cluster={"device": plain}))
    assert found.settings["precision"] == "fp32"
    assert any("has no matrix units" in text for text in found.assumptions)


def test_a_length_that_nobody_trains_at_is_capped_and_the_reason_is_said() -> None:
    found = decide(short("llama-3.1-8b", "h100"))
    assert found.settings["seq"] == 8192
    assert any("131,072" in text and "last phase" in text for text in found.assumptions)


@pytest.mark.parametrize(
    ("source", "gpus", "count", "nodes", "named"),
    [
        ("llama-3-8b", "h100", 8, 1, {}),
        ("gpt2", "a100-80g", 1, 1, {}),
        ("resnet50", "v100-16g", 4, 1, {}),
        ("gpt2-xl", "a100-80g", 6, 1, {}),
        ("mixtral-8x7b", "h100", 8, 2, {}),
        ("gpt2-xl", "a100-40g", 8, 1, {"zero": 1}),
    ],
)
def test_the_assumptions_copied_as_flags_ask_for_the_same_answer(
    source: str, gpus: str, count: int, nodes: int, named: dict[str, Any]
) -> None:
    question = short(source, gpus, count, nodes=nodes, parallelism=named)
    found = ask(question)
    typed = _read([*write_command(question)[3:], *found.settings["flags"]], source)
    again = ask(typed)
    assert again.step == found.step
    assert again.memory == found.memory
    assert {**again.settings, "flags": (), "choice": ""} == {**found.settings, "flags": (), "choice": ""}
    assert again.settings["flags"] == ()


def _read(words: list[str], source: str) -> Question:
    """The question that flags of a command line ask."""
    said: dict[str, Any] = {item.name: None for item in QUESTION_FIELDS}
    flags = {flag: item for item in QUESTION_FIELDS for flag in item.flags}
    rest = iter(words)
    for word in rest:
        item = flags[word]
        said[item.name] = True if item.kind is bool else item.kind(next(rest))
    return build_question(source, said, QUESTION_FIELDS, {})


def test_what_is_named_is_kept_and_only_the_rest_is_chosen() -> None:
    found = decide(short("llama-3-8b", "h100", parallelism={"tensor": 2, "zero": 1}))
    assert (found.parallelism.tensor, found.parallelism.zero, found.parallelism.data) == (2, 1, 4)
    asked = short("llama-3-8b", "h100", parallelism={"zero": 0}, workload=WorkloadOptions(batch=1))
    assert decide(asked).parallelism.recompute == "none", "a plan and a batch that are named are a whole plan"


def test_a_model_that_fits_many_times_over_is_replicated() -> None:
    found = decide(short("gpt2", "a100-80g"))
    assert found.parallelism.zero == 0
    assert found.parallelism.data == 8
    assert any("data parallel (DDP)" in text for text in found.assumptions)


def test_where_nothing_fits_the_nearest_plan_is_answered_and_said_not_to_fit() -> None:
    found = ask(short("llama-3-70b", "a100-40g", 2))
    assert not found.memory.fits
    assert any("none of" in text and "fits" in text for text in found.assumptions)


def test_the_plan_taken_is_the_first_within_the_tolerance_of_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    from traincast.plan import _choose

    seen: list[Any] = []

    def watch(*given: Any) -> Any:
        seen.append(climb(*given))
        return seen[-1]

    monkeypatch.setattr(_choose, "climb", watch)
    decide(short("mixtral-8x7b", "h100", 8, nodes=2))
    choice = seen[-1]
    assert choice.fits
    assert 0 <= choice.price <= TOLERANCE


def test_a_row_that_names_everything_is_answered_as_it_is() -> None:
    plan = {"data": 8, "micro_batches": 1}
    options = WorkloadOptions(batch=1, precision="fp32", seq=1024)
    found = decide(short("gpt2", "h100", workload=options, parallelism=plan))
    assert found.parallelism == dataclasses.replace(found.parallelism, zero=0, recompute="none", micro_batches=1)
    assert not any("is assumed:" in text or "no plan" in text for text in found.assumptions)


def test_replicas_that_share_sparse_tables_fit_without_sharding_dense_layers() -> None:
    assert ask(ask_in_words("dlrm", "8xa100-40g")).origin.resolved.parallelism.zero == 0


@pytest.mark.parametrize(("source", "samples"), [("resnet50", 128), ("dlrm-kaggle", 8192)])
def test_samples_of_little_work_are_taken_by_the_thousand(source: str, samples: int) -> None:
    found = decide(Question(source=source, cluster={"device": "a100-80g", "nodes": 1, "devices_per_node": 8}))
    assert found.job.graph.batch_size == samples


def test_a_known_model_may_be_asked_for_with_single_sizes_of_its_own() -> None:
    padded = decide(short("gpt2", "a100-80g", 1, workload=WorkloadOptions(vocab=50304, batch=4)))
    published = decide(short("gpt2", "a100-80g", 1, workload=WorkloadOptions(batch=4)))
    same = decide(short("gpt2", "a100-80g", 1, workload=WorkloadOptions(vocab=50257, batch=4)))
    assert any("gpt2 is built with vocab = 50304" in text for text in padded.assumptions)
    assert padded.job.graph.num_parameters - published.job.graph.num_parameters == (50304 - 50257) * 768
    assert same.job.graph.ops == published.job.graph.ops
    assert not any("is built with" in text for text in same.assumptions)


def test_fewer_layers_of_a_known_model_are_that_model_and_not_a_guess() -> None:
    short_one = decide(
        short("llama-3-8b", "h100", workload=WorkloadOptions(n_layers=4, batch=1), parallelism={"zero": 1})
    )
    assert short_one.settings["seq"] == 8192
    assert short_one.job.graph.num_parameters == pytest.approx(2 * 128256 * 4096 + 4 * 218e6, rel=0.01)


def test_a_model_given_by_its_parameters_gets_a_length_and_a_plan_that_fits() -> None:
    found = ask(short("", "h100", workload=WorkloadOptions(params=7e9)))
    assert found.settings["seq"] == 2048
    assert found.memory.fits
    assert any("simplest of" in text for text in found.assumptions)


def test_a_size_that_a_model_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="resnet50 is no plain transformer"):
        decide(short("resnet50", "h100", 1, workload=WorkloadOptions(vocab=1000)))


def test_a_named_batch_that_fits_is_not_run_with_layers_twice_to_be_surer() -> None:
    def answer(batch: int, **plan: str) -> Forecast:
        options = WorkloadOptions(batch=batch, attention="eager", precision="bf16-amp")
        return ask(short("gpt2", "a100-40g", 1, workload=options, parallelism=plan))

    batch = next(size for size in range(8, 24) if answer(size, recompute="none").memory.fit_probability < 0.95)
    found = answer(batch)
    assert found.memory.fits
    assert found.settings["recompute"] == "none"


def test_a_model_of_which_every_device_holds_a_replica_is_not_cut_though_its_network_is_slow() -> None:
    cluster = {"device": "v100-32g", "nodes": 4, "devices_per_node": 1, "inter": "10Gb/s"}
    found = ask(Question(source="bert-large-uncased", cluster=cluster, workload=WorkloadOptions(batch=8, seq=384)))
    assert found.settings["stack"] == "pytorch"
    assert found.settings["global_batch"] == 32


def test_layers_that_run_again_do_not_raise_the_share_of_the_peak() -> None:
    """MFU counts what the model needs; a step that runs layers twice takes longer for the same FLOP."""

    def answer(recompute: str) -> Forecast:
        options = WorkloadOptions(batch=1, seq=2048, precision="bf16")
        return ask(short("llama-2-7b", "a100-80g", workload=options, parallelism={"zero": 3, "recompute": recompute}))

    plain, again = answer("none"), answer("full")
    assert again.step.seconds > 1.1 * plain.step.seconds
    assert again.utilization * again.step.seconds == pytest.approx(plain.utilization * plain.step.seconds)


def test_what_is_new_is_said_without_our_own_words() -> None:
    tables = ask(short("dlrm", "a100-40g", 8, nodes=2))
    slow = ask(
        Question(source="gpt2", cluster={"device": "a100-40g", "nodes": 2, "devices_per_node": 1, "inter": "10Gb/s"})
    )
    said = " ".join((*tables.notes, *slow.notes))
    assert "large embedding tables" in said
    assert "no such network was measured with pytorch" in said
    assert "of the sort" not in said


def test_a_plan_that_is_chosen_fits_under_the_software_it_is_answered_for() -> None:
    options = WorkloadOptions(batch=1, seq=8192)
    found = ask(short("llama-3-8b", "h100", nodes=128, workload=options, job={"global_batch": 2048}))
    assert found.memory.fits


@pytest.mark.parametrize(("stack", "zero"), [("torchtitan", 3), ("megatron-core", 1), ("fsdp2", 3)])
def test_a_plan_for_named_software_shards_and_recomputes_as_it_does(stack: str, zero: int) -> None:
    found = decide(short("llama-3-8b", "h100", job={"stack": stack}))
    assert found.parallelism.zero == zero
    if stack == "torchtitan":
        assert found.parallelism.recompute != "none"
    small = decide(short("gpt2", "h100", job={"stack": stack}))
    assert (small.parallelism.tensor, small.parallelism.pipeline) == (1, 1)


@pytest.mark.parametrize(
    ("gpus", "precision", "words"),
    [
        ("a100", "fp8", "no matrix units for fp8; its matmuls run in bf16"),
        ("v100", "bf16", "in fp32 on ordinary cores"),
    ],
)
def test_a_number_format_without_units_is_said(gpus: str, precision: str, words: str) -> None:
    found = decide(short("gpt2", gpus, 1, workload=WorkloadOptions(precision=precision)))
    assert any(words in text for text in found.assumptions)


def test_what_cannot_be_meant_is_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidInput, match="takes no sequences"):
        decide(short("resnet50", "h100", 1, workload=WorkloadOptions(seq=128)))
    with pytest.raises(InvalidInput, match="several kinds of devices"):
        ask_in_words("gpt2", "4xa100+4xh100")
    for words in ({"batch": 0}, {}):
        with pytest.raises(InvalidInput, match="must be a whole number of at least 1"):
            decide(ask_in_words("gpt2", "8xh100" if words else "0xh100", **words))


def test_names_that_other_projects_give_to_attention_are_known() -> None:
    def build(name: str) -> object:
        return decide(short("gpt2", "h100", 1, workload=WorkloadOptions(attention=name, batch=1))).job.graph.ops

    assert build("sdpa") == build("flash") != build("eager")


def test_adapters_of_quantised_weights_run_layers_again_where_the_software_does_so_by_default() -> None:
    options = WorkloadOptions(batch=4, seq=2048)

    def recompute(regime: str, stack: str, **plan: str) -> str:
        named = short(
            "llama-3-8b",
            "h100",
            workload=options,
            parallelism={"zero": 3, **plan},
            job={"regime": regime, "stack": stack},
        )
        return decide(named).parallelism.recompute

    assert recompute("qlora", "hf-trainer") == "full"
    assert recompute("lora", "hf-trainer") == "none"
    assert recompute("qlora", "pytorch") == "none"
    assert recompute("qlora", "hf-trainer", recompute="none") == "none"


def test_mixed_devices_are_not_told_to_split_one_sample_by_speed() -> None:
    groups = [{"device": name, "nodes": 1, "devices_per_node": 4} for name in ("h100", "a100-80g")]

    def notes(batch: int) -> str:
        options = WorkloadOptions(batch=batch, seq=1024)
        return " ".join(ask(Question(source="gpt2", cluster={"groups": groups}, workload=options)).notes)

    assert "split by speed" not in notes(1)
    assert "split by speed" in notes(8)
