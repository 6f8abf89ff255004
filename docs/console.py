"""Runs the commands that pages show and writes what they print: python docs/console.py [PAGE...].

Without pages: README.md and every page of docs that shows a command. A block is fenced as ```console; every line
`$ traincast ...` in it is run, and what follows is replaced. Comments of a page steer it:

    <!-- 12 lines -->                       before a block: its first lines only
    <!-- shown: Phases of a step, ... -->   anywhere: of forecasts their head, answer and these parts alone
    <!-- files: tests/configs/files -->     anywhere: commands run in a copy of this folder instead of the top of the repository
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(?:^<!-- (\d+) lines -->\n)?^```(?:console)?\n(\$ traincast .*?)^```$", re.MULTILINE | re.DOTALL)
PARTS, FILES = re.compile(r"<!-- shown: (.*) -->"), re.compile(r"<!-- files: (.*) -->")
COLUMNS, WIDEST = "100", 160


def _shorten(line: str) -> str:
    """At a word, so that no option is cut in two."""
    return line.rstrip() if len(line) <= WIDEST else f"{line[:WIDEST].rpartition(' ')[0]} ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One command of a page, what the page shows of it, and how it is shortened."""

    command: str
    text: str
    num_lines: int | None
    parts: tuple[str, ...] | None

    def answer(self) -> str | None:
        """What the page should show; None if the command cannot run where it stands."""
        printed = run(self.command)
        if printed is None:
            return None
        lines = (shorten(printed, self.parts) if self.parts else printed).rstrip().splitlines()
        kept = lines if self.num_lines is None else lines[: self.num_lines]
        more = ["..."] if len(kept) < len(lines) else []
        return "\n".join([*(_shorten(line) for line in kept), *more]) + "\n"


def list_pages() -> list[Path]:
    """Every page that shows a command."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if BLOCK.search(page.read_text(encoding="utf-8"))]


def parts_of(page: str) -> tuple[str, ...] | None:
    found = PARTS.search(page)
    return tuple(found[1].split(", ")) if found else None


def split_block(block: re.Match[str], page: str) -> list[Shown]:
    """The commands of a block with what stands below each."""
    pieces = re.split(r"^\$ (traincast .*)\n", block[2], flags=re.MULTILINE)[1:]
    num_lines = int(block[1]) if block[1] else None
    return [
        Shown(command=command, text=text, num_lines=num_lines, parts=parts_of(page))
        for command, text in zip(pieces[::2], pieces[1::2], strict=True)
    ]


@contextlib.contextmanager
def in_folder_of(page: str) -> Iterator[None]:
    """Where the commands of a page run."""
    found = FILES.search(page)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder if found else ROOT):
        if found:
            for file in (ROOT / found[1]).iterdir():
                if file.is_file():
                    shutil.copy(file, Path(folder) / file.name.removesuffix(".txt"))
        yield


def run(command: str) -> str | None:
    """What a command prints, without colours; None if it fails."""
    from traincast.__main__ import main

    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(shlex.split(command)[1:])
    out.flush()
    return raw.getvalue().decode() if code == 0 else None


def shorten(text: str, shown: Sequence[str]) -> str:
    """The first two paragraphs, and those that begin with a word that is shown."""
    parts = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
    kept = [part for place, part in enumerate(parts) if place < 2 or part.startswith(tuple(shown))]
    return "\n\n".join(kept) + "\n"


def compare(shown: str, printed: str) -> float:
    """How much of two outputs agrees, from 0 to 1, whatever their numbers."""
    return SequenceMatcher(None, words_of(shown), words_of(printed), autojunk=False).ratio()


def words_of(text: str) -> list[str]:
    """The words of an output without numbers, bars and line breaks, which move with every fit."""
    bare = re.sub(r"[▀-▟·─#]+|\$?\d[\d,.]*%?|µs|\bms\b|\bs\b|\bmin\b|\bh\b|\bdays\b|[KMGT]iB", " ", text)
    return re.findall(r"[A-Za-z_]{2,}", bare)


def refresh(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    def answer(block: re.Match[str]) -> str:
        fence = block[0][: block.start(2) - block.start()]
        return (
            fence
            + "\n".join(f"$ {one.command}\n{one.answer() or one.text}" for one in split_block(block, text))
            + "```"
        )

    with in_folder_of(text):
        made = BLOCK.sub(answer, text)
    page.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    os.environ["COLUMNS"] = COLUMNS
    for page in [Path(name).resolve() for name in sys.argv[1:]] or list_pages():
        sys.stderr.write(f"{page}\n")
        refresh(page)
