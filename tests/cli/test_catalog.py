import json

import pytest

from traincast.__main__ import main


def run(*words: str) -> int:
    return main(["catalog", *words])


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)


def test_without_words_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    shown = capsys.readouterr().out
    for kind in ("devices", "links", "nodes", "workloads", "datasets", "stacks"):
        assert f"traincast catalog {kind}" in shown


@pytest.mark.parametrize(
    ("kind", "least"),
    [("devices", 60), ("links", 60), ("nodes", 60), ("workloads", 60), ("datasets", 60), ("stacks", 16)],
)
def test_every_kind_is_listed_as_a_table_and_as_json(kind: str, least: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(kind) == 0
    table = capsys.readouterr().out
    assert run(kind, "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert len(records) >= least
    assert all(record["name"] in table for record in records)


def test_a_filter_keeps_entries_with_all_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nodes", "--filter", "AWS h100", "--json") == 0
    names = {record["name"] for record in json.loads(capsys.readouterr().out)}
    assert names == {"aws-p5.4xlarge", "aws-p5.48xlarge"}


def test_a_filter_that_nothing_passes_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("devices", "-f", "abacus") == 0
    assert "no devices contain 'abacus'" in capsys.readouterr().out
    assert run("devices", "-f", "abacus", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_one_entry_is_shown_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("devices", "h100") == 0
    shown = capsys.readouterr().out
    for words in (
        "h100-sxm-80g",
        "989 TFLOP/s",
        "source of memory_bytes",
        "source of all other figures",
        "nvswitch-h100",
    ):
        assert words in shown


def test_a_machine_is_shown_with_its_price_date_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("node", "p4d.24xlarge") == 0
    shown = capsys.readouterr().out
    for words in ("$21.96", "2026-08-22", "source of the price", "skypilot"):
        assert words in shown


def test_a_name_alone_is_found_among_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    for name, kind_of_figure in (("4090", "memory_bytes"), ("ndr", "latency_s"), ("dgx-h100", "num_vcpu")):
        assert run(name) == 0
        assert kind_of_figure in capsys.readouterr().out


def test_a_pipe_gets_plain_text_unless_colours_are_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("links")
    assert "\x1b[" not in capsys.readouterr().out
    run("links", "--color", "always")
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    run("links")
    assert "\x1b[" in capsys.readouterr().out
    run("links", "--json")
    json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("b20",), "did you mean 'b200'?"),
        (("devices", "b20"), "did you mean 'b200'?"),
        (("device", "rtx-3091"), "did you mean 'rtx-3090'?"),
        (("gadgets", "h100"), "unknown kind of entry 'gadgets'"),
        (("links", "--color", "mauve"), "mauve"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
