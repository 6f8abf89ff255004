"""Configurations as their projects ship them, read, written back and read again: python benchmarks/round_trips.py [--write]

Each file of tests/configs/files is read, the question that it asks is written in the same project's format, and that text is read
again. The page says how many keys were read, which were named as not used, and whether both questions have the same answer.
"""

import argparse
import dataclasses
import fnmatch
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincast.configs import FORMATS, LAUNCHERS, Reading, read_config, writable, write_config
from traincast.forecast import build_cluster, complete_question, fill_in
from traincast.spec import ConfigText, Question, WorkloadOptions

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "tests" / "configs" / "files"
PAGE = ROOT / "docs" / "how-to" / "round-trips.md"
RECIPES = {
    "megatron_bridge_llama3.py": ("llama3_70b_pretrain_config", "llama3_70b_peft_config"), "nemo_llama3_8b.py": ("",),
    "torchtitan_llama3_registry.py": ("llama3_8b", "llama3_70b", "llama3_405b", "llama3_8b_mxfp8"),
}  # fmt: skip
"""Functions of recipes in Python that are asked for."""
PLACES: dict[str, dict[str, Any]] = {
    "megatron-train_gpt3_175b_distributed.sh": {"nodes": 16}, "litgpt-qlora.yaml": {"nodes": 1, "devices_per_node": 1},
    "verl-grpo-qwen2_5-7b.sh": {"nodes": 1},
}  # fmt: skip
ENDINGS = {"json": "json", "yaml": "yaml", "toml": "toml", "shell": "sh", "python": "py"}
WRITTEN_HERE = "written here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """One file on its way out and back."""

    project: str
    name: str
    origin: str
    num_keys: int
    fields: int
    unused: tuple[str, ...]
    written: str
    """The format that was written; nothing where the project's file has no writer."""
    lost: tuple[str, ...]
    """Fields that differ when the written file is read again."""
    same_step: bool | None
    """Whether both questions have the same step to the last digit; None: not asked."""


def list_files() -> Iterator[tuple[str, str]]:
    """Every file with the package it is from, by the table beside the files."""
    rows = [line.split("|") for line in (FILES / "README.md").read_text().splitlines() if line.startswith("| `")]
    for file in sorted(FILES.iterdir()):
        if file.name == "README.md":
            continue
        origin = next(
            (
                row[2].strip()
                for row in sorted(rows, key=lambda row: "*" in row[1])
                if any(fnmatch.fnmatch(file.name, pattern.strip(" `")) for pattern in row[1].split(","))
            ),
            "",
        )
        name = file.name.removesuffix(".txt")
        for function in RECIPES.get(name, ("",)):
            yield f"{name}:{function}" if function else name, origin


def travel(name: str, origin: str, folder: Path, *, ask: bool) -> Trip:
    file, _, function = name.partition(":")
    stored = FILES / (f"{file}.txt" if file.endswith(".py") else file)
    shutil.copy(stored, folder / file)
    config = f"{folder / file}:{function}" if function else str(folder / file)
    reading = read_config(config)
    kind = reading.format
    written = kind in writable()
    lost: tuple[str, ...] = ()
    same: bool | None = None
    if written:
        asked = _place(name, reading)
        first, text = _write(dataclasses.replace(asked, configs=(config,)), kind)
        back = dataclasses.replace(asked, configs=(text,))
        again, _ = _write(back, kind)
        lost = tuple(sorted(name for name in {*first, *again} if first.get(name) != again.get(name)))
        if ask:
            same = _step(dataclasses.replace(asked, configs=(config,))) == _step(back)
    used = len(reading.settings)
    return Trip(
        project=reading.title, name=name, origin=origin, fields=used, unused=reading.unused, written=kind if written else "",
        num_keys=_count(config), lost=lost, same_step=same,
    )  # fmt: skip


def _count(config: str) -> int:
    from traincast.configs._keys import Keys
    from traincast.configs._text import load_text, parse_text

    _, tree = parse_text(load_text(config))
    return len(Keys(tree, where=config).values)


