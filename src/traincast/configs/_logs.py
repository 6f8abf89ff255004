"""The log of a finished run to what it measured: seconds of a step, memory and GPU utilisation."""

import csv
import datetime
import io
import itertools
import json
import os
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.units import GIB, MIB

WARM_UP = 2
"""Steps or intervals at the start of a run that are left out where there are enough others."""
_TITAN = re.compile(r"step:\s*(?P<step>[\d,]+)\s.*?memory:\s*(?P<memory>[\d.]+)GiB.*?\btps:\s*(?P<tps>[\d,.]+)")
_MEGATRON = re.compile(r"iteration\s+(?P<step>\d+)/\s*\d+.*?elapsed time per iteration \(ms\):\s*(?P<ms>[\d.]+)")
_MEGATRON_MEMORY = re.compile(r"memory \(MB\).*?max reserved:\s*(?P<mb>[\d.]+)")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[,.]?(\d{0,6})")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@noun
class RunLog:
    """What a log says of a run."""

    format: str
    num_steps: int = 0
    """That the seconds are the median or the mean of."""
    step_s: float | None = None
    tokens_per_device_s: float | None = None
    """Where the log says this and no time."""
    reserved_bytes: float | None = None
    """Most that the framework's allocator held."""
    used_bytes: float | None = None
    """Most that the device's own meter showed."""
    gpu_share: float | None = None
    """Mean GPU utilisation, 0 to 1."""


def read_log(path: str | os.PathLike[str]) -> RunLog:
    """Of trainer_state.json, an export of W&B or MLflow, a log of torchtitan or Megatron, or of `nvidia-smi dmon`."""
    text = Path(path).read_text(errors="replace")
    for read in READERS.values():
        found = read(text)
        if found is not None:
            return found
    raise InvalidInput(f"{path} is no log that we can read; known: {', '.join(READERS)}; or a trace of torch.profiler")


def is_log(path: str | os.PathLike[str]) -> bool:
    """Whether a file is anything but a profiler's trace."""
    with Path(path).open("rb") as file:
        head = file.read(2)
    if head == b"\x1f\x8b":
        return False
    start = Path(path).read_text(errors="replace")[:200_000]
    return '"traceEvents"' not in start and '"schemaVersion"' not in start[:2000]


