"""The pages that say how to extend the package, followed to the letter, from their own blocks, in a copy of it.

A block is written to the file that the paragraph before it names last ("Save this as `FILE`:"); a diff is applied to the last
file that was named; lines of sh are run. A block that is none of these fails the test, so no page holds code that nobody
follows. `pip install -e .` is done as pip would leave it: names and entry points, without a network.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "extend").glob("*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w./-]+\.(?:py|toml|json|yaml|net))`")


def copy_package(folder: Path) -> Path:
    """Source and tests; nothing that a page changes is shared with the original."""
    skipped = shutil.ignore_patterns("__pycache__", "files", "weights")
    shutil.copytree(ROOT / "src", folder / "src", ignore=skipped)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=skipped)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.svg", "*.png"))
    for weights in (ROOT / "src").rglob("weights"):
        (folder / weights.relative_to(ROOT)).symlink_to(weights)
    return folder


def apply(edit: str, file: Path) -> None:
    """One diff of a page: what it takes away or shows must stand in the file exactly once."""
    lines = [(line[:1], line[1:]) for line in edit.rstrip("\n").split("\n")]
    before = "\n".join(text for sign, text in lines if sign in " -")
    after = "\n".join(text for sign, text in lines if sign in " +")
    source = file.read_text()
    assert source.count(before) == 1, before
    file.write_text(source.replace(before, after))


def install(folder: Path) -> None:
    """What `pip install -e .` leaves behind of a pyproject.toml with a name and entry points."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in named.items())
        for group, named in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(points))


def run(line: str, folder: Path) -> None:
    words = shlex.split(line)
    if words == ["pip", "install", "-e", "."]:
        install(folder)
        return
    programs = {"traincast": [sys.executable, "-m", "traincast"], "python": [sys.executable], "cp": ["cp"]}
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*programs[words[0]], *words[1:]], cwd=folder, capture_output=True, text=True, timeout=600, env=environment
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def follow(page: Path, folder: Path) -> int:
    """Every block in order; how many there were."""
    text, end, named, count = page.read_text(encoding="utf-8"), 0, "", 0
    for block in FENCE.finditer(text):
        before, end = text[end : block.start()], block.end()
        named = (FILE.findall(before) or [named])[-1]
        count += 1
        if block[1] == "sh":
            for line in block[2].strip().splitlines():
                run(line, folder)
        elif block[1] == "diff":
            apply(block[2], folder / named)
        else:
            assert before.rstrip().endswith(":"), f"{page.name}: say in which file this stands:\n{block[2]}"
            assert named, f"{page.name}: no file is named before\n{block[2]}"
            (folder / named).write_text(block[2])
    return count


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_can_be_followed_to_the_letter(page: Path, tmp_path: Path) -> None:
    if page.stem == "operator":
        pytest.importorskip("torch")
    assert follow(page, copy_package(tmp_path)) >= 2


def test_contributing_names_every_page() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert [page.name for page in PAGES if f"docs/extend/{page.name}" not in contributing] == []


def test_an_option_added_as_the_page_says_changes_the_answer(tmp_path: Path) -> None:
    folder = copy_package(tmp_path)
    follow(ROOT / "docs" / "extend" / "knob.md", folder)
    asked = "forecast gpt2 --gpus 4xt4 --batch 1 --precision fp16 --zero 0 --dp 4 --micro-batches 1 --json"

    def step_s(*words: str) -> float:
        done = subprocess.run(
            [sys.executable, "-m", "traincast", *asked.split(), *words], cwd=folder, capture_output=True, text=True,
            check=True, env={**os.environ, "PYTHONPATH": str(folder / "src")},
        )  # fmt: skip
        seconds: float = json.loads(done.stdout)["step"]["seconds"]
        return seconds

    assert step_s("--reduce-every", "8") < 0.95 * step_s()
