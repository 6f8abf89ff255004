"""Runs of a sweep as they end, on disk, so that a sweep that was killed can go on where it stopped."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput
from traincast.files import write_whole
from traincast.schedule._metrics import Metrics

Task = tuple[str, str, float, int]


class SweepJournal:
    """One line of JSON for each run, after a line that says what is swept. A line that a kill cut off is left out."""

    def __init__(self, path: Path, *, sweep_of: str, resume: bool) -> None:
        """`sweep_of`: a digest of everything that decides the runs; those of another sweep are refused."""
        self.path = path
        self._known: dict[str, Metrics] = {}
        if resume and path.is_file():
            self._read(sweep_of)
        lines = [json.dumps({"sweep_of": sweep_of}), *(_write(*entry) for entry in self._known.items())]
        # As a whole: a kill in the middle of this must not lose what was known.
        write_whole(path, "\n".join(lines) + "\n")
        self._file = path.open("a", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._known)

    def find(self, task: Task) -> Metrics | None:
        return self._known.get(_name(task))

    def keep(self, task: Task, metrics: Metrics) -> None:
        self._known[_name(task)] = metrics
        self._file.write(_write(_name(task), metrics) + "\n")
        self._file.flush()

    def close(self, *, done: bool) -> None:
        """`done`: the sweep is complete, so the journal goes."""
        self._file.close()
        if done:
            self.path.unlink(missing_ok=True)

    def _read(self, sweep_of: str) -> None:
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        begun = _parse(lines[0]) if lines else None
        if not isinstance(begun, dict) or begun.get("sweep_of") != sweep_of:
            raise InvalidInput(
                f"{self.path} is of another sweep: other jobs, options or version; take it away, or run without --resume"
            )
        for line in lines[1:]:
            entry = _parse(line)
            if isinstance(entry, dict) and isinstance(entry.get("metrics"), dict) and isinstance(entry.get("run"), str):
                try:
                    self._known[entry["run"]] = Metrics(**entry["metrics"])
                except TypeError as error:
                    raise InvalidInput(f"{self.path} is damaged; run without --resume") from error


def left_to_run(tasks: Sequence[Task], journal: SweepJournal | None) -> list[Task]:
    return [task for task in tasks if journal is None or journal.find(task) is None]


def _name(task: Task) -> str:
    return json.dumps(task)


def _write(name: str, metrics: Metrics) -> str:
    return json.dumps({"run": name, "metrics": asdict(metrics)}, default=lambda value: value.item())


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