def _read_trainer(text: str) -> RunLog | None:
    """transformers: the last entry sums the run up."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        state = json.loads(text)
    except json.JSONDecodeError:
        return None
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        return None
    for entry in reversed(history):
        if isinstance(entry, dict) and entry.get("train_runtime"):
            steps = int(entry.get("step") or state.get("global_step") or 0)
            rate = entry.get("train_steps_per_second")
            step_s = float(entry["train_runtime"]) / steps if steps else 1 / float(rate) if rate else None
            return RunLog(format="trainer_state.json", num_steps=steps, step_s=step_s)
    raise InvalidInput(
        "trainer_state.json has no train_runtime: only the state of a finished run says how long it took"
    )


def _read_titan(text: str) -> RunLog | None:
    lines = [line for line in _ESCAPES.sub("", text).splitlines() if _TITAN.search(line)]
    if not lines:
        return None
    found = [(_TITAN.search(line), line) for line in lines]
    marks = [(float(match["step"].replace(",", "")), _clock_s(line)) for match, line in found if match]
    rates = [float(match["tps"].replace(",", "")) for match, _ in found if match]
    memory = max(float(match["memory"]) for match, _ in found if match) * GIB
    return RunLog(
        format="torchtitan", num_steps=len(lines), step_s=_median_step(marks),
        tokens_per_device_s=statistics.median(rates[WARM_UP:] or rates), reserved_bytes=memory,
    )  # fmt: skip


def _read_megatron(text: str) -> RunLog | None:
    times = [float(match["ms"]) / 1e3 for match in _MEGATRON.finditer(text)]
    if not times:
        return None
    memory = [float(match["mb"]) * MIB for match in _MEGATRON_MEMORY.finditer(text)]
    return RunLog(
        format="Megatron", num_steps=len(times), step_s=statistics.median(times[WARM_UP:] or times),
        reserved_bytes=max(memory, default=None),
    )  # fmt: skip


def _read_dmon(text: str) -> RunLog | None:
    """Columns by their heading; a second heading says the units."""
    heading = next((line for line in text.splitlines() if line.startswith("#") and " gpu" in f" {line}"), None)
    if heading is None or not {"sm", "fb"} & set(heading.split()):
        return None
    names = heading.lstrip("# ").split()
    rows = [
        dict(zip(names, line.split(), strict=False)) for line in text.splitlines() if line[:1] != "#" and line.split()
    ]
    shares = [float(row["sm"]) / 100 for row in rows if row.get("sm", "-") != "-"]
    held = [float(row["fb"]) * MIB for row in rows if row.get("fb", "-") != "-"]
    return RunLog(
        format="nvidia-smi dmon",
        used_bytes=max(held, default=None),
        gpu_share=statistics.mean(shares) if shares else None,
    )


def _read_table(text: str) -> RunLog | None:
    """W&B's history and MLflow's metrics as CSV or lines of JSON: steps with a clock."""
    rows = list(_rows(text))
    steps = _column(rows, ("_step", "Step", "step", "trainer/global_step", "train/global_step"))
    for name, unit in (("_timestamp", 1.0), ("_runtime", 1.0), ("Relative Time (Process)", 1.0), ("timestamp", None)):
        clock = _column(rows, (name,))
        marks = [(step, at) for step, at in zip(steps, clock, strict=True) if step is not None and at is not None]
        if len(marks) > 1:
            # MLflow counts milliseconds since 1970, W&B seconds.
            factor = unit or (1e-3 if max(at for _, at in marks) > 1e11 else 1.0)
            found = _median_step([(step, at * factor) for step, at in marks])
            used = _column(rows, ("system.gpu.0.memoryAllocatedBytes", "system/gpu.0.memoryAllocatedBytes"))
            busy = [share for share in _column(rows, ("system.gpu.0.gpu", "system/gpu.0.gpu")) if share is not None]
            return RunLog(
                format="W&B or MLflow export", num_steps=len(marks), step_s=found,
                used_bytes=max((amount for amount in used if amount is not None), default=None),
                gpu_share=statistics.mean(busy) / 100 if busy else None,
            )  # fmt: skip
    return None


def _read_mlflow(text: str) -> RunLog | None:
    """A file below mlruns/*/metrics: timestamp, value and step on each line."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or any(len(line) != 3 or not line[0].isdigit() or not line[2].isdigit() for line in lines):
        return None
    marks = [(float(step), float(at) / 1e3) for at, _, step in lines]
    return RunLog(format="MLflow metric", num_steps=len(marks), step_s=_median_step(marks))


READERS: Mapping[str, Callable[[str], RunLog | None]] = {
    "trainer_state.json": _read_trainer, "torchtitan": _read_titan, "Megatron": _read_megatron,
    "nvidia-smi dmon": _read_dmon, "MLflow metric": _read_mlflow, "W&B or MLflow export": _read_table,
}  # fmt: skip


def _rows(text: str) -> Iterator[Mapping[str, Any]]:
    if text.lstrip().startswith("{"):
        for line in text.splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict):
                yield row
        return
    yield from csv.DictReader(io.StringIO(text))


def _column(rows: Iterable[Mapping[str, Any]], names: tuple[str, ...]) -> list[float | None]:
    def number(row: Mapping[str, Any]) -> float | None:
        for name in names:
            try:
                return float(row[name])
            except (KeyError, TypeError, ValueError):
                continue
        return None

    return [number(row) for row in rows]


def _clock_s(line: str) -> float | None:
    found = _TIME.search(line)
    if found is None:
        return None
    fraction = float(f"0.{found[3]}") if found[3] else 0.0
    return datetime.datetime.fromisoformat(f"{found[1]} {found[2]}+00:00").timestamp() + fraction


def _median_step(marks: Iterable[tuple[float, float | None]]) -> float | None:
    """Seconds of a step between two lines of a log; None where they have no clock."""
    timed = sorted({step: at for step, at in marks if at is not None}.items())
    pace = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(timed) if b[0] > a[0] and b[1] > a[1]]
    return statistics.median(pace[WARM_UP:] or pace) if pace else None
