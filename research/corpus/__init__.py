"""Our own corpus of measured training steps, read back: each step with its graph, its setting and its resource numbers."""

import gzip
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from research.corpus.testbed import SETTINGS, TestbedSetting
from traincast.errors import InvalidInput
from traincast.files import decode, encode, write_whole
from traincast.profile import Steadied, steady_seconds
from traincast.spec import Block, Graph, Measurement, collect
from traincast.store import import_table

FOLDER = Path(__file__).resolve().parent
STEPS, OPERATORS, GRAPHS = "steps.parquet", "operators.parquet", "graphs.json.gz"
HEAP_RELEASED = "heap_released"
"""Marks blocks before which ranks gave back the memory of earlier experiments, so that resident memory is their own."""
OF_RESIDENT_MEMORY = ("_memory_peak", "_rss_peak_bytes")
LITTLE_DISTURBED = 0.8
"""Cores that neighbours used during a block: more in the first round, which ran beside other work, less in the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusStep:
    """One measured step: from all its blocks, with the drift of the machine taken out."""

    name: str
    batch: int
    """Samples of one rank."""
    setting: TestbedSetting
    seconds: float
    cpu_seconds: float | None
    """CPU time of the slowest rank in one step."""
    noise: float | None
    """Relative standard error of `seconds` beside the other steps of its setting; None where no step was visited twice."""
    resources: Mapping[str, float]
    """rank0_gpu_idle_s, rank0_sent_bytes ...: medians over the blocks (`read_resources`), by the names of spec.resources."""
    blocks: tuple[Block, ...] = ()
    """Every repeat, and when it was taken."""

    @property
    def key(self) -> tuple[str, int]:
        """Of its graph."""
        return self.name, self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    steps: tuple[CorpusStep, ...]
    operators: tuple[Measurement, ...]
    """Single operators of a part of the architectures, at the machine's full speed."""
    graphs: Mapping[tuple[str, int], Graph]
    """By architecture and batch; optimizer and loss included, before any plan."""


@cache
def load_corpus(folder: Path = FOLDER) -> Corpus:
    """The committed corpus; a checkout of the repository has it, an installed package does not."""
    if not (folder / STEPS).exists():
        raise InvalidInput(f"there is no corpus in {folder}; it comes with the repository")
    operators = import_table(folder / OPERATORS) if (folder / OPERATORS).exists() else []
    return Corpus(
        steps=read_steps(collect(import_table(folder / STEPS))),
        operators=tuple(collect(operators)),
        graphs=load_graphs(folder / GRAPHS),
    )


def load_graphs(path: Path) -> dict[tuple[str, int], Graph]:
    """By architecture and batch."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return {
            (entry["name"], entry["batch"]): decode(Graph, entry["graph"], where=f"{path.name}: {entry['name']}")
            for entry in json.load(stream)
        }


def read_steps(measurements: Iterable[Measurement]) -> tuple[CorpusStep, ...]:
    """Drift is taken out of each setting by itself: a slow machine slows waiting for a link less than it slows computing."""
    settings = {setting.name: setting for setting in SETTINGS}
    found = [
        each for each in measurements
        if each.experiment.subject == "step" and each.experiment.attrs.get("network") is not None
    ]  # fmt: skip
    names = {each.experiment.key: _setting_name(each) for each in found}
    wall: dict[str, Steadied] = {}
    cpu: dict[str, Steadied] = {}
    for name in dict.fromkeys(names.values()):
        together = [each for each in found if names[each.experiment.key] == name]
        wall |= steady_seconds(together, seconds_of=lambda _, block: block.seconds)
        cpu |= steady_seconds(together, seconds_of=lambda _, block: block.cpu_seconds)
    return tuple(
        CorpusStep(
            name=each.experiment.name,
            batch=int(each.experiment.attrs["batch"]),
            setting=settings[names[each.experiment.key]],
            seconds=wall[each.experiment.key].seconds,
            cpu_seconds=cpu[each.experiment.key].seconds if each.experiment.key in cpu else None,
            noise=wall[each.experiment.key].noise,
            resources=_medians(read_resources(each.blocks)),
            blocks=each.blocks,
        )
        for each in found
    )


def _setting_name(measurement: Measurement) -> str:
    attrs = measurement.experiment.attrs
    return f"{attrs['num_ranks']}x{attrs['network']}"


def read_resources(blocks: Sequence[Block]) -> list[dict[str, float]]:
    """Of the blocks that neighbours disturbed little, or of all if there are none. Resident memory only of those before which
    the ranks had given back what earlier steps had left: else it is that of the largest of them."""
    calm = [block for block in blocks if block.resources.get("neighbours_cpu_share", math.inf) < LITTLE_DISTURBED]
    return [
        {
            name: value
            for name, value in block.resources.items()
            if HEAP_RELEASED in block.resources or not name.endswith(OF_RESIDENT_MEMORY)
        }
        for block in calm or blocks
    ]


def _medians(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for table in tables for name in table})
    return {name: statistics.median(table[name] for table in tables if name in table) for name in names}


def write_graphs(keys: Iterable[tuple[str, int]], path: Path) -> None:
    """Capture each architecture at its batch; what the file already holds is kept."""
    from research.corpus.architectures import build_architecture
    from traincast.capture import capture

    known: dict[tuple[str, int], object] = {}
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            known = {(entry["name"], entry["batch"]): entry["graph"] for entry in json.load(stream)}
    for name, batch in sorted(set(keys) - set(known)):
        model, inputs = build_architecture(name)
        known[name, batch] = encode(capture(model, inputs(batch), optimizer="adamw", name=name))
    entries = [{"name": name, "batch": batch, "graph": graph} for (name, batch), graph in sorted(known.items())]
    # Without a time stamp, so that the same graphs are the same file.
    write_whole(path, gzip.compress(json.dumps(entries, separators=(",", ":")).encode(), mtime=0))
