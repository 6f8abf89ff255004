"""A calibration is part of the question: by command, job file, Python, table row and request it gives the same digits."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from service.conftest import Running, start
from traincast.__main__ import main
from traincast.plan import forecast
from traincast.spec import Question, WorkloadOptions

WORDS = ("gpt2", "--device", "a100-sxm4-40g", "--precision", "fp32", "--seq", "256", "--batch", "4", "--json")
OPTIONS = {"precision": "fp32", "seq": 256, "batch": 4}
BODY = {"workload": {"name": "gpt2", **OPTIONS}, "cluster": {"device": "a100-sxm4-40g"}}
COLUMNS = "case_id,gpu,model,seq_len,dtype,mode,attention,act_ckpt,n_gpus,micro_batch"
ROW = "a100-sxm4-40g,gpt2,256,fp32,training_step,flash,none,1"


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three runs taught that took half as long again as forecast."""
    folder = tmp_path_factory.mktemp("learnt")
    lines = [f"{COLUMNS},measured_step_s"]
    for batch in (2, 4, 8):
        plain = forecast("gpt2", {"device": "a100-sxm4-40g"}, **{**OPTIONS, "batch": batch})
        lines.append(f"b{batch},{ROW},{batch},{1.5 * plain.step.seconds}")
    (folder / "runs.csv").write_text("\n".join(lines) + "\n")
    assert main(["learn", str(folder / "runs.csv"), "-o", str(folder / "ours.json")]) == 0
    return folder / "ours.json"


@pytest.fixture(scope="module")
def service(learnt: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("state") / "s.db", "--workers", "1", "--calibration", f"ours={learnt}")
    yield running
    running.stop()


def ask_command(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def digits(document: dict[str, Any]) -> tuple[Any, ...]:
    return document["step"], document["memory"], document["job"], document["notes"]


def test_every_way_to_ask_with_a_calibration_gives_the_same_digits(
    learnt: Path, service: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_flag = ask_command(capsys, "forecast", *WORDS, "--calibration", learnt)
    plain = ask_command(capsys, "forecast", *WORDS)
    assert by_flag["step"]["seconds"] > 1.4 * plain["step"]["seconds"]

    (learnt.parent / "job.toml").write_text(
        'source = "gpt2"\ncalibration = "ours.json"\n[workload]\nprecision = "fp32"\nseq = 256\nbatch = 4\n'
        '[cluster]\ndevice = "a100-sxm4-40g"\n'
    )
    by_file = ask_command(capsys, "forecast", learnt.parent / "job.toml", "--json")
    assert digits(by_file) == digits(by_flag)

    question = Question(
        source="gpt2", workload=WorkloadOptions(**OPTIONS), cluster=BODY["cluster"], calibration=str(learnt)
    )
    for found in (forecast(question), forecast("gpt2", BODY["cluster"], calibration=str(learnt), **OPTIONS)):
        assert found.step.seconds == by_flag["step"]["seconds"]
        assert (found.step.low_s, found.step.high_s) == (by_flag["step"]["low_s"], by_flag["step"]["high_s"])

    content = json.loads(learnt.read_text())
    for named in ("ours", content):
        reply = service.post("/forecast", {**BODY, "calibration": named})
        assert reply.status == 200, reply.body
        assert digits(reply.body) == digits(by_flag)

    table = tmp_path / "rows.csv"
    table.write_text(f"{COLUMNS},calibration\na,{ROW},4,{learnt}\nb,{ROW},4,\n")
    assert main(["batch", str(table), "-o", str(tmp_path / "out.csv"), "--commands", str(tmp_path / "lines")]) == 0
    with (tmp_path / "out.csv").open(newline="") as stream:
        with_it, without = list(csv.DictReader(stream))
    assert float(with_it["step_s"]) == pytest.approx(by_flag["step"]["seconds"], rel=1e-8)
    assert float(without["step_s"]) == pytest.approx(plain["step"]["seconds"], rel=1e-8)
    asked, bare = (tmp_path / "lines").read_text().splitlines()
    assert f"--calibration {learnt}" in asked
    assert "--calibration" not in bare


def test_plans_fits_and_advice_of_the_service_use_it(service: Running) -> None:
    assert service.post("/fit", {**BODY, "calibration": "ours"}).status == 200
    assert service.post("/forecast", {**BODY, "calibration": "ours", "advice": True}).status == 200
    steps = []
    for learned in ({}, {"calibration": "ours"}):
        job = service.post("/plan", {**BODY, "global_batch": 4, "max_gpus": 1, **learned}).body["id"]
        done = service.finish(job).body
        assert done["state"] == "done", done
        steps.append(done["result"]["plans"][0]["step_s"])
    assert steps[1] > steps[0]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("other", "known calibrations: ours"),
        ("/etc/passwd", "unknown calibration"),
        ({"format": "something"}, "is not a calibration"),
        ({"format": "traincast-calibration", "version": 3, "calibration": {"nme": "x"}}, "nme"),
        (7, "calibration"),
    ],
)
def test_a_request_names_no_file_and_brings_nothing_unchecked(service: Running, named: Any, words: str) -> None:
    reply = service.post("/forecast", {**BODY, "calibration": named})
    assert reply.status == 422
    assert words in reply.error


def test_the_service_does_not_start_with_what_is_no_calibration(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for pair in (f"x={tmp_path / 'x.json'}", "x", f"={tmp_path / 'x.json'}"):
        assert main(["serve", "--port", "0", "--state", str(tmp_path / "s.db"), "--calibration", pair]) == 2
