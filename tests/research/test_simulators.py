from pathlib import Path

import pytest

from research.simulators.__main__ import main


def test_without_reference_runs_it_says_what_to_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["simulators", "--references", str(tmp_path / "nowhere")])
    assert main() == 2
    assert "no reference runs" in capsys.readouterr().err
