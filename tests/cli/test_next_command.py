"""Every answer ends with the one next command worth running, and that command works."""

import shlex
from pathlib import Path

import pytest

from traincast.__main__ import main


def _next(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(list(words)) == 0, capsys.readouterr().err
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("Next: traincast "), last
    return shlex.split(last.removeprefix("Next: traincast "))


@pytest.mark.parametrize("kind", ["devices", "links", "nodes", "workloads", "datasets", "regions", "stacks"])
def test_a_list_leads_to_an_entry_and_an_entry_to_a_forecast(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = _next(capsys, "catalog", kind)
    assert entry[:2] == ["catalog", kind]
    forecast = _next(capsys, *entry)
    assert forecast[0] == "forecast"
    assert _next(capsys, *forecast)


def test_the_overview_and_an_empty_list_lead_to_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert _next(capsys, "catalog") == ["catalog", "devices"]
    assert _next(capsys, "catalog", "devices", "--filter", "no such thing") == ["catalog", "devices"]


def test_likeness_leads_to_a_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    assert _next(capsys, "similar", "gpt2", "-n", "1") == ["forecast", "gpt2", "--gpus", "1xa100-80g"]


def test_measured_runs_lead_from_answers_to_scores_to_learning_to_a_forecast(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text(
        "case_id,model,gpu,n_gpus,micro_batch,dtype,framework,measured_step_s\n"
        "a,resnet50,a100-sxm4-40g,1,256,fp16_amp,pytorch-ddp,0.312\n"
        "b,resnet50,a100-sxm4-40g,8,256,fp16_amp,pytorch-ddp,0.335\n"
    )
    scores = _next(capsys, "batch", "runs.csv", "-o", "answers.csv")
    assert scores == ["accuracy", "runs.csv"]
    learning = _next(capsys, *scores)
    assert learning == ["learn", "runs.csv", "-o", "mine.json"]
    asked = _next(capsys, *learning)
    assert asked[:2] == ["forecast", "resnet50"]
    assert "--calibration" in asked
    assert _next(capsys, *asked)
