import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def test_a_person_sees_the_largest_batch_and_the_longest_sequence(run: Run) -> None:
    ran = run("fit", "gpt2", "--device", "a100-80g", "--seq", 1024, "--confidence", 0.99)
    assert ran.code == 0
    for wanted in ("gpt2 on 1 x", "likely to fit", "nvidia-smi will show", "largest batch", "longest sequence"):
        assert wanted in ran.out


def test_json_answers_agree_with_the_forecast(run: Run) -> None:
    found = json.loads(run("fit", "gpt2", "-d", "t4", "--seq", 512, "--confidence", 0.9, "--json").out)
    assert found["largest_batch"] >= 1
    at_limit = json.loads(run("forecast", "gpt2", "-d", "t4", "--seq", 512, "-b", found["largest_batch"], "--json").out)
    beyond = json.loads(
        run("forecast", "gpt2", "-d", "t4", "--seq", 512, "-b", 4 * found["largest_batch"], "--json").out
    )
    assert at_limit["memory"]["fits"] is True
    assert beyond["memory"]["fits"] is False


def test_a_job_that_does_not_fit_is_told_what_to_change_and_its_price(run: Run) -> None:
    ran = run("fit", "gpt2-xl", "-d", "a100-40g", "-g", 8, "-b", 8, "--seq", 1024, "--zero", 0, "--precision", "fp32")
    assert ran.code == 0
    assert "DOES NOT FIT" in ran.out
    assert "time per sample" in ran.out
    assert "ZeRO" in ran.out


def test_an_impossible_confidence_is_one_line_and_exit_code_2(run: Run) -> None:
    ran = run("fit", "gpt2", "-d", "a100-80g", "--confidence", 2)
    assert ran.code == 2
    assert "between 0 and 1" in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_a_model_without_tokens_has_no_longest_sequence(run: Run) -> None:
    found = json.loads(run("fit", "resnet50", "-d", "a100-80g", "--json").out)
    assert found["longest_sequence"] is None
    assert found["largest_batch"] > 32


def test_the_memory_of_the_fullest_stage_can_be_drawn(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "memory.svg"
    ran = run("fit", "gpt2", "-d", "a100-80g", "-g", 2, "-b", 8, "--pp", 2, "--micro-batches", 4, "--svg", file)
    assert ran.code == 0
    assert "stage 2 of 2" in file.read_text()


def test_adapters_on_four_bit_weights_fit_where_full_training_does_not(run: Run) -> None:
    size = ("fit", "llama-2-7b", "-d", "a10g", "--precision", "bf16-pure", "--seq", 512, "--json")
    full = json.loads(run(*size).out)
    frozen = json.loads(run(*size, "--adapter-rank", 16, "--frozen-dtype", "fp4").out)
    assert not full["fits"]
    assert frozen["fits"]
    assert frozen["by_role"]["optimizer_state"] < 0.01 * full["by_role"]["optimizer_state"]


def test_quantised_weights_need_adapters(run: Run) -> None:
    ran = run("fit", "gpt2", "-d", "a100-80g", "--frozen-dtype", "fp4")
    assert ran.code == 2
    assert "adapter_rank" in ran.err


def test_what_fills_the_device_is_named(run: Run) -> None:
    line = next(
        line for line in run("fit", "gpt2", "-d", "a100-80g").out.splitlines() if line.startswith("  at the peak")
    )
    assert all(part in line for part in ("parameter", "optimizer state", "activation"))


def test_what_tensors_take_what_is_reserved_and_what_the_device_shows_are_told_apart(run: Run) -> None:
    found = json.loads(run("fit", "resnet50", "-d", "a100-80g", "-b", 64, "--json").out)
    assert 0 < found["live_bytes"] < found["reserved_bytes"] < found["used_bytes"] < found["capacity_bytes"]
    assert "nvidia-smi" in run("fit", "resnet50", "-d", "a100-80g", "-b", 64).out


def test_a_length_beyond_that_of_the_model_is_said_to_be(run: Run) -> None:
    assert "published with 1,024" in run("fit", "gpt2", "-d", "a100-80g", "--seq", 512, "-b", 1).out
    assert "published with" not in run("fit", "gpt2", "-d", "a100-80g", "-b", 512).out


def test_a_batch_of_nothing_is_refused(run: Run) -> None:
    ran = run("fit", "gpt2", "-d", "a100-80g", "-b", 0)
    assert ran.code == 2
    assert "batch" in ran.err


def test_who_asks_for_safety_is_told_what_is_worth_a_try(run: Run) -> None:
    words = ("fit", "gpt2-xl", "-d", "a100-40g", "--seq", 1024, "--precision", "bf16")
    safe, tried = (json.loads(run(*words, "-c", sure, "--json").out) for sure in (0.99, 0.6))
    assert safe["likely_batch"] == tried["largest_batch"] > safe["largest_batch"] == 0
    assert tried["likely_batch"] is None
    assert "none is 90% safe; a" in run(*words).out