def _place(name: str, reading: Reading) -> Question:
    """What a file leaves to the launcher: the model, the devices, and of a launcher's own file the batch."""
    launches = reading.format in LAUNCHERS
    return Question(
        source="" if "source" in reading.settings else "llama-3-8b",
        cluster={"device": "h100-80g", "nodes": 8, "devices_per_node": 8, **PLACES.get(name, {})},
        workload=WorkloadOptions(batch=1) if launches else WorkloadOptions(),
        parallelism={"recompute": "none"} if launches else {},
    )


def _write(question: Question, kind: str) -> tuple[dict[str, Any], ConfigText]:
    """Everything that the completed question says, and its text in a format."""
    filled = fill_in(question)
    cluster = build_cluster(filled)
    done, plan = complete_question(filled, cluster, [])
    text = write_config(done, plan, kind, num_nodes=cluster.num_nodes, devices_per_node=cluster.devices_per_node)
    said = {"source": done.source, **done.workload.given(), **done.job, **dataclasses.asdict(plan)}
    return said, ConfigText(name=f"written.{ENDINGS[FORMATS[kind].syntax]}", text=text)


def _step(question: Question) -> float:
    from traincast.forecast import ask

    return ask(question).step.seconds


def show(trips: Sequence[Trip]) -> str:
    """The page."""
    shipped = [trip for trip in trips if WRITTEN_HERE not in trip.origin]
    projects = sorted({trip.project for trip in shipped if trip.written and not trip.lost})
    lines = [
        "# Round trips: files as their projects ship them",
        "",
        "Made by `python benchmarks/round_trips.py --write`; `tests/configs` makes the same journeys. A file is read, what it",
        "asks is written in the same project's format, and that text is read. 'Same' says that both questions are equal, field",
        "by field, and that both forecasts have the same step to the last digit. The files are in `tests/configs/files`",
        "with their licences.",
        "",
        f"{len(shipped)} of {len(trips)} files are as their projects ship, print or write them; {len(projects)} projects make",
        "the round trip with them:",
        f"{', '.join(projects)}.",
        "",
        "| project | file | from | keys | fields given | named as not used | written as | same |",
        "|---|---|---|--:|--:|---|---|---|",
    ]
    for trip in trips:
        unused = ", ".join(f"`{key.partition(' (')[0]}`" for key in trip.unused[:4]) or "nothing"
        unused += f" and {len(trip.unused) - 4} more" if len(trip.unused) > 4 else ""
        end = "no writer" if not trip.written else "yes" if not trip.lost else f"but for {', '.join(trip.lost)}"
        if trip.same_step is False:
            end += "; another step"
        lines.append(
            f"| {trip.project} | `{trip.name}` | {trip.origin} | {trip.num_keys} | {trip.fields} | {unused} | "
            f"{trip.written or 'no'} | {end} |"
        )
    return "\n".join([*lines, "", *_NOTES]) + "\n"


_NOTES = [
    "## Which projects ship no file",
    "- **Megatron-LM** ships no launch script in any package of a registry (megatron-core 0.16.1, megatron-fsdp 0.6.1 and",
    "  megatron-bridge 0.3.1 were searched for its options). Its script here has the arguments of `examples/gpt3` as its",
    "  documentation prints them. Its recipes travel as Megatron-Bridge and NeMo files, which are shipped.",
    "- **torchtitan** ships no toml in any release (0.0.2 to 0.3.0). Since 0.3 its configurations are functions of a registry in",
    "  Python, which are shipped, read as syntax and written back as `torchtitan-registry`. The toml here has the keys of the",
    "  releases before it.",
    "- **verl** ships its yaml (0.2 and 0.9.1 here), and scripts for GRPO only in its repository. The script here overrides the",
    "  keys that its documentation names for GRPO.",
    "- **Lightning** ships no yaml; the file is what its command line prints with `--print_config`.",
    "",
    "A launcher's file (DeepSpeed, Accelerate) leaves the batch and what runs again to the script; a batch of one is asked for.",
]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/how-to/round-trips.md")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        trips = [travel(name, origin, Path(folder), ask=True) for name, origin in list_files()]
    page = show(trips)
    if options.write:
        PAGE.write_text(page)
    else:
        sys.stdout.write(page)


if __name__ == "__main__":
    main()
