"""What another definition of idle and burst would do: python -m research.studies.resource_definitions SAMPLES [--errors]

SAMPLES are the readings of a campaign (corpus.samples.jsonl of `research.corpus.measure`). Three
ways to read them: the first rank by threshold (what we ship), the mean of all equal ranks by threshold, and that mean by the
rectangle of equal volume: burst = volume over level, where the level is the mean, weighed by volume, of each window or its higher
neighbour. Prints how far blocks measured twice lie apart and, with --errors, what the network misses on left-out architectures.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from research.corpus import load_corpus
from research.papers.driple import (
    NAMES,
    Measured,
    errors_of,
    label_noise,
    mean_over_targets,
    predict_left_out,
    read_runs,
    relative_error,
    summarise,
)
from traincast.profile import SETTINGS, Setting, total_memory_bytes
from traincast.resources import FLOORS, Signal, from_counter, from_gauge, summarize
from traincast.spec import RESOURCES

Key = tuple[str, int, str]
Twelve = Mapping[str, float]
Reading = Callable[[Signal, int, float], tuple[float, float, float]]


def by_threshold(signal: Signal, num_steps: int, floor: float) -> tuple[float, float, float]:
    activity = summarize(signal, num_cycles=num_steps, floor=floor)
    return activity.idle_s, activity.burst_s, activity.peak


def by_rectangle(signal: Signal, num_steps: int, floor: float) -> tuple[float, float, float]:
    levels = np.where(signal.levels > floor, signal.levels, 0.0)
    volumes = levels * signal.lengths_s
    whole = float(volumes.sum())
    if whole <= 0:
        return signal.duration_s / num_steps, 0.0, 0.0
    around = np.concatenate([[0.0], levels, [0.0]])
    full = np.maximum(np.maximum(around[:-2], around[2:]), levels)
    level = float(np.dot(volumes, full)) / whole
    burst_s = min(whole / level, signal.duration_s)
    return (signal.duration_s - burst_s) / num_steps, burst_s / num_steps, level


WAYS: Mapping[str, tuple[Reading, bool]] = {
    "first rank, threshold": (by_threshold, False),
    "mean of equal ranks, threshold": (by_threshold, True),
    "mean of equal ranks, rectangle": (by_rectangle, True),
}


def read_blocks(path: Path) -> dict[Key, list[dict[str, Any]]]:
    blocks: dict[Key, list[dict[str, Any]]] = {}
    with path.open() as stream:
        for line in stream:
            block = json.loads(line)
            name, _, attrs = block["experiment"].removeprefix("step ").rpartition(" (")
            words = dict(pair.split("=") for pair in attrs.rstrip(")").split(", "))
            key = name, int(words["batch"]), f"{words['num_ranks']}x{words['network']}"
            blocks.setdefault(key, []).append(block)
    return blocks


def label(block: Mapping[str, Any], setting: Setting, way: str) -> Twelve | None:
    """The twelve numbers of a block; None where the sampler was kept from running."""
    reading, all_ranks = WAYS[way]
    found = []
    for readings, node in zip(block["ranks"], setting.nodes, strict=False):
        alike = (node.bits_per_s, node.cpu_share) == (setting.nodes[0].bits_per_s, setting.nodes[0].cpu_share)
        if not alike or len(readings) < 4 or (found and not all_ranks):
            continue
        times_s, cpu_s, received, sent, resident = np.array(readings).T
        signals = {
            "gpu": from_counter(times_s, cpu_s / node.cpu_share),
            "memory": from_gauge(times_s, resident / (total_memory_bytes() / setting.num_ranks)),
            "received": from_counter(times_s, received),
            "sent": from_counter(times_s, sent),
        }
        twelve: dict[str, float] = {}
        for resource in RESOURCES:
            # What is resident is there all the time by either way: its numbers stay.
            chosen = by_threshold if resource == "memory" else reading
            numbers = chosen(signals[resource], block["num_steps"], FLOORS[resource])
            twelve |= dict(zip((f"{resource}_idle_s", f"{resource}_burst_s", f"{resource}_peak"), numbers, strict=True))
        if twelve["gpu_peak"] and (setting.num_ranks == 1 or (twelve["received_peak"] and twelve["sent_peak"])):
            found.append(twelve)
    return {name: statistics.fmean(each[name] for each in found) for name in NAMES} if found else None


def repeat_noise(blocks: Mapping[Key, Sequence[Mapping[str, Any]]], way: str) -> dict[str, list[float]]:
    """Blocks measured twice, over the root of two."""
    errors: dict[str, list[float]] = {name: [] for name in NAMES}
    settings = {setting.name: setting for setting in SETTINGS}
    for (_, _, where), found in blocks.items():
        pair = [label(block, settings[where], way) for block in found[:2]]
        if len(pair) < 2:
            continue
        one, other = pair
        if one is None or other is None:
            continue
        for name in NAMES:
            if settings[where].num_ranks == 1 and name.startswith(("received", "sent")):
                continue
            missed = [
                relative_error(name, predicted=b[name], measured=a[name], step_s=a["gpu_idle_s"] + a["gpu_burst_s"])
                for a, b in ((one, other), (other, one))
            ]
            errors[name].append(statistics.fmean(missed) / 2**0.5)
    return errors


def relabel(rows: Sequence[Measured], blocks: Mapping[Key, Sequence[Mapping[str, Any]]], way: str) -> list[Measured]:
    found = []
    for row in rows:
        twelve = label(blocks[row.step.name, row.step.batch, row.step.setting.name][0], row.step.setting, way)
        if twelve is not None:
            found.append(replace(row, run=replace(row.run, twelve=twelve)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--errors", action="store_true", help="train the network on each (a CPU minute for each)")
    options = parser.parse_args()
    blocks, rows = read_blocks(options.samples), read_runs(load_corpus())
    for way in WAYS:
        noise = summarise(repeat_noise(blocks, way))
        print(f"{way}: repeated blocks {mean_over_targets(noise):.1%} (n {max(score.num_rows for score in noise)})")
        print("   " + "  ".join(f"{score.target} {score.mean:.1%}" for score in noise), flush=True)
        labelled = relabel(rows, blocks, way)
        print(f"   neighbouring settings {mean_over_targets(label_noise(labelled)):.1%}", flush=True)
        if options.errors:
            scores = summarise(errors_of(labelled, predict_left_out(labelled, split="architecture")))
            print(f"   an architecture left out {mean_over_targets(scores):.1%}")
            print("   " + "  ".join(f"{score.target} {score.mean:.1%}" for score in scores), flush=True)


if __name__ == "__main__":
    main()
