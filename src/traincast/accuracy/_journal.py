"""Answers of a long table as they are made, on disk, so that a run that was killed can go on where it stopped."""

import hashlib
import json
from collections.abc import Hashable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from traincast.accuracy._predictions import Prediction
from traincast.errors import InvalidInput
from traincast.files import decode, write_whole


class Journal:
    """One line of JSON for each answered question, after a line that says what answered.

    A line that was cut off by a kill is left out when the journal is read again.
    """

    def __init__(self, path: Path, *, answers_of: str, resume: bool) -> None:
        """`answers_of`: the version and the calibration; answers of others are refused. Without `resume` it begins anew."""
        self.path = path
        self._known: dict[str, Prediction] = {}
        if resume and path.is_file():
            self._read(answers_of)
        lines = [json.dumps({"answers_of": answers_of}), *(_write(*entry) for entry in self._known.items())]
        # As a whole: a kill in the middle of this must not lose what was known.
        write_whole(path, "\n".join(lines) + "\n")
        self._file = path.open("a", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: Hashable) -> Prediction | None:
        return self._known.get(_name(key))

    def keep(self, key: Hashable, answer: Prediction) -> None:
        name = _name(key)
        if name not in self._known:
            self._known[name] = answer
            self._file.write(_write(name, answer) + "\n")
            self._file.flush()

    def close(self, *, done: bool) -> None:
        """`done`: all answers are in the table, so the journal goes."""
        self._file.close()
        if done:
            self.path.unlink(missing_ok=True)

    def _read(self, answers_of: str) -> None:
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        begun: Any = _parse(lines[0]) if lines else None
        if not isinstance(begun, dict) or begun.get("answers_of") != answers_of:
            raise InvalidInput(
                f"{self.path} was begun by another version of traincast or with another calibration; take it away, or run "
                "without --resume"
            )
        for line in lines[1:]:
            entry = _parse(line)
            if isinstance(entry, dict) and "key" in entry and "answer" in entry:
                self._known[entry["key"]] = decode(Prediction, entry["answer"], where=str(self.path))


def journal_of(output: Path) -> Path:
    """Beside the table that is being made."""
    return output.with_name(f"{output.name}.partial")


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _write(name: str, answer: Prediction) -> str:
    return json.dumps({"key": name, "answer": asdict(answer)})


def _name(key: Hashable) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]
