"""Tutorials are programs: the code of each page runs in order, in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TUTORIALS = [*sorted((DOCS / "tutorials").glob("*.md")), *sorted((DOCS / "extend").glob("*.md"))]
NEED_TORCH = ("your-model", "watch-a-run", "operator")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_code_of_every_tutorial_runs(page: Path, tmp_path: Path) -> None:
    if page.stem in NEED_TORCH:
        pytest.importorskip("torch")
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    program = tmp_path / f"page_{page.stem.replace('-', '_')}.py"
    program.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", program.name], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
