"""The pages that say how to extend the package, followed to the letter."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "extend"
NAMED = ("device", "operator", "knob", "stack", "policy", "emitter", "cost-model", "config")


def test_there_is_a_page_for_each_thing_to_add() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(NAMED)
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert [name for name in NAMED if f"docs/extend/{name}.md" not in contributing] == []


def apply(edit: str, file: Path) -> None:
    """One diff of a page: what it takes away or shows must stand in the file exactly once."""
    lines = [(line[:1], line[1:]) for line in edit.rstrip("\n").split("\n")]
    before = "\n".join(text for sign, text in lines if sign in " -")
    after = "\n".join(text for sign, text in lines if sign in " +")
    source = file.read_text()
    assert source.count(before) == 1, before
    file.write_text(source.replace(before, after))


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the edits of the page on knobs."""
    folder = tmp_path_factory.mktemp("knob")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    page = (PAGES / "knob.md").read_text()
    edits = re.findall(r"`(src/traincast/[\w/]+\.py)`.*?```diff\n(.*?)```", page, flags=re.DOTALL)
    assert len(edits) == 2
    for name, edit in edits:
        apply(edit, folder / name)
    return folder


def ask(folder: Path, *words: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "traincast", *words, "--json"], cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def test_a_knob_that_was_added_as_the_page_says_is_asked_for_everywhere(followed: Path) -> None:
    asked = ("gpt2", "--gpus", "4xt4", "--batch", "1", "--precision", "fp16", "--zero", "0", "--dp", "4")
    plain = ask(followed, "forecast", *asked, "--micro-batches", "1")
    local = ask(followed, "forecast", *asked, "--micro-batches", "1", "--reduce-every", "8")
    assert local["step"]["seconds"] < 0.95 * plain["step"]["seconds"]  # type: ignore[index]
    (followed / "job.toml").write_text(
        'source = "gpt2"\n[workload]\nbatch = 1\nprecision = "fp16"\n[cluster]\ndevice = "t4"\nnodes = 1\ndevices_per_node = 4\n'
        "[parallelism]\ndata = 4\nzero = 0\nmicro_batches = 1\nreduce_every = 8\n"
    )
    assert ask(followed, "forecast", "job.toml")["step"] == local["step"]
