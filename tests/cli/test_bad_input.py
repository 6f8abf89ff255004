"""Whatever a user gets wrong: one clear line, exit code 2, no traceback, nothing written."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import make_mlp
from traincast.files import save_graph

Run = Callable[..., Any]
GPT2 = ("forecast", "gpt2", "-d", "a100-80g")


def refused(run: Run, *arguments: object) -> str:
    ran = run(*arguments)
    assert ran.code == 2, ran
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("traincast: ")
    message: str = lines[0]
    return message


def test_an_unknown_device_names_the_nearest(run: Run) -> None:
    assert "did you mean" in refused(run, "forecast", "gpt2", "--device", "h1000-sxm")


def test_no_device_says_how_to_give_one(run: Run) -> None:
    assert "--gpus" in refused(run, "forecast", "gpt2")


def test_an_unknown_workload_names_the_nearest(run: Run) -> None:
    assert "did you mean" in refused(run, "forecast", "gpt2-xxl", "-d", "a100-80g")


@pytest.mark.parametrize("batch", ["0", "-3", "two", "1.5"])
def test_a_batch_that_is_no_count_is_refused(run: Run, batch: str) -> None:
    assert "batch" in refused(run, *GPT2, "--batch", batch)


def test_three_devices_cannot_be_split_by_two(run: Run) -> None:
    assert "3 devices" in refused(run, *GPT2, "-g", 3, "--tp", 2)


def test_a_plan_larger_than_the_cluster_is_refused(run: Run) -> None:
    assert "devices" in refused(run, *GPT2, "-g", 4, "--dp", 8)


@pytest.mark.parametrize("price", ["nan", "inf", "-1"])
def test_a_price_that_is_no_price_is_refused(run: Run, price: str) -> None:
    assert "price" in refused(run, *GPT2, "--price", price)


@pytest.mark.parametrize("flag", [("--zero", 4), ("--tp", 0), ("--nodes", 0), ("--precision", "fp7"), ("--seq", -1),
                                  ("--recompute", "some"), ("--mode", "sleep"), ("--attention", "none"),
                                  ("--optimizer", "magic"), ("--steps", 0), ("--epochs", 3), ("--color", "pink"),
                                  ("--order", "random"), ("--intra", "wet string"), ("--samples", "nan"),
                                  ("--stack", "jazz")])  # fmt: skip
def test_a_value_outside_its_range_is_refused(run: Run, flag: tuple[str, object]) -> None:
    refused(run, *GPT2, *flag)


def test_a_truncated_graph_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    save_graph(make_mlp(), file)
    file.write_bytes(file.read_bytes()[:-40])
    assert "not valid JSON" in refused(run, "forecast", file, "-d", "v100")


def test_a_truncated_packed_graph_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "g.json.gz"
    save_graph(make_mlp(), file)
    file.write_bytes(file.read_bytes()[:-40])
    assert "gzip" in refused(run, "forecast", file, "-d", "v100")


def test_a_graph_with_a_wrong_number_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    save_graph(make_mlp(), file)
    data = json.loads(file.read_text())
    data["graph"]["ops"][0]["bytes_read"] = -5
    file.write_text(json.dumps(data))
    refused(run, "forecast", file, "-d", "v100")


def test_a_deeply_nested_file_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    file.write_text("[" * 200_000)
    refused(run, "forecast", file, "-d", "v100")


def test_a_graph_of_ten_gigabytes_is_refused_without_reading_it(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    with file.open("wb") as stream:
        stream.truncate(10 * 2**30)
    assert "GiB" in refused(run, "forecast", file, "-d", "v100")


@pytest.mark.parametrize("name", ["none.json", "none.onnx", "none.toml", "none.py:build"])
def test_a_file_that_is_not_there_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    refused(run, "forecast", tmp_path / name, "-d", "v100")


def test_a_directory_is_no_model(run: Run, tmp_path: Path) -> None:
    refused(run, "forecast", tmp_path, "-d", "v100")


def test_a_broken_job_file_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("source = ")
    assert "TOML" in refused(run, "forecast", file)


def test_a_trace_that_cannot_be_written_leaves_nothing(run: Run, tmp_path: Path) -> None:
    refused(run, *GPT2, "--trace", tmp_path / "no" / "such" / "t.json")
    assert list(tmp_path.iterdir()) == []


def test_the_program_itself_prints_one_line_and_exits_with_2() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "traincast", "forecast", "gpt2", "--device", "b20"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "body",
    [
        "def build():\n    raise ValueError('no\\nway')",
        "def build(:\n",
        "import no_such_package_at_all",
        "def construct():\n    return 1",
        "def build():\n    return 'not a model'",
        "def build():\n    import sys\n    sys.exit(3)",
        "raise SystemExit(0)",
    ],
)
def test_a_model_that_raises_is_named_in_one_line(run: Run, tmp_path: Path, body: str) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(body)
    assert "mine" in refused(run, "forecast", f"{tmp_path / 'mine.py'}:build", "-d", "v100")
